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
from mulligan.report import lesson_report as told
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
@click.option("--tool", help="Only this tool's.")
@click.option("--state", type=click.Choice(STATES), help="Only those in this state.")
@click.option("--source", type=click.Choice(SOURCES), help="Only those learned here, read from files, or seeds.")
@click.option("--text", default="", help="Only those that say this, or are about an error that looks like it.")
@kind_option("Only those about this kind of failure, or this type.")
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
    """What was learned: the mistake, what to do instead, and how well that is proven."""
    if context.invoked_subcommand is not None:
        context.obj = store
        return
    settings = load_settings(store)
    existing_store = open_existing_store(settings)
    query = LessonQuery(tool=tool, state=state, source=source, text=text, kind=kind, now=now_ms(), limit=limit)
    matching_lessons = existing_store.lessons(DEFAULT_TENANT, query) if existing_store is not None else []
    if as_json:
        print_json([told.to_facts(lesson) for lesson in matching_lessons])
    elif matching_lessons:
        print_lines(told.render_list(matching_lessons, now_ms(), terminal_width()))
        warn_if_truncated(len(matching_lessons), limit)
    elif tool or state or source or text or kind:
        click.echo("No lesson matches.")
    else:
        click.echo(f"Nothing was learned yet. {_explain_missing_lessons(settings, existing_store is not None, store)}")


def _explain_missing_lessons(settings: Settings, has_store: bool, store: str | None) -> str:
    """Return why there are no lessons and what to do."""
    if not has_store:
        begin = "Wrap a function with @mulligan.tool and call it, or read logs that you have: mulligan scan --import"
        return f"There is no {redact_password(settings.store_url)} yet. Name another (--store). {begin}"
    return (
        f"What overcame a failure in {MIN_SUCCESSFUL_RUNS} runs or more becomes a lesson: "
        f"mulligan consolidate{store_option_suffix(store)}\n"
        f"Those that come with mulligan: mulligan seed{store_option_suffix(store)}"
    )


def _settings(context: click.Context, store: str | None) -> Settings:
    return load_settings(store or context.obj)


def _find_lesson(store: Store, id: str) -> Lesson:
    lesson = store.lesson(DEFAULT_TENANT, id, now_ms())
    if lesson is None:
        if len(id) > len("les_") and any(seed.id.startswith(id) for seed in corpus.seeds().values()):
            raise SettingsError(f"{id} came with mulligan, and is not in the store yet. Put it there: mulligan seed")
        raise SettingsError(f"there is no lesson {id!r}, or more than one begins so. See them: mulligan lessons")
    return lesson


def _print_lesson(lesson: Lesson, as_json: bool) -> None:
    if as_json:
        print_json(told.to_facts(lesson))
    else:
        reason = f" ({to_line(lesson.why, 100)})" if lesson.why else ""
        click.echo(f"{lesson.id} is {lesson.state}{reason}: {to_line(lesson.correction, 200)}")


@lessons.command(epilog="Examples:\n\n  mulligan lessons show les_8f2c --json")
@click.argument("lesson")
@store_option
@as_json
@click.pass_context
def show(context: click.Context, lesson: str, store: str | None, as_json: bool) -> None:
    """One lesson: its words, its evidence, and the days before and after it came into force."""
    stored_lesson = _find_lesson(require_store(_settings(context, store)), lesson)
    if as_json:
        print_json(told.to_facts(stored_lesson))
    else:
        print_lines(told.render_detail(stored_lesson, now_ms(), terminal_width()))


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


_add_decision_command(
    "approve", "Puts a lesson in force, however little it is proven. Nothing is tried without asking because of it."
)
_add_decision_command("disable", "Takes a lesson out of force. The fix that it rests on is still used.")
_add_decision_command("revoke", "Takes a lesson out of force, and back the fix that it rests on.")


@lessons.command(
    epilog="Examples:\n\n  mulligan lessons edit les_8f2c\n\n  "
    "mulligan lessons edit les_8f2c --correction 'Ask for ten, then page.'"
)
@click.argument("lesson")
@click.option("--mistake", help="What agents do that fails.")
@click.option("--correction", help="What to do instead.")
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
    """Changes the words of a lesson, in your editor or by these options. Its evidence stays what it is."""
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
        raise SettingsError("there is no terminal to edit in. Say the words: --mistake TEXT, --correction TEXT.")
    text = click.edit(lesson_files.render_lesson_file(lesson), extension=".md")
    if text is None:  # the file was not saved
        return lesson
    data = text.encode("utf-8", "surrogateescape")
    try:
        edited_lesson = lesson_files.parse_lesson_file(data, lesson_files.build_file_name(lesson)).lesson
    except LessonFileError as error:
        with tempfile.NamedTemporaryFile(prefix=f"{lesson.id}-", suffix=".md", delete=False) as draft_file:
            draft_file.write(data)
        raise LessonFileError(f"{error} What you wrote is in {draft_file.name}.") from None
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
@click.option("--tool", help="Only this tool's.")
@click.option("--state", type=click.Choice(STATES), help="Only those in this state.")
@click.option("--source", type=click.Choice(SOURCES), help="Only those learned here, read from files, or seeds.")
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
    """Writes each lesson into a file of its own, to be committed, reviewed and shared."""
    existing_store = require_store(_settings(context, store))
    query = LessonQuery(tool=tool, state=state, source=source, now=now_ms(), limit=MAX_EXPORTED_LESSONS)
    matching_lessons = existing_store.lessons(DEFAULT_TENANT, query)
    written_count, unchanged_count = lesson_files.write_folder(folder, matching_lessons)
    if as_json:
        print_json({"folder": str(folder), "written": written_count, "same": unchanged_count})
    else:
        click.echo(
            f"{format_count(written_count, 'file')} written to {to_line(folder, 300)}, "
            f"{unchanged_count:,} were up to date."
        )


@lessons.command(
    "import", epilog="Examples:\n\n  mulligan lessons import lessons/\n\n  mulligan lessons import lessons/ --json"
)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--replace", is_flag=True, help="Take the file's words where both sides have changed them.")
@store_option
@as_json
@click.pass_context
def import_(context: click.Context, folder: Path, replace: bool, store: str | None, as_json: bool) -> None:
    """Reads lessons from files. They are proposals: words, never evidence. One bad file, and nothing is read.

    Exits with 1 where a lesson was changed both in its file and in the store: neither is lost, and both are told.
    """
    if not folder.is_dir():
        raise SettingsError(f"there is no folder {str(folder)!r}. Make one: mulligan lessons export {folder}")
    loaded_files, problems = lesson_files.load_folder(folder)
    if problems:
        for problem in problems[:50]:
            click.echo(f"error: {to_line(problem, 500)}", err=True)
        more = f", {len(problems) - 50} more of them not shown" if len(problems) > 50 else ""
        raise LessonFileError(
            f"{format_count(len(problems), 'file')} of {folder} cannot be read{more}; nothing was imported."
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
        f"{len(names_by_result['edited']):,} with other words",
        f"{len(names_by_result['same']):,} as they were",
    ]
    click.echo(f"{', '.join(parts)}. They are proposals: mulligan lessons --state proposed{where}")
    for name in names_by_result["older"]:
        click.echo(f"{to_line(name, 200)} says what this store once said; the store's own words are newer and stay.")
    for name in names_by_result["conflict"]:
        resolution = "the file's words were taken" if replace else "neither was touched; take the file's with --replace"
        click.echo(f"conflict: {to_line(name, 200)} and the store were both changed: {resolution}.")
    for left_id, right_id in rivals:
        click.echo(f"note: {left_id} and {right_id} say different things about the same failure.")


# Consolidation


@click.command(epilog="Examples:\n\n  mulligan consolidate\n\n  mulligan consolidate --reword mymodels:cheap_model")
@click.option(
    "--reword", metavar="MODULE:FUNCTION", help="A model of yours that says new lessons better: text in, text out."
)
@store_option
@as_json
def consolidate(reword: str | None, store: str | None, as_json: bool) -> None:
    """Make lessons of what has overcome failures since the last time.

    It happens in the background too, a little at a time, while agents work.
    """
    model = _load_rewording_model(reword) if reword else None
    settings = load_settings(store)
    existing_store = open_existing_store(settings)
    if existing_store is None:
        raise SettingsError(f"there is nothing to learn from. {_explain_missing_lessons(settings, False, store)}")
    cpu_started = time.process_time()
    with show_progress_bar("consolidating") as report_progress:
        consolidation = existing_store.consolidate(DEFAULT_TENANT, now_ms(), report_progress)
    cpu_seconds = time.process_time() - cpu_started
    reworded_count = _reword_lessons(existing_store, consolidation, model, settings) if model is not None else 0
    if as_json:
        lessons = [told.to_facts(lesson) for lesson in consolidation.lessons]
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
        f"{format_count(consolidation.patterns, 'pattern')} looked at: "
        f"{format_count(len(consolidation.lessons), 'lesson')} new or changed, {active} of them in force."
        + (f" {reworded_count} reworded." if reworded_count else "")
    )
    if consolidation.lessons:
        click.echo(f"See them: mulligan lessons{store_option_suffix(store)}")
    elif consolidation.patterns:
        click.echo(
            f"A lesson is what overcame a failure in {MIN_SUCCESSFUL_RUNS} runs or more, "
            "and in half of those that met it."
        )


def _load_rewording_model(name: str) -> Callable[[str], str]:
    """Import MODULE:FUNCTION from the working directory or an installed package."""
    module, colon, function = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        rewording_model = getattr(importlib.import_module(module), function) if colon and function else None
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(f"--reword {name!r} cannot be found: {error}. It takes MODULE:FUNCTION.") from None
    finally:
        sys.path.pop(0)
    if not callable(rewording_model):
        raise SettingsError(f"--reword takes MODULE:FUNCTION, a function that takes a text, got {name!r}.")
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
