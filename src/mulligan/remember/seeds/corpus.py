"""Seed lessons: loaded from their files, installed into a store, and matched to failures.

Seeds work without being installed, so that the first day is useful. They are no evidence (SAFETY S3). Decisions in the
store take precedence: a seed that was disabled or edited there stays so, and `mulligan seed --remove` disables all.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from mulligan.failure import Failure, LessonFileError
from mulligan.records import Lesson
from mulligan.remember.lessons import files as lesson_files
from mulligan.remember.seeds.wordings import speaking
from mulligan.remember.store import LessonQuery, Store

FOLDER = Path(__file__).parent / "lessons"
SHELF, KEY = "seeds", "use"
OFF = b"off"


class Planted(NamedTuple):
    """The result of installing the seeds into a store."""

    new: int
    changed: int
    same: int
    kept: int
    """Seeds that a person has edited. They are not updated."""


@cache
def seeds() -> Mapping[str, Lesson]:
    """Return all seeds by file name."""
    folder = lesson_files.load(FOLDER)
    if folder.refused:
        raise LessonFileError(folder.refused[0])
    return {each.name.removesuffix(".md"): _shipped(each.lesson) for each in folder.found}


def _shipped(lesson: Lesson) -> Lesson:
    """Mark a lesson as an unedited seed."""
    return msgspec.structs.replace(lesson, edited=False, source="seed")


def named(id: str) -> Lesson | None:
    """Return the seed with this id or unique id prefix."""
    found = [each for each in seeds().values() if each.id.startswith(id)]
    return found[0] if len(found) == 1 else None


def known(store: Store | None, tenant: str, tool: str, failure: Failure, limit: int = 1) -> list[Lesson]:
    """Return the seeds that match a failure, with their stored text, without disabled ones."""
    found = speaking(seeds().values(), tool, failure, limit)
    if not found or store is None:
        return found
    if is_off(store, tenant):
        return []
    told = [store.lesson(tenant, each.id) or each for each in found]
    return [each for each in told if each.state != "disabled"]


def plant(store: Store, tenant: str) -> Planted:
    """Install the seeds into a store, or update their text. Decisions of people are retained."""
    before = {each.id: each for each in in_store(store, tenant)}
    new = changed = kept = 0
    every = list(seeds().values())
    for seed, is_changed in zip(every, store.keep_lessons(tenant, every), strict=True):
        new += seed.id not in before
        changed += is_changed and seed.id in before
        kept += seed.id in before and before[seed.id].edited
    store.put(tenant, SHELF, KEY, b"on")
    return Planted(new, changed, len(seeds()) - new - changed - kept, kept)


def remove(store: Store, tenant: str) -> int:
    """Delete the seeds from a store and disable them. Return how many were stored."""
    gone = store.remove_lessons(tenant, "seed")
    store.put(tenant, SHELF, KEY, OFF)
    return gone


def is_off(store: Store, tenant: str) -> bool:
    """Return whether a person has disabled the seeds."""
    return store.get(tenant, SHELF, KEY) == OFF


def in_store(store: Store, tenant: str) -> list[Lesson]:
    return store.lessons(tenant, LessonQuery(source="seed", limit=10_000))
