"""The page of a method, made from its docstring, its settings and one of its rounds."""

import json
import re

import tables
from coterie import algorithms
from coterie.algorithms.about import About, default
from coterie.algorithms.method import facts
from coterie.algorithms.settings import describe_settings, settings_of
from coterie.cli.show.methods import command_settings
from coterie.study.methods import own_settings
from coterie.study.presets import DATA, PRESETS
from docstrings import about, formula
from drawing import picture
from method_round import AT, CLIENTS, MODEL, MethodRound, graph, method_round
from words import LETTERS

SECTIONS = (
    "Try it",
    "Update rule",
    "Figure",
    "Settings",
    "Reference",
    "Differs from the paper in",
    "In the papers",
    "In our evidence",
)


def page(method: str) -> str:
    """Return the page in Markdown."""
    a, p = about(algorithms.builder(method)), method_round(method)
    texts = (
        try_it(method),
        recurrence(a),
        show_round(method, a, p),
        settings(method, a),
        tables.cite(a.reference),
        add_links(sentence(a.differs), method),
        papers(method),
        tables.ours(method) or "None of our studies has run this method; `coterie compare` can.",
    )
    parts = [f"## {title}\n\n{text}" for title, text in zip(SECTIONS, texts, strict=True)]
    return "\n\n".join([f"# {a.title}", f"`{method}` · {where(p)}", sentence(a.what), *parts])


