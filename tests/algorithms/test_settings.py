"""A setting is used or refused: every one of every method is tried, and so is every one of ``fit``."""

import hashlib
from functools import cache
from inspect import Parameter, signature
from typing import Any

import pytest
import torch
from torch import nn

import coterie as ct
from coterie.algorithms import BUILDERS, Algorithm
from coterie.algorithms.settings import settings_of
from coterie.algorithms.used import RULES, check_used, default_settings
from coterie.cli.common.options import RunOptions
from coterie.cli.common.typed_plan import typed_plan
from coterie.core.errors import UserError
from coterie.core.tensors import leaves
from coterie.local.optimizers import Sgd
from coterie.papers.recipes import load, names
from coterie.study.presets import PRESETS
from toys import experiment, net, ragged

STAGED = ("flanc", "depthfl", "progfed")
EMPTY = Parameter("topology", Parameter.KEYWORD_ONLY)  # of a method without a graph
SIZES = (6, 3, 5)
ROUNDS = 8  # of which ProgFed's second stage begins with the third

# What every method is tried from: small, and such that each setting has something to act on.
BASE: dict[str, Any] = {"lr": 0.05, "batch_size": 3, "epochs": 1, "clip": 5.0, "weight_decay": 0.0}
OWN: dict[str, dict[str, Any]] = {
    "scaffold": {"clip": None},
    **{m: {"epochs": None, "steps": 2, "clip": None, "personal_lr": 0.05} for m in ("fedavg-p", "scaffold-p")},
    **{m: {"capacities": "1-0.5", "clip": None} for m in ("feddropout", "heterofl", "fedrolex")},
    "flanc": {"capacities": "1-0.5", "clip": None},
    "depthfl": {"capacities": "2-1", "clip": None},
    "fedlmt": {"rank_ratio": 0.5, "keep_layers": 1},
    "pfedlmt": {"capacities": "1-0.5", "keep_layers": 1},
    "fedhm": {"capacities": "1-0.5", "keep_layers": 1},
    "fedhmv2": {"rank_ratio": 0.5, "keep_layers": 1},
}
GRAPHS = {"dfedpgp": "random-push:1", "osgp": "random-push:1", "dfedsam-mgs": "random-pull:1"}
# Another legal value of each setting; several: by method.
OTHER: dict[str, Any] = {
    "lr": 0.02,
    "lr_decay": 0.5,
    "lr_min": 0.01,
    "lr_milestones": (0.125,),
    "lr_gamma": 0.5,
    "lr_warmup": 2,
    "lr_schedule": "exponential:0.5",
    "optimizer": "adam",
    "personal_optimizer": "adamw",
    "betas": (0.5, 0.9),
    "eps": 1e-3,
    "micro_batch": 1,
    "server_optimizer": "momentum",
    "momentum": 0.5,
    "keep_optimizer_state": True,
    "weight_decay": 0.1,
    "clip": 0.01,
    "batch_size": 2,
    "replacement": True,
    "epochs": 2,
    "steps": 3,
    "quantize": 4,
    "robust": "trimmed",
    "participation": 2,
    "outer_lr": 0.5,
    "personal": "*.bias",
    "personal_lr": 0.02,
    "personal_epochs": 3,
    "personal_steps": 3,
    "personal_outer_lr": 0.5,
    "exact_personal": True,
    "option": "I",
    "rho": 0.3,
    "sam_on": "both",
    "topology": "none",
    "gossip_steps": 2,
    "variant": "lian",
    "schedule": "alternate",
    "density": 0.8,
    "prune_rate": 0.1,
    "regrow": "gradient",
    "lam": 0.2,
    "prox": "split",
    "gamma": 0.5,
    "finetune_epochs": 2,
    "finetune_lr": 0.05,
    "finetune_momentum": 0.5,
    "finetune_clip": 0.01,
    "rank_ratio": 0.9,
    "keep_layers": 2,
    "rank_mode": "definition",
    "init": "spectral",
    "regularizer": "frobenius=0.1",
    "scaler": True,
    "mask_ce": True,
    "direction": -1,
    "svd_every": 2,
    "n_basis": 0.5,
    "basis_fraction": 0.5,
    "orthogonal": 1.0,
    "distill": "none",
    "teaching": 0.5,
    "personal_rho": 0.3,
    "feature_l2": 0.5,
    "heads": "depthfl",
    "answer": "deepest",
    "warmup": 1,
}
PAIRS = {"weighting": {"size", "uniform"}, "c_init": {"zero", "gradient"}, "sam": {"plain", "adaptive"}}
BY_METHOD: dict[tuple[str, str], Any] = {
    ("osgp", "tau"): 1,
    ("depthfl", "tau"): 2.0,
    ("fedlmt", "capacities"): "b1",
    ("fedhmv2", "capacities"): "b1",
    ("depthfl", "capacities"): "2",
    ("fedrod", "personal"): None,
    ("fedavg-ft", "finetune_lr"): 0.2,  # not the rate of training, which is taken where none is given
}


