"""docs/path-of-a-failing-call.md, compared with the trace of a real call."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import pytest

import mulligan
from mulligan.api import Mulligan
from mulligan.capture import call_record, run_steps
from mulligan.recover.policy import Policy

SOURCE = Path(mulligan.__file__).parent
PAGE = Path(__file__).parent.parent.parent / "docs" / "path-of-a-failing-call.md"
STOP = re.compile(
    r"^\*\*(?:(\d+)\.|(?:Classification|Redaction):) `([\w/.]+)`, `(\w+)`\*\*, called by (?:`([\w/.]+)`)?", re.MULTILINE
)
"""A file with its number, or one of the two steps that a reader need not follow into their rules."""


class Stop(NamedTuple):
    """A function that the page lists, and the listed file that calls it."""

    file: str
    function: str
    caller: str


def listed_stops() -> list[Stop]:
    return [Stop(file, function, caller) for _, file, function, caller in STOP.findall(PAGE.read_text())]


def is_listed_as_helper(file: str, text: str) -> bool:
    return f"`{file}`" in text or f"`{file.partition('/')[0]}/`" in text


class Trace:
    """Every call of a listed function from another listed file, and every file of the package that was entered."""

    def __init__(self, listed_files: set[str]) -> None:
        self._entries: dict[bool, list[Stop]] = {True: [], False: []}
        """By whether it was the thread of the caller."""
        self.direct_entries: list[Stop] = []
        """Those whose caller is the listed file itself, and not a helper on behalf of it."""
        self.files: set[str] = set()
        self.is_on = False
        self._listed_files = listed_files

    @property
    def entries(self) -> list[Stop]:
        """Those in the thread of the caller, then those in the thread of the recorder, which works at the same time."""
        return [*self._entries[True], *self._entries[False]]

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        file = self._file(frame)
        if not self.is_on or event != "call" or file is None or frame.f_code.co_name == "<module>":
            return
        self.files.add(file)
        if file in self._listed_files:
            caller = self._caller(frame)
            if caller != file:
                function = "execute_plan" if frame.f_code.co_name == "aexecute_plan" else frame.f_code.co_name
                stop = Stop(file, function, caller)
                self._entries[threading.current_thread() is threading.main_thread()].append(stop)
                if frame.f_back is not None and self._file(frame.f_back) == caller:
                    self.direct_entries.append(stop)

    @staticmethod
    def _file(frame: FrameType) -> str | None:
        path = Path(frame.f_code.co_filename)
        return path.relative_to(SOURCE).as_posix() if path.is_relative_to(SOURCE) else None

    def _caller(self, frame: FrameType) -> str:
        """The nearest listed file that called: those between only pass on."""
        back = frame.f_back
        while back is not None:
            file = self._file(back)
            if file in self._listed_files:
                return str(file)
            back = back.f_back
        return ""


@pytest.fixture(scope="module", params=["sync", "async"])
def trace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    trace = Trace({stop.file for stop in listed_stops()})
    attempts: list[str] = []
    store = tmp_path_factory.mktemp("path") / "mulligan.db"

    def answer(url: str) -> str:
        attempts.append(url)
        if len(attempts) == 1:
            raise ConnectionError("reset by peer")
        return f"page of {url}"

    async def answer_later(url: str) -> str:
        return answer(url)

    with contextlib.closing(Mulligan(store=f"sqlite:///{store}", policy=Policy(initial_backoff=0.0))) as mine:
        fetch = mine.tool(answer if request.param == "sync" else answer_later, name="fetch", effects="none")
        threading.setprofile(trace)  # before the recorder's thread starts
        sys.setprofile(trace)
        try:
            with mine.run("agent"):
                assert mine.flush(10)
                trace.is_on = True
                result = fetch("https://example.com")
                assert (result if request.param == "sync" else asyncio.run(result)) == "page of https://example.com"
                assert mine.flush(10)
                trace.is_on = False
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    assert len(attempts) == 2
    return trace


def test_a_failing_call_enters_the_listed_functions_in_the_listed_order(trace: Trace) -> None:
    stops = listed_stops()
    assert [entry for entry in dict.fromkeys(trace.entries) if entry in stops] == stops


def test_a_reader_opens_twelve_files_and_none_more_than_twice() -> None:
    files = {int(number): file for number, file, *_ in STOP.findall(PAGE.read_text()) if number}
    assert sorted(files) == list(range(1, 13))
    assert len(set(files.values())) == 12
    assert max(Counter(stop.file for stop in listed_stops()).values()) <= 2


def properties_of(module: ModuleType) -> set[str]:
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    return {name for kind in classes for name, value in vars(kind).items() if isinstance(value, property)}


@pytest.mark.parametrize("module", [call_record, run_steps], ids=["call_record", "run_steps"])
def test_the_record_of_an_attempt_is_entered_once_for_its_start_and_once_for_its_end(
    trace: Trace, module: ModuleType
) -> None:
    file = Path(str(module.__file__)).relative_to(SOURCE).as_posix()
    entered = Counter(
        entry.function
        for entry in trace.direct_entries
        if entry.file == file and entry.function not in properties_of(module)
    )
    assert set(entered) == {stop.function for stop in listed_stops() if stop.file == file}
    assert len(entered) == 2
    assert max(entered.values()) == 2, "two attempts"


def test_every_other_file_on_the_way_is_listed_as_one_that_need_not_be_opened(trace: Trace) -> None:
    text = PAGE.read_text()
    listed = {stop.file for stop in listed_stops()}
    assert sorted(file for file in trace.files - listed if not is_listed_as_helper(file, text)) == []


def test_every_file_on_the_page_exists() -> None:
    files = re.findall(r"`((?!tests/)\w+/[\w/]+\.py)`", PAGE.read_text())
    assert [file for file in files if not (SOURCE / file).exists()] == []
