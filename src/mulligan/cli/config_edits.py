"""Safe edits of other programs' settings files: a diff, an atomic replacement, and the way back.

`read_document` parses a file, `Edit` holds its old and new text, `to_diff` shows the change and `apply` writes it. What
a file said before mulligan changed it is stored in mulligan's data folder until everything is uninstalled again.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Set
from pathlib import Path
from typing import IO, Any, NamedTuple

from mulligan.cli.config_text import ConfigSyntaxError, ConfigText, JsonText
from mulligan.cli.toml_text import TomlText, YamlText
from mulligan.core.failure import SettingsError
from mulligan.redaction import Redactor
from mulligan.settings import hook_folder

MAX_FILE_BYTES = 10_000_000
"""Larger files are not settings files."""
FORMATS: dict[str, type[ConfigText]] = {"json": JsonText, "toml": TomlText, "yaml": YamlText}
_FORMAT_NAMES = {"json": "JSON", "toml": "TOML", "yaml": "YAML"}


_SECRET_TABLES = frozenset({"env", "headers", "http_headers"})
"""Tables of a server's entry whose values a diff does not show, whatever their names."""


def _find_secrets(path: Path, text: str | None) -> frozenset[str]:
    """Return the values of a settings file that a diff must not show: of environments, headers and secret options."""
    format_name = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}.get(path.suffix, "json")
    try:
        document = FORMATS[format_name](text or "").read(())
    except ConfigSyntaxError:
        return frozenset()
    return frozenset(_iter_secrets(document, Redactor()))


def _iter_secrets(value: Any, redactor: Redactor, is_secret: bool = False) -> Iterator[str]:
    if isinstance(value, dict):
        for name, member in value.items():
            has_secret_name = name in _SECRET_TABLES or bool(redactor.secret_kind_of_name(name))
            yield from _iter_secrets(member, redactor, is_secret or has_secret_name)
    elif isinstance(value, list):
        previous = ""
        for item in value:
            yield from _iter_secrets(item, redactor, is_secret or _is_secret_option(previous, redactor))
            previous = item if isinstance(item, str) else ""
            option, _, option_value = previous.partition("=")
            if option_value and _is_secret_option(option, redactor):
                yield option_value
    elif is_secret and isinstance(value, str):
        name, separator, header_value = value.partition(": ")  # an option --header has both in one text
        yield header_value if separator and " " not in name else value


def _is_secret_option(option: str, redactor: Redactor) -> bool:
    name = option.lstrip("-")
    return option.startswith("-") and (name in ("header", "H", "e", "env") or bool(redactor.secret_kind_of_name(name)))


def _mask_values(line: str, secrets: frozenset[str]) -> str:
    """Return a line of a settings file without these values. References to variables stay."""
    for secret in sorted(secrets, key=len, reverse=True):
        for literal in {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}:
            if literal and not re.fullmatch(r"\$\{?\w+(:-[^}]*)?\}?", literal):
                # A whole value, or the end of one: a short value stands in other words too.
                line = re.sub(rf"(?<![\w.-]){re.escape(literal)}(?=[\"'\s,}}\]]|$)", "[redacted]", line)
    return line


class Edit(NamedTuple):
    """Old and new text of one file. None means that the file does not exist."""

    path: Path
    before: str | None
    after: str | None

    @property
    def has_changes(self) -> bool:
        return self.before != self.after

    def to_diff(self) -> str:
        """Return the change as a unified diff, without secrets. Empty if nothing changes."""
        before, after = (self.before or "").splitlines(), (self.after or "").splitlines()
        names = [str(self.path) if text is not None else os.devnull for text in (self.before, self.after)]
        lines = difflib.unified_diff(before, after, names[0], names[1], lineterm="")
        secrets = _find_secrets(self.path, self.before) | _find_secrets(self.path, self.after)
        redactor = Redactor()
        return "\n".join(redactor.text(_mask_values(line, secrets)) for line in lines)

    def apply(self, mode: int = 0o600) -> None:
        """Write the new text.

        The file is replaced atomically. Symbolic links and permissions are preserved; `mode` applies to a new file
        only.
        """
        path = self.path.resolve()
        try:
            if read_text(path) != self.before:
                raise SettingsError(
                    f"{self.path} was changed by another program at the same time. Nothing was written; try again."
                )
            if self.after is None:
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                with replace_file(path, mode) as file:
                    file.write(self.after.encode())
        except OSError as error:
            raise SettingsError(f"Cannot write {self.path} ({error.strerror or error}). Nothing was changed.") from None


def plan_edit(path: Path, before: str | None, old: ConfigText, new: ConfigText) -> Edit:
    """Plan the edit from one document to another. A file of which nothing remains is removed."""
    if new.text == old.text:
        return Edit(path, before, before)
    return Edit(path, before, new.text if new.text.strip("\ufeff \t\r\n") not in ("", "{}") else None)