def base(method: str) -> dict[str, Any]:
    """What a method is tried from."""
    settings = {**BASE, **OWN.get(method, {})}
    known = settings_of(BUILDERS[method])
    if "topology" in known and default_settings(method)["topology"] is not None:
        settings["topology"] = GRAPHS.get(method, "ring")
    elif "participation" in known:
        settings["participation"] = 1.0
    return settings


def other(method: str, name: str) -> Any:
    """Another value than the one it is tried from."""
    if (method, name) in BY_METHOD:
        return BY_METHOD[method, name]
    now = {**default_settings(method), **base(method)}[name]
    if isinstance(now, bool):
        return not now
    if name in PAIRS:
        return PAIRS[name].difference([now]).pop()
    if name == "capacities":
        return "1"
    if name in OTHER:
        return OTHER[name]
    return now + 1 if isinstance(now, int) else now / 2 or 0.5  # what is not a number needs a value to be tried with


def module_for(method: str, algorithm: Algorithm) -> nn.Module:
    """The smallest on which all settings of a method have something to act on."""
    if "rank_mode" in algorithm.settings:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            inside = [part for _ in range(2) for part in (nn.Linear(6, 6), nn.Tanh())]
            return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Tanh(), *inside, nn.Linear(6, 3)).double()
    return net("residual" if method in STAGED else "groupnorm" if "scaler" in algorithm.settings else "mlp")


@cache
def played(method: str, name: str | None) -> str:
    """Everything a short run came to: its state bit by bit, what it sent and what it measured."""
    settings = base(method) if name is None else asked(method, name)
    algorithm = ct.algorithms.build(method, **settings)
    e = experiment(module_for(method, algorithm), ragged("mlp", sizes=SIZES), algorithm, rounds=ROUNDS)
    e.check()
    now = e.start()
    content = hashlib.blake2b()
    last = 2 if method == "progfed" else 1
    for t in range(last + 1):
        content.update(repr(e.program.traffic(now.state, e.round(t))).encode())
        now, row = e.run_round(now, t, evaluate=t == last)
        content.update(repr({k: v for k, v in row.items() if not k.endswith("seconds")}).encode())
    deployed = [client.shared | client.personal for client in e.clients(now.state)]
    for tensor in leaves((now.state, *deployed)):
        content.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return content.hexdigest()


def asked(method: str, name: str) -> dict[str, Any]:
    """The settings with one of them changed, and without those whose place it takes."""
    settings = {**base(method), name: other(method, name)}
    for one, place in (("steps", "epochs"), ("epochs", "steps"), ("variant", "epochs"), ("capacities", "rank_ratio")):
        if name == one and place in settings:
            del settings[place]
    return settings


@pytest.mark.parametrize("method", BUILDERS)
def test_every_setting_is_used_or_refused(method: str) -> None:
    ignored, unclear = [], []
    for name in settings_of(BUILDERS[method]):
        try:
            if played(method, name) == played(method, None):
                ignored.append(name)
        except UserError as refusal:
            if name not in str(refusal):  # what is to be left out is named
                unclear.append(str(refusal))
    assert not ignored
    assert not unclear


def plain() -> Sgd:
    """An optimizer of one's own that takes no settings and carries nothing."""
    return Sgd()


