"""mulligan demo: a scripted agent meets each type of failure, recovers, and learns a lesson from it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from mulligan import settings as settings_file
from mulligan.api import Mulligan
from mulligan.cli import demo_world as world
from mulligan.cli.demo_narration import Narrator
from mulligan.cli.options import CommandContext, command, print_json, print_lines
from mulligan.cli.serve import serve
from mulligan.contract import counters
from mulligan.contract.counters import Cell
from mulligan.contract.store import DEFAULT_TENANT, LessonQuery
from mulligan.core.failure import INSTALL_EXTRA, StoreError
from mulligan.core.records import Lesson
from mulligan.report.tables import render_columns, to_line
from mulligan.store.urls import fallback_path, open_store

_OPENING = (
    "A scripted agent pays an invoice, reads the weather over HTTP and answers a ticket over MCP. Its services fail "
    "in seven ways. Nothing leaves this machine."
)
_SYMBOLS = 'x failed attempt   > action of mulligan   + success   " text for the model'
_PASSES = (
    ("First pass: memory is empty", world.UserRequest("INV-1", "Oslo", "refunds"), False),
    (
        "Second pass, not shown: another user, the same mistakes",
        world.UserRequest("INV-2", "Bergen", "invoices"),
        True,
    ),
    (
        "Third pass: the same task, by a model that remembers nothing",
        world.UserRequest("INV-3", "Trondheim", "vouchers"),
        False,
    ),
)
"""Title, user request, and whether the pass is silent."""


@command("mulligan demo", "mulligan demo --open", "mulligan demo --no-serve --json", has_store=False)
@click.option("--fast", is_flag=True, help="Skip the pauses that make the output readable.")
@click.option(
    "--serve/--no-serve",
    "serves",
    default=None,
    help="Serve the dashboard of these runs at the end.  [yes, if the output is a terminal]",
)
@click.option("--open", "opens", is_flag=True, help="Serve the dashboard and open it in the browser.")
def demo(context: CommandContext, fast: bool, serves: bool | None, opens: bool) -> None:
    """Run a scripted agent whose calls fail, and watch mulligan retry, repair, stop and learn.

    The agent calls a small HTTP service and an MCP server on this machine. Nothing leaves the machine, and the records
    go into a separate store.
    """
    if opens and (serves is False or context.as_json):
        raise click.UsageError("--open shows the dashboard in the browser. Remove --no-serve or --json.")
    folder = _fresh_folder()
    store_path = folder / "mulligan.db"
    mulligan = Mulligan(store=str(store_path), agent="demo-agent", mode="repair")
    service = world.DemoService()
    tickets = world.McpConnection(str(store_path), folder)
    narrator = Narrator(context.as_json, pause=0.6 if sys.stdout.isatty() and not (fast or context.as_json) else 0)
    mulligan.add_listener(narrator.on_event, thread="caller")
    agent = world.ScriptedAgent(mulligan, world.build_tools(mulligan, service), tickets, narrator)
    try:
        narrator.say(_OPENING)
        narrator.say(f"\n  {_SYMBOLS}")
        passes: list[world.PassResult] = []
        failed_attempts: list[int] = []
        for title, request, is_silent in _PASSES:
            narrator.title(title)
            narrator.is_silent = is_silent
            service.busy_city = request.city
            failed_before = narrator.failed_attempts
            passes.append(agent.run(request.text, partial(agent.handle_request, request)))
            failed_attempts.append(narrator.failed_attempts - failed_before)
            narrator.is_silent = False
            if not is_silent:
                narrator.say(f"\n     The agent's answer: {passes[-1].answer}")
        lesson, lesson_line = _demonstrate_lesson(context, mulligan, store_path, agent, narrator)
    finally:
        service.close()
        tickets.close()
        mulligan.close()
    with contextlib.closing(open_store(str(store_path))) as store:
        histories = [store.run(DEFAULT_TENANT, result.run) for result in passes]
    cells = [counters.stats([history] if history else []).total for history in histories]
    if context.as_json:
        lesson_facts = None
        if lesson is not None:
            lesson_facts = {"id": lesson.id, "tool": lesson.tool, "runs": lesson.successes, "text": lesson_line}
        pass_facts = [_facts(*details) for details in zip(passes, failed_attempts, cells, strict=True)]
        facts = {"passes": pass_facts, "payments": service.payments, "lesson": lesson_facts}
        print_json(facts | {"store": str(store_path)})
        return
    narrator.title("Summary")
    rows = [
        ("", "first", "second", "third"),
        ("model turns", *(str(result.turns) for result in passes)),
        ("failed attempts", *map(str, failed_attempts)),
    ]
    print_lines(render_columns(rows, right=(1, 2, 3)))
    narrator.say(
        f"\n  {len(passes)} invoices, {len(service.payments)} payments: no payment was repeated after its timeout."
    )
    has_server_extra = all(importlib.util.find_spec(name) for name in ("starlette", "uvicorn", "jinja2"))
    narrator.title("Next")
    program = _typed_program()
    click.echo(f"  # the records of this demo\n  export MULLIGAN_HOME={shlex.quote(str(folder))}\n")
    for words, explanation in (
        (f"show {passes[0].run[:12]}", "every call of the first pass"),
        ("patterns", "failures that recur"),
        ("fixes", "what recovered them, with evidence"),
        (
            "serve --open",
            "the dashboard" + ("" if has_server_extra else f". {INSTALL_EXTRA.format('server')}"),
        ),
    ):
        click.echo(f"  {program} {words:<19} {explanation}")
    click.echo("\n  In your own code: put @mulligan.tool above a function.")
    if opens or (sys.stdout.isatty() and has_server_extra if serves is None else serves):
        narrator.title("Dashboard of these runs (Ctrl-C stops it)")
        serve.main(["--store", str(store_path), "--port", "0", *["--open"] * opens], standalone_mode=False)


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
    narrator.say(f'     " {lesson_line}', fg="cyan")
    agent.run("How long do deliveries take?", partial(agent.search_with_lesson, lesson_text))
    return lesson, lesson_line


def _fresh_folder() -> Path:
    """Create an empty data folder for the demo. Each demo starts without memory of earlier ones."""
    folder = settings_file.load_settings().folder / "demo"
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True, mode=0o700)
        open_store(str(folder / "mulligan.db")).close()
    except (OSError, StoreError) as error:
        click.echo(f"Cannot write to {folder} ({error}).", err=True)
        folder = fallback_path().with_name(f"demo-{os.getpid()}")
        folder.mkdir(mode=0o700)
        click.echo(f"The demo uses {folder}.", err=True)
    return folder


def _typed_program() -> str:
    """Return the command as it was typed, for the commands suggested at the end."""
    typed = sys.argv[0]
    if shutil.which("mulligan") == typed or not Path(typed).name.startswith("mulligan"):
        return "mulligan"
    try:
        return str(Path(typed).relative_to(Path.cwd()))
    except ValueError:
        return typed


def _facts(result: world.PassResult, failed_attempts: int, cell: Cell) -> dict[str, Any]:
    return {
        "run": result.run,
        "status": result.status,
        "turns": result.turns,
        "failed_attempts": failed_attempts,
        "recovered": cell.recovered,
        "unrecovered": cell.unrecovered,
        "backoff_seconds": cell.backoff_micros / 1e6,
        "kinds": {kind: kind_cell.failures for kind, kind_cell in cell.kinds.items()},
    }
