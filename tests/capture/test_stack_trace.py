"""The exception class and the stack trace of a failed call: what is recorded, within which limits, and for whom."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mulligan
from mulligan.capture.stack_trace import MAX_TRACE_CHARS, describe_exception
from mulligan.core.failure import Failure
from mulligan.core.records import encode
from mulligan.testing import Sandbox, assert_sanitized, sandbox

HERE = "test_stack_trace.py:"
TOKEN = "gh" + "p_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


class OrderError(Exception):
    pass


def recorded_failure(played: Sandbox, function: Callable[..., Any], *args: Any, **options: Any) -> Failure:
    """Return the stored failure of a tool that raises."""
    with pytest.raises(Exception):  # noqa: B017, PT011 - any exception of the tool
        mulligan.tool(**{"name": "tool", **options})(function)(*args)
    failure = played.runs[-1].steps[0].failure
    assert failure is not None
    return failure


def compile_function(name: str, body: str, file: str) -> Callable[..., Any]:
    """Return a function whose code claims to be in this file."""
    names: dict[str, Any] = {"__name__": "app"}
    exec(compile(f"def {name}(*args):\n    {body}\n", file, "exec"), names)
    function: Callable[..., Any] = names[name]
    return function


def raise_order_error(number: int = 7) -> None:
    raise OrderError(f"order {number} has no price")


# Content


def test_class_and_frames_of_an_exception_are_recorded_nearest_first(played: Sandbox) -> None:
    def price(number: int) -> None:
        raise_order_error(number)

    failure = recorded_failure(played, price, 7)

    assert failure.exception == "tests.capture.test_stack_trace.OrderError"
    frames = failure.trace.splitlines()
    assert [frame.rpartition(" in ")[2] for frame in frames[:4]] == [
        "raise_order_error",
        "test_class_and_frames_of_an_exception_are_recorded_nearest_first.price",
        "recorded_failure",
        "test_class_and_frames_of_an_exception_are_recorded_nearest_first",
    ]
    assert all(frame.startswith("  ") and HERE in frame for frame in frames[:4])


def test_frames_have_the_line_of_the_error(played: Sandbox) -> None:
    failure = recorded_failure(played, compile_function("pay", "x = 1\n    raise ValueError(x)", "/srv/shop/pay.py"))
    assert failure.trace.splitlines()[0] == "  /srv/shop/pay.py:3 in pay"


def test_class_of_a_built_in_exception_has_no_module(played: Sandbox) -> None:
    assert recorded_failure(played, dict[str, int]().__getitem__, "key").exception == "KeyError"
    assert recorded_failure(played, json.loads, "{").exception == "json.decoder.JSONDecodeError"


def test_library_frames_follow_and_a_wrapped_library_function_shows_its_caller(played: Sandbox) -> None:
    first, second, *others = recorded_failure(played, json.loads, "{").trace.splitlines()
    assert HERE in first
    assert first.endswith(" in recorded_failure")
    assert HERE in second
    libraries = [frame for frame in others if frame.startswith("  library ")]
    assert libraries[0].startswith("  library json/decoder.py:")
    assert libraries[-1].endswith(" in loads")


def test_frames_of_mulligan_are_left_out(played: Sandbox) -> None:
    inner = mulligan.tool(name="inner")(raise_order_error)
    failure = recorded_failure(played, lambda: inner(8))
    assert all(HERE in frame or "library " in frame or "..." in frame for frame in failure.trace.splitlines())
    assert failure.trace.splitlines()[0].endswith(" in raise_order_error")


def test_causes_and_contexts_follow_with_class_message_and_frames(played: Sandbox) -> None:
    def fetch() -> None:
        try:
            try:
                raise_order_error(3)
            except OrderError:
                dict[str, int]()["price"]
        except KeyError as error:
            raise TimeoutError("no answer") from error

    lines = recorded_failure(played, fetch).trace.splitlines()

    cause = lines.index("caused by KeyError: 'price'")
    context = lines.index("while handling tests.capture.test_stack_trace.OrderError: order 3 has no price")
    assert 0 < cause < context
    assert lines[cause + 1].endswith("causes_and_contexts_follow_with_class_message_and_frames.fetch")
    assert lines[context + 1].endswith(" in raise_order_error")
    assert "no answer" not in "\n".join(lines)  # that is the message of the failure


def test_suppressed_contexts_are_left_out(played: Sandbox) -> None:
    def fetch() -> None:
        try:
            raise_order_error()
        except OrderError:
            raise TimeoutError from None

    assert "OrderError" not in recorded_failure(played, fetch).trace


def test_members_of_a_group_are_recorded(played: Sandbox) -> None:
    def gather() -> None:
        errors = []
        for number in (1, 2):
            try:
                raise_order_error(number)
            except OrderError as error:
                errors.append(error)
        raise ExceptionGroup("2 orders failed", errors)

    failure = recorded_failure(played, gather)
    assert failure.exception == "ExceptionGroup"
    for number in (1, 2):
        assert f"contains tests.capture.test_stack_trace.OrderError: order {number} has no price\n" in failure.trace


def test_every_way_to_fail_records_the_exception(played: Sandbox) -> None:
    async def later() -> None:
        raise_order_error()

    def stream() -> Iterator[int]:
        yield 1
        raise_order_error()

    async def later_stream() -> AsyncIterator[int]:
        yield 1
        raise_order_error()

    async def drain() -> list[int]:
        return [item async for item in mulligan.tool(later_stream)()]

    attempts: list[Callable[[], Any]] = [
        mulligan.tool(raise_order_error),
        mulligan.model(raise_order_error),
        lambda: asyncio.run(mulligan.tool(later)()),
        lambda: list(mulligan.tool(stream)()),
        lambda: asyncio.run(drain()),
    ]
    for attempt in attempts:
        with pytest.raises(OrderError):
            attempt()
    with pytest.raises(OrderError), mulligan.run("agent"):
        raise_order_error()
    with pytest.raises(OrderError), mulligan.run("agent") as run, run.step("plan"):
        raise_order_error()

    for history in played.runs:
        failure = history.steps[0].failure
        assert failure is not None
        assert failure.exception.endswith("OrderError")
        assert failure.trace.splitlines()[0].endswith(" in raise_order_error")
    assert len(played.runs) == len(attempts) + 2


def test_arguments_that_do_not_fit_the_function_have_a_class_and_the_callers_line(played: Sandbox) -> None:
    failure = recorded_failure(played, lambda city: city, "Oslo", "Bergen")
    assert failure.kind == "tool/invalid_arguments"
    assert failure.exception == "TypeError"
    assert failure.trace.splitlines()[0].endswith(" in recorded_failure")


def test_a_result_that_is_an_error_has_no_exception(played: Sandbox) -> None:
    mulligan.tool(lambda: {"error": "no such order"})()
    failure = played.steps[0].failure
    assert failure is not None
    assert (failure.exception, failure.trace) == ("", "")


# Record level and redaction


def test_in_shape_frames_are_recorded_without_messages(played: Sandbox) -> None:
    def fetch(name: str) -> None:
        try:
            raise OrderError(f"no order of {name}")
        except OrderError as error:
            raise TimeoutError from error

    failure = recorded_failure(played, fetch, "Trondheim", record="shape")
    assert "Trondheim" not in encode(played.runs).decode()
    assert failure.exception == "TimeoutError"
    assert "\ncaused by tests.capture.test_stack_trace.OrderError\n" in failure.trace


def test_in_shape_no_failure_of_a_step_or_run_has_the_messages_of_causes(played: Sandbox) -> None:
    def fail() -> None:
        try:
            raise KeyError("zq_cause")
        except KeyError as error:
            raise TimeoutError("no answer") from error

    def work() -> None:
        with mulligan.run("agent", record="shape") as run:
            with contextlib.suppress(TimeoutError), run.step("tool", "search"):
                fail()
            run.record_failure("tool", "timeout", "no answer", detail="zq_detail")
            fail()

    with pytest.raises(TimeoutError):
        work()
    failures = [step.failure for step in played.runs[0].steps]
    assert len(failures) == 3
    assert "zq" not in str(failures)
    assert "caused by KeyError" in str(failures)


@pytest.mark.parametrize("level", ["local", "shared"])
def test_secrets_in_names_files_and_messages_are_redacted(level: str) -> None:
    def fetch(password: str) -> None:
        try:
            compile_function(TOKEN, f"raise ValueError('key {TOKEN}')", f"/srv/{TOKEN}/pay.py")()
        except ValueError as error:
            error.__cause__ = PermissionError(f"{password} is wrong for ann@example.com")
            raise TimeoutError from error

    with sandbox(level=level) as played:
        failure = recorded_failure(played, fetch, "violet umbrella")
        stored = encode([played.runs, played.events]).decode()
    assert "caused by" in failure.trace
    assert "pay.py:2" in failure.trace
    for secret in (TOKEN, TOKEN[:20], "violet umbrella", "ann@example.com"):
        assert secret not in stored


def test_paths_do_not_name_the_home_folder_or_the_current_one(
    played: Sandbox, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {
        str(tmp_path / "shop" / "pay.py"): "shop/pay.py",
        "/home/ann/shop/pay.py": "~/shop/pay.py",
        "/Users/ann/shop/pay.py": "~/shop/pay.py",
        "C:\\Users\\ann\\shop\\pay.py": "~/shop/pay.py",
        "/home/ann/.venv/lib/python3.12/site-packages/shop/pay.py": "library shop/pay.py",
        "/usr/lib/python3/dist-packages/shop/pay.py": "library shop/pay.py",
    }
    for file, shown in files.items():
        trace = recorded_failure(played, compile_function("pay", "raise ValueError", file)).trace
        assert f"  {shown}:2 in pay" in trace.splitlines()


@pytest.mark.parametrize(
    "line",
    [
        "  app/password.py:12 in check_password",
        "  app/token.py:42 in get_token",
        "  ~/secrets/api_key.py:7 in Key.secret",
        "  library auth/credentials.py:100 in Credentials.refresh",
        "caused by jwt.exceptions.InvalidTokenError",
        "  app/models/session.py:12345 in Session.key",
    ],
)
def test_redaction_leaves_ordinary_frames_readable(line: str) -> None:
    from mulligan.redaction import Redactor

    trace = f"  app/main.py:1 in main\n{line}\n  app/main.py:2 in main"
    assert Redactor().text(trace) == trace


# Hostile exceptions


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class HugeError(Exception):
    def __str__(self) -> str:
        return "x" * 10_000_000


class WordyError(Exception):
    def __str__(self) -> str:
        return f"one\ntwo\r\x1b[2J {'three ' * 1_000_000}"


class NamelessError(Exception):
    __module__ = 5  # type: ignore[assignment]


class LongError(Exception):
    pass


LongError.__qualname__ = "Long" * 10_000
LongError.__module__ = "a.b\nc"


@pytest.mark.parametrize("kind", [UnprintableError, HugeError, WordyError, NamelessError, LongError])
def test_any_exception_class_is_recorded_within_limits(played: Sandbox, kind: type[Exception]) -> None:
    def fails() -> None:
        try:
            raise kind
        except kind as error:
            raise error from kind()

    failure = recorded_failure(played, fails)
    assert failure.exception
    assert len(failure.exception) <= 220
    assert "\n" not in failure.exception
    lines = failure.trace.splitlines()
    assert lines[0].endswith(".fails")
    assert any(line.startswith("caused by ") for line in lines)
    assert max(map(len, lines)) <= 500
    assert len(failure.trace) <= MAX_TRACE_CHARS


def recurse(depth: int) -> None:
    recurse(depth - 1) if depth else raise_order_error()


def bounce(depth: int) -> None:
    rebound(depth) if depth else raise_order_error()


def rebound(depth: int) -> None:
    bounce(depth - 1)


@pytest.mark.parametrize("function", [recurse, bounce])
def test_ten_thousand_frames_are_a_few_lines(function: Callable[[int], None]) -> None:
    def call() -> tuple[str, str]:
        try:
            function(10_000)
        except OrderError as error:
            return describe_exception(error)
        raise AssertionError

    limit, stack_size = sys.getrecursionlimit(), threading.stack_size(256 * 1024 * 1024)
    try:
        sys.setrecursionlimit(50_000)
        with ThreadPoolExecutor(1) as pool:
            _, trace = pool.submit(call).result()
    finally:
        sys.setrecursionlimit(limit)
        threading.stack_size(stack_size)
    lines = trace.splitlines()
    assert lines[0].endswith(" in raise_order_error")
    assert len(lines) <= 10
    assert lines[-1].endswith(" more frames")
    assert int(lines[-1].split()[1]) >= 9_990


def test_a_recursion_error_is_recorded(played: Sandbox) -> None:
    failure = recorded_failure(played, recurse, 10_000_000)
    assert failure.exception == "RecursionError"
    assert " in recurse" in failure.trace


def test_cycles_of_causes_and_members_end(played: Sandbox) -> None:
    def cause() -> None:
        first, second = ValueError("first"), OrderError("second")
        first.__cause__, second.__cause__ = second, first
        raise first

    def member() -> None:
        error = OrderError("inner")
        group = ExceptionGroup("outer", [error])
        error.__cause__ = group
        raise group

    for function in (cause, member):
        assert recorded_failure(played, function).trace.count("OrderError") == 1


def test_long_chains_are_cut(played: Sandbox) -> None:
    def chained() -> None:
        error = ValueError("last")
        for number in range(1000):
            outer = ValueError(f"number {number}")
            outer.__cause__ = error
            error = outer
        raise error

    assert recorded_failure(played, chained).trace.count("caused by ValueError") == 4


ODD_FILES = ["", "<string>", "<stdin>", "shop/\udcff\ud800.py", "a\nb\x1b[2J.py", "x/" * 5000, "y" * 5000]


@pytest.mark.parametrize("file", ODD_FILES)
def test_any_file_name_is_one_line_that_can_be_stored(played: Sandbox, file: str) -> None:
    failure = recorded_failure(played, compile_function("pay", "raise ValueError('no')", file))
    first, *_ = failure.trace.splitlines()
    assert first.startswith("  ")
    assert first.endswith(":2 in pay")
    assert len(first) <= 220
    assert json.loads(encode(failure))["trace"] == failure.trace


def test_exceptions_of_c_code_and_frozen_modules_show_who_called(played: Sandbox) -> None:
    first, *_ = recorded_failure(played, lambda: int("seven")).trace.splitlines()
    assert HERE in first
    trace = recorded_failure(played, importlib.import_module, "no_such_module").trace
    assert "  library <frozen importlib._bootstrap>:" in trace
    assert HERE in trace.splitlines()[0]


def test_an_exception_that_was_never_raised_has_no_frames() -> None:
    assert describe_exception(ValueError("no")) == ("ValueError", "")


NAMES = st.text(max_size=300)


@settings(max_examples=60, deadline=None)
@given(NAMES, NAMES, NAMES, NAMES, NAMES)
def test_whatever_names_and_messages_contain_the_trace_is_bounded_and_encodable(
    file: str, module: str, name: str, message: str, function: str
) -> None:
    kind = type("E", (Exception,), {"__module__": module, "__str__": lambda self: message})
    kind.__qualname__ = name
    pay = compile_function("pay", "raise args[0] from args[0].args[0]", file.replace("\0", ""))
    pay.__code__ = pay.__code__.replace(co_qualname=function)
    try:
        pay(kind(kind()))
    except Exception as error:  # noqa: BLE001
        exception, trace = describe_exception(error)
    encode([exception, trace])
    assert len(trace) <= MAX_TRACE_CHARS
    own_lines = [line for line in trace.split("\n") if not line.startswith("  ")]
    assert len(own_lines) == 1
    assert own_lines[0].startswith("caused by ")


# Never for a model


def test_no_text_for_a_model_contains_the_class_or_the_trace(played: Sandbox) -> None:
    body = "raise type('ZqKindError', (Exception,), {})('the order has no price')"
    search = compile_function("zq_search", body, "/srv/zq_folder/zq_file.py")
    tool: Callable[[str], Any] = mulligan.tool(name="search", effects="once")(lambda query: search())
    shown: list[Any] = []
    with mulligan.session("chat") as session, mulligan.run("agent") as run:
        for turn in mulligan.turns(limit=4):
            shown.append(turn.call([tool], "search", {"query": "fish"}).to_message())
            shown.append(turn.notice)
        with pytest.raises(Exception) as raised:  # noqa: PT011
            tool("cats")
        shown += [raised.value.__notes__, run.drain_notes(), mulligan.drain_notes()]
        shown.append(mulligan.render_lessons(["search"]))
        session.mark_compacted()
        shown.append(session.reminder())

    traces = [step.failure.trace for step in played.runs[0].steps if step.failure is not None]
    assert any("zq_folder/zq_file.py:2 in zq_search" in trace for trace in traces)
    assert "no price" in str(shown)
    assert "zq" not in str(shown).lower()
    assert ".py:" not in str(shown)
    for answer in shown:
        if isinstance(answer, str):
            assert_sanitized(answer)


@pytest.mark.parametrize("package", ["prompt", "mcp", "hooks", "proxy", "recover", "learn"])
def test_no_code_that_writes_for_a_model_reads_the_trace(package: str) -> None:
    for file in (Path(mulligan.__file__).parent / package).rglob("*.py"):
        nodes = ast.walk(ast.parse(file.read_text()))
        names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        assert "trace" not in names, file
