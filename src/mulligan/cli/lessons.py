"""mulligan lessons and mulligan consolidate: list, edit, exchange and create lessons."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from mulligan.build import build_redactor
from mulligan.cli.groups import CommandGroup
from mulligan.cli.options import (
    as_json,
    kind_option,
    limit_option,
    load_settings,
    now_ms,
    open_existing_store,
    print_json,
    print_lines,
    require_store,
    show_progress_bar,
    store_option,
    store_option_suffix,
    terminal_width,
    warn_if_truncated,
)
from mulligan.core.events import LessonLearned, redact_event
from mulligan.core.failure import LessonFileError, SettingsError
from mulligan.core.records import Lesson, LessonState, LessonVerdict, to_builtins
from mulligan.learn.lessons import lesson_files as lesson_files
from mulligan.learn.lessons.consolidation import MIN_SUCCESSFUL_RUNS, TEXT_FIELDS, reword_lesson
from mulligan.learn.seeds import corpus
from mulligan.prompt import Prompt
from mulligan.report import lesson_report
from mulligan.report.tables import format_count, to_line
from mulligan.settings import Settings
from mulligan.store.base import DEFAULT_TENANT, ConsolidationResult, LessonQuery, Store
from mulligan.store.urls import open_store, redact_password

MAX_EXPORTED_LESSONS = 5000
STATES = ("proposed", "active", "disabled", "expired")
SOURCES = ("learned", "file", "seed")


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    subcommand_metavar="[COMMAND]",
    epilog="Examples:\n\n  mulligan lessons --state active\n\n  mulligan lessons show les_8f2c\n\n  "
    "mulligan lessons approve les_8f2c\n\n  mulligan lessons export lessons/",
)
@click.option("--tool", help="Only lessons about this tool.")
@click.option("--state", type=click.Choice(STATES), help="Only lessons in this state.")
@click.option(
    "--source",
    type=click.Choice(SOURCES),
    help="Only lessons from this source: learned here, imported from files, or seeds.",
)
@click.option("--text", default="", help="Only lessons that contain this text, or are about a similar error.")
@kind_option("Only lessons about this kind of failure, or this type.")
@limit_option
@store_option
@as_json
@click.pass_context
def lessons(
    context: click.Context,
    /,
    tool: str | None,
    state: LessonState | None,
    source: Any,
    text: str,
    kind: str | None,
    limit: int,
    store: str | None,
    as_json: bool,
) -> None:
    """List lessons: the mistake, its correction, and the evidence."""
    if context.invoked_subcommand is not None:
        context.obj = store
        return
    settings = load_settings(store)
    existing_store = open_existing_store(settings)
    query = LessonQuery(tool=tool, state=state, source=source, text=text, kind=kind, now=now_ms(), limit=limit)
    matching_lessons = existing_store.lessons(DEFAULT_TENANT, query) if existing_store is not None else []
    if as_json:
        print_json([lesson_report.to_facts(lesson) for lesson in matching_lessons])
    elif matching_lessons:
        print_lines(lesson_report.render_list(matching_lessons, now_ms(), terminal_width()))
        warn_if_truncated(len(matching_lessons), limit)
    elif tool or state or source or text or kind:
        click.echo("No lesson matches.")
    else:
        click.echo(f"No lessons yet. {_explain_missing_lessons(settings, existing_store is not None, store)}")


def _explain_missing_lessons(settings: Settings, has_store: bool, store: str | None) -> str:
    """Return why there are no lessons and what to do."""
    if not has_store:
        begin = "Wrap a function with @mulligan.tool and call it, or import existing logs: mulligan scan --import"
        return f"Store {redact_password(settings.store_url)} does not exist yet. Name another with --store. {begin}"
    return (
        f"To turn fixes that recovered {MIN_SUCCESSFUL_RUNS} or more runs into lessons: mulligan "
        f"consolidate{store_option_suffix(store)}\n"
        f"To install the lessons that ship with mulligan: mulligan seed{store_option_suffix(store)}"
    )


def _settings(context: click.Context, store: str | None) -> Settings:
    return load_settings(store or context.obj)


def _find_lesson(store: Store, id: str) -> Lesson:
    lesson = store.lesson(DEFAULT_TENANT, id, now_ms())
    if lesson is None:
        if len(id) > len("les_") and any(seed.id.startswith(id) for seed in corpus.seeds().values()):
            raise SettingsError(f"{id} is a seed lesson that is not in the store yet. Install it: mulligan seed")
        raise SettingsError(f"No lesson matches {id!r}, or several start with it. List lessons: mulligan lessons")
    return lesson


def _print_lesson(lesson: Lesson, as_json: bool) -> None:
    if as_json:
        print_json(lesson_report.to_facts(lesson))
    else:
        reason = f" ({to_line(lesson.reason, 100)})" if lesson.reason else ""
        click.echo(f"{lesson.id} is {lesson.state}{reason}: {to_line(lesson.correction, 200)}")


@lessons.command(epilog="Examples:\n\n  mulligan lessons show les_8f2c --json")
@click.argument("lesson")
@store_option
@as_json
@click.pass_context
def show(context: click.Context, lesson: str, store: str | None, as_json: bool) -> None:
    """Show one lesson: its text, its evidence, and the daily counts before and after its activation."""
    stored_lesson = _find_lesson(require_store(_settings(context, store)), lesson)
    if as_json:
        print_json(lesson_report.to_facts(stored_lesson))
    else:
        print_lines(lesson_report.render_detail(stored_lesson, now_ms(), terminal_width()))


def _add_decision_command(name: LessonVerdict, help: str) -> None:
    """Register the command that applies this decision to a lesson."""

    @lessons.command(name, help=help, epilog=f"Examples:\n\n  mulligan lessons {name} les_8f2c")
    @click.argument("lesson")
    @store_option
    @as_json
    @click.pass_context
    def command(context: click.Context, lesson: str, store: str | None, as_json: bool) -> None:
        existing_store = require_store(_settings(context, store))
        updated_lesson = existing_store.decide_lesson(
            DEFAULT_TENANT, _find_lesson(existing_store, lesson).id, name, now_ms()
        )
        assert updated_lesson is not None
        _print_lesson(updated_lesson, as_json)


_add_decision_command("approve", "Activate a lesson, whatever its evidence. It applies nothing automatically.")
_add_decision_command("disable", "Disable a lesson. The fix behind it is still used.")
_add_decision_command("revoke", "Disable a lesson and revoke the fix behind it.")


@lessons.command(
    epilog="Examples:\n\n  mulligan lessons edit les_8f2c\n\n  "
    "mulligan lessons edit les_8f2c --correction 'Ask for ten, then page.'"
)
@click.argument("lesson")
@click.option("--mistake", help="New text of the mistake.")
@click.option("--correction", help="New text of the correction.")
@store_option
@as_json
@click.pass_context
def edit(
    context: click.Context,
    lesson: str,
    mistake: str | None,
    correction: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Edit the text of a lesson, in your editor or with these options. Its evidence does not change."""
    settings = _settings(context, store)
    existing_store = require_store(settings)
    stored_lesson = _find_lesson(existing_store, lesson)
    if mistake is None and correction is None:
        edited_lesson = _edit_interactively(stored_lesson)
    else:
        overrides = {"mistake": mistake, "correction": correction}
        edited_lesson = msgspec.structs.replace(
            stored_lesson, **{name: text for name, text in overrides.items() if text is not None}
        )
    existing_store.save_lesson(
        DEFAULT_TENANT, _redact_lesson(msgspec.structs.replace(edited_lesson, edited=True), settings)
    )
    _print_lesson(_find_lesson(existing_store, stored_lesson.id), as_json)


