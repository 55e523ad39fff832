"""The paired test against brute force, and how often it errs where there is nothing to find."""

from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.measure import paired
from coterie.measure.paired import Numbers, against, exact_flips, holm, sign_flip

# Accuracies are fractions: zeros, and sums that are equal but for rounding, are the rule.
FRACTIONS = st.lists(st.integers(-7, 7).map(lambda k: k / 7), min_size=1, max_size=9)


def brute_force(differences: list[float]) -> float:
    """The share of all flips, one by one, whose mean is as far from 0."""
    reached = abs(sum(differences))
    flipped = [abs(sum(s * d for s, d in zip(signs, differences, strict=True))) for signs in signs_of(differences)]
    return sum(f >= reached - 1e-9 for f in flipped) / len(flipped)


def signs_of(differences: list[float]) -> list[tuple[int, ...]]:
    return list(product((1, -1), repeat=len(differences)))


@settings(deadline=None, max_examples=60)
@given(FRACTIONS)
def test_all_flips_are_counted(differences: list[float]) -> None:
    assert sign_flip(np.array(differences)) == pytest.approx(brute_force(differences), abs=1e-12)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=9))
def test_flips_of_whole_numbers_are_counted(differences: list[int]) -> None:
    assert exact_flips(np.array(differences)) == pytest.approx(brute_force(differences), abs=1e-12)


@pytest.mark.parametrize(("better", "worse"), [(0, 0), (6, 0), (9, 2), (2, 9), (40, 25), (300, 240)])
def test_of_right_and_wrong_answers_it_is_mcnemars(better: int, worse: int) -> None:
    """Twice the tail of a binomial distribution of those samples that only one of two methods gets right."""
    n, most = better + worse, max(better, worse)
    tail = sum(comb(n, k) for k in range(most, n + 1)) / 2**n
    found = exact_flips(np.array([1] * better + [-1] * worse + [0] * 5))
    assert found == pytest.approx(min(1.0, 2 * tail), rel=1e-9)


@pytest.mark.parametrize("n", [6, 13, paired.EXACT])
def test_the_least_p_there_is(n: int) -> None:
    assert sign_flip(np.full(n, 0.1)) == 2 / 2**n


def test_which_method_is_the_first_does_not_matter() -> None:
    d = np.random.default_rng(0).normal(0.3, 1, 15)
    assert sign_flip(d) == sign_flip(-d) == sign_flip(d[::-1])


@pytest.mark.parametrize("shift", [0.0, 0.3, 0.5])
def test_drawn_flips_agree_with_all(shift: float, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(1)
    d = draw.exponential(1, 34) * draw.choice((-1, 1), 34) + shift
    drawn = sign_flip(d)
    monkeypatch.setattr(paired, "EXACT", 34)
    assert sign_flip(d) == pytest.approx(drawn, abs=4 * (0.25 / paired.FLIPS) ** 0.5)


def test_drawn_flips_of_equal_sizes_are_a_sign_test() -> None:
    d = np.array([0.1] * 23 + [-0.1] * 11)
    binomial = 2 * sum(comb(34, k) for k in range(23, 35)) / 2**34
    assert sign_flip(d) == pytest.approx(binomial, abs=4 * (binomial / paired.FLIPS) ** 0.5)


def step_down(ps: list[float], level: float) -> list[bool]:
    """Holm's procedure as he tells it: the smallest first, until one is not rejected."""
    rejected = [False] * len(ps)
    for k, i in enumerate(np.argsort(ps, kind="stable")):
        if ps[i] > level / (len(ps) - k):
            break
        rejected[i] = True
    return rejected


@settings(deadline=None)
@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=8), st.floats(0.001, 0.999))
def test_a_corrected_p_is_the_level_at_which_holm_rejects(ps: list[float], level: float) -> None:
    adjusted = holm(ps)
    clear = [abs(p - level) > 1e-9 for p in adjusted]
    for p, said, sure in zip(adjusted, step_down(ps, level), clear, strict=True):
        assert (p <= level) == said or not sure


def test_one_method_against_the_others() -> None:
    base = np.linspace(0.5, 0.9, 12)
    accuracies = np.stack([base, base + 0.05, base + 0.05 * np.tile((1, 1, -1), 4)])
    found = against(1, accuracies)
    assert [(found[j].better, found[j].clients) for j in (0, 2)] == [(12, 12), (4, 12)]
    ps = [brute_force(list(np.round(accuracies[i] - accuracies[j], 12))) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert [found[0].p, found[2].p] == pytest.approx([holm(ps)[0], holm(ps)[2]])


def test_equal_methods_are_rarely_told_apart() -> None:
    """Five equal methods, the best chosen by looking: an error in one family of twenty, not in every fourth."""
    draw = np.random.default_rng(0)
    tried = 400

    def wrong(accuracies: Numbers) -> bool:
        best = int(accuracies.mean(axis=1).argmax())
        return any(found.p < 0.05 for found in against(best, accuracies).values())

    errors = sum(wrong(draw.normal(0.8, 0.1, (5, 12))) for _ in range(tried))
    assert errors / tried < 0.05 + 3 * (0.05 * 0.95 / tried) ** 0.5
