"""mulligan seed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import click

from mulligan.failure import SettingsError
from mulligan.records import Lesson
from mulligan.remember.seeds import corpus
from mulligan.remember.store import LOCAL
from mulligan.remember.urls import open_store, shown
from mulligan.report.lessons import ID
from mulligan.report.tables import Column, count, table
from mulligan.report.terminal import line
from mulligan.serve.cli.options import (
    as_json,
    opened,
    print_json,
    print_lines,
    settings_with,
    store_option,
    there,
    width,
)


@click.command(
    epilog="Examples:\n\n  mulligan seed --list\n\n  mulligan seed\n\n  mulligan lessons disable les_5a85\n\n"
    "  mulligan seed --remove"
)
@click.option("--list", "lists", is_flag=True, help="Only show them, and what was said of each here.")
@click.option("--remove", "removes", is_flag=True, help="Take them out of the store and out of use.")
@store_option
@as_json
def seed(lists: bool, removes: bool, store: str | None, as_json: bool) -> None:
    """Put the lessons that come with mulligan into the store, to be looked at, reworded, disabled or approved.

    They are about programs that most agents use, are told as such, and are no evidence: nothing is ever tried because
    of one. They are used without this command too. Doing it again after an upgrade brings newer words and keeps what
    people have said and written.
    """
    if lists and removes:
        raise click.UsageError("--list shows them and --remove takes them out: choose one.")
    settings = settings_with(store)
    if settings.store_url.startswith("memory:") and not lists:
        raise SettingsError("a store in memory is gone when the command ends. Name a file: --store PATH")
    if lists:
        kept = opened(settings)
        known = {each.id: each for each in corpus.in_store(kept, LOCAL)} if kept is not None else {}
        is_off = kept is not None and corpus.is_off(kept, LOCAL)
        _list({name: known.get(each.id, each) for name, each in corpus.seeds().items()}, known.keys(), is_off, as_json)
        return
    where = shown(settings.store_url)
    kept = open_store(settings.store_url, settings.fsync, token=settings.token)
    try:
        if removes:
            gone = corpus.remove(kept, LOCAL)
            told = f"{count(gone, 'seed')} taken out of {where}. None is used until you type mulligan seed."
            facts = {"removed": gone}
        else:
            made = corpus.plant(kept, LOCAL)
            told = (
                f"{count(len(corpus.seeds()), 'seed')} in {where}: {made.new} new, {made.changed} with "
                f"newer words, {made.same} as they were, {made.kept} reworded by you. "
                f"To see them: mulligan seed --list{there(store)}"
            )
            facts = made._asdict()
    finally:
        kept.close()
    if as_json:
        print_json(facts | {"store": where})
    else:
        print_lines([told])


def _list(found: Mapping[str, Lesson], stored: Collection[str], is_off: bool, as_json: bool) -> None:
    if as_json:
        print_json([_facts(name, each, each.id in stored, is_off) for name, each in found.items()])
        return
    many = len(found)
    head = f"{count(many, 'seed')}: lessons that come with mulligan, proven by nothing that happened here."
    state = "They are out of use: mulligan seed puts them back." if is_off else ""
    facts = [_facts(name, each, each.id in stored, is_off) for name, each in found.items()]
    print_lines([head, *([state] if state else []), "", *table(_COLUMNS, facts, width())])


def _state(fact: Mapping[str, Any]) -> str:
    return "off" if not fact["used"] and fact["state"] != "disabled" else str(fact["state"])


_COLUMNS = (
    Column("lesson", lambda fact: fact["id"][:ID], keep=9, is_whole=True),
    Column("seed", lambda fact: fact["name"], keep=8, is_whole=True),
    Column("state", _state, keep=5, is_whole=True),
    Column("tool", lambda fact: line(fact["tool"] or "any", 40), keep=3),
    Column("mistake", lambda fact: line(fact["mistake"], 200), keep=9),
)
_TOLD = ("id", "tool", "kind", "fingerprint", "mistake", "correction", "error", "failed", "works", "origin", "edited")


def _facts(name: str, seed: Lesson, is_stored: bool, is_off: bool) -> dict[str, object]:
    told: dict[str, object] = {field: getattr(seed, field) for field in _TOLD}
    is_used = not is_off and seed.state != "disabled"
    return {"name": name, **told, "state": seed.state, "stored": is_stored, "used": is_used}
