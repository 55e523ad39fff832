"""Other forms of a model: products of low rank, cuts of smaller width or depth, a basis of filters."""

from .basis import bank_names, composed, orthogonality
from .depth import HeadKind, with_depth
from .factors import TERMS, LowRank, LowRankConv2d, LowRankEmbedding, LowRankLinear, frobenius, kronecker, l2, spectral
from .layered import layered
from .lowrank import (
    FactorInit,
    Pair,
    RankMode,
    column_dimensions,
    factor_pairs,
    factorize,
    factorize_tensors,
    factorize_trained,
    front_names,
    penalty,
    recover,
    recover_tensors,
    truncate_tensors,
)
from .staged import at_stage, staged
from .width import Cut, Indices, narrow, permuted, prefix, random, window

__all__ = [
    "TERMS",
    "Cut",
    "FactorInit",
    "HeadKind",
    "Indices",
    "LowRank",
    "LowRankConv2d",
    "LowRankEmbedding",
    "LowRankLinear",
    "Pair",
    "RankMode",
    "at_stage",
    "bank_names",
    "column_dimensions",
    "composed",
    "factor_pairs",
    "factorize",
    "factorize_tensors",
    "factorize_trained",
    "frobenius",
    "front_names",
    "kronecker",
    "l2",
    "layered",
    "narrow",
    "orthogonality",
    "penalty",
    "permuted",
    "prefix",
    "random",
    "recover",
    "recover_tensors",
    "spectral",
    "staged",
    "truncate_tensors",
    "window",
    "with_depth",
]
