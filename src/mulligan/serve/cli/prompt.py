"""mulligan prompt: render lessons for a model, as text or as a section of a file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from mulligan.failure import SettingsError
from mulligan.parts import redactor_of
from mulligan.prompt import BUDGET, Prompt, section_title, skill_about, tokens
from mulligan.remember.lessons.pitfalls import Told, gathered, told
from mulligan.remember.store import LOCAL
from mulligan.remember.urls import is_remote
from mulligan.serve.cli import sections
from mulligan.serve.cli.edits import Edit, text_of
from mulligan.serve.cli.options import as_json as json_option
from mulligan.serve.cli.options import now, opened, print_json, settings_with, store_option
from mulligan.settings import Settings

HEADING = "### {}"
FORMATS = ("text", "skill", "agents-md")


@click.command(
    epilog="Examples:\n\n  mulligan prompt --tool search --tool fetch\n\n  mulligan prompt --file AGENTS.md\n\n  "
    "mulligan prompt --tool Bash --file .claude/skills/mulligan/SKILL.md\n\n  mulligan prompt --file CLAUDE.md --check"
)
@click.option("--tool", "tools", multiple=True, metavar="NAME", help="Of this tool; may be repeated. Else of all.")
@click.option(
    "--format", "form", type=click.Choice(FORMATS),
    help="Plain text, a skill, or a section of AGENTS.md or CLAUDE.md. Else what the file's name says, or text.",
)  # fmt: skip
@click.option(
    "--budget", default=BUDGET, show_default=True, type=click.IntRange(1, 1_000_000), metavar="TOKENS",
    help="The most that it may take of a model's window.",
)  # fmt: skip
@click.option("--proposed", is_flag=True, help="Also what nobody has proven or approved yet, marked as data.")
@click.option("--no-seeds", is_flag=True, help="Without what came with mulligan.")
@click.option(
    "--file", "place", type=click.Path(path_type=Path, dir_okay=False), metavar="PATH",
    help="Keep it in a marked section of this file; everything else in it stays as it is.",
)  # fmt: skip
@click.option("--check", is_flag=True, help="Only say whether the file is up to date. Exit 1 if it is not.")
@store_option
@json_option
def prompt(
    tools: tuple[str, ...],
    form: str | None,
    budget: int,
    proposed: bool,
    no_seeds: bool,
    place: Path | None,
    check: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """What a model should know of its tools before it calls them: what goes wrong, and what to try if it does.

    The best proven comes first, and never more than the budget. What came with mulligan is told as such, and after
    what was learned here. Nothing that a tool or a run said is in it, only names and closed values, and what people
    wrote and approved.
    """
    if check and place is None:
        raise click.UsageError("--check needs the file that it is about: --file AGENTS.md")
    form = form or _form_of(place)
    if place is not None and form == "text":
        raise click.UsageError("a file takes --format skill or agents-md; for plain text leave --file out.")
    settings = settings_with(store)
    front = skill_about() if form == "skill" else ""
    made = _made(settings, tools, form, budget, front, proposed=proposed, seeds=not no_seeds)
    body = f"{section_title()}\n\n{made.text}"
    if form == "text":
        _print(made, made.text, as_json, budget)
    elif place is None:
        _print(made, front + sections.placed("", body, "section").rstrip("\n"), as_json, budget)
    else:
        _keep(made, place, front, body, check, as_json)


def _form_of(place: Path | None) -> str:
    if place is None:
        return "text"
    return "skill" if place.name.lower() == "skill.md" else "agents-md"


def _made(
    settings: Settings, tools: tuple[str, ...], form: str, budget: int, front: str, *, proposed: bool, seeds: bool
) -> Told:
    kept = opened(settings)
    found = gathered(kept, LOCAL, tools, now(), seeds=seeds, proposals=proposed)
    words = Prompt(redactor_of(settings, "local", personal=False))
    server = settings.store_url if is_remote(settings.store_url) else ""
    if form == "text":
        return told(words, found, budget, tools=tools, server=server)

    def wrap(text: str) -> str:
        # Count the front matter even if the file has it already. Otherwise a second run would fit more lessons.
        return front + sections.placed("", f"{section_title()}\n\n{text}", "section")

    least = tokens(wrap(""))
    if least > budget:
        raise SettingsError(f"the marks of the section alone take {least} tokens. Give it more: --budget {BUDGET}.")
    return told(words, found, budget, tools=tools, server=server, heading=HEADING, wrap=wrap)


def _print(made: Told, text: str, as_json: bool, budget: int) -> None:
    if as_json:
        print_json({**_facts(made, text), "budget": budget, "text": text})
    elif text:
        click.echo(text)
    _tell_left_out(made, as_json)


def _facts(made: Told, text: str) -> dict[str, Any]:
    return {"tokens": tokens(text), "lessons": list(made.lessons), "left_out": made.left_out}


def _tell_left_out(made: Told, as_json: bool) -> None:
    if made.left_out and not as_json:
        several = f"{made.left_out} more lessons do" if made.left_out > 1 else "1 more lesson does"
        click.echo(f"{several} not fit into the budget.", err=True)


def _keep(made: Told, place: Path, front: str, body: str, check: bool, as_json: bool) -> None:
    before = text_of(place.resolve())
    edit = Edit(place, before, sections.placed(before or front, body, str(place)))
    if edit.changes and not check:
        edit.make(keeps_copy=False, mode=_usual_mode())
    if as_json:
        print_json({"file": str(place), "changes": edit.changes, "written": edit.changes and not check,
                    **_facts(made, body)})  # fmt: skip
    elif not edit.changes:
        click.echo(f"{place} is up to date: {_counted(made)}.")
    elif check:
        click.echo(edit.difference())
        click.echo(f"{place} is not up to date. Write it: the same command without --check.", err=True)
    else:
        click.echo(f"{place} now says what is known: {_counted(made)}.")
    _tell_left_out(made, as_json)
    if check and edit.changes:
        sys.exit(1)


def _counted(made: Told) -> str:
    return f"{len(made.lessons)} lesson{'' if len(made.lessons) == 1 else 's'}"


def _usual_mode() -> int:
    """Return the default permissions of a new file in this process."""
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask
