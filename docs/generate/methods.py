"""The page of a method, made of its docstring, its settings and a round of it."""

import json
import re

import tables
from coterie import algorithms
from coterie.algorithms.about import About, default
from coterie.algorithms.method import facts
from coterie.algorithms.settings import settings_of, takes
from coterie.cli.presets import PRESETS
from docstrings import about, formula
from drawing import picture
from played import AT, CLIENTS, MODEL, Played, graph, played
from words import LETTERS

SECTIONS = (
    "Try it",
    "The recurrence",
    "The picture",
    "Settings",
    "Reference",
    "Differs from the paper in",
    "In the papers",
    "In our evidence",
)


def page(method: str) -> str:
    """The page in Markdown."""
    a, p = about(algorithms.builder(method)), played(method)
    texts = (
        try_it(method),
        recurrence(a),
        shown(method, a, p),
        settings(method, a),
        tables.cited(a.reference),
        linked(sentence(a.differs), method),
        papers(method),
        tables.ours(method) or "No study of ours has run it; `coterie compare` does.",
    )
    parts = [f"## {title}\n\n{text}" for title, text in zip(SECTIONS, texts, strict=True)]
    return "\n\n".join([f"# {a.title}", f"`{method}` · {where(p)}", sentence(a.what), *parts])


def sentence(text: str) -> str:
    """A text that stands alone."""
    return f"{text[0].upper()}{text[1:]}"


def linked(text: str, here: str) -> str:
    """A text in which the names of other methods lead to their pages."""
    names = {m.replace("-", "_"): m for m in algorithms.BUILDERS if m not in (here, "local")}
    return re.sub(
        r"(?<![\w`])([a-z_]+)(?![\w`=])", lambda m: f"[{m[1]}]({names[m[1]]}.md)" if m[1] in names else m[1], text
    )


def where(p: Played) -> str:
    """With whom clients exchange."""
    if not p.traffic.messages:
        return "alone"
    if p.W is None:
        return "around a server"
    return "between peers, directed" if "mu" in p.slots else "between peers"


KINDS = (
    "Personal, between peers",
    "Personal, around a server",
    "One model, between peers",
    "One model, around a server",
    "Clients of unequal capacity",
    "Alone",
)


def kind(method: str) -> str:
    """Which of the KINDS a method is of, as its round shows."""
    p = played(method)
    if not p.traffic.messages:
        return "Alone"
    if p.unequal:
        return "Clients of unequal capacity"
    what = "Personal" if p.tuned or kept(p) != "nothing" else "One model"
    return f"{what}, {'around a server' if p.W is None else 'between peers'}"


def kinds() -> dict[str, list[str]]:
    """All methods, by kind."""
    return {k: [m for m in algorithms.BUILDERS if kind(m) == k] for k in KINDS}


def index() -> str:
    """All methods on one page."""
    rows = []
    for method, builder in algorithms.BUILDERS.items():
        a, p = about(builder), played(method)
        rows.append([f"[{a.title}]({method}.md)", f"`{method}`", where(p), kept(p), a.what])
    lead = (
        "Every page is made of the method's docstring, its settings and a round of it. `coterie list` shows the same "
        "names in a terminal, `coterie list METHOD` all that is known of one. Which one to take: [choose a "
        "method](../choose.md)."
    )
    return f"# Methods\n\n{lead}\n\n{tables.table(['method', 'name', 'where', 'personal', 'what it does'], rows)}\n"


def kept(p: Played) -> str:
    """What stays with a client, as the picture has it."""
    models = p.towers[p.cohort[0]]
    own = [b for b in models[-1] if b.kind == "personal"]
    if len(models) > 1:
        return "a second model"
    if "mask" in p.slots:
        return "the mask"
    if not own:
        return "nothing"
    return "everything" if len(own) == len(models[0]) else "the head" if len(own) == 1 else "the last layers"


