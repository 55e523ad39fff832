"""Where a paper and the code released with it differ: the table that is shown is also what is run."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

ReadingName = Literal["paper", "code"]
READINGS: tuple[ReadingName, ...] = get_args(ReadingName)


class Statement(NamedTuple):
    """What a reading says about one point."""

    settings: Mapping[str, Any] = {}  # of methods
    case: Mapping[str, Any] = {}  # of the clients, their data and their model
    protocol: Mapping[str, Any] = {}  # of the number that is reported
    methods: Sequence[str] | None = None  # the methods that the settings are for; None: all that have them
    cases: str = ""  # words in the labels of the cases that it is about
    warning: str = ""  # what was seen when it was run

    def applies_to_case(self, label: str) -> bool:
        """Return whether the statement is about the case of that label.

        >>> [Statement(cases="clients=5").applies_to_case(f"cifar10 clients={n}") for n in (5, 50)]
        [True, False]
        """
        return set(self.cases.split()) <= set(label.split())

    def applies_to_method(self, method: str, known: Mapping[str, Any]) -> bool:
        """Return whether the settings are for a method that has the ``known`` ones.

        >>> Statement({"lr": 0.1}).applies_to_method("fedavg", {"lr": 0.1, "clip": None})
        True
        """
        return bool(self.settings) and (method in self.methods if self.methods else set(self.settings) <= set(known))

    def text(self) -> str:
        """Say what the statement switches.

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
        """Return the reading that one row of a file holds."""
        says = {reading: tuple(Statement(**s) for s in each) for reading, each in raw.get("says", {}).items()}
        return cls(**{**raw, "says": says})

    def switches(self) -> str:
        """Say what ``--reading`` changes about our choice.

        >>> Reading("lr", "0.1", "not stated", "paper", "-", {"paper": [Statement({"lr": 0.1})]}).switches()
        '-'
        """
        ours = self.says.get(self.chosen, ())
        other = {r: [statement.text() for statement in self.says.get(r, ()) if statement not in ours] for r in READINGS}
        texts = [f"{r}: {'; '.join(each)}" for r, each in other.items() if each]
        return "; ".join([*texts, *([f"not switched: {self.unswitched}"] if self.unswitched else [])]) or "-"


def _short(value: Any) -> str:
    return ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)


def merge(ours: Any, theirs: Any) -> Any:
    """Return a field of a case with what a reading says about it; a mapping keeps its other entries.

    >>> merge({"pad": 4, "flip": True}, {"pad": 0}), merge("iid", "pathological:2")
    ({'pad': 0, 'flip': True}, 'pathological:2')
    """
    return {**ours, **theirs} if isinstance(ours, Mapping) and isinstance(theirs, Mapping) else theirs
