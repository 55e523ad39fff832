"""The laws of every method, one row each: its cases, what it reduces to, and its closed form on the quadratic.

A new method needs its row here and nothing else among the tests: engines, shards, workers of a cluster, resumed runs
and the laws themselves read this table.
"""

from typing import Any

import numpy as np
import torch

from coterie import algorithms
from coterie.exchange.robust import RULES
from law import (
    COMMON,
    LR,
    PUSH,
    RING,
    ClosedForm,
    Law,
    Reduction,
    a,
    adaptive,
    b,
    c,
    d,
    descend,
    down_u,
    down_v,
    each_round,
    identity,
    mean,
    sharp,
)
from toys import STAGED, ZOO

PLAIN = {"momentum": 0.0, "weight_decay": 0.0, "clip": None}
SIMPLE = {"lr": 0.05, "batch_size": 4, "epochs": 2}  # for methods that take no momentum
NARROW = {"epochs": 1, "capacities": "1-0.5"}
LOW = {"epochs": 1, "keep_layers": 1, "capacities": "1-0.5"}
LAST = {"keep_optimizer_state": True}
THREE = {"participation": 3}
EQUAL = {"participation": 1.0, "weighting": "uniform"}
THREE_ALIKE = {"participation": 3, "weighting": "uniform"}
UNIT = {"outer_lr": 1.0, "personal_outer_lr": 1.0}
RINGED = {"topology": "ring"}
FULL = {"topology": "full"}
OWN = {"personal": "v", "personal_lr": 0.2, "personal_steps": 1}  # on the quadratic


def momentum(x: Any, curvature: Any, minimum: Any) -> Any:
    """Two steps with a heavy ball of 0.9."""
    once = x - LR * curvature * (x - minimum)
    return once - LR * curvature * (once - minimum) + 0.9 * (once - x)


def controlled(u: Any, v: Any, c_i: Any, server: Any) -> tuple[Any, ...]:
    """A round of Scaffold: two steps along g - c_i + c; then c_i is the mean gradient that was taken."""
    y = descend(u, a, b - (server - c_i) / a)
    c_i = c_i - server + (u - y) / (2 * LR)
    return mean(y), v, c_i, c_i.mean()


def controlled_both(u: Any, v: Any, c_i: Any, c_v: Any) -> tuple[Any, ...]:
    """Scaffold on u and v at once."""
    new_u, _, new_c, _ = controlled(u, v, c_i, c_i.mean())
    y = descend(v, c, d - (c_v.mean() - c_v) / c)
    return new_u, mean(y), new_c, c_v - c_v.mean() + (v - y) / (2 * LR)


def pulled(p: Any, v: Any, w: Any, w_v: Any) -> tuple[Any, ...]:
    """A round of Ditto at lam 0.75: the personal model is pulled towards the server's of the round's beginning."""
    p = descend(p, a + 0.75, (a * b + 0.75 * w) / (a + 0.75))
    v = descend(v, c + 0.75, (c * d + 0.75 * w_v) / (c + 0.75))
    return p, v, mean(down_u(w)), mean(down_v(w_v))


def pushed(z: Any, v: Any, mu: Any, down: Any) -> tuple[Any, ...]:
    """A round of push-sum: steps of the ratio are lr / mu long; numerators and weights go along the graph."""
    x, fresh = mu * down_u(z, lr=LR / mu), PUSH @ mu
    return PUSH @ x / fresh, down(v, mu, fresh), fresh, down


