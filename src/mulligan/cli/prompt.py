"""mulligan prompt: render lessons for a model, as text or as a section of a file."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import click

from mulligan.build import build_redactor
from mulligan.cli.config_edits import Edit, read_text
from mulligan.cli.options import as_json as json_option
from mulligan.cli.options import load_settings, now_ms, open_existing_store, print_json, store_option
from mulligan.core.failure import SettingsError
from mulligan.learn.lesson_rendering import RenderedLessons, render_within_budget, select_lessons
from mulligan.prompt import DEFAULT_LESSON_TOKENS, Prompt, estimate_prompt_tokens, section_title, skill_front_matter
from mulligan.report.tables import format_count
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
    if form is None:
        form = "text" if path is None else "skill" if path.name.lower() == "skill.md" else "agents-md"
    if path is not None and form == "text":
        raise click.UsageError("--file needs --format skill or agents-md. For plain text, remove --file.")
    settings = load_settings(store)
    front = skill_front_matter() if form == "skill" else ""
    rendered = _render_lessons(settings, tools, form, budget, front, proposed=proposed, seeds=not no_seeds)
    body = f"{section_title()}\n\n{rendered.text}"
    if form == "text":
        _print_rendered(rendered, rendered.text, as_json, budget)
    elif path is None:
        _print_rendered(rendered, front + replace_section("", body, "section").rstrip("\n"), as_json, budget)
    else:
        _update_file(rendered, path, front, body, check, as_json)


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
        return front + replace_section("", f"{section_title()}\n\n{text}", "section")

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
    edit = Edit(path, before, replace_section(before or front, body, str(path)))
    if edit.has_changes and not check:
        edit.apply(should_back_up=False, mode=_default_file_mode())
    if as_json:
        print_json({"file": str(path), "changes": edit.has_changes, "written": edit.has_changes and not check,
                    **_facts(rendered, body)})  # fmt: skip
    elif not edit.has_changes:
        click.echo(f"{path} is up to date: {format_count(len(rendered.lesson_ids), 'lesson')}.")
    elif check:
        click.echo(edit.to_diff())
        click.echo(f"{path} is not up to date. Run the same command without --check to write it.", err=True)
    else:
        click.echo(f"Updated {path}: {format_count(len(rendered.lesson_ids), 'lesson')}.")
    _warn_left_out(rendered, as_json)
    if check and edit.has_changes:
        sys.exit(1)


def _default_file_mode() -> int:
    """Return the default permissions of a new file in this process."""
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask


# Marked section in a file that people edit: find it, replace it, change nothing else. Damaged marks raise an error that
# names the line.

BEGIN = "<!-- mulligan:begin, written by `mulligan prompt`: text between these two lines is replaced -->"
END = "<!-- mulligan:end -->"

_MARK = re.compile(r"<!--\s{0,9}mulligan:(begin|end)\b")
_MARK_LINE = re.compile(r"[ \t]{0,9}<!--\s{0,9}mulligan:(?:begin|end)\b(?:(?!-->|<!--).){0,300}-->\s{0,9}")


def replace_section(text: str, body: str, name: str) -> str:
    """Return the text with a new body in its marked section. Append the section if there is none.

    All other text stays unchanged, and the section uses the file's line endings. `name` is the file's name for errors.
    """
    if _MARK.search(body):
        raise ValueError("A section must not contain its own marks.")
    lines = text.split("\n")
    marks = _find_marks(lines, name)
    ending = "\r\n" if (lines[marks[0]].endswith("\r") if marks else "\r\n" in text) else "\n"
    section = ending.join([BEGIN, *body.strip("\n").split("\n"), END])
    if marks is None:
        before = text if not text or text.endswith("\n") else f"{text}{ending}"
        gap = ending if before.strip() and not before.endswith(ending * 2) else ""
        return f"{before}{gap}{section}{ending}"
    first, last = marks
    tail = "\r" if lines[last].endswith("\r") else ""
    return "\n".join([*lines[:first], section + tail, *lines[last + 1 :]])


def _find_marks(lines: list[str], name: str) -> tuple[int, int] | None:
    """Return the line numbers of the begin and the end mark, or None if the text has no marks."""
    marks: dict[str, list[int]] = {"begin": [], "end": []}
    problem = ""
    for number, line in enumerate(lines):
        if mark := _MARK.search(line):
            marks[mark[1]].append(number)
            if not _MARK_LINE.fullmatch(line):
                problem = f"the mulligan:{mark[1]} mark in line {number + 1} shares its line with other text"
                break
    begins, ends = marks.values()
    if not begins and not ends:
        return None
    for title, numbers in marks.items():
        if not problem and len(numbers) > 1:
            where = " and ".join(str(number + 1) for number in numbers[:3])
            problem = f"{len(numbers)} mulligan:{title} marks, in lines {where}"
    if not problem and not (begins and ends):
        present, missing = ("begin", "end") if begins else ("end", "begin")
        problem = f"mulligan:{present} in line {(begins or ends)[0] + 1} has no mulligan:{missing}"
    if not problem and begins[0] > ends[0]:
        problem = f"mulligan:end in line {ends[0] + 1} precedes mulligan:begin in line {begins[0] + 1}"
    if problem:
        raise SettingsError(
            f"{name}: {problem}. Fix the marks, or remove them all to get a new section; nothing was changed."
        )
    return begins[0], ends[0]
