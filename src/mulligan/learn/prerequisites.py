"""Prerequisites learned from many runs: calls after which the same arguments succeeded.

Each run shows which calls happened between a failure and the success of the same call, including unrelated ones. The
smallest set of calls that was sufficient on its own is the prerequisite; runs with additional calls support it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import islice
from operator import and_, or_
from typing import Any

import msgspec

from mulligan.contract.store import FixQuery
from mulligan.core.records import SHOWN_ONLY_TO, Fix, FixState, Prerequisite, decode, encode
from mulligan.learn.fixes import (
    HIDDEN_STATES,
    MAX_RECENT_VOTES,
    FixAction,
    FixRecord,
    OperatorDecision,
    Writers,
    fix_state,
    hash_replaced,
    list_episodes,
    select_episodes,
    to_fix,
    top_agents,
)
from mulligan.learn.profiles import replaces_other_values
from mulligan.learn.telling import (
    FAILED_TWICE,
    Experience,
    FailedCall,
    Profile,
    explain_silence,
    find_unspeakable_value,
)

MAX_PREREQUISITE_CALLS = 4
"""Limit of calls in a prerequisite. Larger sets are unlikely to be a cause."""
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
    def of(cls, own_row: Row, rows: Sequence[Row]) -> SupportedFix:
        return cls(own_row, rows, sum([row.successes for row in rows]), sum([row.trials for row in rows]))

    def has_helped(self, agent: str) -> bool:
        """Return whether the fix counts as successful for this agent."""
        rows = self.supporting_rows
        return any(agent in row.agents for row in rows) and agent in top_agents(_sum_counts(row.agents for row in rows))


def find_prerequisites(rows: Sequence[Row], min_successes: int = 1) -> list[SupportedFix]:
    """Return the prerequisites of one pattern with at least this many successes, in no particular order.

    To avoid comparing all pairs of sets, each call maps to a bit mask of the rows that contain it. The rows that
    contain all calls of a set are the intersection of these masks.
    """
    call_sets = [row for row in rows if _is_set_of_calls(row)]
    rows_by_call: dict[str, int] = {}
    for index, row in enumerate(call_sets):
        for name in row.action.tools:
            rows_by_call[name] = rows_by_call.get(name, 0) | 1 << index
    sufficient: dict[int, tuple[int, list[Row]]] = {}
    """By the mask of the rows that contain a set of calls: the rows with exactly this set, as mask and list."""
    for index, row in enumerate(call_sets):
        if row.successes and 0 < len(row.action.tools) <= MAX_PREREQUISITE_CALLS:
            supersets = reduce(and_, [rows_by_call[name] for name in row.action.tools])
            # Otherwise a coincidence: nearly all successful runs needed additional calls.
            # Minimum share of runs in which a set of calls had no additional calls; below it, the set is a
            # coincidence.
            if row.successes >= 0.2 * sum([other.successes for other in _select_rows(supersets, call_sets)]):
                mask, same_rows = sufficient.get(supersets, (0, []))
                sufficient[supersets] = mask | 1 << index, [*same_rows, row]
    # If a smaller set was sufficient, the additional calls of a larger set are irrelevant.
    extended_sets = reduce(or_, [supersets ^ mask for supersets, (mask, _) in sufficient.items()], 0)
    supported_fixes = [
        SupportedFix.of(
            min(same_rows, key=lambda row: (len(row.action.tools), row.id)), _select_rows(supersets, call_sets)
        )
        for supersets, (mask, same_rows) in sufficient.items()
        if not mask & extended_sets
    ]
    return [fix for fix in supported_fixes if fix.successes >= min_successes]


def _select_rows(row_bits: int, rows: Sequence[Row]) -> list[Row]:
    selected_rows = []
    while row_bits:
        last = row_bits & -row_bits
        selected_rows.append(rows[last.bit_length() - 1])
        row_bits ^= last
    return selected_rows


def _merge_records(own_record: FixRecord, records: Sequence[FixRecord]) -> FixRecord:
    """Return the combined record of a set of calls, over all runs that made these calls and possibly others."""
    distinct_trials = {
        f"{record.id} {content}": trial for record in records for content, trial in record.distinct_trials.items()
    }
    return msgspec.structs.replace(
        own_record.recount(()),
        trials=sum(record.trials for record in records),
        successes=sum(record.successes for record in records),
        followed=sum(record.followed for record in records),
        imported=sum(record.imported for record in records),
        principals=_sum_counts(record.principals for record in records),
        agents=_sum_counts(record.agents for record in records),
        days=sorted({day for record in records for day in record.days})[-MAX_RECENT_VOTES:],
        recent=sorted(vote for record in records for vote in record.recent)[-MAX_RECENT_VOTES:],
        distinct_trials=distinct_trials,
        episodes=select_episodes(episode for record in records for episode in list_episodes(record)),
    )


def _sum_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for row_counts in counts:
        sums.update(row_counts)
    return dict(sums)


def build_prerequisites(action: FixAction, samples: Samples) -> tuple[Prerequisite, ...]:
    """Return the calls of a prerequisite with the arguments that were constant; the others vary between runs."""
    prerequisites = []
    for name in _order(action, samples):
        argument_sets = [arguments for sample in samples for tool, arguments in sample if tool == name]
        constant: dict[str, Any] = {}
        varying: list[str] = []
        values_by_argument: dict[str, list[Any]] = {}
        for arguments in argument_sets:
            for key, value in arguments.items():
                values_by_argument.setdefault(key, []).append(value)
        # Share of runs in which an argument must have the same value to be stored with the prerequisite
        min_occurrences = 0.6 * len(argument_sets)
        for key, values in values_by_argument.items():
            if len(values) < min_occurrences:
                continue  # most runs omitted it
            value, times = _most_common_value(values)
            is_constant = times >= max(min_occurrences, min(MIN_SUPPORTING_RUNS, len(argument_sets)))
            if is_constant and value is not None and _is_shareable(value):
                constant[key] = value
            else:
                varying.append(key)
        prerequisites.append(Prerequisite(tool=name, arguments=constant, variable_arguments=tuple(varying)))
    return tuple(prerequisites)


def _order(action: FixAction, samples: Samples) -> list[str]:
    """Return the call names in their most frequent order."""
    orders = Counter(tuple(tool for tool, _ in sample if tool in action.tools) for sample in samples)
    complete = [names for names, _ in orders.most_common() if set(action.tools) <= set(names)]
    return list(complete[0] if complete else action.tools)


def _most_common_value(values: Sequence[Any]) -> tuple[Any, int]:
    """Return the most frequent value and its count. Equal numbers match across types, and lists match in any order."""
    keys = [value if type(value) is str else encode(_key(value)) for value in values]
    [(key, times)] = Counter(keys).most_common(1)
    return next(value for value, own_key in zip(reversed(values), reversed(keys), strict=True) if own_key == key), times


def _key(value: Any) -> Any:
    if isinstance(value, int | float):
        return str(value) if isinstance(value, bool) else float(value)
    return sorted(str(_key(item)) for item in value) if isinstance(value, list) else value


def _is_shareable(value: Any) -> bool:
    """Return whether a value may be shown in another run: no identifier and no redacted text."""
    if isinstance(value, list):
        return all(map(_is_shareable, value))
    if isinstance(value, str):
        return len(value) <= 40 and not any(character.isdigit() or character in "@[]<>:/\\" for character in value)
    return value is None or isinstance(value, bool | int | float)


class PromotionFacts(msgspec.Struct, frozen=True):
    """What decides about the promotion of fixes besides their records."""

    writers: Writers = Writers()
    schema_changed_at: Mapping[str, int] = {}
    """By tool, when its schema last changed."""


class FixContext(msgspec.Struct, frozen=True):
    """Data beside the fix records, supplied by the store. The functions read more when it is needed."""

    decisions: Mapping[str, OperatorDecision]
    promotion_facts: Callable[[], PromotionFacts]
    samples: Callable[[Sequence[str]], Mapping[str, Sequence[tuple[int, Sequence[tuple[str, dict[str, Any]]]]]]]
    """Return, by fix, when it succeeded and with which calls: the newest `MAX_SAMPLES_PER_FIX` trials."""
    recount_since: Callable[[FixRecord, int], FixRecord]
    """Recount a record from the trials since a time."""
    profile: Callable[[str, str], Profile]
    """Return the values that recent successful calls of a tool had, by its name and key."""
    count_runs: Callable[[str, str], int]
    """Return the number of runs with a pattern, by tool and fingerprint, without the one that asks."""


JudgedFix = tuple[Fix, SupportedFix]


def rank_fixes(groups: Sequence[tuple[float, Sequence[Row]]], query: FixQuery, context: FixContext) -> list[Fix]:
    """Return fixes and prerequisites with their counts, the most likely first. All stores share this ranking."""
    # A row without a key may belong to any tool of that name.
    tool_groups = [
        (similarity, [row for row in rows if not query.key or row.key in ("", query.key)])
        for similarity, rows in groups
    ]
    judged_fixes = _judge_in_order(tool_groups, query, context)
    return _add_prerequisites(list(islice(judged_fixes, max(query.limit, 0))), context)


def index_fixes(
    rows: Sequence[FixRecord], query: FixQuery, context: FixContext
) -> dict[str, tuple[Fix, tuple[str, ...]]]:
    """Return the fixes of one pattern by id, each with the ids of the records that its counts come from."""
    return {
        fix.id: (fix, tuple(row.id for row in supported_fix.supporting_rows))
        for fix, supported_fix in _judge_in_order([(1.0, rows)], query, context)
    }


def find_best_fix(
    rows: Sequence[FixRecord], query: FixQuery, context: FixContext, qualifies: Callable[[Fix], bool]
) -> tuple[list[Fix], Fix | None]:
    """Return the fixes of one pattern without prerequisites, and the most likely qualifying fix including them."""
    judged_fixes = list(_judge_in_order([(1.0, rows)], query, context))
    best_fixes = [judged_fix for judged_fix in judged_fixes if qualifies(judged_fix[0])][:1]
    return [fix for fix, _ in judged_fixes], next(iter(_add_prerequisites(best_fixes, context)), None)


def _is_set_of_calls(row: Row) -> bool:
    """Return whether a row is a prerequisite after which the same call succeeds, not one that supplies a value."""
    return row.action.type == "prerequisite" and not row.action.changes


def _judge_in_order(
    groups: Sequence[tuple[float, Sequence[Row]]], query: FixQuery, context: FixContext
) -> Iterator[JudgedFix]:
    """Yield the fixes that the query does not exclude, the most likely first."""
    scored_fixes: list[tuple[float, SupportedFix]] = []
    for similarity, rows in groups:
        min_successes = 1 if similarity >= 1 else MIN_SUPPORTING_RUNS  # one success against another failure is chance
        single_rows = [row for row in rows if not _is_set_of_calls(row) and row.successes >= min_successes]
        supported_fixes = [SupportedFix.of(row, (row,)) for row in single_rows]
        supported_fixes += find_prerequisites(rows, min_successes)
        scored_fixes += [(similarity, supported_fix) for supported_fix in supported_fixes]

    def order(scored_fix: tuple[float, SupportedFix]) -> tuple[float, bool, int, int, str]:
        similarity, fix = scored_fix
        return -similarity, not fix.has_helped(query.agent), -fix.successes, fix.trials, fix.own_row.id

    all_rows = [row for _, rows in groups for row in rows]
    for similarity, supported_fix in sorted(scored_fixes, key=order):
        if query.after is not None and order((similarity, supported_fix)) <= query.after:
            continue  # on an earlier page
        fix = _judge_fix(similarity, supported_fix, query, context, all_rows)
        if fix is not None:
            yield fix, supported_fix


def _judge_fix(
    similarity: float, supported_fix: SupportedFix, query: FixQuery, context: FixContext, rows: Sequence[Row]
) -> Fix | None:
    """Return a fix with its counts; None if the query excludes it. `rows` also hold the fixes of similar patterns."""
    parts = list(map(load_record, supported_fix.supporting_rows))
    own_record = next(part for part in parts if part.id == supported_fix.own_row.id)
    record = _merge_records(own_record, parts) if _is_set_of_calls(own_record) else own_record
    state, reason = _state(record, parts, query, context)
    if (query.state is not None and state != query.state) or (query.is_about_failure and state == "revoked"):
        return None
    peers = _peers(record, rows)
    hashes, paths = dict(query.argument_hashes), [change.path for change in record.action.changes]
    replaced = hash_replaced(paths, hashes) if hashes else ""
    if replaces_other_values(record, replaced, lambda: context.profile(record.tool, record.key)):
        return None

    experience = Experience(
        lambda: context.profile(record.tool, record.key), lambda: context.count_runs(record.tool, record.fingerprint)
    )

    def hide(agent: str) -> str:
        call = FailedCall(agent, hashes, dict(query.argument_numbers), query.verdict, query.error)
        return explain_silence(record, peers, call, replaced, experience)

    # The same states hide a fix from a model and in a list for people. Failures in other calls do not.
    is_hidden = state in HIDDEN_STATES and reason != FAILED_TWICE
    hidden_reason = find_unspeakable_value(record) if state == "approved" else hide(query.agent)
    hidden_reason = hidden_reason or (f"its state is {state}" if is_hidden else "")
    if query.showable and hidden_reason:
        return None
    if hidden_reason and not query.agent and not is_hidden:
        agents = [agent for agent in top_agents(record.agents) if agent and not hide(agent)]
        hidden_reason = f"{SHOWN_ONLY_TO}{', '.join(agents)}: {hidden_reason}" if agents else hidden_reason
    fix = to_fix(record, (state, reason), similarity)
    passed_over = {
        episode.run for peer in peers for episode in list_episodes(peer) if record.id in episode.ignored_fixes
    }
    return msgspec.structs.replace(
        fix, passed_over=len(passed_over), showable=not hidden_reason, hidden_reason=hidden_reason
    )


def _peers(record: FixRecord, rows: Sequence[Row]) -> list[FixRecord]:
    """Return the fixes of the same pattern and tool that change arguments too, or also change none."""
    has_changes = bool(record.action.changes)
    if not has_changes and record.action.type != "prerequisite":
        return []
    similar_rows = (row for row in rows if row.key == record.key and bool(row.action.changes) == has_changes)
    pattern = (record.tool, record.fingerprint)
    peers = [peer for peer in map(load_record, similar_rows) if (peer.tool, peer.fingerprint) == pattern]
    return [record, *(peer for peer in peers if peer.id != record.id)]


def _add_prerequisites(judged_fixes: Sequence[JudgedFix], context: FixContext) -> list[Fix]:
    """Add the prerequisite calls to the selected fixes, with one read for all of them.

    The runs of the fix itself supply the arguments, and those of the most frequent fixes with additional calls.
    """
    sources: dict[str, list[str]] = {}
    for fix, supported_fix in judged_fixes:
        if fix.type == "prerequisite":
            rows = sorted(supported_fix.supporting_rows, key=lambda row: (row.id != fix.id, -row.successes, row.id))
            sources[fix.id] = [row.id for row in rows[:MAX_SOURCE_FIXES]]
    samples_by_fix = context.samples([id for ids in sources.values() for id in ids]) if sources else {}
    fixes = []
    for fix, supported_fix in judged_fixes:
        if fix.id in sources:
            samples = [sample for id in sources[fix.id] for sample in samples_by_fix.get(id, ())]
            latest = [calls for _, calls in sorted(samples, key=lambda sample: -sample[0])]
            fix = msgspec.structs.replace(fix, prerequisites=build_prerequisites(supported_fix.own_row.action, latest))
        fixes.append(fix)
    return fixes


def _state(record: FixRecord, parts: Sequence[FixRecord], query: FixQuery, context: FixContext) -> tuple[FixState, str]:
    """Return the state of a fix and the reason. After a schema change of the tool, only later trials count."""
    decision = context.decisions.get(record.id)
    state = fix_state(record, lambda: context.promotion_facts().writers, query.now, decision)
    if state[0] not in ("promoted", "approved"):
        return state
    facts = context.promotion_facts()
    since = facts.schema_changed_at.get(record.tool)
    if since is None or (decision and decision.approved >= since):
        return state
    fresh = _merge_records(record, [context.recount_since(part, since) for part in parts])
    is_confirmed = fix_state(fresh, lambda: facts.writers, query.now)[0] == "promoted"
    return state if is_confirmed else ("demoted", "the tool's schema has changed since then")
