"""mulligan prompt: render lessons for a model, as text or as a section of a file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from mulligan.build import build_redactor
from mulligan.cli import sections
from mulligan.cli.config_edits import Edit, read_text
from mulligan.cli.options import as_json as json_option
from mulligan.cli.options import load_settings, now_ms, open_existing_store, print_json, store_option
from mulligan.core.failure import SettingsError
from mulligan.learn.lessons.rendering import RenderedLessons, render_within_budget, select_lessons
from mulligan.prompt import DEFAULT_LESSON_TOKENS, Prompt, estimate_prompt_tokens, section_title, skill_front_matter
from mulligan.settings import Settings
from mulligan.store.base import DEFAULT_TENANT
from mulligan.store.urls import is_remote

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
    "--budget", default=DEFAULT_LESSON_TOKENS, show_default=True, type=click.IntRange(1, 1_000_000), metavar="TOKENS",
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
    form = form or _format_for_path(place)
    if place is not None and form == "text":
        raise click.UsageError("a file takes --format skill or agents-md; for plain text leave --file out.")
    settings = load_settings(store)
    front = skill_front_matter() if form == "skill" else ""
    rendered = _render_lessons(settings, tools, form, budget, front, proposed=proposed, seeds=not no_seeds)
    body = f"{section_title()}\n\n{rendered.text}"
    if form == "text":
        _print_rendered(rendered, rendered.text, as_json, budget)
    elif place is None:
        _print_rendered(rendered, front + sections.replace_section("", body, "section").rstrip("\n"), as_json, budget)
    else:
        _update_file(rendered, place, front, body, check, as_json)


def _format_for_path(path: Path | None) -> str:
    if path is None:
        return "text"
    return "skill" if path.name.lower() == "skill.md" else "agents-md"


def _render_lessons(
    settings: Settings, tools: tuple[str, ...], form: str, budget: int, front: str, *, proposed: bool, seeds: bool
) -> RenderedLessons:
    store = open_existing_store(settings)
    lessons = select_lessons(store, DEFAULT_TENANT, tools, now_ms(), include_seeds=seeds, include_proposed=proposed)
    words = Prompt(build_redactor(settings, "local", personal=False))
    server = settings.store_url if is_remote(settings.store_url) else ""
    if form == "text":
        return render_within_budget(words, lessons, budget, requested_tools=tools, server=server)

    def wrap(text: str) -> str:
        # Count the front matter even if the file has it already. Otherwise a second run would fit more lessons.
        return front + sections.replace_section("", f"{section_title()}\n\n{text}", "section")

    min_tokens = estimate_prompt_tokens(wrap(""))
    if min_tokens > budget:
        raise SettingsError(
            f"the marks of the section alone take {min_tokens} tokens. Give it more: --budget {DEFAULT_LESSON_TOKENS}."
        )
    return render_within_budget(
        words, lessons, budget, requested_tools=tools, server=server, heading=HEADING, wrap=wrap
    )


def _print_rendered(rendered: RenderedLessons, text: str, as_json: bool, budget: int) -> None:
    if as_json:
        print_json({**_facts(rendered, text), "budget": budget, "text": text})
    elif text:
        click.echo(text)
    _warn_left_out(rendered, as_json)


def _facts(rendered: RenderedLessons, text: str) -> dict[str, Any]:
    return {
        "tokens": estimate_prompt_tokens(text),
        "lessons": list(rendered.lesson_ids),
        "left_out": rendered.omitted_count,
    }


def _warn_left_out(rendered: RenderedLessons, as_json: bool) -> None:
    if rendered.omitted_count and not as_json:
        several = f"{rendered.omitted_count} more lessons do" if rendered.omitted_count > 1 else "1 more lesson does"
        click.echo(f"{several} not fit into the budget.", err=True)


def _update_file(rendered: RenderedLessons, path: Path, front: str, body: str, check: bool, as_json: bool) -> None:
    before = read_text(path.resolve())
    edit = Edit(path, before, sections.replace_section(before or front, body, str(path)))
    if edit.has_changes and not check:
        edit.apply(should_back_up=False, mode=_default_file_mode())
    if as_json:
        print_json({"file": str(path), "changes": edit.has_changes, "written": edit.has_changes and not check,
                    **_facts(rendered, body)})  # fmt: skip
    elif not edit.has_changes:
        click.echo(f"{path} is up to date: {_format_lesson_count(rendered)}.")
    elif check:
        click.echo(edit.to_diff())
        click.echo(f"{path} is not up to date. Write it: the same command without --check.", err=True)
    else:
        click.echo(f"{path} now says what is known: {_format_lesson_count(rendered)}.")
    _warn_left_out(rendered, as_json)
    if check and edit.has_changes:
        sys.exit(1)


def _format_lesson_count(rendered: RenderedLessons) -> str:
    return f"{len(rendered.lesson_ids)} lesson{'' if len(rendered.lesson_ids) == 1 else 's'}"


def _default_file_mode() -> int:
    """Return the default permissions of a new file in this process."""
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask
