"""mulligan lessons, mulligan consolidate and mulligan seed: list, edit, exchange and create lessons."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click
from msgspec.structs import replace

from mulligan.build import build_redactor
from mulligan.cli.options import (
    CommandContext,
    command,
    filter_options,
    has_filters,
    import_function,
    list_group,
    list_options,
    show_progress_bar,
)
from mulligan.cli.reflect import build_text_model
from mulligan.contract.store import DEFAULT_TENANT, ConsolidationResult, Store
from mulligan.core.events import LessonLearned, redact_event
from mulligan.core.failure import LessonFileError, SettingsError
from mulligan.core.records import Lesson, LessonVerdict
from mulligan.hooks.event_processing import store_path as hook_store_path
from mulligan.learn import lesson_files, project_lessons, seeds
from mulligan.learn.lessons import MIN_SUCCESSFUL_RUNS, TEXT_FIELDS, reword_lesson
from mulligan.prompt import Prompt
from mulligan.report import memory_text
from mulligan.report.resources import LESSON_SPEC
from mulligan.report.tables import SHOWN_ID_CHARS, TableColumn, format_count, render_table, to_facts, to_line
from mulligan.settings import Settings, load_settings
from mulligan.store.sqlite import SqliteStore

VERDICT_HELP: dict[LessonVerdict, str] = {
    "approve": "Activate a lesson, whatever its evidence. It applies nothing automatically.",
    "disable": "Disable a lesson. The fix behind it is still used.",
    "revoke": "Disable a lesson and revoke the fix behind it.",
}
_folder_argument = click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))


@list_group(
    "mulligan lessons --state active",
    "mulligan lessons show les_8f2c",
    "mulligan lessons approve les_8f2c",
    "mulligan lessons export lessons/",
)
@list_options(LESSON_SPEC)
def lessons(context: CommandContext, limit: int, as_csv: bool, **filters: Any) -> None:
    """List lessons: the mistake, its correction, and the evidence."""
    store, matches = context.read_list(LESSON_SPEC, filters, limit)
    if not context.print_list(LESSON_SPEC, matches, limit, as_csv):
        advice = f"No lessons of your own yet. {_explain_missing_lessons(context, store is not None)}"
        click.echo("No lesson matches." if has_filters(filters) else advice)


def _explain_missing_lessons(context: CommandContext, has_store: bool) -> str:
    """Return why there are no lessons and what to do."""
    shipped = (
        f"{format_count(len(seeds.load_seeds()), 'lesson')} ship with mulligan and are used without the store. "
        f"List them: mulligan seed --list. To edit or approve them: mulligan seed{context.suffix}"
    )
    if not has_store:
        begin = "Wrap a function with @mulligan.tool and call it, or import existing logs: mulligan scan --import"
        return f"Store {context.where} does not exist yet. Name another with --store. {begin}\n{shipped}"
    return (
        f"To turn fixes that recovered {MIN_SUCCESSFUL_RUNS} or more runs into lessons: mulligan "
        f"consolidate{context.suffix}\n{shipped}"
    )


def _find_lesson(context: CommandContext, store: Store, id: str) -> Lesson:
    lesson = store.lesson(DEFAULT_TENANT, id, context.now)
    if lesson is None:
        if len(id) > len("les_") and any(seed.id.startswith(id) for seed in seeds.load_seeds().values()):
            raise SettingsError(f"{id} is a seed lesson that is not in the store yet. Install it: mulligan seed")
        raise SettingsError(f"No lesson matches {id!r}, or several start with it. List lessons: mulligan lessons")
    return lesson


def _print_lesson(context: CommandContext, lesson: Lesson) -> None:
    reason = f" ({to_line(lesson.reason, 100)})" if lesson.reason else ""
    sentence = f"{lesson.id} is {lesson.state}{reason}: {to_line(lesson.correction, 200)}"
    context.print(memory_text.lesson_facts(lesson), sentence)


@command("mulligan lessons show les_8f2c --json", parent=lessons)
@click.argument("lesson")
def show(context: CommandContext, lesson: str) -> None:
    """Show one lesson: its text, its evidence, and the daily counts before and after its activation."""
    stored_lesson = _find_lesson(context, context.require_store(), lesson)
    lines = [*memory_text.render_lesson(stored_lesson, context.now, context.width)]
    facts = memory_text.lesson_facts(stored_lesson)
    if base_url := context.settings.base_url.rstrip("/"):
        facts["page"] = f"{base_url}/lessons/{stored_lesson.id}"
        lines += ["", f"Open the lesson: {facts['page']}"]
    context.print(facts, lines)


def _add_verdict(verdict: LessonVerdict) -> None:
    """Register the command that applies this verdict to a lesson."""

    @command(f"mulligan lessons {verdict} les_8f2c", parent=lessons, name=verdict, help=VERDICT_HELP[verdict])
    @click.argument("lesson")
    def decide(context: CommandContext, lesson: str) -> None:
        store = context.require_store()
        id = _find_lesson(context, store, lesson).id
        updated_lesson = store.decide_lesson(DEFAULT_TENANT, id, verdict, context.now)
        assert updated_lesson is not None
        _print_lesson(context, updated_lesson)


for _verdict in get_args(LessonVerdict):
    _add_verdict(_verdict)


@command(
    "mulligan lessons edit les_8f2c",
    "mulligan lessons edit les_8f2c --correction 'Ask for ten, then page.'",
    parent=lessons,
)
@click.argument("lesson")
@click.option("--mistake", help="New text of the mistake.")
@click.option("--correction", help="New text of the correction.")
def edit(context: CommandContext, lesson: str, **texts: str | None) -> None:
    """Edit the text of a lesson, in your editor or with these options. Its evidence does not change."""
    store = context.require_store()
    stored_lesson = _find_lesson(context, store, lesson)
    new_texts: dict[str, Any] = {name: text for name, text in texts.items() if text is not None}
    edited_lesson = replace(stored_lesson, **new_texts) if new_texts else _edit_interactively(stored_lesson)
    store.save_lesson(DEFAULT_TENANT, _redact_lesson(replace(edited_lesson, edited=True), context.settings))
    _print_lesson(context, _find_lesson(context, store, stored_lesson.id))


def _edit_interactively(lesson: Lesson) -> Lesson:
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
    return replace(lesson, **{name: getattr(edited_lesson, name) for name in TEXT_FIELDS})


def _redact_lesson(lesson: Lesson, settings: Settings) -> Lesson:
    """Redact text that a person wrote, like recorded text."""
    event = redact_event(LessonLearned(lesson), build_redactor(settings))
    assert isinstance(event, LessonLearned)
    return event.lesson


# Files


@command("mulligan lessons export lessons/", "mulligan lessons export lessons/ --state active", parent=lessons)
@_folder_argument
@filter_options(LESSON_SPEC)
def export(context: CommandContext, folder: Path, **filters: Any) -> None:
    """Export each lesson to its own file, for version control and review."""
    query = LESSON_SPEC.build_query(filters, now=context.now, limit=5000)
    matching_lessons = context.require_store().lessons(DEFAULT_TENANT, query)
    written_count, unchanged_count = lesson_files.write_folder(folder, matching_lessons)
    files = f"{format_count(written_count, 'file')} written to {to_line(folder, 300)}"
    facts = {"folder": str(folder), "written": written_count, "same": unchanged_count}
    context.print(facts, f"{files}, {unchanged_count:,} unchanged.")


@command("mulligan lessons import lessons/", "mulligan lessons import lessons/ --json", parent=lessons, name="import")
@_folder_argument
@click.option("--replace", "should_replace", is_flag=True, help="Use the file's text if both sides have changed.")
def import_(context: CommandContext, folder: Path, should_replace: bool) -> None:
    """Import lessons from files, as proposed lessons without evidence. If one file is invalid, nothing is imported.

    Exits 1 on conflicts: a lesson that changed both in its file and in the store keeps both versions, and is listed.
    """
    if not folder.is_dir():
        raise SettingsError(f"Folder {str(folder)!r} does not exist. Create it: mulligan lessons export {folder}")
    files, problems = lesson_files.load_folder(folder)
    if problems:
        for problem in problems[:50]:
            click.echo(f"error: {to_line(problem, 500)}", err=True)
        more = f", {len(problems) - 50} more not shown" if len(problems) > 50 else ""
        count = format_count(len(problems), "file")
        raise LessonFileError(f"Cannot read {count} in {folder}{more}. Nothing was imported.")
    names: dict[str, list[str]] = {"new": [], "edited": [], "same": [], "older": [], "conflict": []}
    with contextlib.closing(context.create_store()) as store:
        for file in files:
            redacted_lesson = _redact_lesson(file.lesson, context.settings)
            stored_lesson = store.lesson(DEFAULT_TENANT, file.lesson.id, context.now)
            comparison = lesson_files.compare_with_store(file._replace(lesson=redacted_lesson), stored_lesson)
            names[comparison].append(file.name)
            if comparison in ("new", "edited") or (comparison == "conflict" and should_replace):
                source = stored_lesson.source if stored_lesson is not None else "file"
                store.save_lesson(DEFAULT_TENANT, replace(redacted_lesson, source=source))
    rivals = _find_rivals([file.lesson for file in files])
    counts = f"{format_count(len(names['new']), 'new lesson')}, {len(names['edited']):,} updated"
    resolution = "neither was changed; use the file's text with --replace"
    if should_replace:
        resolution = "the file's text was used"
    sentences = [
        f"{counts}, {len(names['same']):,} unchanged. Review the proposed ones: mulligan lessons --state "
        f"proposed{context.suffix}",
        *(f"{to_line(name, 200)} has an older text than the store; the store's text stays." for name in names["older"]),
        *(
            f"conflict: {to_line(name, 200)} changed both in the file and in the store: {resolution}."
            for name in names["conflict"]
        ),
        *(f"note: {first} and {second} give different corrections for the same failure." for first, second in rivals),
    ]
    facts = {"folder": str(folder), **names, "replaced": should_replace, "rivals": rivals}
    context.print(facts, "\n".join(sentences))
    if names["conflict"] and not should_replace:
        sys.exit(1)


@command("mulligan lessons trust", "mulligan lessons trust ~/src/shop --yes", parent=lessons)
@click.argument("project", metavar="[DIR]", default=".", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--yes", "is_confirmed", is_flag=True, help="Trust without a question.")
@click.option("--remove", "removes", is_flag=True, help="Trust no file of the project any more.")
def trust(context: CommandContext, project: Path, is_confirmed: bool, removes: bool) -> None:
    """Show the lessons in .mulligan/lessons of a project to coding agents there, as long as they stay as they are."""
    files = {} if removes else project_lessons.read_lessons(project)
    if files and not context.as_json:
        for file in files.values():
            lesson_text = f"{file.lesson.mistake} {file.lesson.correction}"
            click.echo(f"{to_line(file.name, 100)}: {to_line(lesson_text, 400)}")
    if files and not is_confirmed:
        click.confirm("Show these lessons to coding agents in this folder?", abort=True)
    store = SqliteStore(
        hook_store_path(load_settings({"store": context.store_option} if context.store_option else None, of_user=True))
    )
    try:
        hashes = {content_hash: file.name for content_hash, file in files.items()}
        trust_entry = project_lessons.encode_trust(hashes)
        store.put(DEFAULT_TENANT, project_lessons.TRUST_KIND, project_lessons.trust_key(project), trust_entry)
    finally:
        store.close()
    facts = {"folder": project_lessons.trust_key(project), "trusted": sorted(hashes.values())}
    context.print(facts, f"{format_count(len(hashes), 'lesson')} trusted in {to_line(facts['folder'], 300)}.")


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


# Consolidation and seeds


@command("mulligan consolidate", "mulligan consolidate --reword mymodels:cheap_model", "mulligan consolidate --reflect")
@click.option(
    "--reword", metavar="MODULE:FUNCTION", help="Your model function (text in, text out) that rewords new lessons."
)
@click.option("--reflect", "reflects", is_flag=True, help="Reword new lessons with the model of the setting reflect.")
def consolidate(context: CommandContext, reword: str | None, reflects: bool) -> None:
    """Turn the fixes of new recoveries into lessons.

    This also runs in the background, in small parts, while agents work.
    """
    if reword and reflects:
        raise click.UsageError("--reword and --reflect exclude each other. Remove one of them.")
    model = import_function("--reword", reword) if reword else None
    store = context.find_store(may_be_missing=True)
    if store is None:
        raise SettingsError(f"Nothing to consolidate. {_explain_missing_lessons(context, False)}")
    if reflects:
        model = build_text_model(context, store)
    cpu_started = time.process_time()
    with show_progress_bar("consolidating") as report_progress:
        result = store.consolidate(DEFAULT_TENANT, context.now, report_progress)
    cpu_seconds = time.process_time() - cpu_started
    reworded_count = _reword_lessons(store, result, model, context.settings) if model is not None else 0
    counts = {"reworded": reworded_count, "cpu": cpu_seconds}
    facts = to_facts(result, "patterns") | {"lessons": list(map(memory_text.lesson_facts, result.lessons))} | counts
    active = sum(lesson.state == "active" for lesson in result.lessons)
    lessons_text = f"{format_count(len(result.lessons), 'lesson')} new or changed, {active} active."
    reworded = f" {reworded_count} reworded." if reworded_count else ""
    text = f"{format_count(result.patterns, 'pattern')} checked: {lessons_text}{reworded}"
    if result.lessons:
        text += f"\nList them: mulligan lessons{context.suffix}"
    elif result.patterns:
        text += (
            f"\nA lesson needs a fix that succeeded in {MIN_SUCCESSFUL_RUNS} or more runs, and in at least half "
            f"of the runs with the failure. The fix must be shown to models: mulligan fixes{context.suffix}"
        )
    context.print(facts, text)


def _reword_lessons(store: Store, result: ConsolidationResult, model: Callable[[str], str], settings: Settings) -> int:
    """Reword new lessons with the model. Return the number of lessons that changed."""
    prompt = Prompt(build_redactor(settings, "local", personal=False))
    reworded_lessons = [reword_lesson(lesson, model, prompt) for lesson in result.lessons if not lesson.edited]
    return sum(
        store.save_lesson(DEFAULT_TENANT, _redact_lesson(lesson, settings))
        for lesson in reworded_lessons
        if lesson is not None
    )


@command("mulligan seed --list", "mulligan seed", "mulligan lessons disable les_5a85", "mulligan seed --remove")
@click.option("--list", "lists", is_flag=True, help="List the seed lessons with their state in this store.")
@click.option("--remove", "removes", is_flag=True, help="Remove the seed lessons from the store and stop using them.")
def seed(context: CommandContext, lists: bool, removes: bool) -> None:
    """Install the lessons that ship with mulligan into the store, to review, edit, disable or approve them.

    Seed lessons are about programs that many agents use. They are marked as seeds, are no evidence, and never cause a
    repair. They are used without this command too. After an upgrade, run it again for newer texts; your edits and
    decisions stay.
    """
    if lists and removes:
        raise click.UsageError("--list and --remove exclude each other. Remove one of them.")
    if lists:
        _print_seeds(context)
        return
    with contextlib.closing(context.create_store()) as store:
        if removes:
            facts = {"removed": seeds.remove_seeds(store, DEFAULT_TENANT)}
            message = (
                f"{format_count(facts['removed'], 'seed lesson')} removed from {context.where}. No seed lesson is used "
                "until you run mulligan seed."
            )
        else:
            facts = seeds.install_seeds(store, DEFAULT_TENANT)._asdict()
            message = (
                f"{format_count(len(seeds.load_seeds()), 'seed lesson')} in {context.where}: {facts['new']} new, "
                f"{facts['updated']} updated, {facts['same']} unchanged, {facts['edited']} edited by you. List them: "
                f"mulligan seed --list{context.suffix}"
            )
    context.print(facts | {"store": context.where}, [message])


_SEED_FIELDS = (
    "id", "tool", "kind", "fingerprint", "mistake", "correction", "error", "failing_example", "working_example",
    "origin", "edited", "state",
)  # fmt: skip
_SEED_COLUMNS = (
    TableColumn("lesson", lambda fact: fact["id"][:SHOWN_ID_CHARS], priority=9, needs_full_width=True),
    TableColumn("seed", lambda fact: fact["name"], priority=8, needs_full_width=True),
    TableColumn(
        "state",
        lambda fact: "off" if not fact["active"] and fact["state"] != "disabled" else fact["state"],
        priority=5,
        needs_full_width=True,
    ),
    TableColumn("tool", lambda fact: to_line(fact["tool"] or "any", 40), priority=3),
    TableColumn("mistake", lambda fact: to_line(fact["mistake"], 200), priority=9),
)


def _print_seeds(context: CommandContext) -> None:
    store = context.find_store(may_be_missing=True)
    stored_seeds = {lesson.id: lesson for lesson in seeds.list_stored_seeds(store, DEFAULT_TENANT)} if store else {}
    is_off = store is not None and seeds.is_disabled(store, DEFAULT_TENANT)
    facts = []
    for name, shipped_lesson in seeds.load_seeds().items():
        lesson = stored_seeds.get(shipped_lesson.id, shipped_lesson)
        fact = {"name": name} | {field: getattr(lesson, field) for field in _SEED_FIELDS}
        is_active = not is_off and lesson.state != "disabled"
        facts.append(fact | {"stored": lesson.id in stored_seeds, "active": is_active})
    head = f"{format_count(len(facts), 'seed lesson')} shipped with mulligan, without evidence from this store."
    state = ["Seed lessons are disabled. Enable them: mulligan seed"] if is_off else []
    context.print(facts, [head, *state, "", *render_table(_SEED_COLUMNS, facts, context.width)])
