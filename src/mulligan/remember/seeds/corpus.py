"""The seeds: read from their files, put into a store, and found for a failure. They are no evidence (SAFETY S3).

They are used without being put into a store, so that the first day is useful; what a person says in the store holds:
a seed that was disabled or reworded there is so here, and `mulligan seed --remove` takes all of them out of use.
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
    """What became of the seeds in a store."""

    new: int
    changed: int
    same: int
    kept: int
    """Those that a person has reworded, and that stay so."""


@cache
def seeds() -> Mapping[str, Lesson]:
    """Every seed by the name of its file."""
    folder = lesson_files.load(FOLDER)
    if folder.refused:
        raise LessonFileError(folder.refused[0])
    return {each.name.removesuffix(".md"): _shipped(each.lesson) for each in folder.found}


def _shipped(lesson: Lesson) -> Lesson:
    """As it comes with mulligan: nobody here has reworded it."""
    return msgspec.structs.replace(lesson, edited=False, source="seed")


def named(id: str) -> Lesson | None:
    """The seed of this id, or of one that begins so."""
    found = [each for each in seeds().values() if each.id.startswith(id)]
    return found[0] if len(found) == 1 else None


def known(store: Store | None, tenant: str, tool: str, failure: Failure, limit: int = 1) -> list[Lesson]:
    """The seeds that speak of a failure, in the words that are kept of them, without those that a person disabled."""
    found = speaking(seeds().values(), tool, failure, limit)
    if not found or store is None:
        return found
    if is_off(store, tenant):
        return []
    told = [store.lesson(tenant, each.id) or each for each in found]
    return [each for each in told if each.state != "disabled"]


def plant(store: Store, tenant: str) -> Planted:
    """Puts the seeds into a store, or newer words in the place of older ones; what people said of them stays."""
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
    """Takes the seeds out of a store and out of use; how many were there."""
    gone = store.remove_lessons(tenant, "seed")
    store.put(tenant, SHELF, KEY, OFF)
    return gone


def is_off(store: Store, tenant: str) -> bool:
    """Whether a person has taken the seeds out of use."""
    return store.get(tenant, SHELF, KEY) == OFF


def in_store(store: Store, tenant: str) -> list[Lesson]:
    return store.lessons(tenant, LessonQuery(source="seed", limit=10_000))
