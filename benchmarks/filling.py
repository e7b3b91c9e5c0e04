"""A store of millions of calls, filled in bulk with the rows, sums and patterns its own writer would have kept.

A month of ten agents with twenty tools each, one call in twelve of which fails. Only 24 different hours are made; every
day has them in another order. So each row is known but for its hour and its times, which the database itself puts in,
and sums and patterns are counted once for each of the 24 and written once. `tests/test_filling.py` holds a small store
made so against one that was given the same calls one batch after another. What is learned from calls is left out.
"""

from __future__ import annotations

import csv
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mulligan.contract import counters
from mulligan.contract.counters import DAY, HOUR, Cells
from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import Change, History, Recovery, Run, Step, encode
from mulligan.core.run_links import derive_status, link_recoveries
from mulligan.learn import fixes
from mulligan.store import pattern_counts, rollups, rows
from mulligan.store.pattern_counts import CountedFailure, PatternDelta
from mulligan.store.rollups import RunSlice
from mulligan.store.sqlite import SqliteConnection, SqliteStore

AGENTS = 10
TOOLS = 20
"""Of each agent."""
CALLS = 10
"""In a run."""
NOW = 1_790_000_000_000 // DAY * DAY + 13 * HOUR - 1
"""An hour before noon or after it is the worst to ask about the last day: half of it is no whole day."""
DAYS = 30
FIRST = NOW // DAY * DAY - (DAYS - 1) * DAY
BLOCKS = 24
MARK = 7_000_000_000_000
"""Added to a time, so that it can be found in JSON."""

KINDS = (
    (Kind("tool", "timeout", Remedy.RETRY, TookEffect.UNKNOWN), 30.0),
    (Kind("tool", "rate_limit", Remedy.RETRY, TookEffect.NO), 0.05),
    (Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO), 0.01),
    (Kind("tool", "not_found", Remedy.REPLAN, TookEffect.NO), 0.1),
    (Kind("tool", "connection_error", Remedy.RETRY, TookEffect.UNKNOWN), 1.0),
    (Kind("tool", "auth_error", Remedy.STOP, TookEffect.NO), 0.08),
)
CLAMPED = (Change(path="top_k", operation="clamp", before=50, after=10),)
Sums = dict[tuple[str, str], counters.Cell]
"""By slice and value."""


class Hour(NamedTuple):
    number: int
    base: int
    """When it begins."""
    block: int