# What has no part to play beside another setting: refused in a sentence that names it.
IDLE: list[tuple[str, dict[str, Any], str]] = [
    ("fedavg", {"momentum": 0.0, "keep_optimizer_state": True}, "keep_optimizer_state"),
    ("fedavg", {"optimizer": "adam", "momentum": 0.5}, "momentum"),
    ("fedavg", {"optimizer": f"{__name__}:plain", "weight_decay": 0.1}, "weight_decay"),
    ("dfedalt", {"betas": (0.5, 0.9), "topology": "ring"}, "betas"),
    ("ditto", {"eps": 1e-3}, "eps"),
    ("fedbabu", {"optimizer": "adamw", "finetune_momentum": 0.5}, "finetune_momentum"),
    ("fedavg", {"micro_batch": 8, "batch_size": 8}, "micro_batch"),
    ("dfedavgm-p", {"schedule": "joint", "personal_optimizer": "adam"}, "personal_optimizer"),
    ("dfedalt", {"personal": "none", "personal_optimizer": "adam"}, "personal_optimizer"),
    ("fedavg", {"optimizer": f"{__name__}:plain", "keep_optimizer_state": True}, "keep_optimizer_state"),
    ("scaffold", {"optimizer": "adam"}, "optimizer"),
    ("heterofl", {"capacities": "1-0.5", "optimizer": "adam", "keep_optimizer_state": True}, "keep_optimizer_state"),
    ("fedavg", {"server_optimizer": "adam", "outer_lr": 0.5}, "outer_lr"),
    ("pfedme", {"server_optimizer": "sgd:lr=0.5", "beta": 0.5}, "beta"),
    ("dfedavg", {"server_optimizer": "adam", "topology": "ring"}, "server_optimizer"),
    (
        "fedlmt",
        {"server_optimizer": "adam", "topology": "ring", "keep_layers": 1, "rank_ratio": 0.5},
        "server_optimizer",
    ),
    ("fedhmv2", {"server_optimizer": "yogi", "keep_layers": 1, "rank_ratio": 0.5}, "server_optimizer"),
    ("fedavg", {"epochs": 2, "steps": 3}, "epochs"),
    ("fedavg", {"lr_decay": 0.5, "lr_min": 0.1}, "lr_decay"),
    ("fedavg", {"lr_gamma": 0.5}, "lr_gamma"),
    ("fedavg", {"participation": 1, "weighting": "uniform"}, "weighting"),
    ("local", {"quantize": 8}, "quantize"),
    ("dfedavgm-p", {"personal": "*", "quantize": 8, "topology": "ring"}, "quantize"),
    ("dfedalt", {"personal": "none", "personal_lr": 0.5}, "personal_lr"),
    ("dfedpgp", {"personal": "none", "personal_epochs": 2}, "personal_epochs"),
    ("fedrep", {"personal": "none", "personal_steps": 2}, "personal_steps"),
    ("fedavg-p", {"personal": "none", "personal_outer_lr": 2.0}, "personal_outer_lr"),
    ("fedavg-p", {"exact_personal": True}, "exact_personal"),
    ("dfedavgm-p", {"personal_epochs": 2}, "personal_epochs"),
    ("dfedsalt", {"rho": 0.0, "sam_on": "both"}, "sam_on"),
    ("dfedsam", {"sam": "plain", "sam_eta": 0.1}, "sam_eta"),
    ("fedamp", {"lam": 0.0, "sigma": 2.0}, "sigma"),
    ("fedamp", {"lam": 0.0, "alpha": 2.0}, "alpha"),
    ("dfedsalt", {"rho": 0.3, "personal_rho": 0.1, "sam_on": "personal"}, "rho"),
    ("dfedsam", {"topology": "none", "gossip_steps": 3}, "gossip_steps"),
    ("dfedsam-mgs", {"topology": "ring", "fresh_graph": True}, "fresh_graph"),
    ("osgp", {"topology": "none", "tau": 2}, "tau"),
    ("dfedalt", {"sam": "adaptive"}, "sam"),
    ("dfedpgp", {"sam_eta": 0.1}, "sam_eta"),
    ("dfedpgp", {"topology": "none", "gossip_steps": 3}, "gossip_steps"),
    ("dfedalt", {"personal": "*", "topology": "ring", "gossip_steps": 3}, "gossip_steps"),
    ("dfedavg", {"topology": "none", "quantize": 8}, "quantize"),
    ("dfedavg", {"topology": "none", "robust": "clip"}, "robust"),
    ("dfedsam", {"topology": "random-pull:1", "robust": "median"}, "robust"),
    ("fedavg", {"participation": 1, "robust": "median"}, "robust"),
    ("local", {"robust": "trimmed"}, "robust"),
    ("dfedavgm-p", {"personal": "*", "robust": "median", "topology": "ring"}, "robust"),
    ("dpsgd", {"variant": "lian", "epochs": 3}, "epochs"),
    ("dpsgd", {"variant": "lian", "steps": 3}, "steps"),
    ("ditto", {"lam": 0.0, "prox": "split"}, "prox"),
    ("dispfl", {"density": 1.0, "prune_rate": 0.3}, "prune_rate"),
    ("dispfl", {"prune_rate": 0.0, "regrow": "gradient"}, "regrow"),
    ("fedbabu", {"finetune_epochs": 0, "finetune_lr": 0.5}, "finetune_lr"),
    ("fedlmt", {"topology": "ring", "participation": 0.5}, "participation"),
    ("pfedlmt", {"topology": "ring", "weighting": "uniform"}, "weighting"),
    ("fedlmt", {"capacities": "b1", "rank_ratio": 0.5, "keep_layers": 1}, "capacities"),
    ("fedhmv2", {"capacities": "b1", "rank_ratio": 0.5}, "capacities"),
    ("fedhm", {"keep_layers": 9, "capacities": "1-0.5"}, "keep_layers"),
    ("fedlmt", {"keep_layers": 5, "rank_ratio": 0.5, "init": "spectral"}, "init"),
    ("fedlmt", {"keep_layers": "head", "rank_ratio": 0.5, "rank_mode": "definition"}, "rank_mode"),
    ("heterofl", {"scaler": True, "capacities": "1-0.5"}, "scaler"),
    ("depthfl", {"teaching": 0.5, "capacities": "2-1"}, "teaching"),
    ("depthfl", {"distill": "none", "tau": 2.0, "capacities": "2-1"}, "tau"),
]


