"""When a later edit makes the change that a failed edit was meant to make, at the same place of the file."""

from __future__ import annotations

import pytest

import mulligan
from mulligan.core.edit_comparison import is_same_edit
from mulligan.core.records import Step
from mulligan.core.run_links import link_recoveries

MISMATCH = "String to replace not found in file."

SAME = {
    "a misspelled word": (("hullo", "goodbye"), ("hello", "goodbye")),
    "other white space": (("\tx  = 1", "\tx  = 2"), ("    x = 1", "    x = 2")),
    "more context": (("x = 1", "x = 2"), ("def f():\n    x = 1", "def f():\n    x = 2")),
    "less context": (("def f():\n    x = 1\n    return x", "def f():\n    x = 2\n    return x"), ("x = 1", "x = 2")),
    "context on the other side": (("a()\nx = 1", "a()\nx = 2"), ("x = 1\nb()", "x = 2\nb()")),
    "inserted": (("import a", "import a\nimport b"), ("import os\nimport a", "import os\nimport a\nimport b")),
    "more context of a part of a word": (("timeout=10", "timeout=30"), ("open(timeout=10)", "open(timeout=30)")),
    "outdated text": (("total = price * 2 # twice", "total = 0"), ("total = cost * 2 # twice", "total = 0")),
    "outdated context": (
        ("def f(a, b):\n    y = a\n    x = 1\n    return y", "def f(a, b):\n    y = a\n    x = 2\n    return y"),
        ("def f(a, b):\n    y = b\n    x = 1\n    return y", "def f(a, b):\n    y = b\n    x = 2\n    return y"),
    ),
}
OTHER = {
    "another name": (("x = 1", "x = 2"), ("y = 5", "y = 6")),
    "another function": (
        ("def f():\n    return 1\n", "def f():\n    return 2\n"),
        ("def g():\n    return 1\n", "def g():\n    return 2\n"),
    ),
    "another class with the same body": (
        (
            "class A:\n    def run(self):\n        self.x = 1\n        return self.x",
            "class A:\n    def run(self):\n        self.x = 2\n        return self.x",
        ),
        (
            "class B:\n    def run(self):\n        self.x = 1\n        return self.x",
            "class B:\n    def run(self):\n        self.x = 2\n        return self.x",
        ),
    ),
    "another test with the same body": (
        (
            "it('adds', () => {\n  const a = make();\n  run(a);\n  use(1);",
            "it('adds', () => {\n  const a = make();\n  run(a);\n  use(2);",
        ),
        (
            "it('sends', () => {\n  const a = make();\n  run(a);\n  use(1);",
            "it('sends', () => {\n  const a = make();\n  run(a);\n  use(2);",
        ),
    ),
    "another key with the same values": (
        ("web:\n  image: one\n  port: 80\n  limit: 1", "web:\n  image: one\n  port: 80\n  limit: 2"),
        ("api:\n  image: one\n  port: 80\n  limit: 1", "api:\n  image: one\n  port: 80\n  limit: 2"),
    ),
    "another change of the same text": (("x = 1", "x = 2"), ("x = 1", "x = 3")),
    "the same insertion elsewhere": (("import a", "import a\nimport b"), ("import z", "import z\nimport b")),
    "another text, removed too": (("debug(a)", ""), ("debug(b)", "")),
    "the same replacement of a similar name": (("first_value", "value"), ("first_values", "value")),
    "the same replacement of another word": (("apple", "fruit"), ("pear", "fruit")),
    "the same replacement elsewhere": (("call(first, 1)", "log()"), ("run(second)", "log()")),
}


@pytest.mark.parametrize(("failed", "later"), SAME.values(), ids=SAME)
def test_same_edit_at_the_same_place_recovers_the_failed_one(failed, later):
    assert is_same_edit(failed, later)
    assert len(link(failed, later)) == 1


@pytest.mark.parametrize(("failed", "later"), OTHER.values(), ids=OTHER)
def test_edit_at_another_place_recovers_nothing(failed, later):
    assert not is_same_edit(failed, later)
    assert link(failed, later) == []


def test_same_edit_of_another_file_recovers_nothing():
    edit = ("x = 1", "x = 2")
    assert link(edit, edit, later_path="b.py") == []


def link(failed: tuple[str, str], later: tuple[str, str], later_path: str = "a.py") -> list[object]:
    failure = mulligan.classify_error(MISMATCH, tool="Edit")
    steps = [
        Step(
            run="run_1", seq=seq, call=seq, name="Edit", type="tool", outcome=outcome, failure=cause,
            arguments={"file_path": path, "old_string": old, "new_string": new},
        )
        for seq, ((old, new), outcome, cause, path) in enumerate(
            [(failed, "failure", failure, "a.py"), (later, "success", None, later_path)], start=1
        )
    ]  # fmt: skip
    return list(link_recoveries(steps))
