"""Lessons in the repository of a project, which its hooks show only after a person has trusted each file.

A repository is untrusted: its text could speak to the agent of everyone who clones it. The store of a user therefore
holds the hash of each file that this user has trusted. A file that changes is silent until it is trusted again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mulligan.core.failure import Failure, LessonFileError
from mulligan.core.records import Lesson, Step, decode, encode
from mulligan.learn.working_calls import PastFailure, find_working_call

if TYPE_CHECKING:
    from mulligan.learn.lesson_files import LessonFile

LESSON_FOLDER = Path(".mulligan", "lessons")
"""The folder of the lesson files in a project."""
TRUST_KIND = "trusted_lessons"
"""Kind of the key-value entries with the hashes of trusted files. The key is the folder of the project."""
MAX_PROJECT_FILES = 100


def trust_key(project: Path | str) -> str:
    return os.path.realpath(project)


def read_lessons(project: Path | str) -> dict[str, LessonFile]:
    """Return the lesson files of a project by the hash of their content. Raise `LessonFileError` if one is invalid."""
    from mulligan.learn.lesson_files import list_file_names, parse_lesson_file, read_file

    folder = Path(project) / LESSON_FOLDER
    if not folder.is_dir():
        raise LessonFileError(
            f"{folder} is no folder. To write a lesson there: mulligan fixes approve FIX --project DIR"
        )
    names = list_file_names(folder)
    if len(names) > MAX_PROJECT_FILES:
        raise LessonFileError(f"{folder} has {len(names):,} lessons. At most {MAX_PROJECT_FILES} are read.")
    contents = {name: read_file(folder, name) for name in names}
    return {hash_content(data): parse_lesson_file(data, name) for name, data in contents.items()}


def hash_content(data: bytes) -> str:
    """Return the hash that identifies a trusted file."""
    import hashlib  # lazy: loads OpenSSL, and most projects have no lessons

    return hashlib.sha256(data).hexdigest()


def encode_trust(hashes: Mapping[str, str]) -> bytes:
    """Encode the hashes of trusted files with their names."""
    return encode(dict(hashes))


def find_trusted_lesson(project: str, trust: bytes, step: Step) -> Lesson | None:
    """Return the trusted lesson about a failed call; None without one. A file that is new or has changed is skipped."""
    from mulligan.learn.lesson_files import parse_lesson_file, read_file  # lazy: most projects have no lessons

    failure = step.failure
    assert failure is not None
    for content_hash, name in decode(trust, dict[str, str]).items():
        try:
            data = read_file(Path(project) / LESSON_FOLDER, name)
            if hash_content(data) == content_hash:
                lesson = parse_lesson_file(data, name).lesson
                if _is_about(lesson, step.name, failure):
                    return lesson
        except LessonFileError:
            continue  # removed since it was trusted
    return None


def _is_about(lesson: Lesson, tool: str, failure: Failure) -> bool:
    if lesson.tool and lesson.tool != tool:
        return False
    if lesson.fingerprint:
        return lesson.fingerprint == failure.fingerprint
    return bool(lesson.kind) and lesson.kind == str(failure.kind)


def build_rule(past: PastFailure, lesson_id: str, fix: str) -> Lesson | None:
    """Return a lesson for the project about what recovered a failed call; None if no command or file is known."""
    failure = past.step.failure
    working_call = find_working_call(past.step, [msgspec.structs.replace(past, is_approved=True, is_revoked=False)])
    if working_call is None or failure is None:
        return None
    # Characters of a command or an error in a rule
    message = " ".join(failure.message.split())[:100]
    verb = "It succeeded after" if working_call.is_before else "Instead, this succeeded:"
    return Lesson(
        id=lesson_id,
        tool=past.step.name,
        kind=str(failure.kind),
        fingerprint=failure.fingerprint,
        fix_id=fix,
        source="file",
        mistake=f"`{working_call.failed_call}` fails here: {message}",
        correction=f"{verb} `{working_call.call}`.",
        edited=True,
    )
