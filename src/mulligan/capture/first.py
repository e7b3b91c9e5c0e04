"""The first attempt at a call, which is mostly the only one: made and recorded in microseconds.

Nothing of recovery is built for it, nor a run where it is outside any. If it fails, what is known of it is handed on,
and the players take over. What stands here in one piece and might be several is on the way of every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Token
from typing import TYPE_CHECKING, Any

import msgspec

from mulligan.capture import tracer
from mulligan.capture.answers import SMALL, TELLING
from mulligan.capture.kit import NO_LIMITS, Here, Kit, reset
from mulligan.capture.tracer import ActiveRun, Inside
from mulligan.events import StepStarted
from mulligan.records import Step, new_id
from mulligan.success import FLAT, Form, Success, frozen, thawed

if TYPE_CHECKING:
    from mulligan.capture.wrap import Rules, Wrapped


class First(Here, eq=False):
    """The first attempt while it is made. It is also the place where it happens.

    `error` is what it raised; `answer` is set only where what it answered is a failure. The run of a call that is alone
    is made when somebody asks for it: mostly nobody does.
    """

    id: str
    """That of its run."""
    is_alone: bool
    parent: int | None
    kit: Kit
    rules: Rules
    form: Form
    values: Sequence[Any]
    started: float
    began: float = 0.0
    token: Token[Here | None] | None = None
    error: Exception | None = None
    answer: Any = None
    is_over: bool = False

    @property
    def run(self) -> ActiveRun:
        """Asked for, where it is the call's own, by what happens inside it, or because it failed."""
        if self.known_run is None:
            with tracer.lock():  # several tasks of the call may ask at once
                if self.known_run is None:
                    run = ActiveRun(
                        self.kit, "", self.rules.limits, is_outside=True, id=self.id, started=int(self.started * 1000)
                    )
                    run.next_number()  # the call's own
                    run.is_open = not self.is_over
                    if self.known_run is None:  # else a signal handler has asked in the middle of this
                        self.known_run = run
        assert self.known_run is not None
        return self.known_run

    def succeeded(self, result: Any) -> bool:
        """Records that it worked; a fault of ours is not the caller's. Whether it did: an answer may be a failure."""
        kit = self.kit
        try:
            rules = self.rules
            seconds = kit.timer() - self.began
            # The commonest answers are let go here: to ask the judge takes a call.
            if (
                rules.judge is not None
                and not (
                    type(result) is dict and len(result) <= SMALL and TELLING.isdisjoint(result) and rules.is_empty_fine
                )
                and rules.judge.condemns(result, self)
            ):
                self.answer = result
                return False
            self.is_open = False
            try:  # noqa: SIM105 - as `reset` does, which takes a call
                kit.here.reset(self.token)  # type: ignore[arg-type] # it was begun
            except ValueError:
                pass
            run = self.known_run
            if rules.keeping is not None or (run is not None and (self.is_alone or run.has_failures)):
                self.recorded(self.run, result, seconds)
                return True
            self.is_over = True
            if rules.is_off:
                return True
            success = Success(
                self.form,
                self.id,
                self.number or 0,
                self.parent,
                self.started,
                seconds,
                self.values,
                result if type(result) in FLAT else frozen(result),
                rules.alone if run is None else None,
            )
            if run is not None:
                if run.recent is not None and type(success.result) is dict:
                    run.recent.append(success)
                else:
                    run.see(success)
            if kit.keep is None or kit.watchers:
                kit.succeed(success)
            else:
                kit.keep(success)
        except Exception:  # noqa: BLE001 - unrecorded, and made
            kit.fault("recording how a call ended")
        return True

    def recorded(self, run: ActiveRun, result: Any, seconds: float) -> None:
        """The same where the run is to be ended with it, or where less than all is kept, or something has failed."""
        rules = self.rules
        if rules.is_off and not run.has_failures:
            run.is_open = run.is_open and not self.is_alone
            return
        tokens = None
        if rules.keeping is not None:
            tokens = rules.keeping.tokens(result)
            result = rules.keeping.result(result)
        is_whole_run = self.is_alone and not run.has_begun
        success = Success(
            self.form,
            run.id,
            self.number or 0,
            self.parent,
            self.started,
            seconds,
            self.values,
            frozen(result),
            run.record if is_whole_run else None,
            tokens,
        )
        if not self.is_alone:
            run.see(success)
        if run.has_failures:
            step = msgspec.structs.replace(self.step(), result=thawed(success.result), seconds=seconds, tokens=tokens)
            if run.heard(step, self.kit) and not self.kit.is_silent:
                self.kit.succeed(success)  # nothing of it need be redacted in the caller's time
        else:
            self.kit.succeed(success)
        if is_whole_run:
            run.is_open = False
        elif self.is_alone:
            run.finish(None)

    def cancelled(self, error: BaseException) -> None:
        """Cancellation is not a failure: it is recorded as what it is, and passes."""
        try:
            seconds = self.kit.timer() - self.began
            self.leave()
            self.run.begin()
            self.run.ended(msgspec.structs.replace(self.step(), outcome="cancelled", seconds=seconds), self.kit)
            if self.is_alone:
                self.run.finish(error)
        except Exception:  # noqa: BLE001 - unrecorded, and made
            self.kit.fault("recording that a call was cancelled")

    def leave(self) -> None:
        """What comes now is not inside this call any more."""
        self.is_open = False
        if self.token is not None:
            reset(self.kit.here, self.token)

    def step(self) -> Step:
        """The attempt as a step that has begun."""
        form = self.form
        return Step(
            run=self.id,
            seq=self.number or 0,
            call=self.number or 0,
            parent=self.parent,
            type=form.type,
            name=form.name,
            server=form.server,
            arguments=dict(zip(form.names, map(thawed, self.values), strict=True)),
            started=int(self.started * 1000),
        )

    def scope(self) -> ActiveRun | Inside:
        """The run to go on in, and to end with the call where it is the call's own."""
        self.leave()
        if self.is_alone:
            self.run.is_alone = True
            return self.run
        return self.run.inside()


