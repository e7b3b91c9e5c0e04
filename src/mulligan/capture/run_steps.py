"""The steps of a run: numbered, judged and published."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

import msgspec

from mulligan.capture.call_history import MAX_REMEMBERED_CALLS, CallHistory
from mulligan.capture.call_origin import enter_task
from mulligan.capture.call_scope import AsyncScope, ContextValue, current_step, lock, retrying_scope
from mulligan.capture.context import CaptureContext, RunOptions
from mulligan.capture.recorded_failure import build_recorded_failure
from mulligan.capture.run_judge import TOOL_STEP_TYPES, RunJudge, outcome_of
from mulligan.capture.run_session import RunSession
from mulligan.capture.step_values import STATUS_NOTE
from mulligan.capture.value_recording import ValueRecorder
from mulligan.core import fork_safety
from mulligan.core.attempts import AttemptTracker
from mulligan.core.call_facts import CallFacts
from mulligan.core.events import FailureRecorded, StepEnded
from mulligan.core.failure import Failure
from mulligan.core.records import (
    FIRST_FAILURE_SEQ,
    AvoidedTurn,
    Link,
    RecordedMessage,
    Run,
    Status,
    Step,
    StepType,
)
from mulligan.recover.policy import EarlierCall

if TYPE_CHECKING:
    from mulligan.capture.message_recording import RunMessages
    from mulligan.core.token_usage import TokenUsage
    from mulligan.recover.loop_detection import LoopDetector


class RecordedStep(Protocol):
    """What a step failed with: its type, name and arguments."""

    @property
    def type(self) -> StepType: ...

    @property
    def name(self) -> str: ...

    @property
    def arguments(self) -> object: ...


class RunSteps(RunSession):
    id: str
    record: Run
    options: RunOptions
    is_open: bool
    is_implicit = False
    """Whether it was created for one call outside any run."""
    is_inherited = False
    """Whether the run belongs to the parent process, from which this one was forked."""
    repairs = 0
    loop_detector: LoopDetector | None = None
    messages: RunMessages | None = None
    """The recorded messages, if a model of the run records conversations."""
    _attempts: AttemptTracker | None = None
    """The latest calls whose attempts are marked steps."""
    _marked_steps: WeakValueDictionary[int, AsyncScope] | None = None
    """The steps marked by the user, by number."""
    _recent_steps: deque[AsyncScope] | None = None
    """The latest of them. A program that has only the number of a step has let go of the step itself."""

    def __init__(self, capture: CaptureContext) -> None:
        self.capture = capture
        self.numbers = itertools.count(1)
        self.start_judging()
        self._notes: list[tuple[str, str]] = []
        self._token_counted_attempts: set[int] = set()
        """Attempts whose tokens were counted by a nested model call."""
        self._model_turn: AvoidedTurn | None = None
        """The latest model call, until a recovered or failed tool call takes it."""

    def start_judging(self) -> None:
        self.judge = RunJudge(self.id, self.capture.prompt_fixes)
        self.history = CallHistory(self.judge)

    @property
    def status(self) -> Status:
        """The status of the run so far: success, recovered, partial or failure."""
        with lock():
            progress = self.judge.progress
            if not progress.has_success and self.history.has_success:
                progress = msgspec.structs.replace(progress, has_success=True)
            record = self.record
            if record.end_reason is None and self.judge.cut_off:
                record = msgspec.structs.replace(record, cut_off=tuple(self.judge.cut_off))
        return progress.status(record)

    @status.setter
    def status(self, status: object) -> None:
        raise AttributeError(STATUS_NOTE)

    def links(self) -> list[Link]:
        """Return the recovery links of this run so far."""
        with lock():
            return list(self.judge.links)

    def item(self, key: Any) -> ContextValue:
        """Open a scope for one item of a loop: `with run.item(order_id):`. Links and suggestions never cross scopes."""
        with lock():
            scopes = self.judge.item_scopes = self.judge.item_scopes or ContextVar("mulligan_items", default=())
        return ContextValue(scopes, lambda: (*scopes.get(), str(key)[:1000]))

    def next_number(self) -> int:
        if self.is_inherited:
            self.become_child_run()
        return next(self.numbers)

    def become_child_run(self) -> None:
        """Continue an inherited run under a new id, as its child."""
        raise NotImplementedError

    def start_step(
        self, *, is_numbered: bool = True, call: int = 0, user_text: str | None = None, **fields: Any
    ) -> Step:
        """Build the step of an attempt that starts now. `user_text` is the user's last text in its conversation.

        An attempt that is left out of the record has no number. `call` is the number of an earlier attempt.
        """
        number = self.next_number() if is_numbered else 0
        self.set_context_if_unset(user_text)
        fields.setdefault("parent", current_step(self.capture, self))
        return Step(run=self.id, seq=number, call=call or number, started_at=self.capture.now(), **fields)

    def set_context_if_unset(self, user_text: str | None) -> None:
        """Set the context to the user's text from the first model call, unless it is set."""
        if user_text and self.record.context is None and self.capture.record == "full":
            self.record = msgspec.structs.replace(self.record, context=user_text)

    def record_messages(self, messages: Sequence[RecordedMessage]) -> list[int]:
        """Number the messages of a model call. Those that are new are published with the next step."""
        with lock():
            if self.messages is None:
                with fork_safety.import_lock:
                    from mulligan.capture.message_recording import RunMessages  # lazy: few models record conversations
                self.messages = RunMessages()
            return self.messages.add(messages)

    def end_step(self, step: Step) -> StepEnded:
        """Build the event of a finished attempt, with the messages that no earlier one has brought."""
        if self.messages is None:
            return StepEnded(step)
        with lock():
            return StepEnded(step, self.messages.drain())

    def publish_step(
        self,
        step: Step,
        capture: CaptureContext | None = None,
        facts: CallFacts | None = None,
        **options: Any,
    ) -> None:
        """Publish a finished attempt with its recovery links. `options` are further arguments of `judge_step`.

        `capture` is the capture context of the step, if it records less than the run.
        """
        capture = capture or self.capture
        judged_step = self.judge_step(step, capture, facts, **options)
        turn = self._take_model_turn(step) if options.get("is_final", True) and step.type != "model" else None
        if judged_step is not None:
            if turn is not None:
                judged_step = msgspec.structs.replace(judged_step, avoided=turn)
            capture.publish_safely(self.end_step(judged_step))
        if facts is not None and step.outcome == "success" and step.type != "model" and not self.is_implicit:
            self.note_success(step.tool_key, options.get("values") or step.arguments or {}, facts.item)

    def judge_step(
        self,
        step: Step,
        capture: CaptureContext,
        facts: CallFacts | None = None,
        *,
        is_final: bool = True,
        values: Mapping[str, Any] | None = None,
        value_recorder: ValueRecorder | None = None,
        is_cut_off: bool = False,
    ) -> Step | None:
        """Judge a finished attempt. Return it with its links, or None if it is not published.

        `is_final` means that no further attempt of the call follows. `values` are the arguments to judge by, if
        `value_recorder` has reduced those of the step. `is_cut_off` says that it was cancelled from outside.
        """
        if values is not None and value_recorder is not None:
            whole_step = msgspec.structs.replace(step, arguments=dict(values))
            judged_step = self.judge_step(whole_step, capture, facts, is_final=is_final, is_cut_off=is_cut_off)
            if judged_step is None:
                return None
            links = value_recorder.links(judged_step.links)
            return msgspec.structs.replace(judged_step, arguments=step.arguments, links=links)
        if (
            self.loop_detector is not None
            and step.outcome == "success"
            and step.type in TOOL_STEP_TYPES
            and retrying_scope(capture) is None
        ):
            self.loop_detector.record_success()
            if self._notes:
                with lock():
                    self._notes = [(note, tool) for note, tool in self._notes if tool != step.name]
        if facts is not None and facts.lost_answers and step.outcome == "success":
            earlier_answers = facts.lost_answers
            if facts.turn is not None or step.parent is None:  # a read inside a tool tells the model nothing
                self.settle(
                    lambda answer: answer in earlier_answers and answer.is_looked_up(step.arguments, step.result)
                )
        if capture.is_recording_off and not self.capture.is_recording_off:
            return None  # the status of a recorded run must not depend on unrecorded steps
        if step.outcome == "success":
            self.history.add_success(step, is_remembered=not self.is_implicit)
        if is_cut_off and self.is_open and not self.is_implicit and step.type not in ("plan", "respond"):
            with lock():
                self.has_failures = True  # from now on, successes are judged: one may make the call again
                self.judge.note_cut_off(step, self.history.successes())
        if not (self.has_failures or step.has_failed):
            return step  # a success before the first failure recovers nothing
        judge = self.judge
        self._load_items(step)
        with lock():
            self.has_failures = True
            if facts is None:
                task = None if judge.is_logged else enter_task()
                facts = CallFacts(failures_before=judge.progress.delivered, task=task, is_logged=judge.is_logged)
            if step.has_failed:
                self.history.add_failure(step)
            return judge.judge(step, facts, is_final=is_final)

    def fail_step(self, step: Step, failure: Failure) -> None:
        """Give a step that has ended as a success the failure that was recorded for it afterwards."""
        self.capture.publish_safely(FailureRecorded(self.id, step.seq, failure))
        failed_step = step.with_failure(failure)
        self.note_attempt(failed_step)
        self._load_items(failed_step)
        with lock():
            self.has_failures = True
            self.history.forget_success(step.seq)
            self.history.add_failure(failed_step)
            later_successes = [success for success in self.history.successes() if success.seq > step.seq]
            self.judge.fail_step(failed_step, later_successes)

    def _load_items(self, step: Step) -> None:
        """Look up which arguments of the tool of a failed step name items."""
        if step.has_failed and not self.is_implicit and self.judge.needs_items(step):
            with self.capture.guard("Looking up the arguments that name items"):
                # before taking the lock: a store may be slow
                self.judge.load_items(step.tool_key, self.capture.item_arguments)

    def record_failure_of_unknown_step(self, step: Step, failure: Failure) -> None:
        """Record the failure of a step that the run no longer holds. The store gives it to the step."""
        seq = FIRST_FAILURE_SEQ + step.seq % FIRST_FAILURE_SEQ
        nested_step = Step(run=self.id, seq=seq, call=seq, parent=step.seq, started_at=self.capture.now())
        self.publish_step(nested_step.with_failure(failure))

    def build_failure(
        self, type: str | Enum, code: str | Enum, message: object, facts: Mapping[str, Any], step: RecordedStep | None
    ) -> Failure:
        return self.reduce_failure(
            build_recorded_failure(
                self.capture, type, code, message,
                source="run" if step is None else step.type,
                tool=self.record.agent if step is None else step.name,
                arguments=None if step is None else step.arguments,
                facts=facts,
            )
        )  # fmt: skip

    def reduce_failure(self, failure: Failure) -> Failure:
        """Return a failure as recorded: in shape without its detail, which has the messages of causes."""
        return msgspec.structs.replace(failure, detail="") if self.capture.record == "shape" else failure

    def record_child_failure(self, type: StepType, name: str, failure: Failure, parent: int | None = None) -> None:
        outcome = outcome_of(failure)
        self.publish_step(self.start_step(type=type, name=name, parent=parent, outcome=outcome, failure=failure))

    def join_call(self, step: Step, call: int | None, rank: int | None) -> Step:
        """Return a step that starts as an attempt of the call that it continues, if any."""
        if isinstance(call, int) and 0 < call < step.seq:
            step = msgspec.structs.replace(step, call=call)
        if rank is not None and rank > 1:
            step = msgspec.structs.replace(step, attempt=rank)
        with lock():
            if self._attempts is None:
                self._attempts = AttemptTracker(MAX_REMEMBERED_CALLS)
            return self._attempts.add(step, rank)

    def reopen_call(self, call: int) -> None:
        """Take back the judgement of a failed call: another attempt of it has ended."""
        with lock():
            self.judge.reopen_call(call)

    def remember_step(self, step: AsyncScope, number: int) -> None:
        """Remember a marked step while it is in use, and the latest ones."""
        with lock():
            if self._marked_steps is None or self._recent_steps is None:
                self._marked_steps, self._recent_steps = WeakValueDictionary(), deque(maxlen=MAX_REMEMBERED_CALLS)
        self._marked_steps[number] = step
        self._recent_steps.append(step)

    def find_step(self, number: int) -> AsyncScope | Step:
        """Return the step with this number: in use, among the latest ones, or else one without a name and a time."""
        marked_step = self._marked_steps.get(number) if self._marked_steps is not None else None
        if marked_step is not None:
            return marked_step
        with lock():
            step = self.history.find_step(number)
        return step or Step(run=self.id, seq=number, call=number)

    def note_attempt(self, step: Step) -> None:
        """Note how an attempt of a marked step has ended."""
        with lock():
            if self._attempts is not None:
                self._attempts.note(step)

    def note_success(self, key: str, arguments: Mapping[str, Any], item: tuple[Any, ...]) -> None:
        """Add the arguments of a successful call: they distinguish a loop over items from a correction."""
        with lock():
            self.judge.note_arguments(key, item, arguments)

    def begin_user_request(self) -> None:
        """Mark that the user has asked for something else: no repair takes a value from the calls so far.

        The user has read what is unknown, so that lost answers are settled.
        """
        self.settle(lambda answer: True)
        self.history.begin_user_request()

    def earlier_calls(self) -> list[EarlierCall]:
        """Return the earlier calls for the same request of the user, the oldest first; none for a standalone call."""
        return [] if self.is_implicit else self.history.earlier_calls()

    def ensure_loop_detector(self) -> LoopDetector:
        """Return the loop detector, with the unrecovered calls of this run."""
        with fork_safety.import_lock:
            from mulligan.recover.loop_detection import LoopDetector  # lazy: needed after a failure only
        with lock():
            if self.loop_detector is None:
                self.loop_detector = LoopDetector()
            self.has_failures = True  # from now on, successes are reported too
            return self.loop_detector

    def take_repair(self, limit: int) -> bool:
        """Count a repair. Return False if the limit is reached."""
        with lock():
            if self.repairs >= limit:
                return False
            self.repairs += 1
            return True

    def add_note(self, note: str, *, until_success_of: str = "") -> None:
        """Queue a note for the model. A success of the tool `until_success_of` withdraws it."""
        with lock():
            self._notes.append((note, until_success_of))

    def drain_notes(self) -> list[str]:
        """Return the queued notes for the model and clear the queue."""
        with lock():
            notes, self._notes = self._notes, []
        return [note for note, _ in notes]

    def count_usage(self, number: int, parent: int | None, usage: TokenUsage | None) -> TokenUsage | None:
        """Return the token usage of a model call, or None if a nested model call reported it already.

        A wrapped function that calls a wrapped client returns the same usage, which must count once.
        """
        is_counted = number in self._token_counted_attempts
        with lock():
            if (usage or is_counted) and parent is not None:
                self._token_counted_attempts.add(parent)
        return None if is_counted else usage

    def set_model_turn(self, model: str | None, usage: TokenUsage) -> None:
        """Remember the latest turn of the agent's model: a tool call that is recovered saves another one like it."""
        if input_tokens := usage.tokens.get("input"):
            with lock():
                self._model_turn = AvoidedTurn(model=model or usage.model or "", input_tokens=input_tokens)

    def _take_model_turn(self, step: Step) -> AvoidedTurn | None:
        """Return the model turn that a recovered call made unnecessary: the latest one, once.

        Calls that one turn requested need one more turn at most. A call that fails for good takes it too: then the
        model is asked again anyway.
        """
        is_recovered = step.attempt > 1 and step.outcome == "success"
        if self._model_turn is None or not (is_recovered or step.has_failed):
            return None
        with lock():
            turn, self._model_turn = self._model_turn, None
        return turn if is_recovered else None
