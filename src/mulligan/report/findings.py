"""Findings of a session log scan as records: counts, and texts without secrets."""

from __future__ import annotations

from mulligan.core.records import Record


class AgentFinding(Record, frozen=True):
    """Counts of one agent."""

    agent: str
    sessions: int
    calls: int
    failures: int


class KindFinding(Record, frozen=True):
    """Counts of one kind of failure, and the tool where it is most frequent."""

    kind: str
    remedy: str
    failures: int
    recovered: int
    repeats_after_compaction: int
    tool: str


class ToolFinding(Record, frozen=True):
    tool: str
    calls: int
    failures: int
    recovered: int
    failure_seconds: float
    """Time spent in failed calls of this tool."""


class PatternFinding(Record, frozen=True):
    """Failures of one tool with one fingerprint."""

    tool: str
    kind: str
    fingerprint: str
    message: str
    failures: int
    sessions: int
    recovered: int
    repeats_after_compaction: int
    first_seen_at: int
    last_seen_at: int

    @property
    def unrecovered(self) -> int:
        return self.failures - self.recovered


class FixFinding(Record, frozen=True):
    """How failures of one kind recovered for one tool, and how often."""

    tool: str
    kind: str
    action: str
    successes: int
    failures: int
    """All failures of this kind and tool, recovered or not."""
    before: str = ""
    after: str = ""


class SpiralFinding(Record, frozen=True):
    """One strategy that failed repeatedly in one session."""

    run: str
    agent: str
    project: str
    started_at: int
    tool: str
    kind: str
    message: str
    failures: int
    duration_seconds: float
    """Time from the first to the last failure, without pauses."""
    recovered_by: str
    """How the last failure recovered; empty if it did not."""


class DayFinding(Record, frozen=True):
    day: str
    calls: int
    recovered: int
    unrecovered: int


class Findings(Record, frozen=True):
    """All findings of a scan. A call that failed and succeeded at a later attempt is one recovered failure."""

    sessions: int = 0
    compacted_sessions: int = 0
    """Sessions whose conversation was compacted."""
    calls: int = 0
    failures: int = 0
    recovered: int = 0
    repeats_after_compaction: int = 0
    """Failures that occurred before a compaction and again after it."""
    failure_seconds: float = 0.0
    """Time in failed calls and between each of them and the next call."""
    user_rejected: int = 0
    """Calls rejected by the user; not counted as failures."""
    cancelled: int = 0
    """Calls cancelled, or skipped because a concurrent call failed; not counted as failures."""
    before_compaction: tuple[int, int] = (0, 0)
    """Number of calls and failures before the first compaction, in sessions that have one."""
    after_compaction: tuple[int, int] = (0, 0)
    first_seen_at: int = 0
    last_seen_at: int = 0
    agents: tuple[AgentFinding, ...] = ()
    kinds: tuple[KindFinding, ...] = ()
    tools: tuple[ToolFinding, ...] = ()
    patterns: tuple[PatternFinding, ...] = ()
    fixes: tuple[FixFinding, ...] = ()
    spirals: tuple[SpiralFinding, ...] = ()
    days: tuple[DayFinding, ...] = ()
    undated: int = 0
    """Failures without a timestamp in the log."""

    @property
    def unrecovered(self) -> int:
        return self.failures - self.recovered
