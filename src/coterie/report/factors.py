"""How close the factors of low-rank models came to losing a rank, from the saved models."""

from typing import Any

from ..measure.singular import smallest_of_layer
from ..submodels.lowrank import factor_pairs
from ..training.run import model_of
from .charts import Chart, Figure, LineStyle, styles
from .groups import Method, Setup

CLIENTS = 20  # whose factors are decomposed: hundreds of them would take minutes and say the same


def factors(setup: Setup) -> Chart | None:
    """The smallest singular value of every low-rank layer after the last round; None where no model has such layers."""
    known = [(m, s, values) for m, s in zip(setup.methods, styles(setup.methods), strict=True) if (values := _of(m))]
    if not known:
        return None
    clients = min(CLIENTS, setup.config["data"]["clients"])
    caption = (
        f"Of both factors of every low-rank layer after the last round, the smallest of {clients} clients, seed "
        f"{setup.methods[0].first.seed}: near 0 a layer has lost a rank. --record singular-values follows them over "
        "the rounds."
    )
    return Chart("factors", "Smallest singular values", caption, {"": _figure(known)})


def _of(method: Method) -> dict[str, float]:
    """{layer: smallest singular value of its factors}; empty for ordinary models and those that cannot be built."""
    record = method.first
    model = model_of(record.config) if record.finished else None
    pairs = factor_pairs(model.module) if model is not None else ()
    clients = [c.shared | c.personal for c in record.run().clients[:CLIENTS]] if pairs else []
    return {pair.weight.removesuffix(".weight"): smallest_of_layer(pair, clients) for pair in pairs}


def _figure(known: list[tuple[Method, LineStyle, dict[str, float]]]) -> Figure:
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": method.label,
            "x": list(values),
            "y": [value if value > 0 else None for value in values.values()],  # a logarithmic axis has no 0
            "line": {"color": style.color, "dash": style.dash, "width": 1},
            "marker": {"symbol": style.symbol, "size": 9},
            "hovertemplate": "<b>%{fullData.name}</b><br>%{x}: %{y:.4~g}<extra></extra>",
        }
        for method, style, values in known
    ]
    along = {"title": {"text": "singular value"}, "type": "log", "exponentformat": "power"}
    return {"data": traces, "layout": {"xaxis": {"title": {"text": "layer"}, "type": "category"}, "yaxis": along}}
