"""A model asks again for a call whose answer was lost: it is answered, not executed, until the outcome is settled."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

import mulligan
from mulligan import AgentError, ToolOutcome
from mulligan.testing import Sandbox, ScriptedModel, call, sandbox

PAYMENT = {"invoice": "INV-1", "amount": 120}


class ServerError(Exception):
    """The exception of an HTTP client."""

    def __init__(self, status_code: int) -> None:
        super().__init__(f"HTTP {status_code}")
        self.status_code = status_code


class Bank:
    """Executes payments, and loses the answer of the first one."""

    def __init__(self, error: Exception | None = None, **options: Any) -> None:
        self.paid: list[dict[str, Any]] = []
        self.error = TimeoutError("no answer in 30 s") if error is None else error

        @mulligan.tool(**options)
        def pay(invoice: str, amount: float, currency: str = "EUR", note: str | None = None) -> str:
            self.paid.append({"invoice": invoice, "amount": amount})
            if len(self.paid) == 1:
                raise self.error
            return "paid"

        @mulligan.tool(effects="none")
        def get_invoice(invoice: str) -> dict[str, str]:
            return {"invoice": invoice, "state": "open"}

        @mulligan.tool(effects="none")
        def list_invoices(state: str = "open", limit: int = 120) -> list[dict[str, str]]:
            return [{"invoice": "INV-1", "state": state}]

        self.pay, self.get_invoice, self.list_invoices = pay, get_invoice, list_invoices

    @property
    def tools(self) -> list[Callable[..., Any]]:
        return [self.pay, self.get_invoice, self.list_invoices]


@pytest.fixture(autouse=True)
def played() -> Iterator[Sandbox]:
    with sandbox() as played:
        yield played


def request(bank: Bank, *calls: tuple[str, Any], **options: Any) -> list[ToolOutcome]:
    """Make each call in a turn of its own."""
    turns = mulligan.turns(limit=len(calls), **options)
    return [turn.call(bank.tools, *requested) for turn, requested in zip(turns, calls, strict=False)]


def is_blocked(outcome: ToolOutcome) -> bool:
    return not outcome.ok and "was not called again" in outcome.to_message()


# Asking again


def test_payment_whose_answer_was_lost_is_not_executed_again(played: Sandbox) -> None:
    bank = Bank()
    with mulligan.run("clerk") as run:
        _, second = request(bank, ("pay", PAYMENT), ("pay", PAYMENT))
    assert len(bank.paid) == 1
    assert run.status == "failure"
    told = json.loads(second.to_message())
    assert "the same call was made before, and its outcome is unknown" in told["message"]
    assert told["outcome"] == "unknown: the call may have executed. Check before you repeat it."
    assert told["hint"] == "Look up with a tool that only reads whether the first call took effect, or ask the user."
    assert [step.outcome for step in played.steps] == ["failure", "blocked"]
    assert run.links() == []


LOST = [
    TimeoutError("no answer in 30 s"),
    ConnectionResetError("Connection reset by peer"),
    ConnectionError("the connection was closed"),
    ServerError(500),
    ServerError(502),
    ServerError(504),
    RuntimeError("the worker was killed by SIGKILL"),
    AgentError("The bank did not answer.", code="timeout"),
]


@pytest.mark.parametrize("error", LOST, ids=repr)
def test_every_lost_answer_blocks_the_same_call(error: Exception) -> None:
    bank = Bank(error)
    _, second, third = request(bank, *[("pay", PAYMENT)] * 3)
    assert is_blocked(second)
    assert is_blocked(third)
    assert len(bank.paid) == 1


ANSWERS = [
    ValueError("the amount must be a multiple of 5"),
    RuntimeError("insufficient funds"),
    RuntimeError("boom"),
    AgentError("Use another invoice."),
    AgentError("The batch was sent in part.", code="tool_execution_failed"),
    ServerError(409),
    ServerError(422),
    ServerError(429),
]


@pytest.mark.parametrize("error", ANSWERS, ids=repr)
def test_exception_that_the_function_raised_is_an_answer(error: Exception) -> None:
    bank = Bank(error)
    with mulligan.run("clerk") as run:
        _, second = request(bank, ("pay", PAYMENT), ("pay", PAYMENT))
    assert second.ok
    assert len(bank.paid) == 2
    assert run.status == "recovered"


def test_result_that_reports_a_gateway_error_is_a_lost_answer() -> None:
    paid = []

    @mulligan.tool
    def pay(invoice: str) -> dict[str, Any]:
        paid.append(invoice)
        return {"status": 502, "error": "Bad Gateway"} if len(paid) == 1 else {"status": 200}

    for turn in mulligan.turns(limit=2):
        outcome = turn.call([pay], "pay", {"invoice": "INV-1"})
    assert is_blocked(outcome)
    assert paid == ["INV-1"]


@pytest.mark.parametrize("effects", ["none", "idempotent"])
def test_call_that_may_be_repeated_is_not_blocked(effects: str) -> None:
    bank = Bank(effects=effects, policy=mulligan.Policy(attempts=1))
    _, second = request(bank, ("pay", PAYMENT), ("pay", PAYMENT))
    assert second.ok


@pytest.mark.parametrize(
    "again",
    [
        {"amount": 120, "invoice": "INV-1"},
        {"invoice": "INV-1", "amount": 120.0},
        '{"amount": 120.0, "invoice": "INV-1"}',
        {"invoice": "INV-1", "amount": 120, "currency": "EUR"},
        {"invoice": "INV-1", "amount": 120, "note": None},
        {"Invoice": "INV-1", "amount": 120},
    ],
    ids=str,
)
def test_same_call_in_another_form_is_not_executed_again(again: Any) -> None:
    bank = Bank()
    _, second = request(bank, ("pay", PAYMENT), ("pay", again))
    assert is_blocked(second)
    assert len(bank.paid) == 1


def test_repair_that_leads_to_the_same_call_is_not_executed_again() -> None:
    booked = []

    @mulligan.tool
    def book(room: str, nights: int) -> str:
        booked.append(nights)
        raise TimeoutError("no answer")

    for turn, nights in zip(mulligan.turns(limit=3), (2, "2", " 2 "), strict=False):
        outcome = turn.call([book], "book", {"room": "A7", "nights": nights})
    assert is_blocked(outcome)
    assert booked == [2]


def test_same_call_by_a_misspelled_tool_name_is_not_executed_again() -> None:
    bank = Bank()
    _, second = request(bank, ("pay", PAYMENT), ("Pay", PAYMENT))
    assert is_blocked(second)
    assert len(bank.paid) == 1


@pytest.mark.parametrize(
    "other", [{**PAYMENT, "invoice": "INV-2"}, {**PAYMENT, "amount": 121}, {**PAYMENT, "note": "x"}]
)
def test_other_arguments_are_executed_and_recover_nothing(other: dict[str, Any]) -> None:
    bank = Bank()
    with mulligan.run("clerk") as run:
        _, second = request(bank, ("pay", PAYMENT), ("pay", other))
    assert second.ok
    assert run.status == "partial"
    assert run.links() == []


def test_typed_arguments_are_compared_by_value() -> None:
    class Unit(enum.Enum):
        EUR = "eur"

    paid = []

    @mulligan.tool
    def pay(amount: Decimal, unit: Unit = Unit.EUR, lines: list[dict[str, int]] | None = None) -> str:
        paid.append(amount)
        if lines:
            lines.clear()
        raise TimeoutError("no answer")

    turns = iter(mulligan.turns(limit=3))
    next(turns).call([pay], "pay", {"amount": "120", "lines": [{"b": 1, "a": 2}]})
    assert is_blocked(next(turns).call([pay], "pay", {"amount": 120, "unit": "eur", "lines": [{"a": 2, "b": 1}]}))
    assert paid == [Decimal(120)]


def test_each_of_several_lost_answers_is_remembered() -> None:
    paid = []

    @mulligan.tool
    def pay(invoice: str) -> str:
        paid.append(invoice)
        raise TimeoutError("no answer")

    @mulligan.tool
    def refund(invoice: str) -> str:
        paid.append(invoice)
        raise ConnectionResetError("reset")

    for turn in mulligan.turns(limit=2):
        outcomes = [turn.call([pay, refund], name, {"invoice": invoice})
                    for name in ("pay", "refund") for invoice in ("INV-1", "INV-2")]  # fmt: skip
    assert len(paid) == 4
    assert all(map(is_blocked, outcomes))


def test_same_arguments_of_another_tool_are_another_call() -> None:
    paid = []

    class Account:
        def __init__(self, name: str) -> None:
            self.name = name

        @mulligan.tool
        def pay(self, invoice: str) -> str:
            paid.append(self.name)
            raise TimeoutError("no answer")

    tools = {"pay_first": Account("first").pay, "pay_second": Account("second").pay}
    for turn in mulligan.turns(limit=2):
        for name in tools:
            turn.call(tools, name, {"invoice": "INV-1"})
    assert paid == ["first", "second"]


def test_object_of_a_method_that_is_created_anew_is_the_same_tool() -> None:
    paid = []

    class Account:
        @mulligan.tool
        def pay(self, invoice: str) -> str:
            paid.append(invoice)
            raise TimeoutError("no answer")

    for turn in mulligan.turns(limit=2):
        turn.call([Account().pay], "pay", {"invoice": "INV-1"})
    assert paid == ["INV-1"]


def test_async_call_is_not_executed_again() -> None:
    paid = []

    @mulligan.tool
    async def pay(invoice: str) -> str:
        paid.append(invoice)
        raise TimeoutError("no answer")

    async def play() -> list[ToolOutcome]:
        return [await turn.acall([pay], "pay", {"invoice": "INV-1"}) for turn in mulligan.turns(limit=3)]

    assert [is_blocked(outcome) for outcome in asyncio.run(play())] == [False, True, True]
    assert paid == ["INV-1"]


def test_parallel_calls_are_each_not_executed_again() -> None:
    paid = []

    @mulligan.tool
    async def pay(invoice: str) -> str:
        paid.append(invoice)
        await asyncio.sleep(0)
        raise TimeoutError("no answer")

    async def play() -> None:
        for turn in mulligan.turns(limit=2):
            requests = (turn.acall([pay], "pay", {"invoice": f"INV-{number}"}) for number in range(3))
            outcomes = await asyncio.gather(*requests)
        assert all(map(is_blocked, outcomes))

    asyncio.run(play())
    assert sorted(paid) == ["INV-0", "INV-1", "INV-2"]


@pytest.mark.parametrize("is_async", [False, True])
def test_call_that_was_cut_off_is_not_executed_again(is_async: bool) -> None:
    paid = []

    @mulligan.tool
    async def pay(invoice: str) -> str:
        paid.append(invoice)
        await asyncio.sleep(60)
        return "paid"

    @mulligan.tool
    def pay_here(invoice: str) -> str:
        paid.append(invoice)
        raise KeyboardInterrupt

    async def play() -> ToolOutcome:
        turns = iter(mulligan.turns(limit=3))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(next(turns).acall([pay], "pay", {"invoice": "INV-1"}), 0.01)
        return await next(turns).acall([pay], "pay", {"invoice": "INV-1"})

    if is_async:
        assert is_blocked(asyncio.run(play()))
    else:
        turns = iter(mulligan.turns(limit=3))
        with pytest.raises(KeyboardInterrupt):
            next(turns).call([pay_here], "pay_here", {"invoice": "INV-1"})
        assert is_blocked(next(turns).call([pay_here], "pay_here", {"invoice": "INV-1"}))
    assert paid == ["INV-1"]


def test_call_of_the_program_that_was_cut_off_is_not_executed_for_a_model() -> None:
    paid = []

    @mulligan.tool
    async def pay(invoice: str) -> str:
        paid.append(invoice)
        await asyncio.sleep(60)
        return "paid"

    async def play() -> ToolOutcome:
        with mulligan.run("clerk"):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(pay("INV-1"), 0.01)
            return await next(iter(mulligan.turns())).acall([pay], "pay", {"invoice": "INV-1"})

    assert is_blocked(asyncio.run(play()))


def test_call_around_a_lost_answer_is_not_executed_again() -> None:
    bank = Bank()

    @mulligan.tool
    def check_out(cart: str) -> str:
        try:
            return str(bank.pay("INV-1", 120))
        except TimeoutError:
            raise RuntimeError("the check-out failed") from None

    for turn in mulligan.turns(limit=2):
        outcome = turn.call([check_out], "check_out", {"cart": "cart-7"})
    assert is_blocked(outcome)
    assert len(bank.paid) == 1


def test_agent_inside_a_tool_does_not_execute_it_again() -> None:
    bank = Bank()

    @mulligan.tool(effects="none")
    def delegate(task: str) -> str:
        with mulligan.run("payer"):
            return request(bank, ("pay", PAYMENT), ("pay", PAYMENT))[-1].to_message()

    for turn in mulligan.turns(limit=2):
        assert "was not called again" in turn.call([delegate], "delegate", {"task": "pay"}).to_message()
    assert len(bank.paid) == 1


def test_observed_call_is_always_made() -> None:
    bank = Bank(mode="observe")
    _, second = request(bank, ("pay", PAYMENT), ("pay", PAYMENT))
    assert second.ok


def test_agent_that_acts_by_other_means_gets_a_note() -> None:
    bank = Bank()
    with mulligan.run("clerk") as run:
        _, second = request(bank, ("pay", PAYMENT), ("pay", PAYMENT), block_loops=False)
    assert second.ok
    assert "its outcome is unknown: check before you repeat it" in second.to_message()
    assert run.status == "partial"


def test_program_that_repeats_the_call_gets_a_note() -> None:
    bank = Bank()
    with mulligan.run("clerk") as run:
        with pytest.raises(TimeoutError):
            bank.pay(**PAYMENT)
        assert bank.pay(**PAYMENT) == "paid"
        notes = mulligan.drain_notes()
    assert "the same call of pay was made before and its outcome is unknown" in notes[-1]
    assert run.status == "partial"


# A loop


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_loop_does_not_execute_it_again(style: Any, is_async: bool) -> None:
    bank = Bank()
    model = ScriptedModel(call("pay", **PAYMENT), call("pay", **PAYMENT), "I do not know.", style=style)
    if is_async:

        async def play() -> Any:
            return await mulligan.loop(model.awaited, bank.tools, "Pay INV-1.")

        result = asyncio.run(play())
    else:
        result = mulligan.loop(model, bank.tools, "Pay INV-1.")
    assert len(bank.paid) == 1
    assert result.status == "partial"
    assert "was not called again" in json.dumps(model.requests[-1])


# Sessions


def test_second_run_of_a_session_does_not_execute_it_again() -> None:
    bank = Bank()
    with mulligan.session() as session:
        with mulligan.run("clerk", session=session):
            request(bank, ("pay", PAYMENT))
        with mulligan.run("clerk", session=session.id):
            (second,) = request(bank, ("pay", PAYMENT))
    assert is_blocked(second)


def test_another_session_executes_it() -> None:
    bank = Bank()
    for name in ("monday", "tuesday"):
        with mulligan.session(name) as session, mulligan.run("clerk", session=session):
            (outcome,) = request(bank, ("pay", PAYMENT))
    assert outcome.ok


def test_run_without_a_session_starts_afresh() -> None:
    bank = Bank()
    with mulligan.run("clerk"):
        request(bank, ("pay", PAYMENT))
    with mulligan.run("clerk"):
        (second,) = request(bank, ("pay", PAYMENT))
    assert second.ok


# Settling


@pytest.mark.parametrize(
    "lookup", [("get_invoice", {"invoice": "INV-1"}), ("list_invoices", {})], ids=["call", "result"]
)
def test_lookup_of_the_same_object_settles_it(lookup: tuple[str, Any]) -> None:
    bank = Bank()
    with mulligan.run("clerk") as run:
        *_, last = request(bank, ("pay", PAYMENT), lookup, ("pay", PAYMENT))
    assert last.ok
    assert len(bank.paid) == 2
    assert run.status == "recovered"


@pytest.mark.parametrize(
    "lookup",
    [
        ("get_invoice", {"invoice": "INV-12"}),
        ("get_invoice", {}),
        ("get_invoice", {"invoice": "120"}),
    ],
    ids=str,
)
def test_other_lookup_settles_nothing(lookup: tuple[str, Any]) -> None:
    bank = Bank()
    *_, last = request(bank, ("pay", PAYMENT), lookup, ("pay", PAYMENT))
    assert is_blocked(last)


def test_lookup_in_a_later_run_of_the_session_settles_it() -> None:
    bank = Bank()
    with mulligan.session() as session:
        with mulligan.run("clerk", session=session):
            request(bank, ("pay", PAYMENT))
        with mulligan.run("clerk", session=session):
            bank.get_invoice("INV-1")
            (last,) = request(bank, ("pay", PAYMENT))
    assert last.ok


def test_lookup_inside_a_tool_settles_nothing() -> None:
    bank = Bank()

    @mulligan.tool
    def remind(invoice: str) -> str:
        return f"reminded of {bank.get_invoice(invoice)['state']}"

    with mulligan.run("clerk"):
        request(bank, ("pay", PAYMENT))
        remind("INV-1")
        (last,) = request(bank, ("pay", PAYMENT))
    assert is_blocked(last)


def test_lookup_that_began_before_settles_nothing() -> None:
    @mulligan.tool
    async def pay(invoice: str) -> str:
        raise TimeoutError("no answer")

    @mulligan.tool(effects="none")
    async def get_invoice(invoice: str) -> str:
        for _ in range(5):
            await asyncio.sleep(0)
        return "open"

    async def play() -> ToolOutcome:
        turns = iter(mulligan.turns())
        turn, tools, arguments = next(turns), [pay, get_invoice], {"invoice": "INV-1"}
        await asyncio.gather(turn.acall(tools, "get_invoice", arguments), turn.acall(tools, "pay", arguments))
        return await next(turns).acall(tools, "pay", arguments)

    assert is_blocked(asyncio.run(play()))


def test_lookup_by_the_program_that_began_before_settles_nothing() -> None:
    @mulligan.tool
    async def pay(invoice: str) -> str:
        raise TimeoutError("no answer")

    @mulligan.tool(effects="none")
    async def get_invoice(invoice: str) -> str:
        for _ in range(5):
            await asyncio.sleep(0)
        return "open"

    async def play() -> ToolOutcome:
        with mulligan.run("clerk"):
            await asyncio.gather(get_invoice("INV-1"), pay("INV-1"), return_exceptions=True)
            return await next(iter(mulligan.turns())).acall([pay], "pay", {"invoice": "INV-1"})

    assert is_blocked(asyncio.run(play()))


def test_answer_that_is_lost_again_blocks_again() -> None:
    paid = []

    @mulligan.tool
    def pay(invoice: str) -> str:
        paid.append(invoice)
        raise TimeoutError("no answer")

    with mulligan.run("clerk"):
        for turn in mulligan.turns(limit=4):
            if turn.number == 3:
                assert mulligan.settle() == 1
            turn.call([pay], "pay", {"invoice": "INV-1"})
    assert len(paid) == 2


def test_verify_that_denies_the_call_leaves_nothing_to_settle() -> None:
    bank = Bank(verify=lambda **payment: False, policy=mulligan.Policy(attempts=1))
    with mulligan.run("clerk") as run:
        first, second = request(bank, ("pay", PAYMENT), ("pay", PAYMENT))
    assert (first.ok, second.ok) == (False, True)
    assert run.status == "recovered"


def test_verify_that_learns_the_outcome_later_settles_it() -> None:
    answers: list[Any] = [None, "paid with receipt 7"]
    paid = []

    def find_receipt(invoice: str) -> Any:
        return answers.pop(0)

    @mulligan.tool(verify=find_receipt)
    def pay(invoice: str) -> str:
        paid.append(invoice)
        raise TimeoutError("no answer")

    with mulligan.run("clerk") as run:
        for turn in mulligan.turns(limit=2):
            outcome = turn.call([pay], "pay", {"invoice": "INV-1"})
    assert outcome.value == "paid with receipt 7"
    assert len(paid) == 1
    assert run.status == "recovered"


def test_verify_that_denies_later_lets_the_call_be_made() -> None:
    answers: list[Any] = [None, False]
    paid = []

    @mulligan.tool(verify=lambda invoice: answers.pop(0))
    def pay(invoice: str) -> str:
        paid.append(invoice)
        if len(paid) == 1:
            raise TimeoutError("no answer")
        return "paid"

    with mulligan.run("clerk") as run:
        for turn in mulligan.turns(limit=2):
            outcome = turn.call([pay], "pay", {"invoice": "INV-1"})
    assert outcome.value == "paid"
    assert run.status == "recovered"


def test_verify_that_reads_with_a_tool_and_cannot_tell_settles_nothing() -> None:
    bank = Bank()
    paid = []

    def cannot_tell(invoice: str) -> None:
        bank.get_invoice(invoice)

    @mulligan.tool(verify=cannot_tell)
    def pay(invoice: str) -> str:
        paid.append(invoice)
        raise TimeoutError("no answer")

    for turn in mulligan.turns(limit=4):
        turn.call([pay], "pay", {"invoice": "INV-1"})
    assert len(paid) == 1


def test_new_user_message_settles_it_in_a_loop() -> None:
    bank = Bank()
    with mulligan.session() as session:
        for text in ("Pay INV-1.", "Pay INV-1.", "It was not paid. Pay it again."):
            with mulligan.run("clerk", session=session):
                mulligan.loop(ScriptedModel(call("pay", **PAYMENT), "Done."), bank.tools, text)
            if text == "Pay INV-1.":
                assert len(bank.paid) == 1
    assert len(bank.paid) == 2


@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_new_user_message_in_the_same_conversation_settles_it(style: Any) -> None:
    bank = Bank()
    with mulligan.run("clerk"):
        model = ScriptedModel(call("pay", **PAYMENT), "I do not know.", style=style)
        result = mulligan.loop(model, bank.tools, "Pay INV-1.", limit=2)
        for messages, payments in (
            (result.messages, 1),
            ([*result.messages, {"role": "user", "content": "Again."}], 2),
        ):
            mulligan.loop(ScriptedModel(call("pay", **PAYMENT), "Done.", style=style), bank.tools, messages)
            assert len(bank.paid) == payments


def test_new_user_message_to_a_wrapped_model_settles_it_in_turns() -> None:
    bank = Bank()

    @mulligan.model
    def ask(messages: list[Any]) -> str:
        return "pay"

    first = {"role": "user", "content": "Pay INV-1."}
    answer = {"role": "assistant", "content": "The outcome is unknown."}
    again = {"role": "user", "content": "It was not paid. Pay it again."}
    with mulligan.session() as session:
        for messages, payments in (
            ([first], 1),
            ([first, answer], 1),
            ([first, answer, again], 3),
        ):  # settled: both are made
            with mulligan.run("clerk", session=session):
                for turn in mulligan.turns(limit=2):
                    ask([{"role": "user", "content": f"Review the plan: {messages}"}])
                    ask(messages)
                    outcome = turn.call(bank.tools, "pay", PAYMENT)
                    messages.append({"role": "user", "content": f"Observation: {outcome.to_message()}"})
            assert len(bank.paid) == payments, messages


def test_new_user_message_settles_what_an_agent_inside_a_tool_has_lost() -> None:
    bank = Bank()

    @mulligan.tool
    def delegate(task: str) -> str:
        with mulligan.run("payer"):
            return mulligan.loop(ScriptedModel(call("pay", **PAYMENT), "Done."), bank.tools, task).text

    with mulligan.run("clerk"):
        for text, payments in (("Pay INV-1.", 1), ("Pay INV-1.", 1), ("Pay it again.", 2)):
            mulligan.loop(ScriptedModel(call("delegate", task=text), "Done."), [delegate], text)
            assert len(bank.paid) == payments


def test_stream_that_ends_early_is_not_cut_off() -> None:
    @mulligan.tool
    def read_rows(table: str) -> Iterator[int]:
        yield from range(3)

    with mulligan.run("clerk"):
        for _ in read_rows("T-100"):
            break
        outcome = next(iter(mulligan.turns())).call([read_rows], "read_rows", {"table": "T-100"})
    assert outcome.value == [0, 1, 2]


@pytest.mark.parametrize("has_run", [False, True])
def test_message_of_an_agent_inside_a_tool_settles_nothing(has_run: bool) -> None:
    bank = Bank()

    @mulligan.tool(effects="none")
    def research(question: str) -> str:
        with mulligan.run("researcher") if has_run else contextlib.nullcontext():
            return mulligan.loop(ScriptedModel("Nothing."), [], question).text

    model = ScriptedModel(call("pay", **PAYMENT), call("research", question="who?"), call("pay", **PAYMENT), "Done.")
    mulligan.loop(model, [*bank.tools, research], "Pay INV-1.")
    assert len(bank.paid) == 1


@pytest.mark.parametrize(
    ("settled", "count"),
    [
        ((), 2),
        (("pay",), 2),
        (("refund",), 0),
        (("pay", {"invoice": "INV-1"}), 1),
        (("pay", {"invoice": "INV-1", "currency": "EUR", "amount": 120.0}), 1),
        (("pay", {"invoice": "INV-3"}), 0),
    ],
    ids=str,
)
def test_settle_settles_what_it_names(settled: tuple[Any, ...], count: int) -> None:
    paid = []

    @mulligan.tool
    def pay(invoice: str, amount: float, currency: str = "EUR") -> str:
        paid.append(invoice)
        raise TimeoutError("no answer")

    with mulligan.run("clerk"):
        for turn in mulligan.turns(limit=2):
            for invoice in ("INV-1", "INV-2"):
                turn.call([pay], "pay", {"invoice": invoice, "amount": 120})
            if turn.number == 1:
                assert mulligan.settle(*settled) == count
    assert len(paid) == 2 + count


def test_settle_takes_the_tool_itself() -> None:
    bank = Bank()
    with mulligan.run("clerk"):
        request(bank, ("pay", PAYMENT))
        assert mulligan.settle(bank.get_invoice) == 0
        assert mulligan.settle(bank.pay) == 1
        assert request(bank, ("pay", PAYMENT))[0].ok
    assert mulligan.settle() == 0


# Links


def test_no_link_crosses_a_lost_answer() -> None:
    """The first request is corrected, the correction times out, and the next one succeeds."""
    attempts = []

    @mulligan.tool
    def pay(invoice: str, amount: int) -> str:
        attempts.append(amount)
        if len(attempts) == 1:
            raise ValueError("amount must be at most 100")
        if len(attempts) == 2:
            raise TimeoutError("no answer")
        return "paid"

    with mulligan.run("clerk") as run:
        for turn, amount in zip(mulligan.turns(limit=3), (120, 100, 99), strict=False):
            turn.call([pay], "pay", {"invoice": "INV-1", "amount": amount})
    assert attempts == [120, 100, 99]
    assert run.links() == []
    assert run.status == "partial"


def test_links_are_the_same_in_the_store(played: Sandbox) -> None:
    bank = Bank()
    with mulligan.run("clerk"):
        request(bank, ("pay", PAYMENT), ("pay", {**PAYMENT, "amount": 121}))
    (history,) = played.runs
    assert history.links == ()
    assert [step.outcome for step in history.steps] == ["failure", "success"]
