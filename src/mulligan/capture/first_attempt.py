"""The first attempt at a call, which is mostly the only one: made and recorded in microseconds.

Nothing of recovery is built for it, nor a run where it is outside any. If it fails, what is known of it is handed on,
and the players take over. What stands here in one piece and might be several is on the way of every call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import Token
from typing import TYPE_CHECKING, Any

import msgspec

from mulligan.capture import run as run_module
from mulligan.capture.context import NO_LIMITS, Here, Kit, reset
from mulligan.capture.result_checks import SMALL, TELLING
from mulligan.capture.run import ActiveRun, CurrentRun
from mulligan.capture.run_judge import enter_task
from mulligan.capture.value_recording import copied
from mulligan.core.events import StepEnded, StepStarted
from mulligan.core.fast_path import (
    IMMUTABLE_TYPES,
    MAX_INLINE_CHARS,
    SHAREABLE_TYPES,
    StandaloneRun,
    SuccessRecord,
    journal_values,
    restore_value,
    snapshot_value,
)
from mulligan.core.links import CallFacts
from mulligan.core.records import Step, new_id, pooled_run_id

if TYPE_CHECKING:
    from mulligan.capture.wrap import CallRules, WrappedFunction


_tells_nothing = TELLING.isdisjoint
NAMES = 200
"""Names beyond its own that are remembered of a function that takes any."""


class First(Here, eq=False, gc=False):
    """The first attempt while it is made. It is also the place where it happens.

    `error` is what it raised; `answer` is set only where what it answered is a failure. The run of a call that is alone
    is made when somebody asks for it: mostly nobody does. (Nothing it holds comes to hold it for longer than the call,
    so it need not be looked at by the collector of garbage, which would take longer than to make it.)
    """

    rules: CallRules
    made: SuccessRecord
    """What is recorded of it if it works. What it comes to is not in it yet."""
    told: Sequence[Any] | None
    is_alone: bool
    began: float = 0.0
    ended: float = 0.0
    error: Exception | None = None
    answer: Any = None
    is_over: bool = False
    before: dict[str, Any] | None = None
    """Where less than all is kept: what it may change of what it was given, as that was."""
    values: Mapping[str, Any] | None = None
    """Where less than all is recorded: the arguments themselves, to judge links by."""
    facts: CallFacts | None = None
    """What was known when it began, where the run had failures by then."""

    @property
    def run(self) -> ActiveRun:
        """Asked for, where it is the call's own, by what happens inside it, or because it failed."""
        if self.known_run is None:
            with run_module.lock():  # several tasks of the call may ask at once
                if self.known_run is None:
                    run = ActiveRun(
                        self.rules.kit,
                        "",
                        self.rules.limits,
                        is_standalone=True,
                        id=self.made.run,
                        started_at=int(self.made.started_at * 1000),
                    )
                    run.next_number()  # the call's own
                    run.is_open = not self.is_over
                    if self.known_run is None:  # else a signal handler has asked in the middle of this
                        self.known_run = run
        assert self.known_run is not None
        return self.known_run

    def succeeded(self, result: Any, began: float, token: Token[Here | None]) -> bool:
        """Records that it worked; a fault of ours is not the caller's. Whether it did: an answer may be a failure."""
        rules = self.rules
        kit = rules.kit
        try:
            timer = kit.timer
            now = timer()
            # The commonest answers are let go here: to ask the judge takes a call, and so does a copy.
            if type(result) is dict and len(result) <= SMALL and _tells_nothing(result) and rules.is_empty_fine:
                for each in result.values():
                    if type(each) is str:
                        if len(each) > MAX_INLINE_CHARS:
                            kept = snapshot_value(result)
                            break
                    elif type(each) not in SHAREABLE_TYPES:
                        kept = snapshot_value(result)
                        break
                else:
                    kept = result.copy()
            elif rules.judge is not None and rules.judge.condemns(result, self):
                self.began, self.ended, self.answer = began, now, result
                self.leave(token)
                return False
            else:
                kept = result if type(result) in IMMUTABLE_TYPES else snapshot_value(result)
            # A result of its circuit, like what `Guarding` counts; nothing where a layer above retries.
            if self.is_open or (rules.is_single and self.layer is None):
                guard = rules.guard
                if now >= guard.tick:
                    guard.note_successes(now)
                guard.successes += 1
            self.is_open = False
            try:  # noqa: SIM105 - as `reset` does, which takes a call
                kit.here.reset(token)
            except ValueError:
                pass
            run = self.known_run
            if not rules.is_recorded_in_full or (
                run is not None and (self.is_alone or run.has_failures or run.item_scopes is not None)
            ):
                self.recorded(run, result, now - began)
                return True
            made = self.made
            made.duration_seconds = now - began
            made.result = kept
            if run is None:
                self.is_over = True
            else:
                # Inlined `note_success`: mostly every argument of a tool has varied, and nothing is left to note.
                judge = run.judge
                known = None if judge is None else judge.variations.get(made.template)
                if known is None:
                    run.ensure_judge().note_success(made.template, made.positional, made.keywords)
                elif not known.is_settled:
                    known.add(made.positional, made.keywords)
                recent = run.recent
                if recent is not None and type(kept) is dict:
                    recent.append(made)
                else:
                    run.remember_success(made)
            keep = kit.keep
            if keep is None or kit.watchers:
                kit.succeed(made)
            else:
                keep(made, self.told)
        except Exception:  # noqa: BLE001 - unrecorded, and made
            kit.fault("Recording the end of a call")
        return True

    def recorded(self, run: ActiveRun | None, result: Any, seconds: float) -> None:
        """The same where the run is to be ended with it, or where less than all is kept, or something has failed."""
        rules = self.rules
        if rules.is_off and (run is None or not run.has_failures):
            self.is_over = True
            if run is not None:
                run.is_open = run.is_open and not self.is_alone
            return
        run = run or self.run
        tokens = None
        if rules.keeping is not None:
            if rules.keeping.is_model:
                tokens = run.deduplicate_tokens(self.made.seq, self.made.parent, rules.keeping.tokens(result))
            result = rules.keeping.result(result)
        is_whole_run = self.is_alone and not run.has_started
        success = msgspec.structs.replace(
            self.made,
            duration_seconds=seconds,
            result=snapshot_value(result),
            standalone_run=StandaloneRun.from_run(run.record) if is_whole_run else None,
            tokens=tokens,
        )
        step: Step | None = None
        if run.has_failures:
            step = msgspec.structs.replace(
                self.step(), result=restore_value(success.result), duration_seconds=seconds, tokens=tokens
            )
            step = self._judge(run, step)
        if not self.is_alone:
            run.remember_success(success)
            if self.made.template.type != "model":
                values = self.values or self.made.arguments
                scope = run.scope_of_call(rules.items, values)
                run.note_success(rules.template.tool_key, values, scope)
        if step is not None and step.links:
            rules.kit.tell(StepEnded(step))
        elif not rules.is_off:
            rules.kit.succeed(success)  # nothing of it need be redacted in the caller's time
        if is_whole_run:
            run.is_open = False
        elif self.is_alone:
            run.finish(None)

    def _judge(self, run: ActiveRun, step: Step) -> Step | None:
        """Judge what the call recovers, by its arguments themselves where less is recorded of them."""
        rules = self.rules
        arguments, values = step.arguments, self.values
        facts = self.facts or CallFacts(failures_before=0, task=enter_task())
        scope = run.scope_of_call(rules.items, values if values is not None else arguments)
        facts = msgspec.structs.replace(
            facts,
            item=scope,
            item_arguments=rules.items,
            privileged=rules.privileged,
            is_destructive=rules.is_destructive,
        )
        if values is not None:
            step = msgspec.structs.replace(step, arguments=dict(values))
        judged = run.judge_step(step, rules.kit, facts)
        if judged is None or values is None or rules.keeping is None:
            return judged
        return msgspec.structs.replace(judged, arguments=arguments, links=rules.keeping.links(judged.links))

    def failed(self, error: Exception, began: float, token: Token[Here | None]) -> None:
        """Keeps what it raised for whoever goes on."""
        self.error, self.began, self.ended = error, began, self.rules.kit.timer()
        self.leave(token)

    def cancelled(self, error: BaseException, began: float, token: Token[Here | None]) -> None:
        """Cancellation is not a failure: it is recorded as what it is, and passes."""
        kit = self.rules.kit
        try:
            seconds = kit.timer() - began
            self.leave(token)
            self.run.start()
            self.run.publish_step(
                msgspec.structs.replace(self.step(), outcome="cancelled", duration_seconds=seconds), kit
            )
            if self.is_alone:
                self.run.is_implicit = True
                self.run.finish(error)
        except Exception:  # noqa: BLE001 - unrecorded, and made
            kit.fault("Recording a cancelled call")

    def leave(self, token: Token[Here | None]) -> None:
        """What comes now is not inside this call any more."""
        self.is_open = False
        reset(self.rules.kit.here, token)

    def step(self) -> Step:
        """The attempt as a step that has begun."""
        return self.made.to_step(self.rules.template.name, dict(self.made.arguments), None)

    def scope(self) -> ActiveRun | CurrentRun:
        """The run to go on in, and to end with the call where it is the call's own."""
        if self.is_alone:
            self.run.is_implicit = True
            return self.run
        return self.run.as_current()


