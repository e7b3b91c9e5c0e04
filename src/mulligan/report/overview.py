"""Text rendering of stats: a summary sentence, tables, then advice."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mulligan.figures import Cell, Stats
from mulligan.report import stats as questions
from mulligan.report.tables import Column, Fact, columns, count, duration, heading, line, pairs, share, table, wrapped

KINDS = 8
BAR = 24
LATEST = 14
"""Maximum number of hours or days shown as bars."""


def moment(millis: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(millis / 1000))


def span(stats: Stats) -> str:
    """Format the period that the stats cover."""
    if stats.since is None and stats.until is None:
        return "ever"
    since = f"since {moment(stats.since)}" if stats.since is not None else ""
    until = f"until {moment(stats.until)}" if stats.until is not None else ""
    return f"{since} {until}".strip()


def headline(stats: Stats, kind: str | None = None) -> Iterator[str]:
    """Render the summary sentences. With `kind`, summarize only the calls with that kind of failure."""
    cell = stats.total
    if kind is not None:
        what = "" if not cell.calls else f"; {cell.recovered:,} of these were overcome, {cell.given_up:,} given up"
        yield f"{count(cell.attempts, 'failure')} of {kind} in {count(cell.calls, 'call')} {span(stats)}{what}."
        return
    runs = sum(cell.runs.values())
    if runs:
        told = ", ".join(
            f"{cell.runs[status]:,} {status}"
            for status in ("success", "recovered", "partial", "failure")
            if cell.runs.get(status)
        )
        going = f" ({cell.running:,} not ended yet)" if cell.running else ""
        yield f"{count(runs, 'run')} {span(stats)}: {told}{going}."
    if cell.calls:
        settled, failed = questions.settled(cell), questions.failed(cell)
        yield (
            f"{count(cell.calls, 'call')}{'' if runs else ' ' + span(stats)}: {share(cell.first_try, settled)} worked "
            f"at the first try, {share(cell.first_try + cell.recovered, settled)} in the end; "
            f"{cell.recovered:,} of {count(failed, 'failed call')} overcome."
        )
    if not runs and not cell.calls:
        yield f"Nothing was recorded {span(stats)}."


def overview(stats: Stats, tools: Stats, agents: Stats, series: Stats, width: int | None) -> Iterator[str]:
    """Render the full stats page."""
    cell = stats.total
    yield from (part for each in headline(stats) for part in wrapped(each, width, ""))
    if not cell.calls and not cell.kinds:
        return
    yield ""
    yield from pairs(_figures(cell), width)
    if cell.kinds:
        yield from _titled("What fails most", kinds(cell, width), width)
    if cell.overcome:
        yield from _titled("What overcame it", columns(_overcome(cell), right=(1, 2), width=width), width)
    if cell.made:
        yield from _titled("Do further attempts help", table(ATTEMPT_COLUMNS, questions.by_attempt(cell), width), width)
    failing = {name: part for name, part in tools.parts.items() if questions.failed(part)}
    if failing:
        yield from _titled("Where it fails", by(failing, "tool", 5, width, more="mulligan stats --by tool"), width)
    wrong = wrong_arguments(tools.parts)
    if wrong:
        yield from _titled("Which arguments had to change", table(WRONG_COLUMNS, wrong[:5], width), width)
    if len(series.parts) > 1:
        yield from _titled(f"Failed calls by the {series.grain}", over_time(series, width), width)
    advice = questions.advice(cell, tools.parts, agents.parts)
    if advice:
        yield from _titled("What this suggests", (part for each in advice for part in _item(each, width)), width)


def _titled(title: str, lines: Iterable[str], width: int | None) -> Iterator[str]:
    yield ""
    yield heading(title, width)
    yield from lines


def _item(text: str, width: int | None) -> Iterator[str]:
    for place, part in enumerate(wrapped(text, width, "    ")):
        yield part if place else f"  - {part.strip()}"


def _figures(cell: Cell) -> Iterator[tuple[str, str]]:
    failed = questions.failed(cell)
    if failed:
        yield "failed calls overcome", f"{share(cell.recovered, failed)} ({cell.recovered:,} of {failed:,})"
        yield "failed calls repaired", f"{share(cell.repaired, failed)} ({cell.repaired:,} of {failed:,})"
    if cell.suggested:
        yield "repairs that worked", f"{share(cell.hits, cell.suggested)} ({cell.hits:,} of {cell.suggested:,} tried)"
    repair = questions.times(cell.to_repair)
    if repair["of"]:
        yield "time to repair", _spread(repair)
    if cell.seconds:
        yield "time a success takes", _spread(questions.times(cell.seconds))
    if cell.waited or cell.retrying:
        cost = f"{duration(cell.waited / 1e6)} waiting, {duration(cell.retrying / 1e6)} in further attempts"
        tokens = f", {cell.recovery_tokens:,} of {cell.tokens:,} tokens" if cell.recovery_tokens else ""
        yield "cost of recovery", cost + tokens
    if cell.repeats:
        yield "repeats after a compaction", f"{cell.repeats:,}"


def _spread(times: Mapping[str, Any]) -> str:
    if times["p50"] is None:
        return f"too few to say ({times['of']:,})"
    told = [f"half in {duration(times['p50'])}"]
    for name, words in (("p95", "95 % in"), ("p99", "99 % in")):
        if times[name] is not None:
            told.append(f"{words} {duration(times[name])}")
    return ", ".join(told)


def kinds(cell: Cell, width: int | None, limit: int = KINDS) -> Iterator[str]:
    found = [questions.kind_facts(known) | {"kind": kind} for kind, known in questions.by_failures(cell)]
    yield from table(KIND_COLUMNS, found[:limit], width)
    if len(found) > limit:
        yield f"  and {count(len(found) - limit, 'kind')} more: mulligan stats --by kind"


def _main_means(fact: Fact) -> str:
    means = fact["overcome_by"]
    return questions.MEANS.get(next(iter(means), ""), "-")


def _before(fact: Fact) -> str:
    times = fact["seconds_before"]
    return duration(times["mean"]) if times["mean"] is not None else "-"


FAILURES = Column("failures", lambda fact: f"{fact['attempts']:,}", True, 9)
KIND_COLUMNS = (
    Column("kind", lambda fact: line(fact["kind"], 60), keep=9),
    Column("failures", lambda fact: f"{fact['failures']:,}", True, 9),
    Column("calls", lambda fact: f"{fact['calls']:,}", True, 4),
    Column("overcome", lambda fact: f"{fact['recovered']:,}", True, 8),
    Column("given up", lambda fact: f"{fact['given_up']:,}", True, 7),
    Column("failed after", _before, True, 3),
    Column("mostly overcome by", _main_means, keep=5),
)


def _overcome(cell: Cell) -> Iterator[tuple[str, ...]]:
    whole = sum(cell.overcome.values())
    for means, number in sorted(cell.overcome.items(), key=lambda item: (-item[1], item[0])):
        yield questions.MEANS.get(means, means), f"{number:,}", share(number, whole)


def attempt_name(number: int) -> str:
    names = {1: "first", 2: "second", 3: "third", 10: "tenth and later"}
    return names.get(number, f"{number}th")


def wrong_arguments(tools: Mapping[str, Cell]) -> list[dict[str, Any]]:
    """Return the corrected arguments of all tools, most frequent first."""
    found = [
        {"tool": name, "argument": path, "how": how, "calls": calls}
        for name, cell in tools.items()
        for path, how, calls in questions.wrong_arguments(cell)
    ]
    return sorted(found, key=lambda fact: (-fact["calls"], fact["tool"], fact["argument"], fact["how"]))


WRONG_COLUMNS = (
    Column("tool", lambda fact: line(fact["tool"], 40), keep=9),
    Column("argument", lambda fact: line(fact["argument"], 40), keep=9),
    Column("calls", lambda fact: f"{fact['calls']:,}", True, 9),
    Column("what was wrong", lambda fact: f"it {questions.WRONG.get(fact['how'], fact['how'])}", keep=8),
)


def over_time(series: Stats, width: int | None) -> Iterator[str]:
    """Render one bar per hour or day. Its length is the failure rate relative to the highest one."""
    parts = sorted((int(start), cell) for start, cell in series.parts.items())
    latest = parts[-LATEST:]
    shares = [(start, questions.failed(cell), questions.settled(cell)) for start, cell in latest]
    most = max((failed / settled for _, failed, settled in shares if settled), default=0)
    room = BAR if width is None else min(BAR, width - 45)
    form = "%Y-%m-%d %H:%M" if series.grain == "hour" else "%Y-%m-%d"
    rows = [("", "calls", "failed", "", "")]
    for start, failed, settled in shares:
        length = round(room * failed / settled / most) if settled and most else 0
        when = time.strftime(form, time.gmtime(start / 1000))
        rows.append(
            (
                when,
                f"{settled:,}",
                f"{failed:,}",
                share(failed, settled),
                "#" * max(length, int(failed > 0 and room > 0)),
            )
        )
    yield from columns(rows, right=(1, 2, 3), width=width)
    if len(parts) > len(latest):
        yield f"  and {len(parts) - len(latest):,} earlier: mulligan stats --by time"


def by(
    parts: Mapping[str, Cell],
    dimension: str,
    limit: int,
    width: int | None,
    when: str = "%Y-%m-%d",
    of_kind: bool = False,
    more: str = "",
) -> Iterator[str]:
    """Render one row per value of a dimension, most unrecovered calls first."""
    found = ranked(parts, dimension)
    if of_kind:
        found = [fact for fact in found if fact["attempts"]]
    yield from table(by_columns(dimension, when, of_kind), first(found, dimension, limit), width)
    if len(found) > limit:
        left = "earlier" if dimension == "time" else "more"
        yield f"  and {len(found) - limit:,} {left}: {more or f'--limit {len(found)}'}"


def first(found: list[dict[str, Any]], dimension: str, limit: int | None) -> list[dict[str, Any]]:
    """Return the first `limit` ranked rows. For times, return the latest ones, in order."""
    if limit is None:
        return found
    return found[-limit:] if dimension == "time" else found[:limit]


def ranked(parts: Mapping[str, Cell], dimension: str) -> list[dict[str, Any]]:
    """Return the facts of each part, most unrecovered calls first. Times and attempts stay in order."""
    found = [{dimension: name} | questions.facts(cell) for name, cell in parts.items()]
    if dimension == "attempt":
        found = [fact | fact["by_attempt"][0] for fact in found]
    if dimension in ("time", "attempt"):
        return sorted(found, key=lambda fact: int(fact[dimension]))
    if dimension == "kind":
        found = [fact | fact["kinds"][fact["kind"]] for fact in found]
        return sorted(found, key=lambda fact: (-fact["failures"], fact["kind"]))
    return sorted(found, key=lambda fact: (-fact["given_up"], -fact["recovered"], -fact["calls"], fact[dimension]))


def answered(stats: Stats, limit: int | None = None) -> dict[str, Any]:
    """Build the JSON answer: period, totals, and the parts (at most `limit`) if the query has a dimension."""
    facts: dict[str, Any] = {
        "since": stats.since,
        "until": stats.until,
        "grain": stats.grain,
        "total": questions.facts(stats.total),
    }
    if stats.by is not None:
        facts |= {"by": stats.by, "parts": first(ranked(stats.parts, stats.by), stats.by, limit)}
    return facts


def by_columns(dimension: str, when: str, of_kind: bool = False) -> Sequence[Column]:
    if dimension == "kind":
        return KIND_COLUMNS
    if dimension == "attempt":
        return ATTEMPT_COLUMNS
    if of_kind:
        name = Column(dimension, lambda fact: _name(fact[dimension], dimension, when), keep=9)
        return (name, FAILURES, *KIND_COLUMNS[2:5])
    return (
        Column(dimension, lambda fact: _name(fact[dimension], dimension, when), keep=9),
        Column("calls", lambda fact: f"{fact['calls']:,}", True, 8),
        Column("first try", lambda fact: _rate(fact["first_try_rate"]), True, 6),
        Column("in the end", lambda fact: _rate(fact["final_rate"]), True, 7),
        Column("recovered", lambda fact: f"{fact['recovered']:,}", True, 5),
        Column("repaired", lambda fact: f"{fact['repaired']:,}", True, 3),
        Column("given up", lambda fact: f"{fact['given_up']:,}", True, 8),
        Column("half in", lambda fact: _time(fact["seconds"], "p50"), True, 2),
        Column("95 % in", lambda fact: _time(fact["seconds"], "p95"), True, 4),
        Column("waited", lambda fact: duration(fact["waited"]) if fact["waited"] else "-", True, 1),
    )


ATTEMPT_COLUMNS = (
    Column("attempt", lambda fact: attempt_name(int(fact["attempt"])), keep=9),
    Column("made", lambda fact: f"{fact['made']:,}", True, 9),
    Column("worked", lambda fact: f"{fact['worked']:,}", True, 9),
    Column("share", lambda fact: share(fact["worked"], fact["made"]), True, 8),
)


def _name(value: str, dimension: str, when: str) -> str:
    if dimension == "time":
        return time.strftime(when, time.gmtime(int(value) / 1000))
    return line(value, 60) or "(no name)"


def _rate(percent: float | None) -> str:
    return share(round(percent * 100), 10_000) if percent is not None else "-"


def _time(times: Mapping[str, Any], name: str) -> str:
    return questions.time_told(times[name], times["of"])


def comparison(one: Stats, other: Stats, names: tuple[str, str], width: int | None) -> Iterator[str]:
    """Render two stats side by side and mark the significant differences."""
    yield f"{line(names[1], 40)} beside {line(names[0], 40)}, {span(one)}."
    yield ""
    rows: list[tuple[str, ...]] = [("", line(names[0], 20), line(names[1], 20), "")]
    rows += questions.compared(one.total, other.total)
    yield from columns(rows, right=(1, 2), width=width)
