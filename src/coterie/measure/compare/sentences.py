"""What the numbers of a comparison are, in sentences."""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from ...core.clients import client_list
from ...core.schema import FINETUNED, MetricInfo, Select, personal_column
from ...core.units import metrics_of, personal_summary, with_unit, words
from ..selection import LAST, PER_CLIENT, WORDS
from .columns import Column, MethodRuns
from .gains import in_one_place

EVERYBODY = -1  # in the place of a number of clients


def protocol(methods: Sequence[MethodRuns], target: float | None, shown: Sequence[Column], mark: str) -> list[str]:
    """Say which rounds, clients and seeds, what each column is and who computed it; ``mark``: that of the best.

    ``target``: what rounds are counted to, where they are.
    """
    best = f" {mark} the best of a column, as far as its digits tell." if len(methods) > 1 else ""
    clients = methods[0].runs[0].config["data"]["clients"]
    configs = (run.config for m in methods for run in m.runs)
    engines = dict.fromkeys(f"{c['engine']} on {c['device']} ({c['engine_reason']})" for c in configs)
    metric = methods[0].metric
    return [
        f"{_unit(metric)} {_which_round(methods)}.{best}",
        *([] if target is None else _apart(methods)),
        _seeds(methods),
        *([] if metric is None else [_personal(methods, metric, clients)]),
        *_undefined(methods, clients),
        *_untold_costs(methods),
        *_not_federated(methods),
        *(f"{c.title[0].upper()}{c.title[1:]}: {c.means}." for c in shown),
        f"Engine: {', '.join(engines)}.",
    ]


def _unit(metric: MetricInfo | None) -> str:
    """Say what the numbers are of, and in which unit."""
    if metric is None:
        return "Nothing is measured of the models, all numbers are"
    name = words(metric)
    if metric["percent"]:
        plural = "All accuracies are" if name == "accuracy" else f"All values of {name} are"
        return f"{plural} in % and those"
    return f"All values of {name} ({'higher' if metric['higher_is_better'] else 'lower'} is better) are those"


def _personal(methods: Sequence[MethodRuns], metric: MetricInfo, clients: int) -> str:
    """Say what the mean of a personal metric is taken over."""
    weighted = ", each as much as it has test samples" if metric["average"] == "samples" else ""
    over = f", mean over {_tested(methods, clients, weighted)}" if clients > 1 else "; there is one client"
    return f"Personal {words(metric)}: each client's own model on its own test samples{over}."


def _tested(methods: Sequence[MethodRuns], clients: int, weighted: str) -> str:
    """Say which clients have test samples: all, or who has none; seeds may deal them to others."""
    summaries = [run.client_summary for m in methods for run in m.runs]
    without = {tuple(i for i, n in enumerate(s.get("test_samples", ())) if not n) for s in summaries}
    counts = sorted({clients - len(some) for some in without})
    if counts == [clients]:
        return f"all {clients} clients{weighted}"
    if len(without) > 1:
        some = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
        return f"{some} of {clients} clients{weighted}: in every seed, those without test samples are left out"
    who = client_list(summaries[0].get("names", ()), found := [*without.pop()])
    return f"{counts[0]} of {clients} clients{weighted}: {who} {'has' if len(found) == 1 else 'have'} no test samples"


def _untold_costs(methods: Sequence[MethodRuns]) -> Iterator[str]:
    """Say whose FLOPs and seconds lack what clients do to their models in the end."""
    if tuned := [m.label for m in methods if m.end == FINETUNED]:
        who = "" if len(tuned) == len(methods) else f" of {', '.join(tuned)}"
        yield f"FLOPs and seconds are without the final fine-tuning{who}."


def _not_federated(methods: Sequence[MethodRuns]) -> Iterator[str]:
    """Say which methods had all samples in one place."""
    if labels := [m.label for m in methods if in_one_place(m)]:
        yield f"{', '.join(labels)} trains one model on the samples of all clients in one place: it is not federated."


