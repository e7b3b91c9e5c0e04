"""Playing a program: so many runs over so many simulated days, in three modes side by side."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import importlib
import inspect
import logging
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from learning.judge import Verdicts, judge_lessons, judge_plays
from learning.stage import DAY, MODES, START, Clock, Mode, Play, Stage
from mulligan.contract.store import DEFAULT_TENANT
from mulligan.store.urls import open_store

Program = Callable[[Stage], Any]
PROGRAMS: dict[str, Program] = {}
"""All programs by name, in the order in which they are defined."""
HOUR = 3600.0
Job = tuple[str, int, float, int]
"""A program, how many runs, over how many days, and a seed."""


def register_program(function: Program, name: str = "") -> Program:
    """Take a function in as a program. Its name is its title, its docstring says what it shows."""
    PROGRAMS[name or function.__name__] = function
    return function


def play_job(job: Job) -> Verdicts:
    """Play one program in a process of its own, which knows none yet."""
    importlib.import_module("learning.programs")
    return play_program(*job)


def play_program(name: str, runs: int = 50, days: float = 14.0, seed: int = 0) -> Verdicts:
    """Play one program in all modes, and judge it."""
    plays: dict[Mode, list[Play]] = {}
    with _warnings() as warnings, tempfile.TemporaryDirectory(prefix="learning-") as folder:
        for mode in MODES:
            # Only what outlives a run needs a file; the interface of both stores is one, and one suite tests it.
            store = str(Path(folder) / "mulligan.db") if mode == "full" else "memory:"
            plays[mode] = play_runs(name, mode, store, runs, days, seed)
        lessons = list_lessons(str(Path(folder) / "mulligan.db"), days)
    verdicts = judge_plays(plays, days)
    judge_lessons(verdicts, lessons, plays["full"])
    verdicts.warnings = len(warnings)
    verdicts.examples["warning"] = warnings[:3]
    return verdicts


def play_runs(name: str, mode: Mode, store: str, runs: int, days: float, seed: int) -> list[Play]:
    """Play a program so many times in one mode. A new process would begin each run: only the store is the same."""
    clock, plays = Clock(), []
    with clock.replace_time():
        for number in range(runs):
            day = number * days / runs
            clock.move_to(START + day * DAY + 9 * HOUR)
            stage = Stage(name, mode, number, day, clock, seed, store)
            try:
                # A context of its own, as a new process would have: what earlier runs left in theirs is not seen.
                contextvars.Context().run(_play_once, PROGRAMS[name], stage)
            except Exception as error:  # noqa: BLE001 - a program that raises is judged too
                stage.play.error = f"{type(error).__name__}: {error}"
            finally:
                stage.close()
            plays.append(stage.play)
    return plays


def list_lessons(store: str, days: float) -> list[Any]:
    """Make lessons of all runs, and list them."""
    with contextlib.closing(open_store(store)) as opened:
        return list(opened.consolidate(DEFAULT_TENANT, int((START + days * DAY) * 1000)).lessons)


def _play_once(program: Program, stage: Stage) -> None:
    result = program(stage)
    if inspect.iscoroutine(result):
        asyncio.run(result)


class _Keeper(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(f"{record.getMessage()} {record.exc_info[1] if record.exc_info else ''}".strip())


@contextlib.contextmanager
def _warnings() -> Iterator[list[str]]:
    """Gather what mulligan logs: a fault of its own costs memory, and would look like caution here."""
    lines: list[str] = []
    handler, logger = _Keeper(lines), logging.getLogger("mulligan")
    was_passed_on, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.propagate = was_passed_on
