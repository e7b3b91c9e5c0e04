"""mulligan prompt: render lessons for a model, as text or as a section of a file."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mulligan.build import build_redactor
from mulligan.cli.config_edits import Edit, read_text
from mulligan.cli.options import CommandContext, command
from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.failure import SettingsError
from mulligan.learn.lesson_rendering import RenderedLessons, render_within_budget, select_lessons
from mulligan.prompt import DEFAULT_LESSON_TOKENS, Prompt, estimate_prompt_tokens, section_title, skill_front_matter
from mulligan.report.tables import format_count
from mulligan.store.urls import is_remote

FORMATS = ("text", "skill", "agents-md")
BUILT_IN_TOOLS = {
    "claude": frozenset(
        "Bash BashOutput Edit Glob Grep LS MultiEdit NotebookEdit NotebookRead Read Task TodoWrite WebFetch WebSearch "
        "Write".split()
    ),
    "codex": frozenset("Bash apply_patch exec_command local_shell shell update_plan view_image write_stdin".split()),
    "gemini": frozenset(
        "glob google_web_search list_directory read_file read_many_files replace run_shell_command save_memory "
        "search_file_content web_fetch write_file write_todos".split()
    ),
}
"""Tools of coding agents, by the name in their files: CLAUDE.md, .claude. Any agent may read AGENTS.md."""


@command(
    "mulligan prompt --tool search --tool fetch",
    "mulligan prompt --file AGENTS.md",
    "mulligan prompt --tool Bash --file .claude/skills/mulligan/SKILL.md",
    "mulligan prompt --file CLAUDE.md --check",
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
def prompt(
    context: CommandContext,
    form: str | None,
    budget: int,
    path: Path | None,
    check: bool,
    **selection: Any,
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
    front = skill_front_matter() if form == "skill" else ""

    def wrap(text: str) -> str:
        # Count the front matter even if the file has it already. Otherwise a second run would fit more lessons.
        return front + replace_section("", f"{section_title()}\n\n{text}", "section")

    rendered = _render_lessons(context, budget, wrap if form != "text" else None, path, **selection)
    is_empty = not rendered.lesson_ids and not rendered.omitted_count
    if is_empty and not context.as_json:
        offer = f"To install the lessons that ship with mulligan: mulligan seed{context.suffix}"
        click.echo(f"No lessons{' about these tools' if selection['tools'] else ''} yet. {offer}", err=True)
    if is_empty and (path is None or not _MARK.search(read_text(path.resolve()) or "")):
        facts: dict[str, Any] = {"lessons": [], "left_out": 0, "tokens": 0}
        facts |= {"budget": budget, "text": ""} if path is None else {"file": str(path)}
        context.print(facts | ({} if path is None else {"changes": False, "written": False}), [])
        return
    body = f"{section_title()}\n\n{rendered.text}"
    has_changes = False
    if path is not None:
        has_changes = _update_file(context, path, front, body, check, _facts(rendered, body))
    else:
        text = rendered.text if form == "text" else wrap(rendered.text).rstrip("\n")
        facts = {**_facts(rendered, text), "budget": budget, "text": text}
        context.print(facts, text or [])
    if rendered.omitted_count and not context.as_json:
        several = f"{rendered.omitted_count} more lessons do" if rendered.omitted_count > 1 else "1 more lesson does"
        click.echo(f"{several} not fit into the budget. Raise it with --budget.", err=True)
    if check and has_changes:
        sys.exit(1)


def write_lessons(context: CommandContext, text: str, path: Path) -> str:
    """Return the text of this file with the current lessons in its marked section."""

    def wrap(lessons: str) -> str:
        return replace_section("", f"{section_title()}\n\n{lessons}", "section")

    rendered = _render_lessons(context, DEFAULT_LESSON_TOKENS, wrap, path, (), proposed=False, no_seeds=False)
    return replace_section(text, f"{section_title()}\n\n{rendered.text or 'No lessons yet.'}", str(path))


def _render_lessons(
    context: CommandContext,
    budget: int,
    wrap: Callable[[str], str] | None,
    path: Path | None,
    tools: tuple[str, ...],
    proposed: bool,
    no_seeds: bool,
) -> RenderedLessons:
    store = context.find_store(may_be_missing=True)
    lessons = select_lessons(
        store, DEFAULT_TENANT, tools, context.now, include_seeds=not no_seeds, include_proposed=proposed
    )
    lessons = [lesson for lesson in lessons if lesson.tool in tools or _may_use(path, lesson.tool)]
    url = context.settings.store_url
    server = context.settings.base_url.rstrip("/") or (url if is_remote(url) else "")
    words = Prompt(build_redactor(context.settings, "local", personal=False))
    options: dict[str, Any] = {"requested_tools": tools, "server": server}
    if wrap is not None:
        options |= {"heading": "### {}", "wrap": wrap}
        min_tokens = estimate_prompt_tokens(wrap(""))
        if min_tokens > budget:
            raise SettingsError(
                f"The budget is too small: the section marks alone take {min_tokens} tokens. Use --budget "
                f"{DEFAULT_LESSON_TOKENS}."
            )
    return render_within_budget(words, lessons, budget, **options)


def _may_use(path: Path | None, tool: str) -> bool:
    """Return whether the agent that reads this file may have this tool. Tools of no agent may be anybody's."""
    agents = [agent for agent, tools in BUILT_IN_TOOLS.items() if tool in tools]
    parts = [part.lower() for part in path.parts] if path is not None else []
    readers = [
        agent for agent in BUILT_IN_TOOLS if f".{agent}" in parts or (parts and parts[-1].startswith(f"{agent}."))
    ]
    return not agents or not readers or any(reader in agents for reader in readers)


