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

from mulligan.core.failure import Failure, LessonFileError
from mulligan.core.records import Lesson
from mulligan.learn.lessons import lesson_files as lesson_files
from mulligan.learn.seeds.seed_matching import match_seeds
from mulligan.store.base import LessonQuery, Store

FOLDER = Path(__file__).parent / "lessons"
KEY_VALUE_KIND, USE_KEY = "seeds", "use"
OFF = b"off"


class SeedResult(NamedTuple):
    """The result of installing the seeds into a store."""

    new: int
    updated: int
    same: int
    edited: int
    """Seeds that a person has edited. They are not updated."""


@cache
def seeds() -> Mapping[str, Lesson]:
    """Return all seeds by file name."""
    folder = lesson_files.load_folder(FOLDER)
    if folder.errors:
        raise LessonFileError(folder.errors[0])
    return {seed_file.name.removesuffix(".md"): _shipped(seed_file.lesson) for seed_file in folder.lesson_files}


def _shipped(lesson: Lesson) -> Lesson:
    """Mark a lesson as an unedited seed."""
    return msgspec.structs.replace(lesson, edited=False, source="seed")


def find_seed(id: str) -> Lesson | None:
    """Return the seed with this id or unique id prefix."""
    matches = [seed for seed in seeds().values() if seed.id.startswith(id)]
    return matches[0] if len(matches) == 1 else None


def find_matching_seeds(store: Store | None, tenant: str, tool: str, failure: Failure, limit: int = 1) -> list[Lesson]:
    """Return the seeds that match a failure, with their stored text, without disabled ones."""
    matches = match_seeds(seeds().values(), tool, failure, limit)
    if not matches or store is None:
        return matches
    if is_disabled(store, tenant):
        return []
    current_seeds = [store.lesson(tenant, seed.id) or seed for seed in matches]
    return [seed for seed in current_seeds if seed.state != "disabled"]


def install_seeds(store: Store, tenant: str) -> SeedResult:
    """Install the seeds into a store, or update their text. Decisions of people are retained."""
    before = {lesson.id: lesson for lesson in list_stored_seeds(store, tenant)}
    new = updated_count = edited_count = 0
    every = list(seeds().values())
    for seed, is_changed in zip(every, store.save_lessons(tenant, every), strict=True):
        new += seed.id not in before
        updated_count += is_changed and seed.id in before
        edited_count += seed.id in before and before[seed.id].edited
    store.put(tenant, KEY_VALUE_KIND, USE_KEY, b"on")
    return SeedResult(new, updated_count, len(seeds()) - new - updated_count - edited_count, edited_count)


def remove_seeds(store: Store, tenant: str) -> int:
    """Delete the seeds from a store and disable them. Return how many were stored."""
    removed_count = store.remove_lessons(tenant, "seed")
    store.put(tenant, KEY_VALUE_KIND, USE_KEY, OFF)
    return removed_count


def is_disabled(store: Store, tenant: str) -> bool:
    """Return whether a person has disabled the seeds."""
    return store.get(tenant, KEY_VALUE_KIND, USE_KEY) == OFF


def list_stored_seeds(store: Store, tenant: str) -> list[Lesson]:
    return store.lessons(tenant, LessonQuery(source="seed", limit=10_000))