def sentence(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return f"{text[0].upper()}{text[1:]}"


def add_links(text: str, here: str) -> str:
    """Return a text in which the names of other methods link to their pages."""
    names = {m.replace("-", "_"): m for m in algorithms.BUILDERS if m not in (here, "local")}
    return re.sub(
        r"(?<![\w`])([a-z_]+)(?![\w`=])", lambda m: f"[{m[1]}]({names[m[1]]}.md)" if m[1] in names else m[1], text
    )


def where(p: MethodRound) -> str:
    """Return with whom clients exchange."""
    if not p.traffic.totals.messages:
        return "alone"
    if p.W is None:
        return "with a server"
    return "between peers, directed" if "mu" in p.slots else "between peers"


KINDS = (
    "Personalized, between peers",
    "Personalized, with a server",
    "One model, between peers",
    "One model, with a server",
    "Clients of unequal capacity",
    "Not federated",
)


def kind(method: str) -> str:
    """Return which of the KINDS a method is, as its round shows."""
    p = method_round(method)
    if not p.traffic.totals.messages:
        return "Not federated"
    if p.unequal:
        return "Clients of unequal capacity"
    what = "Personalized" if p.tuned or personal_part(p) != "nothing" else "One model"
    return f"{what}, {'with a server' if p.W is None else 'between peers'}"


def kinds() -> dict[str, list[str]]:
    """Return all methods by kind."""
    return {k: [m for m in algorithms.BUILDERS if kind(m) == k] for k in KINDS}


def index() -> str:
    """Return the page of all methods."""
    rows = []
    for method, builder in algorithms.BUILDERS.items():
        a, p = about(builder), method_round(method)
        rows.append([f"[{a.title}]({method}.md)", f"`{method}`", where(p), personal_part(p), a.what])
    lead = (
        "Every page is made from the method's docstring, its settings and one of its rounds. `coterie list` shows the "
        "same names in a terminal, and `coterie list METHOD` shows one method. [Choose a method](../choose.md) says "
        "which one to use."
    )
    return f"# Methods\n\n{lead}\n\n{tables.table(['method', 'name', 'where', 'personal', 'what it does'], rows)}\n"


def personal_part(p: MethodRound) -> str:
    """Return what stays with a client, as the figure shows it."""
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
    """Return the shortest command and the shortest program."""
    staged = facts(algorithms.builder(method)).staged
    lines = [
        "import coterie as ct",
        "",
        'fed = ct.data.federate("digits", clients=6, partition="dirichlet:0.3", seed=0)',
        call(f"alg = ct.algorithms.{method.replace('-', '_')}", small(method)),
        f'model = ct.models.build("{"resnet8-bn:width=8" if staged else "small-cnn"}", fed)',
        f"run = ct.fit(model, fed, alg, rounds={6 if method == 'progfed' else 2}, progress=False)",
        "print(f\"{run.summary['personal_accuracy']['after_mix']['final']:.0%} after aggregation\")",
    ]
    code = "\n".join(lines)
    return f"```sh\ncoterie run {method}\n```\n\nor in Python, in a second or two:\n\n```python\n{code}\n```"


def call(name: str, arguments: str) -> str:
    """Return a call, on one line if it is short enough."""
    line = f"{name}({arguments})"
    return line if len(line) <= 100 else f"{name}(\n    {arguments}\n)"


def small(method: str) -> str:
    """Return arguments that suit six clients with few samples."""
    build, preset = algorithms.builder(method), PRESETS["digits"]
    known = settings_of(build)
    suited = {**preset.settings, "personal_epochs": 1, **own_settings(preset, build), "epochs": 1}
    wanted = ("lr", "personal_lr", "batch_size", "epochs", "personal_epochs", "rho", "participation", "outer_lr")
    others = ("personal_outer_lr", "keep_layers", "rank_ratio", "capacities", "clip", "finetune_lr")
    chosen = {k: suited[k] for k in (*wanted, *others) if k in known and k in suited}
    if neighbors := graph(method, known):
        chosen = {**chosen, "topology": neighbors}
        del chosen["participation"]  # everybody, as the method's own default
    return ", ".join(f"{k}={v if v is None else json.dumps(v)}" for k, v in chosen.items())


def recurrence(a: About) -> str:
    """Return the formula, and what its letters mean."""
    letters = [f"* {text}" for pattern, text in LETTERS if re.search(pattern, a.recurrence, flags=re.DOTALL)]
    return f'<div class="recurrence">{formula(a.recurrence)}</div>\n\n' + "\n".join(letters)


def show_round(method: str, a: About, p: MethodRound) -> str:
    """Return the figure, and the cost of its round."""
    how = (
        f"The figure shows round {AT + 1} of a run: {CLIENTS} clients with `{MODEL}` on digits, the settings of "
        f"`coterie run {method}`, and two neighbors each if there is no server."
    )
    return f"{picture(p, a.title)}\n\n{how} {cost(p)}"


def cost(p: MethodRound) -> str:
    """Return what the round sends, and how many gradients a step takes."""
    sent = p.traffic
    if not sent.totals.messages:
        return "The round sends nothing."
    each = sorted({m.load.parameters for m in sent.sent})
    many = f"{each[0]:,}" if len(each) == 1 else f"{each[0]:,} to {each[-1]:,}"
    text = f"The round sends {sent.totals.messages} messages of {many} parameters, {sent.totals.bytes:,} bytes in all."
    return text + (f" Every step takes {p.gradients:.3g} gradients on average." if p.gradients != 1 else "")


def settings(method: str, a: About) -> str:
    """Return the table of all settings with their defaults, those of every method last."""
    builder = algorithms.builder(method)
    values, known = algorithms.build(method).settings, describe_settings(builder)
    says = {**a.args, "topology": f"{a.args.get('topology')} See [topologies](../own-topology.md)."}
    commands = command_settings(method)
    rows = [[f"`{k}`", f"`{default(values[k])}`", f"`{default(commands[k])}`", known[k], says[k]] for k in known]
    columns = ["setting", "in Python", f"`coterie run {method}`", "takes", "meaning"]
    say = (
        "On the command line, type `--set NAME=VALUE`. The defaults in Python are those of the method's published "
        f"experiments; the commands have a [preset](../commands.md#presets) for every data set, here that of {DATA}."
    )
    return "\n\n".join([*a.notes, say, tables.table(columns, rows)])


def papers(method: str) -> str:
    """Return the published experiments that run a method, and their numbers."""
    if not tables.uses(method):
        return "None of the five papers runs this method."
    numbers = tables.published_of(method)
    folded = f'\n\n??? note "Published numbers"\n\n    {numbers.replace(chr(10), chr(10) + "    ")}' if numbers else ""
    return f"{tables.recipes_with(method)}\n\n`coterie recipe show NAME` has the details.{folded}"