LAWS = (
    Law(
        "local",
        {"local": {"epochs": 2}},
        ClosedForm({}, each_round(lambda u, v: (down_u(u), down_v(v)))),
    ),
    Law(
        "pooled",
        {"pooled": {"epochs": 2}},
        ClosedForm(
            {},
            each_round(
                lambda u, v: (
                    descend(u, a.mean(), (a * b).mean() / a.mean()),
                    descend(v, c.mean(), (c * d).mean() / c.mean()),
                )
            ),
        ),
        stateless=("pooled",),
    ),
    Law(
        "fedavg",
        {"fedavg": {"epochs": 2, **THREE}, "fedavg, robust": {"epochs": 1, "robust": "clip", **THREE}},
        ClosedForm(EQUAL, each_round(lambda u, v: (mean(down_u(u)), mean(down_v(v))))),
        stateless=("fedavg", "fedavg, robust"),
    ),
    Law(
        "fedavg-ft",
        {"fedavg-ft": {"epochs": 1, "finetune_epochs": 2, "finetune_lr": 0.05, **THREE}},
        ClosedForm(EQUAL, each_round(lambda u, v: (mean(down_u(u)), mean(down_v(v))))),
        (identity("without fine-tuning is fedavg", {"finetune_epochs": 0, **THREE}, ("fedavg", THREE)),),
        stateless=("fedavg-ft",),
    ),
    Law(
        "fedprox",
        {"fedprox": {"epochs": 2, "mu": 0.3, **THREE}},
        ClosedForm(
            {**EQUAL, "mu": 0.7},
            each_round(
                lambda u, v: (
                    mean(descend(u, a + 0.7, (a * b + 0.7 * u) / (a + 0.7))),
                    mean(descend(v, c + 0.7, (c * d + 0.7 * v) / (c + 0.7))),
                )
            ),
        ),
        (identity("at mu 0 is fedavg", {"mu": 0.0, **THREE}, ("fedavg", THREE)),),
        stateless=("fedprox",),
    ),
    Law(
        "fedper",
        {
            "fedper": {"epochs": 2, **THREE},
            "fedper, all personal": {"epochs": 1, "personal": "all", "participation": 4},
            "fedper, none personal": {"epochs": 1, "personal": "none", "participation": 4},
        },
        ClosedForm({**EQUAL, "personal": "v"}, each_round(lambda u, v: (mean(down_u(u)), down_v(v)))),
        (
            identity("with nothing personal is fedavg", {"personal": "none", **THREE}, ("fedavg", THREE)),
            Reduction("with everything personal is local", {"personal": "all", "participation": 1.0}, ("local", {})),
        ),
        stateless=("fedper, none personal",),
    ),
    Law(
        "dpsgd",
        {"dpsgd": RINGED, "dpsgd, lian": {**RINGED, "variant": "lian", "steps": 1}},
        ClosedForm(
            {**RINGED, "variant": "lian", "steps": 1},
            each_round(lambda u, v: (RING @ u - LR * a * (u - b), RING @ v - LR * c * (v - d))),
        ),
        (identity("by epochs is dfedavg with one", {**RINGED, "epochs": 1}, ("dfedavg", {**RINGED, "epochs": 1})),),
    ),
    Law(
        "dfedavg",
        {"dfedavg": {**RINGED, "epochs": 2}, "dfedavg, robust": {**RINGED, "epochs": 1, "robust": "median"}},
        ClosedForm(RINGED, each_round(lambda u, v: (RING @ down_u(u), RING @ down_v(v)))),
        (
            Reduction("on the full graph is fedavg", FULL, ("fedavg", EQUAL), 1e-6),
            Reduction(
                "with a robust rule on the full graph is fedavg with it",
                {**FULL, "robust": "trimmed"},
                ("fedavg", {**EQUAL, "robust": "trimmed"}),
                1e-6,
            ),
            Reduction(
                "with a robust mean of three is one with their median",
                {**RINGED, "robust": "trimmed"},
                ("dfedavg", {**RINGED, "robust": "median"}),
                1e-6,
            ),
            *(
                identity(
                    f"with one neighbor and robust={rule} is local",
                    {"topology": "one-peer-exponential", "robust": rule},
                    ("local", {}),
                )
                for rule in RULES
            ),
        ),
    ),
    Law(
        "dfedavgm",
        {
            "dfedavgm": {"topology": "random:2", "steps": 3},
            "dfedavgm, lasting": {**RINGED, "epochs": 1, **LAST},
            "dfedavgm, quantized": {"epochs": 1, **RINGED, "quantize": 8},
        },
        ClosedForm(
            {**RINGED, "momentum": 0.9}, each_round(lambda u, v: (RING @ momentum(u, a, b), RING @ momentum(v, c, d)))
        ),
        (
            identity(
                "without momentum is dfedavg, to the defaults",
                {"momentum": 0.0, **RINGED},
                ("dfedavg", RINGED),
                base={},
            ),
            identity("without neighbors is local", {"topology": "none"}, ("local", {})),
            Reduction(
                "with very fine messages is dfedavgm",
                {"topology": "random:2", "quantize": 16},
                ("dfedavgm", {"topology": "random:2"}),
                2e-4,
            ),
        ),
    ),
    Law(
        "dfedalt",
        {
            "dfedalt": {"topology": "random-pull:2", "epochs": 2, "personal_epochs": 1, "personal_lr": 0.03},
            "dfedalt, all personal": {**RINGED, "epochs": 1, "personal": "all"},
            "dfedalt, none personal": {**RINGED, "epochs": 1, "personal": "none"},
            "dfedalt, unequally fast": {**RINGED, "epochs": (1, 2, 3)},
            "dfedalt, robust": {"topology": "random-pull:3", "epochs": 1, "robust": "trimmed"},
            "dfedalt, sharp": {"topology": "random-pull:2", "epochs": 1, "gossip_steps": 2, "rho": 0.1},
        },
        ClosedForm(
            {**RINGED, **OWN, "gossip_steps": 3, "rho": 0.1, "sam": "adaptive", "steps": 1},
            each_round(lambda u, v: (RING @ RING @ RING @ (u - LR * adaptive(u, a, b, 0.1)), down_v(v, 0.2, 1))),
        ),
        (
            *(
                identity(
                    f"with a radius is dfedsalt, {form}",
                    {**RINGED, "rho": 0.1, "sam": form},
                    ("dfedsalt", {**RINGED, "rho": 0.1, "sam": form}),
                )
                for form in ("plain", "adaptive")
            ),
            identity(
                "sharp, with nothing personal is dfedsam",
                {**RINGED, "rho": 0.1, "gossip_steps": 3, "personal": "none"},
                ("dfedsam", {**RINGED, "rho": 0.1, "gossip_steps": 3}),
            ),
            identity("with nothing personal is dfedavgm", {**RINGED, "personal": "none"}, ("dfedavgm", RINGED)),
            Reduction(
                "on the full graph is fedrep",
                {**FULL, "personal_lr": 0.05, "personal_epochs": 2},
                ("fedrep", {**EQUAL, "personal_lr": 0.05, "personal_epochs": 2}),
                1e-6,
            ),
        ),
    ),
    Law(
        "dfedsalt",
        {
            "dfedsalt": {**RINGED, "epochs": 2, "rho": 0.1},
            "dfedsalt, both": {**RINGED, "epochs": 1, "rho": 0.1, "sam_on": "both", "sam": "plain"},
        },
        ClosedForm(
            {**RINGED, **OWN, "rho": 0.1, "steps": 1},
            each_round(lambda u, v: (RING @ (u - LR * adaptive(u, a, b, 0.1)), down_v(v, 0.2, 1))),
        ),
        (
            identity("at rho 0 is dfedalt", {**RINGED, "rho": 0.0, "sam_on": "both"}, ("dfedalt", RINGED)),
            identity(
                "with nothing personal is dfedsam",
                {**RINGED, "rho": 0.1, "personal": "none"},
                ("dfedsam", {**RINGED, "rho": 0.1, "sam": "adaptive"}),
            ),
        ),
    ),
    Law(
        "dfedsam",
        {"dfedsam": {**RINGED, "epochs": 2, "rho": 0.1}},
        ClosedForm({**RINGED, "rho": 0.1}, each_round(lambda u, v: tuple(RING @ x for x in sharp(u, v, 0.1)))),
        (
            identity("at rho 0 is dfedavg", {**RINGED, "rho": 0.0}, ("dfedavg", RINGED)),
            Reduction("on the full graph is fedsam", {**FULL, "rho": 0.1}, ("fedsam", {**EQUAL, "rho": 0.1}), 1e-6),
            identity(
                "without neighbors is dfedsalt without neighbors",
                {"topology": "none", "rho": 0.1, "sam": "adaptive"},
                ("dfedsalt", {"topology": "none", "rho": 0.1, "personal": "none"}),
            ),
        ),
    ),
    Law(
        "dfedsam-mgs",
        {
            "dfedsam-mgs": {**RINGED, "epochs": 1, "rho": 0.1, "sam": "adaptive", "sam_eta": 0.01},
            "dfedsam-mgs, fresh": {
                "topology": "random-pull:2",
                "epochs": 1,
                "rho": 0.1,
                "gossip_steps": 2,
                "fresh_graph": True,
            },
            "dfedsam-mgs, robust": {**RINGED, "epochs": 1, "rho": 0.1, "gossip_steps": 2, "robust": "clip"},
        },
        ClosedForm(
            {**RINGED, "rho": 0.1, "gossip_steps": 3},
            each_round(lambda u, v: tuple(np.linalg.matrix_power(RING, 3) @ x for x in sharp(u, v, 0.1))),
        ),
        (
            identity(
                "with one gossip step is dfedsam",
                {**RINGED, "rho": 0.1, "gossip_steps": 1},
                ("dfedsam", {**RINGED, "rho": 0.1}),
            ),
            Reduction(
                "with many gossip steps is fedsam",
                {**RINGED, "rho": 0.1, "gossip_steps": 200},
                ("fedsam", {**EQUAL, "rho": 0.1}),
                1e-5,
            ),
        ),
    ),
    Law(
        "fedsam",
        {"fedsam": {"epochs": 1, "rho": 0.1, **THREE}},
        ClosedForm({**EQUAL, "rho": 0.1}, each_round(lambda u, v: tuple(mean(x) for x in sharp(u, v, 0.1)))),
        (identity("at rho 0 is fedavg", {"rho": 0.0, **THREE}, ("fedavg", THREE)),),
        stateless=("fedsam",),
    ),
    Law(
        "fedrep",
        {"fedrep": {"epochs": 1, "personal_epochs": 2, **THREE}},
        ClosedForm({**EQUAL, **OWN}, each_round(lambda u, v: (mean(down_u(u)), down_v(v, 0.2, 1)))),
        (identity("with nothing personal is fedavg", {"personal": "none", **THREE}, ("fedavg", THREE)),),
    ),
    Law(
        "fedavg-p",
        {
            "fedavg-p": {"steps": 3, "lr": 0.05, "personal_lr": 0.02, **THREE},
            "fedavg-p, exact": {"steps": 3, "exact_personal": True, "personal_lr": 0.02, **THREE},
        },
        ClosedForm(
            {"participation": 1.0, "personal": "v", "personal_lr": 0.2, "outer_lr": 2.0, "personal_outer_lr": 1.5},
            each_round(lambda u, v: (u + 2 * (mean(down_u(u)) - u), v + 1.5 * (down_v(v, 0.2) - v))),
        ),
        (
            Reduction(
                "with outer steps of 1 is fedper", {**UNIT, "personal_lr": 0.05, **THREE}, ("fedper", THREE_ALIKE)
            ),
            Reduction(
                "with nothing personal is fedavg", {**UNIT, "personal": "none", **THREE}, ("fedavg", THREE_ALIKE)
            ),
        ),
    ),
    Law(
        "scaffold",
        {
            "scaffold": {**PLAIN, "steps": 3, **THREE},
            "scaffold, option I": {**PLAIN, "epochs": 1, "option": "I", **THREE},
            "scaffold, unequally fast": {**PLAIN, "epochs": (1, 3), **THREE},
            "scaffold, quantized": {**PLAIN, "steps": 2, "quantize": 8, **THREE},
        },
        ClosedForm({"participation": 1.0}, each_round(controlled_both, np.zeros(4), np.zeros(4))),
    ),
    Law(
        "scaffold-p",
        {"scaffold-p": {**PLAIN, "steps": 3, "lr": 0.05, "personal_lr": 0.02, **THREE}},
        ClosedForm(
            {"participation": 1.0, "personal": "v", "personal_lr": 0.2, **UNIT},
            each_round(
                lambda u, v, *cs: (*controlled(u, down_v(v, 0.2), *cs),),
                a * (0.5 - b),
                (a * (0.5 - b)).mean(),
            ),
        ),
        (
            Reduction(
                "with nothing personal is scaffold",
                {**UNIT, "personal": "none", **THREE},
                ("scaffold", {"c_init": "gradient", **THREE}),
                base=SIMPLE,
            ),
        ),
    ),
    Law(
        "ditto",
        {
            "ditto": {"epochs": 2, **THREE},
            "ditto, split": {"epochs": 1, "personal_epochs": 2, "prox": "split", **LAST, **THREE},
        },
        ClosedForm({**EQUAL, "lam": 0.75}, each_round(pulled, np.full(4, 0.5), np.full(4, 1.0))),
        (Reduction("without a pull is local", {"lam": 0.0, "participation": 1.0}, ("local", {})),),
    ),
    Law(
        "pfedme",
        {
            "pfedme": {"epochs": 1, "lam": 5.0, "inner_steps": 2, "beta": 0.7, **THREE},
            "pfedme, lasting": {"epochs": 1, "lam": 5.0, "inner_steps": 1, **LAST, **THREE},
        },
        "test_oracles_personal.py::test_pfedme",
    ),
    Law(
        "apfl",
        {
            "apfl": {"epochs": 2, "alpha": 0.3, **THREE},
            "apfl, adapted": {"epochs": 1, "alpha_lr": 0.01, **LAST, **THREE},
        },
        "test_oracles_personal.py::test_apfl",
        (Reduction("with nothing of the server's is local", {"alpha": 1.0, "participation": 1.0}, ("local", {})),),
    ),
    Law(
        "fedamp",
        {
            "fedamp": {"epochs": 2, "sigma": 2.0},
            "fedamp, ring": {"epochs": 1, "sigma": 2.0, **RINGED, **LAST},
            "fedamp, quantized": {"epochs": 1, "sigma": 2.0, "topology": "random-pull:2", "quantize": 8},
        },
        "test_oracles_personal.py::test_fedamp",
        (
            Reduction("without a pull is local", {"lam": 0.0}, ("local", {})),
            identity("on the full graph is fedamp with a server", FULL, ("fedamp", {})),
        ),
    ),
    Law(
        "dfedavgm-p",
        {
            "dfedavgm-p": {**RINGED, "epochs": 1},
            "dfedavgm-p, alternate": {**RINGED, "epochs": 1, "schedule": "alternate"},
        },
        ClosedForm({**RINGED, "personal": "v"}, each_round(lambda u, v: (RING @ down_u(u), down_v(v)))),
        (
            Reduction("with nothing personal is dfedavgm", {**RINGED, "personal": "none"}, ("dfedavgm", RINGED)),
            identity(
                "by turns is dfedalt",
                {**RINGED, "schedule": "alternate", "personal_lr": 0.05, "personal_epochs": 1},
                ("dfedalt", {**RINGED, "personal_lr": 0.05, "personal_epochs": 1}),
            ),
            Reduction("on the full graph is fedper", FULL, ("fedper", EQUAL), 1e-6),
        ),
    ),
    Law(
        "dfedpgp",
        {
            "dfedpgp": {"topology": "random-push:2", "epochs": 1, "personal_lr": 0.03},
            "dfedpgp, row": {"topology": "random-pull:2", "epochs": 1, "personal_lr": 0.03},
            "dfedpgp, quantized": {"topology": "random-push:2", "epochs": 1, "quantize": 6},
            "dfedpgp, sharp": {"topology": "random-push:2", "epochs": 1, "gossip_steps": 2, "rho": 0.1},
        },
        ClosedForm(
            {"topology": lambda t: torch.from_numpy(PUSH), **OWN},
            each_round(pushed, np.ones(4), lambda v, mu, fresh: down_v(v, 0.2, 1)),
        ),
        (
            # Weights of 1/4 are exact.
            Reduction("by rows is dfedalt", {"topology": "random-pull:3"}, ("dfedalt", {"topology": "random-pull:3"})),
            Reduction("on a doubly stochastic graph is dfedalt", RINGED, ("dfedalt", RINGED), 1e-6),
            identity(
                "with nothing personal is osgp",
                {"topology": "random-push:2", "personal": "none"},
                ("osgp", {"topology": "random-push:2"}),
            ),
        ),
    ),
    Law(
        "fedbabu",
        {"fedbabu": {"epochs": 1, "finetune_lr": 0.05, **THREE}},
        ClosedForm({"participation": 1.0, "personal": "v"}, each_round(lambda u, v: (mean(down_u(u)), v))),
        (identity("without a head is fedavg", {"personal": "none", **THREE}, ("fedavg", THREE_ALIKE)),),
    ),
    Law(
        "fedrod",
        {
            "fedrod": {"epochs": 2, "personal_lr": 0.02, **THREE},
            "fedrod, hyper": {"epochs": 1, "hyper": True, **THREE},
            "fedrod, hyper anew": {"epochs": 1, "hyper": True, "keep_head": False, **THREE},
        },
        "test_baselines.py::TestFedRoD::test_one_step_in_closed_form",
    ),
    Law(
        "dispfl",
        {
            "dispfl": {"epochs": 1, "topology": "random-pull:2"},
            "dispfl, by gradient": {"epochs": 1, **RINGED, "regrow": "gradient", "density": 0.3, **LAST},
        },
        "test_baselines.py::TestDisPFL::test_one_round_in_closed_form",
        (
            Reduction(
                "at density 1 is dfedavg",
                {"topology": "random-pull:2", "density": 1.0},
                ("dfedavg", {"topology": "random-pull:2"}),
                1e-6,
            ),
        ),
    ),
    Law(
        "fedlmt",
        {
            "fedlmt": {"epochs": 1, "rank_ratio": 0.5, "keep_layers": 1, **THREE},
            "fedlmt, decaying": {
                "epochs": 1,
                "keep_layers": 1,
                **THREE,
                "init": "spectral",
                "regularizer": "frobenius=0.1,l2=0.01",
            },
            "fedlmt, ring": {"epochs": 1, **RINGED, "rank_ratio": 0.5, "keep_layers": 1},
        },
        "test_unequal.py::TestLowRank::test_fedlmt_is_fedavg_on_the_factorized_module",
        (
            identity("without low-rank layers is fedavg", {"keep_layers": 17, **THREE}, ("fedavg", THREE)),
            Reduction(
                "over the full graph is fedlmt",
                {**FULL, "keep_layers": 1},
                ("fedlmt", {**EQUAL, "keep_layers": 1}),
                1e-6,
            ),
        ),
        stateless=("fedlmt", "fedlmt, decaying"),
    ),
    Law(
        "pfedlmt",
        {
            "pfedlmt": {"epochs": 1, "keep_layers": 1, "capacities": "1-0.5-0.25", **THREE},
            "pfedlmt, alternate": {**LOW, "schedule": "alternate", **THREE},
            "pfedlmt, ring": {**LOW, **RINGED, "regularizer": "frobenius=0.1"},
            "pfedlmt, push-sum": {**LOW, "topology": "random-push:2"},
        },
        "test_unequal.py::TestLowRank::test_pfedlmt_with_one_rank_is_fedper_on_the_factorized_module",
        (identity("without low-rank layers is fedper", {"keep_layers": 17, **THREE}, ("fedper", THREE)),),
    ),
    Law(
        "fedhm",
        {"fedhm": {**LOW, **THREE}},
        "test_unequal.py::TestLowRank::test_fedhm_averages_the_recovered_models",
        (identity("without low-rank layers is fedavg", {"keep_layers": 17, **THREE}, ("fedavg", THREE_ALIKE)),),
        stateless=("fedhm",),
    ),
    Law(
        "fedhmv2",
        {"fedhmv2": {"epochs": 1, "keep_layers": 1, "rank_ratio": 0.5, "svd_every": 2, **THREE}},
        "test_unequal.py::TestLowRank::test_fedhmv2_lies_between_fedhm_and_fedlmt",
        stateless=("fedhmv2",),
    ),
    Law(
        "heterofl",
        {
            "heterofl": {**NARROW, **THREE},
            "heterofl, scaled": {**NARROW, "scaler": True, **THREE},
            "heterofl, masked": {**NARROW, "mask_ce": True, **THREE},
            "heterofl, growing": {"epochs": 1, "capacities": "0.5@1-1", **THREE},
        },
        "test_unequal.py::TestWidths::test_every_entry_by_hand",
        (Reduction("at full width is fedavg", {"capacities": "1-1", **THREE}, ("fedavg", THREE_ALIKE), 1e-6),),
        stateless=("heterofl", "heterofl, scaled", "heterofl, masked", "heterofl, growing"),
    ),
    Law(
        "fedrolex",
        {"fedrolex": {**NARROW, "participation": 4}},
        "test_unequal.py::TestWidths::test_every_entry_by_hand",
        (Reduction("at full width is fedavg", {"capacities": "1", **THREE}, ("fedavg", THREE_ALIKE), 1e-5),),
        stateless=("fedrolex",),
    ),
    Law(
        "feddropout",
        {
            "feddropout": {**NARROW, **THREE},
            "feddropout, by layer": {**NARROW, "aligned": False, **THREE},
            "feddropout, quantized": {**NARROW, "quantize": 8, **THREE},
        },
        "test_unequal.py::TestWidths::test_every_entry_by_hand",
        (
            Reduction("at full width is fedavg", {"capacities": "1", **THREE}, ("fedavg", THREE_ALIKE), 1e-5),
            Reduction(
                "layer by layer in a chain at full width is fedavg",
                {"capacities": "1", "aligned": False, **THREE},
                ("fedavg", THREE_ALIKE),
                1e-5,
            ),
        ),
        stateless=("feddropout", "feddropout, by layer"),
    ),
    Law(
        "flanc",
        {"flanc": {**NARROW, "n_basis": 0.5, "basis_fraction": 0.5, **THREE}},
        "test_unequal.py::TestStages::test_one_width_is_fedavg_on_the_composed_net",
        stateless=("flanc",),
        staged=True,
    ),
    Law(
        "depthfl",
        {
            "depthfl": {"epochs": 1, "capacities": "2-1", **THREE},
            "depthfl, deepest": {"epochs": 1, "capacities": "2-1", "distill": "deepest", **THREE},
        },
        "test_unequal.py::TestStages::test_full_depth_everywhere_is_deeply_supervised_fedavg",
        stateless=("depthfl", "depthfl, deepest"),
        staged=True,
    ),
    Law(
        "progfed",
        {"progfed": {"epochs": 1, **THREE}},
        "test_unequal.py::TestStages::test_the_last_stage_is_the_full_model",
        stateless=("progfed",),
        staged=True,
    ),
    Law(
        "osgp",
        {
            "osgp": {"topology": "random-push:2", "epochs": 1},
            "osgp, overlapping": {"topology": "random-push:2", "epochs": 1, "tau": 2},
        },
        ClosedForm(
            {"topology": lambda t: torch.from_numpy(PUSH)},
            each_round(pushed, np.ones(4), lambda v, mu, fresh: PUSH @ (mu * down_v(v, lr=LR / mu)) / fresh),
        ),
        (Reduction("on a doubly stochastic graph is dfedavgm", RINGED, ("dfedavgm", RINGED), 1e-6),),
    ),
)

