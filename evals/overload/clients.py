"""The contenders: what a program does about a failed request, with mulligan and with what mulligan replaces.

Each builds an async function around a request. The policies of clients and libraries are written out here from their
documentation, so that they run on the clock of the simulation; `sockets.py` uses the real libraries.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import force_setattr

from mulligan import Policy
from mulligan.testing import Sandbox

Request = Callable[["Call"], Awaitable[str]]


class ErrorResponse(Exception):
    """An error response, or none at all."""

    def __init__(self, status: int | None, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status_code = status
        self.headers = {} if retry_after is None else {"retry-after": str(retry_after)}
        self.retry_after = retry_after


class Reset(ConnectionResetError):
    """A connection that broke."""

    retry_after = None


class Hang(TimeoutError):
    """A request that got no answer in time."""

    retry_after = None


FAILURES = (ErrorResponse, Reset, Hang)


class Call:
    """One logical call of a program and what became of it."""

    def __init__(self, process: int = 0, tool: str = "read", tenant: str = "", faults: int = 0) -> None:
        self.process, self.tool, self.tenant = process, tool, tenant
        self.faults = faults
        """So many of its first attempts fail."""
        self.is_innocent = False
        """Whether something else is broken, and this call must not notice."""
        self.began = self.ended = 0.0
        self.attempts = 0
        self.has_succeeded: bool | None = None


class Client:
    """Calls without retries."""

    name = "none"

    def __init__(
        self,
        request: Request,
        loop: asyncio.AbstractEventLoop,
        seed: int,
        deadline: float | None = None,
        fallback: Request | None = None,
    ) -> None:
        self.request, self.loop, self.random = request, loop, random.Random(seed)
        self.deadline = deadline
        """Seconds that a call may take."""
        self.fallback = fallback
        """Answers a call that failed, such as another model."""

    async def call(self, call: Call) -> None:
        call.began = self.loop.time()
        try:
            await self.make_or_fall_back(call)
            call.has_succeeded = True
        except (*FAILURES, Exception):  # noqa: BLE001 - a contender may raise an exception of its own
            call.has_succeeded = False
        call.ended = self.loop.time()

    async def make_or_fall_back(self, call: Call) -> None:
        try:
            async with asyncio.timeout(self.deadline):
                await self.make(call)
        except (*FAILURES, TimeoutError):
            if self.fallback is None:
                raise
            await self.fallback(call)

    async def make(self, call: Call) -> None:
        for attempt in range(1, 1000):
            try:
                await self.request(call)
                return
            except FAILURES as failure:
                delay = self.delay(attempt, failure.retry_after, self.loop.time() - call.began)
                if delay is None:
                    raise
                await asyncio.sleep(delay)

    def delay(self, attempt: int, retry_after: float | None, elapsed: float) -> float | None:
        """Return the delay before the next attempt, or None."""
        return None

    def close(self) -> None: ...


class ProviderClient(Client):
    """OpenAI's and Anthropic's clients: two retries, 0.5 s doubling, a quarter of jitter, Retry-After up to 120 s."""

    name = "provider client"

    def delay(self, attempt: int, retry_after: float | None, elapsed: float) -> float | None:
        if attempt > 2:
            return None
        if retry_after is not None and 0 < retry_after <= 120:
            return retry_after
        return min(8.0, 0.5 * 2 ** (attempt - 1)) * (1 - 0.25 * self.random.random())


class Stamina(Client):
    """Stamina: ten attempts within 45 s, 0.1 s doubling to 5 s, plus up to a second."""

    name = "stamina"

    def delay(self, attempt: int, retry_after: float | None, elapsed: float) -> float | None:
        if attempt >= 10 or elapsed >= 45:
            return None
        return min(5.0, 0.1 * 2 ** (attempt - 1) + self.random.random())


class Tenacity(Client):
    """Tenacity: `stop_after_attempt(3)` and `wait_random_exponential(0.5, max=30)`."""

    name = "tenacity"

    def delay(self, attempt: int, retry_after: float | None, elapsed: float) -> float | None:
        return None if attempt >= 3 else self.random.random() * 0.5 * 2 ** (attempt - 1)


class SparseClient(Client):
    """A schedule that reaches 2.4 times the load in outages of 30 s where a process calls once a minute."""

    name = "0.5 s, 17 s, 17 s"

    def delay(self, attempt: int, retry_after: float | None, elapsed: float) -> float | None:
        return {1: 0.5 * (1 - 0.5 * self.random.random()), 2: 17.0, 3: 17.0}.get(attempt)


class MulliganClient(Client):
    """Mulligan itself: the request is a wrapped function, and each process has an instance of its own."""

    name = "mulligan"
    type = "tool"
    answers_model = False
    policy = Policy(max_identical_failures=0)

    def __init__(self, *options: Any) -> None:
        super().__init__(*options)
        self._boxes: dict[int, Sandbox] = {}
        self._functions: dict[tuple[int, str], Callable[..., Awaitable[str]]] = {}
        self._calls: dict[int, Call] = {}
        """The calls in progress, by number: their arguments are plain data."""

    def close(self) -> None:
        for box in self._boxes.values():
            box.close()

    async def make_or_fall_back(self, call: Call) -> None:
        try:
            await self.make(call)  # a model has the deadline and the fallback as options
        except FAILURES:
            if self.fallback is None or self.type == "model":
                raise
            await self.fallback(call)

    async def make(self, call: Call) -> None:
        function = self._functions.get((call.process, call.tool)) or self._wrap(call)
        number = id(call)
        self._calls[number] = call
        try:
            await self._send(function, call, {"tenant": call.tenant, "number": number})
        finally:
            del self._calls[number]

    async def _send(self, function: Callable[..., Awaitable[str]], call: Call, arguments: dict[str, Any]) -> None:
        if not self.answers_model:
            await function(**arguments)
            return
        box = self._boxes[call.process]
        with box.mulligan.run("agent"):
            turn = next(iter(box.mulligan.turns()))
            outcome = await turn.acall({call.tool: function}, call.tool, arguments)
            if not outcome.ok:
                raise ErrorResponse(None, "the model reads the failure")

    def _wrap(self, call: Call) -> Callable[..., Awaitable[str]]:
        if call.process not in self._boxes:
            box = self._boxes[call.process] = Sandbox(policy=self.policy, record="off")
            options = {"timer": self.loop.time, "async_sleep": asyncio.sleep, "random": self.random.random}
            for name, value in options.items():
                force_setattr(box.components.capture, name, value)
        mulligan = self._boxes[call.process].mulligan

        async def send(tenant: str, number: int) -> str:
            return await self.request(self._calls[number])

        async def answer(*values: Any, **arguments: Any) -> str:
            assert self.fallback is not None
            return await self.fallback(call)

        options: dict[str, Any] = {"name": call.tool, "timeout": self.deadline}
        if self.type == "tool":
            options["effects"] = "none"
        elif self.fallback is not None:
            options["fallback"] = answer
        wrapped: Callable[..., Awaitable[str]] = getattr(mulligan, self.type)(**options)(send)
        self._functions[call.process, call.tool] = wrapped
        return wrapped


class MulliganModel(MulliganClient):
    """Mulligan around a model."""

    name = "mulligan, model"
    type = "model"


class MulliganTurn(MulliganClient):
    """Mulligan around a tool that a model calls."""

    name = "mulligan, turn"
    answers_model = True


CONTENDERS = (Client, ProviderClient, Stamina, Tenacity, MulliganClient, MulliganModel, MulliganTurn)
REPLACED = (ProviderClient, Stamina, Tenacity)
