"""State of a coding agent's session in the key-value store, next to its failures."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from mulligan.records import digest

KIND = "hook"
"""Key-value kind of this state. The key is the session id."""
SESSION = "session"
"""Key-value kind of a session's failures, the same for all sessions."""
_LETTERS = b"abcdefghijklmnopqrstuvwxyz234567"


class State(msgspec.Struct, omit_defaults=True):
    """State of one session."""

    IDS: ClassVar[int] = 200
    BATCHES: ClassVar[int] = 20
    """Number of recent calls and batches that are recognized as duplicates."""

    agent: str
    folder: str = ""
    run: str = ""
    """Id of the session's run."""
    started: int = 0
    at: int = 0
    """Time of the last event in UTC milliseconds."""
    seq: int = 0
    """Number of steps so far."""
    read: int = 0
    """Offset in the file of successful calls."""
    ids: list[str] = []
    """Recent call ids, each with whether it succeeded."""
    batches: list[str] = []
    """Recent batches, by the ids of their calls."""
    compacted: int = 0
    compacted_at: tuple[int, int] = (0, 0)
    """Step and turn of the last compaction; `compacted` is its time in UTC milliseconds."""

    def run_of(self, session: str) -> str:
        """Build the run id, the same in every process. Runs in one folder share `folder_suffix`."""
        return f"{beginning_of(self.agent, session)}{self.place}"

    @property
    def place(self) -> str:
        """Suffix of all run ids in this folder."""
        return _letters(self.folder, 6)


def beginning_of(agent: str, session: str) -> str:
    """Return the start of a session's run id, without the folder."""
    return f"run_{_letters(f'{agent} {session}', 10)}"


def _letters(text: str, count: int) -> str:
    return bytes(_LETTERS[byte % 32] for byte in digest(text.encode("utf-8", "replace"), count)).decode()