BY_METHOD = {law.method: law for law in LAWS}
OF = {case: law for law in LAWS for case in law.cases}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {case: (OF[case].method, OF[case].cases[case]) for case in OF}
REDUCTIONS = {f"{law.method} {r.says}": (law.method, r) for law in LAWS for r in law.reductions}
FIRST = {law.method: next(iter(law.cases)) for law in LAWS}  # one case for each method, with few settings
STAGES = tuple(law.method for law in LAWS if law.staged)


def build(row: str) -> algorithms.Algorithm:
    """The method of a case with its settings."""
    method, settings = METHODS[row]
    return algorithms.build(method, **{**COMMON, **settings})


def sides(law: str) -> tuple[algorithms.Algorithm, algorithms.Algorithm]:
    """Both sides of a reduction."""
    method, (_, left, (other, right), _, _, base) = REDUCTIONS[law]
    return algorithms.build(method, **{**base, **left}), algorithms.build(other, **{**base, **right})


def kinds(row: str) -> list[str]:
    """The models a method can train: stages, norms or layers must be there for those who want them."""
    settings = METHODS[row][1]
    if OF[row].staged:
        return list(STAGED)
    if settings.get("scaler"):
        return ["groupnorm", "batchnorm"]
    return [kind for kind in ZOO if kind != "tokens" or settings.get("aligned", True)]


def kind_like(row: str, kind: str) -> str:
    """That kind of model, or one the method can train."""
    return kind if kind in kinds(row) else kinds(row)[0]
