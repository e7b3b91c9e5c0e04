"""Stats derived from counters: rates, latencies, costs, comparison of two groups, advice, Prometheus metrics.

Advice needs a minimum sample size, and every sentence names its sample size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from mulligan.contract.counters import (
    Cell,
    Histogram,
    KindCell,
    Stats,
    StatsQuery,
    attempts,
    bounds,
    merge,
    percentile,
    percentiles,
)
from mulligan.contract.counters import cells as count_cells
from mulligan.contract.counters import stats as count_stats
from mulligan.contract.store import RunQuery, Store, Worker
from mulligan.core.calls import TOOL_NAME_PATH
from mulligan.core.episodes import list_requests
from mulligan.core.failure import KIND_PROPERTIES, Kind
from mulligan.core.records import History
from mulligan.core.version_order import compute_version_key
from mulligan.report.differences import (
    ERROR_RATE,
    GroupDifference,
    Rate,
    compare_rates,
    design_effects,
)
from mulligan.report.tables import format_count, format_dollars, format_duration, format_share, to_line

MIN_SAMPLE_SIZE = 5
"""Minimum number of cases for advice."""
MAX_ADVICE_PER_TOPIC = 3
"""Maximum number of sentences per topic."""

RECOVERY_METHODS = {
    "retry": "retry",
    "schema": "schema repair",
    "run": "repair from this run",
    "memory": "memory repair",
    "rule": "rule repair",
    "error": "error bound repair",
    "reflection": "repair by reflection",
    "compression": "compression",
    "fallback": "fallback",
    "check": "verified as executed",
    "model": "later call",
    "person": "person",
}
CHANGE_REASONS = {
    "cast": "wrong type",
    "rename": "wrong name",
    "drop": "unknown argument",
    "clamp": "out of bounds",
    "enum": "not an allowed value",
    "trim": "extra characters around the value",
    "parse": "JSON encoded as a string",
    "wrap": "not a list",
    "default": "missing",
    "substitute": "wrong value",
}


def to_percent(part: int, total: int) -> float | None:
    """Return a ratio as a percentage, or `None` if the total is 0."""
    return round(100 * part / total, 2) if total else None


def finished_calls(cell: Cell) -> int:
    """Return the number of calls that succeeded or failed; cancelled and blocked calls are excluded."""
    return cell.first_try + cell.recovered + cell.unrecovered


def failed_calls(cell: Cell) -> int:
    """Return the number of calls with at least one failed attempt."""
    return cell.recovered + cell.unrecovered


def ended_runs(cell: Cell) -> int:
    return sum(cell.runs.values())


def started_runs(cell: Cell) -> int:
    """Return the number of runs, including those that have not ended."""
    return ended_runs(cell) + cell.running


def unrecovered_runs(cell: Cell) -> int:
    """Return the number of ended runs with an unrecovered call (partial), or that failed themselves."""
    return cell.runs.get("partial", 0) + cell.runs.get("failure", 0)


def count_older_runs(store: Store, tenant: str, now: int, since: int | None) -> int:
    """Return how many runs started before a period."""
    if not since:
        return 0
    # A difference, because a count until `since` would cover the whole day.
    everything, period = (store.stats(tenant, StatsQuery(now=now, since=start)).total for start in (None, since))
    return started_runs(everything) - started_runs(period)


def to_facts(cell: Cell) -> dict[str, Any]:
    """Return all metrics by name. Rates are percentages, times are seconds; `None` means too few cases."""
    ended, unrecovered = ended_runs(cell), unrecovered_runs(cell)
    return {
        "total_runs": started_runs(cell),
        "total_failures": cell.runs.get("failure", 0),
        "unrecovered_runs": unrecovered,
        "success_rate": to_percent(ended - unrecovered, ended),
        "runs": {status: cell.runs.get(status, 0) for status in ("success", "recovered", "partial", "failure")},
        **_pick(cell, "running", "calls", "first_try", "recovered", "repaired", "unrecovered", "attempts"),
        "suspected": cell.suspected,
        "first_try_rate": to_percent(cell.first_try, finished_calls(cell)),
        "final_success_rate": to_percent(cell.first_try + cell.recovered, finished_calls(cell)),
        "recovered_rate": to_percent(cell.recovered, failed_calls(cell)),
        "repaired_rate": to_percent(cell.repaired, failed_calls(cell)),
        "repairs": cell.repair_attempts,
        "repairs_succeeded": cell.repair_successes,
        "repair_success_rate": to_percent(cell.repair_successes, cell.repair_attempts),
        "latency_seconds": percentile_summary(cell.seconds, cell.micros),
        "time_to_recovery_seconds": percentile_summary(cell.to_repair),
        "backoff_seconds": cell.backoff_micros / 1e6,
        "retry_seconds": cell.retry_micros / 1e6,
        **_pick(cell, "tokens", "recovery_tokens"),
        **to_cost_facts(cell),
        "reflections": to_reflection_facts(cell),
        "repeats_after_compaction": cell.repeats,
        "recovered_by": _rank(cell.recovered_by),
        "kinds": {kind: to_kind_facts(kind_counters) for kind, kind_counters in rank_kinds(cell)},
        "by_attempt": count_by_attempt(cell),
        "corrected_arguments": [
            {"argument": path, "operation": operation, "calls": calls}
            for path, operation, calls in list_corrected_arguments(cell)
        ],
    }


def to_cost_facts(cell: Cell) -> dict[str, Any]:
    """Return costs in US dollars; `None` means that no price is known."""
    recovery_nanos = recovery_cost_nanos(cell)
    return {
        "cost_usd": cell.cost_nanos / 1e9 if cell.priced_attempts else None,
        "recovery_cost_usd": recovery_nanos / 1e9 if recovery_nanos is not None else None,
        **_pick(cell, "priced_attempts", "unpriced_attempts", "avoided_turns", "avoided_tokens"),
        "avoided_cost_usd": cell.avoided_cost_nanos / 1e9 if cell.avoided_cost_nanos else None,
    }


def to_reflection_facts(cell: Cell) -> dict[str, Any]:
    """Return how often the reflector was asked, what that cost, and what repairs by reflection saved."""
    return {
        "asked": cell.reflections,
        "tokens": cell.reflection_tokens,
        "cost_usd": cell.reflection_cost_nanos / 1e9 if cell.reflection_cost_nanos else None,
        "recovered": cell.recovered_by.get("reflection", 0),
        "avoided_tokens": cell.reflection_avoided_tokens,
    }


def format_reflections(cell: Cell) -> str:
    """Format the requests to the reflector with their cost and what they saved."""
    cost = format_dollars(cell.reflection_cost_nanos) if cell.reflection_cost_nanos else "cost unknown"
    calls = format_count(cell.recovered_by.get("reflection", 0), "call")
    saved = f"{calls} repaired, {format_count(cell.reflection_avoided_tokens, 'input token')} avoided"
    return f"{cell.reflections:,} asked, {format_count(cell.reflection_tokens, 'token')}, {cost}; {saved}"


def recovery_cost_nanos(cell: Cell) -> int | None:
    """Return the cost of recovery; None if no attempt that served recovery has a price."""
    is_unknown = cell.recovery_tokens and not cell.recovery_cost_nanos and cell.unpriced_attempts
    return None if is_unknown or not cell.priced_attempts else cell.recovery_cost_nanos


def format_recovery_usage(cell: Cell) -> str:
    """Format the tokens and the cost of recovery, after a comma; empty if it took no tokens."""
    if not cell.recovery_tokens:
        return ""
    nanos = recovery_cost_nanos(cell)
    cost = "cost unknown" if nanos is None else format_dollars(nanos)
    return f", {cell.recovery_tokens:,} of {cell.tokens:,} tokens, {cost}"


def format_cost(cell: Cell) -> str:
    """Format the cost of model calls, and for how many attempts it is unknown."""
    if not cell.priced_attempts:
        return "unknown: the model has no price" if cell.unpriced_attempts else "-"
    total = cell.priced_attempts + cell.unpriced_attempts
    gap = f", unknown for {cell.unpriced_attempts:,} of {total:,} attempts" if cell.unpriced_attempts else ""
    return f"{format_dollars(cell.cost_nanos)}{gap}"


def format_avoided(cell: Cell) -> str:
    """Format what recovery saved: model turns that were not needed, and at least what they would have cost."""
    turns = format_avoided_turns(cell)
    return f"{turns}, at least {format_dollars(cell.avoided_cost_nanos)}" if cell.avoided_cost_nanos else turns


def format_avoided_turns(cell: Cell) -> str:
    return f"{format_count(cell.avoided_turns, 'model turn')}, {format_count(cell.avoided_tokens, 'input token')}"


def count_by_attempt(cell: Cell) -> list[dict[str, int]]:
    return [dict(zip(("attempt", "attempts", "successes"), counts, strict=True)) for counts in attempts(cell)]


CSV_COLUMNS = (
    "total_runs", "total_failures", "unrecovered_runs", "success_rate", "calls", "first_try", "recovered",
    "repaired", "unrecovered", "attempts", "first_try_rate", "final_success_rate", "recovered_rate",
    "repaired_rate", "repair_success_rate",
    "latency_seconds.p50", "latency_seconds.p95", "latency_seconds.p99", "latency_seconds.sample_size",
    "backoff_seconds", "retry_seconds", "tokens", "recovery_tokens", "cost_usd",
    "recovery_cost_usd", "unpriced_attempts", "avoided_turns", "avoided_tokens", "avoided_cost_usd",
)  # fmt: skip
"""CSV columns: all metrics that are single numbers."""

PERCENTILES = (0.5, 0.95, 0.99)
"""Reported percentiles, as fractions."""


def percentile_summary(histogram: Histogram, micros: int | None = None) -> dict[str, Any]:
    """Return percentiles in seconds and the sample size. A percentile with too few cases is `None`."""
    count, values = percentiles(histogram, *PERCENTILES)
    summary: dict[str, Any] = {"sample_size": count}
    if micros is not None:
        summary["mean"] = round(micros / count / 1e6, 6) if count else None
    for fraction, value in zip(PERCENTILES, values, strict=True):
        summary[f"p{round(fraction * 100)}"] = None if value is None else round(value, 6)
    return summary


def to_kind_facts(kind: KindCell) -> dict[str, Any]:
    return {
        **_pick(kind, "failures", "calls", "recovered", "repaired", "unrecovered"),
        "recovered_by": _rank(kind.recovered_by),
        "seconds_before": percentile_summary(kind.seconds, kind.micros),
    }


def _pick(cell: Cell | KindCell, *names: str) -> dict[str, Any]:
    return {name: getattr(cell, name) for name in names}


def _rank(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def list_undeclared_kinds(cell: Cell, declared_kinds: Collection[str]) -> list[str]:
    """Return the kinds that programs named themselves and that neither mulligan nor the settings declare."""
    return [kind for kind, _ in rank_kinds(cell) if kind not in KIND_PROPERTIES and kind not in declared_kinds]


def rank_kinds(cell: Cell) -> list[tuple[str, KindCell]]:
    return sorted(cell.kinds.items(), key=lambda item: (-item[1].failures, item[0]))


def list_corrected_arguments(cell: Cell) -> list[tuple[str, str, int]]:
    """Return arguments that changed before a call succeeded: path, operation, calls; most frequent first."""
    corrections = ((*key.rpartition(" ")[::2], calls) for key, calls in cell.changed_arguments.items())
    return sorted(corrections, key=lambda correction: (-correction[2], correction[0], correction[1]))


def format_time(seconds: float | None, sample_size: int) -> str:
    return format_duration(seconds) if seconds is not None else f"too few ({sample_size})" if sample_size else "-"


# Comparison


class StatDifference(NamedTuple):
    """One metric of two groups, and whether they differ significantly."""

    name: str
    baseline: str
    candidate: str
    verdict: str
    effect: str = ""
    """The difference with its interval, such as `-6.0 points (-9.1 to -2.9)`."""
    points: float | None = None
    """The difference of two rates in percentage points, and its interval."""
    low: float | None = None
    high: float | None = None


def _count_successes(cell: Cell) -> int:
    return cell.first_try + cell.recovered


Counter = Callable[[Cell], int]
COMPARED_RATES: tuple[tuple[str, Counter, Counter, bool], ...] = (
    ("first-try success", lambda cell: cell.first_try, finished_calls, True),
    ("final success", _count_successes, finished_calls, True),
    ("recovered calls", lambda cell: cell.recovered, failed_calls, True),
    ("repaired, of successful calls", lambda cell: cell.repaired, _count_successes, False),
    ("unrecovered runs", unrecovered_runs, ended_runs, False),
)
"""Name, part, total, and whether a higher rate is better."""
MAX_COMPARED_KINDS = 5
REQUESTED_CALLS = "tool calls it requested that failed"
"""The row that only a comparison of models has. It counts the runs from which design effects are estimated."""
MAX_COMPARISONS = len(COMPARED_RATES) + MAX_COMPARED_KINDS + 1
"""Comparisons of one page, whose intervals hold together."""


COMPARISON_NOTE = (
    "With 95 % confidence, all intervals of this page hold together. Each look has its own chance of a false alarm: "
    "choose the end of the period before you look."
)


class StatComparison(NamedTuple):
    """Two groups side by side, the older one first."""

    names: tuple[str, str]
    stats: tuple[Stats, Stats]
    differences: list[StatDifference]

    @property
    def conclusion(self) -> str:
        """One sentence: what has become better or worse."""
        name = to_line(self.names[1], 40)
        changes = {
            verdict: [
                f"{row.name} ({row.baseline} to {row.candidate})" for row in self.differences if row.verdict == verdict
            ]
            for verdict in ("worse", "better")
        }
        if any(changes.values()):
            sentences = [f"{verdict}: {', '.join(rows)}" for verdict, rows in changes.items() if rows]
            return f"{name} is {'; '.join(sentences)}."
        if all(row.verdict in ("", TOO_FEW_SAMPLES) for row in self.differences):
            return f"{name}: too few cases to tell."
        return f"{name}: no clear difference."


MAX_SAMPLED_RUNS = 1000
"""The latest runs of each group, from which its design effects are estimated."""
MAX_PERIOD_RUNS = 50
"""Those of two periods, which the overview compares at each request."""


def compare_groups(
    store: Store, tenant: str, names: tuple[str, str], queries: tuple[StatsQuery, StatsQuery]
) -> StatComparison:
    """Compare the stats of two queries, the older one first.

    That is the one with the first call; of two versions that began on the same day, the one with the lower number.
    """
    groups = []
    numbers = _rank_versions([query.version for query in queries])
    for name, query in zip(names, queries, strict=True):
        is_period = query.since is not None and query.until is not None and queries[0].since != queries[1].since
        histories = _read_sample(store, tenant, query, MAX_PERIOD_RUNS if is_period else MAX_SAMPLED_RUNS)
        days = store.stats(tenant, msgspec.structs.replace(query, by="time", since=None, until=None)).parts
        first_day = min((int(day) for day, cell in days.items() if cell.calls or started_runs(cell)), default=query.now)
        first_run = min((history.run.started_at for history in histories), default=query.now)
        order = (query.since,) if is_period else (first_day, numbers.get(query.version or "", 0), first_run)
        groups.append((order, name, store.stats(tenant, query), _clusters_of(histories, query), histories))
    baseline, candidate = sorted(groups, key=lambda group: group[0])
    cells = baseline[2].total, candidate[2].total
    more_rates = []
    if queries[0].model and queries[1].model:
        first, second = (_count_requested(group[4], group[1]) for group in (baseline, candidate))
        counts = [(sum(failed for failed, _ in rows), sum(calls for _, calls in rows)) for rows in (first, second)]
        more_rates = [ComparedRate(REQUESTED_CALLS, counts[0], counts[1], False, design_effects(first, second))]
    differences = compare_stats(*cells, (baseline[3], candidate[3]), more_rates)
    return StatComparison((baseline[1], candidate[1]), (baseline[2], candidate[2]), differences)


def compare_periods(
    store: Store, tenant: str, cells: tuple[Cell, Cell], queries: tuple[StatsQuery, StatsQuery]
) -> list[StatDifference]:
    """Compare a period with the one before like `compare_groups`, given their counters."""
    differences = compare_stats(*cells)
    if any(row.verdict in ("better", "worse") for row in differences):  # clusters only make intervals wider
        before, after = (_clusters_of(_read_sample(store, tenant, query, MAX_PERIOD_RUNS), query) for query in queries)
        differences = compare_stats(*cells, (before, after))
    return differences


def _read_sample(store: Store, tenant: str, query: StatsQuery, limit: int) -> Sequence[History]:
    """Return the latest runs of a group."""
    fields = {field: getattr(query, field) for field in ("agent", "version", "environment", "tool", "model", "kind")}
    if query.kind and "/" not in query.kind:
        fields["kind"] = f"{query.kind}/"
    return store.runs(tenant, RunQuery(**fields, since=query.since, until=query.until, limit=limit))


def _rank_versions(versions: Sequence[str | None]) -> dict[str, int]:
    """Return the ranks of versions whose numbers can be compared; of others, none."""
    keys = [(version, compute_version_key(version)) for version in versions if version]
    ranked_keys = {version: key for version, key in keys if key is not None}
    if len(ranked_keys) < len(keys) or len({prefix for prefix, *_ in ranked_keys.values()}) != 1:
        return {}
    ordered = sorted(ranked_keys.values())
    return {version: ordered.index(key) for version, key in ranked_keys.items()}


def _clusters_of(histories: Iterable[History], query: StatsQuery) -> list[Cell]:
    """Return the counters of each session; of each run that belongs to none."""
    by_session: dict[str, list[History]] = {}
    for history in histories:
        by_session.setdefault(history.run.session or history.run.id, []).append(history)
    if not (query.tool or query.kind or query.model or query.type):
        return list(map(_sum_runs, by_session.values()))  # twice as fast
    whole_runs = msgspec.structs.replace(query, since=None, until=None, by=None)
    return [count_stats(sessions, whole_runs).total for sessions in by_session.values()]


def _sum_runs(histories: Iterable[History]) -> Cell:
    total = Cell()
    for history in histories:
        for cell in count_cells(history).values():
            merge(total, cell)
    return total


def _count_requested(histories: Iterable[History], model: str) -> list[tuple[int, int]]:
    """Return failed and all tool calls that a model requested, by run."""
    rows = []
    for history in histories:
        requested = [call for call, cause in list_requests(history) if cause.model == model]
        rows.append((sum(call.has_failed for call in requested), len(requested)))
    return rows


class ComparedRate(NamedTuple):
    """One rate of two groups: part and total of both, and their design effects."""

    name: str
    first: tuple[int, int]
    second: tuple[int, int]
    is_higher_better: bool
    effects: tuple[float, float] = (1.0, 1.0)

    @property
    def has_enough_cases(self) -> bool:
        return min(self.first[1], self.second[1]) >= 2 * MIN_SAMPLE_SIZE

    @property
    def can_differ(self) -> bool:
        """Whether the rate could be called different: neither of the groups nor both together are all equal."""
        part, total = self.first[0] + self.second[0], self.first[1] + self.second[1]
        return self.has_enough_cases and 0 < part < total


def compare_stats(
    baseline: Cell,
    candidate: Cell,
    clusters: tuple[Sequence[Cell], Sequence[Cell]] = ((), ()),
    more_rates: Sequence[ComparedRate] = (),
) -> list[StatDifference]:
    """Compare the candidate with the baseline. Only significant differences are called better or worse.

    `clusters` has counters of each session of both: their variance is that of the groups.
    """
    cells = (baseline, candidate)

    def compare(name: str, part: Counter, total: Counter, is_higher_better: bool) -> ComparedRate:
        first, second = ((part(cell), total(cell)) for cell in cells)
        effects = design_effects(*([(part(cell), total(cell)) for cell in group] for group in clusters))
        return ComparedRate(name, first, second, is_higher_better, effects)

    def count(kind: str, field: str, cell: Cell) -> int:
        return getattr(cell.kinds[kind], field) if kind in cell.kinds else 0

    # Failures of runs themselves have no calls: they are in the unrecovered runs.
    kinds = {kind for cell in cells for kind, counters in cell.kinds.items() if counters.calls}
    # Ranked by both groups: the kinds that one of them has most of would often seem worse by chance.
    ranked_kinds = sorted(kinds, key=lambda kind: (-sum(count(kind, "failures", cell) for cell in cells), kind))
    rates = [compare(*rate) for rate in COMPARED_RATES if rate[2](baseline) or rate[2](candidate)]
    kind_rates = [
        compare(f"calls with {kind}", partial(count, kind, "calls"), attrgetter("calls"), False)
        for kind in ranked_kinds[:MAX_COMPARED_KINDS]
    ]
    # Rates that cannot be called different add no false alarm (Tarone, Biometrics 46, 1990).
    comparisons = max(1, sum(rate.can_differ for rate in (*rates, *kind_rates, *more_rates)))

    def judge(compared_rates: Iterable[ComparedRate]) -> list[StatDifference]:
        return [_compare_rates(*rate, comparisons=comparisons) for rate in compared_rates]

    latencies = []
    for name, fraction in (("p50 latency", 0.5), ("p95 latency", 0.95)):
        before, after = (format_time(percentile(cell.seconds, fraction), len(cell.seconds)) for cell in cells)
        latencies.append(StatDifference(name, before, after, ""))
    calls = StatDifference("calls", f"{baseline.calls:,}", f"{candidate.calls:,}", "")
    return [calls, *judge(rates), *latencies, *judge(kind_rates), *judge(more_rates)]


TOO_FEW_SAMPLES = "too few samples"


def _compare_rates(
    name: str,
    first: tuple[int, int],
    second: tuple[int, int],
    is_higher_better: bool,
    effects: tuple[float, float] = (1.0, 1.0),
    comparisons: int = MAX_COMPARISONS,
) -> StatDifference:
    """Compare two rates of a page, given enough cases of both."""
    shares = format_share(*first), format_share(*second)
    if min(first[1], second[1]) < 2 * MIN_SAMPLE_SIZE:
        return StatDifference(name, *shares, TOO_FEW_SAMPLES)
    rates = Rate(*first, effects[0]), Rate(*second, effects[1])
    difference = compare_rates(*rates, ERROR_RATE / comparisons)
    verdict = "better" if (difference.estimate > 0) is is_higher_better else "worse"
    points = [round(100 * share, 2) for share in difference]
    return StatDifference(
        name,
        *shares,
        verdict if difference.is_clear else "no significant difference",
        format_points(difference),
        *points,
    )


def format_points(difference: GroupDifference) -> str:
    """Format a difference of rates in percentage points with its interval."""
    estimate, low, high = (f"{round(100 * share, 1) + 0.0:+.1f}" for share in difference)
    return f"{estimate} points ({low} to {high})"


# Advice


def build_advice(total: Cell, tools: Mapping[str, Cell], agents: Mapping[str, Cell]) -> list[str]:
    """Return advice derived from the stats, most frequent problem first within each topic."""
    sentences = [
        *_advise_on_timeouts(tools),
        *_advise_on_limits(total),
        *_advise_on_arguments(tools),
        *_advise_on_suspected(tools),
        *_advise_on_retries(total),
        *_advise_on_repair_reliance(agents),
    ]
    if total.repair_attempts >= 2 * MIN_SAMPLE_SIZE and total.repair_successes < total.repair_attempts / 2:
        counts = f"{total.repair_successes:,} of {total.repair_attempts:,} attempted repairs"
        sentences.append(f"Only {counts} succeeded: raise the confidence threshold (Policy.min_confidence).")
    if total.repeats >= MIN_SAMPLE_SIZE:
        repeats = f"{format_count(total.repeats, 'failure')} repeated after a compaction"
        sentences.append(f"{repeats}: keep `session.reminder()` in the prompt.")
    return sentences


def _advise_on_timeouts(tools: Mapping[str, Cell]) -> Iterator[str]:
    """Yield advice on timeouts that are too short for slow successes or much longer than needed."""
    candidates = [
        (-kind_counters.micros, name, cell, kind_counters)
        for name, cell in tools.items()
        for kind, kind_counters in cell.kinds.items()
        if kind.endswith("/timeout") and kind_counters.failures >= MIN_SAMPLE_SIZE
    ]
    for _, name, cell, kind_counters in sorted(candidates, key=lambda candidate: candidate[:2])[:MAX_ADVICE_PER_TOPIC]:
        success_p95 = percentile(cell.seconds, 0.95)
        if success_p95 is not None:
            mean_timeout = kind_counters.micros / kind_counters.failures / 1e6
            sentence = (
                f"{to_line(name, 40)}: {format_count(kind_counters.failures, 'timeout')} after "
                f"{format_duration(mean_timeout)}; p95 of successful calls is {format_duration(success_p95)}."
            )
            if mean_timeout / 2 <= success_p95 <= mean_timeout:
                yield f"{sentence} Raise the timeout: it may end calls that are only slow."
            elif success_p95 <= mean_timeout / 10:
                timeout_duration = format_duration(kind_counters.micros / 1e6)
                yield f"{sentence} Lower the timeout: {timeout_duration} were spent waiting for it."


def _advise_on_limits(total: Cell) -> Iterator[str]:
    for kind, kind_counters in rank_kinds(total):
        calls, properties = kind_counters.calls, Kind.from_name(kind)
        if calls < MIN_SAMPLE_SIZE:
            continue
        if properties.is_limit and calls >= total.calls / 50:
            retried = f"retries recovered {kind_counters.recovered_by.get('retry', 0):,}"
            rejected = f"{calls:,} of {format_count(total.calls, 'call')} failed with {kind}"
            yield f"{rejected}; {retried}. Make fewer concurrent calls or request a higher limit."
        elif properties.advice:
            yield f"{format_count(calls, 'call')} {properties.advice.format(kind=kind)}"


def _advise_on_arguments(tools: Mapping[str, Cell]) -> Iterator[str]:
    """Yield advice on arguments that are often wrong and should be described in the tool."""
    corrections = [
        (-calls, name, path, operation)
        for name, cell in tools.items()
        for path, operation, calls in list_corrected_arguments(cell)
        # No description can name a substituted value.
        if calls >= MIN_SAMPLE_SIZE and path != TOOL_NAME_PATH and operation != "substitute"
    ]
    for calls, name, path, operation in sorted(corrections)[:MAX_ADVICE_PER_TOPIC]:
        yield (
            f"{to_line(name, 40)}: {to_line(path, 40)} was corrected in {format_count(-calls, 'call')} "
            f"({CHANGE_REASONS.get(operation, operation)}). Document it in the tool's description."
        )


def _advise_on_suspected(tools: Mapping[str, Cell]) -> Iterator[str]:
    """Yield advice on tools whose results often look like a failure. Only a person knows whether they are content."""
    # Share of a tool's calls with a suspected failure from which advice is given
    candidates = [
        (-cell.suspected, name, cell.calls)
        for name, cell in tools.items()
        if cell.suspected >= MIN_SAMPLE_SIZE and cell.suspected >= cell.calls * 0.2
    ]
    for count, name, calls in sorted(candidates)[:MAX_ADVICE_PER_TOPIC]:
        yield (
            f"{to_line(name, 40)}: {-count:,} of {format_count(calls, 'result')} look like an unstated failure. "
            'If they are failures, raise them or set detect_errors="text"; if they are content, set returns="content".'
        )


def _advise_on_retries(total: Cell) -> Iterator[str]:
    """Yield advice on attempts that rarely succeed."""
    for number, attempt_count in sorted(total.later_attempts.items()):
        success_count = total.later_successes.get(number, 0)
        is_retry = number > 1 and attempt_count >= 2 * MIN_SAMPLE_SIZE
        # Success ratio of an attempt below which it is not worth making
        if is_retry and success_count < attempt_count * 0.1:
            yield (
                f"Attempt {number} succeeded {success_count:,} of {format_count(attempt_count, 'time')}: "
                "allow fewer attempts (Policy.attempts)."
            )


def _advise_on_repair_reliance(agents: Mapping[str, Cell]) -> Iterator[str]:
    """Yield advice on agents whose calls often need repairs."""
    for name, cell in sorted(agents.items()):
        # Ratio of repaired successes above which an agent relies too much on repairs
        if cell.repaired >= MIN_SAMPLE_SIZE and cell.repaired >= 0.1 * _count_successes(cell):
            yield (
                f"{to_line(name or '(no name)', 40)} relies on repairs: {cell.repaired:,} of "
                f"{format_count(_count_successes(cell), 'successful call')} needed changed arguments. "
                "Improve its prompt or the tools' descriptions."
            )


# Metrics in the Prometheus text format

MAX_TOOLS = 100
"""Maximum number of tool labels: each is a time series, and a model can invent any tool name."""


def render_metrics(total: Cell, tools: Stats) -> Iterator[str]:
    """Yield the lines of all metrics, each metric with its HELP and TYPE lines."""
    busiest_tools = sorted(tools.parts.items(), key=lambda item: (-item[1].calls, item[0]))[:MAX_TOOLS]
    tool_rows = {
        _format_labels(tool=name, outcome=outcome): count
        for name, cell in sorted(busiest_tools)
        for outcome, count in _count_outcomes(cell).items()
    }
    failures = {kind: cell.failures for kind, cell in total.kinds.items()}
    unrecovered = {kind: cell.unrecovered for kind, cell in total.kinds.items()}
    cumulative_count, buckets = 0, {}
    for index, count in total.seconds.counts().items():
        cumulative_count += count
        buckets[_format_labels("_bucket", le=f"{bounds(index)[1] / 1e6:.9g}")] = cumulative_count
    buckets[_format_labels("_bucket", le="+Inf")] = cumulative_count
    durations = {**buckets, "_sum": total.micros / 1e6, "_count": cumulative_count}
    help_text = f"Calls by tool and outcome, for the {MAX_TOOLS} most called tools."
    for name, metric_type, description, values in (
        ("runs_total", "counter", "Ended runs by status.", _label_counts("status", total.runs)),
        ("runs_under_way", "gauge", "Runs in progress.", {"": total.running}),
        ("calls_total", "counter", "Calls by outcome.", _label_counts("outcome", _count_outcomes(total))),
        ("attempts_total", "counter", "Attempts of calls.", {"": total.attempts}),
        ("repaired_total", "counter", "Recovered calls with changed arguments.", {"": total.repaired}),
        ("failures_total", "counter", "Failed attempts by kind.", _label_counts("kind", failures)),
        (
            "unrecovered_total",
            "counter",
            "Unrecovered calls and run failures by kind.",
            _label_counts("kind", unrecovered),
        ),
        (
            "recovered_total",
            "counter",
            "Recovered calls by recovery method.",
            _label_counts("method", total.recovered_by),
        ),
        ("suspected_total", "counter", "Successes whose result looks like a failure.", {"": total.suspected}),
        ("backoff_seconds_total", "counter", "Backoff before attempts, in seconds.", {"": total.backoff_micros / 1e6}),
        ("tokens_total", "counter", "Tokens of model calls.", {"": total.tokens}),
        ("recovery_tokens_total", "counter", "Tokens of attempts after the first.", {"": total.recovery_tokens}),
        ("cost_usd_total", "counter", "Known cost of model calls, in US dollars.", {"": total.cost_nanos / 1e9}),
        (
            "recovery_cost_usd_total",
            "counter",
            "Known cost of later attempts and of summaries, in US dollars.",
            {"": total.recovery_cost_nanos / 1e9},
        ),
        (
            "avoided_cost_usd_total",
            "counter",
            "Least cost of the model turns that recovery avoided, in US dollars.",
            {"": total.avoided_cost_nanos / 1e9},
        ),
        ("attempt_seconds", "histogram", "Duration of successful attempts, in seconds.", durations),
        ("tool_calls_total", "counter", help_text, tool_rows),
    ):
        yield from render_metric(f"mulligan_{name}", metric_type, description, values)


def render_unrecognized_spans(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield the lines of the metric about OpenTelemetry spans that describe no call."""
    description = "OpenTelemetry spans that describe no agent, model or tool, by scope, since the server started."
    yield from render_metric(
        "mulligan_unrecognized_spans_total", "counter", description, _label_counts("scope", counts)
    )