def _edit_interactively(lesson: Lesson) -> Lesson:
    """Open the lesson in the user's editor and return the edited lesson."""
    if not sys.stdin.isatty() and not (os.environ.get("EDITOR") or os.environ.get("VISUAL")):
        raise SettingsError("No terminal to start an editor in. Pass the text: --mistake TEXT, --correction TEXT.")
    text = click.edit(lesson_files.render_lesson_file(lesson), extension=".md")
    if text is None:  # the file was not saved
        return lesson
    data = text.encode("utf-8", "surrogateescape")
    try:
        edited_lesson = lesson_files.parse_lesson_file(data, lesson_files.build_file_name(lesson)).lesson
    except LessonFileError as error:
        with tempfile.NamedTemporaryFile(prefix=f"{lesson.id}-", suffix=".md", delete=False) as draft_file:
            draft_file.write(data)
        raise LessonFileError(f"{error} Your text is in {draft_file.name}.") from None
    return msgspec.structs.replace(lesson, **{name: getattr(edited_lesson, name) for name in TEXT_FIELDS})


def _redact_lesson(lesson: Lesson, settings: Settings) -> Lesson:
    """Redact text that a person wrote, like recorded text."""
    event = redact_event(LessonLearned(lesson), build_redactor(settings))
    assert isinstance(event, LessonLearned)
    return event.lesson


