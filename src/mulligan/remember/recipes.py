"""What had been missing: the calls after which the same arguments worked, learned over many runs.

Each run tells which calls were made between a failure and the same call's success, with much that was beside the
point. The shortest set of calls that was enough by itself is what was missing; runs that did more besides bear it out.
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
"""Calls of a recipe. More of them explain nothing."""
BORNE_OUT = 0.2
"""The share of all runs with these calls in which they were the only ones: less is luck."""
CONSTANT = 0.6
"""The share of runs in which an argument had one value, so that it belongs to the tool and not to the run."""
RUNS = 2
"""In which that value was seen."""
ALIKE = 3
"""Patterns that are asked where the failure's own has nothing to say."""
PARTS = 5
"""Sets of calls of which a recipe's arguments are learned, and `EACH` the runs of each of them, the latest."""
EACH = 8

Samples = Sequence[Sequence[tuple[str, dict[str, Any]]]]


class Brief(msgspec.Struct):
    """What of a tally says which fixes come first: the rest of it is read of those alone that are told."""

    id: str
    form: Form
    key: str = ""
    tried: int = 0
    worked: int = 0
    agents: dict[str, int] = {}
    body: bytes = b""

    @classmethod
    def of(cls, body: bytes) -> Brief:
        """From what is kept of a tally."""
        brief = decode(body, cls)
        brief.body = body
        return brief


Row = Tally | Brief


def whole(row: Row) -> Tally:
    return row if isinstance(row, Tally) else decode(row.body, Tally)


class Learned(msgspec.Struct, frozen=True):
    """A fix with the tallies that its record comes from: its own, and of a recipe also those that bear it out."""

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
        """Whether it is told to have worked for this agent."""
        for each in self.parts:
            if agent in each.agents:
                return agent in told_agents(_counts(self.parts, "agents"))
        return False


