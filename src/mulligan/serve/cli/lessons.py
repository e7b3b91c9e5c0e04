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

from mulligan.events import LessonLearned, redacted
from mulligan.failure import LessonFileError, SettingsError
from mulligan.parts import redactor_of
from mulligan.prompt import Prompt
from mulligan.records import Lesson, LessonState, LessonVerdict, builtins
from mulligan.remember.lessons import files as lesson_files
from mulligan.remember.lessons.making import RUNS, TEXTS, reworded
from mulligan.remember.seeds import corpus
from mulligan.remember.store import LOCAL, Consolidated, LessonQuery, Store
from mulligan.remember.urls import open_store, shown
from mulligan.report import lessons as told
from mulligan.report.tables import count, line
from mulligan.serve.cli.groups import Group
from mulligan.serve.cli.options import (
    as_json,
    kind_option,
    limit_option,
    needed,
    now,
    opened,
    print_json,
    print_lines,
    progress,
    settings_with,
    store_option,
    there,
    told_more,
    width,
)
from mulligan.settings import Settings

EVERY = 5000
STATES = ("proposed", "active", "disabled", "expired")
SOURCES = ("learned", "file", "seed")


@click.group(
    cls=Group,
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
    settings = settings_with(store)
    kept = opened(settings)
    query = LessonQuery(tool=tool, state=state, source=source, text=text, kind=kind, now=now(), limit=limit)
    found = kept.lessons(LOCAL, query) if kept is not None else []
    if as_json:
        print_json([told.facts(lesson) for lesson in found])
    elif found:
        print_lines(told.listed(found, now(), width()))
        told_more(len(found), limit)
    elif tool or state or source or text or kind:
        click.echo("No lesson matches.")
    else:
        click.echo(f"Nothing was learned yet. {_nothing(settings, kept is not None, store)}")


def _nothing(settings: Settings, is_there: bool, store: str | None) -> str:
    """Return why there are no lessons and what to do."""
    if not is_there:
        begin = "Wrap a function with @mulligan.tool and call it, or read logs that you have: mulligan scan --import"
        return f"There is no {shown(settings.store_url)} yet. Name another (--store). {begin}"
    return (
        f"What overcame a failure in {RUNS} runs or more becomes a lesson: mulligan consolidate{there(store)}\n"
        f"Those that come with mulligan: mulligan seed{there(store)}"
    )


def _settings(context: click.Context, store: str | None) -> Settings:
    return settings_with(store or context.obj)


def _found(kept: Store, id: str) -> Lesson:
    found = kept.lesson(LOCAL, id, now())
    if found is None:
        if len(id) > len("les_") and any(seed.id.startswith(id) for seed in corpus.seeds().values()):
            raise SettingsError(f"{id} came with mulligan, and is not in the store yet. Put it there: mulligan seed")
        raise SettingsError(f"there is no lesson {id!r}, or more than one begins so. See them: mulligan lessons")
    return found


def _tell(lesson: Lesson, as_json: bool) -> None:
    if as_json:
        print_json(told.facts(lesson))
    else:
        why = f" ({line(lesson.why, 100)})" if lesson.why else ""
        click.echo(f"{lesson.id} is {lesson.state}{why}: {line(lesson.correction, 200)}")


@lessons.command(epilog="Examples:\n\n  mulligan lessons show les_8f2c --json")
@click.argument("lesson")
@store_option
@as_json
@click.pass_context
def show(context: click.Context, lesson: str, store: str | None, as_json: bool) -> None:
    """One lesson: its words, its evidence, and the days before and after it came into force."""
    found = _found(needed(_settings(context, store)), lesson)
    if as_json:
        print_json(told.facts(found))
    else:
        print_lines(told.shown(found, now(), width()))


def _verdict(name: LessonVerdict, help: str) -> None:
    """Register the command that applies this decision to a lesson."""

    @lessons.command(name, help=help, epilog=f"Examples:\n\n  mulligan lessons {name} les_8f2c")
    @click.argument("lesson")
    @store_option
    @as_json
    @click.pass_context
    def command(context: click.Context, lesson: str, store: str | None, as_json: bool) -> None:
        kept = needed(_settings(context, store))
        decided = kept.decide_lesson(LOCAL, _found(kept, lesson).id, name, now())
        assert decided is not None
        _tell(decided, as_json)


_verdict(
    "approve", "Puts a lesson in force, however little it is proven. Nothing is tried without asking because of it."
)
_verdict("disable", "Takes a lesson out of force. The fix that it rests on is still used.")
_verdict("revoke", "Takes a lesson out of force, and back the fix that it rests on.")


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
    kept = needed(settings)
    found = _found(kept, lesson)
    if mistake is None and correction is None:
        changed = _edited(found)
    else:
        given = {"mistake": mistake, "correction": correction}
        changed = msgspec.structs.replace(found, **{name: text for name, text in given.items() if text is not None})
    kept.keep_lesson(LOCAL, _redacted(msgspec.structs.replace(changed, edited=True), settings))
    _tell(_found(kept, found.id), as_json)


def _edited(lesson: Lesson) -> Lesson:
    """Open the lesson in the user's editor and return the edited lesson."""
    if not sys.stdin.isatty() and not (os.environ.get("EDITOR") or os.environ.get("VISUAL")):
        raise SettingsError("there is no terminal to edit in. Say the words: --mistake TEXT, --correction TEXT.")
    text = click.edit(lesson_files.written(lesson), extension=".md")
    if text is None:  # the file was not saved
        return lesson
    data = text.encode("utf-8", "surrogateescape")
    try:
        read = lesson_files.read(data, lesson_files.name_of(lesson)).lesson
    except LessonFileError as error:
        with tempfile.NamedTemporaryFile(prefix=f"{lesson.id}-", suffix=".md", delete=False) as left:
            left.write(data)
        raise LessonFileError(f"{error} What you wrote is in {left.name}.") from None
    return msgspec.structs.replace(lesson, **{name: getattr(read, name) for name in TEXTS})


def _redacted(lesson: Lesson, settings: Settings) -> Lesson:
    """Redact text that a person wrote, like recorded text."""
    event = redacted(LessonLearned(lesson), redactor_of(settings))
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
    kept = needed(_settings(context, store))
    query = LessonQuery(tool=tool, state=state, source=source, now=now(), limit=EVERY)
    found = kept.lessons(LOCAL, query)
    changed, same = lesson_files.put(folder, found)
    if as_json:
        print_json({"folder": str(folder), "written": changed, "same": same})
    else:
        click.echo(f"{count(changed, 'file')} written to {line(folder, 300)}, {same:,} were up to date.")


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
    found, refused = lesson_files.load(folder)
    if refused:
        for each in refused[:50]:
            click.echo(f"error: {line(each, 500)}", err=True)
        more = f", {len(refused) - 50} more of them not shown" if len(refused) > 50 else ""
        raise LessonFileError(f"{count(len(refused), 'file')} of {folder} cannot be read{more}; nothing was imported.")
    settings = _settings(context, store)
    kept = open_store(settings.store_url, settings.fsync, settings.token)
    taken: dict[str, list[str]] = {"new": [], "edited": [], "same": [], "older": [], "conflict": []}
    for file in found:
        clean = _redacted(file.lesson, settings)
        own = kept.lesson(LOCAL, file.lesson.id, now())
        standing = lesson_files.compared(file._replace(lesson=clean), own)
        taken[standing].append(file.name)
        if standing in ("new", "edited") or (standing == "conflict" and replace):
            source = own.source if own is not None else "file"
            kept.keep_lesson(LOCAL, msgspec.structs.replace(clean, source=source))
    kept.close()
    rivals = _rivals([file.lesson for file in found])
    _tell_imported(folder, taken, rivals, replace, as_json, there(store or context.obj))
    if taken["conflict"] and not replace:
        sys.exit(1)


def _rivals(found: list[Lesson]) -> list[tuple[str, str]]:
    """Return pairs of lessons with different corrections for the same failure."""
    first: dict[tuple[str, str], Lesson] = {}
    rivals = []
    for lesson in found:
        if lesson.fingerprint:
            other = first.setdefault((lesson.tool, lesson.fingerprint), lesson)
            if other is not lesson and other.correction != lesson.correction:
                rivals.append((other.id, lesson.id))
    return rivals


def _tell_imported(
    folder: Path, taken: dict[str, list[str]], rivals: list[tuple[str, str]], replace: bool, as_json: bool, where: str
) -> None:
    if as_json:
        print_json({"folder": str(folder), **taken, "replaced": replace, "rivals": rivals})
        return
    parts = [
        f"{count(len(taken['new']), 'new lesson')}",
        f"{len(taken['edited']):,} with other words",
        f"{len(taken['same']):,} as they were",
    ]
    click.echo(f"{', '.join(parts)}. They are proposals: mulligan lessons --state proposed{where}")
    for name in taken["older"]:
        click.echo(f"{line(name, 200)} says what this store once said; the store's own words are newer and stay.")
    for name in taken["conflict"]:
        done = "the file's words were taken" if replace else "neither was touched; take the file's with --replace"
        click.echo(f"conflict: {line(name, 200)} and the store were both changed: {done}.")
    for one, other in rivals:
        click.echo(f"note: {one} and {other} say different things about the same failure.")


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
    model = _model(reword) if reword else None
    settings = settings_with(store)
    kept = opened(settings)
    if kept is None:
        raise SettingsError(f"there is nothing to learn from. {_nothing(settings, False, store)}")
    began = time.process_time()
    with progress("consolidating") as told_so_far:
        done = kept.consolidate(LOCAL, now(), told_so_far)
    spent = time.process_time() - began
    better = _reworded(kept, done, model, settings) if model is not None else 0
    if as_json:
        lessons = [told.facts(each) for each in done.lessons]
        print_json({**builtins(done), "patterns": done.patterns, "lessons": lessons, "reworded": better, "cpu": spent})
        return
    active = sum(lesson.state == "active" for lesson in done.lessons)
    click.echo(
        f"{count(done.patterns, 'pattern')} looked at: {count(len(done.lessons), 'lesson')} new or changed, "
        f"{active} of them in force." + (f" {better} reworded." if better else "")
    )
    if done.lessons:
        click.echo(f"See them: mulligan lessons{there(store)}")
    elif done.patterns:
        click.echo(f"A lesson is what overcame a failure in {RUNS} runs or more, and in half of those that met it.")


def _model(name: str) -> Callable[[str], str]:
    """Import MODULE:FUNCTION from the working directory or an installed package."""
    module, colon, function = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function) if colon and function else None
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(f"--reword {name!r} cannot be found: {error}. It takes MODULE:FUNCTION.") from None
    finally:
        sys.path.pop(0)
    if not callable(found):
        raise SettingsError(f"--reword takes MODULE:FUNCTION, a function that takes a text, got {name!r}.")
    return found  # type: ignore[no-any-return]


def _reworded(kept: Store, done: Consolidated, model: Callable[[str], str], settings: Settings) -> int:
    """Reword new lessons with the model. Return the number of lessons that changed."""
    words = Prompt(redactor_of(settings, "local", personal=False))
    better = 0
    for lesson in done.lessons:
        if not lesson.edited:
            changed = reworded(lesson, model, words)
            better += changed is not None and kept.keep_lesson(LOCAL, _redacted(changed, settings))
    return better