def begin(wrapped: WrappedFunction, kit: Kit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> First | None:
    """Begins the first attempt at a call; None where the call must be looked at before it is made."""
    try:
        here = kit.here.get()
        rules = wrapped.default_rules
        if here is None:
            if rules.kit is not kit:
                if wrapped.needs_precheck:
                    return None
                rules = wrapped.rules(kit, None)
                kit = rules.kit
            guard = rules.guard
            if guard.needs_admission_check:
                return None
            run = layer = parent = None
            is_layer, is_alone, alone = rules.is_retried, True, rules.standalone_run
            number: int | None = 1
            try:
                id = pooled_run_id()
            except IndexError:
                id = new_id()
        else:
            run = here.known_run or here.run
            if rules.kit is not kit or run.limits is not NO_LIMITS:
                if wrapped.needs_precheck:
                    return None
                rules = wrapped.rules(kit, run.limits)
                kit = rules.kit
            guard = rules.guard
            if guard.needs_admission_check:
                return None
            layer = here if here.is_open else here.above
            is_layer = rules.is_retried and (layer is None or not layer.is_open)
            alone = None
            if run.is_open:
                is_alone = False
                parent = here.number
                if not run.has_started:
                    run.start()  # a call alone, and now there is more in its run than itself
            else:
                is_alone, parent, run = True, None, ActiveRun(kit, "", rules.limits)
            # What happens inside a call that is not recorded is inside what that is inside.
            number = parent if rules.is_off and not run.kit.is_silent else next(run.numbers)
            id = run.id
        form = rules.template
        is_told = is_flat = True
        given, named = (args[1:] if wrapped.is_method else args), kwargs
        told: Any = []
        # Mostly few values, none of which can change: what a journal has of them (`telling`) is noted in passing.
        if len(given) <= form.safe_positional_count:
            for value in given:
                if type(value) is str:
                    told.append([len(value)])
                elif type(value) in SHAREABLE_TYPES:
                    told.append(value)
                else:
                    is_told = False
                    break
            plain = form.recordable_names
            for name, value in kwargs.items():
                if name not in plain:
                    is_told = False
                    break
                told.append(name)
                if type(value) is str:
                    told.append([len(value)])
                elif type(value) in SHAREABLE_TYPES:
                    told.append(value)
                else:
                    is_told = False
                    break
        else:
            is_told = False
        said = before = values = None
        if not is_told:
            given = ()
            named, told, is_flat, said, before, values = _described(wrapped, rules, args, kwargs)
        if is_layer:
            guard.first_attempts += 1
        clock = kit.clock  # what is held, and not a method, is called faster so, here and below
        made = SuccessRecord(form, id, number or 0, parent, clock(), given, named, alone, is_flat)
        first = First(run, number, layer, is_layer, rules, made, told, is_alone)
        if before:
            first.before = before
        if values is not None:
            first.values = values
        if run is not None and run.has_failures and not is_alone:
            first.facts = run.call_facts(receiver=wrapped.receiver(args))
        if said is not None:
            first.run.set_context_if_unset(said)
        if kit.watchers and not kit.is_silent:
            first.run.start()
            kit.tell(StepStarted(first.step()))
        return first
    except Exception:  # noqa: BLE001 - the longer way round has its own guards
        kit.fault("Starting a call")
        return None


def _described(
    wrapped: WrappedFunction, rules: CallRules, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Any], list[Any] | None, bool, str | None, dict[str, Any] | None, Mapping[str, Any] | None]:
    """The arguments of any call by name, as they are now; what is told of them, whether they can change, what is said,
    what was given that could change, and the arguments themselves, where that is not kept.

    What is said is of a model's call: what the user said in it.
    """
    form = rules.template
    arguments: Mapping[str, Any] = wrapped.signature.bind(args, kwargs)
    said = before = values = None
    if rules.keeping is not None:
        if not rules.keeping.is_model:
            values = copied(arguments)
        before = rules.keeping.changeable(arguments)
        arguments, said = rules.keeping.arguments(arguments)
    elif wrapped.signature.is_unrestricted and form.lookup_name is not None and len(form.recordable_names) < NAMES:
        learned = [name for name in kwargs if wrapped.signature.can_name(name)]
        form.recordable_names = form.recordable_names.union(
            name for name in learned if form.lookup_name(name)[:2] == (name, False)
        )
    told = journal_values(form, arguments)
    is_flat = IMMUTABLE_TYPES.issuperset(map(type, arguments.values()))
    if is_flat or rules.keeping is not None:
        return dict(arguments), told, is_flat, said, before, values
    return {name: snapshot_value(value) for name, value in arguments.items()}, told, is_flat, said, None, None
