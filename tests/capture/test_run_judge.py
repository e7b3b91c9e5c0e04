"""Which later call recovers a failed one, by programs of users: wrapped functions, runs, and a store on disk."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import json
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import taught
from recounting import rebuild

from mulligan import AgentError, Mulligan, build
from mulligan.contract.store import DEFAULT_TENANT, FixQuery, LessonQuery, PatternQuery, RunQuery, now
from mulligan.core.failure import SettingsError
from mulligan.core.records import ANY_FIX, RUN_SPECIFIC, AdvisedFix, Fix, History, Link
from mulligan.core.run_links import derive_status
from mulligan.record.memory_lookup import MemoryLookup
from mulligan.report import run_text
from mulligan.store.sqlite import SqliteStore

README = Path(__file__).parents[2] / "README.md"


def format_status(history: History) -> str:
    return run_text.format_status(derive_status(history.run, history.steps, history.links), history.run.end_reason)


class Program:
    """A user's program: its own mulligan, and what its store holds."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.path = folder / "kept.db"
        self.mulligan = Mulligan(store=str(self.path), home=str(folder), **settings)

    def read_runs(self) -> list[History]:
        """The runs in the store, the oldest first."""
        assert self.mulligan.flush(60)
        store = SqliteStore(self.path)
        try:
            return list(reversed(store.runs(DEFAULT_TENANT, RunQuery(limit=1000))))
        finally:
            store.close()

    def read_links(self) -> list[Link]:
        return [link for history in self.read_runs() for link in history.links]

    def read_status(self) -> str:
        """The status of the latest run, as people read it."""
        return format_status(self.read_runs()[-1])

    def read_fixes(self) -> list[Fix]:
        assert self.mulligan.flush(60)
        store = SqliteStore(self.path)
        try:
            return list(store.fixes(DEFAULT_TENANT, FixQuery(now=now(), limit=100)))
        finally:
            store.close()

    def read_bytes(self) -> bytes:
        """All bytes that it left on disk."""
        self.mulligan.flush(60)
        self.mulligan.close()
        return b"".join(path.read_bytes() for path in self.folder.rglob("*") if path.is_file())


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    program = Program(tmp_path)
    yield program
    program.mulligan.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Makes a program with other settings."""
    programs: list[Program] = []

    def start(**settings: Any) -> Program:
        programs.append(Program(tmp_path, **settings))
        return programs[-1]

    yield start
    for program in programs:
        program.mulligan.close()


def make_report(program: Program, **options: Any) -> Callable[..., str]:
    """A tool that rejects one layout and some months, in words that state no limit."""

    def report(month: str, layout: str = "tall") -> str:
        if layout == "wide":
            raise ValueError("The page is too narrow for this.")
        if month in ("2026-02", "x"):
            raise ValueError("Nothing was booked.")
        return f"{month}, {layout}"

    wrapped: Callable[..., str] = program.mulligan.tool(**options)(report)
    return wrapped


def evidence_of(links: list[Link]) -> list[tuple[str, ...]]:
    return [link.evidence for link in links]


# Loops over items


@pytest.mark.parametrize(
    "items",
    [
        ["2026-01", "2026-02", "2026-03"],
        ["2026-02", "2026-03", "2026-04"],
        ["2026-01", "2026-03", "2026-02"],
        ["2026-02", "2026-03"],
    ],
    ids=["in the middle", "first", "last", "two"],
)
@pytest.mark.parametrize("argument", ["month", "customer_id", "path", "query", "page"])
def test_loop_over_items_is_partial_and_teaches_nothing(program: Program, items: list[str], argument: str) -> None:
    def fetch(**arguments: str) -> str:
        if arguments[argument] == "2026-02":
            raise ValueError("Nothing was booked.")
        return "booked"

    tool = program.mulligan.tool(fetch)
    with program.mulligan.run("reports") as run:
        for item in items:
            with contextlib.suppress(ValueError):
                tool(**{argument: item, "unit": "EUR"})
    assert run.status == "partial"
    assert run.links() == program.read_links() == []
    assert program.read_status() == "partial"
    assert program.read_fixes() == []


def test_loop_over_items_in_many_runs_tells_no_run_the_item_of_another(program: Program) -> None:
    report = make_report(program)
    notes: list[str] = []
    for number in range(6):
        with program.mulligan.run("reports"):
            for month in ("2026-02", f"2025-{number + 1:02}"):
                try:
                    report(month)
                except ValueError as error:
                    notes += error.__notes__
        program.mulligan.flush(60)
    assert len(notes) == 6
    assert not any("In earlier runs" in note or "2025" in note for note in notes)


def test_item_that_fails_in_its_own_handler_is_not_corrected_by_the_next_item(program: Program) -> None:
    report = make_report(program)
    with program.mulligan.run("reports") as run:
        report("2026-01")
        try:
            report("2026-02")
        except ValueError:
            report("2026-03")  # a loop that goes on inside the handler: the month names items
    assert run.status == "partial"
    assert program.read_links() == []


def test_link_is_withdrawn_once_a_later_success_shows_a_loop_over_items(program: Program) -> None:
    report = make_report(program)
    with program.mulligan.run("reports") as run:
        try:
            report("2026-02")
        except ValueError:
            report("2026-03")
        assert run.status == "recovered"
        assert [link.provisional for link in program.read_links()] == [True]
        assert program.read_fixes() == []
        report("2026-04")
        assert run.status == "partial"
    assert program.read_links() == []
    assert program.read_status() == "partial"
    assert program.read_fixes() == []


def test_items_that_another_thread_looks_up_make_no_link(
    start: Callable[..., Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier_program = start()
    report = make_report(earlier_program)
    with earlier_program.mulligan.run("reports"):
        report("2026-01")
        report("2026-03")  # from now on, the month names items
    earlier_program.mulligan.close()
    is_asked, let_go = threading.Event(), threading.Event()
    look_up = MemoryLookup.item_arguments

    def look_up_slowly(self: MemoryLookup, tool: str) -> Collection[str]:
        if not is_asked.is_set():
            is_asked.set()
            let_go.wait(20)
        return look_up(self, tool)

    monkeypatch.setattr(MemoryLookup, "item_arguments", look_up_slowly)
    program = start()
    report = make_report(program)

    def fail() -> None:
        with contextlib.suppress(ValueError):
            report("x")

    with program.mulligan.run("reports") as run:
        thread = threading.Thread(target=program.mulligan.carry_run(fail))
        thread.start()
        assert is_asked.wait(20)
        try:
            report("2026-02")
        except ValueError:
            report("2026-03")
        let_go.set()
        thread.join()
    assert run.links() == program.read_links() == []


# Objects


class Host:
    """A service that answers or does not."""

    def __init__(self, is_broken: bool) -> None:
        self.is_broken = is_broken

    def ask(self, question: str = "status") -> str:
        if self.is_broken:
            raise ValueError("This host is broken.")
        return "fine"


def wrap_bound_method(program: Program, host: Host) -> Callable[..., str]:
    wrapped: Callable[..., str] = program.mulligan.tool(host.ask)
    return wrapped


def wrap_closure(program: Program, host: Host) -> Callable[..., str]:
    @program.mulligan.tool
    def ask(question: str) -> str:
        return host.ask(question)

    return ask


def wrap_default(program: Program, host: Host) -> Callable[..., str]:
    @program.mulligan.tool
    def ask(question: str, host: Host = host) -> str:
        return host.ask(question)

    return ask


def wrap_partial(program: Program, host: Host) -> Callable[..., str]:
    wrapped: Callable[..., str] = program.mulligan.tool(name="ask")(functools.partial(Host.ask, host))
    return wrapped


WRAPPINGS = [wrap_bound_method, wrap_closure, wrap_default, wrap_partial]


@pytest.mark.parametrize("wrap", WRAPPINGS)
def test_loop_over_objects_is_partial_though_arguments_are_equal(
    program: Program, wrap: Callable[[Program, Host], Callable[..., str]]
) -> None:
    with program.mulligan.run("watch") as run:
        for is_broken in (False, True, False):
            with contextlib.suppress(ValueError):
                wrap(program, Host(is_broken))("status")
    assert run.status == "partial"
    assert program.read_links() == []


@pytest.mark.parametrize("wrap", WRAPPINGS)
def test_same_object_recovers_however_often_it_is_wrapped(
    program: Program, wrap: Callable[[Program, Host], Callable[..., str]]
) -> None:
    host = Host(is_broken=True)
    with program.mulligan.run("watch") as run:
        with pytest.raises(ValueError, match="broken"):
            wrap(program, host)("status")
        host.is_broken = False
        wrap(program, host)("status")
    assert run.status == "recovered"


def test_methods_of_a_class_are_told_apart_by_their_object(program: Program) -> None:
    class Client(Host):
        @program.mulligan.tool
        def fetch(self, question: str) -> str:
            return self.ask(question)

    with program.mulligan.run("watch") as run:
        for is_broken in (True, False):
            with contextlib.suppress(ValueError):
                Client(is_broken).fetch("status")
    assert run.status == "partial"
    with program.mulligan.run("watch") as run:
        client = Client(is_broken=True)
        try:
            client.fetch("status")
        except ValueError:
            Client(is_broken=False).fetch("status")  # another client, in the handler of the first one's error
    assert run.status == "recovered"


def test_model_that_calls_the_same_tool_again_recovers_whichever_object_serves_it(program: Program) -> None:
    with program.mulligan.run("agent") as run:
        for turn, is_broken in zip(program.mulligan.turns(limit=2), (True, False), strict=True):
            turn.call([Host(is_broken).ask], "ask", {"question": "status"})
    assert run.status == "recovered"


def test_failed_call_keeps_its_object_no_longer_than_the_program_does(program: Program) -> None:
    host = Host(is_broken=True)
    reference = weakref.ref(host)
    with program.mulligan.run("watch"):
        with contextlib.suppress(ValueError):
            wrap_bound_method(program, host)("status")
        del host
        gc.collect()
        assert reference() is None


# Corrections


def test_correction_inside_the_handler_recovers(program: Program) -> None:
    report = make_report(program)
    with program.mulligan.run("reports") as run:
        try:
            report("2026-01", layout="wide")
        except ValueError:
            report("2026-01", layout="tall")
        assert program.read_links()[0].provisional
    assert run.status == "recovered"
    (link,) = program.read_links()
    assert (link.failed_call, link.recovering_call, link.evidence, link.provisional) == (1, 2, ("handler",), False)
    assert [(change.path, change.after) for change in link.changes] == [("layout", "tall")]
    assert program.read_status() == "recovered"
    assert [fix.successes for fix in program.read_fixes()] == [1]


def test_correction_after_the_handler_is_partial(program: Program) -> None:
    report = make_report(program)
    with program.mulligan.run("reports") as run:
        with contextlib.suppress(ValueError):
            report("2026-01", layout="wide")
        report("2026-01", layout="tall")
    assert run.status == "partial"
    assert program.read_links() == []
    assert program.read_fixes() == []


def test_same_arguments_recover_wherever_they_are_used_again(program: Program) -> None:
    is_open = False

    @program.mulligan.tool
    def enter(door: int) -> str:
        if not is_open:
            raise ValueError("The door is shut.")
        return "inside"

    with program.mulligan.run("visitor") as run:
        with pytest.raises(ValueError, match="shut"):
            enter(1)
        is_open = True
        enter(1)
    assert run.status == "recovered"
    assert evidence_of(program.read_links()) == [("same_arguments",)]


def test_same_value_in_another_form_recovers_after_the_handler(program: Program) -> None:
    @program.mulligan.tool(mode="observe")
    def count(limit: Any) -> int:
        if not isinstance(limit, int):
            raise TypeError("This must be a number.")
        return limit

    with program.mulligan.run("counter") as run:
        with pytest.raises(TypeError):
            count("5")
        count(5)
    assert run.status == "recovered"
    assert evidence_of(program.read_links()) == [("same_values",)]


def test_value_within_the_stated_limit_recovers_after_the_handler(program: Program) -> None:
    @program.mulligan.tool(mode="observe")
    def search(query: str, k: int) -> int:
        if k > 10:
            raise ValueError("k must be at most 10")
        return k

    with program.mulligan.run("searcher") as run:
        with pytest.raises(ValueError, match="at most"):
            search("fish", 50)
        search("fish", 7)
    assert run.status == "recovered"
    assert evidence_of(program.read_links()) == [("stated_limit",)]


# What a program says itself


def test_correcting_links_a_call_after_the_handler(program: Program) -> None:
    report = make_report(program)
    with program.mulligan.run("reports") as run:
        with pytest.raises(ValueError, match="narrow") as raised:
            report("2026-01", layout="wide")
        with program.mulligan.correcting(raised.value):
            report("2026-01", layout="tall")
        report("2026-03")
    assert run.status == "recovered"
    assert evidence_of(program.read_links()) == [("explicit",)]


def test_correcting_links_a_call_of_another_tool(program: Program) -> None:
    report = make_report(program)

    @program.mulligan.tool
    def export(year: int) -> str:
        return str(year)

    with program.mulligan.run("reports") as run:
        with pytest.raises(ValueError, match="narrow") as raised:
            report("2026-01", layout="wide")
        with program.mulligan.correcting(raised.value):
            export(2026)
    assert run.status == "recovered"
    (link,) = program.read_links()
    assert (link.failed_call, link.recovering_call, link.evidence) == (1, 2, ("explicit",))
    assert program.read_status() == "recovered"


def test_correcting_links_nothing_outside_its_block_and_nothing_for_a_strangers_error(program: Program) -> None:
    report = make_report(program)
    with program.mulligan.run("reports") as run:
        with pytest.raises(ValueError, match="narrow") as raised:
            report("2026-01", layout="wide")
        with program.mulligan.correcting(raised.value):
            pass
        with program.mulligan.correcting(ValueError("The page is too narrow for this.")):
            report("2026-01", layout="tall")
    assert run.status == "partial"
    assert program.read_links() == []


def test_correcting_says_what_it_takes(program: Program) -> None:
    with pytest.raises(SettingsError, match="the exception that a call raised"):
        program.mulligan.correcting("The page is too narrow.")  # type: ignore[arg-type]


def test_correcting_in_one_task_does_not_mark_the_calls_of_another(program: Program) -> None:
    report = make_report(program)

    async def work() -> str:
        async with program.mulligan.run("reports") as run:
            with pytest.raises(ValueError, match="narrow") as raised:
                report("2026-01", layout="wide")
            entered, done = asyncio.Event(), asyncio.Event()

            async def correct() -> None:
                async with program.mulligan.correcting(raised.value):
                    entered.set()
                    await done.wait()

            async def go_on() -> None:
                await entered.wait()
                report("2026-03", layout="small")
                done.set()

            await asyncio.gather(correct(), go_on())
            return run.status

    assert asyncio.run(work()) == "partial"


def test_item_scopes_let_items_be_corrected_differently(program: Program) -> None:
    """Without scopes two corrections that differ would show that the layout names items."""

    @program.mulligan.tool
    def fetch(order: str, layout: str) -> str:
        if layout == "wide":
            raise ValueError("The page is too narrow for this.")
        return f"{order}, {layout}"

    statuses = []
    for has_scopes in (False, True):
        with program.mulligan.run("orders") as run:
            for order, layout in (("A1", "tall"), ("B2", "small")):
                with run.item(order if has_scopes else "all"):
                    try:
                        fetch(order, "wide")
                    except ValueError:
                        fetch(order, layout)
        statuses.append(run.status)
    assert statuses == ["partial", "recovered"]


def test_no_link_crosses_an_item_scope(program: Program) -> None:
    report = make_report(program)
    with program.mulligan.run("reports") as run:
        try:
            with run.item("January"):
                report("2026-01", layout="wide")
        except ValueError:
            with run.item("February"):
                report("2026-01", layout="tall")
    assert run.status == "partial"
    assert program.read_links() == []


def test_declared_items_are_never_corrected_and_other_arguments_are(program: Program) -> None:
    report = make_report(program, items=("month",))
    with program.mulligan.run("reports") as run:
        try:
            report("2026-02")
        except ValueError:
            report("2026-03")
    assert run.status == "partial"
    with program.mulligan.run("reports") as run:
        for month in ("2026-01", "2026-03"):
            try:
                report(month, layout="wide")
            except ValueError:
                report(month, layout="tall")
    assert run.status == "recovered"
    assert evidence_of(program.read_links()) == [("handler",), ("handler",)]


def test_argument_that_named_items_in_one_run_names_them_in_the_next(program: Program) -> None:
    report = make_report(program)
    with program.mulligan.run("reports"):
        report("2026-01")
        report("2026-03")
    program.mulligan.flush(60)
    with program.mulligan.run("reports") as run:
        try:
            report("2026-02")
        except ValueError:
            report("2026-04")
    assert run.status == "partial"
    assert program.read_links() == []


# Turns of a model


def book(days: int, hotel: str) -> str:
    if days > 7:
        raise AgentError("This stay is not supported.", recoverable=False)
    return f"{days} days at the {hotel}"


@pytest.mark.parametrize(("place", "evidence"), [(0, []), (1, [("model_turn",)]), (2, [])])
def test_models_next_turn_recovers_and_neither_the_same_nor_a_later_one(
    program: Program, place: int, evidence: list[tuple[str, ...]]
) -> None:
    with program.mulligan.run("agent") as run:
        turns = list(program.mulligan.turns(limit=3))
        failure = turns[0].call([book], "book", {"days": 9, "hotel": "Plaza"}).failure
        assert failure is not None
        assert failure.kind == "tool/invalid_arguments"
        assert turns[place].call([book], "book", {"days": 5, "hotel": "Plaza"}).value == "5 days at the Plaza"
    assert evidence_of(program.read_links()) == evidence
    assert run.status == ("recovered" if evidence else "partial")


def test_models_next_turn_does_not_recover_where_no_argument_stays(program: Program) -> None:
    with program.mulligan.run("agent") as run:
        first, second = program.mulligan.turns(limit=2)
        first.call([book], "book", {"days": 9, "hotel": "Plaza"})
        second.call([book], "book", {"days": 5, "hotel": "Ritz"})
    assert run.status == "partial"


def test_loop_of_ours_links_turns_too(program: Program) -> None:
    from mulligan.testing import ScriptedModel, call

    model = ScriptedModel(call("book", days=9, hotel="Plaza"), call("book", days=5, hotel="Plaza"), "Booked.")
    assert program.mulligan.loop(model, [book], "Book a hotel.").status == "recovered"
    assert ("model_turn",) in evidence_of(program.read_links())


@pytest.mark.parametrize(
    ("message", "status"), [("This format is not supported.", "recovered"), ("Nothing was recorded.", "partial")]
)
def test_models_next_turn_recovers_only_what_the_error_rejects(program: Program, message: str, status: str) -> None:
    def play(song: str, format: str) -> str:
        if format == "ogg":
            raise ValueError(message)
        return song

    with program.mulligan.run("agent") as run:
        for turn, format in zip(program.mulligan.turns(limit=2), ("ogg", "mp3"), strict=True):
            turn.call([play], "play", {"song": "Air", "format": format})
    assert run.status == program.read_status() == status


def test_value_that_another_tool_returned_recovers_beside_other_successes(program: Program) -> None:
    @program.mulligan.tool(effects="none")
    def find_version(title: str) -> dict[str, int]:
        return {"latest_version": 4}

    @program.mulligan.tool
    def save(title: str, version: int) -> str:
        if (title, version) == ("Plan", 1):
            raise ValueError("Somebody has changed it.")
        return title

    with program.mulligan.run("editor") as run:
        save("Budget", 7)
        with contextlib.suppress(ValueError):
            save("Plan", 1)
        find_version("anything")
        save("Plan", 4)
        save("Letter", 9)
    assert run.status == program.read_status() == "recovered"
    assert [(link.evidence, link.intermediate_tools) for link in program.read_links()] == [
        (("tool_result",), ("find_version",))
    ]


@pytest.mark.parametrize(("third", "status"), [("utf-8", "recovered"), ("ascii", "partial")])
def test_usual_value_of_other_calls_names_no_item(program: Program, third: str, status: str) -> None:
    @program.mulligan.tool
    def load(file: str, encoding: str, errors: str, size: int) -> str:
        if (file, encoding) == ("b", "utf-8"):
            raise ValueError("It broke.")
        return file

    with program.mulligan.run("loader") as run:
        load("a", "utf-8", "strict", 8)
        try:
            load("b", "utf-8", "strict", 8)
        except ValueError:
            load("b", "latin-1", "replace", 8)  # two values, beside two that stay
        load("c", third, "strict", 8)
    assert run.status == program.read_status() == status


@pytest.mark.parametrize(("effects", "method"), [("none", "retry"), ("idempotent", "prerequisite")])
def test_tool_that_is_declared_to_only_read_is_no_prerequisite(program: Program, effects: Any, method: str) -> None:
    is_open: list[bool] = []

    @program.mulligan.tool(effects=effects)
    def look_at(door: int) -> str:
        is_open.append(True)
        return "a door"

    @program.mulligan.tool
    def enter(door: int) -> str:
        if not is_open:
            raise ValueError("The door is shut.")
        return "inside"

    with program.mulligan.run("agent"):
        first, second, third = program.mulligan.turns(limit=3)
        first.call([enter], "enter", {"door": 1})
        second.call([look_at], "look_at", {"door": 2})
        third.call([enter], "enter", {"door": 1})
    (link,) = program.read_links()
    assert (link.method, link.intermediate_tools) == (method, () if effects == "none" else ("look_at",))


def test_link_says_which_fixes_the_model_had_read(program: Program) -> None:
    @program.mulligan.tool(effects="none")
    def convert(number: int, unit: str) -> str:
        if unit == "EURO":
            raise ValueError("The currency is not known.")
        return f"{number} {unit}"

    answers = [
        ask_in_turns(program, convert, *({"number": number, "unit": unit} for unit in ("EURO", "EUR")))[0]
        for number in range(3)
    ]
    assert ["unit=EUR" in answer for answer in answers] == [False, False, True]
    (fix,) = program.read_fixes()
    assert [link.advice for link in program.read_links()] == [(), (), (fix.id,)]


Convert = Callable[..., str]


@pytest.fixture
def convert(program: Program) -> Convert:
    """A tool that rejects a currency, and a memory in which another one succeeded once."""

    @program.mulligan.tool(effects="none")
    def convert(number: int, unit: str) -> str:
        if unit == "EURO":
            raise ValueError("The currency is not known.")
        return f"{number} {unit}"

    ask_in_turns(program, convert, *({"number": 1, "unit": unit} for unit in ("EURO", "EUR")))
    assert program.mulligan.flush(60)
    return convert


def correct_in_handler(convert: Convert, number: int) -> BaseException:
    try:
        convert(number, "EURO")
    except ValueError as error:
        convert(number, "EUR")
        return error
    raise AssertionError


def test_success_after_a_suggestion_is_no_evidence_for_it(program: Program, convert: Convert) -> None:
    with program.mulligan.run("program"):
        correct_in_handler(convert, 5)
    assert program.mulligan.flush(60)
    with program.mulligan.run("program"):
        suggested = program.mulligan.suggest(convert, {"number": 7, "unit": "EURO"}, "The currency is not known.")
        assert suggested.suggestions[0].arguments == {"number": 7, "unit": "EUR"}
        correct_in_handler(convert, 7)
    (fix,) = program.read_fixes()
    assert program.read_links()[-1].advice == (fix.id,)
    assert (fix.successes, fix.followed) == (3, 1)
    assert AdvisedFix(0, fix.id) in program.read_runs()[-1].run.advice


def test_success_after_a_lesson_in_a_prompt_is_no_evidence_for_it(program: Program, convert: Convert) -> None:
    (fix,) = program.read_fixes()
    store = SqliteStore(program.path)
    store.save_lesson(DEFAULT_TENANT, taught.written(tool="convert", mistake="EURO", correction="Say EUR."))
    store.decide_lesson(DEFAULT_TENANT, taught.WRITTEN, "approve", now())
    store.close()
    assert "Say EUR" in program.mulligan.render_lessons("convert")
    with program.mulligan.run("program"):
        correct_in_handler(convert, 7)
    assert program.read_links()[-1].advice == (ANY_FIX,)
    assert program.read_fixes()[0].followed == fix.followed + 1


def test_success_after_a_reminder_is_no_evidence_for_what_it_says(program: Program) -> None:
    @program.mulligan.tool
    def convert(number: int, unit: str) -> str:
        if unit == "EURO":
            raise ValueError("Invalid currency EURO.")
        return f"{number} {unit}"

    session = program.mulligan.session()
    with program.mulligan.run("program", session=session), contextlib.suppress(ValueError):
        convert(7, "EURO")
    session.mark_turn()
    session.mark_compacted()
    with program.mulligan.run("program", session=session):
        assert "convert" in session.reminder()
        correct_in_handler(convert, 8)
    assert program.read_links()[-1].advice == (ANY_FIX,)


@pytest.mark.parametrize(("tool", "advice"), [("suggest_fix", (ANY_FIX,)), ("list_rates", ())])
def test_success_after_a_query_of_memory_is_no_evidence(
    program: Program, convert: Convert, tool: str, advice: tuple[str, ...]
) -> None:
    @program.mulligan.tool(effects="none", name=tool)
    def ask(question: str) -> str:
        return "use EUR"

    with program.mulligan.run("program"):
        ask("What is known about convert?")
        correct_in_handler(convert, 7)
    assert program.read_links()[-1].advice == advice


# Prerequisites


class Garage:
    """Cars that start only while the brake is pressed."""

    def __init__(self, program: Program) -> None:
        self.is_pressed = False
        self.press = program.mulligan.tool(effects="idempotent", name="press")(self._press)
        self.start = program.mulligan.tool(effects="idempotent", name="start")(self._start)

    def _press(self, level: int) -> str:
        self.is_pressed = True
        return "pressed"

    def _start(self, car: str) -> str:
        if not self.is_pressed:
            raise AgentError("The brake must be pressed first.", code="precondition")
        return "running"


def test_prerequisite_in_a_handler_teaches(program: Program) -> None:
    for car in ("red", "blue", "green", "white", "black"):
        garage = Garage(program)
        with program.mulligan.run("driver") as run:
            try:
                garage.start(car)
            except AgentError:
                garage.press(1)
                garage.start(car)
        assert run.status == "recovered"
    assert [(link.method, link.intermediate_tools, link.evidence) for link in program.read_links()] == 5 * [
        ("prerequisite", ("press",), ("same_arguments",))
    ]
    (fix,) = program.read_fixes()
    assert (fix.type, fix.successes, fix.showable) == ("prerequisite", 5, True)
    assert [(call.tool, call.arguments) for call in fix.prerequisites] == [("press", {"level": 1})]


def test_second_round_over_items_teaches_no_prerequisite(program: Program) -> None:
    for _ in range(2):
        garage = Garage(program)
        with program.mulligan.run("driver") as run:
            failed: list[str] = []
            for car in ("red", "blue"):
                try:
                    garage.start(car)
                except AgentError:
                    failed.append(car)
            garage.press(1)
            for car in failed:
                garage.start(car)
        assert run.status == "recovered"
    assert {(link.method, link.intermediate_tools) for link in program.read_links()} == {("retry", ())}
    assert [fix for fix in program.read_fixes() if fix.type == "prerequisite"] == []


# Threads and tasks


def make_count(program: Program) -> Callable[[Any], int]:
    @program.mulligan.tool(mode="observe")
    def count(limit: Any) -> int:
        if not isinstance(limit, int):
            raise TypeError("This must be a number.")
        return limit

    return count


@pytest.mark.parametrize(("has_context", "status"), [(True, "recovered"), (False, "partial")])
def test_another_form_recovers_in_a_thread_only_with_its_context(
    program: Program, has_context: bool, status: str
) -> None:
    count = make_count(program)
    with program.mulligan.run("counter") as run:
        with pytest.raises(TypeError):
            count("5")

        def work() -> None:
            if has_context:
                count(5)
            else:
                with run:
                    count(5)

        target = contextvars.copy_context().run if has_context else _call
        thread = threading.Thread(target=target, args=(work,))
        thread.start()
        thread.join()
    assert run.status == status


def _call(work: Callable[[], None]) -> None:
    work()


def test_same_arguments_recover_in_any_thread_of_the_run(program: Program) -> None:
    is_open = False

    @program.mulligan.tool
    def enter(door: int) -> str:
        if not is_open:
            raise ValueError("The door is shut.")
        return "inside"

    with program.mulligan.run("visitor") as run:
        with pytest.raises(ValueError, match="shut"):
            enter(1)
        is_open = True

        def work() -> None:
            with run:
                enter(1)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert run.status == "recovered"


def test_items_of_a_pool_are_partial(program: Program) -> None:
    report = make_report(program)

    def work(month: str) -> None:
        with contextlib.suppress(ValueError):
            report(month)

    with program.mulligan.run("reports") as run, ThreadPoolExecutor(4) as pool:
        for month in ("2026-01", "2026-02", "2026-03", "2026-04"):
            pool.submit(contextvars.copy_context().run, work, month)
    assert run.status == "partial"
    assert program.read_links() == []


def test_items_of_a_gather_are_partial_and_corrections_in_each_task_recover(program: Program) -> None:
    @program.mulligan.tool
    async def report(month: str, layout: str = "tall") -> str:
        await asyncio.sleep(0)
        if layout == "wide" or month == "2026-02":
            raise ValueError("This cannot be shown.")
        return f"{month}, {layout}"

    async def go_on(month: str) -> None:
        with contextlib.suppress(ValueError):
            await report(month)

    async def correct(month: str) -> None:
        try:
            await report(month, layout="wide")
        except ValueError:
            await report(month, layout="tall")

    async def work(task: Callable[[str], Any], months: list[str]) -> str:
        async with program.mulligan.run("reports") as run:
            await asyncio.gather(*map(task, months))
        return run.status

    months = ["2026-01", "2026-02", "2026-03"]
    assert asyncio.run(work(go_on, months)) == "partial"
    assert program.read_links() == []
    assert asyncio.run(work(correct, months[::2])) == "recovered"
    assert evidence_of(program.read_links()) == [("handler",), ("handler",)]


def test_call_in_flight_when_the_failure_became_known_recovers_nothing(program: Program) -> None:
    count_started, failure_known = threading.Event(), threading.Event()
    calls: list[int] = []

    @program.mulligan.tool
    def enter(door: int) -> str:
        calls.append(door)
        if len(calls) == 1:  # the first is the slow one, and succeeds
            count_started.set()
            failure_known.wait(30)
            return "inside"
        raise ValueError("The door is shut.")

    with program.mulligan.run("visitor") as run, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(contextvars.copy_context().run, enter, 1)
        count_started.wait(30)
        with pytest.raises(ValueError, match="shut"):
            enter(1)
        failure_known.set()
        assert slow.result() == "inside"
    assert run.status == "partial"
    assert program.read_links() == []


# Exceptions that were wrapped


class ReportError(Exception):
    pass


def raise_from(error: Exception) -> None:
    raise ReportError("no report") from error


def raise_while_handling(error: Exception) -> None:
    raise ReportError("no report")


def raise_from_nothing(error: Exception) -> None:
    raise ReportError("no report") from None


def raise_group(error: Exception) -> None:
    raise ExceptionGroup("some failed", [KeyError("x"), error])


def raise_group_from(error: Exception) -> None:
    raise ExceptionGroup("some failed", [KeyError("x")]) from error


@pytest.mark.parametrize(
    "raise_other", [raise_from, raise_while_handling, raise_from_nothing, raise_group, raise_group_from]
)
def test_correction_in_the_handler_of_an_exception_made_of_the_failure_recovers(
    program: Program, raise_other: Callable[[Exception], None]
) -> None:
    report = make_report(program)

    def try_report() -> None:
        try:
            report("2026-01", layout="wide")
        except ValueError as error:
            raise_other(error)

    with program.mulligan.run("reports") as run:
        try:
            try_report()
        except Exception:  # noqa: BLE001 - a program catches what it raised itself
            report("2026-01", layout="tall")
    assert run.status == "recovered"
    assert evidence_of(program.read_links()) == [("handler",)]


def test_correction_in_the_handler_of_a_task_group_recovers(program: Program) -> None:
    report = make_report(program)

    async def work() -> str:
        async with program.mulligan.run("reports") as run:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(asyncio.to_thread(report, "2026-01", layout="wide"))
            except* ValueError:
                report("2026-01", layout="tall")
        return run.status

    assert asyncio.run(work()) == "recovered"


def test_correction_in_the_handler_of_another_error_recovers_nothing(program: Program) -> None:
    report = make_report(program)
    with program.mulligan.run("reports") as run:
        with pytest.raises(ValueError, match="narrow"):
            report("2026-01", layout="wide")
        try:
            raise KeyError("x")
        except KeyError:
            report("2026-01", layout="tall")
    assert run.status == "partial"


# What is not stored


@pytest.mark.parametrize("settings", [{"record": "shape"}, {"level": "shared"}], ids=["shape", "shared"])
def test_links_hold_where_no_values_are_stored(start: Callable[..., Program], settings: dict[str, Any]) -> None:
    program = start(**settings)

    @program.mulligan.tool(mode="observe")
    def fetch(order: str, layout: str) -> str:
        if layout == "zebrawide":
            raise ValueError("The page is too narrow for this.")
        return "done"

    with program.mulligan.run("orders") as run:
        try:
            fetch("zebraorder one", "zebrawide")
        except ValueError:
            fetch("zebraorder one", "zebratall")
        with pytest.raises(ValueError, match="narrow"):
            fetch("zebraorder two", "zebrawide")
        fetch("zebraorder two", "zebratall")
    assert run.status == "partial"
    (link,) = program.read_links()
    assert (link.failed_call, link.recovering_call, link.evidence) == (1, 2, ("handler",))
    assert [change.path for change in link.changes] == ["layout"]
    assert b"zebra" not in program.read_bytes()


@pytest.mark.parametrize("settings", [{"record": "shape"}, {"level": "shared"}], ids=["shape", "shared"])
def test_items_are_told_apart_where_no_values_are_stored(
    start: Callable[..., Program], settings: dict[str, Any]
) -> None:
    program = start(**settings)
    report = make_report(program)
    with program.mulligan.run("reports") as run:
        for month in ("x", "y", "z"):  # of one length, so that their shapes are equal
            with contextlib.suppress(ValueError):
                report(month)
    assert run.status == "partial"
    assert program.read_links() == []
    assert program.read_status() == "partial"


# How far memory goes


def learn_layout(program: Program) -> None:
    """Two runs in which the same correction worked, for different months."""
    report = make_report(program)
    for month in ("2026-01", "2026-03"):
        with program.mulligan.run("reports"):
            try:
                report(month, layout="wide")
            except ValueError:
                report(month, layout="tall")
    program.mulligan.flush(60)


def read_note(program: Program, report: Callable[..., str], **about: Any) -> str:
    with program.mulligan.run("reports", **about), pytest.raises(ValueError, match="narrow") as raised:
        report("2026-05", layout="wide")
    return "\n".join(raised.value.__notes__)


TOLD = "In earlier runs this recovered the call: layout=tall (2 of 2 runs)."


@pytest.mark.parametrize(("learn", "is_told"), [("off", False), ("tell", True), ("repair", True)])
@pytest.mark.parametrize("place", ["settings", "run", "tool"])
def test_learn_says_whether_memory_tells(start: Callable[..., Program], place: str, learn: str, is_told: bool) -> None:
    learn_layout(start())
    program = start(**({"learn": learn} if place == "settings" else {}))
    report = make_report(program, **({"learn": learn} if place == "tool" else {}))
    note = read_note(program, report, **({"learn": learn} if place == "run" else {}))
    assert (TOLD in note) is is_told


def test_more_cautious_of_run_and_tool_holds(start: Callable[..., Program]) -> None:
    learn_layout(start())
    program = start()
    assert TOLD not in read_note(program, make_report(program, learn="off"), learn="repair")
    assert TOLD not in read_note(program, make_report(program, learn="repair"), learn="off")


@pytest.mark.parametrize("place", ["settings", "run", "tool"])
def test_memory_tells_nothing_where_calls_are_only_observed(start: Callable[..., Program], place: str) -> None:
    learn_layout(start())
    program = start(**({"mode": "observe"} if place == "settings" else {}))
    report = make_report(program, **({"mode": "observe"} if place == "tool" else {}))
    assert TOLD not in read_note(program, report, **({"mode": "observe"} if place == "run" else {}))


@pytest.mark.parametrize("place", ["settings", "run", "tool"])
@pytest.mark.parametrize(("learn", "is_run"), [("off", False), ("tell", False), ("repair", True)])
def test_learn_repair_alone_runs_an_approved_prerequisite(
    start: Callable[..., Program], place: str, learn: str, is_run: bool
) -> None:
    teacher = start()
    for car in ("red", "blue"):
        garage = Garage(teacher)
        with teacher.mulligan.run("driver"):
            try:
                garage.start(car)
            except AgentError:
                garage.press(1)
                garage.start(car)
    (fix,) = teacher.read_fixes()
    store = SqliteStore(teacher.path)
    store.decide(DEFAULT_TENANT, fix.id, approved=True, at=now())
    store.close()

    program = start(**({"learn": learn} if place == "settings" else {}))
    garage = Garage(program)
    if place == "tool":
        garage.start = program.mulligan.tool(effects="idempotent", name="start", learn=learn)(garage._start)  # type: ignore[call-overload]
    with program.mulligan.run("driver", **({"learn": learn} if place == "run" else {})):
        try:
            answer = garage.start("green")
        except AgentError:
            answer = "failed"
    assert answer == ("running" if is_run else "failed")
    assert garage.is_pressed is is_run


# The README


def first_example() -> str:
    match = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert match is not None
    return match[1]


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred repairs without a minute of waiting."""
    monkeypatch.setattr(build, "Components", functools.partial(build.Components, sleep=lambda seconds: None))


