"""The page itself: words and tables in HTML that need no script, and places that plotly.js draws its charts into."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from shlex import join
from typing import Any

from .. import __version__
from ..core.custom import trust_options
from ..core.extensions import extended
from ..core.schema import Config
from ..measure.compare import ALONE, Comparison
from ..training.config import repeatable
from .attendance import attendances, members_table, one_by_one, timeline
from .charts import Chart, Section, consensus, progress, recorded_measures, traffic
from .clients import distribution, labels
from .collect import Collected
from .gains import who_gains
from .graph import topology
from .groups import Method, Setup, setups
from .library import pack_json
from .record import Record
from .tables import headline_table
from .titles import data_title, page_title

_FILES = files(__package__).joinpath("files")


def page(
    collected: Collected,
    library: str,
    say: Callable[[str], object],
    reload: float | None = None,
    landscape: bool = False,
    target: float | None = None,
) -> str:
    """Return the whole HTML text, with ``library``, plotly.js, packed into it; the rest is as in ``html``."""
    target = collected.target if target is None else target
    every = setups(collected.records)
    charts: dict[str, Any] = {}
    late = None if reload else say
    extensions = extended("page")
    compared = [Comparison(s.methods, target, collected.notes) for s in every]
    added = [[part for e in extensions for part in e.of_setup(s, collected, late, landscape)] for s in every]
    bodies = [_setup(s, f"s{i}", charts, compared[i - 1], added[i - 1]) for i, s in enumerate(every, 1)]
    of_page = [part for extension in extensions for part in extension.of_page(collected)]
    title = _title(every, compared) or ", ".join(recipe["recipe"] for recipe in collected.recipes)
    parts = {
        "live": _live(collected.records, reload) + _left_out(collected.left_out),
        "contents": _contents(every),
        "setups": "\n".join(bodies),
        "added": "".join(_section(part, "", charts) for part in of_page),
        "commands": _commands(collected.commands),
    }
    return document(title, parts, charts, library)


def document(title: str, parts: Mapping[str, str], charts: Mapping[str, Any], library: str) -> str:
    """Return the whole HTML text of a page: its parts in their places, and what its charts need."""
    text: str = (_FILES / "page.html").read_text(encoding="utf-8")
    common = {
        "title": escape(title),
        "style": (_FILES / "page.css").read_text(encoding="utf-8"),
        "version": escape(__version__),
        "charts": pack_json(charts),
        "library": library,
        "script": (_FILES / "page.js").read_text(encoding="utf-8"),
    }
    places = dict.fromkeys(("live", "contents", "setups", "added", "commands"), "")
    for name, value in (places | dict(parts) | common).items():  # not string.Template: the parts hold dollars
        text = text.replace(f"<!--{name}-->", value)
    return text


def _section(section: Section, prefix: str, charts: dict[str, Any]) -> str:
    """Return what an extension adds; ``prefix``: of the names of its charts."""
    drawn = "".join(place_chart(chart, prefix + chart.name, charts) for chart in section.charts)
    about = f'<p class="caption">{_prose(section.about)}</p>' if section.about else ""
    if section.title:
        return f'<h3>{escape(section.title)}</h3>{about}<div class="tiles">{drawn}</div>'
    return drawn + about + section.html


def _title(every: Sequence[Setup], compared: Sequence[Comparison]) -> str:
    data = [data_title(s.config["data"]) for s in every]
    methods = list(dict.fromkeys(m.label for s in every for m in s.methods))
    alone = next((one.reference for c in compared for one in c.gains if one.means == ALONE), None)
    return page_title(data, methods, alone) if every else ""


def _live(records: Sequence[Record], reload: float | None) -> str:
    """Say how far the runs are, and that the page will load itself again."""
    if reload is None:
        return ""
    far = (
        f"{r.name or r.config['method']}, seed {r.seed}, after round {len(r.history)} of {r.config['rounds']}"
        for r in records
        if not r.finished
    )
    state = _prose(f"Under way, {time.strftime('%H:%M:%S')}: {'; '.join(far) or 'the next run is about to begin'}. ")
    return (
        f'<p id="live" class="caption" role="status" data-seconds="{reload:g}">{state}'
        "All numbers are those so far; this page loads itself again while <code>coterie watch</code> follows.</p>"
    )


def _left_out(why: Sequence[str]) -> str:
    """Name the runs that cannot be shown."""
    return "".join(f'<p class="caption" role="alert">A run is left out: {_prose(each)}.</p>' for each in why)


def _contents(every: Sequence[Setup]) -> str:
    if len(every) < 2:
        return ""
    items = "".join(f'<li><a href="#s{i}">{escape(s.title)}</a></li>' for i, s in enumerate(every, 1))
    return f"<nav aria-label='Set-ups'><ol>{items}</ol></nav>"


def _setup(
    setup: Setup,
    name: str,
    charts: dict[str, Any],
    comparison: Comparison,
    added: Sequence[Section],
) -> str:
    """Return everything about one set-up."""
    notes = comparison.protocol(comparison.columns, "★")
    members = attendances(setup)
    of_members = (timeline(members), one_by_one(members)) if members else ()
    clients = [distribution(setup), labels(setup), topology(setup)]
    over_rounds = (traffic(setup), consensus(setup), recorded_measures(setup))

    def plots(*wanted: Chart | None) -> str:
        return "".join(place_chart(chart, f"{name}-{chart.name}", charts) for chart in wanted if chart is not None)

    lacking = "" if all(clients[:2]) else f'<p class="caption">{_why_no_clients(setup)}</p>'
    return f"""<section id="{name}" class="setup">
