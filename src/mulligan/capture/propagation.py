"""The current run in other threads and processes: functions that carry it, and a warning about calls that lost it."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import Context
from typing import Any

from mulligan.core import fork_safety
from mulligan.core.log import get_logger

log = get_logger(__name__)

StartRun = Callable[..., AbstractContextManager[Any]]
Restore = Callable[[Callable[..., Any], Mapping[str, Any]], Any]


class CarriedFunction:
    """A function that carries the run of its creation.

    In any thread of the process, it runs in the context of its creation. In another process, each of its calls is a
    run of its own, whose parent is that run.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        start_run: StartRun,
        run_options: Mapping[str, Any],
        restore: Restore | None = None,
        context: Context | None = None,
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        self._function = function
        self._start_run = start_run
        self._run_options = run_options
        """The arguments of `start_run` in another process."""
        self._restore = restore
        self._context = context
        self._process = os.getpid()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._context is not None and os.getpid() == self._process:
            # A copy for each call: two threads cannot run in the same context at once.
            return self._context.copy().run(self._function, *args, **kwargs)
        with self._start_run(**self._run_options):
            return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._restore is None:
            raise TypeError("Only functions carried by mulligan.carry_run can be sent to another process.")
        return self._restore, (self._function, self._run_options)


PROCESS_MARK = "mulligan_run_open"
"""Whether a run was open when a process was created. A new process gets a copy of the options of its parent."""


def _process_options() -> dict[str, Any]:
    """Return the options that `multiprocessing` copies into new processes; none if the program does not use it."""
    process = sys.modules.get("multiprocessing.process")
    # It is private, but every start method copies it. An environment variable would not reach the children of a fork
    # server, and would reach every program that the user's code starts.
    options = getattr(process.current_process(), "_config", None) if process is not None else None
    return options if isinstance(options, dict) else {}


def _set_process_mark(is_open: bool) -> None:
    _process_options()[PROCESS_MARK] = is_open


class LostRunWatch:
    """Watch for calls in other threads and processes that are part of no run. It warns once per process."""

    def __init__(self) -> None:
        self._reset()
        fork_safety.run_in_child(self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._threads: dict[str, int] = {}
        """The thread in which each open run was entered."""
        self._run_counts: Counter[int] = Counter()
        """Open runs by thread."""
        self._has_warned = False
        self.is_active = True
        """Whether the next call outside a run is to be checked. Hot path: every such call reads it."""

    def add_run(self, run: str) -> None:
        with self._lock:
            if run not in self._threads:
                thread = self._threads[run] = threading.get_ident()
                self._run_counts[thread] += 1
                self.is_active = not self._has_warned
                _set_process_mark(True)

    def remove_run(self, run: str) -> None:
        with self._lock:
            thread = self._threads.pop(run, None)
            if thread is not None:
                self._run_counts[thread] -= 1
                self._run_counts += Counter()  # drops threads without runs
                _set_process_mark(bool(self._run_counts))

    def check(self, tool: str) -> None:
        """Warn about a call outside any run, if the run of another thread or process may be meant."""
        process = sys.modules.get("multiprocessing.process")
        thread = threading.current_thread()
        if process is not None and process.parent_process() is not None and _process_options().get(PROCESS_MARK):
            reason = (
                f"{tool!r} was called in process {process.current_process().name!r} outside any run, while a run was "
                "open in its parent: a new process does not inherit it. If the call belongs to that run, pass "
                "mulligan.carry_run(function) to the process or pool, or send run.headers and use "
                "mulligan.run(agent, traceparent=headers) here."
            )
        elif thread is threading.main_thread() or not self._run_counts or threading.get_ident() in self._run_counts:
            self.is_active = bool(self._run_counts)
            return
        else:
            reason = (
                f"{tool!r} was called in thread {thread.name!r} outside any run, while a run was open in another "
                "thread: a new thread does not inherit it. If the call belongs to that run, pass "
                "mulligan.carry_run(function) to the thread or pool, or contextvars.copy_context().run."
            )
        with self._lock:
            is_first, self._has_warned, self.is_active = not self._has_warned, True, False
        if is_first:
            log.warning("%s This warning appears once per process.", reason)


lost_run_watch = LostRunWatch()
