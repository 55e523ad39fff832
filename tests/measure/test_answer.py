"""A comparison begins with its answer, then says by one test whether the lead is chance."""

from typing import Any

import numpy as np
import pytest

from coterie.core.schema import ACCURACY
from coterie.measure.compare import Comparison, MethodRuns, RunData

OWN = "against training alone (local), each by its own test samples."
FLAT = [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]


def method(label: str, *seeds: list[float], sent: int = 8, right: list[str] | None = None) -> MethodRuns:
    """A method by the accuracies of its clients, seed by seed; an interval is the accuracy itself."""
    runs = []
    for seed, values in enumerate(seeds):
        ends = {"final": float(np.mean(values)), "std": 0.0}
        summary: Any = {"personal_accuracy": {"after_mix": ends}, "bytes_sent": 0 if label == "local" else sent}
        summary |= {"consensus_distance": None, "flops": 1e9}
        own = [5 if label == "local" else 2] * len(values)
        clients: Any = {"accuracy": {"after_mix": values}, "resampled": [[v, v] for v in values]}
        clients |= {"parameters": [5] * len(values), "personal_parameters": own, "train_samples": [9] * len(values)}
        clients |= {} if right is None else {"right": right}
        config: Any = {"seed": seed, "fingerprints": {"data": "d"}, "data": {"clients": len(values)}, "settings": {}}
        runs.append(RunData({**config, "metrics": [ACCURACY], "rounds": 3}, [], summary, clients))
    return MethodRuns(label, runs)


def plus(*gains: float) -> list[float]:
    return [v + gain for v, gain in zip(FLAT, gains, strict=True)]


def test_against_training_alone_the_answer_is_whom_it_helps() -> None:
    better = method("fedper", plus(0.4, 0.4, 0.3, 0.3, 0.2, 0.2, 0.0, -0.04))
    first, second = Comparison([method("local", FLAT), better]).answer
    assert first == f"fedper helps 6 of 8 clients and harms 1, {OWN}"
    assert second == (
        "fedper (72.0 %) is 22.0 points ahead of local (50.0 %), the next. Over all clients that is more than chance: "
        "better for 6 of 8 clients, 1 tie (paired test, p = 0.031)."
    )
    alone = method("local", plus(*[0.45] * 8))
    first, _ = Comparison([better, alone]).answer
    assert first == (
        "Training alone (local) is best on average: fedper helps none of 8 clients and harms 8, "
        "each by its own test samples."
    )


def test_too_few_clients_for_many_methods_are_not_called_chance() -> None:
    """All six clients gain, and no result of six could be clear among three pairs of methods: p is 3 * 2 / 2^6."""
    methods = [method(label, [v + gain for v in FLAT[:6]]) for label, gain in (("local", 0.0), ("a", 0.3), ("b", 0.1))]
    first, second = Comparison(methods).answer
    assert first.startswith("a helps 6 of 6 clients")
    assert second.endswith(
        "Over all clients no test of 3 methods can tell, because that takes 7 clients: "
        "better for 6 of 6 clients (paired test, p = 0.094)."
    )
    assert "more than chance: better for 6 of 6 clients" in Comparison(methods[:2]).answer[1]
    seven = [method(m.label, [v + gain for v in FLAT[:7]]) for m, gain in zip(methods, (0.0, 0.3, 0.1), strict=True)]
    assert "more than chance: better for 7 of 7 clients (paired test, p = 0.047)" in Comparison(seven).answer[1]


def test_without_it_the_answer_is_the_best() -> None:
    first, second = Comparison([method("b", FLAT), method("a", plus(0.32, *[0.0] * 7))]).answer
    assert first == "a has the highest personal accuracy after aggregation, 54.0 %."
    assert second == (
        "a (54.0 %) is 4.0 points ahead of b (50.0 %), the next. Over all clients that may be chance: "
        "better for 1 of 8 clients, 7 ties (paired test, p = 1.000)."
    )


def test_seeds_that_differ_alike_for_both_do_not_make_a_lead_chance() -> None:
    """A hard seed is hard for both methods: 20 points between the seeds, and 2 points between the methods in each."""
    hard = [v - 0.2 for v in FLAT]
    ahead = [[v + 0.02 for v in values] for values in (FLAT, hard)]
    said = Comparison([method("a", *ahead), method("b", FLAT, hard)]).verdict
    assert "Over all clients that is more than chance: better for 8 of 8 clients (paired test, p = 0.0078)." in said[1]
    assert not any("may be chance" in sentence for sentence in said)


def test_what_rounding_sets_apart_is_a_tie() -> None:
    """0.1 + 0.2 is not 0.3, and 3.7e-17 is neither a gain nor better."""
    assert 0.1 + 0.2 > 0.3
    compared = Comparison([method("local", [0.3] * 8), method("fedper", [0.1 + 0.2] * 8)])
    first, second = compared.answer
    assert "helps none of 8 clients and harms none" in first
    assert "level with" in second
    assert "Over all clients there is no clear difference: better for 0 of 8 clients, 8 ties" in second
    assert [gain.difference for gain in compared.gains[0].each] == [0.0] * 8
    assert "fedper helps 0, harms 0, 8 ties" in " ".join(compared.details)
    assert "e-1" not in " ".join(compared.verdict)


def test_few_clients_have_one_test_each_in_all_sentences() -> None:
    """An interval alone would say that the second client gains; one answer more of 20 is chance."""
    alone = method("local", [0.4, 0.4], right=["1" * 8 + "0" * 12] * 2)
    other = method("fedper", [1.0, 0.45], right=["1" * 20, "1" * 9 + "0" * 11])
    compared = Comparison([alone, other])
    first, second = compared.answer
    assert first == f"fedper helps 1 of 2 clients and harms none, {OWN}"
    assert second.endswith(
        "By each client's own test samples: better for client 0 (+60, p = 0.0010); "
        "no clear difference for client 1 (+5, p = 1.000)."
    )
    assert "each by its own exact test: fedper helps 1, harms 0." in " ".join(compared.details)
    assert [gain.verdict for gain in compared.gains[0].each] == ["helps", "unclear"]
    saved = compared.saved[1]["sites"]
    assert [(one["verdict"], one["p"]) for one in saved] == [("better", pytest.approx(2**-10)), ("unclear", 1.0)]


@pytest.mark.parametrize(
    ("sent", "said"), [(8, []), (6, ["a sent 8 B; of all that exchange anything, b sent least, 6 B."])]
)
def test_the_price_is_named_where_another_is_cheaper(sent: int, said: list[str]) -> None:
    a, b, c = method("a", plus(*[0.1] * 8)), method("b", FLAT, sent=sent), method("local", FLAT)
    details = Comparison([a, b, c]).details
    assert [sentence for sentence in details if " sent " in sentence] == said