def learned(tallies: Sequence[Row], least: int = 1) -> list[Learned]:
    """The recipes of one pattern that worked so often at the least, in no order.

    Sets of calls are not held against each other: of each call the rows that have it are the bits of one number, and
    what has all calls of a set is what these numbers have in common.
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
    """By the rows above a set of calls, which have all of them: those that have no others, and the first of these."""
    place = 1
    for row in tried:
        names = row.form.names
        if row.worked and len(names) <= LONGEST:
            above = every
            for name in names:
                above &= having[name]
            if above == place and row.worked < least:
                pass  # nobody did more besides
            # Else luck: nearly everybody did more, and had to.
            elif above == place or row.worked >= BORNE_OUT * sum([each.worked for each in _at(above, tried)]):
                same, first = enough.get(above, (0, None))
                enough[above] = same | place, row if first is None else min(first, row, key=_shortness)
        place <<= 1
    beside = 0
    for above, (same, _) in enough.items():
        beside |= above ^ same
    # Where a shorter set was enough often enough, what a longer one does besides is beside the point.
    found = [Learned.of(row, _at(above, tried)) for above, (same, row) in enough.items() if not same & beside]
    return [each for each in found if each.worked >= least] if least > 1 else found


def _at(places: int, rows: Sequence[Row]) -> list[Row]:
    """The rows at the places whose bits are set."""
    found = []
    while places:
        last = places & -places
        found.append(rows[last.bit_length() - 1])
        places ^= last
    return found


def _shortness(row: Row) -> tuple[int, str]:
    return len(row.form.names), row.id


def _merged(row: Tally, above: Sequence[Tally]) -> Tally:
    """The record of a set of calls: that of all runs in which they were made, whatever else was."""
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
    """The calls of a recipe: which arguments were the same in nearly every run, and which came from the run."""
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
                continue  # most did without it
            value, times = _usual(values)
            if times >= most and times >= least and value is not None and _is_told(value):
                constant[key] = value
            else:
                varying.append(key)
        found.append(Ahead(tool=name, arguments=constant, open=tuple(varying)))
    return tuple(found)


def _order(form: Form, samples: Samples) -> list[str]:
    """The order in which the calls were mostly made."""
    wanted = set(form.names)
    orders = Counter(
        names for sample in samples if wanted <= set(names := tuple(tool for tool, _ in sample if tool in wanted))
    )
    return list(orders.most_common(1)[0][0]) if orders else list(form.names)


def _usual(values: Sequence[Any]) -> tuple[Any, int]:
    """The most frequent value; 1 and 1.0 are one number here, and a list is the same in any order."""
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
    """Whether a value may be told to another run: no identifier, nothing that was hidden."""
    if isinstance(value, list):
        return all(map(_is_told, value))
    if isinstance(value, str):
        return len(value) <= 40 and not any(each.isdigit() or each in "@[]<>:/\\" for each in value)
    return value is None or isinstance(value, bool | int | float)


class Known(msgspec.Struct, frozen=True):
    """What is known beside the tallies, by whoever keeps them."""

    crowd: Crowd
    verdicts: Mapping[str, Verdict]
    samples: Callable[[Sequence[str]], Mapping[str, Sequence[tuple[int, Sequence[tuple[str, dict[str, Any]]]]]]]
    """Of each of some fixes, when it worked and with which calls, the latest `EACH` of them."""
    since: Mapping[str, int]
    """When the schemas of tools have changed."""
    fresh: Callable[[Tally, int], Tally]
    """A tally of what was tried since then."""
    profile: Callable[[str, str], Profile]
    """The arguments of recent successful calls of a tool, by its name and key."""
    items: Callable[[str, str], Collection[str]]
    """The arguments of a tool that name items, by its name and key."""


def answered(groups: Sequence[tuple[float, Sequence[Row]]], query: FixQuery, known: Known) -> list[Fix]:
    """Fixes and recipes with their records, the likeliest first: the same answer whoever keeps the tallies."""
    own = [(likeness, [row for row in rows if _is_of_tool(row, query)]) for likeness, rows in groups]
    found = _in_order(own, query)
    rows = [row for _, group in own for row in group]
    told = (each for likeness, one in found if (each := _judged(likeness, one, query, known, rows)) is not None)
    return _whole(list(islice(told, max(query.limit, 0))), known)


def _is_of_tool(row: Row, query: FixQuery) -> bool:
    """Whether it is not of another tool of the same name. Records with a bare name may be of either."""
    return not query.key or not row.key or row.key == query.key


def recorded(tallies: Sequence[Tally], query: FixQuery, known: Known) -> dict[str, tuple[Fix, tuple[str, ...]]]:
    """The fixes of one pattern by their ids, with their records and the ids of the tallies that these come from."""
    found = (_judged(1.0, each, query, known, tallies) for each in _learned(tallies))
    return {told[0].id: (told[0], tuple(each.id for each in told[1].parts)) for told in found if told is not None}


def best(
    tallies: Sequence[Tally], query: FixQuery, known: Known, is_worth: Callable[[Fix], bool]
) -> tuple[list[Fix], Fix | None]:
    """The fixes of one pattern without the calls that come first, and the likeliest that is worth it, with them."""
    every = (_judged(likeness, each, query, known, tallies) for likeness, each in _in_order([(1.0, tallies)], query))
    found = [each for each in every if each is not None]
    chosen = next((each for each in found if is_worth(each[0])), None)
    return [fix for fix, _ in found], _whole([chosen], known)[0] if chosen is not None else None


def _learned(tallies: Sequence[Row], least: int = 1) -> list[Learned]:
    """The fixes of one pattern, recipes and others."""
    plain = [Learned.of(each, (each,)) for each in tallies if not _is_set_of_calls(each) and each.worked >= least]
    return [*plain, *learned(tallies, least)]


def _is_set_of_calls(row: Row) -> bool:
    """Whether it is a prerequisite after which the same call works, and not one that supplies a value."""
    return row.form.sort == "recipe" and not row.form.changes


def _in_order(groups: Sequence[tuple[float, Sequence[Row]]], query: FixQuery) -> list[tuple[float, Learned]]:
    """The likeliest first. What helped once against something else is chance."""
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
    """A fix with its record, unless it is not asked for. `rows` are all fixes of its pattern and those like it."""
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
    """The fixes of the same pattern and tool that change one of the same arguments, or like it none."""
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
    """Fixes with the calls that come first: they are worked out for those that are told, of all of them at once."""
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
    """The fixes whose runs tell a recipe's arguments: its own, and the most frequent of those that did more."""
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