def hours(now: int = NOW, first: int = FIRST) -> Iterator[Hour]:
    """Every hour from the first day until now, and which of the made ones it is."""
    for number in range((now - first) // HOUR + 1):
        yield Hour(number, first + number * HOUR, (number * 7 + number // BLOCKS) % BLOCKS)


def run_id(hour: int, number: int) -> str:
    return f"run_{hour:06d}{number:010d}"


# Making an hour of calls, as if it began at 0


def history(chance: random.Random, place: int) -> History:
    agent = chance.randrange(AGENTS)
    started = chance.randrange(HOUR - 60_000)
    run = Run(
        id=run_id(0, place),
        agent=f"agent-{agent}",
        version=f"1.{chance.randrange(2)}",
        environment="production" if chance.random() < 0.8 else "staging",
        started_at=started,
        ended_at=started + 50_000,
        end_reason="finished" if chance.random() < 0.98 else "raised",
    )
    steps: list[Step] = []
    for each in range(CALLS):
        steps += call(chance, run, len(steps) + 1, agent, started + each * 4000)
    return History(run=run, steps=tuple(steps), links=tuple(link_recoveries(steps)))


def call(chance: random.Random, run: Run, seq: int, agent: int, started: int) -> Iterator[Step]:
    name = f"tool-{agent * TOOLS + min(int(chance.expovariate(0.25)), TOOLS - 1):03d}"
    arguments = {"query": "the weather in the capital", "top_k": 10}
    seconds = round(chance.lognormvariate(-1.5, 0.8), 4)
    about: dict[str, Any] = {"run": run.id, "call": seq, "name": name, "started_at": started}
    if chance.random() >= 1 / 12:
        yield Step(seq=seq, arguments=arguments, result={"found": 3}, duration_seconds=seconds, **about)
        return
    kind, took = chance.choice(KINDS)
    # A tool fails in some ways often and in a few seldom, and in the same ways however much it is called.
    which = min(int(chance.expovariate(0.5)), 11)
    failure = Failure.of(kind, "the service said no", fingerprint=f"1:{kind.code[:4]}{which:02d}")
    yield Step(
        seq=seq,
        arguments={**arguments, "top_k": 50},
        outcome="failure",
        failure=failure,
        duration_seconds=took,
        **about,
    )
    if kind.remedy in (Remedy.RETRY, Remedy.REPAIR):
        again = Recovery(remedy=kind.remedy, backoff_seconds=0.5)
        if kind.remedy is Remedy.REPAIR:
            again = Recovery(remedy=kind.remedy, changes=CLAMPED, source="schema", confidence=0.9)
        worked = chance.random() < 0.7
        about |= {"attempt": 2, "recovery": again, "arguments": arguments}
        if worked:
            yield Step(seq=seq + 1, duration_seconds=seconds, **about)
        else:
            yield Step(seq=seq + 1, outcome="failure", failure=failure, duration_seconds=took, **about)


def moved(history: History, hour: Hour) -> History:
    """The same, in an hour of the month."""
    id = history.run.id.replace(run_id(0, 0)[:10], run_id(hour.number, 0)[:10])
    run = msgspec.structs.replace(
        history.run,
        id=id,
        started_at=hour.base + history.run.started_at,
        ended_at=hour.base + (history.run.ended_at or 0),
    )
    return History(
        run=run,
        steps=tuple(_moved(step, id, hour.base) for step in history.steps),
        links=tuple(msgspec.structs.replace(link, run=id) for link in history.links),
    )


def _moved(step: Step, run: str, base: int) -> Step:
    return msgspec.structs.replace(step, run=run, started_at=base + step.started_at)


# Rows without their hour

SHAPES = {
    "steps": "block, run, seq, call, name, outcome, kind, fingerprint, started, body",
    "runs": "block, run, agent, session, started, ended, head, middle, tail, version, environment, status, plain",
    "links": "block, run, failed, name, fingerprint, head, recovering_call",
    "run_callees": "block, name, started, run",
    "run_failures": "block, pattern, started, run, kind, count",
}
ID = "'run_' || h.prefix || t.run"
MOVE = {
    "steps": f"'{DEFAULT_TENANT}', {ID}, seq, call, name, outcome, kind, fingerprint, base + started, "
    "CAST(body AS BLOB)",
    "runs": f"'{DEFAULT_TENANT}', {ID}, agent, session, base + started, CAST('{{\"id\":\"run_' || prefix || head || "
    "(base + started) || middle || (base + ended) || tail AS BLOB), version, environment, status, base + started, 0, "
    f"plain, '{fixes.LOCAL_PRINCIPAL}', 0",
    "links": f"'{DEFAULT_TENANT}', {ID}, failed, name, fingerprint, "
    'CAST(\'{"run":"run_\' || prefix || head AS BLOB), recovering_call',
    "run_callees": f"'{DEFAULT_TENANT}', 'tool', name, base + started, {ID}",
    "run_failures": f"'{DEFAULT_TENANT}', pattern, base + started, {ID}, kind, count",
}
"""A row of a table, from a row without its hour and from that hour."""


def _pieces(body: bytes, start: str, *times: int) -> list[str]:
    """JSON without its beginning and without its times: what is between them."""
    rest, pieces = body.decode(), []
    assert rest.startswith(start)
    rest = rest.removeprefix(start)
    for each in times:
        head, found, rest = rest.partition(str(MARK + each))
        assert found
        pieces.append(head)
    return [*pieces, rest]


class Block:
    """One hour: its calls, their rows without an hour, their sums and their patterns."""

    def __init__(self, chance: random.Random, number: int, size: int) -> None:
        self.number = number
        self.histories = [history(chance, place) for place in range(max(1, size // CALLS))]
        self.rows: dict[str, list[tuple[Any, ...]]] = {table: [] for table in SHAPES}
        seen: list[CountedFailure] = []
        counted: Cells = {}
        for made in self.histories:
            counters.add(counted, counters.cells(made))
            part = RunSlice.of_history(made)
            seen += (each for call in part.calls for each in part.to_counted_failures(call, 1))
            self._add_rows(made)
        self.sums: Sums = {}
        for place, cell in counted.items():
            for key in counters.slices(place).items():
                counters.merge(self.sums.setdefault(key, counters.Cell()), cell)
        self.packed = packed(self.sums)
        self.patterns, met = pattern_counts.sum_changes(seen)
        for (pattern, started, run, kind), count in met.items():
            self.rows["run_failures"].append((number, pattern, started, run[10:], kind, count))
        self.runs_of = Counter(pattern for pattern, _ in {(pattern, run) for pattern, _, run, _ in met})

    def _add_rows(self, made: History) -> None:
        run, number = made.run, self.number
        marked = msgspec.structs.replace(run, started_at=MARK + run.started_at, ended_at=MARK + (run.ended_at or 0))
        pieces = _pieces(encode(marked), '{"id":"run_000000', run.started_at, run.ended_at or 0)
        is_plain = not any(step.has_failed for step in made.steps)
        status = derive_status(run, made.steps, made.links)
        about = (run.agent, run.session, run.started_at, run.ended_at, *pieces, run.version, run.environment)
        self.rows["runs"].append((number, run.id[10:], *about, status, is_plain))
        for step in made.steps:
            _, id, *row, _, body = rows.step_row(DEFAULT_TENANT, _moved(step, run.id, MARK))
            self.rows["steps"].append((number, id[10:], *row, step.started_at, body.decode()))
        for link in made.links:
            failed = made.steps[link.failed_call - 1]
            fingerprint = failed.failure.fingerprint if failed.failure else ""
            (body,) = _pieces(encode(link), '{"run":"run_000000')
            self.rows["links"].append(
                (number, run.id[10:], link.failed_call, failed.name, fingerprint, body, link.recovering_call)
            )
        for name in {step.name for step in made.steps}:
            self.rows["run_callees"].append((number, name, run.started_at, run.id[10:]))

    def facts(self) -> Iterator[tuple[Any, ...]]:
        for made in self.histories:
            for step in made.steps:
                kind, fingerprint = rows.step_row(DEFAULT_TENANT, step)[6:8]
                yield (
                    self.number, step.name, step.outcome, kind, fingerprint, step.attempt, step.started_at,
                    step.duration_seconds,
                )  # fmt: skip


def packed(sums: Sums) -> list[tuple[str, str, bytes, bytes | None]]:
    return [(slice, value, *counters.pack(cell)) for (slice, value), cell in sums.items()]


class Filler:
    """Fills a store, which has its name only when it is complete."""

    def __init__(self, path: Path, calls: int, now: int = NOW, first: int = FIRST) -> None:
        self.path, self.hours = path, list(hours(now, first))
        chance = random.Random(20)
        self.blocks = [Block(chance, number, calls // len(self.hours)) for number in range(BLOCKS)]
        self.calls = sum(len(self.blocks[hour.block].histories) * CALLS for hour in self.hours)

    def fill(self, show: Callable[[str], None] = lambda text: None) -> None:
        part = self.path.with_suffix(".part")
        for left in self.path.parent.glob(f"{part.name}*"):
            left.unlink()
        SqliteStore(part).close()
        connection = sqlite3.connect(part, isolation_level=None, factory=SqliteConnection)
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-1000000", "temp_store=MEMORY"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        # What is looked up by is made at the end, in order, and not row by row.
        indices = connection.execute(
            "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"
        ).fetchall()
        for name, _ in indices:
            connection.execute(f"DROP INDEX {name}")
        connection.execute("BEGIN")
        self._put_templates(connection)
        self._put_rows(connection, show)
        show("  sums and patterns")
        self._put_sums(connection)
        self._put_patterns(connection)
        for name, sql in indices:
            show(f"  index {name}")
            connection.execute(sql)
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode=WAL").fetchall()
        connection.close()
        part.rename(self.path)

    def _put_templates(self, connection: SqliteConnection) -> None:
        for table, columns in SHAPES.items():
            connection.execute(f"CREATE TEMP TABLE made_{table} ({columns})")
            marks = ", ".join("?" * (columns.count(",") + 1))
            every: Iterable[Any] = (row for block in self.blocks for row in block.rows[table])
            connection.executemany(f"INSERT INTO made_{table} VALUES ({marks})", every)
        for table in ("steps", "runs", "links", "run_failures"):
            connection.execute(f"CREATE INDEX temp.{table}_of ON made_{table} (block)")
        connection.execute("CREATE INDEX temp.run_callees_of ON made_run_callees (block, name, started, run)")
        connection.execute("CREATE TEMP TABLE hours (number, base, block, prefix)")
        connection.executemany(
            "INSERT INTO hours VALUES (?, ?, ?, ?)", [(*hour, run_id(hour.number, 0)[4:10]) for hour in self.hours]
        )

    def _put_rows(self, connection: sqlite3.Connection, show: Callable[[str], None]) -> None:
        began = time.monotonic()
        for start in range(0, len(self.hours), BLOCKS):
            for table in ("steps", "runs", "links"):
                connection.execute(
                    f"INSERT INTO main.{table} SELECT {MOVE[table]} FROM hours h CROSS JOIN made_{table} t "
                    "ON t.block = h.block WHERE h.number >= ? AND h.number < ?",
                    (start, start + BLOCKS),
                )
            done, spent = min((start + BLOCKS) / len(self.hours), 1.0), time.monotonic() - began
            show(f"  {done * self.calls:,.0f} calls kept in {spent:.0f} s, about {spent / done - spent:.0f} s to go")
        names = "(SELECT DISTINCT name AS of FROM made_run_callees ORDER BY name)"
        connection.execute(
            f"INSERT INTO main.run_callees SELECT {MOVE['run_callees']} FROM {names} CROSS JOIN hours h CROSS "
            f"JOIN made_run_callees t "
            "ON t.block = h.block AND t.name = of"
        )
        connection.execute(
            f"INSERT INTO main.run_failures SELECT {MOVE['run_failures']} FROM hours h CROSS "
            f"JOIN made_run_failures t ON t.block = h.block "
            "ORDER BY 2, 3, 4, 5"
        )

    def _put_sums(self, connection: SqliteConnection) -> None:
        days: dict[int, Sums] = {}
        hourly = [(hour.base, self.blocks[hour.block].packed) for hour in self.hours]
        whole: dict[tuple[int, ...], Sums] = {}
        for day in sorted({hour.base // DAY * DAY for hour in self.hours}):
            blocks = tuple(sorted(hour.block for hour in self.hours if hour.base // DAY * DAY == day))
            if blocks not in whole:  # most days have the same hours
                whole[blocks] = {}
                for block in blocks:
                    counters.add(whole[blocks], self.blocks[block].sums)
            days[day] = whole[blocks]
        ready = {id(sums): packed(sums) for sums in whole.values()}
        daily = [(day, ready[id(sums)]) for day, sums in days.items()]
        for grain, every in (("day", daily), ("hour", hourly)):
            for at, sums in every:
                ordered = sorted(sums, key=lambda each: each[:2])
                connection.put(
                    rollups.ROLLUP_INSERT,
                    [(DEFAULT_TENANT, grain, slice, at, of, *cell) for slice, of, *cell in ordered],
                )

    def _put_patterns(self, connection: SqliteConnection) -> None:
        totals: dict[str, PatternDelta] = {}
        runs: dict[str, int] = {}
        for hour in self.hours:
            block, day = self.blocks[hour.block], hour.base // DAY * DAY
            for id, sum in block.patterns.items():
                total = totals.get(id)
                if total is None:
                    assert sum.first is not None
                    run = run_id(hour.number, 0)[:10] + sum.first.run[10:]
                    first = _moved(sum.first, run, hour.base)
                    total = totals[id] = PatternDelta(first)
                    total.first = first
                total.count += sum.count
                total.recovered += sum.recovered
                total.last = hour.base + sum.last
                here = total.days.setdefault(day, [0, 0])
                here[0] += sum.count
                here[1] += sum.recovered
                for agent, count in sum.agents.items():
                    total.agents[agent] = total.agents.get(agent, 0) + count
                runs[id] = runs.get(id, 0) + block.runs_of[id]
        pattern_counts.apply_deltas(connection, DEFAULT_TENANT, totals, runs)

    def write_facts(self, path: Path) -> None:
        """The steps of the made hours as CSV, for another database."""
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(row for block in self.blocks for row in block.facts())