def try_it(method: str) -> str:
    """The shortest command and the shortest program."""
    staged = facts(algorithms.builder(method)).staged
    lines = [
        "import coterie as ct",
        "",
        'fed = ct.data.federate("digits", clients=6, partition="dirichlet:0.3", seed=0)',
        call(f"alg = ct.algorithms.{method.replace('-', '_')}", small(method)),
        f'model = ct.models.build("{"resnet8-bn:width=8" if staged else "small-cnn"}", fed)',
        f"run = ct.fit(model, fed, alg, rounds={6 if method == 'progfed' else 2}, progress=False)",
        "print(f\"{run.summary['personal_accuracy']['after_mix']['final']:.0%} after mixing\")",
    ]
    code = "\n".join(lines)
    return f"```sh\ncoterie run {method}\n```\n\nor in Python, in a second or two:\n\n```python\n{code}\n```"


def call(name: str, arguments: str) -> str:
    """A call on one line where it is short enough to be read there."""
    line = f"{name}({arguments})"
    return line if len(line) <= 100 else f"{name}(\n    {arguments}\n)"


def small(method: str) -> str:
    """Arguments that suit six clients with few samples."""
    build, preset = algorithms.builder(method), PRESETS["digits"]
    known, select_engine = (
        settings_of(build),
        {**preset.settings, "personal_epochs": 1, **preset.own(build), "epochs": 1},
    )
    wanted = ("lr", "personal_lr", "batch_size", "epochs", "personal_epochs", "rho", "participation", "outer_lr")
    forms = ("personal_outer_lr", "keep_layers", "rank_ratio", "capacities", "clip", "finetune_lr")
    chosen = {k: select_engine[k] for k in (*wanted, *forms) if k in known and k in select_engine}
    if neighbors := graph(method, known):
        chosen["topology"] = neighbors
    return ", ".join(f"{k}={v if v is None else json.dumps(v)}" for k, v in chosen.items())


def recurrence(a: About) -> str:
    """The formula, and what its letters mean."""
    letters = [f"* {text}" for pattern, text in LETTERS if re.search(pattern, a.recurrence, flags=re.DOTALL)]
    return f'<div class="recurrence">{formula(a.recurrence)}</div>\n\n' + "\n".join(letters)


def shown(method: str, a: About, p: Played) -> str:
    """The picture and what the round behind it cost."""
    how = (
        f"Drawn from round {AT + 1} of the program itself: {CLIENTS} clients with `{MODEL}` on digits, the settings of "
        f"`coterie run {method}`, and two neighbors each where there is no server."
    )
    return f"{picture(p, a.title)}\n\n{how} {cost(p)}"


def cost(p: Played) -> str:
    """What the round sent, and what a step takes."""
    sent = p.traffic
    if not sent.messages:
        return "It sends nothing."
    each = sorted({m.load.parameters for m in sent.sent})
    many = f"{each[0]:,}" if len(each) == 1 else f"{each[0]:,} to {each[-1]:,}"
    text = f"It sends {sent.messages} messages of {many} parameters, {sent.bytes:,} bytes in all."
    return text + (f" Every step takes {p.gradients:.3g} gradients on average." if p.gradients != 1 else "")


def settings(method: str, a: About) -> str:
    """What is said of the settings, and all of them with their defaults; those of every method last."""
    builder = algorithms.builder(method)
    values, known = algorithms.build(method).settings, takes(builder)
    says = {**a.args, "topology": f"{a.args.get('topology')} See [topologies](../own-topology.md)."}
    rows = [[f"`{k}`", f"`{default(values[k])}`", known[k], says[k]] for k in known]
    columns = ["setting", "default", "takes", "what it is"]
    say = "On the command line: `--set NAME=VALUE`. The defaults are those of the experiments the method comes from."
    return "\n\n".join([*a.notes, say, tables.table(columns, rows)])


def papers(method: str) -> str:
    """The experiments that run it, and what they printed."""
    if not tables.uses(method):
        return "None of the five papers runs it."
    numbers = tables.published_of(method)
    folded = f'\n\n??? note "Published numbers"\n\n    {numbers.replace(chr(10), chr(10) + "    ")}' if numbers else ""
    return f"{tables.recipes_with(method)}\n\n`coterie recipe show NAME` has the details.{folded}"
