"""Settings that would change nothing, because another setting leaves them without effect: they are refused."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from torch import nn

from ..core.errors import UserError
from ..local.parse import SETTINGS, taken
from ..submodels.factors import LowRank, LowRankConv2d
from ..submodels.lowrank import factorable
from . import BUILDERS
from .base import Algorithm
from .outer import server_step
from .widths import SCALED

Settings = Mapping[str, Any]


class Rule(NamedTuple):
    """Settings that have no effect."""

    names: tuple[str, ...]
    idle: Callable[[Settings], bool]  # whether a method's complete settings leave them without one
    because: str
    instead: str  # what would give them an effect


def _is(name: str, *values: Any) -> Callable[[Settings], bool]:
    return lambda s: name in s and s[name] in values


def _one_member(s: Settings) -> bool:
    return isinstance(s.get("participation"), int) and s["participation"] == 1


def _no_ascent(s: Settings) -> bool:
    return s.get("rho") == 0 and not s.get("personal_rho")


def _personal_ascent(s: Settings) -> bool:
    return s.get("sam_on") == "personal" and s.get("personal_rho") is not None


def _between_peers(s: Settings) -> bool:
    """Tell whether a method that may have a server has none; methods without weights never have one."""
    return "weighting" in s and s.get("topology") is not None


def _own_rate(s: Settings) -> bool:
    return "server_optimizer" in s and server_step(s["server_optimizer"]).lr is not None


def _large_slices(s: Settings) -> bool:
    return None not in (s.get("micro_batch"), s.get("batch_size")) and s["micro_batch"] >= s["batch_size"]


def _not_taken(name: str, *optimizers: str) -> Callable[[Settings], bool]:
    """Tell whether none of the optimizers in these settings takes a setting; one that is not given is the main one."""
    return lambda s: "optimizer" in s and all(name not in taken(s.get(k) or s["optimizer"]) for k in optimizers)


PERSONAL = (
    *("personal_lr", "personal_epochs", "personal_steps", "personal_outer_lr", "personal_rho", "sam_on"),
    "personal_optimizer",
)
TUNING = ("finetune_lr", "finetune_momentum", "finetune_weight_decay", "finetune_clip")
BOTH = ("optimizer", "personal_optimizer")
OTHERS = "take an optimizer that does"
SENT = ("gossip_steps", "tau", "quantize", "robust")
NO_SERVER = "with a topology everybody takes part and no server weighs them"
RULES = (
    Rule(PERSONAL, _is("personal", "none"), "personal=none leaves nothing personal", "name a personal part"),
    Rule(("sam", "sam_on", "sam_eta"), _no_ascent, "rho=0 climbs nowhere", "give rho"),
    Rule(("sam_eta",), _is("sam", "plain"), "only adaptive SAM adds it to the weights", "take sam=adaptive"),
    Rule(("rho",), _personal_ascent, "sam_on=personal climbs by personal_rho alone", "take sam_on=both"),
    Rule(("teaching", "tau"), _is("distill", "mutual", "none"), "only distill=deepest has one", "take distill=deepest"),
    Rule(("participation", "weighting"), _between_peers, NO_SERVER, "leave the topology out"),
    Rule(("weighting", "robust"), _one_member, "one client a round has nobody beside it", "raise participation"),
    Rule(TUNING, _is("finetune_epochs", 0), "finetune_epochs=0 tunes nothing", "give finetune_epochs"),
    Rule(("prox", "alpha", "sigma"), _is("lam", 0), "lam=0 pulls nowhere", "give lam"),
    Rule(("prune_rate", "regrow"), _is("density", 1), "density=1 leaves no place to move to", "lower density"),
    Rule(("regrow",), _is("prune_rate", 0), "prune_rate=0 moves nothing", "give prune_rate"),
    Rule(SENT, _is("topology", "none"), "topology=none sends nothing", "choose a graph"),
    Rule(("personal_optimizer",), _is("schedule", "joint"), "schedule=joint has one phase", "take schedule=alternate"),
    Rule(("micro_batch",), _large_slices, "a batch has no more samples", "give less than batch_size"),
    Rule(("outer_lr", "beta"), _own_rate, "the server's optimizer has a rate of its own", "give it there"),
    *(Rule((k,), _not_taken(k, *BOTH), f"the optimizer takes no {k}", OTHERS) for k in SETTINGS),
    *(
        Rule((f"finetune_{k}",), _not_taken(k, "optimizer"), f"the optimizer takes no {k}", OTHERS)
        for k in ("momentum", "weight_decay")
    ),
)


@cache
def default_settings(method: str) -> Settings:
    """Return the default settings of a method."""
    return BUILDERS[method]().settings


def unused(method: str, settings: Settings) -> dict[str, Rule]:
    """Return the changed settings without effect, each with its rule; there are none of a method of one's own."""
    if method not in BUILDERS:
        return {}
    changed = {k for k, v in settings.items() if v is not None and v != default_settings(method)[k]}
    return {name: rule for rule in RULES if rule.idle(settings) for name in rule.names if name in changed}


def check_used(algorithm: Algorithm) -> None:
    """Refuse a setting that changes nothing, in one sentence; a method of one's own is left alone."""
    for name, rule in unused(algorithm.name, algorithm.settings).items():
        raise UserError(f"{name} changes nothing, because {rule.because}: leave it out, or {rule.instead}")


def check_used_on(algorithm: Algorithm, module: nn.Module) -> None:
    """Refuse settings that have no effect on this model; ``module``: as the method adapted it."""
    s, name = algorithm.settings, algorithm.name
    if s.get("scaler") and not any(isinstance(layer, SCALED) for layer in module.modules()):
        raise UserError(
            "scaler changes nothing, because this model has no batch or group norms: leave it out, or take one that has"
        )
    if "rank_mode" in s and name in BUILDERS:
        _check_ranks(name, s, module)


def _check_ranks(name: str, s: Settings, module: nn.Module) -> None:
    """Refuse a model without a layer that becomes a product, and a reading of ranks that no layer has."""
    products: list[nn.Module] = [m for m in module.modules() if isinstance(m, LowRank)]
    layers = products or list(factorable(module, s["keep_layers"]).values())
    if not layers:
        usual = default_settings(name)
        idle = [k for k in ("init", "regularizer") if s.get(k) != usual.get(k)]
        if idle or s["keep_layers"] == usual["keep_layers"]:  # a person may ask to keep them all: that is FedAvg
            raise UserError(
                f"{name} has no layer to factorize, because keep_layers={s['keep_layers']} keeps all of this model's: "
                "lower keep_layers" + "".join(f", or leave {k} out" for k in idle)
            )
        return
    if s["rank_mode"] != "channels" and not any(isinstance(m, LowRankConv2d | nn.Conv2d) for m in layers):
        raise UserError(
            "rank_mode changes nothing, because this model has no convolution to factorize: leave it out, or take one "
            "that has"
        )
