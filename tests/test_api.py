"""Mulligan put together: settings, stores, being off, and never being the failure."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mulligan import AgentError
from mulligan.api import Mulligan, default
from mulligan.build import Components
from mulligan.contract.store import DEFAULT_TENANT, RunQuery
from mulligan.core.events import AnyEvent
from mulligan.core.failure import SettingsError
from mulligan.recover import plan
from mulligan.recover.policy import Policy
from mulligan.settings import Settings
from mulligan.store.sqlite import MemoryStore
from mulligan.testing import Sandbox, sandbox


class Mine(Exception):
    """An exception of the user's own."""


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# Configuration


def test_settings_are_read_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    mulligan = Mulligan(store="memory:")
    monkeypatch.setenv("MULLIGAN_AGENT", "set-later")
    with mulligan.run() as run:
        pass
    assert run.record.agent == "set-later"


@pytest.mark.durability
@pytest.mark.skipif(sys.platform == "darwin", reason="it has another word for it")
def test_with_fsync_in_the_environment_a_call_returns_when_the_disk_has_its_record(tmp_path: Path) -> None:
    code = """if True:
        import os
        synced = []
        really = os.fsync
        os.fsync = lambda file: synced.append(really(file))
        import mulligan
        look = mulligan.tool(lambda n: n, name="look")
        counts = [(look(n), len(synced))[1] for n in range(3)]
        print(*counts)
        """
    said = {}
    for fsync in ("0", "1"):
        env = {**os.environ, "MULLIGAN_STORE": str(tmp_path / fsync / "a.db"), "MULLIGAN_FSYNC": fsync}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True
        )
        said[fsync] = done.stdout.split()
    assert said == {"0": ["0", "0", "0"], "1": ["2", "3", "4"]}  # the name of the journal is one


