"""mulligan seed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import click

from mulligan.cli.options import (
    as_json,
    load_settings,
    open_existing_store,
    print_json,
    print_lines,
    store_option,
    store_option_suffix,
    terminal_width,
)
from mulligan.core.failure import SettingsError
from mulligan.learn import seeds
from mulligan.report.tables import SHOWN_ID_CHARS, TableColumn, format_count, render_table, to_line
from mulligan.store.base import DEFAULT_TENANT, Store
from mulligan.store.urls import open_store, redact_password


@click.command(
    epilog="Examples:\n\n  mulligan seed --list\n\n  mulligan seed\n\n  mulligan lessons disable les_5a85\n\n"
    "  mulligan seed --remove"
)
@click.option("--list", "lists", is_flag=True, help="List the seed lessons with their state in this store.")
@click.option("--remove", "removes", is_flag=True, help="Remove the seed lessons from the store and stop using them.")
@store_option
@as_json
def seed(lists: bool, removes: bool, store: str | None, as_json: bool) -> None:
    """Install the lessons that ship with mulligan into the store, to review, edit, disable or approve them.

    Seed lessons are about programs that many agents use. They are marked as seeds, are no evidence, and never cause a
    repair. They are used without this command too. After an upgrade, run it again for newer texts; your edits and
    decisions stay.
    """
    if lists and removes:
        raise click.UsageError("--list and --remove exclude each other. Remove one of them.")
    settings = load_settings(store)
    if settings.store_url.startswith("memory:") and not lists:
        raise SettingsError("A store in memory is lost when the command ends. Name a file: --store PATH")
    if lists:
        _print_seeds(open_existing_store(settings), as_json)
        return
    where = redact_password(settings.store_url)
    with contextlib.closing(open_store(settings.store_url, settings.fsync, token=settings.token)) as opened_store:
        if removes:
            removed_count = seeds.remove_seeds(opened_store, DEFAULT_TENANT)
            message = (
                f"{format_count(removed_count, 'seed lesson')} removed from {where}. No seed lesson is used until you "
                "run mulligan seed."
            )
            facts = {"removed": removed_count}
        else:
            install_result = seeds.install_seeds(opened_store, DEFAULT_TENANT)
            message = (
                f"{format_count(len(seeds.load_seeds()), 'seed lesson')} in {where}: {install_result.new} new, "
                f"{install_result.updated} updated, {install_result.same} unchanged, {install_result.edited} edited "
                f"by you. List them: mulligan seed --list{store_option_suffix(store)}"
            )
            facts = install_result._asdict()
    if as_json:
        print_json(facts | {"store": where})
    else:
        print_lines([message])


def _print_seeds(store: Store | None, as_json: bool) -> None:
    stored_seeds = {lesson.id: lesson for lesson in seeds.list_stored_seeds(store, DEFAULT_TENANT)} if store else {}
    is_off = store is not None and seeds.is_disabled(store, DEFAULT_TENANT)
    facts = []
    for name, shipped_lesson in seeds.load_seeds().items():
        lesson = stored_seeds.get(shipped_lesson.id, shipped_lesson)
        is_active = not is_off and lesson.state != "disabled"
        lesson_facts = {field: getattr(lesson, field) for field in _LESSON_FIELDS}
        state_facts = {"state": lesson.state, "stored": lesson.id in stored_seeds, "active": is_active}
        facts.append({"name": name, **lesson_facts, **state_facts})
    if as_json:
        print_json(facts)
        return
    head = f"{format_count(len(facts), 'seed lesson')} shipped with mulligan, without evidence from this store."
    state = ["Seed lessons are disabled. Enable them: mulligan seed"] if is_off else []
    print_lines([head, *state, "", *render_table(_COLUMNS, facts, terminal_width())])


def _state(fact: Mapping[str, Any]) -> str:
    return "off" if not fact["active"] and fact["state"] != "disabled" else str(fact["state"])


_COLUMNS = (
    TableColumn("lesson", lambda fact: fact["id"][:SHOWN_ID_CHARS], priority=9, needs_full_width=True),
    TableColumn("seed", lambda fact: fact["name"], priority=8, needs_full_width=True),
    TableColumn("state", _state, priority=5, needs_full_width=True),
    TableColumn("tool", lambda fact: to_line(fact["tool"] or "any", 40), priority=3),
    TableColumn("mistake", lambda fact: to_line(fact["mistake"], 200), priority=9),
)
_LESSON_FIELDS = (
    "id", "tool", "kind", "fingerprint", "mistake", "correction", "error", "failing_example", "working_example",
    "origin", "edited",
)  # fmt: skip