@pytest.mark.usefixtures("no_backoff")
def test_readme_example_is_repaired_a_hundred_times_in_one_process(program: Program) -> None:
    """Its first example, as a user runs it: nothing that was learned stops the repair."""
    code = compile(first_example().replace("import mulligan\n", "", 1), "README.md", "exec")
    for _ in range(100):
        exec(code, {"mulligan": program.mulligan, "__name__": "readme"})
    assert {format_status(history) for history in program.read_runs()} == {"recovered"}
    assert len(program.read_runs()) == 100


@pytest.mark.safety
@pytest.mark.usefixtures("no_backoff")
def test_readme_example_is_repaired_a_hundred_times_in_one_store(start: Callable[..., Program]) -> None:
    code = compile(first_example().replace("import mulligan\n", "", 1), "README.md", "exec")
    for _ in range(100):
        program = start()
        exec(code, {"mulligan": program.mulligan, "__name__": "readme"})
        assert program.mulligan.flush(60)
        program.mulligan.close()
    histories = start().read_runs()
    assert [format_status(history) for history in histories] == ["recovered"] * 100


# The command


def run_command(program: Program, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """`mulligan ...` in a process of its own."""
    program.mulligan.flush(60)
    command = [sys.executable, "-m", "mulligan", *words, "--store", str(program.path)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)


DECLARATIONS: list[dict[str, Any]] = [{"privileged": ["size"]}, {"destructive": True}]


@pytest.mark.safety
@pytest.mark.parametrize("declared", DECLARATIONS, ids=["privileged", "destructive"])
def test_value_of_a_declared_privileged_argument_is_never_shared(program: Program, declared: dict[str, Any]) -> None:
    @program.mulligan.tool(mode="suggest", **declared)
    def resize(volume: str, size: int) -> int:
        if size > 10:
            raise ValueError("That does not fit.")
        return size

    for volume in ("cats", "dogs", "fish", "mice"):
        with program.mulligan.run("operator"):
            try:
                resize(volume, size=50)
            except ValueError:
                resize(volume, size=10)
    (fix,) = program.read_fixes()
    assert (fix.successes, fix.showable) == (4, False)
    assert [change.after for change in fix.changes] == [RUN_SPECIFIC]
    assert run_command(program, "consolidate").returncode == 0
    assert json.loads(run_command(program, "lessons", "--source", "learned", "--json").stdout) == []


@pytest.mark.slow
def test_forget_learned_keeps_history_and_discards_fixes_and_lessons(program: Program) -> None:
    @program.mulligan.tool(mode="suggest")
    def search(query: str, size: int) -> int:
        if size > 10:
            raise ValueError("That size is not supported.")
        return size

    def correct(query: str) -> str:
        """Search for too much, then for less. Return what the first error says."""
        with program.mulligan.run("searcher"):
            try:
                search(query, size=50)
            except ValueError as error:
                search(query, size=10)
                return "\n".join(error.__notes__)
        return ""

    for query in ("cats", "dogs", "fish"):
        correct(query)
    assert [fix.successes for fix in program.read_fixes()] == [3]
    assert run_command(program, "consolidate").returncode == 0
    assert len(json.loads(run_command(program, "lessons", "--source", "learned", "--json").stdout)) == 1
    before = program.read_runs()

    done = run_command(program, "forget", "--learned", "--yes")

    assert done.returncode == 0, done.stderr
    assert run_command(program, "forget", "--learned", "--yes").returncode == 1, "nothing is left to forget"
    store = SqliteStore(program.path)
    for is_rebuilt in (False, True):
        if is_rebuilt:
            rebuild(store, DEFAULT_TENANT)
            store.consolidate(DEFAULT_TENANT, now())
        assert list(reversed(store.runs(DEFAULT_TENANT, RunQuery(limit=10)))) == before
        assert [pattern.occurrences for pattern in store.patterns(DEFAULT_TENANT, PatternQuery())] == [3]
        assert store.fixes(DEFAULT_TENANT, FixQuery(now=now(), limit=10)) == []
        assert store.lessons(DEFAULT_TENANT, LessonQuery(source="learned", now=now())) == []
    store.close()
    notes = [correct(query) for query in ("birds", "mice", "cows")]
    assert ["size=10" in note for note in notes] == [False, False, True], "it learns again from nothing"
    assert [fix.successes for fix in program.read_fixes()] == [3]


@pytest.mark.slow
@pytest.mark.parametrize("text", ["The page is too narrow for this.", "ValueError: The page is too narrow for this."])
def test_suggest_finds_what_memory_has_for_the_text_of_an_error(program: Program, text: str) -> None:
    learn_layout(program)
    arguments = {"month": "2026-05", "layout": "wide"}
    advice = program.mulligan.suggest("report", arguments, text)
    assert [suggestion.arguments for suggestion in advice.suggestions] == [{"month": "2026-05", "layout": "tall"}]
    assert advice.suggestions[0].source == "memory"
    line = json.dumps({"tool": "report", "arguments": arguments, "error": text})
    done = run_command(program, "suggest", "--json", stdin=line)
    (suggestion,) = json.loads(done.stdout)["suggestions"]
    assert (suggestion["source"], suggestion["arguments"]["layout"]) == ("memory", "tall")


@pytest.mark.slow
def test_show_says_why_a_link_holds(program: Program) -> None:
    report = make_report(program)
    with program.mulligan.run("reports") as run:
        try:
            report("2026-01", layout="wide")
        except ValueError:
            report("2026-01", layout="tall")
        shown = run_command(program, "show", run.id).stdout
        assert "linked because: made in the error handler, provisional until the run" in " ".join(shown.split())
    shown = run_command(program, "show", run.id).stdout
    assert "linked because: made in the error handler" in " ".join(shown.split())
    assert "provisional" not in shown
    (fix,) = program.read_fixes()
    assert "made in the error handler" in run_command(program, "fixes", "show", fix.id).stdout


# Values that belong to one old value, and lists that lose members


def ask_in_turns(program: Program, tool: Callable[..., Any], *calls: dict[str, Any]) -> list[str]:
    """Make these calls, one a turn of a model, until one succeeds; list what the model reads."""
    answers: list[str] = []
    with program.mulligan.run("agent"):
        for turn, arguments in zip(program.mulligan.turns(limit=9), calls, strict=False):
            outcome = turn.call([tool], tool.__name__, arguments)
            answers.append(outcome.to_message())
            if outcome.ok:
                break
    program.mulligan.flush(60)
    return answers


def test_value_is_told_for_the_value_that_it_replaced_and_for_no_other(program: Program) -> None:
    codes = {"EURO": "EUR", "YEN": "JPY"}

    @program.mulligan.tool(effects="none")
    def convert(number: int, unit: str) -> str:
        if unit in codes:
            raise ValueError("The currency is not known.")
        return f"{number} {unit}"

    def correct(number: int, name: str) -> str:
        calls = ({"number": number, "unit": unit} for unit in (name, codes[name]))
        return ask_in_turns(program, convert, *calls)[0]

    texts = [correct(number, "EURO") for number in range(3)]
    assert ["unit=EUR" in text for text in texts] == [False, False, True]
    assert "unit=" not in correct(3, "YEN")
    correct(4, "YEN")
    assert "unit=JPY" in correct(5, "YEN")
    assert "unit=EUR" in correct(6, "EURO"), "another value for YEN contradicts nothing"


def test_approved_fix_is_applied_to_the_value_that_it_replaced_and_to_no_other(program: Program) -> None:
    @program.mulligan.tool(effects="none", schema={"properties": {"unit": {"enum": ["EUR", "JPY", "EURO", "YEN"]}}})
    def convert(number: int, unit: str) -> str:
        if unit in ("EURO", "YEN"):
            raise ValueError("The currency is not known.")
        return f"{number} {unit}"

    for number in range(3):
        ask_in_turns(program, convert, {"number": number, "unit": "EURO"}, {"number": number, "unit": "EUR"})
    (fix,) = program.read_fixes()
    store = SqliteStore(program.path)
    store.decide(DEFAULT_TENANT, fix.id, True, now())
    store.close()
    with program.mulligan.run("agent"):
        assert convert(7, "EURO") == "7 EUR"
        with pytest.raises(ValueError, match="not known"):
            convert(8, "YEN")


def test_value_is_told_for_each_value_that_it_replaced_in_a_run(program: Program) -> None:
    @program.mulligan.tool(effects="none")
    def play(track: int, codec: str) -> str:
        if codec != "wav":
            raise RuntimeError("This cannot be decoded.")
        return f"{track}"

    notes: list[str] = []
    for track in range(3):
        with program.mulligan.run("player"):
            try:
                play(track, "opus")
            except RuntimeError:
                try:
                    play(track, "flac")
                except RuntimeError as error:
                    notes.append("\n".join(error.__notes__))
                    play(track, "wav")
        program.mulligan.flush(60)
    assert ["codec=wav" in note for note in notes] == [False, False, True]
    (fix,) = program.read_fixes()
    assert fix.successes == 3


def test_values_that_alternate_are_not_told(program: Program) -> None:
    countries = {"Paris": "FR", "Lyon": "FR", "Leeds": "GB", "Nice": "FR", "Brest": "FR", "Toulon": "FR"}

    @program.mulligan.tool(effects="none")
    def geocode(city: str, country: str = "") -> str:
        if not country:
            raise ValueError("The city is ambiguous: country is required.")
        return f"{city} {country}"

    for city, country in countries.items():
        ask_in_turns(program, geocode, {"city": city}, {"city": city, "country": country})
    assert "FR" not in ask_in_turns(program, geocode, {"city": "York"})[0]


@pytest.mark.parametrize(
    "message",
    ["503 Service Unavailable: the index is loading", "429 Too Many Requests", "Connection refused by peer"],
)
def test_other_value_that_worked_later_is_no_correction_where_time_helped(
    start: Callable[..., Program], message: str
) -> None:
    program = start(down_after=0)
    failures = ["first"]

    @program.mulligan.tool
    def export(table: str, rows: int) -> str:
        if failures:
            raise RuntimeError(failures.pop() and message)
        return table

    for number in range(3):
        answers = ask_in_turns(program, export, *({"table": f"t{number}", "rows": rows} for rows in (500, 100)))
        assert len(answers) == 2
        assert "rows" not in answers[0]
        failures.append("first")
    assert program.read_status() == "partial"
    assert program.read_fixes() == []


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        ([1, 2, 3], [1, 3], "partial"),
        (["a", "b"], [], "partial"),
        ("ann@x.org, ben@x.org", "ann@x.org", "partial"),
        ([{"id": 1}, {"id": 2}], [{"id": 1}], "partial"),
        ([1, 2, 2], [2, 1], "recovered"),
        ([1, 2, 3], [1, 2, 4], "recovered"),
        ("Salem, Oregon", "Salem", "recovered"),
    ],
)
def test_members_that_a_correction_leaves_out_are_lost(
    program: Program, before: object, after: object, status: str
) -> None:
    @program.mulligan.tool
    def update(records: Any, tag: str) -> str:
        if records == before:
            raise ValueError("Something is wrong with the records: 2, b, ben@x.org")
        return "done"

    with program.mulligan.run("tagger") as run:
        try:
            update(before, "late")
        except ValueError:
            update(after, "late")
    assert run.status == program.read_status() == status


def test_limit_is_not_lowered_for_a_caller_that_reads_page_by_page(program: Program) -> None:
    @program.mulligan.tool(effects="none")
    def list_records(limit: int, offset: int = 0, cursor: str = "") -> list[int]:
        if limit > 10:
            raise AgentError(f"limit must be at most 10, got {limit}.")
        return list(range(offset, offset + limit))

    def ask(**position: object) -> str:
        turn = next(iter(program.mulligan.turns(limit=1)))
        return turn.call([list_records], "list_records", {"limit": 20, **position}).to_message()

    with program.mulligan.run("agent"):
        assert "limit 20 -> 10" in ask()
        for position in ({"cursor": "abc"}, {"offset": 0}, {"offset": 20}):
            assert "Use 10 for limit instead of 20, if that serves the request" in ask(**position)
