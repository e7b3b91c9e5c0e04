"""What had been missing: the calls after which the same arguments worked, learned over many runs.

Each run tells which calls were made between a failure and the same call's success, with much that was beside the
point. The shortest set of calls that was enough by itself is what was missing; runs that did more besides bear it out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.records import Ahead, Fix, FixState, encode
from mulligan.remember.fixes import Crowd, Form, Tally, Verdict, judged, rejudged, told
from mulligan.remember.store import FixQuery

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


class Learned(msgspec.Struct, frozen=True):
    """A recipe with the tallies that bear it out; the first is that of the recipe alone."""

    tally: Tally
    parts: tuple[str, ...]


def learned(tallies: Sequence[Tally]) -> list[Learned]:
    """The recipes of one pattern, that which explains the most first."""
    tried = [each for each in tallies if each.form.sort == "recipe"]
    if not tried:
        return []
    places = {name: 1 << at for at, name in enumerate({name for each in tried for name in each.form.names})}
    # Which calls, as bits of one number: one set is part of another where it adds no bit to it.
    sets = [sum({places[name] for name in each.form.names}) for each in tried]
    rows = [(each.worked, own) for each, own in zip(tried, sets, strict=True) if each.worked]
    short = [(each, own) for each, own in zip(tried, sets, strict=True)
             if each.worked and len(each.form.names) <= LONGEST]  # fmt: skip
    worked = {own: sum(count for count, other in rows if own | other == other) for own in {own for _, own in short}}
    # Else luck: nearly everybody did more, and had to.
    likely = [(each, own) for each, own in short if each.worked >= BORNE_OUT * worked[own]]
    enough = {own for _, own in likely}
    found: dict[int, Learned] = {}
    for row, own in likely:
        # A shorter one that was enough often enough: what this one does besides is beside the point.
        if any(other != own and other | own == own for other in enough):
            continue
        above = [each for each, other in zip(tried, sets, strict=True) if own | other == other]
        made = Learned(_merged(row, above), tuple(each.id for each in above))
        if own not in found or _rank(made) < _rank(found[own]):
            found[own] = made
    return sorted(found.values(), key=_rank)


def _rank(each: Learned) -> tuple[int, int, str]:
    return -each.tally.worked, len(each.tally.form.names), each.tally.id


def _merged(row: Tally, above: Sequence[Tally]) -> Tally:
    """The record of a set of calls: that of all runs in which they were made, whatever else was."""
    whole = Tally(id=row.id, tool=row.tool, fingerprint=row.fingerprint, form=row.form)
    days: set[int] = set()
    for each in above:
        whole.tried += each.tried
        whole.worked += each.worked
        whole.imported += each.imported
        days.update(each.days)
        for name, count in each.principals.items():
            whole.principals[name] = whole.principals.get(name, 0) + count
        for name, count in each.agents.items():
            whole.agents[name] = whole.agents.get(name, 0) + count
    whole.days = sorted(days)[-20:]
    whole.recent = sorted(vote for each in above for vote in each.recent)[-20:]
    return whole


def ahead(form: Form, samples: Samples) -> tuple[Ahead, ...]:
    """The calls of a recipe: which arguments were the same in nearly every run, and which came from the run."""
    found = []
    for name in _order(form, samples):
        made = [arguments for sample in samples for tool, arguments in sample if tool == name]
        constant: dict[str, Any] = {}
        varying: list[str] = []
        given = Counter(key for arguments in made for key in arguments)
        for key, count in given.items():
            if count < CONSTANT * len(made):
                continue  # most did without it
            value, times = _usual([arguments[key] for arguments in made if key in arguments])
            if times >= max(CONSTANT * len(made), min(RUNS, len(made))) and value is not None and _is_told(value):
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
    kinds = {type(value) for value in values}
    keys: Sequence[Any]
    if kinds == {str}:
        keys = values
    elif kinds <= {int, float}:
        keys = list(map(float, values))
    else:
        keys = [encode(_key(value)) for value in values]
    key, times = Counter(keys).most_common(1)[0]
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


def answered(groups: Sequence[tuple[float, Sequence[Tally]]], query: FixQuery, known: Known) -> list[Fix]:
    """Fixes and recipes with their records, the likeliest first: the same answer whoever keeps the tallies."""
    found = [each for likeness, tallies in groups for each in _judged(likeness, tallies, query, known)]
    found.sort(key=lambda each: _order_of(each[0], query))
    return _whole(found[: max(query.limit, 0)], known)


def recorded(tallies: Sequence[Tally], query: FixQuery, known: Known) -> dict[str, tuple[Fix, tuple[str, ...]]]:
    """The fixes of one pattern by their ids, with their records and the ids of the tallies that these come from."""
    return {fix.id: (fix, tuple(each.id for each in parts)) for fix, _, parts in _judged(1.0, tallies, query, known)}


def best(
    tallies: Sequence[Tally], query: FixQuery, known: Known, is_worth: Callable[[Fix], bool]
) -> tuple[list[Fix], Fix | None]:
    """The fixes of one pattern without the calls that come first, and the likeliest that is worth it, with them."""
    found = sorted(_judged(1.0, tallies, query, known), key=lambda each: _order_of(each[0], query))
    chosen = next((each for each in found if is_worth(each[0])), None)
    return [fix for fix, _, _ in found], _whole([chosen], known)[0] if chosen is not None else None


def _judged(
    likeness: float, tallies: Sequence[Tally], query: FixQuery, known: Known
) -> list[tuple[Fix, Tally, Sequence[Tally]]]:
    found: list[tuple[Fix, Tally, Sequence[Tally]]] = []
    plain = [(each, (each,)) for each in tallies if each.form.sort != "recipe" and each.worked]
    by_id = {each.id: each for each in tallies}
    of_recipes = [(each.tally, tuple(by_id[id] for id in each.parts)) for each in learned(tallies)]
    for each, parts in (*plain, *of_recipes):
        if likeness < 1 and each.worked < RUNS:
            continue  # what helped once against something else is chance
        fix = told(each, _state(each, parts, query, known), likeness)
        if query.state is not None and fix.state != query.state:
            continue
        if query.is_question and fix.state == "revoked":
            continue
        found.append((fix, each, parts))
    return found


def _order_of(fix: Fix, query: FixQuery) -> tuple[float, bool, int, int, str]:
    return -fix.likeness, not fix.agents.get(query.agent), -fix.worked, fix.tried, fix.id


def _whole(chosen: Sequence[tuple[Fix, Tally, Sequence[Tally]]], known: Known) -> list[Fix]:
    """Fixes with the calls that come first: they are worked out for those that are told, of all of them at once."""
    sources = {fix.id: _sources(tally, parts) for fix, tally, parts in chosen if tally.form.sort == "recipe"}
    made = known.samples([id for ids in sources.values() for id in ids]) if sources else {}
    whole = []
    for fix, tally, _ in chosen:
        if fix.id in sources:
            some = [sample for id in sources[fix.id] for sample in made.get(id, ())]
            latest = [done for _, done in sorted(some, key=lambda sample: -sample[0])]
            fix = msgspec.structs.replace(fix, first=ahead(tally.form, latest))
        whole.append(fix)
    return whole


def _sources(tally: Tally, parts: Sequence[Tally]) -> list[str]:
    """The fixes whose runs tell a recipe's arguments: its own, and the most frequent of those that did more."""
    others = sorted((part for part in parts if part.id != tally.id), key=lambda part: (-part.worked, part.id))
    return [tally.id, *(part.id for part in others[: PARTS - 1])]


def _state(whole: Tally, parts: Sequence[Tally], query: FixQuery, known: Known) -> tuple[FixState, str]:
    verdict = known.verdicts.get(whole.id)
    state = judged(whole, known.crowd, query.now, verdict)
    since = known.since.get(whole.tool)
    if since is None or state[0] not in ("promoted", "approved"):
        return state
    fresh = _merged(whole, [known.fresh(part, since) for part in parts])
    return rejudged(state, since, fresh, known.crowd, query.now, verdict)