def _undefined(methods: Sequence[MethodRuns], clients: int) -> Iterator[str]:
    """Say on how many clients a metric is not defined, and what that means for its means and tests."""
    for metric in metrics_of(methods[0].runs[0].config):
        found: dict[int, list[str]] = {}
        for m in methods:
            found.setdefault(_undefined_on(m, metric), []).append(m.label)
        for count, labels in sorted(found.items()):
            who = "" if len(found) == 1 else f" with {', '.join(labels)}"
            name = words(metric)
            if count == EVERYBODY:
                yield f"{name} is undefined on every client{who}: there is no mean of it, and no test."
            elif count:
                yield f"{name} is undefined on {count} of {clients} clients{who}: means and tests leave them out."


def _undefined_on(method: MethodRuns, metric: MetricInfo) -> int:
    """Return on how many clients a metric is undefined with a method, the most of all seeds."""
    mixed = [personal_summary(run.summary, metric).get("after_mix") for run in method.runs]
    if any(mixed):
        return max(one.get("undefined", 0) for one in mixed if one is not None)
    # Without any value there is no summary, but the rows have counted the clients.
    counted = any(run.last(personal_column(metric, "after_mix_undefined")) for run in method.runs)
    return EVERYBODY if counted else 0


def _which_round(methods: Sequence[MethodRuns]) -> str:
    """Say which round is reported, and by which rule, with the methods where rules differ."""
    rules: dict[Select, list[MethodRuns]] = {}
    for m in methods:
        rules.setdefault(LAST if (found := m.runs[0].selection) is None else found["rule"], []).append(m)
    said = []
    for rule, some in rules.items():
        of = f" ({', '.join(m.label for m in some)})" if len(rules) > 1 else ""
        said.append(WORDS[rule] + (f": {_rounds(some)}" if rule != PER_CLIENT else "") + of)
    return "; ".join(said)


def _apart(methods: Sequence[MethodRuns]) -> Iterator[str]:
    """Say how many rounds lie between two evaluations, because a target is seen at the second one at the earliest."""
    every = sorted({run.config["evaluate_every"] for m in methods for run in m.runs})
    if every[-1] > 1:
        rounds = f"{every[0]} to {every[-1]}" if len(every) > 1 else str(every[0])
        yield f"Evaluated every {rounds} rounds: a count of rounds to a target is up to {every[-1] - 1} too high."


def _seeds(methods: Sequence[MethodRuns]) -> str:
    """Say what is a mean over seeds, and what the spread is over."""
    counts = sorted({len(m.runs) for m in methods})
    if counts == [1]:
        return "One seed. ±: standard deviation over the clients."
    seeds = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else f"{counts[0]} seeds"
    alone = "; of a method with one seed, over the clients" if counts[0] == 1 else ""
    means = "Numbers are means over the seeds, unless their line says otherwise"
    return f"{means}. ±: standard deviation over {seeds} (n - 1){alone}."


def _rounds(methods: Sequence[MethodRuns]) -> str:
    """Return the rounds, with the methods where they differ."""
    by_round: dict[str, list[str]] = {}
    for m in methods:
        first, last = min(run.evaluated for run in m.runs), max(run.evaluated for run in m.runs)
        unfinished = "" if all(run.finished for run in m.runs) else " (unfinished)"
        rounds = f"round {last}" if first == last else f"rounds {first} to {last}"
        by_round.setdefault(rounds, []).append(m.label + unfinished)
    if len(by_round) == 1 and all(run.finished for m in methods for run in m.runs):
        return next(iter(by_round))
    return "; ".join(f"{rounds} of {', '.join(labels)}" for rounds, labels in by_round.items())


# The settings of local training. Those of fine-tuning and of a personal phase begin with the words of PARTS.
LOCAL = {
    *("epochs", "steps", "batch_size", "lr", "lr_decay", "lr_min", "lr_milestones", "lr_gamma"),
    *("lr_warmup", "lr_schedule", "optimizer", "betas", "eps", "micro_batch"),
    *("momentum", "keep_optimizer_state", "weight_decay", "clip", "replacement"),
}
PARTS = ("finetune_", "personal_")
AMOUNTS = ("epochs", "steps")  # one takes the place of the other
NAMED = 3  # methods with the most common value that are named


def unequal(methods: Sequence[MethodRuns]) -> list[str]:
    """Return one line on what differs in work and in tuning; nothing where both are equal."""
    work, tuning = "; ".join(_work(methods)), _tuning(methods)
    parts = [f"Unequal work: {work}."] if work else []
    parts += [f"Unequal tuning: {tuning}."] if tuning else []
    return [" ".join(parts)] if parts else []


