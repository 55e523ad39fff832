"""``coterie personalize``."""

from pathlib import Path
from typing import cast

from ...core.units import with_unit, words
from ...data.sources import another_site
from ...export import FormatName, Personalized, check_file, personalize, save_site
from ...training.run import finished


def personalize_site(
    run: Path, data: str, out: Path, epochs: int | None, format: str | None, force: bool, data_dir: Path | None
) -> None:
    """Train the own part of a new site's model, write the model, and say what it is worth to the site."""
    kind = cast(FormatName | None, format)  # other words are refused there
    check_file(out, kind, force)
    config = finished(run).config()
    federation = another_site(config["data"], data, config.get("columns"), config["seed"], data_dir)
    (site,) = personalize(run, federation, epochs=epochs)
    save_site(run, site, out, kind, force=force)
    print(f"{config['method']} for {data}: {int(federation.sizes[0])} training samples, {_worth(site)}")
    print(f"the model is in {out}")


def _worth(site: Personalized) -> str:
    """Say what was measured of the site's model."""
    if site.metric is None or site.received is None or site.trained is None:
        return "no metric on its test samples"
    before, after = (with_unit(site.metric, value) for value in (site.received, site.trained))
    return f"{words(site.metric)} on {site.test_samples} test samples {before} as received, {after} trained"
