"""What a scan of session logs found, as records: in figures and in texts that anybody may see."""

from __future__ import annotations

from mulligan.records import Record


class AgentFound(Record, frozen=True):
    """What was read of one agent."""

    agent: str
    sessions: int
    calls: int
    failures: int


class KindFound(Record, frozen=True):
    """A kind of failure, and where it happens most."""

    kind: str
    remedy: str
    failures: int
    overcome: int
    again: int
    tool: str


class ToolFound(Record, frozen=True):
    tool: str
    calls: int
    failures: int
    overcome: int
    seconds: float
    """Spent in its failures."""


class PatternFound(Record, frozen=True):
    """Failures of one tool that are the same failure."""

    tool: str
    kind: str
    fingerprint: str
    message: str
    failures: int
    sessions: int
    overcome: int
    again: int
    first: int
    last: int

    @property
    def given_up(self) -> int:
        return self.failures - self.overcome


class FixFound(Record, frozen=True):
    """What overcame a kind of failure of a tool, and how often."""

    tool: str
    kind: str
    fix: str
    worked: int
    failures: int
    """Of this kind and tool, however they ended."""
    before: str = ""
    after: str = ""


class SpiralFound(Record, frozen=True):
    """The same failure again and again in one session."""

    run: str
    agent: str
    project: str
    started: int
    tool: str
    kind: str
    message: str
    failures: int
    seconds: float
    """From its first failure to its last, pauses left out."""
    ended: str
    """What ended it, or nothing if it was never overcome."""


class DayFound(Record, frozen=True):
    day: str
    calls: int
    overcome: int
    given_up: int


class Findings(Record, frozen=True):
    """All of it. A call that failed and worked at a later attempt is one failure, overcome."""

    sessions: int = 0
    compacted: int = 0
    """Sessions whose conversation was compacted."""
    calls: int = 0
    failures: int = 0
    overcome: int = 0
    again: int = 0
    """Failures that had been met before a compaction, and were met again after it."""
    seconds: float = 0.0
    """In failed calls, and in thinking what to do next."""
    refused: int = 0
    """By the user: no failures."""
    cancelled: int = 0
    """Stopped, or not made because a sibling had failed: no failures."""
    before: tuple[int, int] = (0, 0)
    """Calls and failures before the first compaction, in sessions that have one."""
    after: tuple[int, int] = (0, 0)
    first: int = 0
    last: int = 0
    agents: tuple[AgentFound, ...] = ()
    kinds: tuple[KindFound, ...] = ()
    tools: tuple[ToolFound, ...] = ()
    patterns: tuple[PatternFound, ...] = ()
    fixes: tuple[FixFound, ...] = ()
    spirals: tuple[SpiralFound, ...] = ()
    days: tuple[DayFound, ...] = ()
    undated: int = 0
    """Failures of which the log does not say when."""

    @property
    def given_up(self) -> int:
        return self.failures - self.overcome