def is_local(name: str) -> bool:
    """Whether a setting is one of local training."""
    return name in LOCAL or name.startswith(PARTS)


def _work(methods: Sequence[MethodRuns]) -> Iterator[str]:
    """Yield what differs: rounds, who takes part, local settings that several methods have untuned, and FLOPs."""
    yield from _differing("rounds", {m.label: m.runs[0].config["rounds"] for m in methods})
    yield from _differing("participation", {m.label: _participation(m) for m in methods})
    for name in dict.fromkeys(name for m in methods for name in _settings(m) if is_local(name)):
        having = [m for m in methods if name in _settings(m)]
        if not all(_was_tuned(m, name) for m in having):
            yield from _differing(name, {m.label: _settings(m)[name] for m in having})
    yield from _computed(methods)


def _computed(methods: Sequence[MethodRuns]) -> Iterator[str]:
    """Yield what training computes; no setting tells it where one method has a phase that another lacks."""
    flops = {m.label: fmean(run.summary["flops"] for run in m.runs) for m in methods}
    if least := min(flops.values()):
        yield from _differing(
            "FLOPs, as a multiple of the least:", {label: round(one / least, 1) for label, one in flops.items()}
        )


def _settings(method: MethodRuns) -> dict[str, Any]:
    return method.runs[0].config["settings"]


def _was_tuned(method: MethodRuns, name: str) -> bool:
    tuned = method.runs[0].tuned
    return tuned is not None and name in tuned["settings"]


def _participation(method: MethodRuns) -> float:
    """Return the share of the clients that train in a round: all of them, where a method does not choose."""
    share = _settings(method).get("participation", 1.0)
    return share / method.runs[0].config["data"]["clients"] if isinstance(share, int) else float(share)


def _differing(name: str, values: dict[str, Any]) -> Iterator[str]:
    """Yield a setting with its values by method, the rarest value first, if the values differ."""
    labels: dict[str, list[str]] = {}
    for label, value in values.items():
        labels.setdefault(_written(value), []).append(label)
    if len(labels) < 2:
        return
    if name.endswith(AMOUNTS):
        labels.pop(_written(None), None)
    *rare, (usual, most) = sorted(labels.items(), key=lambda pair: len(pair[1]))
    others = ", ".join(most) if len(most) <= NAMED or not rare else "the others"
    groups = [f"{value} ({', '.join(some)})" for value, some in rare]
    yield f"{name} {', '.join([*groups, f'{usual} ({others})'])}".lstrip()


def _written(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_written, value))
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _tuning(methods: Sequence[MethodRuns]) -> str:
    """Say how settings were chosen, where methods differ in that."""
    hows = {m.label: None if (tuned := m.runs[0].tuned) is None else tuned["how"] for m in methods}
    chosen = {label: how for label, how in hows.items() if how is not None}
    if len(methods) > 1 and len(chosen) == 1:
        return " ".join(f"only {label} was tuned ({how})" for label, how in chosen.items())
    return "".join(_differing("", {label: how or "not tuned" for label, how in hows.items()}))


NEWCOMERS = (
    "Newcomers: clients that were kept out of training. As received: the model that all agree on after the last round; "
    "trained: after the newcomer has trained its own part of it, or tuned all of it where no part is its own."
)


def newcomer_sentences(methods: Sequence[MethodRuns]) -> list[str]:
    """Say what newcomers get with every method, mean over the seeds; nothing where nobody was kept out."""
    said = [f"{m.label} {text}" for m in methods if (text := _of(m)) is not None]
    return [f"Newcomers: {'; '.join(said)}."] if said else []


def _of(method: MethodRuns) -> str | None:
    known, metric = [run.summary["newcomers"] for run in method.runs if "newcomers" in run.summary], method.metric
    if not known or metric is None:
        return None
    received = [each["received"] for each in known if each["received"] is not None]
    own = [each["personalized"] for each in known if each["personalized"] is not None]
    if not received or not own:
        return "shares nothing that they could begin with"
    return f"{with_unit(metric, fmean(received))} as received, {with_unit(metric, fmean(own))} trained"
