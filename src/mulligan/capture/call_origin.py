"""Where a call comes from: its task, the exceptions being handled, and the object of its function."""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from mulligan.core.call_facts import Receiver

FAILED_CALLS = "__mulligan_calls__"
"""The attribute of an exception that lists the failed calls that raised it, as pairs of run and call number.

The number is None if the run reported the exception without a call.
"""
FAILED_STEPS = "__mulligan_steps__"
"""The attribute of an exception with the innermost step of each run that it has left."""
MAX_EXCEPTION_CHAIN = 16
"""Exceptions of a chain that are examined."""


# Tasks


_current_task: ContextVar[tuple[tuple[int, int], tuple[int, ...]] | None] = ContextVar("mulligan_task", default=None)
"""A task or thread, and its ancestors by copied contexts."""
_task_numbers = itertools.count(1)


def enter_task() -> tuple[int, ...]:
    """Return the path of the current task or thread. The first call in a copied context starts a branch."""
    task = None
    if asyncio := sys.modules.get("asyncio.tasks"):
        with contextlib.suppress(RuntimeError):  # no event loop runs in this thread
            task = asyncio.current_task()
    owner = (threading.get_ident(), id(task) if task is not None else 0)
    known_owner, path = _current_task.get() or (None, ())
    if known_owner != owner:
        # Ancestor tasks that are tracked, the latest: jobs may schedule successors indefinitely.
        path = (*path[-7:], next(_task_numbers))
        _current_task.set((owner, path))
    return path


# Exceptions


corrected_calls: ContextVar[tuple[tuple[str, int], ...]] = ContextVar("mulligan_correcting", default=())
"""The failed calls, as pairs of run and call number, that the program marks as being corrected."""


def mark_exception(error: BaseException, run: str, call: int | None = None) -> bool:
    """Mark an exception as reported by a run, with or without a failed call. Return whether it was marked before.

    Marks the exception itself: a list of exceptions would keep their frames alive.
    """
    try:
        marks = vars(error)
        earlier = marks.get(FAILED_CALLS, ())
        marks[FAILED_CALLS] = (*earlier, (run, call))[-8:]
        return any(marked == run for marked, _ in earlier)
    except Exception:  # noqa: BLE001 - an exception without a dictionary cannot be marked
        return False


def mark_step(error: BaseException, run: str, number: int) -> None:
    """Mark an exception with a step that it has left.

    The highest number of each run counts: that of the innermost step, or of the latest one if the same object is
    raised again.
    """
    with contextlib.suppress(Exception):  # an exception without a dictionary cannot be marked
        numbers = vars(error).setdefault(FAILED_STEPS, {})
        numbers[run] = max(number, numbers.get(run, 0))


def find_marked_step(error: BaseException | None, run: str) -> int | None:
    """Return the innermost step of the run that an exception has left, or else the call of the run that raised it."""
    with contextlib.suppress(Exception):
        marks = vars(error)
        calls = (call for marked, call in marks.get(FAILED_CALLS, ()) if marked == run and call)
        step: int | None = marks.get(FAILED_STEPS, {}).get(run) or next(calls, None)
        return step
    return None


def find_marked_steps(error: BaseException) -> tuple[tuple[str, int], ...]:
    """Return the innermost step of each run that an exception has left, as pairs of run and number."""
    with contextlib.suppress(Exception):  # an exception without a dictionary cannot be marked
        return tuple(vars(error).get(FAILED_STEPS, {}).items())
    return ()


def find_marked_calls(error: BaseException | None) -> tuple[tuple[str, int], ...]:
    """Return the failed calls, each with its run, that an exception or one in its chain has left."""
    pending, visited_count = [error], 0
    calls: dict[tuple[str, int], None] = {}
    while pending and visited_count < MAX_EXCEPTION_CHAIN:
        current = pending.pop()
        if current is None:
            continue
        visited_count += 1
        try:
            calls |= {mark: None for mark in vars(current).get(FAILED_CALLS, ()) if mark[1] is not None}
        except Exception:  # noqa: BLE001 - an exception that cannot be inspected is no evidence
            continue
        pending += [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            pending += current.exceptions[:MAX_EXCEPTION_CHAIN]
    return tuple(calls)


# Objects


def find_receiver(function: Callable[..., Any], instance: object = None) -> Receiver | None:
    """Return what a function depends on besides its arguments, or None.

    `instance` is the object of a method. Uses weak references where possible, so that a failure keeps no object alive.
    """
    instance = instance if instance is not None else getattr(function, "__self__", None)
    if instance is not None:
        return Receiver(None, (_refer_to(instance),))
    values: list[Any] = []
    code: Any = function
    if isinstance(function, functools.partial):
        values = [*function.args, *function.keywords.values()]
        code = function.func
    for cell in getattr(code, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # the cell is still empty
            values.append(cell.cell_contents)
    values += getattr(code, "__defaults__", None) or ()
    values += (getattr(code, "__kwdefaults__", None) or {}).values()
    return Receiver(_refer_to(function), tuple(map(_refer_to, values))) if values else None


def _refer_to(value: Any) -> Any:
    try:
        return weakref.ref(value)
    except TypeError:  # numbers, texts and objects with slots
        return value
