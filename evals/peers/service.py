"""The tools of all worlds, and what goes wrong in them. The same functions are given to every contender."""

from __future__ import annotations

import inspect
import json
import random
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
import tenacity
from simulated_clock import clock

TOOL_SECONDS = 0.2
SUCCESS = "[ok]"
"""What every result begins with. The scripted model takes a text with it as a success, any other as an error."""
Effects = Literal["none", "idempotent", "once"]
EFFECTS: dict[str, Effects] = {
    "search": "none",
    "get_order": "none",
    "list_orders": "none",
    "read_file": "none",
    "get_invoice": "none",
    "find_rooms": "none",
    "set_label": "idempotent",
    "pay": "once",
    "send_email": "once",
    "book": "once",
    "create_ticket": "once",
    "cancel_orders": "once",
}
"""What each contender is told of each tool: whether repeating a call is safe."""


@dataclass(frozen=True)
class Fault:
    """Requests that fail: the first `times`, those until a time, by chance, or over a limit."""

    target: str
    """A tool, `model` for all deployments of the model, or `model-a` for the first alone."""
    error: str
    """A status such as `503`, a status with the wait it states (`429 after 7`), `timeout`, `reset`, `refused`, or a
    name that the model's server knows (`empty`, `filtered`). With `returned` before it, the tool returns the error."""
    times: int = 0
    until: float = 0.0
    """Seconds since the start of the world."""
    rate: float = 0.0
    limit: tuple[int, float] = (0, 0.0)
    """Requests, and the seconds in which no more are answered."""
    executes: bool = False
    """Whether the tool does its work before the reply is lost."""


@dataclass(frozen=True)
class Goal:
    """One call that the task needs, and how the model writes it at first."""

    tool: str
    right: Mapping[str, Any] | None
    """The right arguments; None where no call is right."""
    first: Mapping[str, Any] | None = None
    """The arguments as first written, if they are wrong."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """What the tool says if an argument has not the right value."""
    cues: tuple[str, ...] = ()
    """Words that tell the model the right arguments, all of them. Without: the name of an argument that is wrong."""
    alternates: tuple[Mapping[str, Any], ...] = ()
    """What the model tries next if no message says what is right."""
    name: str = ""
    """The tool as first named, if it is called by a wrong name."""
    raw: str = ""
    """The arguments as first written, if they are no JSON."""
    repeats: int = 3
    """How often the model repeats a call that failed for no reason that it can correct."""
    lookup: tuple[str, Mapping[str, Any]] | None = None
    """The call that tells whether an effect took place."""
    instead: tuple[str, Mapping[str, Any]] | None = None
    """Another way to the goal, which the model takes when it is told to, or has no alternates left."""
    chars: int = 0
    """Length of the result."""
    text: str = ""
    """The result, if it matters what it says."""

    @property
    def wrong_names(self) -> set[str]:
        first, right = dict(self.first or {}), dict(self.right or {})
        return {name for name in first.keys() | right.keys() if first.get(name) != right.get(name)}


class FaultScript:
    """Decides which requests fail. One for each play, so that every contender meets the same world."""

    def __init__(self, faults: tuple[Fault, ...], seed: int) -> None:
        self._faults = faults
        self._random = random.Random(seed)
        self._started = clock.elapsed
        self._counts = [0] * len(faults)
        self._answered: list[list[float]] = [[] for _ in faults]

    def find(self, *targets: str) -> Fault | None:
        for number, fault in enumerate(self._faults):
            if fault.target in targets and self._applies(number, fault):
                return fault
        return None

    def _applies(self, number: int, fault: Fault) -> bool:
        now = clock.elapsed - self._started
        self._counts[number] += 1
        if fault.limit[0]:
            requests, seconds = fault.limit
            recent = [at for at in self._answered[number] if now - at < seconds]
            self._answered[number] = recent if len(recent) >= requests else [*recent, now]
            return len(recent) >= requests
        if fault.rate:
            return self._random.random() < fault.rate
        return self._counts[number] <= fault.times or now < fault.until


def build_error(error: str) -> Exception:
    """Return the exception that httpx, or the standard library, raises for an error of a service."""
    request = httpx.Request("POST", "http://service.test/v1")
    if error == "timeout":
        return httpx.ReadTimeout("The read operation timed out", request=request)
    if error == "reset":
        return ConnectionResetError(104, "Connection reset by peer")
    if error == "refused":
        return httpx.ConnectError("[Errno 111] Connection refused", request=request)
    status, _, wait = error.partition(" after ")
    response = httpx.Response(int(status), headers={"Retry-After": wait} if wait else {}, request=request)
    try:
        response.raise_for_status()
    except httpx.HTTPStatusError as raised:
        return raised
    raise AssertionError(error)


class Service:
    """What the tools act on, in one play of a world."""

    def __init__(self, goals: tuple[Goal, ...], faults: FaultScript, *, has_inner_retries: bool = False) -> None:
        self.goals, self.faults = goals, faults
        self.executions: list[tuple[str, str]] = []
        """Every execution of a tool that had its effect: name and arguments."""
        self.has_inner_retries = has_inner_retries

    def execute(self, tool: str, arguments: dict[str, Any]) -> Any:
        if not self.has_inner_retries:
            return self._request(tool, arguments)
        is_safe = EFFECTS[tool] != "once"
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(3 if is_safe else 1), wait=tenacity.wait_fixed(1), reraise=True
        )
        return retrying(self._request, tool, arguments)

    def _request(self, tool: str, arguments: dict[str, Any]) -> Any:
        clock.advance(TOOL_SECONDS)
        fault = self.faults.find(tool)
        if fault is not None and not fault.executes:
            return self._fail(fault)
        self._check(tool, arguments)
        self.executions.append((tool, to_text(arguments)))
        if fault is not None:
            return self._fail(fault)
        return self._describe(tool, arguments)

    def _fail(self, fault: Fault) -> Any:
        if fault.error.startswith("returned "):
            return {"error": fault.error.removeprefix("returned ")}
        raise build_error(fault.error)

    def _check(self, tool: str, arguments: dict[str, Any]) -> None:
        """Refuse what a service would refuse: values of other types, and those that the world has a refusal for."""
        hints = typing.get_type_hints(TOOLS[tool])
        for name, value in arguments.items():
            refuse_other_type(name, value, hints[name])
        goals = [goal for goal in self.goals if goal.tool == tool]
        for name in {name for goal in goals for name in goal.refusals}:
            accepted = [goal.right[name] for goal in goals if goal.right is not None]
            if arguments.get(name) not in accepted:
                text = next(goal.refusals[name] for goal in goals if name in goal.refusals)
                raise ValueError(text.format(value=arguments.get(name)))

    def _describe(self, tool: str, arguments: dict[str, Any]) -> str:
        for goal in self.goals:
            if (
                goal.tool == tool
                and goal.right is not None
                and to_text(complete(tool, goal.right)) == to_text(arguments)
            ):
                text = f"{SUCCESS} {goal.text or tool}"
                filler = (f" line {number}: nothing of note in this part." for number in range(10**6))
                while len(text) < goal.chars:
                    text += next(filler)
                return text
        if tool == "get_invoice":
            is_paid = any(name == "pay" and arguments["invoice"] in text for name, text in self.executions)
            return f"{SUCCESS} invoice {arguments['invoice']}: {'paid' if is_paid else 'open'}"
        return f"{SUCCESS} {tool} {to_text(arguments)}"


def refuse_other_type(name: str, value: Any, hint: Any) -> None:
    if typing.get_origin(hint) is Literal:
        if value not in typing.get_args(hint):
            raise ValueError(f"{name} must be one of {', '.join(typing.get_args(hint))}, got {value!r}.")
        return
    types = {int: (int,), float: (int, float), str: (str,), list[str]: (list,)}[hint]
    if not isinstance(value, types) or isinstance(value, bool):
        expected = {int: "an integer", float: "a number", str: "a string", list[str]: "a list of strings"}[hint]
        raise ValueError(f"{name} must be {expected}, got {value!r}.")


def to_text(arguments: Mapping[str, Any]) -> str:
    """Return arguments in one spelling, so that equal calls are equal: 120 is 120.0."""
    plain = {name: float(value) if isinstance(value, int) else value for name, value in arguments.items()}
    return json.dumps(plain, sort_keys=True, default=str)


def complete(tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with the defaults of the tool."""
    parameters = inspect.signature(TOOLS[tool]).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
    return {**defaults, **arguments}