# Files


@lessons.command(
    epilog="Examples:\n\n  mulligan lessons export lessons/\n\n  mulligan lessons export lessons/ --state active"
)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--tool", help="Only lessons about this tool.")
@click.option("--state", type=click.Choice(STATES), help="Only lessons in this state.")
@click.option(
    "--source",
    type=click.Choice(SOURCES),
    help="Only lessons from this source: learned here, imported from files, or seeds.",
)
@store_option
@as_json
@click.pass_context
def export(
    context: click.Context,
    folder: Path,
    tool: str | None,
    state: LessonState | None,
    source: Any,
    store: str | None,
    as_json: bool,
) -> None:
    """Export each lesson to its own file, for version control and review."""
    existing_store = require_store(_settings(context, store))
    query = LessonQuery(tool=tool, state=state, source=source, now=now_ms(), limit=MAX_EXPORTED_LESSONS)
    matching_lessons = existing_store.lessons(DEFAULT_TENANT, query)
    written_count, unchanged_count = lesson_files.write_folder(folder, matching_lessons)
    if as_json:
        print_json({"folder": str(folder), "written": written_count, "same": unchanged_count})
    else:
        click.echo(
            f"{format_count(written_count, 'file')} written to {to_line(folder, 300)}, {unchanged_count:,} unchanged."
        )


@lessons.command(
    "import", epilog="Examples:\n\n  mulligan lessons import lessons/\n\n  mulligan lessons import lessons/ --json"
)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--replace", is_flag=True, help="Use the file's text if both sides have changed.")
@store_option
@as_json
@click.pass_context
def import_(context: click.Context, folder: Path, replace: bool, store: str | None, as_json: bool) -> None:
    """Import lessons from files, as proposed lessons without evidence. If one file is invalid, nothing is imported.

    Exits 1 on conflicts: a lesson that changed both in its file and in the store keeps both versions, and is listed.
    """
    if not folder.is_dir():
        raise SettingsError(f"Folder {str(folder)!r} does not exist. Create it: mulligan lessons export {folder}")
    loaded_files, problems = lesson_files.load_folder(folder)
    if problems:
        for problem in problems[:50]:
            click.echo(f"error: {to_line(problem, 500)}", err=True)
        more = f", {len(problems) - 50} more not shown" if len(problems) > 50 else ""
        raise LessonFileError(
            f"Cannot read {format_count(len(problems), 'file')} in {folder}{more}. Nothing was imported."
        )
    settings = _settings(context, store)
    opened_store = open_store(settings.store_url, settings.fsync, settings.token)
    names_by_result: dict[str, list[str]] = {"new": [], "edited": [], "same": [], "older": [], "conflict": []}
    for file in loaded_files:
        redacted_lesson = _redact_lesson(file.lesson, settings)
        stored_lesson = opened_store.lesson(DEFAULT_TENANT, file.lesson.id, now_ms())
        comparison = lesson_files.compare_with_store(file._replace(lesson=redacted_lesson), stored_lesson)
        names_by_result[comparison].append(file.name)
        if comparison in ("new", "edited") or (comparison == "conflict" and replace):
            source = stored_lesson.source if stored_lesson is not None else "file"
            opened_store.save_lesson(DEFAULT_TENANT, msgspec.structs.replace(redacted_lesson, source=source))
    opened_store.close()
    rivals = _find_rivals([file.lesson for file in loaded_files])
    _print_import(folder, names_by_result, rivals, replace, as_json, store_option_suffix(store or context.obj))
    if names_by_result["conflict"] and not replace:
        sys.exit(1)


def _find_rivals(imported_lessons: list[Lesson]) -> list[tuple[str, str]]:
    """Return pairs of lessons with different corrections for the same failure."""
    lesson_by_failure: dict[tuple[str, str], Lesson] = {}
    rivals = []
    for lesson in imported_lessons:
        if lesson.fingerprint:
            other = lesson_by_failure.setdefault((lesson.tool, lesson.fingerprint), lesson)
            if other is not lesson and other.correction != lesson.correction:
                rivals.append((other.id, lesson.id))
    return rivals


