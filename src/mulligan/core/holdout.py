"""Hold-out: cases in which help is withheld, so that people see what it is worth.

Whether a case is held out depends on ids alone, so that all processes agree. Nothing that protects is held out: not the
effects of a tool, no limit and no redaction.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Sequence

from mulligan.core.records import Lesson, Precedent

HoldOutLessons = Callable[[Sequence[Lesson]], Collection[str]]
"""Takes the lessons of a prompt, and returns the ids of those that are held out from its run."""
REMINDER, REPAIR = "reminder", "repair"
"""Stand in `AdvisedFix.fix` for help that is no learned fix: a session's reminder, the repairs of a tool in a run."""
MIN_FOLLOWED_RUNS = 5
"""Runs in which models followed a fix, before it and its lesson are held out from some: then the effect is worth
measuring."""


def is_held_out(share: float, *ids: str) -> bool:
    """Return whether the case with these ids belongs to the share that is held out."""
    return bool(share) and zlib.crc32(" ".join(ids).encode("utf-8", "replace")) < share * 2**32


def is_fix_held_out(precedent: Precedent, trace: str, share: float) -> bool:
    """Return whether a model of this trace does not read a fix that models follow.

    A change of form is never held out.
    """
    if precedent.followed < MIN_FOLLOWED_RUNS or precedent.forms or not precedent.fix:
        return False
    return is_held_out(share, trace, precedent.fix)


def can_hold_out_lesson(lesson: Lesson) -> bool:
    """Return whether some runs may go without a lesson: one that models follow, in words that mulligan wrote.

    Words of a person may protect, and a change of form is never held out.
    """
    is_learned = lesson.source == "learned" and not lesson.edited
    return is_learned and lesson.followed >= MIN_FOLLOWED_RUNS and not any(change.form for change in lesson.changes)


def is_lesson_id(id: str) -> bool:
    """Return whether the help in an `AdvisedFix` is a lesson."""
    return id.startswith("les_")