def test_configure_comes_before_the_first_recorded_call(tmp_path: Path) -> None:
    mulligan = Mulligan()
    mulligan.configure(store="memory:", agent="first")
    mulligan.configure(attempts=2)
    assert mulligan.tool(lambda: 1)() == 1
    with pytest.raises(SettingsError, match="configure was called after the first recorded call"):
        mulligan.configure(attempts=3)
    assert mulligan._components is not None
    assert (mulligan._components.settings.agent, mulligan._components.settings.policy.attempts) == ("first", 2)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"agnet": "x"}, "agent"),
        ({"attempts": 0}, "attempts must be at least 1"),
        ({"policy": 3}, "policy must be a mulligan.Policy"),
        ({"mode": "loud"}, "mode must be observe, suggest or repair, got 'loud'."),
        ({"redact_patterns": ["("]}, "("),
        ({"store": "oracle://db"}, "oracle"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused_by_configure_at_once(settings: dict[str, Any], said: str) -> None:
    mulligan = Mulligan()
    with pytest.raises(SettingsError) as refused:
        mulligan.configure(**settings)
    assert said in str(refused.value)
    mulligan.configure(store="memory:")  # and what was refused is not remembered
    assert mulligan.tool(lambda: 1)() == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"atempts": 2}, "Mulligan: unknown setting 'atempts'. Did you mean attempts?"),
        ({"attempts": 0}, "Mulligan: attempts must be at least 1, got 0."),
        ({"policy": 3}, "Mulligan: policy must be a mulligan.Policy, got int."),
        ({"policy": Policy(), "attempts": 2}, "attempts is part of policy"),
        ({"redact_names": 7}, "Mulligan: redact_names must be a list of strings, got 7."),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused_where_it_is_given(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Mulligan(**settings)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "text",
    ["attempts = 0", "this is not toml", "agnet = 'x'", "redact_patterns = ['(']", "store = 'oracle://db'", "\x00\xff"],
)
def test_a_bad_settings_file_lets_calls_pass_with_one_warning(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mulligan.toml").write_text(text, encoding="latin-1")
    monkeypatch.chdir(tmp_path)
    mulligan = Mulligan()
    calls: list[int] = []

    @mulligan.tool(effects="none")
    def fetch(n: int) -> int:
        calls.append(n)
        return n

    threads = [threading.Thread(target=fetch, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with mulligan.run("agent") as run:
        assert fetch(8) == 8
    assert sorted(calls) == list(range(9))
    assert run.status == "success"
    (told,) = warnings(caplog)
    assert "calls run without recording and recovery" in told


def test_a_working_folder_that_is_gone_lets_calls_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert Mulligan(store="memory:").tool(lambda: 1)() == 1
    assert len(warnings(caplog)) <= 1


def test_two_of_them_share_neither_run_nor_store() -> None:
    first, second = Mulligan(store="memory:"), Mulligan(store="memory:")
    with first.run("first") as outer, second.run("second") as inner:
        first.tool(name="a")(lambda: 1)()
        second.tool(name="b")(lambda: 1)()
    assert inner.record.parent is None
    for mulligan, run, name in ((first, outer, "a"), (second, inner, "b")):
        mulligan.flush(30)
        assert mulligan._components is not None
        store = mulligan._components.recorder.store
        assert store is not None
        (history,) = store.runs(DEFAULT_TENANT, RunQuery())
        assert (history.run.id, [step.name for step in history.steps]) == (run.id, [name])
        mulligan.close()


# Where it is kept


def test_an_unwritable_home_is_replaced_by_the_temporary_folder_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    mulligan = Mulligan(home=str(blocked / "mulligan"))
    fetch = mulligan.tool(name="fetch")(lambda n: n)
    assert [fetch(n) for n in range(3)] == [0, 1, 2]
    assert mulligan.flush(30)
    (told,) = warnings(caplog)
    assert str(tmp_path / f"mulligan-{os.getuid()}") in told
    assert mulligan._components is not None
    assert mulligan._components.recorder.store is not None
    assert len(mulligan._components.recorder.store.runs(DEFAULT_TENANT, RunQuery())) == 3
    mulligan.close()


def test_a_damaged_store_costs_a_warning_and_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    damaged = tmp_path / "mulligan.db"
    damaged.write_bytes(b"this is no database, and it is long enough to have been read as one " * 200)
    before = damaged.read_bytes()
    mulligan = Mulligan(store=str(damaged))
    error = Mine("own")
    fetch = mulligan.tool(name="fetch")(raising(error))
    with pytest.raises(Mine) as left:
        fetch()
    assert left.value is error
    mulligan.flush(30)
    assert len(warnings(caplog)) == 1
    assert damaged.read_bytes() == before
    mulligan.close()


# Off


def shapes(mulligan: Mulligan) -> dict[str, Callable[..., Any]]:
    @mulligan.tool(effects="none")
    def plain(x: Any) -> Any:
        return x

    @mulligan.tool(effects="none")
    async def coroutine(x: Any) -> Any:
        return x

    @mulligan.tool(effects="none")
    def generator(x: Any) -> Iterator[Any]:
        got = yield x
        yield got

    @mulligan.tool(effects="none")
    async def async_generator(x: Any) -> AsyncIterator[Any]:
        got = yield x
        yield got

    return {f.__name__: f for f in (plain, coroutine, generator, async_generator)}


@pytest.mark.parametrize("how", ["environment", "variable", "argument", "configure"])
def test_everything_passes_through_when_it_is_off(
    how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mulligan = Mulligan(enabled=False) if how == "argument" else Mulligan()
    if how == "environment":
        monkeypatch.setenv("MULLIGAN", "off")
    if how == "variable":
        monkeypatch.setenv("MULLIGAN_ENABLED", "false")
    if how == "configure":
        mulligan.configure(enabled=False)
    wrapped = shapes(mulligan)

    assert wrapped["plain"](1) == 1
    assert asyncio.run(wrapped["coroutine"](2)) == 2
    stream = wrapped["generator"](3)
    assert [next(stream), stream.send(4), list(stream)] == [3, 4, []]

    async def read() -> list[Any]:
        stream = wrapped["async_generator"](5)
        return [await anext(stream), await stream.asend(6), [item async for item in stream]]

    assert asyncio.run(read()) == [5, 6, []]

    error = ConnectionError("reset")
    calls: list[int] = []

    @mulligan.tool(effects="none")
    def fails() -> None:
        calls.append(1)
        raise error

    with pytest.raises(ConnectionError) as left:
        fails()
    assert left.value is error
    assert not hasattr(error, "__notes__")
    assert calls == [1]

    with mulligan.session() as session, mulligan.run("agent", session=session) as run:
        with run.step("plan") as step:
            step.record_failure("tool", "timeout")
        for turn in mulligan.turns(limit=2):
            assert turn.call({"echo": lambda x: x}, "echo", {"x": "as it is"}).value == "as it is"
            assert turn.call({"fails": fails}, "fails").answer["error"] == "tool/connection_error"
            assert asyncio.run(turn.acall({"fails": fails}, "fails")).answer["error"] == "tool/connection_error"
            assert turn.call({"echo": len}, "other", {}).answer["error"] == "tool/unknown_tool"
        session.mark_compacted()
        assert session.reminder() == ""
    assert run.status == "partial"
    assert mulligan.drain_notes() == []
    assert mulligan.classify_error(TimeoutError("late")).kind == "tool/timeout"
    assert mulligan.flush(30)
    mulligan.close()
    assert warnings(caplog) == []
    assert list(Path(os.environ["HOME"]).rglob("*")) == []


# Never the failure


def raising(error: BaseException) -> Callable[..., Any]:
    def fetch(*args: Any, **kwargs: Any) -> Any:
        raise error

    return fetch


def broken(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("a part of ours is broken")


def with_parts(**parts: Any) -> Mulligan:
    mulligan = Mulligan()
    mulligan._components = Components(
        Settings(store="memory:", policy=Policy(initial_backoff=0, down_after=0)),
        open_store=parts.pop("opening", MemoryStore),
        **parts,
    )
    return mulligan


def mulligan_whose(part: str, monkeypatch: pytest.MonkeyPatch) -> Mulligan:
    """One with a part that raises whenever it is used."""
    match part:
        case "classifier" | "lookup_precedents" | "publish" | "timer" | "clock" | "random" | "sleep" | "async_sleep":
            return with_parts(**{"classify" if part == "classifier" else part: broken})
        case "plan" | "Prompt.for_arguments" | "Prompt.note" | "Prompt.exception_note" | "Prompt.answer":
            choose = "mulligan.recover.plan.ToolRecovery.choose_next_attempt"
            monkeypatch.setattr(choose if part == "plan" else f"mulligan.prompt.{part}", broken)
        case "redaction":
            monkeypatch.setattr("mulligan.core.events.redact_event", broken)
        case "store":
            return with_parts(opening=broken)
        case "schema":
            monkeypatch.setattr("mulligan.recover.schema.CompiledSchema.find_violations", broken)
            monkeypatch.setattr("mulligan.capture.signature.annotation_to_schema", broken)
        case "recorder":
            mulligan = with_parts()
            assert mulligan._components is not None
            mulligan._components.stream.set_sink(broken)
            return mulligan
        case "listener":
            mulligan = with_parts()
            mulligan.add_listener(broken, thread="caller")
            mulligan.add_listener(broken)
            return mulligan
        case _:
            raise AssertionError(part)
    return with_parts()


PARTS = (
    "classifier lookup_precedents publish random sleep async_sleep plan Prompt.for_arguments Prompt.note "
    "Prompt.exception_note Prompt.answer redaction store schema recorder listener"
).split()


@pytest.mark.parametrize("part", PARTS)
def test_whatever_part_of_ours_is_broken_the_functions_own_result_comes_out(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mulligan = mulligan_whose(part, monkeypatch)
    wrapped = shapes(mulligan)
    thing = object()
    assert wrapped["plain"](thing) is thing
    assert asyncio.run(wrapped["coroutine"](thing)) is thing
    stream = wrapped["generator"](thing)
    assert next(stream) is thing
    assert stream.send(7) == 7

    async def read() -> list[Any]:
        return [item async for item in wrapped["async_generator"](thing)]

    assert asyncio.run(read()) == [thing, None]
    with mulligan.run("agent") as run, run.step("plan"):
        assert wrapped["plain"](thing) is thing


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("error", [Mine("own"), ConnectionError("reset"), AgentError("n must be 5 or less.")], ids=repr)
def test_whatever_part_of_ours_is_broken_the_functions_own_exception_comes_out(
    part: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    mulligan = mulligan_whose(part, monkeypatch)
    error.__dict__.pop("__notes__", None)

    @mulligan.tool(effects="none", policy=Policy(attempts=2))
    def plain(n: int) -> None:
        raise error

    @mulligan.tool(effects="none", policy=Policy(attempts=2))
    async def coroutine(n: int) -> None:
        raise error

    @mulligan.tool(effects="none", policy=Policy(attempts=2))
    def generator(n: int) -> Iterator[int]:
        raise error
        yield

    def in_a_run(n: int) -> None:
        with mulligan.run("agent") as run, run.step("plan"):
            plain(n)

    for call in (plain, lambda n: asyncio.run(coroutine(n)), lambda n: list(generator(n)), in_a_run):
        with pytest.raises(type(error)) as left:
            call(50)
        assert left.value is error
    for turn in mulligan.turns(limit=1):
        assert turn.call([plain], "plain", {"n": 50}).failure
        assert asyncio.run(turn.acall([coroutine], "coroutine", {"n": 50})).failure


def test_a_broken_wait_does_not_turn_into_a_retry_without_one() -> None:
    mulligan = with_parts(sleep=broken, random=lambda: 0.0)
    calls: list[int] = []

    @mulligan.tool(effects="none", policy=Policy(initial_backoff=0.1))
    def fetch() -> None:
        calls.append(1)
        raise ConnectionError("reset")

    with pytest.raises(ConnectionError):
        fetch()
    assert calls == [1]


def test_a_broken_plan_is_told_once_in_the_log_and_on_the_exception(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mulligan = mulligan_whose("plan", monkeypatch)
    for _ in range(3):
        with pytest.raises(Mine) as left:
            mulligan.tool(raising(Mine("own")))()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "recovery failed with an internal error" in left.value.__notes__[0]


def test_a_plan_that_cannot_even_begin_leaves_the_call_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_plan(*about: Any) -> plan.RecoveryMoves:
        raise RuntimeError("a part of ours is broken")
        yield

    monkeypatch.setattr("mulligan.capture.call.plan_recovery", no_plan)
    mulligan = with_parts()
    calls: list[int] = []
    assert mulligan.tool(lambda n: calls.append(n))(1) is None
    assert calls == [1]
    with pytest.raises(Mine):
        mulligan.tool(raising(Mine("own")))()


class Hostile:
    """An object that answers every question with an exception."""

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("do not touch me")

    __eq__ = __ne__ = __repr__ = __str__ = __bool__ = __iter__ = __len__ = __getitem__ = __contains__ = _refuse
    __hash__ = __format__ = __int__ = __float__ = __index__ = __bytes__ = __reduce_ex__ = __deepcopy__ = _refuse

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"do not ask for {name}")


class HostileError(Exception):
    __str__ = __repr__ = Hostile._refuse  # type: ignore[assignment]


@dataclass(frozen=True)
class FrozenError(Exception):
    code: int = 7


def test_objects_that_cannot_be_looked_at_pass_as_arguments_and_results() -> None:
    rehearsal = Sandbox()
    thing = Hostile()
    wrapped = shapes(rehearsal.mulligan)
    assert wrapped["plain"](thing) is thing
    assert asyncio.run(wrapped["coroutine"](thing)) is thing
    assert next(wrapped["generator"](thing)) is thing
    with pytest.raises(ConnectionError):
        rehearsal.mulligan.tool(effects="none")(raising(ConnectionError("reset")))(thing, key=thing)
    with pytest.raises(AgentError):
        rehearsal.mulligan.tool(raising(AgentError("n must be 5 or less.")))(thing, n=thing)
    for turn in rehearsal.mulligan.turns(limit=1):
        assert turn.call({"f": lambda n: n}, "f", {"n": thing}).value is thing
        assert turn.call({"f": len}, "f", thing).failure


@pytest.mark.parametrize("error", [HostileError("x"), FrozenError(), ExceptionGroup("several", [Mine("own")])])
def test_exceptions_that_cannot_be_read_or_changed_come_out_as_they_are(error: Exception) -> None:
    rehearsal = Sandbox()
    mulligan = rehearsal.mulligan

    @mulligan.tool
    def generator() -> Iterator[int]:
        yield 1
        raise error

    def in_a_run() -> None:
        with mulligan.run("agent") as run, run.step("plan"):
            mulligan.tool(raising(error))()

    for call in (mulligan.tool(raising(error)), lambda: list(generator()), in_a_run):
        with pytest.raises(type(error)) as left:
            call()
        assert left.value is error
    for turn in mulligan.turns(limit=1):
        assert turn.call({"f": raising(error)}, "f").failure


def test_a_listener_that_raises_does_not_keep_the_others_from_hearing() -> None:
    mulligan = with_parts()
    heard: list[AnyEvent] = []
    mulligan.add_listener(broken, thread="caller")
    end = mulligan.add_listener(heard.append, thread="caller")
    mulligan.tool(lambda: 1)()
    names = [event.name for event in heard]
    assert names == ["run.started", "step.started", "step.ended", "run.ended"]
    end()
    mulligan.tool(lambda: 1)()
    assert len(heard) == 4


# import mulligan


def test_every_public_name_is_there_and_is_listed() -> None:
    import mulligan

    for name in mulligan.__all__:
        assert getattr(mulligan, name) is getattr(mulligan, name)
        assert dir(mulligan).count(name) == 1
    assert mulligan.__all__ == sorted(mulligan.__all__)
    assert mulligan.tool.__self__ is default  # type: ignore[attr-defined]


def test_a_name_that_is_not_there_is_missed_in_the_usual_way() -> None:
    import mulligan

    with pytest.raises(AttributeError, match="module 'mulligan' has no attribute 'tol'"):
        mulligan.tol  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(mulligan, "__path_of_its_own__")
    with pytest.raises(ImportError, match="cannot import name 'tol'"):
        from mulligan import tol  # type: ignore[attr-defined]  # noqa: F401


def test_no_public_name_is_that_of_a_module() -> None:
    import mulligan

    folder = Path(mulligan.__file__).parent
    modules = {path.stem for path in folder.glob("*.py")} | {path.name for path in folder.iterdir() if path.is_dir()}
    assert modules.isdisjoint(mulligan.__all__)


@pytest.mark.slow
def test_importing_mulligan_imports_nothing_until_a_name_is_used() -> None:
    program = (
        "import sys, mulligan; before = {n for n in sys.modules if n.startswith('mulligan')};"
        "assert before == {'mulligan'}, before;"
        "mulligan.tool; assert 'mulligan.api' in sys.modules;"
        "assert not {'asyncio', 'sqlite3', 'click', 'jsonschema_rs'} & set(sys.modules), sys.modules"
    )
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


def one(messages: Any) -> str:
    return "Hello."


def test_what_cannot_be_meant_is_refused_in_a_sentence():
    other = default.tool(name="one")(lambda query: query)
    with sandbox():
        for said, wrong in (
            ("A listener must be a function", lambda: default.add_listener(5)),
            (
                'thread must be "recorder" or "caller", got \'later\'',
                lambda: default.add_listener(print, thread="later"),
            ),
            ("The id of a session must be a string, got 7", lambda: default.session(7)),
            ("session must be a mulligan.session", lambda: default.run("agent", session=7)),
            ("Invalid messages of type int", lambda: default.loop(one, [], 7)),
            (
                "Invalid tools 7. Use a list of functions, or a dict with their names.",
                lambda: default.loop(one, 7, "Hello."),
            ),
            ("Invalid tool 7. Use a function.", lambda: default.loop(one, [7], "Hello.")),
            ("Two tools are named 'one'", lambda: default.loop(one, [one, other], "Hello.")),
        ):
            with pytest.raises(SettingsError, match=said):
                wrong()
        assert default.loop(one, [one, one], "Hello.").text == "Hello."


@pytest.mark.parametrize("method", [default.tool, default.model])
def test_the_signature_of_a_decorator_shows_its_options(method: Any) -> None:
    first, *options = inspect.signature(method).parameters.values()
    assert (first.name, options[0].name, options[-1].name) == ("function", "name", "circuit_breaker")
    assert {option.kind for option in options} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize(
    ("method", "option"),
    [(default.tool, "nme"), (default.tool, "server"), (default.tool, "model"), (default.model, "verify")],
)
def test_a_decorator_refuses_options_that_it_does_not_have(method: Any, option: str) -> None:
    with pytest.raises(TypeError, match=rf"\(\) got an unexpected keyword argument '{option}'"):
        method(**{option: None})


def test_a_misspelled_option_of_a_decorator_gets_the_right_name() -> None:
    with pytest.raises(TypeError, match=r"'attempts'\. Use policy=mulligan\.Policy\(attempts=\.\.\.\)\."):
        default.tool(attempts=0)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"'efects'\. Did you mean 'effects'\?"):
        default.tool(efects="none")  # type: ignore[call-overload]