def search(query: str, top_k: int = 5) -> str:
    """Search the index."""
    raise NotImplementedError


def get_order(order_id: str) -> str:
    """Return one order."""
    raise NotImplementedError


def list_orders(customer: str, status: Literal["open", "paid", "shipped"] = "open", per_page: int = 25) -> str:
    """List the orders of a customer."""
    raise NotImplementedError


def read_file(path: str) -> str:
    """Return the text of a file."""
    raise NotImplementedError


def get_invoice(invoice: str) -> str:
    """Return the state of an invoice."""
    raise NotImplementedError


def find_rooms(day: str, seats: int) -> str:
    """Find free rooms on a day."""
    raise NotImplementedError


def set_label(ticket: int, label: str) -> str:
    """Give a ticket a label, in place of the one it has."""
    raise NotImplementedError


def pay(invoice: str, amount: float) -> str:
    """Pay an invoice."""
    raise NotImplementedError


def send_email(to: str, subject: str) -> str:
    """Send an email."""
    raise NotImplementedError


def book(room: str, day: str, hours: int = 1) -> str:
    """Book a room."""
    raise NotImplementedError


def create_ticket(title: str, tags: list[str], priority: Literal["low", "normal", "high"] = "normal") -> str:
    """Create a ticket."""
    raise NotImplementedError


def cancel_orders(customer: str) -> str:
    """Cancel all orders of a customer."""
    raise NotImplementedError


TOOLS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        search, get_order, list_orders, read_file, get_invoice, find_rooms, set_label, pay, send_email, book,
        create_ticket, cancel_orders,
    )
}  # fmt: skip


def bind_tools(service: Service) -> dict[str, Callable[..., Any]]:
    """Return the tools of a world as functions of its service: those of its goals, and three that only read."""
    names = {"search", "get_order", "list_orders", *(goal.tool for goal in service.goals)}
    names |= {way[0] for goal in service.goals for way in (goal.lookup, goal.instead) if way is not None}

    def bind(declared: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(declared)

        def function(*args: Any, **kwargs: Any) -> Any:
            arguments = signature.bind(*args, **kwargs)
            arguments.apply_defaults()
            return service.execute(declared.__name__, dict(arguments.arguments))

        function.__name__ = function.__qualname__ = declared.__name__
        function.__doc__, function.__annotations__ = declared.__doc__, typing.get_type_hints(declared)
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[
                parameter.replace(annotation=function.__annotations__[parameter.name])
                for parameter in signature.parameters.values()
            ],
            return_annotation=str,
        )
        return function

    return {name: bind(declared) for name, declared in TOOLS.items() if name in names}
