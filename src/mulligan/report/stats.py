"""Stats derived from counters: rates, latencies, costs, comparison of two groups, and advice.

Advice needs a minimum sample size, and every sentence names its sample size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mulligan.calls import TOOL
from mulligan.figures import Cell, Histogram, KindCell, attempts, percentile, percentiles
from mulligan.report.tables import count, duration, line, share

FEW = 5
"""Minimum number of cases for advice."""
MOST = 3
"""Maximum number of sentences per topic."""
LEANS = 0.1
"""Ratio of repaired successes above which an agent relies too much on repairs."""
SELDOM = 0.1
"""Success ratio of an attempt below which it is not worth making."""
SURE = 1.96
"""Distance of two rates in standard errors that counts as significant, at the 95 % level."""

MEANS = {
    "waiting": "waiting",
    "schema": "repair by the schema",
    "run": "repair from this run",
    "memory": "repair from memory",
    "rule": "repair by a rule",
    "error": "repair to a bound the error named",
    "compression": "compression",
    "fallback": "a fallback",
    "check": "a check: it had worked",
    "model": "the model",
    "person": "a person",
}
WRONG = {
    "cast": "had the wrong type",
    "rename": "had another name",
    "drop": "does not exist",
    "clamp": "was out of bounds",
    "enum": "was not one of the words allowed",
    "trim": "had white space or junk around it",
    "parse": "was JSON inside a text",
    "wrap": "was no list",
    "default": "was missing",
    "substitute": "needed another value",
}


def rate(part: int, whole: int) -> float | None:
    """Return a ratio as a percentage, or `None` if the total is 0."""
    return round(100 * part / whole, 2) if whole else None


def settled(cell: Cell) -> int:
    """Return the number of calls that succeeded or failed; cancelled and blocked calls are excluded."""
    return cell.first_try + cell.recovered + cell.given_up


def failed(cell: Cell) -> int:
    """Return the number of calls with at least one failed attempt."""
    return cell.recovered + cell.given_up


def facts(cell: Cell) -> dict[str, Any]:
    """Return all metrics by name. Rates are percentages, times are seconds; `None` means too few cases."""
    runs = sum(cell.runs.values())
    failures = cell.runs.get("failure", 0)
    return {
        "total_runs": runs,
        "total_failures": failures,
        "success_rate": rate(runs - failures, runs),
        "runs": {status: cell.runs.get(status, 0) for status in ("success", "recovered", "partial", "failure")},
        "running": cell.running,
        "calls": cell.calls,
        "first_try": cell.first_try,
        "recovered": cell.recovered,
        "repaired": cell.repaired,
        "given_up": cell.given_up,
        "attempts": cell.attempts,
        "first_try_rate": rate(cell.first_try, settled(cell)),
        "final_rate": rate(cell.first_try + cell.recovered, settled(cell)),
        "recovered_rate": rate(cell.recovered, failed(cell)),
        "repaired_rate": rate(cell.repaired, failed(cell)),
        "suggested": cell.suggested,
        "hits": cell.hits,
        "hit_rate": rate(cell.hits, cell.suggested),
        "seconds": times(cell.seconds, cell.micros),
        "seconds_to_repair": times(cell.to_repair),
        "waited": cell.waited / 1e6,
        "retrying": cell.retrying / 1e6,
        "tokens": cell.tokens,
        "recovery_tokens": cell.recovery_tokens,
        "repeats_after_compaction": cell.repeats,
        "overcome_by": dict(sorted(cell.overcome.items(), key=lambda item: (-item[1], item[0]))),
        "kinds": {kind: kind_facts(known) for kind, known in by_failures(cell)},
        "by_attempt": by_attempt(cell),
        "wrong_arguments": [
            {"argument": path, "how": how, "calls": calls} for path, how, calls in wrong_arguments(cell)
        ],
    }


def by_attempt(cell: Cell) -> list[dict[str, int]]:
    return [{"attempt": number, "made": made, "worked": worked} for number, made, worked in attempts(cell)]


OUTSIDE = (
    "total_runs", "total_failures", "success_rate", "calls", "first_try", "recovered", "repaired", "given_up",
    "attempts", "first_try_rate", "final_rate", "recovered_rate", "repaired_rate", "hit_rate", "seconds.p50",
    "seconds.p95", "seconds.p99", "seconds.of", "waited", "retrying", "tokens", "recovery_tokens",
)  # fmt: skip
"""CSV columns: all metrics that are single numbers."""


SHARES = (0.5, 0.95, 0.99)
"""Reported percentiles, as fractions."""


def times(histogram: Histogram, micros: int | None = None) -> dict[str, Any]:
    """Return percentiles in seconds and the sample size. A percentile with too few cases is `None`."""
    count, found = percentiles(histogram, *SHARES)
    told: dict[str, Any] = {"of": count}
    if micros is not None:
        told["mean"] = round(micros / count / 1e6, 6) if count else None
    for part, each in zip(SHARES, found, strict=True):
        told[f"p{round(part * 100)}"] = None if each is None else round(each, 6)
    return told


def kind_facts(kind: KindCell) -> dict[str, Any]:
    return {
        "failures": kind.failures,
        "calls": kind.calls,
        "recovered": kind.recovered,
        "repaired": kind.repaired,
        "given_up": kind.given_up,
        "overcome_by": dict(sorted(kind.overcome.items(), key=lambda item: (-item[1], item[0]))),
        "seconds_before": times(kind.seconds, kind.micros),
    }


def by_failures(cell: Cell) -> list[tuple[str, KindCell]]:
    return sorted(cell.kinds.items(), key=lambda item: (-item[1].failures, item[0]))


def wrong_arguments(cell: Cell) -> list[tuple[str, str, int]]:
    """Return arguments that changed before a call succeeded: path, operation, calls; most frequent first."""
    found = ((*key.rpartition(" ")[::2], calls) for key, calls in cell.wrong.items())
    return sorted(found, key=lambda each: (-each[2], each[0], each[1]))


def time_told(seconds: float | None, of: int) -> str:
    return duration(seconds) if seconds is not None else f"too few ({of})" if of else "-"


# Comparison


class Difference(NamedTuple):
    """One metric of two groups, and whether they differ significantly."""

    name: str
    one: str
    other: str
    verdict: str


def compared(one: Cell, other: Cell) -> list[Difference]:
    """Compare the candidate with the baseline. Only significant differences are called better or worse."""
    rates = [
        ("worked at the first try", one.first_try, settled(one), other.first_try, settled(other), True),
        ("worked in the end", *(_worked(one), settled(one), _worked(other), settled(other)), True),
        ("failed calls overcome", one.recovered, failed(one), other.recovered, failed(other), True),
        ("repaired, of all that worked", one.repaired, _worked(one), other.repaired, _worked(other), False),
        ("runs without failure", *_runs(one), *_runs(other), True),
    ]
    told = [Difference("calls", f"{one.calls:,}", f"{other.calls:,}", "")]
    for name, part, whole, second, second_whole, more_is_better in rates:
        if whole or second_whole:
            verdict = _verdict(part, whole, second, second_whole, more_is_better)
            told.append(Difference(name, share(part, whole), share(second, second_whole), verdict))
    for name, each in (("half take less than", 0.5), ("95 % take less than", 0.95)):
        first, then = percentile(one.seconds, each), percentile(other.seconds, each)
        told.append(Difference(name, time_told(first, len(one.seconds)), time_told(then, len(other.seconds)), ""))
    for kind in sorted(one.kinds.keys() | other.kinds.keys(), key=lambda kind: (-_failures(other, kind), kind))[:5]:
        part, second = _calls(one, kind), _calls(other, kind)
        verdict = _verdict(part, one.calls, second, other.calls, False)
        told.append(Difference(f"calls that met {kind}", share(part, one.calls), share(second, other.calls), verdict))
    return told


def _worked(cell: Cell) -> int:
    return cell.first_try + cell.recovered


def _runs(cell: Cell) -> tuple[int, int]:
    runs = sum(cell.runs.values())
    return runs - cell.runs.get("failure", 0), runs


def _failures(cell: Cell, kind: str) -> int:
    return cell.kinds[kind].failures if kind in cell.kinds else 0


def _calls(cell: Cell, kind: str) -> int:
    return cell.kinds[kind].calls if kind in cell.kinds else 0


def _verdict(part: int, whole: int, second: int, second_whole: int, more_is_better: bool) -> str:
    """Compare two rates with a two-proportion z-test, given enough cases of both."""
    if min(whole, second_whole) < 2 * FEW:
        return "too few to tell"
    pooled = (part + second) / (whole + second_whole)
    error = math.sqrt(pooled * (1 - pooled) * (1 / whole + 1 / second_whole))
    difference = second / second_whole - part / whole
    if not error or abs(difference) / error < SURE:
        return "no telling difference"
    return "better" if (difference > 0) is more_is_better else "worse"


# Advice


def advice(total: Cell, tools: Mapping[str, Cell], agents: Mapping[str, Cell]) -> list[str]:
    """Return advice derived from the stats, most frequent problem first within each topic."""
    told = [*_timeouts(tools), *_limits(total), *_arguments(tools), *_retries(total), *_leaning(agents)]
    if total.suggested >= 2 * FEW and total.hits < total.suggested / 2:
        told.append(
            f"Only {total.hits:,} of {total.suggested:,} repairs that were tried worked: be surer before trying one "
            "(Policy.confidence)."
        )
    if total.repeats >= FEW:
        told.append(
            f"{count(total.repeats, 'failure')} had been met before the conversation was compacted: keep "
            "`session.reminder()` in the prompt."
        )
    return told


def _timeouts(tools: Mapping[str, Cell]) -> Iterator[str]:
    """Yield advice on timeouts that are too short for slow successes or much longer than needed."""
    found = [
        (-known.micros, name, cell, known)
        for name, cell in tools.items()
        for kind, known in cell.kinds.items()
        if kind.endswith("/timeout") and known.failures >= FEW
    ]
    for _, name, cell, known in sorted(found, key=lambda each: each[:2])[:MOST]:
        usual = percentile(cell.seconds, 0.95)
        if usual is not None:
            before = known.micros / known.failures / 1e6
            told = (
                f"{line(name, 40)}: {count(known.failures, 'timeout')} after {duration(before)}, "
                f"and 95 % of its successes take less than {duration(usual)}."
            )
            if usual >= before / 2:
                yield f"{told} The timeout cuts off what is only slow: allow more."
            elif usual <= before / 10:
                yield f"{told} A shorter timeout would fail sooner: {duration(known.micros / 1e6)} were spent so."


def _limits(total: Cell) -> Iterator[str]:
    for kind, known in by_failures(total):
        code = kind.partition("/")[2]
        if known.calls < FEW:
            continue
        if code == "rate_limit" and known.calls >= total.calls / 50:
            waited = known.overcome.get("waiting", 0)
            yield (
                f"{known.calls:,} of {count(total.calls, 'call')} met {kind}; waiting helped {waited:,}. Make fewer at "
                "once, or ask for a higher limit."
            )
        elif code == "context_length_exceeded":
            yield f"The conversation was too long in {count(known.calls, 'call')}: compact it earlier."
        elif code in ("output_too_large", "output_limit"):
            yield f"{count(known.calls, 'call')} met {kind}: ask for less at once, or allow more."
        elif code == "quota_exceeded":
            yield f"{count(known.calls, 'call')} met {kind}: a person must act, waiting does not help."


def _arguments(tools: Mapping[str, Cell]) -> Iterator[str]:
    """Yield advice on arguments that are often wrong and should be described in the tool."""
    found = [
        (calls, name, path, how)
        for name, cell in tools.items()
        for path, how, calls in wrong_arguments(cell)
        if calls >= FEW and path != TOOL and how != "substitute"  # no description can name it
    ]
    for calls, name, path, how in sorted(found, key=lambda each: (-each[0], each[1:]))[:MOST]:
        yield (
            f"{line(name, 40)}: {line(path, 40)} {WRONG.get(how, how)} in {count(calls, 'call')}. Say in the tool's "
            "description what it takes."
        )


def _retries(total: Cell) -> Iterator[str]:
    """Yield advice on attempts that rarely succeed."""
    for number, made in sorted(total.made.items()):
        worked = total.worked.get(number, 0)
        if number > 1 and made >= 2 * FEW and worked < made * SELDOM:
            yield (
                f"Attempt {number} worked {worked:,} of {count(made, 'time')}: fewer attempts would lose little "
                "(Policy.attempts)."
            )


def _leaning(agents: Mapping[str, Cell]) -> Iterator[str]:
    """Yield advice on agents whose calls often need repairs."""
    for name, cell in sorted(agents.items()):
        if cell.repaired >= FEW and cell.repaired >= LEANS * _worked(cell):
            yield (
                f"{line(name or 'the agent without a name', 40)} leans on repairs: {cell.repaired:,} of its "
                f"{count(_worked(cell), 'call')} that worked needed changed arguments. Mend its prompt or its tools' "
                "descriptions."
            )
