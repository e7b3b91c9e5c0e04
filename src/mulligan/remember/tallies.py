"""Pattern counters in a database, updated incrementally by the changes of each batch."""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable
from typing import Any

import msgspec

from mulligan.records import Run, Step, pattern_id
from mulligan.remember import bodies
from mulligan.remember.connection import Connection, Insert, Lookup
from mulligan.remember.patterns import day_of, order_of, worded

id_of = functools.lru_cache(maxsize=10_000)(pattern_id)


def size_of(count: int) -> int:
    """Return the size class of a number: its digit count and first digit. It never decreases as the number grows."""
    digits = str(max(count, 0))
    return 10 * len(digits) + int(digits[0])


SIZE = "10 * length(CAST(count AS TEXT)) + CAST(substr(CAST(count AS TEXT), 1, 1) AS INTEGER)"
"""The same as an SQL expression."""

AGENT = Insert.of(
    "pattern_agents",
    "tenant id agent count",
    "ON CONFLICT (tenant, id, agent) DO UPDATE SET count = pattern_agents.count + excluded.count",
)
_DAY = Insert.of(
    "pattern_days",
    "tenant day id count overcome size",
    "ON CONFLICT (tenant, day, id) DO UPDATE "
    "SET count = pattern_days.count + excluded.count, overcome = pattern_days.overcome + excluded.overcome",
)
_MET = Insert.instead("met", "tenant pattern started run kind", "count")
_PATTERN = Insert.of(
    "patterns",
    "tenant id tool fingerprint kind server message template count overcome runs first first_run first_seq last",
)
_KNOWN_MET = Lookup.of("met", "tenant pattern started run", "kind count")
_KNOWN = Lookup.of("patterns", "tenant id", "first first_run first_seq count")

Met = dict[tuple[str, int, str, str], int]
"""Occurrences of a pattern in a run, by pattern id, start of the run, run id and kind of the failure."""


class Seen(msgspec.Struct, frozen=True):
    """A failed attempt to add to the counters, or to subtract."""

    run: Run
    step: Step
    is_overcome: bool
    sign: int


class Sum:
    """The change of one pattern's counters."""

    def __init__(self, first: Step) -> None:
        self.count = self.overcome = 0
        self.days: dict[int, list[int]] = {}
        self.agents: dict[str, int] = {}
        self.first: Step | None = None
        self.last = first.started
        self.name, self.fingerprint = first.name, first.failure.fingerprint if first.failure else ""

    def add(self, seen: Seen) -> None:
        step, sign = seen.step, seen.sign
        overcome = sign * seen.is_overcome
        self.count += sign
        self.overcome += overcome
        day = self.days.setdefault(day_of(step.started), [0, 0])
        day[0] += sign
        day[1] += overcome
        self.agents[seen.run.agent] = self.agents.get(seen.run.agent, 0) + sign
        if sign > 0:
            self.last = max(self.last, step.started)
            if self.first is None or order_of(step) < order_of(self.first):
                self.first = step


def add(writer: Connection, tenant: str, changes: Iterable[Seen], begun: Container[str] = frozenset()) -> set[str]:
    """Apply changes. Return the ids of patterns without remaining occurrences. `new_runs` have no stored rows yet."""
    sums, met = summed(changes)
    fresh = {place: count for place, count in met.items() if count > 0 and place[2] in begun}
    runs = _add_met(writer, tenant, {place: count for place, count in met.items() if place not in fresh})
    writer.put(_MET, [(tenant, *place, count) for place, count in fresh.items()])
    for id, _ in {(id, run) for id, _, run, _ in fresh}:
        runs[id] = runs.get(id, 0) + 1
    return keep(writer, tenant, sums, runs)


def summed(changes: Iterable[Seen]) -> tuple[dict[str, Sum], Met]:
    """Return the change of each pattern, and the change of its occurrences by run."""
    sums: dict[str, Sum] = {}
    met: Met = {}
    for seen in changes:
        failure = seen.step.failure
        assert failure is not None
        id = id_of(seen.step.name, failure.fingerprint) if failure.fingerprint else ""
        if id:
            if id not in sums:
                sums[id] = Sum(seen.step)
            sums[id].add(seen)
        place = (id, seen.run.started, seen.run.id, str(failure.kind))
        met[place] = met.get(place, 0) + seen.sign
    return sums, met


def keep(writer: Connection, tenant: str, sums: dict[str, Sum], runs: dict[str, int]) -> set[str]:
    """Add changes to the pattern rows, and to their run counts. Return the ids of patterns without occurrences."""
    known = {id: kept for _, id, *kept in writer.look_up(_KNOWN, [(tenant, id) for id in sums])}
    new: list[tuple[Any, ...]] = []
    more: list[tuple[Any, ...]] = []
    gone: set[str] = set()
    for id, sum in sums.items():
        count, met = sum.count, runs.get(id, 0)
        *first, before = known.get(id, (None, 0))
        if before + count <= 0 or (id not in known and sum.first is None):
            gone.add(id)
        elif id not in known and sum.first is not None:
            about = _about(sum.first)
            told = (sum.name, sum.fingerprint, *about[:4], count, sum.overcome, met, *about[4:], sum.last)
            new.append((tenant, id, *told))
        elif count or sum.overcome or met:
            more.append((count, sum.overcome, met, sum.last, sum.last, tenant, id))
        if id in known and id not in gone and sum.first is not None and order_of(sum.first) < tuple(first):
            _set_first(writer, tenant, id, sum.first)
    writer.put(_PATTERN, new)
    if more:
        writer.executemany(
            "UPDATE patterns SET count = count + ?, overcome = overcome + ?, runs = runs + ?, "
            "last = CASE WHEN last < ? THEN ? ELSE last END WHERE tenant = ? AND id = ?",
            more,
        )
    if left := [(tenant, id) for id in gone if id in known]:
        writer.executemany("DELETE FROM patterns WHERE tenant = ? AND id = ?", left)
    _add_parts(writer, tenant, sums)
    return gone


