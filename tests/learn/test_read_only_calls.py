"""Which failed calls merely looked and found nothing."""

from __future__ import annotations

from typing import Any

import pytest

from mulligan.core.failure import Failure, Kind
from mulligan.core.read_only_calls import MAX_COMMAND_CHARS
from mulligan.core.records import Step
from mulligan.learn import tracker


def failed(name: str, code: str = "file_not_found", message: str = "no such file", **fields: Any) -> Step:
    failure = Failure.of(Kind("tool", code), message)
    return Step(run="run_a", seq=1, call=1, name=name, outcome="failure", failure=failure, **fields)


def command(text: Any, name: str = "Bash", **fields: Any) -> Step:
    return failed(name, arguments={"command": text}, **fields)


@pytest.mark.parametrize(
    "step",
    [
        failed("Read"),
        failed("read_file"),
        failed("lookup", effects="none"),
        failed("lookup", "not_found", effects="none"),
        failed("search", "no_results", type="retrieval"),
        command("ls src/missing"),
        command("cat a.txt 2>/dev/null | head -3"),
        command(["bash", "-lc", "cd src && grep -n x y"], name="shell"),
        command("grep -rn needle src", code="execution_failed", message="Exit code 1"),
        command("find . -name x", code="execution_failed", message="exit status 1"),
    ],
)
def test_a_look_that_found_nothing_is_a_miss(step):
    assert tracker.is_empty_lookup(step)


@pytest.mark.parametrize(
    "step",
    [
        failed("Edit"),  # a file that is to be changed is not being looked for
        failed("lookup"),  # nobody said that it only looks
        failed("read_file", effects="once"),  # and here somebody said that it does not
        failed("Read", "permission_denied"),
        failed("lookup", "timeout", effects="none"),
        command("rm missing"),
        command("cat a.txt > b.txt"),
        command("cat $(touch x)"),
        command("ls missing; rm -r src"),
        command("ls `rm x`"),
        command("find . -name x -delete"),
        command("ls x & rm y"),
        command("cat x >/dev/nullx"),
        command(""),
        command(None),
        command([]),
        command("ls " + "x" * MAX_COMMAND_CHARS),
        command("grep -rn [ src", code="execution_failed", message="grep: Unmatched [, [^, [:, [., or [="),
        command("make", code="execution_failed", message="Exit code 1"),
        Step(run="run_a", seq=1, call=1, name="Read"),
    ],
)
def test_anything_else_is_not(step):
    assert not tracker.is_empty_lookup(step)


def test_a_tool_that_reads_is_known_by_a_word_of_its_name():
    names = ["Read", "readFile", "view_image", "cat", "open_file", "spread", "Edit", "reader_of_minds"]
    assert [tracker.reads_file(failed(name)) for name in names] == [
        True,
        True,
        True,
        True,
        True,
        False,
        False,
        False,
    ]
