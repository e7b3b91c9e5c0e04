"""The first attempt at a call, which is mostly the only one: made and recorded in microseconds.

Nothing of recovery is built for it. If it fails, what is known of it is handed on, and the players take over.
"""

from __future__ import annotations

from contextvars import Token
from typing import TYPE_CHECKING, Any

import msgspec

from mulligan.capture.answers import SMALL, TELLING
from mulligan.capture.keeping import copied
from mulligan.capture.kit import NO_LIMITS, Here, Kit, reset
from mulligan.capture.tracer import ActiveRun, Inside
from mulligan.events import FLAT, StepStarted, Success, frozen
from mulligan.records import Step

if TYPE_CHECKING:
    from mulligan.capture.wrap import Wrapped


class Careful(Exception):
    """The call must be looked at before it is made: our own word to whoever would have begun it."""


class First(Here):
    """The first attempt while it is made. It is also the place where it happens.

    `error` is what it raised; `answer` is set only where what it answered is a failure.
    """

    __slots__ = (
        "_is_alone",
        "_kit",
        "_rules",
        "_token",
        "_wrapped",
        "answer",
        "arguments",
        "began",
        "error",
        "parent",
        "started",
    )

    def __init__(self, wrapped: Wrapped, kit: Kit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        here = kit.here.get()
        rules = wrapped.usual
        if rules.kit is not kit or (here is not None and here.run.limits is not NO_LIMITS):
            rules = wrapped.rules(kit, None if here is None else here.run.limits)
            kit = rules.kit
        guard = rules.guard
        if guard.is_careful:
            raise Careful
        if here is None or not here.run.is_open:
            self._is_alone = True
            self.run = ActiveRun(kit, "", rules.limits)
            self.parent = None
            layer = None if here is None else here.layer
        else:
            self._is_alone = False
            self.run = here.run
            self.parent = here.number
            layer = here.layer
            if not self.run.has_begun:
                self.run.begin()  # a call alone, and now there is more in its run than itself
        if rules.is_off and not self.run.kit.is_silent:
            self.number = self.parent  # what happens inside it is inside what it is inside
        else:
            self.number = self.run.next_number()
        self.error: Exception | None = None
        self._rules = rules
        self._wrapped = wrapped
        self._kit = kit
        self.arguments = wrapped.signature.bind(args, kwargs)
        if rules.keeping is not None:
            self.arguments, said = rules.keeping.arguments(self.arguments)
            self.run.hear(said)
        else:
            for value in self.arguments.values():
                if type(value) not in FLAT:
                    self.arguments = copied(self.arguments)
                    break
        if layer is not None and layer.is_open:
            self.layer = layer
            self.is_open = False
        elif rules.is_retried:
            self.layer = self
            self.is_open = True
            guard.made += 1
        else:
            self.layer = None
            self.is_open = False
        self._token: Token[Here | None] = kit.here.set(self)
        self.started = int(kit.clock() * 1000)
        if kit.is_watched() and not kit.is_silent:
            self.run.begin()
            kit.tell(StepStarted(self.step()))
        self.began = kit.timer()
        if self.began >= guard.tick:
            guard.ticked(self.began)

    def succeeded(self, result: Any) -> bool:
        """Records that it worked; a fault of ours is not the caller's. Whether it did: an answer may be a failure."""
        try:
            kit = self._kit
            rules = self._rules
            seconds = kit.timer() - self.began
            # The commonest answers are let go here: to ask the judge takes a call.
            if (
                rules.judge is not None
                and not (
                    type(result) is dict and len(result) <= SMALL and TELLING.isdisjoint(result) and rules.is_empty_fine
                )
                and rules.judge.condemns(result)
            ):
                self.answer = result
                return False
            self.leave()
            run = self.run
            if rules.is_off and not run.has_failures:
                run.is_open = run.is_open and not self._is_alone
                return True
            keeping = rules.keeping
            tokens = None
            if keeping is not None:
                tokens = keeping.tokens(result)
                result = keeping.result(result)
            success = Success(
                run.id,
                self.number or 0,
                self.parent,
                self._wrapped.options.type,
                self._wrapped.name,
                self.started,
                seconds,
                self.arguments,
                result if type(result) in FLAT else frozen(result),
                run.record if self._is_alone and not run.has_begun else None,
                tokens,
            )
            if not self._is_alone:
                run.see(success)
            if run.has_failures:
                step = msgspec.structs.replace(self.step(), result=success.result, seconds=seconds, tokens=tokens)
                run.ended(step, kit)
            else:
                kit.succeed(success)
            if self._is_alone and success.alone is None:
                run.finish(None)
        except Exception:  # noqa: BLE001 - unrecorded, and made
            self._kit.fault("recording how a call ended")
        return True

    def cancelled(self, error: BaseException) -> None:
        """Cancellation is not a failure: it is recorded as what it is, and passes."""
        try:
            seconds = self._kit.timer() - self.began
            self.leave()
            self.run.begin()
            self.run.ended(msgspec.structs.replace(self.step(), outcome="cancelled", seconds=seconds), self._kit)
            if self._is_alone:
                self.run.finish(error)
        except Exception:  # noqa: BLE001 - unrecorded, and made
            self._kit.fault("recording that a call was cancelled")

    def leave(self) -> None:
        """What comes now is not inside this call any more."""
        self.is_open = False
        self.layer = None  # it may be ourselves, and a circle would be left for the garbage collector at every call
        reset(self._kit.here, self._token)

    def step(self) -> Step:
        """The attempt as a step that has begun."""
        return Step(
            run=self.run.id,
            seq=self.number or 0,
            call=self.number or 0,
            parent=self.parent,
            type=self._wrapped.options.type,
            name=self._wrapped.name,
            arguments=self.arguments,
            started=self.started,
        )

    def scope(self) -> ActiveRun | Inside:
        """The run to go on in, and to end with the call where it is the call's own."""
        self.leave()
        if self._is_alone:
            self.run.is_alone = True
            return self.run
        return self.run.inside()
