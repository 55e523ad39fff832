"""D-PSGD: one short piece of local work, one exchange."""

from typing import Literal, Unpack

from ..core.errors import UserError
from ..core.tensors import add, floating, sub
from ..exchange.mixing import gossip
from ..local.steps import Phase
from .method import Options, Participation, Problem, Program, Round, TopologyLike, Trained, Training, method
from .options import SAM_PAPER
from .peers import Peers, decentralized


def _training(variant: str) -> Training:
    return SAM_PAPER._replace(epochs=1) if variant == "epoch" else SAM_PAPER._replace(epochs=None, steps=1)


def _check(variant: str, t: Training) -> None:
    if variant == "lian" and t.steps != 1:
        raise UserError(
            "variant=lian takes one step between two exchanges: leave epochs and steps out, or variant=epoch"
        )


# One epoch is what makes it another method than DFedAvg.
@method(_training, check=_check, presets={"small": {"epochs": 1}})
def dpsgd(
    p: Problem,
    t: Training,
    *,
    topology: TopologyLike = "random:10",
    participation: Participation = 1.0,
    variant: Literal["epoch", "lian"] = "epoch",
    **options: Unpack[Options],
) -> Program[Peers]:
    """D-PSGD: one short piece of local work, one exchange.

    variant "epoch" (as DFedSAM's experiments run it):  z_i <- one epoch from x_i;  x_i <- sum_j W[i, j] z_j
    variant "lian" (the original):  x_i <- sum_j W[i, j] x_j - lr grad F_i(x_i; one batch)

    Args:
        variant: "epoch" or "lian".

    >>> dpsgd(variant="lian").settings["steps"]
    1

    Reference: Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", 2017, Algorithm 1.
    Differs from the paper in: the default variant, an epoch instead of one batch, as DFedSAM's experiments run it;
    variant="lian" is the paper's, with the gradient at the client's own point before mixing. Weight decay 5e-4,
    clipping at 10 and rates that decay by 0.998 per round are from those experiments.
    """
    program = decentralized(
        p, [Phase(p.parameters, t.amount, t.lr)], t, topology, shared=p.names, participation=participation
    )
    return combining_first(program) if variant == "lian" else program


def combining_first(program: Program[Peers]) -> Program[Peers]:
    """Mix the points from before the step and add the step taken at the client's own, unmixed point."""

    def train(s: Peers, r: Round) -> Trained:
        return program.train(s, r)._replace(sent=floating(s.x))

    def exchange(s: Peers, trained: Trained, r: Round) -> Peers:
        step = sub(floating(trained.models), floating(s.x))
        return Peers(trained.models | add(gossip(r.engine, r.Ws, trained.sent, program.rule), step), trained.private)

    return program._replace(train=train, exchange=exchange)
