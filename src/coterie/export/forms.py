"""The two forms of a model of low rank: ordinary layers, or their factors in the rank the client can carry."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..algorithms.capacities import RANKS, shares
from ..errors import RequestError, unknown
from ..views import factorise, recover

FORMS = ("recovered", "factorised")
LOW_RANK = ("fedlmt", "pfedlmt", "fedhm", "fedhmv2")


@dataclass(frozen=True)
class Formed:
    """A module, what must be known to build it again, and whether it answers as the one that was measured."""

    module: nn.Module
    about: dict[str, Any] = field(default_factory=dict)
    measured: bool = True


def formed(module: nn.Module, config: Mapping[str, Any], client: int, form: str) -> Formed:
    """A client's module in one of the FORMS; methods that have no factors have one form only."""
    method = config["method"]
    if form not in FORMS:
        raise unknown("form", form, FORMS)
    if method not in LOW_RANK:
        if form == "factorised":
            raise RequestError(f"{method} has no factors, only {', '.join(LOW_RANK)} have: leave --form out")
        return Formed(module)
    dense = recover(module)
    if form == "recovered":
        return Formed(dense, {"form": form})
    settings = {k: config["settings"][k] for k in ("keep_layers", "rank_mode")}
    rank = {"rank_ratio": _ratio(config, client), **settings}
    about = {"form": form, **rank}
    if method == "fedlmt":
        return Formed(module, about)
    if method == "pfedlmt":
        return Formed(_cut(module, factorise(dense, **rank, init="kaiming")), about)
    # The server's model is full and was measured so; a client's device gets the nearest model of its rank.
    return Formed(factorise(dense, **rank), about, measured=False)


def _ratio(config: Mapping[str, Any], client: int) -> float:
    """The rank ratio of a client: that of its capacity in the last round, or one for everybody."""
    settings = config["settings"]
    if "rank_ratio" in settings:
        return float(settings["rank_ratio"])
    rounds = config["rounds"]
    groups = shares(settings["capacities"], RANKS, config["data"]["clients"], rounds)
    return next(s.capacity for s in groups if client in s.clients and s.lasts(rounds - 1))


def _cut(module: nn.Module, small: nn.Module) -> nn.Module:
    """The client's own columns of all factors, as they were trained; behind them are zeros."""
    full = module.state_dict()
    own = {k: full[k][tuple(map(slice, v.shape))] for k, v in small.state_dict().items()}
    with torch.no_grad():
        small.load_state_dict(own)
    return small.eval()
