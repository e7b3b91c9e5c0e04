"""Reader for Aider's chat history, `.aider.chat.history.md` in the folder of a project.

It holds the edits that the model wrote, which of them were applied, and errors of the model. It holds no output of
commands and tests, and no times but the start of a session.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from mulligan.core.records import History
from mulligan.transcripts.log_lines import LogLines
from mulligan.transcripts.run_builder import ReaderState, RunBuilder, to_milliseconds

NAME = "aider"
FILE_NAME = ".aider.chat.history.md"
TOOL = "edit"
_START = "# aider chat started at "
_MISMATCH = re.compile(r"## SearchReplaceNoExactMatch: This SEARCH block failed to exactly match lines in (.+)")
_APPLIED = re.compile(r"> Applied edit to (.+)")
_MODEL = re.compile(r"> (?:Main model|Model): (\S+)")
_VERSION = re.compile(r"> Aider v(\S+)")
_MODEL_ERROR = re.compile(r"> (litellm\.\w+: .+)")
_SEARCH, _DIVIDER, _REPLACE = (re.compile(pattern) for pattern in (r"<{5,9} SEARCH", r"={5,9}$", r">{5,9} REPLACE"))


class _WrittenEdit(NamedTuple):
    path: str
    old: str
    new: str


def recognizes(head: bytes) -> bool:
    return head.lstrip().startswith(_START.encode())


def find_logs(environ: Mapping[str, str], home: Path) -> list[Path]:
    return [Path(environ.get("AIDER_CHAT_HISTORY_FILE") or FILE_NAME).expanduser().absolute()]


def read(lines: LogLines, state: ReaderState) -> Iterator[History]:
    session: _AiderSession | None = None
    text = (lines.read_all() or b"").decode("utf-8", "replace")
    for line in map(str.rstrip, text.split("\n")):  # an empty line may be part of an edit
        state.line_count += 1
        if line.startswith(_START):
            if session is not None:
                yield from session.run.build_histories()
            session = _AiderSession(
                RunBuilder(state, NAME, f"{line[len(_START) :]} {lines.path.absolute().parent.name}")
            )
            session.run.set_project(str(lines.path.absolute().parent))
            session.run.note_time(to_milliseconds(line[len(_START) :]))
        elif session is not None:
            session.add_line(line)
    if session is not None:
        yield from session.run.build_histories()


class _AiderSession:
    def __init__(self, run: RunBuilder) -> None:
        self.run = run
        self._requested: list[_WrittenEdit] = []
        """Edits that the model wrote and that are neither applied nor refused yet."""
        self._refused_path = ""
        """File of the refused edit that follows, as Aider repeats it for the model."""
        self._last_text = ""
        """Last line of text. Before an edit, it is the path of the file."""
        self._block: tuple[str, list[str], list[str]] | None = None
        self._is_replacement = False

    def add_line(self, line: str) -> None:
        if self._block is not None:
            self._add_block_line(self._block, line)
        elif _SEARCH.match(line):
            self._block, self._is_replacement = (self._refused_path or self._last_text, [], []), False
        elif match := _MISMATCH.match(line):
            self._refused_path = match[1]
        elif match := _APPLIED.match(line):
            for edit in [edit for edit in self._requested if edit.path == match[1]]:
                self._end_call(edit, None)
        elif match := _MODEL_ERROR.match(line):
            self.run.model_failed(match[1], self.run.started)
        elif match := _MODEL.match(line):
            self.run.model = match[1]
        elif match := _VERSION.match(line):
            self.run.version = match[1]
        elif line.startswith("#### "):
            self.run.set_context(line[5:])
            self._requested.clear()
        elif line and not line.startswith(("```", ">")):
            self._last_text = line.strip("`* ")

    def _add_block_line(self, block: tuple[str, list[str], list[str]], line: str) -> None:
        path, old, new = block
        if _REPLACE.match(line):
            self._block = None
            self._add_edit(_WrittenEdit(path, "\n".join(old), "\n".join(new)))
        elif _DIVIDER.match(line) and not self._is_replacement:
            self._is_replacement = True
        else:
            (new if self._is_replacement else old).append(line)

    def _add_edit(self, edit: _WrittenEdit) -> None:
        if self._refused_path:
            self._end_call(edit, f"This SEARCH block failed to exactly match lines in {edit.path}")
            self._refused_path = ""
            return
        self.run.model_answered(self.run.started)
        self._requested.append(edit)

    def _end_call(self, edit: _WrittenEdit, error: str | None) -> None:
        if edit in self._requested:
            self._requested.remove(edit)
        arguments = {"path": edit.path, "old_string": edit.old, "new_string": edit.new}
        id = f"edit {self.run.calls}"
        self.run.start_call(id, TOOL, arguments, self.run.started)
        self.run.end_call(id, error or "", error is not None, self.run.started)