@pytest.mark.parametrize(("method", "settings", "name"), IDLE, ids=[f"{row[0]}, {row[2]}" for row in IDLE])
def test_what_another_setting_leaves_no_part_is_refused(method: str, settings: dict[str, Any], name: str) -> None:
    def checked() -> None:
        algorithm = ct.algorithms.build(method, **settings)
        kind = "residual" if method in STAGED else "mlp"
        check_used(algorithm)  # as fit does, before it binds
        experiment(net(kind), ragged(kind, sizes=SIZES), algorithm, rounds=ROUNDS).check()

    with pytest.raises(UserError, match=name):
        checked()


def test_every_rule_is_tried() -> None:
    with_sgd = [({"optimizer": "sgd", **s}, name) for _, s, name in IDLE]
    tried = {(name, rule.because) for s, name in with_sgd for rule in RULES if rule.idle(s) and name in rule.names}
    assert {rule.because for rule in RULES} <= {because for _, because in tried} | {"only distill=deepest has one"}


def test_a_setting_at_its_default_is_never_refused() -> None:
    """Complete settings are legal: a run is rebuilt from them."""
    for method in BUILDERS:
        check_used(ct.algorithms.build(method, **default_settings(method)))


def test_default_participation_is_that_of_the_papers() -> None:
    """A tenth of the clients with a server, nine of ten in FedAvg-P and Scaffold-P, and all of them between peers."""
    parameters = {name: signature(builder).parameters for name, builder in BUILDERS.items()}
    defaults = {name: known["participation"].default for name, known in parameters.items() if "participation" in known}
    with_server = {
        name for name in defaults if parameters[name].get("topology", EMPTY).default in (EMPTY.default, None)
    }
    assert {name for name, default in defaults.items() if default == 0.9} == {"fedavg-p", "scaffold-p"}
    assert {name for name, default in defaults.items() if default == 1.0} == defaults.keys() - with_server
    assert {name for name, default in defaults.items() if default == 0.1} == with_server - {"fedavg-p", "scaffold-p"}


