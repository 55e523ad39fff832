"""The row of one round of one participant: what a run of one client would say, and what really went over the wire."""

from collections import Counter
from collections.abc import Mapping

import numpy as np
from torch import Tensor

from ...algorithms.base import Round, Trained
from ...core.schema import VALIDATION, Row
from ...core.tensors import Tensors, entries
from ...measure.rows import Costs, RoundValues, row_of, unmeasured
from ...training.experiment import Experiment
from ..wire.transport import Transport


class Carried:
    """What a transport has carried since the last row, hence also between two rounds: some answers come that late."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._told: Counter[str] = Counter()

    def since_last(self) -> dict[str, int]:
        """Return what was carried since this was asked last."""
        counts = self._transport.snapshot()
        out = sum(counts["messages_out"].values())
        now = {"bytes_out": counts["bytes_out"], "bytes_in": counts["bytes_in"], "messages_out": out}
        since = {k: v - self._told[k] for k, v in now.items()}
        self._told.update(since)
        return since


def costs_of(
    e: Experiment, r: Round, trained: Trained, seconds: float, all_seconds: float, sent: Mapping[str, int]
) -> Costs:
    """Return what a round took at a participant; ``sent``: what its transport counted meanwhile."""
    message = e.program.message({k: v for k, v in e.model.start.items() if v.is_floating_point()})
    return Costs(
        bytes_sent=sent["bytes_out"],
        parameters_sent=sent["messages_out"] * entries(message.values()),
        messages_sent=sent["messages_out"],
        busiest_bytes_up=sent["bytes_out"],
        busiest_bytes_down=sent["bytes_in"],
        flops=sum(count * e.flops_per_sample(model) for model, count in trained.passes),
        forward_flops=e.forward_flops(r),
        seconds=seconds,
        evaluation_seconds=all_seconds - seconds,
    )


NOTHING = Costs()


def member_row(
    alone: Experiment, t: int, values: Tensors | None = None, loss: float | None = None, costs: Costs = NOTHING
) -> Row:
    """Return the row of round ``t``, counted from 0; without ``values`` it was not evaluated."""
    own, unknown = alone.federation, unmeasured(alone.program.finetune is not None, bool(alone.federation.validation))
    each: dict[str, Tensor | None] = {**unknown, **(values or {})}
    sizes = {k: np.array([len((own.validation if k == VALIDATION else own.test)[0])], np.int64) for k in each}
    return row_of(t, alone.metrics.infos, RoundValues(each, sizes), [costs], loss=loss)
