"""Without a server and with nothing personal: D-PSGD, DFedAvg, DFedAvgM. And with nothing shared: Local."""

from typing import Unpack

from ..errors import RequestError
from ..local import Phase
from ..mixing import gossip
from ..tensors import add, floating, sub
from ..topology import Topology
from .base import Algorithm, Problem, Program, Round, Trained
from .families import Peers, decentralised
from .options import SAM_PAPER, Options, Training, check_choice


def local(**options: Unpack[Options]) -> Algorithm:
    """Local: every client on its own, every round.

    x_i <- local(x_i)

    >>> local(epochs=1).settings["epochs"]
    1

    Reference: none: the baseline every paper compares with.
    Differs from the paper in: nothing. All clients train in every round, also beside methods that sample a tenth of
    them.
    """
    t = Training().given(options)

    def bind(p: Problem) -> Program[Peers]:
        return decentralised(p, [Phase(p.parameters, t.amount, t.lr)], t, "none", shared=frozenset())

    return Algorithm("local", t._asdict(), bind)


def _full_model(name: str, topology: str | Topology, t: Training) -> Algorithm:
    """One phase over everything, then one exchange of everything."""

    def bind(p: Problem) -> Program[Peers]:
        return decentralised(p, [Phase(p.parameters, t.amount, t.lr)], t, topology, shared=p.names)

    return Algorithm(name, {"topology": topology, **t._asdict()}, bind)


def dfedavg(*, topology: str | Topology = "random:10", **options: Unpack[Options]) -> Algorithm:
    """DFedAvg: FedAvg between peers.

    z_i <- local(x_i);   x_i <- sum_j W[i, j] z_j

    >>> dfedavg(topology="ring").settings["momentum"]
    0.0

    Reference: Sun, Li, Wang, "Decentralized Federated Averaging", 2022, Algorithm 1 without momentum.
    Differs from the paper in: the default graph, a new one of equal degrees every round (the paper's is fixed), and
    weight decay, clipping and decay of the rate, which are those of DFedAlt's experiments. ``quantise`` rounds the
    whole message and carries the error on; the paper's quantised form rounds the difference to the last model.
    """
    return _full_model("dfedavg", topology, Training(momentum=0.0).given(options))


def dfedavgm(*, topology: str | Topology = "random:10", **options: Unpack[Options]) -> Algorithm:
    """DFedAvgM: DFedAvg with momentum in the local steps, a fresh buffer every round.

    m <- momentum m + grad F_i(z), z <- z - lr m, from z = x_i and m = 0 in every round;   x_i <- sum_j W[i, j] z_j

    >>> dfedavgm(topology="ring").settings["momentum"]
    0.9

    Reference: Sun, Li, Wang, "Decentralized Federated Averaging", 2022, Algorithm 1.
    Differs from the paper in: what dfedavg differs in.
    """
    return _full_model("dfedavgm", topology, Training().given(options))


def dpsgd(*, topology: str | Topology = "random:10", form: str = "epoch", **options: Unpack[Options]) -> Algorithm:
    """D-PSGD: one short piece of local work, one exchange.

    form "epoch" (as DFedSAM's experiments run it):  z_i <- one epoch from x_i;  x_i <- sum_j W[i, j] z_j
    form "lian" (the original):  x_i <- sum_j W[i, j] x_j - lr grad F_i(x_i; one batch)

    >>> dpsgd(form="lian").settings["steps"]
    1

    Reference: Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", 2017, Algorithm 1.
    Differs from the paper in: the default form, an epoch instead of one batch, as DFedSAM's experiments run it;
    form="lian" is the paper's, with the gradient at the client's own point before mixing. Weight decay 5e-4,
    clipping at 10 and rates that decay by 0.998 a round are from those experiments.
    """
    check_choice("form", form, ("epoch", "lian"))
    t = SAM_PAPER._replace(**({"epochs": 1} if form == "epoch" else {"epochs": None, "steps": 1})).given(options)
    if form == "lian" and t.steps != 1:
        raise RequestError("form=lian takes one step between two exchanges: leave epochs and steps out, or form=epoch")

    def bind(p: Problem) -> Program[Peers]:
        program = decentralised(p, [Phase(p.parameters, t.amount, t.lr)], t, topology, shared=p.names)
        return combining_first(program) if form == "lian" else program

    return Algorithm("dpsgd", {"topology": topology, "form": form, **t._asdict()}, bind)


def combining_first(program: Program[Peers]) -> Program[Peers]:
    """Mixes the points from before the step and adds the step taken at the client's own, unmixed point."""

    def train(s: Peers, r: Round) -> Trained:
        return program.train(s, r)._replace(sent=floating(s.x))

    def exchange(s: Peers, trained: Trained, r: Round) -> Peers:
        step = sub(floating(trained.models), floating(s.x))
        return Peers(trained.models | add(gossip(r.engine, r.Ws, trained.sent), step), trained.kept)

    return program._replace(train=train, exchange=exchange)
