"""A call within its limits: generated schedules, and a clock that goes only where it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import force_setattr
from simulated_time import SimulatedTime

import mulligan
from mulligan import AgentError, InfraError, Policy
from mulligan.core.events import RecoveryPlanned, StepEnded
from mulligan.core.failure import SettingsError
from mulligan.logging import format_event, iter_records
from mulligan.recover.target_state import NO_TOKENS, SUCCESS_TOKENS, RetryTurn, Targets
from mulligan.report.run_text import render_run
from mulligan.testing import Sandbox, sandbox

# A storm: many calls at once, on a virtual clock


class Simulation(SimulatedTime):
    """Calls of a service behind wrapped layers, counted."""

    def __init__(self, **policy: Any) -> None:
        super().__init__(**policy)
        self.executed = 0
        self.begun = 0

    def nested(self, depth: int, is_down: Callable[[float], bool]) -> Callable[[], Any]:
        """A service behind so many wrapped layers."""

        async def service() -> str:
            self.executed += 1
            await asyncio.sleep(0.02)
            if is_down(self.now):
                raise ConnectionError("reset by peer")
            return "ok"

        layer: Callable[[], Any] = service
        for number in range(depth):

            def around(inner: Callable[[], Any] = layer) -> Any:
                async def call() -> Any:
                    return await inner()

                return call

            layer = self.sandbox.mulligan.tool(name=f"layer {number}", effects="none")(around())
        return layer

    async def load(self, call: Callable[[], Any], rate: float, seconds: float) -> None:
        """So many calls a second, each on its own."""

        async def one() -> None:
            self.begun += 1
            with contextlib.suppress(ConnectionError, AgentError):
                await call()

        tasks = []
        for _ in range(int(rate * seconds)):
            tasks.append(asyncio.ensure_future(one()))
            await asyncio.sleep(1 / rate)
        await asyncio.gather(*tasks)


@pytest.mark.parametrize("rate", [1, pytest.param(10, marks=pytest.mark.safety)])
@pytest.mark.parametrize("depth", [1, 3])
def test_an_outage_of_two_minutes_costs_at_most_half_more_attempts_than_calls(rate, depth):
    simulation = Simulation()
    simulation.run(simulation.load(simulation.nested(depth, lambda now: True), rate, 120))
    assert simulation.begun == 120 * rate
    assert simulation.executed <= 1.5 * simulation.begun


@pytest.mark.parametrize("rate", [0.05, 0.2, 1, 5])
def test_at_any_load_an_outage_costs_at_most_twenty_failed_retries(rate):
    simulation = Simulation(down_after=0)
    simulation.run(simulation.load(simulation.nested(1, lambda now: True), rate, 120))
    assert simulation.begun <= simulation.executed <= simulation.begun + 20 + 8 * rate  # those in flight at the end


def test_three_nested_layers_cost_the_same_as_one():
    costs = []
    for depth in (1, 3):
        simulation = Simulation()
        simulation.run(simulation.load(simulation.nested(depth, lambda now: 30 < now < 150), 2, 180))
        costs.append(simulation.executed)
    assert max(costs) <= 1.05 * min(costs)  # the backoffs differ at random


def test_calls_that_fail_in_an_outage_of_twenty_seconds_all_succeed_after_it():
    simulation = Simulation()
    call = simulation.nested(1, lambda now: now < 20)
    results: list[str] = []

    async def one() -> None:
        results.append(await call())

    async def main() -> None:
        await asyncio.gather(*(one() for _ in range(50)))

    simulation.run(main())
    assert results == ["ok"] * 50
    assert simulation.executed <= 2 * 50 + 10


@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.floats(0.01, 6), st.floats(0, 25)), min_size=1, max_size=5),
    st.integers(1, 3),
    st.sampled_from([0, 5]),
)
def test_on_any_schedule_of_load_and_outages_failed_retries_stay_within_the_tokens(schedule, depth, down_after):
    simulation = Simulation(down_after=down_after)
    downs = [sum(seconds for _, seconds in schedule[:place]) for place in range(len(schedule))]
    call = simulation.nested(depth, lambda now: sum(begin <= now for begin in downs) % 2 == 0)
    most_in_flight = max(1, *(int(rate * 0.02) + 1 for rate, _ in schedule))

    async def main() -> None:
        for rate, seconds in schedule:
            await simulation.load(call, rate, seconds)

    simulation.run(main())
    # Each call executes once, a success returns a token, and what is in flight is charged at its end.
    assert simulation.executed <= 2 * simulation.begun + 20 + most_in_flight


def test_in_any_number_of_threads_failed_retries_stay_within_the_tokens() -> None:
    with sandbox(record="off") as played:
        executed: list[int] = []
        failures: list[BaseException] = []

        @mulligan.tool(effects="none")
        def fetch() -> None:
            executed.append(1)
            raise ConnectionError("reset")

        def work() -> None:
            for _ in range(50):
                try:
                    fetch()
                except ConnectionError:
                    pass
                except BaseException as error:  # noqa: BLE001 - told by the assertion below
                    failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert 400 < len(executed) <= 400 + 20 + 8
        assert played.backoffs


def test_retry_without_a_token_leaves_no_step(played: Sandbox) -> None:
    @mulligan.tool(effects="none", policy=Policy(attempts=2, retry_tokens=1, initial_backoff=0, down_after=0))
    def search(query: str) -> None:
        raise ConnectionResetError("reset")

    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            search("fish")
    attempts = sorted([step.attempt for step in history.steps] for history in played.runs)
    assert attempts == [[1], [1, 2]]


def test_a_run_has_twenty_repairs_and_any_number_of_retries(played: Sandbox) -> None:
    executed: list[int] = []

    @mulligan.tool(effects="none", policy=Policy(max_run_retries=0, max_identical_failures=0))
    def fetch() -> str:
        executed.append(1)
        if len(executed) % 2:
            raise ConnectionError("reset")
        return "ok"

    with mulligan.run("agent"):
        assert [fetch() for _ in range(30)] == ["ok"] * 30
    assert len(executed) == 60


def test_a_repair_that_no_budget_is_left_for_is_offered(played: Sandbox) -> None:
    @mulligan.tool(clamp=["k"])
    def search(k: int) -> int:
        raise mulligan.AgentError(f"k must be 10 or less, got {k}.")

    with sandbox(max_run_retries=0), mulligan.run("agent"), pytest.raises(mulligan.AgentError) as left:
        search(50)

    assert "the limit of 0 repairs per run is reached" in left.value.__notes__[0]
    assert "Use 10 for k instead of 50, if that serves the request." in left.value.__notes__[0]


def test_nobody_is_sent_to_look_at_a_run_that_is_not_recorded(played: Sandbox) -> None:
    @mulligan.tool(record="off")
    def search() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError) as left:
        search()

    assert left.value.__notes__[0].startswith("mulligan: tool/timeout after 1 attempt (")
    assert "mulligan show" not in left.value.__notes__[0]


# Executed at most once

OUTCOMES = st.lists(
    st.tuples(
        st.booleans(),  # whether it takes effect
        st.sampled_from(
            [None, TimeoutError("no answer"), ConnectionResetError("reset"), OSError("gone"), ValueError("no")]
        ),
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("checks", ["truthfully", "with nothing", "by raising", "not at all"])
@pytest.mark.parametrize("is_async", [False, True])
@settings(max_examples=40)
@given(outcomes=OUTCOMES, attempts=st.integers(1, 5))
def test_a_once_tool_is_executed_at_most_once_a_call_whatever_becomes_of_its_reply(
    checks, is_async, outcomes, attempts
):
    effects: list[str] = []
    script = list(outcomes)
    played = Sandbox(policy=Policy(attempts=attempts))

    def happen(id: str) -> str:
        takes_effect, error = script.pop(0) if script else (True, None)
        if takes_effect or error is None:
            effects.append(id)
        if error is not None:
            raise error
        return f"receipt of {id}"

    async def ahappen(id: str) -> str:
        return happen(id)

    def verify(id: str) -> Any:
        if checks == "by raising":
            raise RuntimeError("the check is broken")
        if checks == "with nothing":
            return None
        return f"receipt of {id}" if id in effects else False

    options: Any = {} if checks == "not at all" else {"verify": verify}
    pay = played.mulligan.tool(name="pay", **options)(ahappen if is_async else happen)
    try:
        answer = asyncio.run(pay("a")) if is_async else pay("a")
    except (OSError, ValueError):
        answer = None
    assert len(effects) <= 1
    if answer is not None:
        assert answer == "receipt of a"
        assert effects == ["a"]
    elif checks == "truthfully":
        assert effects == []  # what happened is never told to have failed
    assert len(outcomes) - len(script) <= attempts


def test_a_check_that_finds_the_effect_makes_the_call_a_success_that_says_so(played: Sandbox) -> None:
    @mulligan.tool(verify=lambda invoice: f"receipt of {invoice}")
    def pay(invoice: str) -> str:
        raise TimeoutError("no answer")

    with mulligan.run("agent") as run:
        assert pay("INV-1") == "receipt of INV-1"
        assert "a check confirmed that the call succeeded" in mulligan.drain_notes()[0]
    assert run.status == "recovered"
    assert [step.outcome for step in played.steps] == ["failure", "success"]
    assert [call.outcome_label for call in played.calls] == ["confirmed by verify"]


def test_a_check_that_finds_no_effect_lets_the_same_call_be_made_again(played: Sandbox) -> None:
    made: list[str] = []

    @mulligan.tool(verify=lambda invoice: False)
    def pay(invoice: str) -> str:
        made.append(invoice)
        if len(made) == 1:
            raise TimeoutError("no answer")
        return "paid"

    assert pay("INV-1") == "paid"
    assert made == ["INV-1", "INV-1"]


def test_a_check_may_be_async_for_an_async_tool_only(played: Sandbox) -> None:
    async def verify(invoice: str) -> str:
        return "found"

    @mulligan.tool(verify=verify)
    async def pay(invoice: str) -> str:
        raise TimeoutError("no answer")

    assert asyncio.run(pay("INV-1")) == "found"
    with pytest.raises(SettingsError, match="verify is async"):
        mulligan.tool(verify=verify)(lambda invoice: None)


def test_a_check_is_given_what_the_function_was_given(played: Sandbox) -> None:
    asked: list[Any] = []

    class Bank:
        def find(self, *args: Any, **kwargs: Any) -> None:
            asked.append((self, args, kwargs))

        @mulligan.tool(verify=find)
        def pay(self, invoice: str, *, cents: int) -> None:
            raise TimeoutError("no answer")

    bank = Bank()
    with pytest.raises(TimeoutError):
        bank.pay("INV-1", cents=5)
    assert asked == [(bank, ("INV-1",), {"cents": 5})]


def test_a_status_that_proves_that_nothing_was_done_lets_a_once_tool_be_repaired(played: Sandbox) -> None:
    class Unprocessable(Exception):
        status_code = 422

    made: list[Any] = []

    def send(batch_size: int) -> str:
        made.append(batch_size)
        if batch_size > 7:
            raise Unprocessable("batch_size must be 7 or less")
        return "sent"

    with pytest.raises(Unprocessable):
        mulligan.tool(clamp=["batch_size"])(send)(batch_size=9)
    assert mulligan.tool(clamp=["batch_size"], rejection_statuses={422})(send)(batch_size=9) == "sent"
    assert made == [9, 9, 7]


# Time


@settings(max_examples=50)
@given(
    st.floats(0.1, 60),
    st.lists(st.tuples(st.floats(0, 20), st.none() | st.floats(0, 40)), min_size=1, max_size=5),
    st.floats(0, 1),
)
def test_no_attempt_begins_after_the_deadline_and_no_wait_goes_beyond_it(timeout, durations, chance):
    class Busy(Exception):
        status_code = 429

        def __init__(self, retry_after: float | None) -> None:
            super().__init__("slow down")
            self.headers = {} if retry_after is None else {"retry-after": str(retry_after)}

    played = Sandbox(policy=Policy(attempts=10))
    now = 0.0
    begun: list[float] = []
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        slept.append(now)

    kit = played.components.capture
    for name, value in {"timer": lambda: now, "sleep": sleep, "random": lambda: chance}.items():
        force_setattr(kit, name, value)

    @played.mulligan.tool(effects="none", timeout=timeout)
    def fetch() -> None:
        nonlocal now
        begun.append(now)
        seconds, retry_after = durations[min(len(begun), len(durations)) - 1]
        now += seconds
        raise Busy(retry_after)

    with pytest.raises(Busy):
        fetch()
    assert all(each < timeout for each in begun)
    assert all(each < timeout for each in slept)


def test_where_a_wait_took_longer_than_it_should_no_attempt_follows_it(played: Sandbox) -> None:
    kit = played.components.capture
    force_setattr(kit, "sleep", lambda seconds: played.backoffs.append(seconds + 60))
    executed: list[int] = []

    @mulligan.tool(effects="none", timeout=30)
    def fetch() -> None:
        executed.append(1)
        raise ConnectionError("reset")

    with pytest.raises(ConnectionError) as left:
        fetch()
    assert len(executed) == 1
    assert "the deadline has passed" in left.value.__notes__[0]


def test_an_async_tool_that_hangs_is_cut_off_in_time(played: Sandbox) -> None:
    cut: list[bool] = []

    @mulligan.tool(timeout=0.05)
    async def hang() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cut.append(True)
            raise

    with pytest.raises(TimeoutError, match=r"hang did not answer in 0\.05 s"):
        asyncio.run(hang())
    assert cut == [True]
    assert played.steps[0].failure is not None
    assert played.steps[0].failure.kind == "tool/timeout"


def test_an_async_stream_that_hangs_before_its_first_item_is_cut_off_in_time(played: Sandbox) -> None:
    @mulligan.tool(timeout=0.05)
    async def hang() -> Any:
        await asyncio.sleep(60)
        yield 1

    async def read() -> list[int]:
        return [item async for item in hang()]

    with pytest.raises(TimeoutError, match="did not answer"):
        asyncio.run(read())


def test_the_deadline_of_a_call_around_it_ends_the_retries_of_a_call(played: Sandbox) -> None:
    @mulligan.tool(effects="none")
    def inner() -> None:
        raise ConnectionError("reset")

    @mulligan.tool(timeout=0.1, policy=Policy(attempts=1))
    def outer() -> None:
        inner()

    with pytest.raises(ConnectionError):
        outer()
    assert played.backoffs == []


@pytest.mark.parametrize("bad", [0, -1, True, "5", float("nan"), float("inf")])
def test_a_timeout_that_cannot_be_meant_is_refused(bad: Any) -> None:
    with pytest.raises(SettingsError, match=r"Invalid timeout .* Use a number of seconds above 0"):
        mulligan.tool(timeout=bad)


@pytest.mark.parametrize("bad", [422, "422", [42], [True], ["422"], None])
def test_statuses_that_are_none_are_refused(bad: Any) -> None:
    with pytest.raises(SettingsError, match=r"Invalid rejection_statuses .* Use a set of HTTP statuses"):
        mulligan.tool(rejection_statuses=bad)


# Nothing that is no failure is swallowed


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("where", ["first", "second", "sleep", "verify"])
@pytest.mark.parametrize("is_async", [False, True])
def test_an_interrupt_leaves_wherever_it_comes(error: type[BaseException], where: str, is_async: bool) -> None:
    played = Sandbox()
    mine = error()
    executed: list[int] = []

    def now(place: str) -> None:
        if place == where:
            raise mine

    def work() -> str:
        executed.append(1)
        now("first" if len(executed) == 1 else "second")
        raise TimeoutError("no answer")

    async def awork() -> str:
        return work()

    def verify() -> bool:
        now("verify")
        return False

    async def averify() -> bool:
        return verify()

    async def asleep(seconds: float) -> None:
        now("sleep")

    kit = played.components.capture
    force_setattr(kit, "sleep", lambda seconds: now("sleep"))
    force_setattr(kit, "async_sleep", asleep)
    tool = played.mulligan.tool(name="work", verify=averify if is_async else verify)(awork if is_async else work)

    def drive() -> None:
        if not is_async:
            tool()
            return
        coroutine = tool()  # by hand: an event loop has its own mind about interrupts
        while True:
            coroutine.send(None)

    with pytest.raises(error) as left:
        drive()
    assert left.value is mine
    assert len(executed) == (2 if where == "second" else 1)
    assert all(step.outcome != "success" for step in played.steps)
    (call,) = played.calls
    if where in ("sleep", "verify"):
        assert call.last.stop is not None
        assert call.last.stop.reason == "the call was cancelled"


# The same call once too often


class Calls:
    """A tool that always fails, and what it was called with."""

    def __init__(self, error: Callable[[str], Exception] = lambda path: FileNotFoundError(2, "No such file", path)):
        self.executed: list[str] = []
        self._error = error

    def read(self, path: str) -> str:
        self.executed.append(path)
        raise self._error(path)


@contextlib.contextmanager
def first_turn() -> Iterator[Any]:
    """A turn of a loop that is under way: in the current run, or in its own."""
    turns = iter(mulligan.turns(limit=2))
    yield next(turns)
    turns.close()  # type: ignore[attr-defined] # a generator


def test_third_identical_call_that_answers_a_model_is_blocked(played: Sandbox) -> None:
    calls = Calls()
    tools = {"read": mulligan.tool(effects="none")(calls.read)}
    with mulligan.run("agent") as run, first_turn() as turn:
        for _ in range(2):
            assert turn.call(tools, "read", {"path": "a.txt"}).answer["error"] == "tool/file_not_found"
        for _ in range(2):
            answer = turn.call(tools, "read", {"path": "a.txt"}).answer
            assert answer["error"] == "orchestration/loop_detected"
            assert answer["recoverable"] is False
            assert "it failed twice in this run" in answer["message"]  # a blocked call is no executed one
        turn.call(tools, "read", {"path": "b.txt"})
    assert calls.executed == ["a.txt", "a.txt", "b.txt"]
    assert [step.outcome for step in played.steps] == ["failure", "failure", "blocked", "blocked", "failure"]
    assert run.status == "failure"  # no call succeeded
    with mulligan.run("another"), first_turn() as turn:
        turn.call(tools, "read", {"path": "a.txt"})
    assert calls.executed[-1] == "a.txt"


def test_identical_call_awaited_by_a_loop_is_blocked(played: Sandbox) -> None:
    calls = Calls()

    async def main() -> list[str]:
        with first_turn() as turn:
            return [
                (await turn.acall({"read": calls.read}, "read", {"path": "a.txt"})).answer["error"] for _ in range(3)
            ]

    assert asyncio.run(main()) == ["tool/file_not_found", "tool/file_not_found", "orchestration/loop_detected"]
    assert len(calls.executed) == 2


@pytest.mark.parametrize("is_async", [False, True])
def test_identical_call_of_a_program_is_always_made_and_noted(played: Sandbox, is_async: bool) -> None:
    calls = Calls()

    async def aread(path: str) -> str:
        return calls.read(path)

    read = mulligan.tool(effects="none", name="read")(aread if is_async else calls.read)
    notes = []
    with mulligan.run("agent"):
        for _ in range(5):
            with pytest.raises(FileNotFoundError) as caught:
                asyncio.run(read("a.txt")) if is_async else read("a.txt")
            notes.append("\n".join(caught.value.__notes__))
        announced = mulligan.drain_notes()
    assert calls.executed == ["a.txt"] * 5
    assert {step.outcome for step in played.steps} == {"failure"}
    assert ["failed the same way" in note for note in notes] == [False, False, True, True, True]
    assert "mulligan: read failed the same way 3 times in this run with these arguments." in notes[2].splitlines()
    assert "mulligan: read failed the same way 5 times in this run with these arguments." in notes[4].splitlines()
    # A poller would fill its run with notes: the first of a streak is announced, and spirals as before.
    assert [note for note in announced if "failed the same way" in note] == [
        "mulligan: read failed the same way 3 times in this run with these arguments."
    ]


def test_identical_call_of_turns_in_a_foreign_agent_is_made_and_noted_until_it_succeeds(played: Sandbox) -> None:
    disk: dict[str, str] = {}

    def read(path: str) -> str:
        if path not in disk:
            raise FileNotFoundError(2, "No such file", path)
        return disk[path]

    turns = iter(mulligan.turns(limit=1, block_loops=False))
    turn = next(turns)
    outcomes = [turn.call([read], "read", {"path": "a.txt"}) for _ in range(3)]
    disk["a.txt"] = "the agent wrote it with a tool of its own"
    outcomes.append(turn.call([read], "read", {"path": "a.txt"}))
    assert ["failed the same way 3 times" in str(outcome) for outcome in outcomes] == [False, False, True, False]
    assert outcomes[3].value == disk["a.txt"]


def test_queued_note_of_identical_failures_is_withdrawn_when_the_call_succeeds(played: Sandbox) -> None:
    errors = [OSError("The disk is gone.")] * 3

    @mulligan.tool
    def read(path: str) -> str:
        if errors:
            raise errors.pop()
        return "text"

    with mulligan.run("agent"):
        for _ in range(3):
            with pytest.raises(OSError, match="gone"):
                read("a.txt")
        assert read("a.txt") == "text"
        assert mulligan.drain_notes() == []


def test_program_poller_is_never_blocked_and_gets_its_answer(played: Sandbox) -> None:
    script: list[Any] = [AgentError("The report is not ready.", code="not_ready")] * 9

    @mulligan.tool(effects="none")
    def poll(report: str) -> str:
        if script:
            raise script.pop()
        return "ready"

    with mulligan.run("agent"):
        for _ in range(9):
            with pytest.raises(AgentError, match="not ready"):
                poll("r1")
        assert poll("r1") == "ready"
    assert len(played.steps) == 10


@pytest.mark.parametrize(
    ("between", "is_noted"),
    [([], True), ([("make", "")], False), ([("read", "b.txt")], False), ([("read", "other failure")], False)],
    ids=["nothing", "another success", "different arguments", "another failure"],
)
def test_count_of_identical_failures_is_reset_by(
    played: Sandbox, between: list[tuple[str, str]], is_noted: bool
) -> None:
    errors: list[Exception] = []

    @mulligan.tool
    def read(path: str) -> str:
        raise errors.pop() if errors else KeyError("no such key")

    tools = {"read": read, "make": mulligan.tool(name="make")(lambda path: "made")}
    with mulligan.run("agent"):
        for name, path in [*[("read", "a.txt")] * 2, *between, ("read", "a.txt")]:
            if path == "other failure":
                path = "a.txt"
                errors.append(AgentError("The folder is locked.", code="locked"))
            try:
                tools[name](path)
            except (KeyError, AgentError) as error:
                note = error.__notes__[0]
    assert ("failed the same way 3 times" in note) is is_noted


def test_note_of_identical_failures_is_not_left_where_the_limit_is_zero() -> None:
    with sandbox(max_identical_failures=0), mulligan.run("agent"):
        read = mulligan.tool(name="read")(Calls(KeyError).read)
        for _ in range(5):
            with pytest.raises(KeyError) as caught:
                read("a.txt")
        assert "failed the same way" not in caught.value.__notes__[0]


def test_identical_failures_of_two_tools_of_one_name_are_counted_apart(played: Sandbox) -> None:
    def one(path: str) -> str:
        raise KeyError("no such key")

    def other(path: str) -> str:
        raise KeyError("no such key")

    with first_turn() as turn:
        for _ in range(2):
            for function in (one, other):
                tool = mulligan.tool(name="read")(function)
                assert (
                    turn.call([tool], "read", {"path": "a.txt"}).answer["error"] == "orchestration/uncaught_exception"
                )
        for function in (one, other):  # neither has reset the other
            tool = mulligan.tool(name="read")(function)
            assert turn.call([tool], "read", {"path": "a.txt"}).answer["error"] == "orchestration/loop_detected"


def test_repeated_failures_of_a_model_are_never_blocked(played: Sandbox) -> None:
    asked: list[int] = []

    @mulligan.model
    def chat(messages: Any) -> str:
        asked.append(1)
        raise KeyError("no")

    with mulligan.run("agent"):
        for _ in range(5):
            with pytest.raises(KeyError):
                chat([{"role": "user", "content": "Hello?"}])
    assert len(asked) == 5


def test_program_call_inside_a_tool_that_answers_a_model_is_made(played: Sandbox) -> None:
    calls = Calls()
    inner = mulligan.tool(name="inner")(calls.read)

    @mulligan.tool(policy=Policy(attempts=1))
    def outer(times: int) -> str:
        for _ in range(times):
            with contextlib.suppress(FileNotFoundError):
                inner("a.txt")
        return "done"

    with first_turn() as turn:
        assert turn.call([outer], "outer", {"times": 4}).value == "done"
    assert calls.executed == ["a.txt"] * 4


def test_identical_failures_are_counted_by_call_and_not_by_attempt(played: Sandbox) -> None:
    executed: list[int] = []

    @mulligan.tool(effects="none", policy=Policy(down_after=0))
    def fetch() -> None:
        executed.append(1)
        raise TimeoutError("no answer within 4 s")

    with first_turn() as turn:
        errors = [turn.call([fetch], "fetch").answer["error"] for _ in range(3)]
    assert errors == ["tool/timeout", "tool/timeout", "orchestration/loop_detected"]
    assert len(executed) == 6


def test_call_whose_service_is_down_for_a_while_is_not_blocked(played: Sandbox) -> None:
    executed: list[int] = []

    @mulligan.tool
    def pay() -> str:
        executed.append(1)
        if len(executed) < 4:
            raise ConnectionRefusedError(111, "Connection refused")
        return "paid"

    with first_turn() as turn:
        answers = [turn.call([pay], "pay") for _ in range(4)]
    assert [outcome.ok for outcome in answers] == [False, False, False, True]


def test_success_of_another_tool_unblocks_a_call_and_a_models_answer_does_not(played: Sandbox) -> None:
    calls = Calls()
    tools = {"read": mulligan.tool(effects="none")(calls.read), "make": lambda: "made"}
    chat = mulligan.model(name="chat")(lambda messages: "let me try again")
    with first_turn() as turn:
        for _ in range(3):
            chat([])
            turn.call(tools, "read", {"path": "a.txt"})
        assert len(calls.executed) == 2
        turn.call(tools, "make")
        turn.call(tools, "read", {"path": "a.txt"})
    assert len(calls.executed) == 3


def test_calls_outside_a_run_and_observed_ones_are_never_answered_without_being_made(played: Sandbox) -> None:
    def read() -> None:
        raise KeyError("no")

    alone = mulligan.tool(read)
    watched = mulligan.tool(mode="observe", name="watched")(read)
    for _ in range(5):
        with pytest.raises(KeyError):
            alone()
    with mulligan.run("agent"):
        for _ in range(5):
            with pytest.raises(KeyError):
                watched()


def test_attempts_of_a_layer_that_retries_are_not_calls_given_up(played: Sandbox) -> None:
    @mulligan.tool(effects="none")
    def inner() -> None:
        raise ConnectionError("reset")

    @mulligan.tool(effects="none", policy=Policy(attempts=5))
    def outer() -> None:
        inner()

    with mulligan.run("agent"), pytest.raises(ConnectionError):
        outer()
    assert len(played.steps) == 10


def test_identical_failures_leave_a_tool_on_the_fast_path(played: Sandbox) -> None:
    read = mulligan.tool(name="read")(Calls(KeyError).read)
    with mulligan.run("agent"):
        for _ in range(4):
            with pytest.raises(KeyError):
                read("a.txt")
        assert not read.__mulligan__.rules(played.components.capture, None).targets.states


@pytest.mark.parametrize("spirals", ["report", "block"])
def test_spiral_of_a_program_is_named_and_its_calls_are_made(spirals: str) -> None:
    with sandbox(on_spiral=spirals) as played, mulligan.run("agent"):
        tools = {name: mulligan.tool(name=name)(_nothing) for name in ("search_web", "search_docs")}
        for number in range(4):
            with pytest.raises(KeyError):
                tools["search_docs" if number % 2 else "search_web"](f"refund policy {number}")
        (note,) = mulligan.drain_notes()
        assert "4 similar calls failed for the same reason" in note
        assert "search_web, search_docs" in note
        assert played.steps[-1].stop is not None
        assert played.steps[-1].stop.spiral == note
        with pytest.raises(KeyError) as caught:
            tools["search_web"]("policy refund")
        assert "5 similar calls failed for the same reason" in caught.value.__notes__[0]
        assert mulligan.drain_notes()


@pytest.mark.parametrize(
    ("spirals", "error"), [("report", "orchestration/uncaught_exception"), ("block", "tool/wrong_approach")]
)
def test_spiral_in_a_loop_is_blocked_only_where_that_was_set(spirals: str, error: str) -> None:
    with sandbox(on_spiral=spirals), first_turn() as turn:
        tools = {"search_web": _nothing, "search_docs": _nothing}
        for number in range(4):
            name = "search_docs" if number % 2 else "search_web"
            outcome = turn.call(tools, name, {"query": f"refund policy {number}"})
        assert "4 similar calls failed for the same reason" in outcome.notes[-1]
        assert turn.call(tools, "search_web", {"query": "policy refund"}).answer["error"] == error


def _nothing(query: str) -> None:
    raise KeyError("nothing is known of this")


class Service:
    """A tool that fails while its other side is down."""

    def __init__(self) -> None:
        self.executed = 0
        self.is_down = True

    def fetch(self) -> str:
        self.executed += 1
        if self.is_down:
            raise ConnectionError("reset")
        return "ok"


def take_down(call: Callable[[], Any]) -> None:
    """Fail until the target is down."""
    for _ in range(5):
        with pytest.raises(ConnectionError):
            call()


def test_first_attempts_are_made_while_the_target_is_down_and_a_success_ends_it(played: Sandbox) -> None:
    service = Service()
    fetch = mulligan.tool(service.fetch)
    take_down(fetch)
    for _ in range(3):
        with pytest.raises(ConnectionError) as caught:
            fetch()
    assert service.executed == 5 + 3
    assert "its target is down" in caught.value.__notes__[0]
    service.is_down = False
    assert fetch() == "ok"
    assert not played.components.capture.targets.is_down((fetch.__mulligan__.key, ""))


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 100),
    st.lists(st.sampled_from([None, ConnectionResetError, TimeoutError]), max_size=100),
    st.integers(1, 30),
    st.sampled_from(["tasks", "threads", "turns"]),
    st.integers(0, 20),
)
def test_first_attempts_are_always_made_and_failed_retries_stay_within_the_tokens(
    resets: int, results: list[type[Exception] | None], calls: int, caller: str, tokens: int
) -> None:
    executed: Counter[int] = Counter()
    outcomes, successes, failed_retries = iter([ConnectionResetError] * resets + results), 0, 0
    excess, lock = [0], threading.Lock()

    def answer(number: int) -> int:
        nonlocal successes, failed_retries
        with lock:
            executed[number] += 1
            error = next(outcomes, None)
            successes += error is None
            failed_retries += error is not None and executed[number] > 1
            excess.append(failed_retries - tokens - SUCCESS_TOKENS * successes)
        if error is not None:
            raise error("no answer")
        return number

    async def aanswer(number: int) -> int:
        await asyncio.sleep(0)
        return answer(number)

    with sandbox(policy=Policy(retry_tokens=tokens, max_identical_failures=0)):
        if caller == "tasks":
            tool = mulligan.tool(name="answer", effects="none")(aanswer)

            async def call_all() -> None:
                await asyncio.gather(*(tool(number) for number in range(calls)), return_exceptions=True)

            asyncio.run(call_all())
        elif caller == "threads":
            sync_tool = mulligan.tool(name="answer", effects="none")(answer)
            with ThreadPoolExecutor(4) as pool:
                futures = [pool.submit(sync_tool, number) for number in range(calls)]
            assert all(isinstance(future.exception(), Exception | None) for future in futures)
        else:
            sync_tool = mulligan.tool(name="answer", effects="none")(answer)
            with mulligan.run("agent"):
                turns = mulligan.turns(limit=calls)
                for number, turn in enumerate(turns):
                    turn.call([sync_tool], "answer", {"number": number})
    assert len(executed) == calls
    concurrent_calls = {"tasks": calls, "threads": 4, "turns": 1}[caller]  # retries that began while a token was left
    assert max(excess) < concurrent_calls


@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_waits_for_its_target_and_says_so(is_async: bool) -> None:
    with sandbox(log="info") as played:
        executed: list[float] = []

        def fetch(database: str) -> str:
            executed.append(sum(played.backoffs))
            if executed[-1] < 12:
                raise ConnectionError("reset")
            return "ok"

        async def afetch(database: str) -> str:
            return fetch(database)

        tool = mulligan.tool(effects="none")(afetch if is_async else fetch)
        assert (asyncio.run(tool("db-a")) if is_async else tool("db-a")) == "ok"
        last_failed, recovered = next(step for step in played.steps if step.metadata), played.steps[-1]
        assert recovered.recovery is not None
        assert recovered.recovery.backoff_seconds == pytest.approx(executed[-1] - executed[-2], abs=0.1)
        waiting = {"target": "db-a", "next_probe_seconds": pytest.approx(2.8, abs=0.1)}
        assert last_failed.metadata == {"waiting": waiting}
        assert "; waiting for db-a, next probe in 2.8 s" in format_event(StepEnded(last_failed))
        planned = [event for event in played.events if isinstance(event, RecoveryPlanned) and event.step.metadata]
        (line,) = iter_records(planned[0])
        assert (line.fields["waiting_for"], line.fields["next_probe_seconds"]) == (
            "db-a",
            waiting["next_probe_seconds"],
        )
        assert "> waiting for db-a, next probe in 2.8 s" in "\n".join(render_run(played.runs[0], 0))


def test_a_target_that_is_down_affects_no_other_target_of_the_tool(played: Sandbox) -> None:
    @mulligan.tool(effects="none", circuit_breaker=True)
    def query(tenant: str) -> str:
        if tenant == "a":
            raise ConnectionError("reset")
        return "rows"

    for _ in range(6):
        with pytest.raises((ConnectionError, AgentError)):
            query("a")
    assert query("b") == "rows"


def test_a_method_has_a_target_for_each_object_and_a_declared_target_comes_first(played: Sandbox) -> None:
    class Database:
        @mulligan.tool
        def query(self, sql: str) -> None:
            raise ConnectionError("reset")

        @mulligan.tool(target=lambda shard, **other: f"shard {shard}")
        def scan(self, shard: int) -> None:
            raise ConnectionError("reset")

    left, right = Database(), Database()
    for database in (left, right):
        for call in (lambda database=database: database.query("x"), lambda database=database: database.scan(1)):
            with pytest.raises(ConnectionError):
                call()
    states = played.components.capture.targets.states
    assert sorted(state.failures for state in states.values()) == [1, 1, 2]


@pytest.mark.parametrize("bad", [7, "shrd", [1], []])
def test_a_target_that_names_no_argument_is_refused(bad: Any) -> None:
    with pytest.raises(SettingsError, match="target"):
        mulligan.tool(target=bad)(lambda shard: None)


def test_a_target_function_that_raises_harms_no_call(played: Sandbox) -> None:
    @mulligan.tool(effects="none", target=lambda shard: shard["name"])
    def scan(shard: str) -> str:
        if not played.backoffs:
            raise ConnectionError("reset")
        return "ok"

    assert scan("s") == "ok"


def test_a_target_that_is_down_is_recorded_for_a_tool_that_is_never_retried(played: Sandbox) -> None:
    fetch = mulligan.tool(Service().fetch)
    take_down(fetch)
    assert played.steps[-1].stop is not None
    assert played.steps[-1].stop.reason.endswith('has effects="once"; its target is down')


def test_a_tool_that_asks_for_it_fails_at_once_while_its_target_is_down(played: Sandbox) -> None:
    service = Service()
    fetch = mulligan.tool(circuit_breaker=True)(service.fetch)
    take_down(fetch)
    with pytest.raises(AgentError, match=r"fetch was not called: its target is down .* Retry in \d\.\d s"):
        fetch()
    assert service.executed == 5
    assert played.steps[-1].failure is not None
    assert played.steps[-1].failure.kind == "tool/unavailable"
    assert [each.run.end_reason for each in played.runs][-1] == "raised"
    played.backoffs.append(5.0)
    service.is_down = False
    assert fetch() == "ok"  # the probe


def test_calls_that_answer_a_model_are_made_while_their_target_is_down(played: Sandbox) -> None:
    service = Service()
    fetch = mulligan.tool(service.fetch)
    take_down(fetch)
    with first_turn() as turn:
        answer = turn.call([fetch], "fetch").answer
    assert answer["error"] == "tool/connection_error"
    assert service.executed == 6


def test_calls_of_a_model_without_fallback_are_made_while_it_is_down(played: Sandbox) -> None:
    service = Service()

    @mulligan.model
    def chat(messages: Any) -> str:
        return service.fetch()

    for number in range(12):
        with pytest.raises(ConnectionError):
            chat([{"role": "user", "content": f"Question {number}?"}])
    assert service.executed >= 12
    blocked = mulligan.model(circuit_breaker=True)(chat.__wrapped__)
    with pytest.raises(AgentError, match="was not called"):
        blocked([{"role": "user", "content": "Another?"}])


def test_no_target_is_down_where_the_policy_says_never() -> None:
    with sandbox(down_after=0):
        service = Service()
        fetch = mulligan.tool(circuit_breaker=True)(service.fetch)
        for _ in range(9):
            with pytest.raises(ConnectionError):
                fetch()


def test_a_call_that_answers_a_model_waits_at_most_twenty_seconds(played: Sandbox) -> None:
    started: list[float] = []

    @mulligan.tool(effects="none")
    def fetch() -> None:
        started.append(sum(played.backoffs))
        raise ConnectionError("reset")

    with first_turn() as turn:
        turn.call([fetch], "fetch")
        assert len(started) == 3
        assert sum(played.backoffs) <= 10
        turn.call([fetch], "fetch")
        assert started[-1] - started[3] <= 20


def test_a_program_inside_a_call_that_answers_a_model_has_the_limits_of_that_call(played: Sandbox) -> None:
    executed: list[int] = []

    @mulligan.tool(effects="none")
    def inner() -> None:
        executed.append(1)
        raise ConnectionError("reset")

    @mulligan.tool
    def outer() -> None:
        inner()

    with first_turn() as turn:
        turn.call([outer], "outer")
    assert len(executed) == 3


@pytest.mark.parametrize("is_async", [False, True])
def test_a_cancelled_wait_leaves_its_target_to_the_others(is_async: bool) -> None:
    with sandbox() as played:
        context = played.components.capture

        def interrupt(seconds: float) -> None:
            played.backoffs.append(seconds)
            if sum(played.backoffs) > 10:
                raise KeyboardInterrupt

        async def ainterrupt(seconds: float) -> None:
            interrupt(seconds)

        force_setattr(context, "sleep", interrupt)
        force_setattr(context, "async_sleep", ainterrupt)

        def fetch() -> None:
            raise ConnectionError("reset")

        async def afetch() -> None:
            fetch()

        tool = mulligan.tool(effects="none")(afetch if is_async else fetch)
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(tool()) if is_async else tool()
        (state,) = context.targets.states.values()
        assert state.is_down
        assert state.waiting == []
        assert state.probe is None


def test_a_wait_ends_when_the_process_exits(played: Sandbox) -> None:
    context = played.components.capture

    @mulligan.tool(effects="none")
    def fetch() -> None:
        if len(played.backoffs) == 3:
            force_setattr(context, "is_exiting", lambda: True)
        raise ConnectionError("reset")

    with pytest.raises(ConnectionError) as caught:
        fetch()
    assert len(played.backoffs) <= 4
    assert "the process exits" in caught.value.__notes__[0]


@pytest.mark.parametrize("wrap", [mulligan.tool, mulligan.model])
@pytest.mark.parametrize("bad", [None, 1, "yes"])
def test_circuit_breaker_option_that_cannot_be_meant_is_refused(wrap: Any, bad: Any) -> None:
    with pytest.raises(SettingsError, match=r"Invalid circuit_breaker .* Use True or False"):
        wrap(circuit_breaker=bad)(lambda: None)


def count_recovered(fails: Callable[[int, int], bool], **policy: Any) -> tuple[int, int, list[str]]:
    """Return the successes of 30 calls, their retries, and the stop reasons. `fails` gets the call and its attempt."""
    attempts: dict[int, int] = {}
    notes: list[str] = []

    def fetch(number: int) -> None:
        attempts[number] = attempts.get(number, 0) + 1
        if fails(number, attempts[number]):
            raise ConnectionError("503 Service Unavailable")

    with sandbox(record="off", **policy):
        call = mulligan.tool(effects="none")(fetch)
        for number in range(30):
            try:
                call(number)
            except ConnectionError as error:
                notes += error.__notes__
    return 30 - len(notes), sum(attempts.values()) - 30, notes


def test_a_target_that_answers_retries_costs_no_tokens() -> None:
    assert count_recovered(lambda number, attempt: attempt == 1) == (30, 30, [])
    recovered, retries, _ = count_recovered(lambda number, attempt: True)
    assert (recovered, retries <= 20) == (0, True)


def test_calls_fail_at_once_without_a_token_and_say_so() -> None:
    _, _, notes = count_recovered(lambda number, attempt: True, retry_tokens=3)
    assert "too many retries of this target have failed (setting retry_tokens)" in notes[-1]


@pytest.mark.safety
@pytest.mark.parametrize(("failure_rate", "least"), [(0.3, 1.0), (0.5, 0.97)])
def test_nearly_all_calls_of_a_flaky_target_recover(failure_rate: float, least: float) -> None:
    recovered = 0
    for seed in range(20):
        luck = random.Random(seed)
        recovered += count_recovered(lambda number, attempt, luck=luck: luck.random() < failure_rate)[0]
    assert recovered >= least * 600


def test_a_models_mistakes_take_no_target_down(played: Sandbox) -> None:
    @mulligan.tool
    def search(number: int) -> None:
        raise AgentError("there is no such thing")

    for number in range(20):
        with pytest.raises(AgentError, match="no such thing"):
            search(number)


def test_an_infra_error_is_not_retried_and_takes_the_target_down(played: Sandbox) -> None:
    executed: list[int] = []

    @mulligan.tool(effects="none", circuit_breaker=True)
    def fetch() -> None:
        executed.append(1)
        raise InfraError("the vault is sealed")

    for _ in range(10):
        with pytest.raises((InfraError, AgentError)):
            fetch()
    assert len(executed) == 5


# What is recorded of the end


def test_why_a_call_was_given_up_is_recorded_with_what_may_work(played: Sandbox) -> None:
    @mulligan.tool(mode="suggest")
    def search(query: str, top_k: int = 5) -> None:
        raise AgentError(f"top_k must be 10 or less, got {top_k}.")

    with pytest.raises(AgentError) as left:
        search("fish", top_k=50)
    (step,) = played.steps
    assert step.stop is not None
    assert step.stop.reason == 'the mode is "suggest"'
    assert [change.after for change in step.stop.suggestions[0].changes] == [10]
    assert "Use 10 for top_k instead of 50, if that serves the request." in "\n".join(left.value.__notes__)
    assert [call.outcome_label for call in played.calls] == ["unrecovered, with suggestions"]


def test_an_amount_that_the_error_names_is_neither_paid_nor_told(played: Sandbox) -> None:
    paid = []

    @mulligan.tool
    def pay(order: str, amount: float) -> None:
        paid.append(amount)
        raise AgentError(f"The amount does not add up: total price is 350.0, but paid {amount}.")

    with pytest.raises(AgentError) as left:
        pay("o1", 300.0)
    assert paid == [300.0]
    assert "may work" not in "\n".join(left.value.__notes__)  # a model has the error's own words
    (offer,) = played.steps[-1].stop.suggestions
    assert (offer.changes[0].after, offer.confidence) == (350.0, 0.45)  # people are shown it


@pytest.mark.parametrize("is_async", [False, True])
def test_why_is_also_recorded_where_an_attempt_was_waited_for_and_not_made(
    played: Sandbox, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = iter([RetryTurn(), RetryTurn(reason=NO_TOKENS)])  # as if other calls had used the tokens up meanwhile
    monkeypatch.setattr(Targets, "take_turn", lambda *details, **options: next(turns, RetryTurn()))

    def fetch() -> None:
        raise ConnectionError("reset")

    async def afetch() -> None:
        raise ConnectionError("reset")

    tool = mulligan.tool(effects="none")(afetch if is_async else fetch)
    with pytest.raises(ConnectionError):
        asyncio.run(tool()) if is_async else tool()
    endings = [call.last.stop for call in played.calls]
    assert all(ending is not None and ending.reason for ending in endings)
    (halted,) = [call for call in played.calls if call.last.is_skipped]
    assert halted.last.stop is not None
    assert halted.last.stop.reason == NO_TOKENS
    assert halted.last.recovery is not None
    assert halted.outcome_label == "unrecovered"
    assert halted.failure is not None


def test_why_is_also_recorded_where_a_check_could_not_tell(played: Sandbox) -> None:
    @mulligan.tool(verify=lambda invoice: None)
    def pay(invoice: str) -> None:
        raise TimeoutError("no answer")

    with pytest.raises(TimeoutError):
        pay("INV-1")
    (step,) = played.steps
    assert step.stop is not None
    assert step.stop.reason == 'the call may have executed and the tool has effects="once"'
