"""The licenses of everything that is installed with Coterie: `make licenses` prints them, and ends if one is not known.

Names are those of SPDX. A distribution tells its license by an expression, else by classifiers, else in a field.
"""

import re
import sys
from collections.abc import Iterable
from fnmatch import fnmatchcase
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FREE = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python", "HPND", "ISC"),
    *("LLVM-exception", "MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Python-2.0", "Unlicense", "Zlib"),
}
# NVIDIA's own license, under which its libraries come with the builds of torch for its GPUs.
OTHERWISE = ("nvidia-*", "cuda-*")

# What people write instead of the names, in lower case.
WRITTEN = {
    r"apache( software)?( license)?,?( version)?( 2(\.0)?)?": "Apache-2.0",
    r"(new |modified )?bsd( license)?": "BSD-3-Clause",
    r"bsd[- ]3[- ]clause( license)?": "BSD-3-Clause",
    r"(3-clause|three-clause) bsd( license)?": "BSD-3-Clause",
    r"bsd[- ]2[- ]clause( license)?": "BSD-2-Clause",
    r"(the )?mit( license)?": "MIT",
    r"isc( license)?( \(iscl\))?": "ISC",
    r"mozilla public license 2\.0( \(mpl 2\.0\))?": "MPL-2.0",
    r"(python software foundation|psf)( license)?": "PSF-2.0",
    r"historical permission notice and disclaimer( \(hpnd\))?": "HPND",
    r"the unlicense( \(unlicense\))?": "Unlicense",
}


def license(found: Distribution) -> str:
    """What a distribution says about itself, in the names of SPDX where they are known."""
    about = found.metadata
    if about.get("License-Expression"):
        return str(about["License-Expression"])
    prefix = "License :: OSI Approved"
    named = [c.rpartition(" :: ")[2] for c in about.get_all("Classifier", []) if c.startswith(f"{prefix} :: ")]
    return " AND ".join(map(spdx, named or [(about.get("License") or "nothing").strip().splitlines()[0]]))


def spdx(written: str) -> str:
    """A license by its name in SPDX.

    >>> spdx("MIT License"), spdx("BSD"), spdx("Apache Software License"), spdx("Homemade")
    ('MIT', 'BSD-3-Clause', 'Apache-2.0', 'Homemade')
    """
    return next((name for form, name in WRITTEN.items() if re.fullmatch(form, written.lower())), written)


def is_free(expression: str) -> bool:
    """Whether all parts of an expression are free, or one of those that may be chosen from.

    >>> is_free("BSD-3-Clause AND (GPL-3.0 OR MIT)"), is_free("MIT AND GPL-3.0"), is_free("nothing")
    (True, False, False)
    """
    while (inner := re.search(r"\(([^()]*)\)", expression)) is not None:
        expression = expression.replace(inner[0], "MIT" if is_free(inner[1]) else "other")
    choices = re.split(r"\s+OR\s+", expression)
    return any(all(part in FREE for part in re.split(r"\s+(?:AND|WITH)\s+", choice.strip())) for choice in choices)


def closure(requirements: Iterable[str]) -> tuple[dict[str, Distribution], set[str]]:
    """All that these requirements bring with them on this system, and the names of those that are not installed."""
    found: dict[str, Distribution] = {}
    absent: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(text), "") for text in requirements]
    while waiting:
        wanted, extra = waiting.pop()
        name = canonicalize_name(wanted.name)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            absent.add(name)
            continue
        new = {(name, asked) for asked in ("", *wanted.extras)} - seen
        seen |= new
        waiting += [(Requirement(text), asked) for _, asked in new for text in found[name].requires or ()]
    return found, absent


def others(found: dict[str, Distribution]) -> dict[str, str]:
    """Those whose license is not known to be free."""
    known = {name: license(d) for name, d in found.items() if not any(fnmatchcase(name, p) for p in OTHERWISE)}
    return {name: said for name, said in known.items() if not is_free(said)}


def main() -> None:
    """A line a distribution."""
    found, absent = closure(["coterie[all]"])
    for name, each in sorted(found.items()):
        print(f"{name} {each.version}: {license(each)}")
    if absent or others(found):
        sys.exit(f"not installed: {sorted(absent)}; not known to be free: {others(found)}")


if __name__ == "__main__":
    main()
