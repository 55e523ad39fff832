"""How close the factors of low-rank models came to losing a rank: block by block, and layer by layer at the end."""

from ...measure.convergence import smallest_of_layer
from ...report.charts import LOG, Chart, Figure, Measure, axis, line, line_style
from ...report.groups import Method, Setup
from ...store.folder import CONFIG
from ...submodels.lowrank import factor_pairs
from ...training.run import model_of

CLIENTS = 20  # whose factors are decomposed: hundreds of them would take minutes and say the same
BLOCK = "smallest_singular_value_block_"
ALONG = axis("singular value", **LOG)


def factors(setup: Setup) -> Chart | None:
    """Draw the smallest singular value of every low-rank layer at the end; None where no model has such layers."""
    traces = [
        line(
            method.label,
            style := line_style(place),
            list(values),
            [value if value > 0 else None for value in values.values()],  # a logarithmic axis has no 0
            mode="lines+markers",
            line={"color": style.color, "dash": style.dash, "width": 1},
            marker={"symbol": style.symbol, "size": 9},
        )
        for place, method in enumerate(setup.methods)
        if (values := _smallest_by_layer(method))
    ]
    if not traces:
        return None
    clients = min(CLIENTS, setup.config["data"]["clients"])
    caption = (
        f"Of both factors of every low-rank layer after the last round, the smallest of {clients} clients, seed "
        f"{setup.methods[0].first.seed}: near 0 a layer has lost a rank. --record singular-values follows them over "
        "the rounds."
    )
    layout = {"xaxis": axis("layer", type="category"), "yaxis": ALONG}
    return Chart("factors", "Smallest singular values", caption, {"": {"data": traces, "layout": layout}})


def _smallest_by_layer(method: Method) -> dict[str, float]:
    """Return {layer: smallest singular value}; empty for ordinary models and those that cannot be built."""
    record = method.first
    where = "the configuration" if record.folder is None else str(record.folder / CONFIG)
    model = model_of(record.config, where=where) if record.finished else None
    pairs = factor_pairs(model.module) if model is not None else ()
    clients = [c.shared | c.personal for c in record.run().clients[:CLIENTS]] if pairs else []
    return {pair.weight.removesuffix(".weight"): smallest_of_layer(pair, clients) for pair in pairs}


def blocks(setup: Setup) -> Chart | None:
    """Draw the smallest singular value of every block, where it was recorded, in one view per method."""
    views = {m.label: figure for m in setup.methods if (figure := _block_lines(m))["data"]}
    caption = (
        "Of all factors in a block of the model, after aggregation, the smallest over the clients; seed by seed a mean."
    )
    return Chart("blocks", "Smallest singular value by block", caption, views) if views else None


def _block_lines(method: Method) -> Figure:
    count = sum(key.startswith(BLOCK) for key in method.first.history[-1])
    curves = {k: method.curve(Measure("", f"{BLOCK}{k}", log=True)) for k in range(1, count + 1)}
    known = [(f"block {k}", curve) for k, curve in curves.items() if curve is not None]
    traces = [line(name, line_style(i), c.rounds, c.mean) for i, (name, c) in enumerate(known)]
    return {"data": traces, "layout": {"xaxis": axis("round"), "yaxis": ALONG}}
