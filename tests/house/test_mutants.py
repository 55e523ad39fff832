"""What `make mutants` changes, and what it leaves alone; the list of changes that no test can notice is true."""

import ast
import re
import tomllib

from mutants import EQUIVALENT, ROOMS, ROOT, file_of_tests, mutants_of, places, replaced

CODE = '''
def f(a: "3", b: int = 2) -> 4:
    """Return 5."""
    if a < b and a:
        raise ValueError(f"more than {b + 1}", 6)
    a.c = [x for x in "7" if not x]
    a.c += b | 8  # é
    print(a * b)
    return a * b


def __repr__(self):
    return 9
'''


def test_changes_are_those_of_a_line() -> None:
    lines = CODE.splitlines()
    changed = {replaced(CODE, node, new) for node, _, new in places(ast.parse(CODE))}
    pairs = (zip(lines, text.splitlines(), strict=True) for text in changed)
    assert sorted(new.strip() for pair in pairs for old, new in pair if old != new) == [
        "a.c += b | 9  # é",
        'a.c = [x for x in "7" if (not (not x))]',
        'def f(a: "3", b: int = 3) -> 4:',
        "if (a < b or a):",
        "if (a <= b) and a:",
        "if (a >= b) and a:",
        "if (not (a < b and a)):",
        "pass",
        "pass",
        "pass  # é",
        "return (a / b)",
    ]


def test_rooms_and_their_tests_are_there() -> None:
    for room, tests in ROOMS.items():
        assert (ROOT / "src/coterie" / room).is_dir()
        assert all(file_of_tests(name) for name in tests.split()), room


def test_equivalent_mutants_are_mutants_with_a_reason() -> None:
    for name, reason in tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).items():
        assert name in {mutant.name for mutant in mutants_of(name.split(": ")[0])}
        assert re.fullmatch(r"[A-Z].*\.", reason)
