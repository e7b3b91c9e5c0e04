"""Safe edits of other programs' settings files: a diff, a backup, an atomic replacement.

`read_json` and `read_toml` read a file, `Edit` holds its old and new text, `to_diff` shows the change and `apply`
writes it. A file that cannot be parsed is never changed.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from mulligan.core.failure import SettingsError

MAX_FILE_BYTES = 10_000_000
"""Larger files are not settings files."""
_COMMENT = re.compile(r"^\s{0,99}(?://|/\*)", re.MULTILINE)


class Edit(NamedTuple):
    """Old and new text of one file. None means that the file does not exist."""

    path: Path
    before: str | None
    after: str | None

    @property
    def has_changes(self) -> bool:
        return self.before != self.after

    def to_diff(self) -> str:
        """Return the change as a unified diff. Empty if nothing changes."""
        before, after = (self.before or "").splitlines(), (self.after or "").splitlines()
        names = [str(self.path) if text is not None else os.devnull for text in (self.before, self.after)]
        return "\n".join(difflib.unified_diff(before, after, names[0], names[1], lineterm=""))

    def apply(self, *, should_back_up: bool = True, mode: int = 0o600) -> Path | None:
        """Write the new text and return the path of the backup, or None if there is no backup.

        The file is replaced atomically. Symbolic links and permissions are preserved; `mode` applies to a new file
        only.
        """
        path = self.path.resolve()
        try:
            if read_text(path) != self.before:
                raise SettingsError(
                    f"{self.path} was changed by another program at the same time. Nothing was written; try again."
                )
            backup_path = _back_up(path) if should_back_up and self.before is not None else None
            if self.after is None:
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                with replace_file(path, path.stat().st_mode & 0o777 if path.exists() else mode) as file:
                    file.write(self.after.encode())
        except OSError as error:
            raise SettingsError(f"Cannot write {self.path} ({error.strerror or error}). Nothing was changed.") from None
        return backup_path


def _back_up(path: Path) -> Path:
    stem = f"{path.name}.before-mulligan-{time.strftime('%Y%m%dT%H%M%S')}"
    for number in itertools.count(1):
        backup_path = path.with_name(stem if number == 1 else f"{stem}-{number}")
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(backup_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, path.stat().st_mode & 0o777)
            with open(descriptor, "wb") as file:
                file.write(path.read_bytes())
            break
    return backup_path


@contextlib.contextmanager
def replace_file(path: Path, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """Open a file that takes this path, completely written, when the block ends. It is removed if the block raises."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_text(path: Path) -> str | None:
    """Return the text of a settings file, or None if it does not exist."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES and path.is_file():
            raise SettingsError(f"{path} is too large for a settings file. Nothing was changed.")
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(f"Cannot read {path} ({error.strerror or error}). Nothing was changed.") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 text ({error}). Fix it first; nothing was changed.") from None


def read_json(path: Path) -> tuple[str | None, dict[str, Any]]:
    """Return a settings file as text and as an object, both for `json_edit`. A missing file is an empty object."""
    text = read_text(path)
    if text is None or not text.strip():
        return text, {}
    try:
        value = json.loads(text, object_pairs_hook=_reject_duplicate_names)
    except (ValueError, RecursionError) as error:
        reason = f"not valid JSON: {error}"
        if _COMMENT.search(text):
            reason += "; it seems to have comments, which an edit would remove"
        raise SettingsError(f"{path} is {reason}. Fix it first, or edit it by hand; nothing was changed.") from None
    if not isinstance(value, dict):
        raise SettingsError(f"{path} is not a JSON object, so it is not a settings file. Nothing was changed.")
    return text, value


def _reject_duplicate_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a key occurs twice in one object, and an edit would remove one of them")
    return mapping


def json_edit(path: Path, before: str | None, value: dict[str, Any]) -> Edit:
    """Plan the edit that stores this object, with the file's indentation. An empty object removes the file."""
    if not value:
        return Edit(path, before, None)
    try:
        if before is not None and before.strip() and json.loads(before) == value:
            return Edit(path, before, before)
        indent = re.search(r"^([ \t]{1,8})\S", before or "", re.MULTILINE)
        after = json.dumps(value, indent=indent[1] if indent else 2, ensure_ascii=False) + "\n"
        after.encode()
    except ValueError as error:
        raise SettingsError(f"Cannot write the content of {path} back ({error}). Edit it by hand.") from None
    return Edit(path, before, after)


def read_toml(path: Path) -> tuple[str | None, dict[str, Any]]:
    """Return a TOML file as text and as a table. There is no TOML writer: callers edit lines of the text."""
    import tomllib  # 10 ms, and few commands need it

    text = read_text(path)
    try:
        return text, tomllib.loads(text or "")
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}. Fix it first; nothing was changed.") from None
