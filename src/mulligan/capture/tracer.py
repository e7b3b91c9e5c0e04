"""run and step as context managers, and which run is current."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from contextvars import Token
from types import TracebackType
from typing import Any, Self, get_args

import msgspec

from mulligan import calls
from mulligan.capture.kit import Kit
from mulligan.classify.taxonomy import KINDS, ORCHESTRATION_UNCAUGHT_EXCEPTION
from mulligan.events import RunEnded, RunStarted, StepEnded, StepStarted
from mulligan.failure import Failure, Kind, SettingsError
from mulligan.records import Outcome, Run, Status, Step, StepType, new_id

Raised = type[BaseException] | None


class ActiveRun:
    """A piece of work while it happens. Made by `mulligan.run`; wrapped calls inside it become its steps."""

    def __init__(self, kit: Kit, agent: str = "", **about: Any) -> None:
        parent = kit.run.get()
        about.setdefault("parent", parent.id if parent else None)
        about.setdefault("session", parent.record.session if parent else None)
        about.setdefault("environment", kit.environment)
        self._kit = kit
        self.record: Run = Run(id=new_id(), agent=agent or kit.agent, started=kit.now(), **about)
        self.notes: list[str] = []
        """What was repaired, in the model's words, since they were last asked for."""
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._telling: list[Step] = []
        self._has_failures = False
        self._seen_errors: list[BaseException] = []
        self._token: Token[ActiveRun | None] | None = None

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def status(self) -> Status:
        """What the run comes to so far: success, recovered, partial or failure."""
        with self._lock:
            steps = list(self._telling)
        return calls.status(self.record, steps, calls.overcame(steps))

    def next_number(self) -> int:
        return next(self._numbers)

    def step(self, type: StepType = "custom", name: str = "", **metadata: Any) -> ActiveStep:
        """A step of your own: `with run.step("plan", "read the question"):`."""
        if type not in get_args(StepType) or type == "run":
            raise SettingsError(f"a step is of type plan, tool, model, retrieval, respond or custom, got {type!r}.")
        return ActiveStep(self._kit, self, type, name, metadata)

    def record_failure(
        self, type: str, code: str, message: str = "", step: ActiveStep | None = None, **facts: Any
    ) -> Failure:
        """Records a failure that no exception told of: of a step, or, without one, of the run itself.

        `type` and `code` name a kind, of ours (`tool`, `timeout`) or of your own. `facts` are further fields of
        `Failure`, such as `status` or `hint`.
        """
        kind = KINDS.get(f"{type}/{code}") or Kind(type, code)
        failure = self._kit.classify(text=message, source=type, tool=step.name if step else self.record.agent)
        failure = Failure.of(kind, message, **{"fingerprint": failure.fingerprint, **facts})
        if step is None:
            self.publish(self._aside("run", self.record.agent, failure))
        elif step.failure is None:
            step.failure = failure
        else:  # one failure a step: the second stands beside it, inside
            self.publish(self._aside(step.type, step.name, failure, parent=step.number))
        return failure

    def _aside(self, type: StepType, name: str, failure: Failure, parent: int | None = None) -> Step:
        number = self.next_number()
        return Step(
            run=self.id,
            seq=number,
            call=number,
            parent=parent,
            type=type,
            name=name,
            outcome="failure",
            started=self._kit.now(),
            failure=failure,
        )

    def publish(self, step: Step) -> None:
        """Publishes a step that has ended, and keeps of it what the status rests on."""
        with self._lock:
            self._has_failures = self._has_failures or step.has_failed
            if self._has_failures:
                # A success before the first failure can overcome nothing, so most runs keep nothing at all.
                self._telling.append(msgspec.structs.replace(step, result=None))
        self._kit.publish(StepEnded(step))

    def has_seen(self, error: BaseException) -> bool:
        """Whether a step has told of this exception already; it is remembered for the next time."""
        if any(known is error for known in self._seen_errors):
            return True
        self._seen_errors = [*self._seen_errors[-4:], error]
        return False

    def begin(self) -> Self:
        self._kit.publish(RunStarted(self.record))
        return self

    def finish(self, error: BaseException | None) -> None:
        if isinstance(error, Exception) and not self.has_seen(error):
            failure = self._kit.classify(error, source="orchestration", tool=self.record.agent)
            if failure.kind.code == "unknown":
                failure = Failure.of(ORCHESTRATION_UNCAUGHT_EXCEPTION, failure.message, fingerprint=failure.fingerprint)
            self.publish(self._aside("run", self.record.agent, failure))
        self._seen_errors.clear()
        is_finished = error is None or isinstance(error, GeneratorExit)  # a stream that was not read to its end
        self.record = msgspec.structs.replace(
            self.record, ended=self._kit.now(), end="finished" if is_finished else "raised"
        )
        self._kit.publish(RunEnded(self.record))

    @contextlib.contextmanager
    def lasting(self) -> Iterator[Self]:
        """Begins the run and finishes it, without making it the current one in between."""
        self.begin()
        try:
            yield self
        except BaseException as error:
            self.finish(error)
            raise
        self.finish(None)

    @contextlib.contextmanager
    def inside(self) -> Iterator[Self]:
        """Makes the run the current one, here and now."""
        token = self._kit.run.set(self)
        try:
            yield self
        finally:
            self._kit.run.reset(token)

    def __enter__(self) -> Self:
        self._token = self._kit.run.set(self)
        return self.begin()

    def __exit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._token is not None:
            self._kit.run.reset(self._token)
        self.finish(error)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None) -> None:
        self.__exit__(kind, error, trace)


class ActiveStep:
    """A step of the user's own, while it happens."""

    def __init__(self, kit: Kit, run: ActiveRun, type: StepType, name: str, metadata: dict[str, Any]) -> None:
        self._kit = kit
        self.run = run
        self.type: StepType = type
        self.name = name
        self.metadata = metadata
        self.failure: Failure | None = None
        self.number = 0
        self._token: Token[ActiveStep | None] | None = None

    def record_failure(self, type: str, code: str, message: str = "", **facts: Any) -> Failure:
        return self.run.record_failure(type, code, message, step=self, **facts)

    def __enter__(self) -> Self:
        self.number = self.run.next_number()
        parent = self._kit.step.get()
        self._step = Step(
            run=self.run.id,
            seq=self.number,
            call=self.number,
            parent=parent.number if parent is not None and parent.run is self.run else None,
            type=self.type,
            name=self.name,
            started=self._kit.now(),
            metadata=self.metadata or None,
        )
        self._started = self._kit.timer()
        self._token = self._kit.step.set(self)
        self._kit.publish(StepStarted(self._step))
        return self

    def __exit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._token is not None:
            self._kit.step.reset(self._token)
        outcome: Outcome = "success"
        if isinstance(error, Exception):
            outcome = "failure"
            is_known = self.run.has_seen(error)
            if self.failure is None:
                self.failure = self._kit.classify(error, source=self.type, tool=self.name)
            elif not is_known:
                failure = self._kit.classify(error, source=self.type, tool=self.name)
                self.run.publish(self.run._aside(self.type, self.name, failure, parent=self.number))
        elif error is not None:
            outcome = "cancelled"
        elif self.failure is not None:
            outcome = "failure"
        self.run.publish(
            msgspec.structs.replace(
                self._step,
                outcome=outcome,
                failure=self.failure,
                seconds=self._kit.timer() - self._started,
                metadata=self.metadata or None,
            )
        )

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None) -> None:
        self.__exit__(kind, error, trace)
