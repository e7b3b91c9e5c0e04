"""What is kept of a coding agent's session beside its failures: where it is, and how far it has been read."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from mulligan.records import digest

KIND = "hook"
"""What it is called on the shelf, under the id of the session."""
SESSION = "session"
"""What its failures are called there: the same as those of any other session."""
_LETTERS = b"abcdefghijklmnopqrstuvwxyz234567"


class State(msgspec.Struct, omit_defaults=True):
    """One session of an agent."""

    IDS: ClassVar[int] = 200
    BATCHES: ClassVar[int] = 20
    """How many calls, and batches of them, are known again."""

    agent: str
    folder: str = ""
    run: str = ""
    """The run that the session is."""
    started: int = 0
    at: int = 0
    """When something was last heard of it. UTC milliseconds."""
    seq: int = 0
    """Steps so far."""
    read: int = 0
    """Bytes of the lines of its first stage that have been read."""
    ids: list[str] = []
    """The latest calls, and whether they worked."""
    batches: list[str] = []
    """The latest batches, by the ids of their calls."""
    compacted: int = 0
    compacted_at: tuple[int, int] = (0, 0)
    """When its conversation was last made shorter: by the clock, and by steps and turns."""

    def run_of(self, session: str) -> str:
        """The id of its run, the same in every process. Runs in one folder end alike: `place`."""
        return f"{beginning_of(self.agent, session)}{self.place}"

    @property
    def place(self) -> str:
        """By what the ids of runs in this folder end."""
        return _letters(self.folder, 6)


def beginning_of(agent: str, session: str) -> str:
    """How the id of the run begins that a session of an agent is, in whatever folder."""
    return f"run_{_letters(f'{agent} {session}', 10)}"


def _letters(text: str, count: int) -> str:
    return bytes(_LETTERS[byte % 32] for byte in digest(text.encode("utf-8", "replace"), count)).decode()
