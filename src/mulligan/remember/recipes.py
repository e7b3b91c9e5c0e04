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

from mulligan.records import Ahead, Fix, FixState, decode, encode
from mulligan.remember.fixes import Crowd, Form, Tally, Verdict, judged, rejudged, told, told_agents
from mulligan.remember.store import FixQuery
from mulligan.remember.telling import Profile, why_untold

LONGEST = 4
"""Limit of calls in a prerequisite. Larger sets are unlikely to be a cause."""
BORNE_OUT = 0.2
"""Minimum share of runs in which a set of calls had no additional calls; below it, the set is a coincidence."""
CONSTANT = 0.6
"""Share of runs in which an argument must have the same value to be stored with the prerequisite."""
RUNS = 2
"""Minimum number of runs with that value."""
ALIKE = 3
"""Similar patterns to search if the failure's own pattern has no fix."""
PARTS = 5
"""Limit of fixes that supply the arguments of a prerequisite; `MAX_SAMPLES_PER_FIX` limits the runs of each."""
EACH = 8

Samples = Sequence[Sequence[tuple[str, dict[str, Any]]]]


class Brief(msgspec.Struct):
    """The fields of a `FixRecord` that decide the ranking. The rest is decoded only for fixes that are returned."""

    id: str
    form: Form
    key: str = ""
    tried: int = 0
    worked: int = 0
    agents: dict[str, int] = {}
    body: bytes = b""

    @classmethod
    def of(cls, body: bytes) -> Brief:
        """Decode the ranking fields from an encoded `FixRecord`."""
        brief = decode(body, cls)
        brief.body = body
        return brief


Row = Tally | Brief


def whole(row: Row) -> Tally:
    return row if isinstance(row, Tally) else decode(row.body, Tally)


class Learned(msgspec.Struct, frozen=True):
    """A fix with the records that support it: its own, and for a prerequisite also those with additional calls."""

    own: Row
    parts: Sequence[Row]
    worked: int
    tried: int

    @classmethod
    def of(cls, own: Row, parts: Sequence[Row]) -> Learned:
        if len(parts) == 1:
            return cls(own, parts, own.worked, own.tried)
        return cls(own, parts, sum([each.worked for each in parts]), sum([each.tried for each in parts]))

    def has_helped(self, agent: str) -> bool:
        """Return whether the fix counts as successful for this agent."""
        for each in self.parts:
            if agent in each.agents:
                return agent in told_agents(_counts(self.parts, "agents"))
        return False


def learned(tallies: Sequence[Row], least: int = 1) -> list[Learned]:
    """Return the prerequisites of one pattern with at least this many successes, in no particular order.

    To avoid comparing all pairs of sets, each call maps to a bit mask of the rows that contain it. The rows that
    contain all calls of a set are the intersection of these masks.
    """
    tried = [each for each in tallies if _is_set_of_calls(each)]
    having: dict[str, int] = {}
    place = 1
    for row in tried:
        for name in row.form.names:
            having[name] = having.get(name, 0) | place
        place <<= 1
    every = place - 1
    enough: dict[int, tuple[int, Row]] = {}
    """By the mask of the rows that contain a set of calls: the rows with exactly this set, and the first of them."""
    place = 1
    for row in tried:
        names = row.form.names
        if row.worked and len(names) <= LONGEST:
            above = every
            for name in names:
                above &= having[name]
            if above == place and row.worked < least:
                pass  # no run made additional calls
            # Otherwise a coincidence: nearly all successful runs needed additional calls.
            elif above == place or row.worked >= BORNE_OUT * sum([each.worked for each in _at(above, tried)]):
                same, first = enough.get(above, (0, None))
                enough[above] = same | place, row if first is None else min(first, row, key=_shortness)
        place <<= 1
    beside = 0
    for above, (same, _) in enough.items():
        beside |= above ^ same
    # If a smaller set was sufficient, the additional calls of a larger set are irrelevant.
    found = [Learned.of(row, _at(above, tried)) for above, (same, row) in enough.items() if not same & beside]
    return [each for each in found if each.worked >= least] if least > 1 else found


def _at(places: int, rows: Sequence[Row]) -> list[Row]:
    """Return the rows whose bits are set."""
    found = []
    while places:
        last = places & -places
        found.append(rows[last.bit_length() - 1])
        places ^= last
    return found


def _shortness(row: Row) -> tuple[int, str]:
    return len(row.form.names), row.id


