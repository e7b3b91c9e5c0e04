"""Either side of a copy: a database as tables of rows, whatever is in them.

Which tables there are is asked of the database, so that one that is added later is never left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from mulligan.store.tables import ORDERED

Row = tuple[Any, ...]
NUMBER = "rowid"
"""By what rows of a table are in the order in which they came, where that says something: `tables.ORDERED`."""
OWN = "copy"
"""What a store notes about the copy it is: no part of what is copied."""


class Table(NamedTuple):
    """A table, its columns in the order of their names, and by which of them a row is known."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    """Empty where rows have no name: such a table is small, and compared as a whole."""

    @property
    def is_ordered(self) -> bool:
        """Whether it counts in which order its rows came."""
        return self.name in ORDERED

    def unnumbered(self) -> Table:
        return self._replace(columns=tuple(name for name in self.columns if name != NUMBER))


class Side(Protocol):
    """What a copy needs of either side. It is opened for one copy, by one thread."""

    where: str
    """For people: no password."""

    def tables(self) -> dict[str, Table]: ...

    def tenants(self) -> list[str]:
        """Those of whom there is anything; "" has what belongs to the store as a whole."""

    def count(self, table: Table, tenant: str) -> int: ...

    def rows(self, table: Table, tenant: str, order: Sequence[str]) -> Iterator[Row]:
        """In the order of these columns, as bytes are ordered; what a copy notes for itself is left out."""

    def put(self, table: Table, rows: Iterable[Row], gone: Sequence[Row] = ()) -> None:
        """Removes the rows of these keys, or those that are equal where a table has none, and keeps the others."""

    def note(self, tenant: str) -> str | None:
        """What was noted here about a copy."""

    def set_note(self, tenant: str, note: str) -> None: ...

    def shut(self) -> None:
        """Mark the store as an incomplete copy, so that only a copy opens it until `release`."""

    def is_shut(self) -> bool: ...

    def release(self) -> None: ...

    def close(self) -> None: ...


def where_of(table: Table) -> str:
    return f"tenant = ? AND key <> '{OWN}'" if table.name == "meta" else "tenant = ?"


def tenants_of(tables: Iterable[str], one: Callable[[str, Sequence[Any]], Any], mark: str) -> list[str]:
    """Whose rows there are. `one` answers with a single value; `mark` stands where a value goes."""
    found: set[str] = set()
    for name in tables:
        # One look at an index for each tenant, not for each row.
        tenant = one(f"SELECT min(tenant) FROM {name}", ())
        while tenant is not None:
            found.add(tenant)
            tenant = one(f"SELECT min(tenant) FROM {name} WHERE tenant > {mark}", (tenant,))
    return sorted(found)
