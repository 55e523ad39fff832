"""What differs between methods in work and in tuning, because a difference of results may come from it."""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from .columns import MethodRuns

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
