"""Where a paper and the code released with it differ: the table that is shown is also what is run."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

READINGS = ("paper", "code")


class Statement(NamedTuple):
    """What a reading has where it speaks."""

    settings: Mapping[str, Any] = {}  # of methods
    case: Mapping[str, Any] = {}  # of the clients, their data and their model
    protocol: Mapping[str, Any] = {}  # of the number that is reported
    methods: Sequence[str] | None = None  # whom the settings concern; None: all that have them
    cases: str = ""  # words of the labels of the cases that it is about

    def about(self, label: str) -> bool:
        """Whether it is about the case of that label.

        >>> [Statement(cases="clients=5").about(f"cifar10 clients={n}") for n in (5, 50)]
        [True, False]
        """
        return set(self.cases.split()) <= set(label.split())

    def concerns(self, method: str, known: Mapping[str, Any]) -> bool:
        """Whether the settings are for a method that knows these.

        >>> Statement({"lr": 0.1}).concerns("fedavg", {"lr": 0.1, "clip": None})
        True
        """
        return bool(self.settings) and (method in self.methods if self.methods else set(self.settings) <= set(known))

    def text(self) -> str:
        """What it switches, as a person reads it.

        >>> Statement({"momentum": 0.9}, methods=["dfedsam"], cases="ring").text()
        'momentum=0.9 (dfedsam; ring)'
        """
        values = ", ".join(f"{k}={_short(v)}" for k, v in {**self.settings, **self.case, **self.protocol}.items())
        about = "; ".join(filter(None, (", ".join(self.methods or ()), self.cases)))
        return f"{values} ({about})" if about else values


class Reading(NamedTuple):
    """A point on which paper and released code differ, and what we take."""

    what: str
    paper: str
    code: str
    chosen: str  # paper, code or ours
    why: str
    says: Mapping[str, Sequence[Statement]] = {}  # by paper, code or ours; where one says nothing, it has our choice
    unswitched: str | None = None  # what no reading switches, and why

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> "Reading":
        """A row of a file."""
        says = {
            reading: tuple(Statement(**said) for said in all_of_it)
            for reading, all_of_it in raw.get("says", {}).items()
        }
        return cls(**{**raw, "says": says})

    def switched(self) -> str:
        """What ``--reading`` changes about our choice, in one text.

        >>> Reading("lr", "0.1", "not stated", "paper", "-", {"paper": [Statement({"lr": 0.1})]}).switched()
        '-'
        """
        ours = self.says.get(self.chosen, ())
        other = {r: [said.text() for said in self.says.get(r, ()) if said not in ours] for r in READINGS}
        told = [f"{r}: {'; '.join(texts)}" for r, texts in other.items() if texts]
        return "; ".join([*told, *([f"not switched: {self.unswitched}"] if self.unswitched else [])]) or "-"


def _short(value: Any) -> str:
    return ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)


def merged(ours: Any, theirs: Any) -> Any:
    """A part of a case with what a reading says about it; what has parts itself keeps the others.

    >>> merged({"pad": 4, "flip": True}, {"pad": 0}), merged("iid", "pathological:2")
    ({'pad': 0, 'flip': True}, 'pathological:2')
    """
    return {**ours, **theirs} if isinstance(ours, Mapping) and isinstance(theirs, Mapping) else theirs
