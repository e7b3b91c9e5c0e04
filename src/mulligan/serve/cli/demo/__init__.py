"""mulligan demo: a scripted agent meets each type of failure, recovers, and learns a lesson from it."""

from __future__ import annotations

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

from mulligan import figures
from mulligan import settings as settings_file
from mulligan.assembly import Mulligan
from mulligan.events import AnyEvent, RecoveryPlanned, StepEnded
from mulligan.failure import StoreError
from mulligan.figures import Cell
from mulligan.prompt import Prompt
from mulligan.records import Lesson
from mulligan.remember.store import LOCAL, LessonQuery, RunQuery
from mulligan.remember.urls import open_store, refuge
from mulligan.report.terminal import columns, duration, line
from mulligan.serve.cli.demo.agent import Asked, Wish, Work, forewarned, is_failure, script, work
from mulligan.serve.cli.demo.world import World, tools
from mulligan.serve.cli.options import as_json, now, print_json, print_lines


@click.command(epilog="Examples:\n\n  mulligan demo\n\n  mulligan demo --fast --json")
@click.option("--fast", is_flag=True, help="Without the pauses that make it readable.")
@as_json
def demo(fast: bool, as_json: bool) -> None:
    """Watch failing calls being recovered, told or stopped; see the third pass go better, and what is learned.

    A scripted agent works against a small HTTP service on this machine, which fails in five ways. Nothing leaves the
    machine, and what is recorded goes into a file of its own.
    """
    place = _fresh_store()
    began = now()
    mulligan = Mulligan(store=str(place), agent="demo-agent", mode="repair")
    world = World()
    narrator = Narrator(is_quiet=as_json, pause=0 if fast or as_json or not sys.stdout.isatty() else 0.6)
    mulligan.listen(narrator.hear, when="caller")
    try:
        able = tools(mulligan, world)
        narrator.say(_OPENING)
        passes: list[Work] = []
        times = [began]
        for title, wish, is_silent in _PASSES:
            narrator.title(title)
            narrator.is_silent = is_silent
            world.be_busy(wish.city)
            passes.append(work(mulligan, able, script(wish), wish.text, narrator.watch))
            narrator.is_silent = False
            narrator.answer(passes[-1])
            times.append(now() + 1)
            time.sleep(0.002)  # gives the passes different start times in milliseconds
        lesson, told = _learned(mulligan, place, able, narrator)
    finally:
        world.close()
    mulligan.flush()
    store = open_store(str(place))
    cells = [
        figures.stats(store.runs(LOCAL, RunQuery(since=since, until=until))).total for since, until in pairwise(times)
    ]
    if as_json:
        print_json(
            {
                "passes": [_facts(done, cell) for done, cell in zip(passes, cells, strict=True)],
                "payments": world.payments,
                "lesson": {"id": lesson.id, "tool": lesson.tool, "runs": lesson.worked, "told": told}
                if lesson
                else None,
                "store": str(place),
            }
        )
        return
    narrator.title("What it came to")
    print_lines(_comparison(passes, cells))
    made = f"{len(passes)} invoices, {len(world.payments)} payments"
    click.echo(f"\n  {made}: the calls that timed out were not repeated.")
    narrator.title("Where to look")
    command = _command()
    click.echo(f"  {command} show {passes[-1].run[:12]} --store {place}")
    click.echo(f"  {command} runs --store {place}")
    click.echo(f"  {command} lessons --store {place}")
    click.echo(f"  {command} serve --open --store {place}{_for_pages()}")
    click.echo("\nIn your own code: put @mulligan.tool above a function, and look at `mulligan runs`.")


def _learned(
    mulligan: Mulligan, place: Path, able: dict[str, Callable[..., Any]], narrator: Narrator
) -> tuple[Lesson | None, str]:
    """Turn the fix that recovered three runs into a lesson, then show a run whose prompt contains it."""
    tool = "search_docs"
    narrator.title("What helped in three runs becomes a lesson")
    mulligan.flush()
    store = open_store(str(place))
    try:
        store.consolidate(LOCAL, now())
        found = store.lessons(LOCAL, LessonQuery(tool=tool, now=now()))
        if not found:
            return None, ""
        lesson = found[0]
        narrator.say(f"       {lesson.id[:12]} {tool}: {line(lesson.correction, 90)}", fg="cyan")
        narrator.say(
            f"       worked in {lesson.worked} of {lesson.tried} runs; proposed until it is proven or approved"
        )
        store.decide_lesson(LOCAL, lesson.id, "approve", now())
        narrator.say("     > approved here, as you would: mulligan lessons approve", fg="yellow")
    finally:
        store.close()
    known = mulligan.pitfalls([tool])
    told = next((each for each in reversed(known.splitlines()) if "top_k" in each), "")
    narrator.title("A fourth run, whose prompt begins with what is known")
    narrator.say(f'     " {line(told, 160)}', fg="cyan")
    work(mulligan, able, forewarned(known), "How long do deliveries take?", narrator.watch)
    return lesson, told