def _add_met(writer: Connection, tenant: str, met: Met) -> dict[str, int]:
    """Add occurrences by run. Return the change of each pattern's run count."""
    more: dict[str, int] = {}
    changed = {place: count for place, count in met.items() if count}
    known: dict[tuple[str, int, str], dict[str, int]] = {place[:3]: {} for place in changed}
    for _, *place, kind, count in writer.look_up(_KNOWN_MET, [(tenant, *place) for place in known]):
        known[tuple(place)][kind] = count
    rows: list[tuple[Any, ...]] = []
    gone: list[tuple[Any, ...]] = []
    for (id, started, run, kind), count in changed.items():
        kinds = known[id, started, run]
        left = kinds.get(kind, 0) + count
        if left > 0:
            more[id] = more.get(id, 0) + (not kinds)
            kinds[kind] = left
            rows.append((tenant, id, started, run, kind, left))
        else:
            more[id] = more.get(id, 0) - (set(kinds) == {kind})
            kinds.pop(kind, None)
            gone.append((tenant, id, started, run, kind))
    writer.put(_MET, rows)
    if gone:
        writer.executemany(
            "DELETE FROM met WHERE tenant = ? AND pattern = ? AND started = ? AND run = ? AND kind = ?", gone
        )
    return more


def _about(first: Step) -> tuple[Any, ...]:
    """Return the columns that describe a pattern by its first failure: kind, server, message, template and position."""
    return (str(first.failure.kind) if first.failure else "", first.server, *worded(first), *order_of(first))


def _set_first(writer: Connection, tenant: str, id: str, first: Step) -> None:
    writer.execute(
        "UPDATE patterns SET kind = ?, server = ?, message = ?, template = ?, first = ?, first_run = ?, first_seq = ? "
        "WHERE tenant = ? AND id = ?",
        (*_about(first), tenant, id),
    )


def _add_parts(writer: Connection, tenant: str, sums: dict[str, Sum]) -> None:
    _add_days(writer, tenant, sums)
    agents = [(tenant, id, agent, count) for id, sum in sums.items() for agent, count in sum.agents.items() if count]
    writer.put(AGENT, agents)
    if less := [(tenant, id, agent) for _, id, agent, count in agents if count < 0]:
        writer.executemany("DELETE FROM pattern_agents WHERE tenant = ? AND id = ? AND agent = ? AND count <= 0", less)


def _add_days(writer: Connection, tenant: str, sums: dict[str, Sum]) -> None:
    days = [
        (tenant, day, id, count, overcome)
        for id, sum in sums.items()
        for day, (count, overcome) in sum.days.items()
        if count or overcome
    ]
    writer.put(_DAY, [(*day, size_of(day[3])) for day in days])
    # A separate statement, because the size class rarely changes: then its index is not written.
    writer.executemany(
        f"UPDATE pattern_days SET size = {SIZE} WHERE tenant = ? AND day = ? AND id = ? AND size <> {SIZE}",
        [day[:3] for day in days],
    )
    if less := [(tenant, day, id) for _, day, id, count, _ in days if count < 0]:
        writer.executemany("DELETE FROM pattern_days WHERE tenant = ? AND day = ? AND id = ? AND count <= 0", less)


def add_days(writer: Connection, tenant: str, changes: Iterable[Seen]) -> None:
    """Add to the daily counters only. All other pattern data covers pruned rows, too, and is more complete."""
    sums: dict[str, Sum] = {}
    for seen in changes:
        if seen.step.failure is not None and seen.step.failure.fingerprint:
            id = id_of(seen.step.name, seen.step.failure.fingerprint)
            sums.setdefault(id, Sum(seen.step)).add(seen)
    _add_days(writer, tenant, sums)


def sum_days(writer: Connection, tenant: str) -> None:
    """Set the total counts of patterns to the sums of their days."""
    for column in ("count", "overcome"):
        writer.execute(
            f"UPDATE patterns SET {column} = (SELECT coalesce(sum(d.{column}), 0) FROM pattern_days d "
            "WHERE d.tenant = patterns.tenant AND d.id = patterns.id) WHERE tenant = ?",
            (tenant,),
        )


def refresh(writer: Connection, tenant: str, id: str) -> None:
    """Find the first and last failure of a pattern again, after some of its failures were removed or changed."""
    known = writer.execute(
        "SELECT tool, fingerprint FROM patterns WHERE tenant = ? AND id = ?", (tenant, id)
    ).fetchone()
    if known is None:
        return
    where = "FROM steps WHERE tenant = ? AND name = ? AND fingerprint = ?"
    (first, last) = writer.execute(f"SELECT min(started), max(started) {where}", (tenant, *known)).fetchone()
    if first is None:
        return  # the remaining occurrences are older than the rows
    rows = writer.execute(f"SELECT body {where} AND started = ?", (tenant, *known, first))
    steps = [bodies.read(body, Step) for (body,) in rows]
    writer.execute("UPDATE patterns SET last = ? WHERE tenant = ? AND id = ?", (last, tenant, id))
    _set_first(writer, tenant, id, min(steps, key=order_of))
