"""Other forms of a model: products of low rank, and cuts of smaller width."""

from .decay import TERMS, frobenius, kronecker, l2, penalty
from .factors import LowRank, LowRankConv2d, LowRankEmbedding, LowRankLinear, spectral
from .lowrank import (
    Keep,
    Pair,
    factor_pairs,
    factorise,
    factorise_tensors,
    front_names,
    recover,
    recover_tensors,
)
from .width import Cut, Indices, merge, narrow, prefix, random, window

__all__ = [
    "TERMS",
    "Cut",
    "Indices",
    "Keep",
    "LowRank",
    "LowRankConv2d",
    "LowRankEmbedding",
    "LowRankLinear",
    "Pair",
    "factor_pairs",
    "factorise",
    "factorise_tensors",
    "frobenius",
    "front_names",
    "kronecker",
    "l2",
    "merge",
    "narrow",
    "penalty",
    "prefix",
    "random",
    "recover",
    "recover_tensors",
    "spectral",
    "window",
]
