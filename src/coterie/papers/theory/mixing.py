"""The constants of a graph in the bounds: lambda and Phi of gossip; C, q, delta and the masses of push-sum."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ...topology import Topology, diameter, spectral_gap
from .outcome import Condition

GRID = 400  # how finely q is searched
ROUNDING = 1e-12  # a distance below it is rounding, which stays however many rounds follow, and none that is left


def contraction(topology: Topology, rounds: int) -> float:
    """Return the largest lambda = |W - J| of the rounds: one mix leaves at most this share of the distance to the mean.

    For a symmetric W it is max(|lambda_2|, |lambda_m|), the papers' lambda.

    >>> from coterie.topology import ring
    >>> round(contraction(ring(4), rounds=9), 6)
    0.333333
    """
    return max(1 - spectral_gap(topology(t)) for t in range(1 if topology.fixed else max(rounds, 1)))


def symmetric(topology: Topology, rounds: int) -> bool:
    """Return whether every W of the rounds is as gossip's theorems assume: symmetric, its rows summing to 1."""
    matrices = [topology(t) for t in range(1 if topology.fixed else max(rounds, 1))]
    return topology.stochastic == "doubly" and all(torch.allclose(W, W.T) for W in matrices)


def mixing_conditions(topology: Topology, lam: float, rounds: int) -> tuple[Condition, Condition]:
    """Return what gossip's theorems assume of the graph."""
    same = symmetric(topology, rounds)
    return (
        Condition("every W is symmetric and doubly stochastic", same, "take ring, grid or random:K"),
        Condition(f"the graph mixes: lambda = {lam:.4g} < 1", lam < 1, "take a graph in which everybody is reached"),
    )


def phi(lam: float, clients: int, gossip_steps: int) -> float:
    """Compute Phi(lambda, m, Q) = (lambda^Q + 1) / ((1 - lambda)^2 m^(2(Q-1))) + (lambda^Q + 1) / (1 - lambda^Q)^2.

    Phi is infinite where the graph does not mix at all.

    >>> phi(0.0, clients=8, gossip_steps=1), phi(1.0, 8, 1)
    (2.0, inf)

    Reference: DFedSAM, equation 6.
    """
    if lam >= 1:
        return math.inf
    power = lam**gossip_steps
    first = (power + 1) / ((1 - lam) ** 2 * clients ** (2 * (gossip_steps - 1)))
    return float(first + (power + 1) / (1 - power) ** 2)


class PushSum(NamedTuple):
    """How fast push-sum brings the ratios together: |z_i - mean u| <= C sum_s q^(t-s) max_j |what j added in s|."""

    C: float
    q: float
    delta: float  # the smallest mass of any client in any round
    mass: Tensor  # [T + 1, n] mu over the rounds


def push_sum_constants(topology: Topology, rounds: int) -> PushSum:
    """Compute C, q, delta and the masses from the very matrices of these rounds.

    With Phi(t, s) = P_(t-1) ... P_s the distance of z_i from the mean is sum_s sum_j (Phi_ij / mu_i - 1/n) times
    what client j added in round s. Of all pairs with max_i sum_j |Phi_ij / mu_i - 1/n| <= C q^(t-s) this is the one
    for which C / (1 - q), which the bound contains, is the least. They are infinite and 1 where nothing contracts.

    Reference: DFedPGP, Lemma 3 and Theorem 1, which leave C and q to the existence proof of another paper.
    """
    n, matrices = topology.n, [topology(t).to(torch.float64).to_dense() for t in range(max(rounds, 1))]
    mass = [torch.ones(n, dtype=torch.float64)]
    for P in matrices:
        mass.append(P @ mass[-1])
    left = torch.zeros(len(matrices) + 1, dtype=torch.float64)  # by lag: the most that is left of the distance
    running = torch.zeros(0, n, n, dtype=torch.float64)  # Phi(t, s) for all s < t
    for t, P in enumerate(matrices, start=1):
        running = torch.cat([P @ running, P[None]])
        apart = (running / mass[t][:, None] - 1 / n).abs().sum(2).amax(1).flip(0)
        left[1 : t + 1] = torch.maximum(left[1 : t + 1], torch.where(apart > ROUNDING, apart, 0.0))
    C, q = _best_pair(left[1:])
    return PushSum(C, q, float(torch.stack(mass).min()), torch.stack(mass))


def _best_pair(left: Tensor) -> tuple[float, float]:
    """Return the C and q with left[k] <= C q^(k + 1) for which C / (1 - q) is the least."""
    q = torch.arange(1, GRID, dtype=torch.float64) / GRID
    lags = torch.arange(1, len(left) + 1, dtype=torch.float64)
    C = torch.where(left > 0, left / q[:, None] ** lags, 0.0).amax(1)
    best = int((C / (1 - q)).argmin())
    return (float(C[best]), float(q[best])) if bool(C[best].isfinite()) else (math.inf, 1.0)


class Window(NamedTuple):
    """How many rounds it takes until their graphs together connect everybody."""

    rounds: int
    diameter: int  # the largest of the united graphs
    degree: int  # the largest number of receivers of a client in one round, itself included


def connected_window(topology: Topology, rounds: int) -> Window | None:
    """Return the shortest window whose graphs, united, are strongly connected wherever it lies; None: none is.

    >>> from coterie.topology import none, ring
    >>> connected_window(ring(6), rounds=4), connected_window(none(6), rounds=4)
    (Window(rounds=1, diameter=3, degree=3), None)
    """
    links = torch.stack([topology(t).to_dense() != 0 for t in range(1 if topology.fixed else max(rounds, 1))])
    degree = int(links.sum(1).max())
    for window in range(1, len(links) + 1):
        united = [links[t : t + window].any(0).double() for t in range(len(links) - window + 1)]
        across = [diameter(W) for W in united]
        if None not in across:
            return Window(window, max(d for d in across if d is not None), degree)
    return None


class ExistenceConstants(NamedTuple):
    """C and q as an existence proof names them."""

    C: float
    q: float


def existence_constants(clients: int, window: Window, steps: int, dim: int) -> ExistenceConstants:
    """Return C and q as the proof of Lemma 3 names them; nan where its lambda is not above 0: there is no such q.

    With p = (K+1) Delta B: lambda = 1 - n D^-p, q = lambda^(1 / (p+1)), C = 2 sqrt(d) D^p / lambda^((p+2) / (p+1));
    D: the largest out-degree, Delta: diameter, B: window.

    >>> existence_constants(clients=4, window=Window(1, 3, 2), steps=1, dim=4).C > 200
    True

    Reference: DFedPGP, equation 14.
    """
    power = (steps + 1) * window.diameter * window.rounds
    lam = 1 - clients * float(window.degree) ** -power
    if lam <= 0:
        return ExistenceConstants(math.nan, math.nan)
    C = 2 * math.sqrt(dim) * float(window.degree) ** power / lam ** ((power + 2) / (power + 1))
    return ExistenceConstants(C, float(lam ** (1 / (power + 1))))