def begin(wrapped: Wrapped, kit: Kit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> First | None:
    """Begins the first attempt at a call; None where the call must be looked at before it is made."""
    if wrapped.is_looked_at:
        return None
    try:
        here = kit.here.get()
        rules = wrapped.usual
        layer = run = parent = None
        number: int | None = 1
        is_alone = True
        if here is None:
            if rules.kit is not kit:
                rules = wrapped.rules(kit, None)
                kit = rules.kit
        else:
            run = here.known_run or here.run
            layer = here if here.is_open else here.above
            if rules.kit is not kit or run.limits is not NO_LIMITS:
                rules = wrapped.rules(kit, run.limits)
                kit = rules.kit
        guard = rules.guard
        if guard.is_careful:
            return None
        if run is None:
            id = new_id()
        else:
            if run.is_open:
                is_alone = False
                parent = here.number  # type: ignore[union-attr] # there is no run without a place
                if not run.has_begun:
                    run.begin()  # a call alone, and now there is more in its run than itself
            else:
                run = ActiveRun(kit, "", rules.limits)
            # What happens inside a call that is not recorded is inside what that is inside.
            number = parent if rules.is_off and not run.kit.is_silent else next(run.numbers)
            id = run.id
        if rules.keeping is None:
            values: Any = args[1:] if wrapped.signature.is_method else args
            if kwargs:
                values = values + tuple(kwargs.values())
            form = rules.forms.get((*kwargs, *map(type, values)))
            if form is None:
                form, values = wrapped.form(rules.forms, args, kwargs)
            if not form.is_flat:
                values = [each if type(each) in FLAT else frozen(each) for each in values]
            said = None
        else:
            arguments, said = rules.keeping.arguments(wrapped.signature.bind(args, kwargs))
            form, values = wrapped.form(rules.forms, (), arguments)
        is_layer = rules.is_retried and (layer is None or not layer.is_open)
        if is_layer:
            guard.made += 1
        started = kit.clock()
        first = First(run, number, layer, is_layer, id, is_alone, parent, kit, rules, form, values, started)
        if said is not None:
            first.run.hear(said)
        first.token = kit.here.set(first)
        if kit.watchers and not kit.is_silent:
            first.run.begin()
            kit.tell(StepStarted(first.step()))
        first.began = began = kit.timer()
        if began >= guard.tick:
            guard.ticked(began)
        return first
    except Exception:  # noqa: BLE001 - the longer way round has its own guards
        kit.fault("beginning a call")
        return None
