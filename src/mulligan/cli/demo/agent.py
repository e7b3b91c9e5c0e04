"""Scripted agent that makes typical model mistakes and follows the answers of its tools."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from mulligan.api import Mulligan
from mulligan.core.records import Status

Script = Generator["ScriptedCall", Any, str]


class ScriptedCall(NamedTuple):
    """Tool call that the script requests."""

    name: str
    arguments: dict[str, Any]
    headline: str
    failure_comment: str = ""
    """Comment to print if the call fails."""


class PassResult(NamedTuple):
    """Result of one pass."""

    run: str
    status: Status
    turns: int
    answer: str


class UserRequest(NamedTuple):
    """Request of a simulated user. Each pass has a different one."""

    invoice: str
    city: str
    topic: str

    @property
    def text(self) -> str:
        return f"Pay {self.invoice}, then tell me about {self.topic}, the weather in {self.city} and ticket 7."


def build_script(request: UserRequest) -> Script:
    """Yield the tool calls of one pass, one per turn. No pass remembers an earlier one."""
    invoice = request.invoice
    yield ScriptedCall("search_docs", {"query": request.topic, "top_k": 50}, "A rejected argument")
    yield ScriptedCall("weather", {"city": request.city}, "A rate limit with a retry-after header")
    answer = yield ScriptedCall(
        "pay_invoice",
        {"invoice": invoice, "amount": 120},
        "A timeout of a tool with side effects",
        "not retried: the payment may have executed. The model is asked to check first",
    )
    paid = "paid"
    if is_failure(answer) and "outcome" in answer:
        payments = yield ScriptedCall("list_payments", {}, "The model checks, as asked")
        paid = "paid once" if payments.count(invoice) == 1 else "not confirmed as paid"
    forecast = yield from _forecast(request.city)
    answer = yield ScriptedCall(
        "read_ticket",
        {"number": 7},
        "A hostile error text",
        "no further retry: the backend keeps failing. Its text is truncated and quoted as data",
    )
    ticket = "the ticket could not be read" if is_failure(answer) else "the ticket was read"
    return f"{invoice} is {paid}, the outlook is {forecast}, {ticket}."


def build_informed_script(lesson_text: str) -> Script:
    """Yield the first search only, with the argument that the lesson in the prompt recommends."""
    top_k_match = re.search(r"top_k=(\d+)", lesson_text)
    headline = (
        "The prompt contains the lesson, so the model follows it"
        if top_k_match
        else "The prompt has no lesson about this"
    )
    answer = yield ScriptedCall(
        "search_docs", {"query": "delivery times", "top_k": int(top_k_match[1]) if top_k_match else 50}, headline
    )
    return f"{len(answer if isinstance(answer, list) else answer['result'])} pages were found."


def _forecast(city: str) -> Generator[ScriptedCall, Any, str]:
    name, headline = "get_forecast", "A tool that does not exist"
    days = 30
    for guess in (14, 10, 7, 3):
        answer = yield ScriptedCall(name, {"city": city, "days": days}, headline)
        if not is_failure(answer):
            return str(answer["outlook"])
        suggestion_text = " ".join(answer.get("suggestions", ()))
        name_match = re.search(r"call (\w+) instead|Did you mean (\w+)\?", suggestion_text)
        days_match = re.search(r"days=(\d+)", suggestion_text)
        if name_match:
            name = name_match[1] or name_match[2]
        if days_match:
            days = int(days_match[1])
            headline = "The answer named the fix of earlier runs, so the model uses it"
        elif name_match:
            headline = "The answer named the right tool"
        else:
            days, headline = guess, "The answer did not name a valid number of days, so the model guesses"
    return "unknown"


def is_failure(answer: Any) -> bool:
    return isinstance(answer, dict) and "error" in answer


def run_pass(
    mulligan: Mulligan,
    tools: dict[str, Callable[..., Any]],
    script: Script,
    request_text: str,
    narrate: Callable[[ScriptedCall, Callable[[], Any]], Any],
) -> PassResult:
    """Run one pass as an ordinary agent loop."""

    @mulligan.model(name="scripted-model")
    def think(messages: list[str]) -> ScriptedCall | str:
        try:
            return script.send(last_answer)
        except StopIteration as stop:
            return str(stop.value)

    last_answer: Any = None
    messages = [request_text]
    with mulligan.run("demo-agent", context=messages[0]) as run:
        for turn in mulligan.turns(limit=20):
            reply = think(messages)
            if isinstance(reply, str):
                break
            last_answer = narrate(reply, lambda turn=turn, reply=reply: turn.call(tools, reply.name, reply.arguments))  # type: ignore[misc]
            messages.append(str(last_answer)[:200])
    return PassResult(
        run.id, run.status, turn.number, reply if isinstance(reply, str) else "The turn limit was reached."
    )
