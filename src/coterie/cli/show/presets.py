"""``coterie list presets``: what the commands assume for each data source, from the table that they use."""

from ...data.partition import IID, NATURAL
from ...data.sources import CLIENTS, UNEQUAL
from ...study.presets import DATA, PRESETS, Preset
from ..common.console import table, wide_console
from ..common.rows_format import for_programs, print_rows

BY_SITE = f"{NATURAL} where the data name clients, else {UNEQUAL}, or {IID} where targets are numbers"
BY_SITE_CLIENTS = f"as named, else {CLIENTS}"


def show_presets(format: str) -> None:
    """Print one row per data source: its model, partition, clients and rounds; then the settings."""
    if for_programs(format):
        print_rows(format, [{"data": name, **preset._asdict()} for name, preset in PRESETS.items()])
        return
    console = wide_console()
    rows = table("data", "model", "for methods in stages", "partition", ">clients", ">rounds")
    for name, preset in PRESETS.items():
        rows.add_row(name, *cells(preset))
    console.print("Presets: what run, compare and tune assume for each --data where nothing is typed", style="bold")
    console.print(rows)
    alike: dict[str, list[str]] = {}
    for name, preset in PRESETS.items():
        alike.setdefault(", ".join(f"{key}={value}" for key, value in preset.settings.items()), []).append(name)
    for settings, names in alike.items():
        console.print(f"\nsettings for {', '.join(names)}, as far as a method has them:", style="bold")
        console.print(settings)
    console.print(
        f"\nA method may ask for others; `coterie list METHOD` has those for {DATA}. All other settings have the "
        "method's own defaults. What is typed, or is in a file, comes before a preset; Python has no presets."
    )


def cells(preset: Preset) -> tuple[str, ...]:
    """Return the row of a preset."""
    images = PRESETS.get(preset.images or "")
    model, staged = ("", "") if images is None else (f"; {name} for images" for name in (images.model, images.staged))
    divided = (preset.partition, f"{preset.clients}") if preset.partition is not None else (BY_SITE, BY_SITE_CLIENTS)
    return preset.model + model, preset.staged + staged, *divided, f"{preset.rounds}"
