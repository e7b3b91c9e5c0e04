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
@click.option(
    "--tool",
    "tools",
    multiple=True,
    metavar="NAME",
    help="Only lessons about this tool; may be repeated. Default: all tools.",
)
@click.option(
    "--format", "form", type=click.Choice(FORMATS),
    help="Plain text, a skill, or a section of AGENTS.md or CLAUDE.md. Default: by file name, else text.",
)  # fmt: skip
@click.option(
    "--budget", default=DEFAULT_LESSON_TOKENS, show_default=True, type=click.IntRange(1, 1_000_000), metavar="TOKENS",
    help="Maximum number of tokens of the text.",
)  # fmt: skip
@click.option("--proposed", is_flag=True, help="Include proposed lessons, marked as data.")
@click.option("--no-seeds", is_flag=True, help="Leave out seed lessons.")
@click.option(
    "--file", "path", type=click.Path(path_type=Path, dir_okay=False), metavar="PATH",
    help="Write the lessons into a marked section of this file; the rest of the file stays unchanged.",
)  # fmt: skip
@click.option("--check", is_flag=True, help="Only check whether the file is up to date; exits 1 if it is not.")
@store_option
@json_option
def prompt(
    tools: tuple[str, ...],
    form: str | None,
    budget: int,
    proposed: bool,
    no_seeds: bool,
    path: Path | None,
    check: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """Render lessons about tools for a model: known mistakes and their corrections.

    Lessons with the best evidence come first, within the budget; seed lessons come last and are marked. The text
    contains names, shareable values and text that people wrote and approved. It never contains output of tools or runs.
    """
    if check and path is None:
        raise click.UsageError("--check needs a file. Add one, for example: --file AGENTS.md")
    form = form or _format_for_path(path)
    if path is not None and form == "text":
        raise click.UsageError("--file needs --format skill or agents-md. For plain text, remove --file.")
    settings = load_settings(store)
    front = skill_front_matter() if form == "skill" else ""
    rendered = _render_lessons(settings, tools, form, budget, front, proposed=proposed, seeds=not no_seeds)
    body = f"{section_title()}\n\n{rendered.text}"
    if form == "text":
        _print_rendered(rendered, rendered.text, as_json, budget)
    elif path is None:
        _print_rendered(rendered, front + sections.replace_section("", body, "section").rstrip("\n"), as_json, budget)
    else:
        _update_file(rendered, path, front, body, check, as_json)


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
            f"The budget is too small: the section marks alone take {min_tokens} tokens. Use --budget "
            f"{DEFAULT_LESSON_TOKENS}."
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
        click.echo(f"{several} not fit into the budget. Raise it with --budget.", err=True)


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
        click.echo(f"{path} is not up to date. Run the same command without --check to write it.", err=True)
    else:
        click.echo(f"Updated {path}: {_format_lesson_count(rendered)}.")
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
