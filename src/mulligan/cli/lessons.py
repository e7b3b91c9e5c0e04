"""mulligan lessons and mulligan consolidate: list, edit, exchange and create lessons."""

from __future__ import annotations

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
from mulligan.cli.lists import (
    filter_options,
    import_function,
    item_options,
    open_store_of,
    print_list,
    read_list,
    resource_options,
)
from mulligan.cli.options import (
    as_json,
    load_settings,
    now_ms,
    open_existing_store,
    print_json,
    print_lines,
    show_progress_bar,
    store_option,
    store_option_suffix,
    terminal_width,
)
from mulligan.core.events import LessonLearned, redact_event
from mulligan.core.failure import LessonFileError, SettingsError
from mulligan.core.records import Lesson, LessonVerdict
from mulligan.learn import lesson_files, seeds
from mulligan.learn.lessons import MIN_SUCCESSFUL_RUNS, TEXT_FIELDS, reword_lesson
from mulligan.prompt import Prompt
from mulligan.report import memory_text
from mulligan.report.resources import LESSON_SPEC
from mulligan.report.tables import format_count, to_facts, to_line
from mulligan.settings import Settings
from mulligan.store.base import DEFAULT_TENANT, ConsolidationResult, Store
from mulligan.store.urls import open_store, redact_password

MAX_EXPORTED_LESSONS = 5000


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    subcommand_metavar="[COMMAND]",
    epilog="Examples:\n\n  mulligan lessons --state active\n\n  mulligan lessons show les_8f2c\n\n  "
    "mulligan lessons approve les_8f2c\n\n  mulligan lessons export lessons/",
)
@resource_options(LESSON_SPEC)
@click.pass_context
def lessons(
    context: click.Context, /, limit: int, as_csv: bool, store: str | None, as_json: bool, **filters: Any
) -> None:
    """List lessons: the mistake, its correction, and the evidence."""
    if context.invoked_subcommand is not None:
        context.obj = store
        return
    settings = load_settings(store)
    existing_store, matches = read_list(LESSON_SPEC, settings, limit, filters)
    if print_list(LESSON_SPEC, matches, limit, as_json, as_csv):
        return
    if any(value is not None for value in filters.values()):
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


def _find_lesson(store: Store, id: str) -> Lesson:
    lesson = store.lesson(DEFAULT_TENANT, id, now_ms())
    if lesson is None:
        if len(id) > len("les_") and any(seed.id.startswith(id) for seed in seeds.load_seeds().values()):
            raise SettingsError(f"{id} is a seed lesson that is not in the store yet. Install it: mulligan seed")
        raise SettingsError(f"No lesson matches {id!r}, or several start with it. List lessons: mulligan lessons")
    return lesson


def _print_lesson(lesson: Lesson, as_json: bool) -> None:
    if as_json:
        print_json(memory_text.lesson_facts(lesson))
    else:
        reason = f" ({to_line(lesson.reason, 100)})" if lesson.reason else ""
        click.echo(f"{lesson.id} is {lesson.state}{reason}: {to_line(lesson.correction, 200)}")


@lessons.command(epilog="Examples:\n\n  mulligan lessons show les_8f2c --json")
@click.argument("lesson")
@item_options
def show(context: click.Context, lesson: str, store: str | None, as_json: bool) -> None:
    """Show one lesson: its text, its evidence, and the daily counts before and after its activation."""
    stored_lesson = _find_lesson(open_store_of(context, store), lesson)
    if as_json:
        print_json(memory_text.lesson_facts(stored_lesson))
    else:
        print_lines(memory_text.render_lesson(stored_lesson, now_ms(), terminal_width()))


def _add_decision_command(name: LessonVerdict, help: str) -> None:
    """Register the command that applies this decision to a lesson."""

    @lessons.command(name, help=help, epilog=f"Examples:\n\n  mulligan lessons {name} les_8f2c")
    @click.argument("lesson")
    @item_options
    def command(context: click.Context, lesson: str, store: str | None, as_json: bool) -> None:
        existing_store = open_store_of(context, store)
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
@item_options
def edit(
    context: click.Context,
    lesson: str,
    mistake: str | None,
    correction: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Edit the text of a lesson, in your editor or with these options. Its evidence does not change."""
    settings, existing_store = load_settings(store or context.obj), open_store_of(context, store)
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
@filter_options(LESSON_SPEC)
@item_options
def export(context: click.Context, folder: Path, store: str | None, as_json: bool, **filters: Any) -> None:
    """Export each lesson to its own file, for version control and review."""
    existing_store = open_store_of(context, store)
    query = LESSON_SPEC.build_query(filters, now=now_ms(), limit=MAX_EXPORTED_LESSONS)
    matching_lessons = existing_store.lessons(DEFAULT_TENANT, query)
    written_count, unchanged_count = lesson_files.write_folder(folder, matching_lessons)
    if as_json:
        print_json({"folder": str(folder), "written": written_count, "same": unchanged_count})
    else:
        files = f"{format_count(written_count, 'file')} written to {to_line(folder, 300)}"
        click.echo(f"{files}, {unchanged_count:,} unchanged.")


@lessons.command(
    "import", epilog="Examples:\n\n  mulligan lessons import lessons/\n\n  mulligan lessons import lessons/ --json"
)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--replace", is_flag=True, help="Use the file's text if both sides have changed.")
@item_options
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
        files = format_count(len(problems), "file")
        raise LessonFileError(f"Cannot read {files} in {folder}{more}. Nothing was imported.")
    settings = load_settings(store or context.obj)
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
    new, edited, same = (len(names_by_result[result]) for result in ("new", "edited", "same"))
    counts = f"{format_count(new, 'new lesson')}, {edited:,} updated, {same:,} unchanged"
    click.echo(f"{counts}. Review the proposed ones: mulligan lessons --state proposed{where}")
    for name in names_by_result["older"]:
        click.echo(f"{to_line(name, 200)} has an older text than the store; the store's text stays.")
    kept_note = "neither was changed; use the file's text with --replace"
    resolution = "the file's text was used" if replace else kept_note
    for name in names_by_result["conflict"]:
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
    model = import_function("--reword", reword) if reword else None
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
        lessons = [memory_text.lesson_facts(lesson) for lesson in consolidation.lessons]
        counts = {"reworded": reworded_count, "cpu": cpu_seconds}
        print_json(to_facts(consolidation, "patterns") | {"lessons": lessons} | counts)
        return
    active = sum(lesson.state == "active" for lesson in consolidation.lessons)
    lessons_text = f"{format_count(len(consolidation.lessons), 'lesson')} new or changed, {active} active."
    reworded = f" {reworded_count} reworded." if reworded_count else ""
    click.echo(f"{format_count(consolidation.patterns, 'pattern')} checked: {lessons_text}{reworded}")
    if consolidation.lessons:
        click.echo(f"List them: mulligan lessons{store_option_suffix(store)}")
    elif consolidation.patterns:
        click.echo(
            f"A lesson needs a fix that succeeded in {MIN_SUCCESSFUL_RUNS} or more runs, and in at least half "
            "of the runs with the failure."
        )


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
