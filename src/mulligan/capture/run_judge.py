"""Judges recovery links while a run happens: by all its calls, before anything is redacted.

Between calls only two facts are kept of a tool: the arguments of its first success and which of them have varied since.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

import msgspec

from mulligan.calls import Call
from mulligan.links import (
    CallFacts,
    Candidate,
    OpenFailure,
    RunProgress,
    differing_names,
    differs_in,
)
from mulligan.records import Link, Run, Status, Step

FAILED_CALLS = "__mulligan_calls__"
"""Where an exception names the failed calls that it left: run and number of each."""
MAX_FAILED_CALLS = 8
MAX_EXCEPTION_CHAIN = 16
"""Exceptions of a chain that are looked at."""
MAX_TEXT_CALLS = 50
"""Calls whose long texts are compared, the latest."""
Scope = tuple[Any, ...]


# Tasks


class TaskPath(NamedTuple):
    """A task or thread, after those it was started from by a copied context."""

    owner: tuple[int, int]
    path: tuple[int, ...]


_current_task: ContextVar[TaskPath | None] = ContextVar("mulligan_task", default=None)
_task_numbers = itertools.count(1)


def enter_task() -> tuple[int, ...]:
    """Return the path of the current task or thread. The first call in a copied context starts a branch."""
    asyncio = sys.modules.get("asyncio.tasks")
    task = None
    if asyncio is not None:
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no event loop runs in this thread
            task = None
    owner = (threading.get_ident(), id(task) if task is not None else 0)
    known = _current_task.get()
    if known is not None and known.owner == owner:
        return known.path
    path = (*(known.path if known is not None else ()), next(_task_numbers))
    _current_task.set(TaskPath(owner, path))
    return path


# Exceptions


def mark_exception(error: BaseException, run: str, call: int) -> None:
    """Note on an exception which failed call it left. A list of exceptions would keep their frames alive."""
    try:
        marks = vars(error)
        marks[FAILED_CALLS] = (*marks.get(FAILED_CALLS, ()), (run, call))[-MAX_FAILED_CALLS:]
    except Exception:  # noqa: BLE001 - an exception without a dictionary cannot be marked
        return


def find_failed_calls(error: BaseException | None, run: str) -> tuple[int, ...]:
    """Return the failed calls of a run that an exception, or one in its chain, has left."""
    return tuple(dict.fromkeys(call for marked, call in find_marked_calls(error) if marked == run))


def find_marked_calls(error: BaseException | None) -> tuple[tuple[str, int], ...]:
    """Return the failed calls, each with its run, that an exception or one in its chain has left."""
    waiting, looked_at = [error], 0
    calls: dict[tuple[str, int], None] = {}
    while waiting and looked_at < MAX_EXCEPTION_CHAIN:
        current = waiting.pop()
        if current is None:
            continue
        looked_at += 1
        try:
            calls |= dict.fromkeys(vars(current).get(FAILED_CALLS, ()))
        except Exception:  # noqa: BLE001 - an odd exception is no evidence
            continue
        waiting += [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            waiting += current.exceptions[:MAX_EXCEPTION_CHAIN]
    return tuple(calls)


# Items


class ArgumentVariation:
    """The successful calls of one tool in one item scope: their first arguments, and which have varied since."""

    __slots__ = ("_first", "_last", "alone", "is_settled", "last_given", "last_named", "varying")

    def __init__(self, given: Any, named: Any, arguments: Mapping[str, Any]) -> None:
        self.last_given = given
        self.last_named = named
        self._first = self._last = arguments
        self.varying: set[str] = set()
        """Arguments in which two successes differ."""
        self.alone: set[str] = set()
        """Arguments in which alone two successes differ: they name items."""
        self.is_settled = False
        """Whether every argument has varied alone, so that nothing more can be learned."""

    def add(self, given: Any, named: Any, arguments: Mapping[str, Any]) -> None:
        self.last_given, self.last_named = given, named
        changed = differing_names(self._first, arguments)
        self.varying |= changed
        if len(changed) == 1:
            self.alone |= changed
        last, self._last = self._last, arguments
        changed = differing_names(last, arguments)
        if len(changed) == 1:
            self.alone |= changed
        self.is_settled = self.alone.issuperset(arguments) and self.alone.issuperset(self._first)


class Provisional(NamedTuple):
    """A link that a later success may still show to be wrong."""

    candidate: Candidate
    failure: OpenFailure


class RunJudge:
    """Decides which later call recovers which failed call of a live run. Its caller holds the lock of runs."""

    def __init__(self, item_arguments: Callable[[str], Collection[str]]) -> None:
        self._item_arguments = item_arguments
        self.variations: dict[tuple[str, Scope], ArgumentVariation] = {}
        self.progress = RunProgress()
        self.links: list[Link] = []
        self._attempts: dict[int, list[Step]] = {}
        self._texts: list[Step] = []
        """Calls since the first failure, for comparing long texts; the latest."""
        self._provisional: dict[int, Provisional] = {}
        """By recovering call."""
        self._withdrawn: set[int] = set()

    @property
    def has_provisional(self) -> bool:
        return bool(self._provisional)

    def note_success(self, key: str, scope: Scope, given: Any, named: Any, arguments: Mapping[str, Any]) -> None:
        """Note the arguments of a successful call."""
        known = self.variations.get((key, scope))
        if known is None:
            first = ArgumentVariation(given, named, arguments)
            known = self.variations.setdefault((key, scope), first)
            if known is first:
                return
        if not known.is_settled:
            known.add(given, named, arguments)

    def withdraw_wrong(self) -> None:
        """Withdraw provisional links that a later success has shown to be a loop over items."""
        for number, provisional in list(self._provisional.items()):
            if self._is_item(provisional.candidate):
                del self._provisional[number]
                self._withdrawn.add(number)
                self.links = [link for link in self.links if link.overcame != number]
                self.progress = msgspec.structs.replace(
                    self.progress,
                    open=(*self.progress.open, provisional.failure),
                    recovered=self.progress.recovered - provisional.failure.intent_size,
                )

    def _is_item(self, candidate: Candidate) -> bool:
        key = candidate.call.first.tool_key
        roots = {path.partition(".")[0] for path in candidate.paths}
        known = self.variations.get((key, candidate.facts.item))
        if known is not None and not roots.isdisjoint(known.varying):
            return True
        own = candidate.call.last.arguments
        if known is not None and isinstance(own, Mapping) and not roots.isdisjoint(differing_names(known._first, own)):
            return True  # a call that is judged before it is noted
        if candidate.texts and differs_in(candidate._replace(paths=()), self._texts):
            return True
        return bool(roots) and not roots.isdisjoint(self._item_arguments(key))

    def judge(self, step: Step, facts: CallFacts, *, is_final: bool = True) -> Step:
        """Judge an attempt that has ended. Return its step with the links of its call.

        `is_final` says that the outcome of the call is delivered: no further attempt follows.
        """
        attempts = self._attempts.setdefault(step.call, [])
        attempts.append(step)
        if step.has_failed:
            step = msgspec.structs.replace(step, judged=True)
        if not is_final:
            return step
        del self._attempts[step.call]
        call = Call(steps=tuple(attempts))
        candidates: list[Candidate] = []

        def is_item(candidate: Candidate) -> bool:
            candidates.append(candidate)
            return self._is_item(candidate)

        before = self.progress
        self.progress, links = before.after(call, facts, is_item)
        self._texts = [*self._texts[1 - MAX_TEXT_CALLS :], step]
        if call.has_succeeded:
            self.links += links
            provisional = next((link for link in reversed(links) if link.provisional), None)
            if provisional is not None:
                failure = next(failure for failure in before.open if failure.call.id == provisional.failed)
                candidate = next(candidate for candidate in candidates if provisional.failed in candidate.intent)
                self._provisional[call.id] = Provisional(candidate, failure)
        own = tuple(link for link in links if link.failed != call.id)
        return msgspec.structs.replace(step, links=own) if own else step

    def status(self, run: Run) -> Status:
        return self.progress.status(run)

    @property
    def withdrawn(self) -> tuple[int, ...]:
        return tuple(sorted(self._withdrawn))

    def items(self) -> dict[str, tuple[str, ...]]:
        """Return the arguments that name items, by tool key."""
        items: dict[str, set[str]] = {}
        for (key, scope), variation in self.variations.items():
            if variation.alone and not scope:
                items.setdefault(key, set()).update(variation.alone)
        return {key: tuple(sorted(names)) for key, names in items.items()}


def scope_of(items: Iterable[Any], declared: Collection[str], arguments: Mapping[str, Any]) -> Scope:
    """Return the item scope of a call: the scopes around it, and the values of its declared item arguments."""
    return (*items, *((name, _normalize(arguments.get(name))) for name in declared))


def _normalize(value: Any) -> str:
    """An item's name in one form, so that the number 2 and the text "2" are one item."""
    return str(value)[:1000].strip().casefold()
