"""Prerequisites learned from many runs: calls after which the same arguments succeeded.

Each run shows which calls happened between a failure and the success of the same call, including unrelated ones. The
smallest set of calls that was sufficient on its own is the prerequisite; runs with additional calls support it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Literal

import msgspec

from mulligan.core.records import Fix, FixState, Prerequisite, decode, encode
from mulligan.learn.fixes import (
    FixAction,
    FixRecord,
    OperatorDecision,
    Writers,
    fix_state,
    fix_state_after_schema_change,
    to_fix,
    top_agents,
)
from mulligan.learn.profiles import Profile, find_hidden_reason
from mulligan.store.base import FixQuery

MAX_PREREQUISITE_CALLS = 4
"""Limit of calls in a prerequisite. Larger sets are unlikely to be a cause."""
MIN_SUPPORT = 0.2
"""Minimum share of runs in which a set of calls had no additional calls; below it, the set is a coincidence."""
CONSTANT_SHARE = 0.6
"""Share of runs in which an argument must have the same value to be stored with the prerequisite."""
MIN_SUPPORTING_RUNS = 2
"""Minimum number of runs with that value."""
MAX_SIMILAR_PATTERNS = 3
"""Similar patterns to search if the failure's own pattern has no fix."""
MAX_SOURCE_FIXES = 5
"""Limit of fixes that supply the arguments of a prerequisite; `MAX_SAMPLES_PER_FIX` limits the runs of each."""
MAX_SAMPLES_PER_FIX = 8

Samples = Sequence[Sequence[tuple[str, dict[str, Any]]]]


class FixSummary(msgspec.Struct):
    """The fields of a `FixRecord` that decide the ranking. The rest is decoded only for fixes that are returned."""

    id: str
    action: FixAction
    key: str = ""
    trials: int = 0
    successes: int = 0
    agents: dict[str, int] = {}
    body: bytes = b""

    @classmethod
    def of(cls, body: bytes) -> FixSummary:
        """Decode the ranking fields from an encoded `FixRecord`."""
        brief = decode(body, cls)
        brief.body = body
        return brief


Row = FixRecord | FixSummary


def load_record(row: Row) -> FixRecord:
    return row if isinstance(row, FixRecord) else decode(row.body, FixRecord)


class SupportedFix(msgspec.Struct, frozen=True):
    """A fix with the records that support it: its own, and for a prerequisite also those with additional calls."""

    own_row: Row
    supporting_rows: Sequence[Row]
    successes: int
    trials: int

    @classmethod
    def of(cls, own_row: Row, supporting_rows: Sequence[Row]) -> SupportedFix:
        if len(supporting_rows) == 1:
            return cls(own_row, supporting_rows, own_row.successes, own_row.trials)
        return cls(
            own_row,
            supporting_rows,
            sum([row.successes for row in supporting_rows]),
            sum([row.trials for row in supporting_rows]),
        )

    def has_helped(self, agent: str) -> bool:
        """Return whether the fix counts as successful for this agent."""
        for row in self.supporting_rows:
            if agent in row.agents:
                return agent in top_agents(_counts(self.supporting_rows, "agents"))
        return False


def find_prerequisites(tallies: Sequence[Row], min_successes: int = 1) -> list[SupportedFix]:
    """Return the prerequisites of one pattern with at least this many successes, in no particular order.

    To avoid comparing all pairs of sets, each call maps to a bit mask of the rows that contain it. The rows that
    contain all calls of a set are the intersection of these masks.
    """
    call_sets = [candidate for candidate in tallies if _is_set_of_calls(candidate)]
    rows_by_call: dict[str, int] = {}
    row_bit = 1
    for row in call_sets:
        for name in row.action.tools:
            rows_by_call[name] = rows_by_call.get(name, 0) | row_bit
        row_bit <<= 1
    all_rows = row_bit - 1
    sufficient: dict[int, tuple[int, Row]] = {}
    """By the mask of the rows that contain a set of calls: the rows with exactly this set, and the first of them."""
    row_bit = 1
    for row in call_sets:
        names = row.action.tools
        if row.successes and len(names) <= MAX_PREREQUISITE_CALLS:
            supersets = all_rows
            for name in names:
                supersets &= rows_by_call[name]
            if supersets == row_bit and row.successes < min_successes:
                pass  # no run made additional calls
            # Otherwise a coincidence: nearly all successful runs needed additional calls.
            elif supersets == row_bit or row.successes >= MIN_SUPPORT * sum(
                [superset.successes for superset in _select_rows(supersets, call_sets)]
            ):
                same, first = sufficient.get(supersets, (0, None))
                sufficient[supersets] = same | row_bit, row if first is None else min(first, row, key=_length_order)
        row_bit <<= 1
    extended_sets = 0
    for supersets, (same, _) in sufficient.items():
        extended_sets |= supersets ^ same
    # If a smaller set was sufficient, the additional calls of a larger set are irrelevant.
    prerequisites = [
        SupportedFix.of(row, _select_rows(superset_rows, call_sets))
        for superset_rows, (same, row) in sufficient.items()
        if not same & extended_sets
    ]
    return (
        [prerequisite for prerequisite in prerequisites if prerequisite.successes >= min_successes]
        if min_successes > 1
        else prerequisites
    )