class InstallRecord(NamedTuple):
    """What a file said before our entries were added, and which these are. Uninstalling the last one restores it."""

    before: str | None
    after_hash: str
    """Hash of the text that mulligan wrote. Another text means that the file was edited since."""
    entries: frozenset[str]
    folders: tuple[str, ...] = ()
    """Folders that mulligan created for the file, innermost first."""


def _record_path(path: Path) -> Path:
    return hook_folder().with_name("installed") / f"{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]}.json"


def _hash(text: str | None) -> str:
    return hashlib.sha256((text or "").encode()).hexdigest()


def _read_record(path: Path, text: str | None) -> InstallRecord | None:
    """Return the record of a file with this text, or None if there is none or the file was edited since."""
    try:
        fields = json.loads(_record_path(path).read_bytes())
        entries, folders = frozenset(fields["entries"]), tuple(fields["folders"])
        record = InstallRecord(fields["before"], fields["after_hash"], entries, folders)
    except (OSError, ValueError, KeyError, TypeError):
        return None  # uninstalling edits the text instead
    return record if record.after_hash == _hash(text) else None


def find_installed_files(ignored_entries: Set[str]) -> list[Path]:
    """Return the files that still contain other entries of ours than these, by the records of their installation."""
    paths = []
    for record_path in sorted(_record_path(Path()).parent.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # not a record
            fields = json.loads(record_path.read_bytes())
            path = Path(fields["file"])
            if set(fields["entries"]) - ignored_entries and path.exists():
                paths.append(path)
    return paths


def plan_restoration(edit: Edit, entries: Set[str]) -> Edit:
    """Return the edit that restores a file byte for byte, if these are all our entries and it was not edited since."""
    record = _read_record(edit.path, edit.before)
    return edit._replace(after=record.before) if record is not None and record.entries == entries else edit


def apply_installation(edit: Edit, added: Set[str], removed: Set[str]) -> None:
    """Write an edit that adds or removes our entries, and store what the file said before."""
    record = _read_record(edit.path, edit.before)
    record_path = _record_path(edit.path)
    entries: Set[str] = record.entries if record is not None else frozenset()
    # Without a record of an entry, the old text contains it, and restoring that text would not remove it.
    new_entries = (entries | added) - removed if removed <= entries else frozenset()
    new_record = {
        "file": str(edit.path.resolve()),
        "before": record.before if record is not None else edit.before,
        "after_hash": _hash(edit.after),
        "entries": sorted(new_entries),
        "folders": record.folders
        if record is not None
        else [str(folder) for folder in edit.path.resolve().parents if not folder.exists()],
    }
    try:
        if new_entries:
            record_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with replace_file(record_path) as file:
                file.write(json.dumps(new_record).encode())
    except OSError as error:
        raise SettingsError(
            f"Cannot write {record_path} ({error.strerror or error}), which stores the old text. Nothing was changed."
        ) from None
    edit.apply()
    if not new_entries:
        with contextlib.suppress(OSError):
            record_path.unlink(missing_ok=True)
            record_path.parent.rmdir()  # fails while other files have a record
        with contextlib.suppress(OSError):
            for folder in record.folders if record is not None and edit.after is None else ():
                os.rmdir(folder)  # fails if the folder has other files


@contextlib.contextmanager
def replace_file(path: Path, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """Open a file that takes this path, completely written, when the block ends. It is removed if the block raises.

    Symbolic links are followed, and an existing file keeps its permissions; `mode` applies to a new file. What is no
    regular file, such as a device or a pipe, is written to: a rename would destroy it.
    """
    try:
        existing_mode = path.stat().st_mode
    except FileNotFoundError:
        existing_mode = stat.S_IFREG | mode
    if not stat.S_ISREG(existing_mode):
        with path.open("wb") as file:
            yield file
        return
    target = path.resolve()
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, stat.S_IMODE(existing_mode))
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_text(path: Path) -> str | None:
    """Return the text of a settings file, or None if it does not exist."""
    try:
        if path.exists() and not path.is_file():
            raise SettingsError(f"{path} is not a regular file. Nothing was changed.")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise SettingsError(f"{path} is too large for a settings file. Nothing was changed.")
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(f"Cannot read {path} ({error.strerror or error}). Nothing was changed.") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 text ({error}). Fix it first; nothing was changed.") from None


def read_document(path: Path, file_format: str) -> tuple[str | None, ConfigText]:
    """Return the text of a settings file, None if it does not exist, and the parsed document."""
    text = read_text(path)
    try:
        document = FORMATS[file_format](text or "")
    except ConfigSyntaxError as error:
        name = _FORMAT_NAMES[file_format]
        raise SettingsError(f"{path} is not valid {name}: {error}. Fix it first; nothing was changed.") from None
    if not isinstance(document.value, dict):
        raise SettingsError(f"{path} is not a JSON object, so it is not a settings file. Nothing was changed.")
    return text, document