def _merged(row: Tally, above: Sequence[Tally]) -> Tally:
    """Return the combined record of a set of calls, over all runs that made these calls and possibly others."""
    return Tally(
        id=row.id,
        tool=row.tool,
        fingerprint=row.fingerprint,
        form=row.form,
        key=row.key,
        tried=sum(each.tried for each in above),
        worked=sum(each.worked for each in above),
        imported=sum(each.imported for each in above),
        principals=_counts(above, "principals"),
        agents=_counts(above, "agents"),
        days=sorted({day for each in above for day in each.days})[-20:],
        recent=sorted(vote for each in above for vote in each.recent)[-20:],
        proofs={f"{each.id} {content}": proof for each in above for content, proof in each.proofs.items()},
    )


def _counts(above: Sequence[Row], of: Literal["principals", "agents"]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for each in above:
        counts: dict[str, int] = getattr(each, of)
        for name, count in counts.items():
            sums[name] = sums.get(name, 0) + count
    return sums


def ahead(form: Form, samples: Samples) -> tuple[Ahead, ...]:
    """Return the calls of a prerequisite with the arguments that were constant; the others vary between runs."""
    found = []
    for name in _order(form, samples):
        made = [arguments for sample in samples for tool, arguments in sample if tool == name]
        constant: dict[str, Any] = {}
        varying: list[str] = []
        given: dict[str, list[Any]] = {}
        for arguments in made:
            for key, value in arguments.items():
                given.setdefault(key, []).append(value)
        most, least = CONSTANT * len(made), min(RUNS, len(made))
        for key, values in given.items():
            if len(values) < most:
                continue  # most runs omitted it
            value, times = _usual(values)
            if times >= most and times >= least and value is not None and _is_told(value):
                constant[key] = value
            else:
                varying.append(key)
        found.append(Ahead(tool=name, arguments=constant, open=tuple(varying)))
    return tuple(found)


def _order(form: Form, samples: Samples) -> list[str]:
    """Return the call names in their most frequent order."""
    wanted = set(form.names)
    orders = Counter(
        names for sample in samples if wanted <= set(names := tuple(tool for tool, _ in sample if tool in wanted))
    )
    return list(orders.most_common(1)[0][0]) if orders else list(form.names)


def _usual(values: Sequence[Any]) -> tuple[Any, int]:
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
    return next(value for value, each in zip(reversed(values), reversed(keys), strict=True) if each == key), times


def _key(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, list):
        return sorted(str(_key(each)) for each in value)
    return value


def _is_told(value: Any) -> bool:
    """Return whether a value may be shown in another run: no identifier and no redacted text."""
    if isinstance(value, list):
        return all(map(_is_told, value))
    if isinstance(value, str):
        return len(value) <= 40 and not any(each.isdigit() or each in "@[]<>:/\\" for each in value)
    return value is None or isinstance(value, bool | int | float)


class Known(msgspec.Struct, frozen=True):
    """Data beside the fix records, supplied by the store."""

    crowd: Crowd
    verdicts: Mapping[str, Verdict]
    samples: Callable[[Sequence[str]], Mapping[str, Sequence[tuple[int, Sequence[tuple[str, dict[str, Any]]]]]]]
    """Return, by fix, when it succeeded and with which calls: the newest `MAX_SAMPLES_PER_FIX` trials."""
    since: Mapping[str, int]
    """By tool, when its schema last changed."""
    fresh: Callable[[Tally, int], Tally]
    """Recount a record from the trials since a time."""
    profile: Callable[[str, str], Profile]
    """Return the arguments of recent successful calls of a tool, by its name and key."""
    items: Callable[[str, str], Collection[str]]
    """Return the arguments of a tool that name items, by its name and key."""


def answered(groups: Sequence[tuple[float, Sequence[Row]]], query: FixQuery, known: Known) -> list[Fix]:
    """Return fixes and prerequisites with their counts, the most likely first. All stores share this ranking."""
    own = [(likeness, [row for row in rows if _is_of_tool(row, query)]) for likeness, rows in groups]
    found = _in_order(own, query)
    rows = [row for _, group in own for row in group]
    told = (each for likeness, one in found if (each := _judged(likeness, one, query, known, rows)) is not None)
    return _whole(list(islice(told, max(query.limit, 0))), known)


def _is_of_tool(row: Row, query: FixQuery) -> bool:
    """Return whether a row belongs to the queried tool. A row without a key may belong to any tool of that name."""
    return not query.key or not row.key or row.key == query.key


def recorded(tallies: Sequence[Tally], query: FixQuery, known: Known) -> dict[str, tuple[Fix, tuple[str, ...]]]:
    """Return the fixes of one pattern by id, each with the ids of the records that its counts come from."""
    found = (_judged(1.0, each, query, known, tallies) for each in _learned(tallies))
    return {told[0].id: (told[0], tuple(each.id for each in told[1].parts)) for told in found if told is not None}


def best(
    tallies: Sequence[Tally], query: FixQuery, known: Known, is_worth: Callable[[Fix], bool]
) -> tuple[list[Fix], Fix | None]:
    """Return the fixes of one pattern without prerequisites, and the most likely qualifying fix including them."""
    every = (_judged(likeness, each, query, known, tallies) for likeness, each in _in_order([(1.0, tallies)], query))
    found = [each for each in every if each is not None]
    chosen = next((each for each in found if is_worth(each[0])), None)
    return [fix for fix, _ in found], _whole([chosen], known)[0] if chosen is not None else None


def _learned(tallies: Sequence[Row], least: int = 1) -> list[Learned]:
    """Return the fixes of one pattern, prerequisites included."""
    plain = [Learned.of(each, (each,)) for each in tallies if not _is_set_of_calls(each) and each.worked >= least]
    return [*plain, *learned(tallies, least)]


def _is_set_of_calls(row: Row) -> bool:
    """Return whether a row is a prerequisite after which the same call succeeds, not one that supplies a value."""
    return row.form.sort == "recipe" and not row.form.changes


def _in_order(groups: Sequence[tuple[float, Sequence[Row]]], query: FixQuery) -> list[tuple[float, Learned]]:
    """Sort by likelihood, the most likely first. A single success against another failure counts as chance."""
    found = [
        (likeness, each) for likeness, tallies in groups for each in _learned(tallies, 1 if likeness >= 1 else RUNS)
    ]

    def order(one: tuple[float, Learned]) -> tuple[float, bool, int, int, str]:
        likeness, each = one
        return -likeness, not each.has_helped(query.agent), -each.worked, each.tried, each.own.id

    return sorted(found, key=order)


def _judged(
    likeness: float, each: Learned, query: FixQuery, known: Known, rows: Sequence[Row]
) -> tuple[Fix, Learned] | None:
    """Return a fix with its counts; None if the query excludes it. `rows` also hold the fixes of similar patterns."""
    parts = list(map(whole, each.parts))
    own = next(part for part in parts if part.id == each.own.id)
    record = _merged(own, parts) if _is_set_of_calls(own) else own
    state, why = _state(record, parts, query, known)
    if (query.state is not None and state != query.state) or (query.is_question and state == "revoked"):
        return None
    untold = why_untold(
        record,
        _peers(record, rows),
        query.agent,
        lambda: known.profile(record.tool, record.key),
        lambda: known.items(record.tool, record.key),
    )
    if query.tellable and (untold or state in ("revoked", "demoted", "paused", "expired")):
        return None
    fix = told(record, (state, why), likeness)
    return msgspec.structs.replace(fix, tellable=not untold, why_untold=untold), each


def _peers(record: Tally, rows: Sequence[Row]) -> list[Tally]:
    """Return the fixes of the same pattern and tool that change one of the same arguments, or also change none."""
    paths = {change.path for change in record.form.changes}
    if not paths and record.form.sort != "recipe":
        return []
    alike = (
        row
        for row in rows
        if row.key == record.key
        and (any(change.path in paths for change in row.form.changes) if paths else not row.form.changes)
    )
    found = [tally for row in alike if (tally := whole(row)).fingerprint == record.fingerprint]
    return [record, *(tally for tally in found if tally.id != record.id)]


def _whole(chosen: Sequence[tuple[Fix, Learned]], known: Known) -> list[Fix]:
    """Add the prerequisite calls to the selected fixes, with one read for all of them."""
    sources = {fix.id: _sources(each.own, each.parts) for fix, each in chosen if each.own.form.sort == "recipe"}
    made = known.samples([id for ids in sources.values() for id in ids]) if sources else {}
    found = []
    for fix, each in chosen:
        if fix.id in sources:
            some = [sample for id in sources[fix.id] for sample in made.get(id, ())]
            latest = [done for _, done in sorted(some, key=lambda sample: -sample[0])]
            fix = msgspec.structs.replace(fix, first=ahead(each.own.form, latest))
        found.append(fix)
    return found


def _sources(tally: Row, parts: Sequence[Row]) -> list[str]:
    """Return the fixes whose runs supply the arguments: its own, then the most frequent with additional calls."""
    others = sorted((part for part in parts if part.id != tally.id), key=lambda part: (-part.worked, part.id))
    return [tally.id, *(part.id for part in others[: PARTS - 1])]


def _state(record: Tally, parts: Sequence[Tally], query: FixQuery, known: Known) -> tuple[FixState, str]:
    verdict = known.verdicts.get(record.id)
    state = judged(record, known.crowd, query.now, verdict)
    since = known.since.get(record.tool)
    if since is None or state[0] not in ("promoted", "approved"):
        return state
    fresh = _merged(record, [known.fresh(part, since) for part in parts])
    return rejudged(state, since, fresh, known.crowd, query.now, verdict)