def render_rejected_requests(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield the lines of the metric about requests that a server rejected."""
    description = "Requests that the server rejected, by reason, since it started."
    yield from render_metric(
        "mulligan_rejected_requests_total", "counter", description, _label_counts("reason", counts)
    )


def render_metric(name: str, metric_type: str, description: str, values: Mapping[str, float]) -> Iterator[str]:
    """Yield the lines of a metric. The names of its values are labels, or suffixes of its name."""
    yield f"# HELP {name} {description}"
    yield f"# TYPE {name} {metric_type}"
    for suffix, value in values.items():
        yield f"{name}{suffix} {value:.17g}"


def render_workers(workers: Sequence[Worker]) -> Iterator[str]:
    """Yield the metrics of the workers of a distributed store."""
    if not workers:
        return
    labels = {worker.name: _format_labels(worker=worker.name) for worker in workers}
    for name, description, values in (
        ("up", "Whether the worker answers.", [int(worker.reachable) for worker in workers]),
        ("shards", "Shards on the worker.", [worker.shards for worker in workers]),
        ("bytes", "Size of the database on the worker.", [worker.bytes for worker in workers]),
        ("shard_bytes", "Size of the shards on the worker.", [worker.shard_bytes for worker in workers]),
        ("largest_shard_bytes", "Size of the largest of them.", [worker.largest_shard_bytes for worker in workers]),
    ):
        # The sizes of a worker that does not answer are unknown, not 0.
        by_label = {label: value for label, value in zip(labels.values(), values, strict=True) if value is not None}
        yield from render_metric(f"mulligan_store_worker_{name}", "gauge", description, by_label)


def _count_outcomes(cell: Cell) -> dict[str, int]:
    other = cell.calls - cell.first_try - cell.recovered - cell.unrecovered
    return {"first_try": cell.first_try, "recovered": cell.recovered, "unrecovered": cell.unrecovered, "other": other}


def _label_counts(label: str, counts: Mapping[str, int]) -> dict[str, float]:
    return {_format_labels(**{label: name}): count for name, count in sorted(counts.items())}


def _format_labels(suffix: str = "", **labels: str) -> str:
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    return suffix + "{" + ",".join(f'{name}="{value.translate(escapes)}"' for name, value in labels.items()) + "}"