def test_no_recipe_sets_what_changes_nothing() -> None:
    for recipe in map(load, names()):
        for case in recipe.cases:
            for method in case.methods:
                check_used(recipe.algorithm(method, case))


@pytest.mark.parametrize(
    ("method", "wishes", "left_out"),
    [
        ("fedlmt", RunOptions(topology="ring"), "participation"),
        ("fedlmt", RunOptions(capacities="b1-b2"), "rank_ratio"),
        ("dfedalt", RunOptions(set=["personal=none"]), "personal_lr"),
        ("dfedalt", RunOptions(set=["personal_steps=2"]), "personal_epochs"),
        ("dpsgd", RunOptions(set=["variant=lian"]), "epochs"),
        ("fedavg", RunOptions(set=["steps=2"]), "epochs"),
    ],
)
def test_presets_give_way(method: str, wishes: RunOptions, left_out: str) -> None:
    """What a preset suggests and nobody typed is left out where it would be refused."""
    algorithm = typed_plan([method], wishes).algorithms[method]
    check_used(algorithm)
    suggested = PRESETS["digits"].settings[left_out]
    assert algorithm.settings[left_out] != suggested


def test_beside_others_a_method_with_a_server_misses_nothing() -> None:
    """fedlmt has a topology, but none unless asked: what is missing between peers is not for it."""
    options, methods = RunOptions(drop_messages=0.2, offline=0.1, clients=4), ["fedlmt", "dfedavg"]
    plan = typed_plan(methods, options)
    runs = [plan.prepared(m, 0) for m in methods]
    assert [tuple(run.settings.lost.values()) for run in runs] == [(0, 0), (0.2, 0.1)]
    with pytest.raises(UserError, match="has a server"):
        typed_plan(["fedlmt"], options).prepared("fedlmt", 0)


FIT: list[tuple[dict[str, Any], str]] = [
    ({"resume": True}, "give out"),
    ({"precision": "tf32", "device": "cpu"}, "fp32 or bf16"),
    *(
        ({"cluster": ct.Cluster(**given)}, f"^{option} is for a Ray cluster: add --engine ray")
        for option, given in (("--workers", {"workers": 2}), ("--ray-address", {"address": "auto"}), ("cluster", {}))
    ),
    ({"cluster": ct.Cluster(gpus_per_worker=1.0)}, "^--gpus-per-worker is for a Ray cluster"),
    ({"drop_messages": 0.5}, "has a server"),
    ({"offline": 0.5}, "has a server"),
    ({"init": "per-client"}, "leave init out"),
    ({"record": ["singular-values"]}, "low rank"),
    ({"evaluate_every": 0}, "at least 1"),
]


@pytest.mark.parametrize(("options", "fix"), FIT, ids=[next(iter(row[0])) for row in FIT])
def test_options_of_fit_that_change_nothing_are_refused(options: dict[str, Any], fix: str) -> None:
    with pytest.raises(UserError, match=fix):
        ct.fit(drawn, ragged("mlp"), ct.algorithms.fedavg(**BASE), rounds=1, progress=False, **options)


def drawn() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).double()


@pytest.mark.parametrize("method", BUILDERS)
def test_options_of_the_commands_reach_a_method_or_are_refused(method: str) -> None:
    known = settings_of(BUILDERS[method])
    for flag, needed, value in (
        ("topology", "topology", "random-push:3"),
        ("capacities", "capacities", "b1"),
        ("drop_messages", "topology", 0.5),
    ):
        options = RunOptions(**{flag: value})
        if needed not in known:
            with pytest.raises(UserError, match=f"leave --{flag.replace('_', '-')} out"):
                typed_plan([method], options)
        elif flag == "topology":
            assert typed_plan([method], options).algorithms[method].settings[flag] == value
        else:
            typed_plan([method], options)


@pytest.mark.parametrize("key", ["clip", "finetune_clip"])
def test_a_norm_of_zero_is_refused_and_none_is_named(key: str) -> None:
    """Every gradient became zero, and the models of such a run never changed."""
    for value in (0, 0.0, -1.0):
        with pytest.raises(UserError, match=f"{key}=.* must be a number above 0, and none is no clipping"):
            ct.algorithms.build("fedbabu", **{key: value})
    assert ct.algorithms.build("fedbabu", **{key: None}).settings[key] is None
