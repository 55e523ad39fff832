"""The row of one round of one participant: what a run of one client would say, and what really went over the wire."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ...algorithms.base import Round, Trained
from ...core.schema import VALIDATION, Row
from ...core.tensors import Tensors, entries
from ...measure.rows import metric_row, unmeasured
from ...training.experiment import Experiment


class RoundWork(NamedTuple):
    """What a participant did in a round."""

    loss: float | None
    flops: int
    forward_flops: int
    seconds: float
    evaluation_seconds: float
    bytes_out: int
    bytes_in: int
    messages: int
    parameters: int  # of one message


NOTHING = RoundWork(None, 0, 0, 0.0, 0.0, 0, 0, 0, 0)


def work_of(
    e: Experiment, r: Round, trained: Trained, seconds: float, all_seconds: float, sent: Mapping[str, Any]
) -> RoundWork:
    """Return what a participant did; ``sent``: what its transport counted meanwhile."""
    message = e.program.message({k: v for k, v in e.model.start.items() if v.is_floating_point()})
    return RoundWork(
        float(trained.loss[0]) if int(trained.steps[0]) else None,
        sum(count * e.flops_per_sample(model) for model, count in trained.passes),
        e.forward_flops(r),
        seconds,
        all_seconds - seconds,
        sent["bytes_out"],
        sent["bytes_in"],
        sent["messages_out"],
        entries(message.values()),
    )


def row_of(alone: Experiment, t: int, values: Tensors | None, work: RoundWork = NOTHING) -> Row:
    """Return the row of round ``t``, counted from 0; without ``values`` it was not evaluated."""
    infos = alone.metrics.infos
    found = unmeasured(infos, alone.program.finetune is not None, validated=bool(alone.federation.validation))
    for i, info in enumerate(infos):
        for protocol, each in (values or {}).items():
            owned = alone.federation.validation if protocol == VALIDATION else alone.federation.test
            found |= metric_row(info, protocol, each[:, i], np.array([len(owned[0])], np.int64))
    row: Any = {  # columns that depend on the protocol, among those of a Row
        "round": t + 1,
        **found,
        "train_loss": work.loss,
        "consensus_distance": None,  # nobody has all models
        "bytes_sent": work.bytes_out,
        "parameters_sent": work.messages * work.parameters,
        "messages_sent": work.messages,
        "busiest_bytes_up": work.bytes_out,
        "busiest_bytes_down": work.bytes_in,
        "flops": work.flops,
        "forward_flops": work.forward_flops,
        "seconds": work.seconds,
        "evaluation_seconds": work.evaluation_seconds,
    }
    return row  # type: ignore[no-any-return]
