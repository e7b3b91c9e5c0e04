"""State of a coding agent's session in the key-value store, next to its failures."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from mulligan.core.records import digest

HOOK_STATE_KIND = "hook"
"""Key-value kind of this state. The key is the session id."""
SESSION_KIND = "session"
"""Key-value kind of a session's failures, the same for all sessions."""
_LETTERS = b"abcdefghijklmnopqrstuvwxyz234567"


class HookState(msgspec.Struct, omit_defaults=True):
    """State of one session."""

    MAX_CALL_IDS: ClassVar[int] = 200
    MAX_BATCHES: ClassVar[int] = 20
    """Number of recent calls and batches that are recognized as duplicates."""

    agent: str
    folder: str = ""
    run: str = ""
    """Id of the session's run."""
    started_at: int = 0
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

    def build_run_id(self, session: str) -> str:
        """Build the run id, the same in every process. Runs in one folder share `folder_suffix`."""
        return f"{run_id_prefix(self.agent, session)}{self.folder_suffix}"

    @property
    def folder_suffix(self) -> str:
        """Suffix of all run ids in this folder."""
        return _digest_letters(self.folder, 6)


def run_id_prefix(agent: str, session: str) -> str:
    """Return the start of a session's run id, without the folder."""
    return f"run_{_digest_letters(f'{agent} {session}', 10)}"


def _digest_letters(text: str, count: int) -> str:
    return bytes(_LETTERS[byte % 32] for byte in digest(text.encode("utf-8", "replace"), count)).decode()
