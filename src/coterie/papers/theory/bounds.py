"""The bounds of the papers as functions of their constants, with the papers' letters.

Where a theorem has only O(.), the explicit constants are those of the inequality at the end of its proof. "As printed"
is what the theorem says; "completed" has the terms that its proof loses on the way, which each docstring names. Squares
are passed as squares: sigma_u2 is sigma_u^2.
"""

import math
from typing import NamedTuple


class Smoothness(NamedTuple):
    """Lipschitz constants of the partial gradients."""

    u: float  # of grad_u in u
    v: float  # of grad_v in v
    vu: float  # of grad_v in u, and of grad_u in v

    @property
    def chi(self) -> float:
        """The cross-sensitivity max(L_uv, L_vu) / sqrt(L_u L_v)."""
        return self.vu / math.sqrt(self.u * self.v)

    @property
    def largest(self) -> float:
        """The largest of the three."""
        return max(self)


class Steps(NamedTuple):
    """Step sizes and steps of a round: of the shared part and of the personal one."""

    lr_u: float
    K_u: int
    lr_v: float = 0.0
    K_v: int = 0


class Decrease(NamedTuple):
    """A round's inequality: shared Delta_u + personal Delta_v <= F_t - F_(t+1) + floor."""

    shared: float
    personal: float
    floor: float

    def bound(self, F0: float, T: int, L: Smoothness) -> float:
        """Bound (1/T) sum_t (Delta_u / L_u + Delta_v / L_v); infinite where a coefficient is not positive."""
        least = min(self.shared * L.u, self.personal * L.v)
        return (F0 / T + self.floor) / least if least > 0 else math.inf


def sam(F0: float, L: float, K: int, lr: float, rho: float, spread2: float, B2: float, phi: float, T: int) -> float:
    """Bound min_t |grad f(mean x^t)|^2, as printed; spread2: sigma_g^2 + sigma_l^2.

    2 F0 / (T D) + alpha + Phi beta with D = lr K - 32 lr^3 K^2 L^2.

    Reference: DFedSAM, Theorem 4.1, equation 7.
    """
    D = lr * K - 32 * lr**3 * K**2 * L**2
    if D <= 0:
        return math.inf
    odd = 2 * K - 1
    local = 4 * K**3 * L**2 * lr**2 * rho**4 / odd + 8 * K * lr**2 * (L**2 * rho**2 + spread2) + 2 * K * rho**2 / odd
    apart = 4 * K**3 * L**2 * rho**4 / odd + 8 * K * (L**2 * rho**2 + spread2) + 8 * K * B2
    beta = 64 * lr**5 * K**3 * L**4 / D * (apart + rho**2 / (lr**2 * odd))
    return 2 * F0 / (T * D) + lr * L**2 * K**2 / D * local + phi * beta


def sam_completed(
    F0: float, L: float, K: int, lr: float, rho: float, spread2: float, B2: float, second2: float, phi: float, T: int
) -> float:
    """Bound the same with what the proof loses; second2: the second moment of a stochastic gradient, B^2 + sigma_l^2.

    Equation 22 has L/2 lr^2 K^2 times that moment, and equation 24 has not; equation 20 gives 8 lr^3 K^3 L^2 (1/m)
    sum_i |grad f(x_i)|^2 where equation 22 has K^2; and C_1 / 2 is divided by half of D, which doubles it.

    Reference: DFedSAM, Appendix E, equations 20 to 24.
    """
    D = lr * K - 32 * lr**3 * K**3 * L**2
    if D <= 0:
        return math.inf
    odd = 2 * K - 1
    local = 4 * K**3 * L**2 * lr**2 * rho**4 / odd + 8 * K * lr**2 * (L**2 * rho**2 + spread2)
    C1 = 2 * K * local + 2 * K * rho**2 / odd
    apart = 4 * K**3 * L**2 * rho**4 / odd + 8 * K * (L**2 * rho**2 + spread2) + 8 * K * B2
    C2 = 2 * K * apart + 2 * K * rho**2 / (lr**2 * odd)
    floor = lr * L**2 * K * C1 + 32 * C2 * phi * lr**5 * K**3 * L**4 + L * lr**2 * K**2 * second2
    return (2 * F0 / T + floor) / D