def _print_import(
    folder: Path,
    names_by_result: dict[str, list[str]],
    rivals: list[tuple[str, str]],
    replace: bool,
    as_json: bool,
    where: str,
) -> None:
    if as_json:
        print_json({"folder": str(folder), **names_by_result, "replaced": replace, "rivals": rivals})
        return
    parts = [
        f"{format_count(len(names_by_result['new']), 'new lesson')}",
        f"{len(names_by_result['edited']):,} updated",
        f"{len(names_by_result['same']):,} unchanged",
    ]
    click.echo(f"{', '.join(parts)}. Review the proposed ones: mulligan lessons --state proposed{where}")
    for name in names_by_result["older"]:
        click.echo(f"{to_line(name, 200)} has an older text than the store; the store's text stays.")
    for name in names_by_result["conflict"]:
        resolution = (
            "the file's text was used" if replace else "neither was changed; use the file's text with --replace"
        )
        click.echo(f"conflict: {to_line(name, 200)} changed both in the file and in the store: {resolution}.")
    for left_id, right_id in rivals:
        click.echo(f"note: {left_id} and {right_id} give different corrections for the same failure.")


# Consolidation


@click.command(epilog="Examples:\n\n  mulligan consolidate\n\n  mulligan consolidate --reword mymodels:cheap_model")
@click.option(
    "--reword", metavar="MODULE:FUNCTION", help="Your model function (text in, text out) that rewords new lessons."
)
@store_option
@as_json
def consolidate(reword: str | None, store: str | None, as_json: bool) -> None:
    """Turn the fixes of new recoveries into lessons.

    This also runs in the background, in small parts, while agents work.
    """
    model = _load_rewording_model(reword) if reword else None
    settings = load_settings(store)
    existing_store = open_existing_store(settings)
    if existing_store is None:
        raise SettingsError(f"Nothing to consolidate. {_explain_missing_lessons(settings, False, store)}")
    cpu_started = time.process_time()
    with show_progress_bar("consolidating") as report_progress:
        consolidation = existing_store.consolidate(DEFAULT_TENANT, now_ms(), report_progress)
    cpu_seconds = time.process_time() - cpu_started
    reworded_count = _reword_lessons(existing_store, consolidation, model, settings) if model is not None else 0
    if as_json:
        lessons = [lesson_report.to_facts(lesson) for lesson in consolidation.lessons]
        print_json(
            {
                **to_builtins(consolidation),
                "patterns": consolidation.patterns,
                "lessons": lessons,
                "reworded": reworded_count,
                "cpu": cpu_seconds,
            }
        )
        return
    active = sum(lesson.state == "active" for lesson in consolidation.lessons)
    click.echo(
        (
            f"{format_count(consolidation.patterns, 'pattern')} checked: "
            f"{format_count(len(consolidation.lessons), 'lesson')} new or changed, {active} active."
        )
        + (f" {reworded_count} reworded." if reworded_count else "")
    )
    if consolidation.lessons:
        click.echo(f"List them: mulligan lessons{store_option_suffix(store)}")
    elif consolidation.patterns:
        click.echo(
            f"A lesson needs a fix that succeeded in {MIN_SUCCESSFUL_RUNS} or more runs, and in at least half "
            "of the runs with the failure."
        )


def _load_rewording_model(name: str) -> Callable[[str], str]:
    """Import MODULE:FUNCTION from the working directory or an installed package."""
    module, colon, function = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        rewording_model = getattr(importlib.import_module(module), function) if colon and function else None
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(f"Cannot import --reword {name!r}: {error}. Use MODULE:FUNCTION.") from None
    finally:
        sys.path.pop(0)
    if not callable(rewording_model):
        raise SettingsError(
            f"--reword {name!r} is not a function. Use MODULE:FUNCTION with a function that takes a text."
        )
    return rewording_model  # type: ignore[no-any-return]


def _reword_lessons(
    store: Store, consolidation: ConsolidationResult, model: Callable[[str], str], settings: Settings
) -> int:
    """Reword new lessons with the model. Return the number of lessons that changed."""
    prompt = Prompt(build_redactor(settings, "local", personal=False))
    reworded_count = 0
    for lesson in consolidation.lessons:
        if not lesson.edited:
            reworded_lesson = reword_lesson(lesson, model, prompt)
            reworded_count += reworded_lesson is not None and store.save_lesson(
                DEFAULT_TENANT, _redact_lesson(reworded_lesson, settings)
            )
    return reworded_count
