"""mulligan demo: a scripted agent meets each type of failure, recovers, and learns a lesson from it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from mulligan import settings as settings_file
from mulligan.api import Mulligan
from mulligan.cli.demo.agent import (
    PassResult,
    ScriptedCall,
    UserRequest,
    build_informed_script,
    build_script,
    is_failure,
    run_pass,
)
from mulligan.cli.demo.world import DemoService, build_tools
from mulligan.cli.options import as_json, now_ms, print_json, print_lines
from mulligan.core.events import AnyEvent, RecoveryPlanned, StepEnded
from mulligan.core.failure import StoreError
from mulligan.core.records import Lesson
from mulligan.prompt import Prompt
from mulligan.report.tables import format_duration, render_columns, to_line
from mulligan.store import counters as counters_module
from mulligan.store.base import DEFAULT_TENANT, LessonQuery, RunQuery
from mulligan.store.counters import Cell
from mulligan.store.urls import fallback_path, open_store


@click.command(epilog="Examples:\n\n  mulligan demo\n\n  mulligan demo --fast --json")
@click.option("--fast", is_flag=True, help="Skip the pauses that make the output readable.")
@as_json
def demo(fast: bool, as_json: bool) -> None:
    """Run a scripted agent whose calls fail, and watch mulligan retry, repair, stop and learn.

    The agent calls a small HTTP service on this machine that fails in five ways. Nothing leaves the machine, and the
    records go into a separate store.
    """
    store_path = _fresh_store()
    started_at = now_ms()
    mulligan = Mulligan(store=str(store_path), agent="demo-agent", mode="repair")
    service = DemoService()
    narrator = Narrator(is_quiet=as_json, pause=0 if fast or as_json or not sys.stdout.isatty() else 0.6)
    mulligan.add_listener(narrator.on_event, thread="caller")
    try:
        tools_by_name = build_tools(mulligan, service)
        narrator.say(_OPENING)
        passes: list[PassResult] = []
        times = [started_at]
        for title, request, is_silent in _PASSES:
            narrator.title(title)
            narrator.is_silent = is_silent
            service.reject_next_weather_request(request.city)
            passes.append(run_pass(mulligan, tools_by_name, build_script(request), request.text, narrator.narrate_call))
            narrator.is_silent = False
            narrator.print_answer(passes[-1])
            times.append(now_ms() + 1)
            time.sleep(0.002)  # gives the passes different start times in milliseconds
        lesson, lesson_line = _demonstrate_lesson(mulligan, store_path, tools_by_name, narrator)
    finally:
        service.close()
    mulligan.flush()
    store = open_store(str(store_path))
    pass_counters = [
        counters_module.stats(store.runs(DEFAULT_TENANT, RunQuery(since=since, until=until))).total
        for since, until in pairwise(times)
    ]
    if as_json:
        print_json(
            {
                "passes": [_facts(result, counters) for result, counters in zip(passes, pass_counters, strict=True)],
                "payments": service.payments,
                "lesson": {"id": lesson.id, "tool": lesson.tool, "runs": lesson.successes, "text": lesson_line}
                if lesson
                else None,
                "store": str(store_path),
            }
        )
        return
    narrator.title("Summary")
    print_lines(_comparison(passes, pass_counters))
    summary = f"{len(passes)} invoices, {len(service.payments)} payments"
    click.echo(f"\n  {summary}: no payment was repeated after its timeout.")
    narrator.title("Next")
    command = _command()
    for words in (f"show {passes[-1].run[:12]}", "runs", "lessons"):
        click.echo(f"  {command} {words} --store {store_path}")
    click.echo(f"  {command} serve --open --store {store_path}{_dashboard_hint()}")
    click.echo("\nIn your own code: put @mulligan.tool above a function, then run `mulligan runs`.")


def _demonstrate_lesson(
    mulligan: Mulligan, store_path: Path, tools_by_name: dict[str, Callable[..., Any]], narrator: Narrator
) -> tuple[Lesson | None, str]:
    """Turn the fix that recovered three runs into a lesson, then show a run whose prompt contains it."""
    tool = "search_docs"
    narrator.title("A fix that succeeded in three runs becomes a lesson")
    mulligan.flush()
    with contextlib.closing(open_store(str(store_path))) as store:
        store.consolidate(DEFAULT_TENANT, now_ms())
        lesson = next(iter(store.lessons(DEFAULT_TENANT, LessonQuery(tool=tool, now=now_ms()))), None)
        if lesson is None:
            return None, ""
        narrator.say(f"       {lesson.id[:12]} {tool}: {to_line(lesson.correction, 90)}", fg="cyan")
        narrator.say(
            f"       succeeded in {lesson.successes} of {lesson.trials} runs; stays proposed until it is promoted "
            "or approved"
        )
        store.decide_lesson(DEFAULT_TENANT, lesson.id, "approve", now_ms())
        narrator.say("     > approved by the demo, as you would with: mulligan lessons approve", fg="yellow")
    lesson_text = mulligan.render_lessons([tool])
    lesson_line = next((text_line for text_line in reversed(lesson_text.splitlines()) if "top_k" in text_line), "")
    narrator.title("Fourth run: the prompt starts with the lesson")
    narrator.say(f'     " {to_line(lesson_line, 160)}', fg="cyan")
    script = build_informed_script(lesson_text)
    run_pass(mulligan, tools_by_name, script, "How long do deliveries take?", narrator.narrate_call)
    return lesson, lesson_line


def _dashboard_hint() -> str:
    """Return how to install the dashboard's dependencies if they are missing."""
    has_server_extra = all(importlib.util.find_spec(name) for name in ("starlette", "uvicorn", "jinja2"))
    return "" if has_server_extra else "    (dashboard, needs: pip install 'mulligan[server]')"