def alternating(L: Smoothness, s: Steps, sigma_u2: float, sigma_v2: float, delta2: float, lam: float) -> Decrease:
    """Return the inequality of a round of DFedAlt.

    Reference: DFedAlt/DFedSalt, Appendix C, equation 19; its Theorem 1 has O(.).
    """
    noise, gap2 = sigma_u2 + delta2, (1 - lam) ** 2
    if gap2 == 0:
        return Decrease(-math.inf, _personal(L, s), math.inf)
    eta2 = s.lr_u**2 * s.K_u**2
    spread = 9 * eta2 * (2 + s.lr_u * L.u**2) / gap2 + 18 * eta2 * L.vu**2 / gap2
    direct = 2 * s.lr_u**2 * s.K_u * L.u
    return Decrease(
        s.lr_u * s.K_u / 2 - direct - 2 * spread, _personal(L, s), (direct + spread) * noise + _floor(L, s, sigma_v2)
    )


def alternating_sam(
    L: Smoothness, s: Steps, rho: float, sigma_u2: float, sigma_v2: float, delta2: float, lam: float
) -> Decrease:
    """Return the inequality of a round of DFedSalt; rho: the radius on the shared part.

    Reference: DFedAlt/DFedSalt, Appendix C, equations 27 and 32. Their sum is printed as equation 33 with -lr_u K_u +
    lr_u/2 in place of -lr_u K_u / 2, which does not follow from them; Theorem 2 has O(.).
    """
    noise, gap2, eta = sigma_u2 + delta2, (1 - lam) ** 2, s.lr_u
    if gap2 == 0:
        return Decrease(-math.inf, _personal(L, s), math.inf)
    flat = L.u**2 * rho**2
    direct = 5 / 2 * eta**2 * s.K_u * L.u
    shift = 3 * eta**3 * s.K_u * L.u**2 / gap2 + 15 * eta**4 * s.K_u**2 * L.u**3 / gap2
    crossed = 3 * eta**2 * s.K_u * L.vu**2 / gap2
    grown = 18 * eta**3 * s.K_u**2 * L.u**2 * (1 + 5 * eta * s.K_u * L.u) / gap2
    floor = direct * (flat + noise) + (shift + crossed) * (flat + 3 * s.K_u * noise)
    shared = eta * s.K_u / 2 - direct - grown - 6 * crossed * s.K_u
    return Decrease(shared, _personal(L, s), floor + _floor(L, s, sigma_v2))


def alternating_push(
    L: Smoothness, s: Steps, sigma_u2: float, sigma_v2: float, sigma_g2: float, C: float, q: float, delta: float
) -> Decrease:
    """Return the inequality of a round of DFedPGP.

    Reference: DFedPGP, Appendix D, equation 32 with AA as in equation 19; its Theorem 1 has O(.). The floor of the
    personal step is that of equation 29: equation 31 multiplies it by a further L_v^2.
    """
    K, eta = s.K_u, s.lr_u
    reach = (1 - q) ** 2 * K - 8 * K**2 * eta**2 * L.u**2 * C**2 * (K + 1)
    if not reach > 0:
        return Decrease(-math.inf, _personal(L, s), math.inf)
    AA = 8 * K**2 * eta**2 * C**2 * (K + 1) / reach
    drift = 32 * K * L.u**2 * eta**2 / delta**2
    grown = K * L.u**2 * eta / 2 * AA + L.vu**2 / 2 * AA
    grown += 5 * K * L.u * eta**2 / 2 * (1 + drift * (L.u**2 * AA + 1) + L.u**2 * AA)
    return Decrease(eta * K / 2 - grown, _personal(L, s), grown * (sigma_u2 + sigma_g2) + _floor(L, s, sigma_v2))


def _personal(L: Smoothness, s: Steps) -> float:
    """Return the coefficient of Delta_v in all three: lr_v K_v - 8 lr_v^2 K_v^2 (L_v + 1)."""
    return s.lr_v * s.K_v - 8 * s.lr_v**2 * s.K_v**2 * (L.v + 1)


def _floor(L: Smoothness, s: Steps, sigma_v2: float) -> float:
    """Return what the noise of the personal steps adds: 4 lr_v^2 K_v^2 sigma_v^2 (L_v + 1)."""
    return 4 * s.lr_v**2 * s.K_v**2 * sigma_v2 * (L.v + 1)


class Cohort(NamedTuple):
    """Clients with a server."""

    m: int  # of them take part in a round
    n: int