def _select_rows(row_bits: int, rows: Sequence[Row]) -> list[Row]:
    """Return the rows whose bits are set."""
    selected_rows = []
    while row_bits:
        last = row_bits & -row_bits
        selected_rows.append(rows[last.bit_length() - 1])
        row_bits ^= last
    return selected_rows


def _length_order(row: Row) -> tuple[int, str]:
    return len(row.action.tools), row.id


def _merge_records(own_record: FixRecord, records: Sequence[FixRecord]) -> FixRecord:
    """Return the combined record of a set of calls, over all runs that made these calls and possibly others."""
    return FixRecord(
        id=own_record.id,
        tool=own_record.tool,
        fingerprint=own_record.fingerprint,
        action=own_record.action,
        key=own_record.key,
        trials=sum(record.trials for record in records),
        successes=sum(record.successes for record in records),
        imported=sum(record.imported for record in records),
        principals=_counts(records, "principals"),
        agents=_counts(records, "agents"),
        days=sorted({day for record in records for day in record.days})[-20:],
        recent=sorted(vote for record in records for vote in record.recent)[-20:],
        distinct_trials={
            f"{record.id} {content}": proof for record in records for content, proof in record.distinct_trials.items()
        },
    )


def _counts(rows: Sequence[Row], of: Literal["principals", "agents"]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for row in rows:
        counts: dict[str, int] = getattr(row, of)
        for name, count in counts.items():
            sums[name] = sums.get(name, 0) + count
    return sums


def build_prerequisites(form: FixAction, samples: Samples) -> tuple[Prerequisite, ...]:
    """Return the calls of a prerequisite with the arguments that were constant; the others vary between runs."""
    prerequisites = []
    for name in _order(form, samples):
        argument_sets = [arguments for sample in samples for tool, arguments in sample if tool == name]
        constant: dict[str, Any] = {}
        varying: list[str] = []
        values_by_argument: dict[str, list[Any]] = {}
        for arguments in argument_sets:
            for key, value in arguments.items():
                values_by_argument.setdefault(key, []).append(value)
        min_occurrences, min_runs = CONSTANT_SHARE * len(argument_sets), min(MIN_SUPPORTING_RUNS, len(argument_sets))
        for key, values in values_by_argument.items():
            if len(values) < min_occurrences:
                continue  # most runs omitted it
            value, times = _most_common_value(values)
            if times >= min_occurrences and times >= min_runs and value is not None and _is_shareable(value):
                constant[key] = value
            else:
                varying.append(key)
        prerequisites.append(Prerequisite(tool=name, arguments=constant, variable_arguments=tuple(varying)))
    return tuple(prerequisites)


def _order(form: FixAction, samples: Samples) -> list[str]:
    """Return the call names in their most frequent order."""
    call_names = set(form.tools)
    orders = Counter(
        names
        for sample in samples
        if call_names <= set(names := tuple(tool for tool, _ in sample if tool in call_names))
    )
    return list(orders.most_common(1)[0][0]) if orders else list(form.tools)


def _most_common_value(values: Sequence[Any]) -> tuple[Any, int]:
    """Return the most frequent value and its count. Equal numbers match across types, and lists match in any order."""
    if len(values) == 1:
        return values[0], 1
    kinds = set(map(type, values))
    keys: Sequence[Any]
    if kinds == {str}:
        keys = values
    elif kinds <= {int, float}:
        keys = list(map(float, values))
    else:
        keys = [encode(_key(value)) for value in values]
    counts: dict[Any, int] = {}
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
    key, times = max(counts.items(), key=itemgetter(1))
    return next(
        value for value, value_key in zip(reversed(values), reversed(keys), strict=True) if value_key == key
    ), times


def _key(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, list):
        return sorted(str(_key(item)) for item in value)
    return value


def _is_shareable(value: Any) -> bool:
    """Return whether a value may be shown in another run: no identifier and no redacted text."""
    if isinstance(value, list):
        return all(map(_is_shareable, value))
    if isinstance(value, str):
        return len(value) <= 40 and not any(character.isdigit() or character in "@[]<>:/\\" for character in value)
    return value is None or isinstance(value, bool | int | float)


class FixContext(msgspec.Struct, frozen=True):
    """Data beside the fix records, supplied by the store."""

    writers: Writers
    decisions: Mapping[str, OperatorDecision]
    samples: Callable[[Sequence[str]], Mapping[str, Sequence[tuple[int, Sequence[tuple[str, dict[str, Any]]]]]]]
    """Return, by fix, when it succeeded and with which calls: the newest `MAX_SAMPLES_PER_FIX` trials."""
    schema_changed_at: Mapping[str, int]
    """By tool, when its schema last changed."""
    recount_since: Callable[[FixRecord, int], FixRecord]
    """Recount a record from the trials since a time."""
    profile: Callable[[str, str], Profile]
    """Return the arguments of recent successful calls of a tool, by its name and key."""
    items: Callable[[str, str], Collection[str]]
    """Return the arguments of a tool that name items, by its name and key."""


def rank_fixes(groups: Sequence[tuple[float, Sequence[Row]]], query: FixQuery, context: FixContext) -> list[Fix]:
    """Return fixes and prerequisites with their counts, the most likely first. All stores share this ranking."""
    tool_groups = [(similarity, [row for row in rows if _matches_tool(row, query)]) for similarity, rows in groups]
    ranked_fixes = _rank_by_likelihood(tool_groups, query)
    rows = [row for _, group in tool_groups for row in group]
    judged_fixes = (
        judged_fix
        for similarity, supported_fix in ranked_fixes
        if (judged_fix := _judge_fix(similarity, supported_fix, query, context, rows)) is not None
    )
    return _add_prerequisites(list(islice(judged_fixes, max(query.limit, 0))), context)


def _matches_tool(row: Row, query: FixQuery) -> bool:
    """Return whether a row belongs to the queried tool. A row without a key may belong to any tool of that name."""
    return not query.key or not row.key or row.key == query.key


def index_fixes(
    tallies: Sequence[FixRecord], query: FixQuery, context: FixContext
) -> dict[str, tuple[Fix, tuple[str, ...]]]:
    """Return the fixes of one pattern by id, each with the ids of the records that its counts come from."""
    judged_fixes = (
        _judge_fix(1.0, supported_fix, query, context, tallies) for supported_fix in _find_supported_fixes(tallies)
    )
    return {
        judged_fix[0].id: (judged_fix[0], tuple(row.id for row in judged_fix[1].supporting_rows))
        for judged_fix in judged_fixes
        if judged_fix is not None
    }


def find_best_fix(
    tallies: Sequence[FixRecord], query: FixQuery, context: FixContext, qualifies: Callable[[Fix], bool]
) -> tuple[list[Fix], Fix | None]:
    """Return the fixes of one pattern without prerequisites, and the most likely qualifying fix including them."""
    every = (
        _judge_fix(similarity, supported_fix, query, context, tallies)
        for similarity, supported_fix in _rank_by_likelihood([(1.0, tallies)], query)
    )
    judged_fixes = [judged_fix for judged_fix in every if judged_fix is not None]
    best_fix = next((judged_fix for judged_fix in judged_fixes if qualifies(judged_fix[0])), None)
    return [fix for fix, _ in judged_fixes], _add_prerequisites([best_fix], context)[
        0
    ] if best_fix is not None else None


def _find_supported_fixes(tallies: Sequence[Row], min_successes: int = 1) -> list[SupportedFix]:
    """Return the fixes of one pattern, prerequisites included."""
    single_fixes = [
        SupportedFix.of(row, (row,)) for row in tallies if not _is_set_of_calls(row) and row.successes >= min_successes
    ]
    return [*single_fixes, *find_prerequisites(tallies, min_successes)]


def _is_set_of_calls(row: Row) -> bool:
    """Return whether a row is a prerequisite after which the same call succeeds, not one that supplies a value."""
    return row.action.type == "prerequisite" and not row.action.changes


def _rank_by_likelihood(
    groups: Sequence[tuple[float, Sequence[Row]]], query: FixQuery
) -> list[tuple[float, SupportedFix]]:
    """Sort by likelihood, the most likely first. A single success against another failure counts as chance."""
    scored_fixes = [
        (similarity, supported_fix)
        for similarity, tallies in groups
        for supported_fix in _find_supported_fixes(tallies, 1 if similarity >= 1 else MIN_SUPPORTING_RUNS)
    ]

    def order(scored_fix: tuple[float, SupportedFix]) -> tuple[float, bool, int, int, str]:
        similarity, supported_fix = scored_fix
        return (
            -similarity,
            not supported_fix.has_helped(query.agent),
            -supported_fix.successes,
            supported_fix.trials,
            supported_fix.own_row.id,
        )

    return sorted(scored_fixes, key=order)


def _judge_fix(
    similarity: float, supported_fix: SupportedFix, query: FixQuery, context: FixContext, rows: Sequence[Row]
) -> tuple[Fix, SupportedFix] | None:
    """Return a fix with its counts; None if the query excludes it. `rows` also hold the fixes of similar patterns."""
    parts = list(map(load_record, supported_fix.supporting_rows))
    own_record = next(part for part in parts if part.id == supported_fix.own_row.id)
    record = _merge_records(own_record, parts) if _is_set_of_calls(own_record) else own_record
    state, reason = _state(record, parts, query, context)
    if (query.state is not None and state != query.state) or (query.is_about_failure and state == "revoked"):
        return None
    hidden_reason = find_hidden_reason(
        record,
        _peers(record, rows),
        query.agent,
        lambda: context.profile(record.tool, record.key),
        lambda: context.items(record.tool, record.key),
    )
    if query.showable and (hidden_reason or state in ("revoked", "demoted", "paused", "expired")):
        return None
    fix = to_fix(record, (state, reason), similarity)
    return msgspec.structs.replace(fix, showable=not hidden_reason, hidden_reason=hidden_reason), supported_fix


def _peers(record: FixRecord, rows: Sequence[Row]) -> list[FixRecord]:
    """Return the fixes of the same pattern and tool that change one of the same arguments, or also change none."""
    paths = {change.path for change in record.action.changes}
    if not paths and record.action.type != "prerequisite":
        return []
    similar_rows = (
        row
        for row in rows
        if row.key == record.key
        and (any(change.path in paths for change in row.action.changes) if paths else not row.action.changes)
    )
    peer_records = [tally for row in similar_rows if (tally := load_record(row)).fingerprint == record.fingerprint]
    return [record, *(tally for tally in peer_records if tally.id != record.id)]


def _add_prerequisites(judged_fixes: Sequence[tuple[Fix, SupportedFix]], context: FixContext) -> list[Fix]:
    """Add the prerequisite calls to the selected fixes, with one read for all of them."""
    sources = {
        fix.id: _sources(supported_fix.own_row, supported_fix.supporting_rows)
        for fix, supported_fix in judged_fixes
        if supported_fix.own_row.action.type == "prerequisite"
    }
    samples_by_fix = context.samples([id for ids in sources.values() for id in ids]) if sources else {}
    fixes = []
    for fix, supported_fix in judged_fixes:
        if fix.id in sources:
            fix_samples = [sample for id in sources[fix.id] for sample in samples_by_fix.get(id, ())]
            latest = [calls for _, calls in sorted(fix_samples, key=lambda sample: -sample[0])]
            fix = msgspec.structs.replace(fix, prerequisites=build_prerequisites(supported_fix.own_row.action, latest))
        fixes.append(fix)
    return fixes


def _sources(tally: Row, parts: Sequence[Row]) -> list[str]:
    """Return the fixes whose runs supply the arguments: its own, then the most frequent with additional calls."""
    others = sorted((part for part in parts if part.id != tally.id), key=lambda part: (-part.successes, part.id))
    return [tally.id, *(part.id for part in others[: MAX_SOURCE_FIXES - 1])]


def _state(record: FixRecord, parts: Sequence[FixRecord], query: FixQuery, context: FixContext) -> tuple[FixState, str]:
    decision = context.decisions.get(record.id)
    state = fix_state(record, context.writers, query.now, decision)
    since = context.schema_changed_at.get(record.tool)
    if since is None or state[0] not in ("promoted", "approved"):
        return state
    fresh = _merge_records(record, [context.recount_since(part, since) for part in parts])
    return fix_state_after_schema_change(state, since, fresh, context.writers, query.now, decision)