def _for_pages() -> str:
    """Return how to install the dashboard's dependencies if they are missing."""
    has_it = all(importlib.util.find_spec(name) for name in ("starlette", "uvicorn", "jinja2"))
    return "" if has_it else "    (the dashboard; it needs: pip install 'mulligan[server]')"


_PASSES = (
    ("First pass: nothing is known yet", Wish("INV-1", "Oslo", "refunds"), False),
    (
        "Second pass, not shown: another user, the same mistakes. What worked once may be a coincidence",
        Wish("INV-2", "Bergen", "invoices"),
        True,
    ),
    (
        "Third pass: the same work again, by a model that has forgotten the others",
        Wish("INV-3", "Trondheim", "vouchers"),
        False,
    ),
)
"""Title, user request, and whether the pass is silent."""
_OPENING = (
    "An agent with six tools pays an invoice and asks about the weather. Its service fails in five ways.\n"
    '  x  an attempt failed     >  what mulligan does next     +  an attempt worked     "  what the model is told'
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
            plainly = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
            click.echo(text if plainly else click.style(text, **style))

    def title(self, text: str) -> None:
        self._number = 0
        self.say(f"\n{text}\n", bold=True)

    def watch(self, asked: Asked, making: Callable[[], Any]) -> Any:
        """Print one tool call and its answer to the model."""
        self._number += 1
        given = ", ".join(f"{name}={value!r}" for name, value in asked.arguments.items())
        self.say(f"{self._number:>3}. {asked.why}", bold=True)
        self.say(f"       {asked.name}({given})")
        answer = making()
        if is_failure(answer):
            if asked.moral:
                self.say(f"     > {asked.moral}", fg="yellow")
            self._tell(answer)
        time.sleep(0 if self.is_silent else self._pause)
        return answer

    def _tell(self, answer: dict[str, Any]) -> None:
        self.say(f'     " {line(answer["message"], 110)}', fg="cyan")
        for told in (answer.get("outcome"), answer["hint"], *answer.get("suggestions", ())):
            if told:
                self.say(f"       {line(told, 110)}", fg="cyan")

    def hear(self, event: AnyEvent) -> None:
        match event:
            case StepEnded(step) if step.type == "tool" and step.failure is not None:
                self.say(
                    f"     x {step.failure.kind} after {duration(step.seconds)}: {line(step.failure.message, 80)}",
                    fg="red",
                )
            case StepEnded(step) if step.type == "tool":
                self.say(f"     + worked in {duration(step.seconds)}: {line(step.result, 70)}", fg="green")
                if step.after is not None and step.after.changes:
                    self.say(f'     " {Prompt().note(step.name, step.after.changes)}', fg="cyan")
            case RecoveryPlanned(_, recovery) if recovery.changes:
                changed = ", ".join(f"{each.path} {each.before!r} -> {each.after!r}" for each in recovery.changes)
                self.say(f"     > repair: {changed} ({recovery.confidence:.0%} sure)", fg="yellow")
            case RecoveryPlanned(_, recovery):
                self.say(f"     > wait {duration(recovery.seconds)}, then the same again", fg="yellow")
            case _:
                return

    def answer(self, done: Work) -> None:
        self.say(f"\n     The agent's answer: {done.answer}  [{done.run[:12]} {done.status}]")


def _fresh_store() -> Path:
    """Create an empty store for the demo. Each demo starts without memory of earlier ones."""
    folder = settings_file.read().folder
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        place = folder / "demo.db"
        for each in (place, Path(f"{place}-wal"), Path(f"{place}-shm")):
            each.unlink(missing_ok=True)
        open_store(str(place)).close()
    except (OSError, StoreError) as error:
        place = refuge().with_name(f"demo-{os.getpid()}.db")
        click.echo(f"{folder} cannot be written to ({error}); the demo uses {place}.", err=True)
    return place


def _command() -> str:
    """Return the command as it was typed, for the commands suggested at the end."""
    typed = sys.argv[0]
    if shutil.which("mulligan") == typed or not Path(typed).name.startswith("mulligan"):
        return "mulligan"
    try:
        return str(Path(typed).relative_to(Path.cwd()))
    except ValueError:
        return typed


def _facts(done: Work, cell: Cell) -> dict[str, Any]:
    return {
        "run": done.run,
        "status": done.status,
        "turns": done.turns,
        "failed_attempts": _failed_attempts(cell),
        "recovered": cell.recovered,
        "given_up": cell.given_up,
        "waited": cell.waited / 1e6,
        "kinds": {kind: each.failures for kind, each in cell.kinds.items()},
    }


def _failed_attempts(cell: Cell) -> int:
    return sum(kind.failures for kind in cell.kinds.values())


def _comparison(passes: Sequence[Work], cells: Sequence[Cell]) -> Any:
    rows = [
        ("", "first", "second", "third"),
        ("turns of the model", *(str(done.turns) for done in passes)),
        ("failed attempts", *(str(_failed_attempts(cell)) for cell in cells)),
    ]
    return columns(rows, right=(1, 2, 3))