<h2>{escape(setup.title)}</h2>
{_answer([*comparison.answer, *comparison.unequal])}
{plots(who_gains(comparison))}
<ul class="verdict">{_items(comparison.details)}</ul>
{headline_table(comparison)}
<div class="protocol"><h3>What these numbers are</h3><ul>{_items(notes)}</ul></div>
{members_table(members) if members else ""}
{plots(*of_members, *progress(setup), *clients)}{lacking}{plots(*over_rounds)}
{"".join(_section(part, f"{name}-", charts) for part in added)}
<section class="configuration"><h3>Configuration, and the command that repeats it</h3>
{"".join(_configuration(m) for m in setup.methods)}</section>
</section>"""


def _answer(sentences: Sequence[str]) -> str:
    """Return the sentences that the page begins with."""
    return "".join(f'<p class="answer">{_prose(sentence)}</p>' for sentence in sentences)


def _items(sentences: Sequence[str]) -> str:
    return "".join(f"<li>{_prose(sentence)}</li>" for sentence in sentences)


def _prose(sentence: str) -> str:
    """Escape a sentence; no number is parted from its percent sign."""
    return escape(sentence).replace(" %", "&nbsp;%")


def _why_no_clients(setup: Setup) -> str:
    """Say why there is no figure of the clients."""
    if not any(m.first.client_summary for m in setup.methods):
        return "These runs keep no clients.json (they are unfinished, or were made before it was written)."
    return "There is no figure of the clients' labels: their targets are no classes, or far too many."


def place_chart(chart: Chart, name: str, charts: dict[str, Any]) -> str:
    """Return the place of a chart, with buttons where it has several views, and add its data to ``charts``."""
    charts[name] = {"height": chart.height, "square": chart.square, "views": dict(chart.views)}
    choices = ""
    if len(chart.views) > 1:
        buttons = "".join(
            f'<label><input type="radio" name="{name}-view" value="{escape(view)}"{" checked" if i == 0 else ""}>'
            f"<span>{escape(view)}</span></label>"
            for i, view in enumerate(chart.views)
        )
        choices = f'<fieldset><legend class="unseen">{escape(chart.title)}: what is shown</legend>{buttons}</fieldset>'
    title, caption = escape(chart.title), escape(chart.caption)
    button = f'<button type="button" class="download" aria-label="Download as SVG: {title}">Download SVG</button>'
    return f"""<figure id="{name}"><h3>{title}</h3>{choices}
<div class="plot" role="img" aria-label="{title}. {caption}" style="height:{chart.height}px"></div>
<figcaption class="caption">{caption} {button}</figcaption></figure>"""


def _configuration(method: Method) -> str:
    seeds = ", ".join(str(run.seed) for run in method.runs)
    repeats = "\n".join(_repeats(part.folder, part.config) for run in method.runs for part in run.parts or (run,))
    return f"""<details><summary>{escape(method.label)} <small>seed {seeds}</small></summary>
<pre class="command">{escape(repeats)}</pre>
<pre>{escape(json.dumps(method.first.config, indent=2))}</pre></details>"""


def _repeats(folder: Path | None, config: Config) -> str:
    """Return the command that repeats a run, to the last bit."""
    if "peer" in config:
        return f"# the part of {config['peer']['name']}, who runs it with coterie peer --config peer.toml"
    if not repeatable(config):
        return "# made in Python with data, a module, a method, a loss or a metric of its own: repeat it from there"
    if folder is None:
        return f"# save the configuration below as config.json, then:\n{_command('config.json', config)}"
    return _command(f"{folder}/config.json", config)


def _command(path: str, config: Config) -> str:
    return join(["coterie", "run", path, *trust_options(config)])


def _commands(commands: Sequence[str]) -> str:
    if not commands:
        return ""
    lines = escape("\n".join(commands))
    return f'<section id="command"><h2>The command</h2><pre class="command">{lines}</pre></section>'
