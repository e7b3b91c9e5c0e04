"""mulligan demo: a scripted agent meets each type of failure, recovers, and learns a lesson from it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from mulligan import settings as settings_file
from mulligan.api import Mulligan
from mulligan.capture.tool_outcome import ToolOutcome
from mulligan.cli import demo_world as world
from mulligan.cli.options import CommandContext, command, is_color_off, print_json, print_lines
from mulligan.core.events import AnyEvent, RecoveryPlanned, StepEnded
from mulligan.core.failure import StoreError
from mulligan.core.records import Lesson
from mulligan.prompt import Prompt
from mulligan.report.tables import format_duration, render_columns, to_line
from mulligan.store import counters
from mulligan.store.base import DEFAULT_TENANT, LessonQuery
from mulligan.store.counters import Cell
from mulligan.store.urls import fallback_path, open_store

_OPENING = (
    "An agent with six tools pays an invoice and asks about the weather. Its service fails in five ways.\n"
    '  x  failed attempt     >  action of mulligan     +  successful attempt     "  text for the model'
)
_PASSES = (
    ("First pass: memory is empty", world.UserRequest("INV-1", "Oslo", "refunds"), False),
    (
        "Second pass, not shown: another user, the same mistakes. One success could be a coincidence",
        world.UserRequest("INV-2", "Bergen", "invoices"),
        True,
    ),
    (
        "Third pass: the same task again, by a model that remembers nothing",
        world.UserRequest("INV-3", "Trondheim", "vouchers"),
        False,
    ),
)
"""Title, user request, and whether the pass is silent."""


@command("mulligan demo", "mulligan demo --fast --json", has_store=False)
@click.option("--fast", is_flag=True, help="Skip the pauses that make the output readable.")
def demo(context: CommandContext, fast: bool) -> None:
    """Run a scripted agent whose calls fail, and watch mulligan retry, repair, stop and learn.

    The agent calls a small HTTP service on this machine that fails in five ways. Nothing leaves the machine, and the
    records go into a separate store.
    """
    store_path = _fresh_store()
    mulligan = Mulligan(store=str(store_path), agent="demo-agent", mode="repair")
    service = world.DemoService()
    narrator = Narrator(context.as_json, pause=0.6 if sys.stdout.isatty() and not (fast or context.as_json) else 0)
    mulligan.add_listener(narrator.on_event, thread="caller")
    agent = world.ScriptedAgent(mulligan, world.build_tools(mulligan, service), narrator.narrate_call)
    try:
        narrator.say(_OPENING)
        passes: list[world.PassResult] = []
        for title, request, is_silent in _PASSES:
            narrator.title(title)
            narrator.is_silent = is_silent
            service.busy_city = request.city
            passes.append(agent.run(request.text, partial(agent.handle_request, request)))
            narrator.is_silent = False
            result = passes[-1]
            narrator.say(f"\n     The agent's answer: {result.answer}  [{result.run[:12]} {result.status}]")
        lesson, lesson_line = _demonstrate_lesson(context, mulligan, store_path, agent, narrator)
    finally:
        service.close()
    mulligan.flush()
    with contextlib.closing(open_store(str(store_path))) as store:
        histories = [store.run(DEFAULT_TENANT, result.run) for result in passes]
    cells = [counters.stats([history] if history else []).total for history in histories]
    if context.as_json:
        lesson_facts = None
        if lesson is not None:
            lesson_facts = {"id": lesson.id, "tool": lesson.tool, "runs": lesson.successes, "text": lesson_line}
        pass_facts = [_facts(result, cell) for result, cell in zip(passes, cells, strict=True)]
        facts = {"passes": pass_facts, "payments": service.payments, "lesson": lesson_facts}
        print_json(facts | {"store": str(store_path)})
        return
    narrator.title("Summary")
    rows = [
        ("", "first", "second", "third"),
        ("model turns", *(str(result.turns) for result in passes)),
        ("failed attempts", *(str(_failed_attempts(cell)) for cell in cells)),
    ]
    print_lines(render_columns(rows, right=(1, 2, 3)))
    summary = f"{len(passes)} invoices, {len(service.payments)} payments"
    click.echo(f"\n  {summary}: no payment was repeated after its timeout.")
    narrator.title("Next")
    program = _typed_program()
    for words in (f"show {passes[-1].run[:12]}", "runs", "lessons"):
        click.echo(f"  {program} {words} --store {store_path}")
    has_server_extra = all(importlib.util.find_spec(name) for name in ("starlette", "uvicorn", "jinja2"))
    hint = "" if has_server_extra else "    (dashboard, needs: pip install 'mulligan[server]')"
    click.echo(f"  {program} serve --open --store {store_path}{hint}")
    click.echo("\nIn your own code: put @mulligan.tool above a function, then run `mulligan runs`.")


def _demonstrate_lesson(
    context: CommandContext,
    mulligan: Mulligan,
    store_path: Path,
    agent: world.ScriptedAgent,
    narrator: Narrator,
) -> tuple[Lesson | None, str]:
    """Turn the fix that recovered three runs into a lesson, then show a run whose prompt contains it."""
    tool = "search_docs"
    narrator.title("A fix that succeeded in three runs becomes a lesson")
    mulligan.flush()
    with contextlib.closing(open_store(str(store_path))) as store:
        store.consolidate(DEFAULT_TENANT, context.now)
        lesson = next(iter(store.lessons(DEFAULT_TENANT, LessonQuery(tool=tool, now=context.now))), None)
        if lesson is None:
            return None, ""
        narrator.say(f"       {lesson.id[:12]} {tool}: {to_line(lesson.correction, 90)}", fg="cyan")
        evidence = f"succeeded in {lesson.successes} of {lesson.trials} runs"
        narrator.say(f"       {evidence}; stays proposed until it is promoted or approved")
        store.decide_lesson(DEFAULT_TENANT, lesson.id, "approve", context.now)
        narrator.say("     > approved by the demo, as you would with: mulligan lessons approve", fg="yellow")
    lesson_text = mulligan.render_lessons([tool])
    lesson_line = next((line for line in reversed(lesson_text.splitlines()) if "top_k" in line), "")
    narrator.title("Fourth run: the prompt starts with the lesson")
    narrator.say(f'     " {to_line(lesson_line, 160)}', fg="cyan")
    agent.run("How long do deliveries take?", partial(agent.search_with_lesson, lesson_text))
    return lesson, lesson_line


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
            click.echo(text if is_color_off() else click.style(text, **style))

    def title(self, text: str) -> None:
        self._number = 0
        self.say(f"\n{text}\n", bold=True)

    def narrate_call(
        self,
        headline: str,
        tool: str,
        arguments: dict[str, Any],
        failure_comment: str,
        make_call: Callable[[], ToolOutcome],
    ) -> ToolOutcome:
        """Print one tool call and its answer to the model."""
        self._number += 1
        argument_text = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        self.say(f"{self._number:>3}. {headline}", bold=True)
        self.say(f"       {tool}({argument_text})")
        outcome = make_call()
        if (answer := outcome.answer) is not None:
            if failure_comment:
                self.say(f"     > {failure_comment}", fg="yellow")
            self.say(f'     " {to_line(answer["message"], 110)}', fg="cyan")
            for sentence in filter(None, (answer.get("outcome"), answer["hint"], *outcome.notes)):
                self.say(f"       {to_line(sentence, 110)}", fg="cyan")
        time.sleep(0 if self.is_silent else self._pause)
        return outcome

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


def _typed_program() -> str:
    """Return the command as it was typed, for the commands suggested at the end."""
    typed = sys.argv[0]
    if shutil.which("mulligan") == typed or not Path(typed).name.startswith("mulligan"):
        return "mulligan"
    try:
        return str(Path(typed).relative_to(Path.cwd()))
    except ValueError:
        return typed


def _facts(result: world.PassResult, cell: Cell) -> dict[str, Any]:
    return {
        "run": result.run,
        "status": result.status,
        "turns": result.turns,
        "failed_attempts": _failed_attempts(cell),
        "recovered": cell.recovered,
        "unrecovered": cell.unrecovered,
        "backoff_seconds": cell.backoff_micros / 1e6,
        "kinds": {kind: kind_cell.failures for kind, kind_cell in cell.kinds.items()},
    }


def _failed_attempts(cell: Cell) -> int:
    return sum(kind.failures for kind in cell.kinds.values())