def joint(
    F0: float, L: float, K: int, gamma: float, outer_lr: float, c: Cohort, b2: float, su2: float, sv2: float, T: int
) -> float:
    """Bound (1/T) sum_t (G_u + (m/n) G_v); gamma = lr outer_lr; su2, sv2: sigma_u^2 and sigma_v^2.

    Reference: FedAvg-P/Scaffold-P, Theorem 3.7.
    """
    spread = 4 * (c.n - c.m) * K * b2 / (c.m * c.n) + su2 / c.m + c.m * sv2 / c.n
    drift = 128 * L**2 * K * (K - 1) * b2 / outer_lr**2 * gamma**2
    return 4 * F0 / (T * K * gamma) + 12 * L * spread * gamma + drift


def joint_full(F0: float, L: float, K: int, gamma: float, n: int, su2: float, sv2: float, T: int) -> float:
    """Bound the same where everybody takes part and outer_lr >= T: without b.

    Reference: FedAvg-P/Scaffold-P, Theorem 3.11.
    """
    return 4 * F0 / (T * K * gamma) + 44 * L * (su2 / n + sv2) * gamma + L * F0 / T


def joint_controlled(F0: float, L: float, K: int, gamma: float, c: Cohort, su2: float, sv2: float, T: int) -> float:
    """Bound (1/T) sum_t (G_u + (m/n) G_v), without b.

    Reference: FedAvg-P/Scaffold-P, Theorem 4.5.
    """
    return 4 * F0 / (T * K * gamma) + 148 * (su2 / c.m + sv2 * c.m / c.n) * L * gamma


class Factored(NamedTuple):
    """The constants of FedLMT's bound."""

    layers: int  # L of them
    rho: int  # stay whole
    N: int  # clients
    E: int  # local steps
    L_s: float
    sigma2: float
    G2: float
    Gg2: float
    kappa_u: float
    kappa_v: float
    kappa_uv: float

    def floor(self, gamma: float) -> float:
        """Return the terms of a step that do not vanish with T, ``O(gamma^2)`` in the paper.

        Reference: FedLMT, equation 70.
        """
        c, factored, G4 = self, self.layers - self.rho, self.G2**2
        quartic = c.kappa_u**4 + c.kappa_v**4
        crossed = (c.kappa_uv**2 + c.kappa_u**2 * c.kappa_v**2 * (c.N - 1) ** 2) / c.N**2
        smooth2 = c.L_s**2 * c.E**2
        second = c.L_s * c.sigma2 / (2 * c.N) + factored * (3 / 2 * c.L_s * c.G2 * quartic + G4 * crossed)
        third = 2 * c.rho * smooth2 * c.G2 + 6 * factored * smooth2 * c.G2 * quartic + 4 * smooth2 * c.Gg2
        fourth = 3 * c.L_s * factored * G4 * crossed
        fifth = 3 * factored * smooth2 * c.E**2 * G4 * quartic
        return float(gamma**2 * second + gamma**3 * third + gamma**4 * fourth + gamma**5 * fifth)

    def slope(self, gamma: float, q0: float) -> float:
        """Return C_1: what one more whole layer adds to the bound; below 0, the most whole layers have the least bound.

        Reference: FedLMT, Corollary 4.6 and equation 73.
        """
        return float((self._replace(rho=1).floor(gamma) - self._replace(rho=0).floor(gamma)) / gamma**q0)


def low_rank(c: Factored, F0: float, gamma: float, q0: float, T: int, completed: bool = False) -> float:
    """Bound (1/T) sum_t |grad f(w^(t-1))|^2 over T local steps, w recovered from the mean factors.

    2 F0 / (gamma^q0 T) + floor / gamma^q0; completed: twice the floor, as dividing equation 67 by gamma^q0 / 2 gives.

    Reference: FedLMT, Theorem 4.5 and equations 67 to 70.
    """
    if not 1 <= q0 < 2:
        return math.inf
    return float((2 * F0 / T + (2 if completed else 1) * c.floor(gamma)) / gamma**q0)


def marchenko_pastur(rows: int, columns: int, variance: float) -> tuple[float, float]:
    """Return the smallest and the largest singular value of a large Gaussian matrix with that variance of its entries.

    sqrt(rows variance) (1 -+ sqrt(columns / rows)), rows >= columns: psi of factors that were just drawn.

    >>> marchenko_pastur(400, 100, 1 / 400)
    (0.5, 1.5)

    Reference: FedLMT, Appendix B.
    """
    edge = math.sqrt(columns / rows)
    scale = math.sqrt(rows * variance)
    return scale * (1 - edge), scale * (1 + edge)
