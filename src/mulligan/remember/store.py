"""Store: the one interface between what happened and where it is kept, in four small protocols.

Synchronous. `append` is called from the recorder's thread only; everything else from any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from mulligan.events import AnyEvent
from mulligan.figures import Stats, StatsQuery
from mulligan.records import History, Precedent, Record, Run

LOCAL = "local"
"""The tenant of a store that has one user."""


class RunQuery(Record, frozen=True):
    """Which runs, the newest first. Times are UTC milliseconds; the clock is the asker's."""

    agent: str | None = None
    session: str | None = None
    since: int | None = None
    until: int | None = None
    limit: int = 20


class Question(Record, frozen=True):
    """What is known about a failure of this tool with this fingerprint?"""

    tool: str
    fingerprint: str
    run: str = ""
    """The run that asks: that it met the failure just now says nothing about what helps."""
    limit: int = 5


class Health(Record, frozen=True):
    """Whether a store can be used, and how much is in it."""

    where: str
    sound: bool
    runs: int = 0
    steps: int = 0
    note: str = ""


class Records(Protocol):
    def append(self, tenant: str, batch: Sequence[AnyEvent], journal: str, offset: int) -> int:
        """Keeps a batch and answers how many of its records were new.

        A batch is known by its journal and the offset at its end: one that was kept before changes nothing.
        """

    def offset(self, tenant: str, journal: str) -> int:
        """Up to where this journal is kept; 0 if nothing of it is."""

    def runs(self, tenant: str, query: RunQuery) -> list[History]: ...

    def run(self, tenant: str, id: str) -> History | None: ...

    def find(self, tenant: str, prefix: str, limit: int = 5) -> list[Run]:
        """The runs whose id starts so, the newest first."""

    def export(self, tenant: str, since: int = 0) -> Iterator[History]:
        """Every run begun since then, the oldest first."""

    def forget(self, tenant: str, run: str) -> bool:
        """Removes a run and all that was kept of it; whether there was one."""

    def health(self, tenant: str) -> Health: ...

    def close(self) -> None: ...


class Memory(Protocol):
    def recall(self, tenant: str, question: Question) -> list[Precedent]:
        """What overcame the same failure before, the most often first. Nothing is a good answer."""


class Figures(Protocol):
    def stats(self, tenant: str, query: StatsQuery) -> Stats:
        """What `figures.stats` would answer of everything that was ever kept, and not forgotten."""


class Shelf(Protocol):
    def get(self, tenant: str, kind: str, key: str) -> bytes | None: ...

    def put(self, tenant: str, kind: str, key: str, value: bytes) -> None: ...


@runtime_checkable
class Store(Records, Memory, Figures, Shelf, Protocol):
    """Everything a place to keep failures must do; `tests/contract/test_store.py` says it in tests."""
