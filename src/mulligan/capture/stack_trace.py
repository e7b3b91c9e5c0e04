"""The class and the stack trace of a raised exception as bounded text, for people and never for a model.

Only names and numbers are read: no source lines, no local variables.
"""

from __future__ import annotations

import functools
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from types import CodeType, TracebackType
from typing import Literal

from mulligan.capture.value_recording import truncate_at_word
from mulligan.classify.evidence import iter_chain
from mulligan.redaction.plain_data import escape_surrogates

MAX_USER_FRAMES = 8
"""Frames of the user's code per exception, those nearest to the error."""
MAX_TRACE_CHARS = 4000
MAX_MESSAGE_CHARS = 200
"""Characters of the message of a cause. The message of the exception itself is part of the failure."""
MAX_PATH_CHARS = 160
MAX_NAME_CHARS = 100
"""Characters of a class or function name."""

CodeOwner = Literal["user", "library", "mulligan"]
_RELATIONS = {"cause": "caused by", "context": "while handling", "member": "contains"}
_OWN_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_DEMO_FILES = os.path.join(_OWN_FOLDER, "cli", "demo_world")
"""The tools of the demo stand for those of a user."""
_STANDARD_FOLDER = os.path.join(os.path.dirname(os.path.abspath(os.__file__)), "")
_PACKAGE_FOLDER = re.compile(r".*[/\\](?:site|dist)-packages[/\\]", re.DOTALL)
_HOME_FOLDER = re.compile(r"(?:/home|/Users|[A-Za-z]:[/\\]Users)[/\\][^/\\]+")


def describe_exception(error: BaseException, *, has_messages: bool = True) -> tuple[str, str]:
    """Return the class of an exception, with its module, and its stack trace. Never raises.

    The trace has one line per frame: the user's code first, the nearest to the error first, then libraries. Causes,
    contexts and group members follow, each under a line with its class and, with `has_messages`, its message.
    """
    name = "Exception"
    lines: list[str] = []
    try:
        name = _class_path(error)
        for relation, chained_error in iter_chain(error, include_handled=True):
            if relation:
                message = _first_words(chained_error) if has_messages else ""
                lines.append(f"{_RELATIONS[relation]} {_class_path(chained_error)}{message and ': '}{message}")
            lines += _frame_lines(chained_error.__traceback__, has_callers=not relation)
    except Exception:  # noqa: BLE001 - classes, names and files belong to other code; the call continues without them
        lines.append("...")
    return name, _join_lines(lines)


def _join_lines(lines: Iterable[str]) -> str:
    """Join lines up to the limit. Lines stay whole: redaction would not recognize half a secret."""
    complete_lines: list[str] = []
    remaining_chars = MAX_TRACE_CHARS - len("...")
    for line in lines:
        remaining_chars -= len(line) + 1
        if remaining_chars < 0:
            complete_lines.append("...")
            break
        complete_lines.append(line)
    return escape_surrogates("\n".join(complete_lines))


def _class_path(error: BaseException) -> str:
    """Return module and name of the class, as Python prints them: without `builtins` and `__main__`."""
    kind = type(error)
    module = kind.__module__
    name = _bound_name(kind.__qualname__)
    has_module = isinstance(module, str) and module not in ("builtins", "__main__")
    return f"{_bound_name(module)}.{name}" if has_module else name


def _bound_name(name: str) -> str:
    if len(name) > MAX_NAME_CHARS:
        name = name.rpartition(".")[2]
    return _to_one_line(name) if len(name) <= MAX_NAME_CHARS else "..."


def _to_one_line(text: str) -> str:
    return text if text.isprintable() else " ".join(text.split())


def _first_words(error: BaseException) -> str:
    try:
        return truncate_at_word(str(error), MAX_MESSAGE_CHARS)
    except Exception:  # noqa: BLE001 - code of an arbitrary exception class
        return ""


def _frame_lines(traceback: TracebackType | None, *, has_callers: bool) -> list[str]:
    """Return the lines of one exception.

    `has_callers` adds the user's frames above the wrapped call. They are right only while the call is in progress, so
    not for a cause. A wrapped method of a library has no other frame of the user.
    """
    if traceback is None:
        return []
    # Frames of one exception that are read, those nearest to the error.
    nearest: deque[TracebackType] = deque(maxlen=100)
    frame_count = 0
    following: TracebackType | None = traceback
    # Frames of one exception that are counted. A recursion may have as many as its limit permits.
    while following is not None and frame_count < 100_000:
        nearest.append(following)
        following = following.tb_next
        frame_count += 1
    user_lines: list[str] = []
    library_lines: list[str] = []
    omitted_count = frame_count - len(nearest)
    previous: tuple[int, int | None] | None = None
    for entry in reversed(nearest):
        code = entry.tb_frame.f_code
        owner, path = _locate_file(code.co_filename)
        if owner == "mulligan":
            continue
        # Frames of libraries per exception, those nearest to the error.
        lines, limit = (user_lines, MAX_USER_FRAMES) if owner == "user" else (library_lines, 4)
        position = id(code), entry.tb_lineno
        if len(lines) >= limit or position == previous:  # a recursion repeats its frame
            omitted_count += 1
            continue
        lines.append(_frame_line(path, entry.tb_lineno, code, "library " if owner == "library" else ""))
        previous = position
    if has_callers:
        user_lines += islice(_caller_lines(traceback), MAX_USER_FRAMES - len(user_lines))
    return [*user_lines, *library_lines, *([f"  ... {omitted_count} more frames"] if omitted_count else ())]


def _caller_lines(traceback: TracebackType) -> Iterator[str]:
    frame = traceback.tb_frame.f_back
    # Frames above the wrapped call that are searched for the user's code.
    for _ in range(20):
        if frame is None:
            return
        owner, path = _locate_file(frame.f_code.co_filename)
        if owner == "user":
            yield _frame_line(path, frame.f_lineno, frame.f_code)
        frame = frame.f_back


def _frame_line(path: str, line: int | None, code: CodeType, prefix: str = "") -> str:
    return f"  {prefix}{path}:{line or '?'} in {_bound_name(code.co_qualname.replace('.<locals>', ''))}"


@functools.lru_cache(maxsize=1024)
def _locate_file(path: str) -> tuple[CodeOwner, str]:
    """Return whose code a file is and its path as shown: within its package, the current folder or the home folder."""
    owner: CodeOwner = "user"
    if path.startswith(_OWN_FOLDER) and not path.startswith(_DEMO_FILES):
        return "mulligan", ""
    if packages := _PACKAGE_FOLDER.match(path):
        owner, path = "library", path[packages.end() :]
    elif path.startswith(_STANDARD_FOLDER):
        owner, path = "library", path[len(_STANDARD_FOLDER) :]
    elif path.startswith("<frozen "):
        owner = "library"
    else:
        path = _HOME_FOLDER.sub("~", path.removeprefix(_current_folder()), count=1)
    path = _to_one_line(path.replace("\\", "/"))
    if len(path) > MAX_PATH_CHARS:  # whole names only: redaction would not recognize half a secret
        _, slash, path = path[-MAX_PATH_CHARS:].partition("/")
        path = f".../{path}" if slash else "..."
    return owner, path or "?"


def _current_folder() -> str:
    try:
        folder = os.path.join(os.getcwd(), "")
    except OSError:  # the folder was removed
        return ""
    return "" if folder == os.sep else folder
