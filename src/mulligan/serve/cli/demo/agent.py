"""Scripted agent that makes typical model mistakes and follows the answers of its tools."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from mulligan.assembly import Mulligan
from mulligan.records import Status

Script = Generator["Asked", Any, str]


class Asked(NamedTuple):
    """Tool call that the script requests."""

    name: str
    arguments: dict[str, Any]
    why: str
    moral: str = ""
    """Comment to print if the call fails."""


class Work(NamedTuple):
    """Result of one pass."""

    run: str
    status: Status
    turns: int
    answer: str


class Wish(NamedTuple):
    """Request of a simulated user. Each pass has a different one."""

    invoice: str
    city: str
    topic: str

    @property
    def text(self) -> str:
        return f"Pay {self.invoice}, then tell me about {self.topic}, the weather in {self.city} and ticket 7."


def script(wish: Wish) -> Script:
    """Yield the tool calls of one pass, one per turn. No pass remembers an earlier one."""
    invoice = wish.invoice
    yield Asked("search_docs", {"query": wish.topic, "top_k": 50}, "A rejected argument")
    yield Asked("weather", {"city": wish.city}, "A rate limit that says how long to wait")
    answer = yield Asked(
        "pay_invoice",
        {"invoice": invoice, "amount": 120},
        "A timeout of a tool with side effects",
        "not made again: the money may have moved. The model is told to look first",
    )
    paid = "paid"
    if is_failure(answer) and "outcome" in answer:
        payments = yield Asked("list_payments", {}, "The model was told to check, so it does")
        paid = "paid once" if payments.count(invoice) == 1 else "not known to be paid"
    forecast = yield from _forecast(wish.city)
    answer = yield Asked(
        "read_ticket",
        {"number": 7},
        "A hostile error text",
        "given up: the backend stays broken. What it says is cut and marked as data; nothing in it is obeyed",
    )
    ticket = "the ticket could not be read" if is_failure(answer) else "the ticket was read"
    return f"{invoice} is {paid}, the outlook is {forecast}, {ticket}."


def forewarned(known: str) -> Script:
    """Yield the first search only, with the argument that the lesson in the prompt recommends."""
    wanted = re.search(r"top_k=(\d+)", known)
    why = "The prompt says what helped, so the model asks for that" if wanted else "The prompt says nothing of it"
    found = yield Asked("search_docs", {"query": "delivery times", "top_k": int(wanted[1]) if wanted else 50}, why)
    return f"{len(found if isinstance(found, list) else found['result'])} pages were found."


def _forecast(city: str) -> Generator[Asked, Any, str]:
    name, why = "get_forecast", "A tool that does not exist"
    days = 30
    for guess in (14, 10, 7, 3):
        answer = yield Asked(name, {"city": city, "days": days}, why)
        if not is_failure(answer):
            return str(answer["outlook"])
        told = " ".join(answer.get("suggestions", ()))
        named = re.search(r"call (\w+) instead|Did you mean (\w+)\?", told)
        worked = re.search(r"days=(\d+)", told)
        if named:
            name = named[1] or named[2]
        if worked:
            days = int(worked[1])
            why = "The answer said what worked before, so the model does that"
        elif named:
            why = "The answer named the right tool"
        else:
            days, why = guess, "The answer did not say how many days are right, so the model guesses"
    return "unknown"


def is_failure(answer: Any) -> bool:
    return isinstance(answer, dict) and "error" in answer


def work(
    mulligan: Mulligan,
    tools: dict[str, Callable[..., Any]],
    thoughts: Script,
    wish: str,
    narrate: Callable[[Asked, Callable[[], Any]], Any],
) -> Work:
    """Run one pass as an ordinary agent loop."""

    @mulligan.model(name="scripted-model")
    def think(messages: list[str]) -> Asked | str:
        try:
            return thoughts.send(last_answer)
        except StopIteration as stop:
            return str(stop.value)

    last_answer: Any = None
    messages = [wish]
    with mulligan.run("demo-agent", context=messages[0]) as run:
        for turn in mulligan.turns(limit=20):
            asked = think(messages)
            if isinstance(asked, str):
                break
            last_answer = narrate(asked, lambda turn=turn, asked=asked: turn.call(tools, asked.name, asked.arguments))  # type: ignore[misc]
            messages.append(str(last_answer)[:200])
    return Work(run.id, run.status, turn.number, asked if isinstance(asked, str) else "It ran out of turns.")