_PASSES = (
    ("First pass: memory is empty", UserRequest("INV-1", "Oslo", "refunds"), False),
    (
        "Second pass, not shown: another user, the same mistakes. One success could be a coincidence",
        UserRequest("INV-2", "Bergen", "invoices"),
        True,
    ),
    (
        "Third pass: the same task again, by a model that remembers nothing",
        UserRequest("INV-3", "Trondheim", "vouchers"),
        False,
    ),
)
"""Title, user request, and whether the pass is silent."""
_OPENING = (
    "An agent with six tools pays an invoice and asks about the weather. Its service fails in five "
    "ways.\n"
    '  x  failed attempt     >  action of mulligan     +  successful attempt     "  text for the model'
)


class Narrator:
    """Prints each step of the demo from the events that mulligan publishes."""

    def __init__(self, is_quiet: bool, pause: float) -> None:
        self._is_quiet = is_quiet
        self.is_silent = False
        """Whether output is suppressed for now."""
        self._pause = pause
        self._number = 0

    def say(self, text: str, **style: Any) -> None:
        if not (self._is_quiet or self.is_silent):
            is_color_off = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
            click.echo(text if is_color_off else click.style(text, **style))

    def title(self, text: str) -> None:
        self._number = 0
        self.say(f"\n{text}\n", bold=True)

    def narrate_call(self, request: ScriptedCall, make_call: Callable[[], Any]) -> Any:
        """Print one tool call and its answer to the model."""
        self._number += 1
        argument_text = ", ".join(f"{name}={value!r}" for name, value in request.arguments.items())
        self.say(f"{self._number:>3}. {request.headline}", bold=True)
        self.say(f"       {request.name}({argument_text})")
        answer = make_call()
        if is_failure(answer):
            if request.failure_comment:
                self.say(f"     > {request.failure_comment}", fg="yellow")
            self._print_failure(answer)
        time.sleep(0 if self.is_silent else self._pause)
        return answer

    def _print_failure(self, answer: dict[str, Any]) -> None:
        self.say(f'     " {to_line(answer["message"], 110)}', fg="cyan")
        for sentence in (answer.get("outcome"), answer["hint"], *answer.get("suggestions", ())):
            if sentence:
                self.say(f"       {to_line(sentence, 110)}", fg="cyan")

    def on_event(self, event: AnyEvent) -> None:
        match event:
            case StepEnded(step) if step.type == "tool" and step.failure is not None:
                duration = format_duration(step.duration_seconds)
                self.say(f"     x {step.failure.kind} after {duration}: {to_line(step.failure.message, 80)}", fg="red")
            case StepEnded(step) if step.type == "tool":
                duration = format_duration(step.duration_seconds)
                self.say(f"     + succeeded in {duration}: {to_line(step.result, 70)}", fg="green")
                if step.recovery is not None and step.recovery.changes:
                    self.say(f'     " {Prompt().note(step.name, step.recovery.changes)}', fg="cyan")
            case RecoveryPlanned(_, recovery) if recovery.changes:
                change_text = ", ".join(
                    f"{change.path} {change.before!r} -> {change.after!r}" for change in recovery.changes
                )
                self.say(f"     > repair: {change_text} ({recovery.confidence:.0%} confidence)", fg="yellow")
            case RecoveryPlanned(_, recovery):
                self.say(f"     > retry after a backoff of {format_duration(recovery.backoff_seconds)}", fg="yellow")

    def print_answer(self, result: PassResult) -> None:
        self.say(f"\n     The agent's answer: {result.answer}  [{result.run[:12]} {result.status}]")


def _fresh_store() -> Path:
    """Create an empty store for the demo. Each demo starts without memory of earlier ones."""
    folder = settings_file.load_settings().folder
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        store_path = folder / "demo.db"
        for path in (store_path, Path(f"{store_path}-wal"), Path(f"{store_path}-shm")):
            path.unlink(missing_ok=True)
        open_store(str(store_path)).close()
    except (OSError, StoreError) as error:
        store_path = fallback_path().with_name(f"demo-{os.getpid()}.db")
        click.echo(f"Cannot write to {folder} ({error}). The demo uses {store_path}.", err=True)
    return store_path


def _command() -> str:
    """Return the command as it was typed, for the commands suggested at the end."""
    typed = sys.argv[0]
    if shutil.which("mulligan") == typed or not Path(typed).name.startswith("mulligan"):
        return "mulligan"
    try:
        return str(Path(typed).relative_to(Path.cwd()))
    except ValueError:
        return typed


def _facts(result: PassResult, counters: Cell) -> dict[str, Any]:
    return {
        "run": result.run,
        "status": result.status,
        "turns": result.turns,
        "failed_attempts": _failed_attempts(counters),
        "recovered": counters.recovered,
        "unrecovered": counters.unrecovered,
        "backoff_seconds": counters.backoff_micros / 1e6,
        "kinds": {kind: kind_counters.failures for kind, kind_counters in counters.kinds.items()},
    }


def _failed_attempts(counters: Cell) -> int:
    return sum(kind.failures for kind in counters.kinds.values())


def _comparison(passes: Sequence[PassResult], pass_counters: Sequence[Cell]) -> Any:
    rows = [
        ("", "first", "second", "third"),
        ("model turns", *(str(result.turns) for result in passes)),
        ("failed attempts", *(str(_failed_attempts(counters)) for counters in pass_counters)),
    ]
    return render_columns(rows, right=(1, 2, 3))
