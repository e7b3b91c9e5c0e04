"""Calls inside calls: an effect happens once, whatever retries around it, and exactly one layer retries a read."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mulligan
from mulligan import AgentError, Policy
from mulligan.core.failure import SettingsError
from mulligan.testing import Sandbox, sandbox


def pay_and_fail(executed: list[str], error: Exception | None = None) -> Callable[[str], str]:
    @mulligan.tool
    def pay(invoice: str) -> str:
        executed.append(invoice)
        if error is not None:
            raise error
        return "paid"

    return pay


# Effects are transitive


def test_model_function_that_paid_is_not_repeated_and_its_note_names_the_payment(played: Sandbox) -> None:
    paid: list[str] = []
    pay = pay_and_fail(paid)

    @mulligan.model
    def answer(messages: list[Any]) -> str:
        pay("INV-1")
        raise ConnectionError("503 Service Unavailable: the model is overloaded")

    with pytest.raises(ConnectionError) as raised:
        answer([{"role": "user", "content": "pay INV-1"}])
    assert paid == ["INV-1"]
    assert "pay may have executed inside this attempt" in raised.value.__notes__[0]


@pytest.mark.parametrize("effects", ["none", "idempotent"])
def test_read_around_a_payment_that_timed_out_is_not_repeated(played: Sandbox, effects: Any) -> None:
    paid: list[str] = []
    pay = pay_and_fail(paid, TimeoutError("no answer"))

    @mulligan.tool(effects=effects)
    def checkout(invoice: str) -> str:
        return pay(invoice)

    with pytest.raises(TimeoutError) as raised:
        checkout("INV-2")
    assert paid == ["INV-2"]
    assert [note.count("pay may have executed inside") for note in raised.value.__notes__] == [1]
    assert played.steps[-1].stop.reason == "pay may have executed inside this attempt"
    assert played.steps[-1].effects == "once"


@pytest.mark.parametrize(
    "error",
    [AgentError("Unknown invoice."), AgentError("top_k must be 10 or less, got 50.")],
    ids=["rejected", "repairable"],
)
def test_payment_that_rejected_its_call_forbids_nothing(played: Sandbox, error: AgentError) -> None:
    attempts: list[int] = []
    pay = pay_and_fail([], error)

    @mulligan.tool(effects="none")
    def checkout(invoice: str) -> str:
        attempts.append(1)
        with pytest.raises(AgentError):
            pay(invoice)
        if len(attempts) == 1:
            raise ConnectionResetError("reset")
        return "done"

    assert checkout("INV-3") == "done"
    assert len(attempts) == 2


def test_idempotent_call_inside_a_read_forbids_nothing(played: Sandbox) -> None:
    stored: list[str] = []

    @mulligan.tool(effects="idempotent")
    def store(key: str) -> str:
        stored.append(key)
        return key

    @mulligan.tool(effects="none")
    def build(key: str) -> str:
        store(key)
        if len(stored) == 1:
            raise ConnectionResetError("reset")
        return key

    assert build("a") == "a"
    assert stored == ["a", "a"]


def test_tool_that_rejects_its_call_after_a_payment_is_not_repaired(played: Sandbox) -> None:
    paid: list[str] = []
    pay = pay_and_fail(paid)

    @mulligan.tool(clamp=["top_k"])
    def order(top_k: int) -> str:
        pay("INV-4")
        raise AgentError(f"top_k must be 10 or less, got {top_k}.")

    with mulligan.run("shop"), pytest.raises(AgentError) as raised:
        order(50)
    assert paid == ["INV-4"]
    assert "pay may have executed inside this attempt" in raised.value.__notes__[0]


def test_model_reads_which_inner_call_may_have_executed(played: Sandbox) -> None:
    pay = pay_and_fail([])

    @mulligan.tool(effects="none")
    def order(top_k: int) -> str:
        pay("INV-5")
        raise AgentError(f"top_k must be 10 or less, got {top_k}.")

    for turn in mulligan.turns(limit=1):
        outcome = turn.call([order], "order", {"top_k": 50})
        answer = json.loads(outcome.to_message())
    assert answer["outcome"] == "unknown: pay may have executed inside this call. Check before you repeat it."
    assert outcome.failure is not None
    assert outcome.failure.has_unknown_outcome


def test_verify_of_the_outer_tool_does_not_speak_for_a_payment_inside_it(played: Sandbox) -> None:
    paid: list[str] = []
    pay = pay_and_fail(paid)

    @mulligan.tool(verify=lambda invoice: False)
    def order(invoice: str) -> str:
        pay(invoice)
        raise TimeoutError("no answer")

    with pytest.raises(TimeoutError):
        order("INV-6")
    assert paid == ["INV-6"]


def test_verify_of_a_payment_proves_to_the_outer_call_that_nothing_happened(played: Sandbox) -> None:
    attempts: list[int] = []

    @mulligan.tool(verify=lambda invoice: False, policy=Policy(attempts=1))
    def pay(invoice: str) -> str:
        raise TimeoutError("no answer")

    @mulligan.tool(effects="none")
    def order(invoice: str) -> str:
        attempts.append(1)
        if len(attempts) == 1:
            return pay(invoice)
        return "done"

    assert order("INV-7") == "done"


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("503 Service Unavailable"),
        ValueError("maximum context length is 100 tokens, however your messages resulted in 5000 tokens"),
        RuntimeError("429 Too Many Requests"),
    ],
    ids=["outage", "overflow", "rate limit"],
)
def test_model_function_that_paid_goes_to_no_fallback_model_and_is_not_compressed(
    played: Sandbox, error: Exception
) -> None:
    paid: list[str] = []
    pay = pay_and_fail(paid)

    def other_model(messages: list[Any]) -> str:
        pay("INV-8")
        return "paid by another model"

    @mulligan.model(fallback_models=[other_model], compress="model")
    def answer(messages: list[Any]) -> str:
        pay("INV-8")
        raise error

    with pytest.raises(type(error)):
        answer([{"role": "user", "content": "pay " * 5000}, {"role": "user", "content": "now"}])
    assert paid == ["INV-8"]


def test_turn_inside_a_model_function_forbids_to_repeat_it(played: Sandbox) -> None:
    paid: list[str] = []

    def pay(invoice: str) -> str:
        paid.append(invoice)
        return "paid"

    @mulligan.model
    def answer(messages: list[Any]) -> str:
        for turn in mulligan.turns(limit=1):
            turn.call([pay], "pay", {"invoice": "INV-9"})
        raise ConnectionError("503 Service Unavailable")

    with pytest.raises(ConnectionError):
        answer([{"role": "user", "content": "pay"}])
    assert paid == ["INV-9"]


@pytest.mark.parametrize("is_inner", [True, False], ids=["generator inside", "generator around"])
def test_payment_in_a_generator_happens_once(played: Sandbox, is_inner: bool) -> None:
    paid: list[str] = []
    pay = pay_and_fail(paid)

    @mulligan.tool(effects="once" if is_inner else "none")
    def pay_in_parts(invoice: str) -> Iterator[str]:
        if is_inner:
            paid.append(invoice)
        else:
            pay(invoice)
            raise ConnectionResetError("reset")
        yield "half"

    @mulligan.tool(effects="none")
    def read(invoice: str) -> list[str]:
        parts = list(pay_in_parts(invoice))
        raise ConnectionResetError(f"reset after {parts}")

    with pytest.raises(ConnectionResetError):
        read("INV-10")
    assert paid == ["INV-10"]


def in_task(pay: Callable[[str], str]) -> None:
    async def pay_later() -> str:
        return pay("INV")

    async def main() -> None:
        await asyncio.gather(asyncio.create_task(pay_later()), asyncio.to_thread(int))

    asyncio.run(main())


def in_threads(pay: Callable[[str], str]) -> None:
    async def main() -> None:
        await asyncio.to_thread(pay, "INV")

    asyncio.run(main())


def in_pool(pay: Callable[[str], str]) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(mulligan.carry_run(pay), "INV").result()


def in_run(pay: Callable[[str], str]) -> None:
    with mulligan.run("inner") as run, run.step("plan"):
        pay("INV")


@pytest.mark.parametrize("way", [in_task, in_threads, in_pool, in_run])
@pytest.mark.parametrize("is_deep", [False, True], ids=["directly", "inside another read"])
def test_payment_elsewhere_in_the_same_context_forbids_a_repetition(
    played: Sandbox, way: Callable[..., None], is_deep: bool
) -> None:
    paid: list[str] = []
    pay = pay_and_fail(paid)

    @mulligan.tool(effects="none")
    def read() -> None:
        way(pay)

    @mulligan.tool(effects="none")
    def checkout() -> None:
        read() if is_deep else way(pay)
        raise ConnectionResetError("reset")

    with pytest.raises(ConnectionResetError):
        checkout()
    assert paid == ["INV"]


def test_payment_in_a_task_that_outlives_the_attempt_forbids_a_repetition(played: Sandbox) -> None:
    paid: list[str] = []
    tasks: list[Any] = []

    @mulligan.tool
    async def pay(invoice: str) -> str:
        await asyncio.sleep(0)
        paid.append(invoice)
        return "paid"

    @mulligan.tool(effects="none")
    async def checkout() -> None:
        tasks.append(asyncio.create_task(pay("INV")))
        raise ConnectionResetError("reset")

    async def main() -> None:
        with pytest.raises(ConnectionResetError):
            await checkout()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert paid == ["INV"]


def test_plain_thread_is_outside(played: Sandbox) -> None:
    paid: list[str] = []
    pay = pay_and_fail(paid)

    @mulligan.tool(effects="none")
    def checkout() -> str:
        thread = threading.Thread(target=pay, args=("INV",))
        thread.start()
        thread.join()
        if len(paid) == 1:
            raise ConnectionResetError("reset")
        return "done"

    assert checkout() == "done"
    assert len(paid) == 2


# Who retries


def flaky_read(failures: int, executed: list[str]) -> Callable[[str], str]:
    @mulligan.tool(effects="none")
    def read(key: str) -> str:
        executed.append(key)
        if len(executed) <= failures:
            raise ConnectionResetError("connection reset by peer")
        return "value"

    return read


@pytest.mark.parametrize("options", [{}, {"timeout": 30}], ids=["short", "long"])
def test_read_inside_a_tool_with_effects_recovers_itself(played: Sandbox, options: dict[str, Any]) -> None:
    executed: list[str] = []
    read = flaky_read(1, executed)

    @mulligan.tool(**options)
    def checkout(order: str) -> str:
        return read(order)

    with mulligan.run("shop") as run:
        assert checkout("A") == "value"
    assert len(executed) == 2
    assert run.status == "recovered"


def test_read_after_a_payment_recovers_itself_and_one_before_it_does_not(played: Sandbox) -> None:
    before, after, paid = [], [], []
    read_before, read_after, pay = flaky_read(1, before), flaky_read(2, after), pay_and_fail(paid)

    @mulligan.tool(effects="none")
    def checkout(order: str) -> str:
        read_before(order)
        pay(order)
        return read_after(order)

    assert checkout("A") == "value"
    assert (len(before), len(paid), len(after)) == (2, 1, 3)
    reasons = [step.stop.reason for step in played.steps if step.stop is not None]
    assert reasons == ["the enclosing call recovers it"]


def test_outermost_read_after_a_payment_retries(played: Sandbox) -> None:
    executed: list[str] = []
    read, pay = flaky_read(1, executed), pay_and_fail([])

    @mulligan.tool(effects="none")
    def read_all(order: str) -> str:
        return read(order)

    @mulligan.tool(effects="none")
    def checkout(order: str) -> str:
        pay(order)
        return read_all(order)

    assert checkout("A") == "value"
    reasons = [step.stop.reason for step in played.steps if step.stop is not None]
    assert reasons == ["the enclosing call recovers it"]


def test_read_that_a_payment_beside_it_left_alone_is_retried(played: Sandbox) -> None:
    executed: list[str] = []

    @mulligan.tool
    async def pay() -> None:
        await asyncio.sleep(0)

    @mulligan.tool(effects="none")
    async def read() -> str:
        executed.append("read")
        await asyncio.sleep(0)
        if len(executed) == 1:
            raise ConnectionResetError("reset")
        return "value"

    @mulligan.tool(effects="none")
    async def checkout() -> Any:
        return await asyncio.gather(read(), pay())

    assert asyncio.run(checkout()) == ["value", None]
    assert len(executed) == 2


def test_failed_read_that_retried_itself_is_not_retried_by_the_call_around_it(played: Sandbox) -> None:
    """The payment is under way when the read begins, and proves afterwards that it did not execute."""
    executed: list[str] = []

    @mulligan.tool
    async def pay(is_read: asyncio.Event) -> None:
        await is_read.wait()
        raise AgentError("Unknown invoice.")

    @mulligan.tool(effects="none")
    async def read() -> None:
        executed.append("read")
        raise ConnectionResetError("reset")

    @mulligan.tool(effects="none")
    async def checkout() -> None:
        is_read = asyncio.Event()
        task = asyncio.create_task(pay(is_read))
        await asyncio.sleep(0)
        try:
            await read()
        finally:
            is_read.set()
            await asyncio.gather(task, return_exceptions=True)

    with pytest.raises(ConnectionResetError) as raised:
        asyncio.run(checkout())
    assert len(executed) == 10
    assert "read was retried inside this attempt" in raised.value.__notes__[0]


# Random trees


class Node(NamedTuple):
    """A call in a random program."""

    effects: str
    failures: int
    """How many of its executions fail."""
    error: type[Exception]
    fails_late: bool
    """Whether it fails after its children."""
    is_async: bool
    is_model: bool
    way: str
    """How it calls its children."""
    catches: bool
    """Whether it goes on after a child failed."""
    children: tuple[Node, ...]


def nodes(children: st.SearchStrategy[tuple[Node, ...]]) -> st.SearchStrategy[Node]:
    return st.builds(
        Node,
        effects=st.sampled_from(["none", "idempotent", "once"]),
        failures=st.sampled_from([0, 1, 1, 2, 9]),
        error=st.sampled_from([ConnectionResetError, TimeoutError, AgentError]),
        fails_late=st.booleans(),
        is_async=st.booleans(),
        is_model=st.booleans(),
        way=st.sampled_from(["call", "gather", "task", "thread", "turn"]),
        catches=st.booleans(),
        children=children,
    )


TREES = st.recursive(nodes(st.just(())), lambda inner: nodes(st.lists(inner, max_size=3).map(tuple)), max_leaves=6)
FAILING_READS = TREES.map(
    lambda tree: tree._replace(effects="none", failures=1, error=ConnectionResetError, fails_late=True)
)
"""Trees whose root is repeated unless something inside forbids it: few random ones are."""
Invocation = tuple[int, int]
"""A call by the program, and the execution of it."""
path: ContextVar[tuple[Invocation, ...]] = ContextVar("path", default=())
requested: ContextVar[int] = ContextVar("requested", default=0)


class Program:
    """Executes a tree, and counts what each call of the program executed."""

    def __init__(self) -> None:
        self.executed_effects: Counter[int] = Counter()
        """By node: executions that are not proven to have had no effect."""
        self.node_executions: Counter[int] = Counter()
        self.executions: Counter[int] = Counter()
        """By call of the program."""
        self.paths: dict[int, tuple[Invocation, ...]] = {}
        self.node_of_call: dict[int, Node] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def build(self, node: Node) -> Callable[[], Any]:
        children = [(child, self.build(child)) for child in node.children]
        number = next(self._numbers)

        def enter() -> bool:
            """Return whether this execution fails."""
            call = requested.get()
            with self._lock:
                self.node_executions[number] += 1
                self.executions[call] += 1
                self.paths[call], self.node_of_call[call] = path.get(), node
                path.set((*path.get(), (call, self.executions[call])))
                fails = self.node_executions[number] <= node.failures
                is_rejected = fails and node.error is AgentError and not node.fails_late
                if node.effects == "once" and not is_rejected:
                    self.executed_effects[number] += 1
            return fails

        def function() -> str:
            token = path.set(path.get())
            try:
                fails = enter()
                if fails and not node.fails_late:
                    raise node.error("connection reset")
                for child, call in children:
                    self.call_child(node, child, call)
                if fails:
                    raise (ConnectionResetError if node.error is AgentError else node.error)("connection reset")
                return "done"
            finally:
                path.reset(token)

        async def afunction() -> str:
            token = path.set(path.get())
            try:
                fails = enter()
                if fails and not node.fails_late:
                    raise node.error("connection reset")
                await self.acall_children(node, children)
                if fails:
                    raise (ConnectionResetError if node.error is AgentError else node.error)("connection reset")
                return "done"
            finally:
                path.reset(token)

        chosen = afunction if node.is_async else function
        chosen.__name__ = chosen.__qualname__ = f"node_{number}"
        if node.is_model and node.effects == "none":
            return mulligan.model(chosen)
        return mulligan.tool(effects=node.effects)(chosen)  # type: ignore[call-overload, no-any-return]

    def request(self) -> None:
        with self._lock:
            requested.set(next(self._numbers))

    def call_child(self, node: Node, child: Node, call: Callable[[], Any]) -> None:
        self.request()
        try:
            if child.is_async:
                carried = mulligan.carry_run(lambda: asyncio.run(call()))
                with concurrent.futures.ThreadPoolExecutor(1) as pool:
                    pool.submit(carried).result()
            elif node.way == "thread":
                with concurrent.futures.ThreadPoolExecutor(1) as pool:
                    pool.submit(mulligan.carry_run(call)).result()
            elif node.way == "turn":
                for turn in mulligan.turns(limit=1):
                    turn.call([call], call.__name__)
            else:
                call()
        except (OSError, AgentError):
            if not node.catches:
                raise

    async def acall_child(self, node: Node, child: Node, call: Callable[[], Any]) -> None:
        self.request()
        if child.is_async:
            await call()
        elif node.way == "thread":
            await asyncio.to_thread(call)
        elif node.way == "turn":
            for turn in mulligan.turns(limit=1):
                await turn.acall([call], call.__name__)
        else:
            call()

    async def acall_children(self, node: Node, children: list[tuple[Node, Callable[[], Any]]]) -> None:
        calls = [self.acall_child(node, *child) for child in children]
        if node.way == "gather":
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        else:
            outcomes = []
            for call in calls:
                task = asyncio.create_task(call) if node.way == "task" else call
                outcomes += await asyncio.gather(task, return_exceptions=True)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if errors and not node.catches:
            raise errors[0]


PATIENT = Policy(attempts=3, initial_backoff=0, max_run_retries=1000, retry_tokens=1000, down_after=0)


@settings(max_examples=500)
@given(st.one_of(FAILING_READS, TREES))
def test_no_effect_happens_twice_and_one_layer_retries_each_read(tree: Node) -> None:
    program = Program()
    with sandbox(policy=PATIENT), mulligan.run("tree"):
        root = program.build(tree)
        program.request()
        with contextlib.suppress(OSError, AgentError):
            asyncio.run(root()) if tree.is_async else root()
    assert not [number for number, count in program.executed_effects.items() if count > 1]
    for call, count in program.executions.items():
        node, ancestors = program.node_of_call[call], program.paths[call]
        assert count <= PATIENT.attempts
        if count > 1:  # retried by itself: nothing around it was repeated
            assert all(program.executions[outer] == execution for outer, execution in ancestors)
        is_transient = node.error is not AgentError and node.failures < PATIENT.attempts
        outer_effects = {program.node_of_call[outer].effects for outer, _ in ancestors}
        if node.effects != "once" and not node.children and is_transient and outer_effects <= {"once"}:
            assert count == node.failures + 1


# Idempotency keys


def test_idempotency_key_is_the_same_for_all_attempts_and_new_for_a_repair_and_for_another_call(
    played: Sandbox,
) -> None:
    keys: list[str] = []

    @mulligan.tool(effects="none", clamp=["top_k"])
    def order(top_k: int) -> str:
        keys.append(mulligan.idempotency_key())
        assert mulligan.idempotency_key() == keys[-1]
        if top_k > 10:
            raise AgentError(f"top_k must be 10 or less, got {top_k}.")
        if len(keys) < 3:
            raise ConnectionResetError("reset")
        return "done"

    with mulligan.run("shop"):
        order(50)
        order(10)
    first, repaired, retried, another = keys
    assert len(first) == 32
    assert int(first, 16)
    assert repaired == retried
    assert len({first, repaired, another}) == 3


def test_idempotency_key_of_a_nested_call_is_the_same_when_the_outer_call_is_repeated(played: Sandbox) -> None:
    keys: list[list[str]] = []

    @mulligan.tool(effects="idempotent")
    def store(item: dict[str, Any]) -> None:
        keys[-1].append(mulligan.idempotency_key())

    @mulligan.tool(effects="none")
    def build() -> str:
        keys.append([])
        for name in ("a", "b", "a"):
            store({"name": name})
        keys[-1].append(mulligan.idempotency_key())
        if len(keys) == 1:
            raise ConnectionResetError("reset")
        return "done"

    build()
    build()
    first, repeated, another = keys
    assert first == repeated
    assert len({*first, *another}) == 8


def test_idempotency_key_works_in_turns_tasks_and_threads(played: Sandbox) -> None:
    keys: list[set[str]] = []

    @mulligan.tool(effects="idempotent")
    async def order() -> str:
        with mulligan.run("inner") as run, run.step("plan"):
            nested = mulligan.idempotency_key()
        keys.append({nested, await asyncio.to_thread(mulligan.idempotency_key)})
        if len(keys) == 1:
            raise ConnectionResetError("reset")
        return "done"

    async def main() -> None:
        for turn in mulligan.turns(limit=1):
            assert (await turn.acall([order], "order")).ok

    asyncio.run(main())
    assert keys[0] == keys[1]
    assert len(keys[0]) == 1


def test_idempotency_key_outside_a_call_is_refused_and_works_while_mulligan_is_off(played: Sandbox) -> None:
    with pytest.raises(SettingsError, match="outside a wrapped call"):
        mulligan.idempotency_key()
    program = mulligan.Mulligan(enabled=False)
    assert program.tool(program.idempotency_key)() != program.idempotency_key()