def _facts(rendered: RenderedLessons, text: str) -> dict[str, Any]:
    counts = {"lessons": list(rendered.lesson_ids), "left_out": rendered.omitted_count}
    return {"tokens": estimate_prompt_tokens(text), **counts}


def _update_file(
    context: CommandContext, path: Path, front: str, body: str, check: bool, facts: dict[str, Any]
) -> bool:
    """Write the section into the file, unless it is only checked. Return whether the file has to change."""
    before = read_text(path.resolve())
    edit = Edit(path, before, replace_section(before or front, body, str(path)))
    should_write = edit.has_changes and not check
    if should_write:
        mask = os.umask(0o077)
        os.umask(mask)
        edit.apply(mode=0o666 & ~mask)
    count = format_count(len(facts["lessons"]), "lesson")
    text = f"Updated {path}: {count}." if should_write else f"{path} is up to date: {count}."
    if edit.has_changes and check:
        text = edit.to_diff()
    context.print({"file": str(path), "changes": edit.has_changes, "written": should_write, **facts}, text)
    if edit.has_changes and check and not context.as_json:
        click.echo(f"{path} is not up to date. Run the same command without --check to write it.", err=True)
    return edit.has_changes


# Marked section in a file that people edit: find it, replace it, change nothing else. Damaged marks raise an error that
# names their lines.

BEGIN = "<!-- mulligan:begin, written by `mulligan prompt`: text between these two lines is replaced -->"
END = "<!-- mulligan:end -->"

_MARK = re.compile(r"<!--\s{0,9}(mulligan:(?:begin|end))\b")
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


def remove_section(text: str, name: str) -> str:
    """Return the text without its marked section."""
    lines = text.split("\n")
    marks = _find_marks(lines, name)
    return text if marks is None else "\n".join([*lines[: marks[0]], *lines[marks[1] + 1 :]])


def _find_marks(lines: list[str], name: str) -> tuple[int, int] | None:
    """Return the line numbers of the begin and the end mark, or None if the text has no marks."""
    marks = [(mark[1], number) for number, line in enumerate(lines) for mark in _MARK.finditer(line)]
    if not marks:
        return None
    has_pair = [mark for mark, _ in marks] == ["mulligan:begin", "mulligan:end"]
    if not has_pair or not all(_MARK_LINE.fullmatch(lines[number]) for _, number in marks):
        where = ", ".join(f"{mark} in line {number + 1}" for mark, number in marks[:4])
        raise SettingsError(
            f"{name}: damaged marks ({where}). Leave one mulligan:begin before one mulligan:end, each on a line of its "
            "own, or remove them all to get a new section; nothing was changed."
        )
    return marks[0][1], marks[1][1]
