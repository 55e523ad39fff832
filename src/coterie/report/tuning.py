"""The page of a tuning: what was tried, and how it did on validation samples."""

from html import escape
from pathlib import Path
from typing import Any

from ..core.files import write_text
from ..core.schema_several import SavedTrial, SavedTuning
from .charts import INK, Chart, Figure, axis, line, line_style
from .library import compressed_library
from .page import document, place_chart


def write_tuning(found: SavedTuning, best: int, path: Path) -> Path:
    """Write one HTML page that needs nothing else; ``best``: the place of the trial that was chosen."""
    charts: dict[str, Any] = {}
    plots = "".join(
        place_chart(chart, chart.name, charts) for chart in (by_value(found, best), over_rounds(found, best))
    )
    better = "higher" if found["higher_is_better"] else "lower"
    about = (
        f"{found['metric']} on validation samples, mean over the clients; {better} is better. These samples are "
        f"{found['validation']:g} of every client's training samples. No test sample was looked at."
    )
    body = f"""<section class="setup"><h2>{escape(title(found))}</h2>
<p class="caption">{escape(about)}</p>{_table(found, best)}{plots}</section>"""
    write_text(path, document(title(found), {"setups": body}, charts, compressed_library()))
    return path


def title(found: SavedTuning) -> str:
    """Return the heading of the page."""
    return f"{found['method']}: {len(found['trials'])} trials of {', '.join(found['grid'])}"


def by_value(found: SavedTuning, best: int) -> Chart:
    """Draw every seed's score over the values of each setting, the chosen trial marked."""
    caption = "One mark per trial and seed, over the values of one setting; the trial that was chosen is a star."
    return Chart("values", "Score by setting", caption, {key: _marks(found, best, key) for key in found["grid"]})


def _marks(found: SavedTuning, best: int, key: str) -> Figure:
    style, traces = line_style(0), []
    for name, chosen in (("tried", False), ("chosen", True)):
        each = [(t, s) for i, t in enumerate(found["trials"]) if (i == best) == chosen for s in t["scores"]]
        traces.append(
            line(
                name,
                style,
                [trial["settings"][key] for trial, _ in each],
                [score for _, score in each],
                mode="markers",
                marker={"symbol": "star" if chosen else "circle", "size": 14 if chosen else 8,
                        "color": line_style(1).color if chosen else style.color},
                text=[settings_text(trial) for trial, _ in each],
                hovertemplate="%{text}<br>%{y:.4~g}<extra></extra>",
            )
        )  # fmt: skip
    across = axis(key, type="category", categoryorder="array", categoryarray=found["grid"][key])
    return {"data": traces, "layout": {"xaxis": across, "yaxis": axis(found["metric"])}}


def over_rounds(found: SavedTuning, best: int) -> Chart:
    """Draw the scores of every trial's first seed over its rounds."""
    traces = []
    for i, trial in enumerate(found["trials"]):
        curve = trial["curves"][0] if trial["curves"] else []
        style = line_style(i)._replace(color=line_style(1).color if i == best else INK)
        more = {"opacity": 1.0 if i == best else 0.4, "showlegend": len(found["trials"]) <= 12}
        traces.append(line(settings_text(trial), style, [t for t, _ in curve], [score for _, score in curve], **more))
    figure = {"data": traces, "layout": {"xaxis": axis("round"), "yaxis": axis(found["metric"])}}
    return Chart("rounds", "Score over rounds", "The first seed of every trial; the chosen one in color.", {"": figure})


def settings_text(trial: SavedTrial) -> str:
    """Return the settings of a trial in one line.

    >>> settings_text({"settings": {"lr": "0.1", "epochs": "2"}, "scores": [], "curves": [], "ended": "done"})
    'lr=0.1, epochs=2'
    """
    return ", ".join(f"{key}={text}" for key, text in trial["settings"].items())


def _table(found: SavedTuning, best: int) -> str:
    heads = "".join(f"<th scope='col'>{escape(h)}</th>" for h in ("trial", *found["grid"], "scores", "end"))
    rows = []
    for i, trial in enumerate(found["trials"]):
        scores = ", ".join("-" if s is None else f"{s:.4g}" for s in trial["scores"]) or "-"
        cells = [str(i + 1), *trial["settings"].values(), scores, trial["ended"] + (", chosen" if i == best else "")]
        mark = "b" if i == best else "span"
        rows.append("<tr>" + "".join(f"<td><{mark}>{escape(c)}</{mark}></td>" for c in cells) + "</tr>")
    return f"<div class='scroll'><table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
