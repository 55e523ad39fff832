"""The studies of fashion.py as data: what is compared, on what, and what the papers say comes out."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple


class Arm(NamedTuple):
    """One row of a study."""

    method: str
    settings: Mapping[str, Any]
    published: tuple[float, ...] = ()  # the paper's number in each case, at its size, in %


class Claim(NamedTuple):
    """That ``high`` is above ``low`` in a measure, in one case."""

    low: str
    high: str
    measure: str
    case: str


class Study(NamedTuple):
    """What one command runs and writes."""

    about: str
    images: int  # of all clients together
    rounds: int
    marks: tuple[int, ...]  # the rounds that are measured; the last three of them count, on average
    cases: Mapping[str, Mapping[str, Any]]  # partitions, with settings of their own
    common: Mapping[str, Any]  # settings of all arms
    rates: tuple[float, ...]
    tuned: tuple[str, ...]  # the arms whose rate is chosen; the others have the rate of the first of these
    arms: Mapping[str, Arm]
    columns: Mapping[str, str]  # measures of the table by their headings
    headline: str  # the measure that claims and rates are judged by
    claims: tuple[Claim, ...]


_IID, _DIRICHLET, _PATHOLOGICAL = "iid", "dirichlet:0.3", "pathological:2"

# DFedSAM: 50 images a client and 25 local steps a round; the rate, its decay and the weight decay are the paper's.
_FLAT: dict[str, Any] = {
    "batch_size": 10,
    "epochs": 5,
    "lr_decay": 0.998,
    "weight_decay": 5e-4,
    "clip": 10.0,
    "rho": 0.01,
}
_FLAT_IMAGES, _FLAT_ROUNDS, _FLAT_MARKS = 1_000, 24, (6, 8, 12, 22, 23, 24)
_FLAT_COLUMNS = {
    "mean model": "global",
    "own models, all classes": "own_on_all",
    "consensus distance": "consensus_distance",
}

_GRAPHS = ("ring", "grid", "exponential", "full")


def _chain(names: list[str], measure: str, case: str) -> tuple[Claim, ...]:
    """Each above the one before it, and the last above the first."""
    return tuple(Claim(low, high, measure, case) for low, high in [*pairwise(names), (names[0], names[-1])])


def _over_graphs(method: str, published: tuple[float, ...]) -> Study:
    """One method on four graphs. Two classes a client: the harder clients disagree, the more the graph matters."""
    return Study(
        about=f"DFedSAM, Table 2, {method}: the better connected the graph, the better the mean model.",
        images=_FLAT_IMAGES,
        rounds=_FLAT_ROUNDS,
        marks=_FLAT_MARKS,
        cases={_PATHOLOGICAL: {}},
        common={**_FLAT, "gossip_steps": 1},
        rates=(0.1,),
        tuned=(),
        arms={g: Arm(method, {"topology": g}, (value,)) for g, value in zip(_GRAPHS, published, strict=True)},
        columns=_FLAT_COLUMNS,
        headline="global",
        claims=_chain([*_GRAPHS], "global", _PATHOLOGICAL),
    )


TOPOLOGY = _over_graphs("dfedsam", (73.19, 85.28, 87.44, 88.05))
TOPOLOGY_DFEDAVG = _over_graphs("dfedavg", (69.95, 80.17, 83.13, 83.48))

GOSSIP = Study(
    about="DFedSAM-MGS, Figure 4: more gossip steps Q are better, even at an equal number of exchanges.",
    images=_FLAT_IMAGES,
    rounds=_FLAT_ROUNDS,
    marks=_FLAT_MARKS,
    cases={_PATHOLOGICAL: {}},
    common={**_FLAT, "topology": "ring"},
    rates=(0.1,),
    tuned=(),
    arms={f"Q = {Q}": Arm("dfedsam", {"gossip_steps": Q}) for Q in (1, 2, 3, 4)},
    columns={**_FLAT_COLUMNS, "mean model after 24 exchanges": "at_equal_exchanges"},
    headline="global",
    claims=tuple(
        claim
        for measure in ("global", "at_equal_exchanges")
        for claim in _chain([f"Q = {Q}" for Q in (1, 2, 3, 4)], measure, _PATHOLOGICAL)
    ),
)

# A gap needs a model that fits its training images, as in the paper: fewer of them, all classes everywhere.
GAP = Study(
    about="DFedSAM, Tables 1 and 3: SAM makes the gap between training and test accuracy smaller, gossip again.",
    images=500,
    rounds=36,
    marks=(34, 35, 36),
    cases={_IID: {}},
    common={**_FLAT, "batch_size": 5, "topology": "exponential"},
    rates=(0.1,),
    tuned=(),
    arms={
        "dfedavg": Arm("dfedavg", {}, (16.76,)),
        "dfedavgm": Arm("dfedavgm", {}),
        "dfedsam": Arm("dfedsam", {}, (7.56,)),
        "dfedsam, rho = 0.1": Arm("dfedsam", {"rho": 0.1}),
        "dfedsam-mgs, Q = 4": Arm("dfedsam-mgs", {"gossip_steps": 4}, (6.99,)),
    },
    columns={"training": "global_train", "test": "global", "gap": "gap"},
    headline="gap",
    claims=(
        *(
            Claim(flat, sharp, "gap", _IID)
            for flat in ("dfedsam", "dfedsam, rho = 0.1")
            for sharp in ("dfedavg", "dfedavgm")
        ),
        Claim("dfedsam-mgs, Q = 4", "dfedsam", "gap", _IID),
        *(Claim("dfedavg", flat, "global", _IID) for flat in ("dfedsam", "dfedsam, rho = 0.1")),
    ),
)

# DFedAlt and DFedPGP: 75 images a client and 25 local steps a round. Both parts have one rate: with 0.001, as in
# the papers, the head would learn next to nothing in 10 rounds instead of 500.
_PERSONAL: dict[str, Any] = {
    "batch_size": 15,
    "epochs": 5,
    "personal_epochs": 1,
    "momentum": 0.9,
    "lr_decay": 0.99,
    "weight_decay": 5e-4,
    "clip": 10.0,
}
_PERSONAL_COLUMNS = {"personal, after aggregation": "personal", "after local training": "personal_after_train"}
_RATES = (0.01, 0.03, 0.1)
_BODY, _HEAD, _BOTH = "dfedsalt-u (body)", "dfedsalt-v (head)", "dfedsalt-uv (both)"

SAM_ON = Study(
    about="DFedSalt, Table 3: SAM on the body is best under Dirichlet 0.3, on body and head with two classes a client.",
    images=1_500,
    rounds=10,
    marks=(8, 9, 10),
    cases={_DIRICHLET: {}, _PATHOLOGICAL: {"personal_epochs": 5}},  # as in the paper
    common={**_PERSONAL, "topology": "random:5", "rho": 0.1, "sam": "plain"},
    rates=_RATES,
    tuned=("dfedalt",),
    arms={
        "dfedalt": Arm("dfedalt", {}, (86.50, 91.26)),
        _BODY: Arm("dfedsalt", {"sam_on": "shared"}, (87.67, 92.20)),
        _HEAD: Arm("dfedsalt", {"sam_on": "personal"}, (86.46, 91.50)),
        _BOTH: Arm("dfedsalt", {"sam_on": "both"}, (87.43, 92.58)),
    },
    columns=_PERSONAL_COLUMNS,
    headline="personal",
    claims=(
        *(Claim(other, _BODY, "personal", _DIRICHLET) for other in ("dfedalt", _HEAD, _BOTH)),
        *(Claim(other, _BOTH, "personal", _PATHOLOGICAL) for other in ("dfedalt", _BODY, _HEAD)),
        Claim("dfedalt", _BODY, "personal", _PATHOLOGICAL),
    ),
)

PARTIAL_DIRECTED = Study(
    about="DFedPGP, Table 4: a personal head helps, a directed graph helps, both together are best.",
    images=1_500,
    rounds=10,
    marks=(8, 9, 10),
    cases={_DIRICHLET: {}, _PATHOLOGICAL: {}},
    common=_PERSONAL,
    rates=_RATES,
    tuned=("dfedavgm", "dfedavgm-p", "osgp", "dfedpgp"),
    arms={
        "dfedavgm": Arm("dfedavgm", {"topology": "random:5"}, (82.49, 90.23)),
        "dfedavgm-p": Arm("dfedavgm-p", {"topology": "random:5", "schedule": "alternate"}, (84.69, 90.90)),
        "osgp": Arm("osgp", {"topology": "random-push:5"}, (83.14, 90.72)),
        "dfedpgp": Arm("dfedpgp", {"topology": "random-push:5"}, (85.61, 91.26)),
    },
    columns={**_PERSONAL_COLUMNS, "mean model": "global"},
    headline="personal",
    claims=tuple(
        Claim(low, high, "personal", case)
        for case in (_DIRICHLET, _PATHOLOGICAL)
        for low, high in (
            ("dfedavgm", "dfedavgm-p"),
            ("osgp", "dfedpgp"),
            ("dfedavgm", "osgp"),
            ("dfedavgm-p", "dfedpgp"),
        )
    ),
)

STUDIES = {
    "topology": TOPOLOGY,
    "topology-dfedavg": TOPOLOGY_DFEDAVG,
    "gossip": GOSSIP,
    "gap": GAP,
    "sam-on": SAM_ON,
    "partial-directed": PARTIAL_DIRECTED,
}
