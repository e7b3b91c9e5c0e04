"""Search in runs, for people: the box's grammar, hits with their places, identical failures folded, and facets."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from mulligan.contract.search_terms import (
    MAX_SEARCH_CHARS,
    NO_TERMS,
    SearchMatch,
    SearchTextError,
    find_matches,
    parse_search,
)
from mulligan.contract.store import Store
from mulligan.core.records import History, Step, pattern_id, to_builtins
from mulligan.report.resources import RUN_SPEC
from mulligan.report.run_text import format_status, status_of, to_facts
from mulligan.report.tables import SHOWN_ID_CHARS, format_age, format_count, to_line

MAX_SHOWN_MATCHES = 3
"""Places of a run that are shown."""
FOLDING_FACTOR = 4
"""Runs that are read for each hit, because those with the same failure become one hit."""
MIN_COUNTED_RUNS = 100
"""Runs that are read at least, for the counts."""
MAX_FACET_VALUES = 5
SEARCH_SPEC = msgspec.structs.replace(
    RUN_SPEC, filters=tuple(parameter for parameter in RUN_SPEC.filters if parameter.name != "text"), options=()
)
"""The filters of a search."""
_NAMED_VALUE = re.compile(r"(?<!\S)(-?[^\W\d][\w.]*)(?:=|:\s+)(?=\S)")
NAMED_VALUES = "No run has these characters. These runs have the value in a place of this name, as by name:value."
HIDDEN_VALUES = "Some values are hidden here: they were compared by their keyed hash, as a whole and with equal case."


class SearchHit(msgspec.Struct, frozen=True):
    """A run with the places that match. Later runs with the same failure are only counted."""

    history: History
    matches: tuple[SearchMatch, ...]
    pattern: str = ""
    """The pattern of the failure that matches, if nothing else does."""
    others: int = 0
    """Earlier runs with the same failure."""


class SearchAnswer(msgspec.Struct, frozen=True):
    """The hits of a search, and what the runs that were read have in common."""

    hits: list[SearchHit]
    facets: dict[str, dict[str, int]]
    """Runs by filter and value, the most frequent first: `status`, `agent`, `version`, `tool`, `kind`."""
    run_count: int
    """Runs that were read and match."""
    is_complete: bool
    """Whether these are all runs that match. Otherwise they are the newest."""
    next_position: tuple[Any, ...] | None = None
    """The position of the last run of this page, if there are more hits."""
    is_first_page: bool = True
    notes: tuple[str, ...] = ()
    """What a reader needs to know about these hits, or why there are none."""

    @property
    def total(self) -> str:
        """Return the number of runs that match, as far as it is counted."""
        count = format_count(self.run_count, "run")
        if not self.is_first_page:
            return f"{'' if self.is_complete else 'More than '}{count} on this page and later ones."
        if not self.is_complete:
            return f"More than {count} match."
        return f"{count} match{'es' if self.run_count == 1 else ''}."

    @property
    def has_hidden_values(self) -> bool:
        return any(match.is_hidden for hit in self.hits for match in hit.matches)


def search_runs(
    store: Store,
    tenant: str,
    text: str,
    now: int,
    limit: int,
    filters: Mapping[str, Any],
    position: tuple[Any, ...] | None = None,
    key: bytes | None = None,
) -> SearchAnswer:
    """Return the runs that match a search text, the newest first. Raise SettingsError if it is no search text.

    If none has the characters `name=value`, those with the value in a place of this name are returned. `position` is
    that of the last run of the page before, and `key` that of the tenant's hidden values.
    """
    if len(text) > MAX_SEARCH_CHARS:
        raise SearchTextError(f"The search text has {len(text):,} characters. Use at most {MAX_SEARCH_CHARS}.")
    if not text.strip() and all(filters.get(parameter.name) is None for parameter in SEARCH_SPEC.filters):
        raise SearchTextError(NO_TERMS)
    read_hits = partial(_read_hits, store, tenant, now=now, limit=limit, filters=filters, position=position, key=key)
    answer = read_hits(text)
    if answer.hits:
        return answer
    if (named_text := _NAMED_VALUE.sub(r"\1:", text)) != text:
        with contextlib.suppress(SearchTextError):  # such as since=yesterday
            named_answer = read_hits(named_text)
            if named_answer.hits:
                return msgspec.structs.replace(named_answer, notes=(NAMED_VALUES, *named_answer.notes))
    return msgspec.structs.replace(answer, notes=tuple(_list_hints(text)))


def _read_hits(
    store: Store,
    tenant: str,
    text: str,
    now: int,
    limit: int,
    filters: Mapping[str, Any],
    position: tuple[Any, ...] | None,
    key: bytes | None,
) -> SearchAnswer:
    max_runs = max(FOLDING_FACTOR * limit, MIN_COUNTED_RUNS)
    selected = {parameter.name: filters.get(parameter.name) for parameter in SEARCH_SPEC.filters}
    query = SEARCH_SPEC.build_query({**selected, "now": now}, text=text or None, limit=max_runs + 1, before=position)
    terms = parse_search(query.text, key or b"") if query.text is not None else ()
    hits: dict[str, SearchHit] = {}
    histories = SEARCH_SPEC.read(store, tenant, query)
    shown_count = 0
    for history in histories[:max_runs]:
        matches = find_matches(history, terms) or ()
        pattern = _find_pattern(history, matches)
        hit_id = pattern or history.run.id
        if hit_id in hits:
            hits[hit_id] = msgspec.structs.replace(hits[hit_id], others=hits[hit_id].others + 1)
        elif len(hits) < limit:
            hits[hit_id] = SearchHit(history, matches, pattern)
        else:
            break
        shown_count += 1
    answer = SearchAnswer(
        hits=list(hits.values()),
        facets=_count_facets(histories[:max_runs]),
        run_count=min(len(histories), max_runs),
        is_complete=len(histories) <= max_runs,
        next_position=query.position_of(histories[shown_count - 1]) if shown_count < len(histories) else None,
        is_first_page=position is None,
    )
    return msgspec.structs.replace(answer, notes=(HIDDEN_VALUES,)) if answer.has_hidden_values else answer


def _list_hints(text: str) -> Iterator[str]:
    """Yield why a search may have no hit. No hint repeats a word of the search."""
    if re.search(r"(?<!\S)[\w.]+:(?!\S)", text):
        yield "After name: type the word without a blank: error:declined. All runs with a failure: status:failure."
    if re.search(r"[^\W\d][\w.]*=\S", text):
        yield 'For a value of a name, type name:value. For the characters, quotation marks: "name=value".'
    yield "A word is found from its beginning: cust finds customer, but tomer does not. All words must occur in a run."


def _count_facets(histories: Sequence[History]) -> dict[str, dict[str, int]]:
    facets: dict[str, Counter[str]] = {name: Counter() for name in ("status", "agent", "version", "tool", "kind")}
    for history in histories:
        run, steps = history.run, history.steps
        values: dict[str, set[str | None]] = {
            "status": {status_of(history)},
            "agent": {run.agent},
            "version": {run.version},
            "tool": {step.name for step in steps if step.type == "tool"},
            "kind": {str(step.failure.kind) for step in steps if step.failure is not None},
        }
        for name, counter in facets.items():
            counter.update(value for value in values[name] if value)
    return {name: dict(counter.most_common(MAX_FACET_VALUES)) for name, counter in facets.items() if counter}


def _find_pattern(history: History, matches: Sequence[SearchMatch]) -> str:
    """Return the pattern of the one failure that matches; empty if there are others, or another place matches."""
    steps = {step.seq: step for step in history.steps}
    patterns = {_pattern_of(match, steps) for match in matches}
    return patterns.pop() if len(patterns) == 1 else ""


def _pattern_of(match: SearchMatch, steps: Mapping[int, Step]) -> str:
    step = steps.get(match.seq) if match.seq is not None else None
    if step is None or step.failure is None or match.location.partition(" ")[0] not in ("error", "kind"):
        return ""
    return pattern_id(step.name, step.failure.fingerprint) if step.failure.fingerprint else ""


def to_search_facts(hit: SearchHit) -> dict[str, Any]:
    """Return a hit as a row of JSON."""
    facts = {**to_facts(hit.history), "matches": to_builtins(hit.matches)}
    return {**facts, "pattern": hit.pattern, "other_runs": hit.others}


def describe_location(match: SearchMatch) -> str:
    """Describe where a match is: `call 3, search: argument customer_id`."""
    if match.seq is None:
        return match.location
    attempt = f", attempt {match.attempt}" if match.attempt > 1 else ""
    name = f", {match.name}" if match.location not in ("tool", "model") else ""
    hidden = " (hidden value)" if match.is_hidden else ""
    return f"step {match.seq}{to_line(name, 60)}{attempt}: {to_line(match.location, 80)}{hidden}"


def describe_facets(answer: SearchAnswer) -> Iterator[str]:
    """Describe what the runs have in common: `status: failure 3, success 2`. A facet with one value says nothing."""
    facets = {name: counts for name, counts in answer.facets.items() if len(counts) > 1}
    for name, counts in facets.items():
        yield f"{name}: " + ", ".join(f"{to_line(value, 40)} {count}" for value, count in counts.items())
    if facets and not answer.is_complete:
        yield f"Counted in the newest {answer.run_count} of these runs."


def split_excerpt(match: SearchMatch) -> list[tuple[str, bool]]:
    """Return the sanitized excerpt in parts, with the flag whether a part matches."""
    parts, position = [], 0
    for start, end in match.spans:
        if start >= position:
            parts += [(match.excerpt[position:start], False), (match.excerpt[start:end], True)]
            position = end
    parts.append((match.excerpt[position:], False))
    return [(_one_line(text), is_match) for text, is_match in parts if text]


def _one_line(text: str) -> str:
    """Return untrusted text as a part of a line, with the blanks at its ends."""
    start, end = (" " if edge.isspace() else "" for edge in (text[:1], text[-1:]))
    return f"{start}{to_line(text)}{end}" if text.strip() else " "


def render_hit(hit: SearchHit, now: int, highlight: Callable[[str], str]) -> Iterator[str]:
    """Render a hit for a terminal. `highlight` marks a text that matches."""
    run, facts = hit.history.run, to_facts(hit.history)
    status = format_status(facts["status"], run.end_reason)
    yield f"{run.id[:SHOWN_ID_CHARS]}  {status}  {format_age(run.started_at, now)}  {to_line(run.agent or '-', 40)}"
    for match in hit.matches[:MAX_SHOWN_MATCHES]:
        excerpt = "".join(highlight(text) if is_match else text for text, is_match in split_excerpt(match))
        yield f"    {describe_location(match)}: {excerpt}"
    if (hidden := len(hit.matches) - MAX_SHOWN_MATCHES) > 0:
        yield f"    and {format_count(hidden, 'other place')}"
    if hit.others:
        yield f"    the same failure in {format_count(hit.others, 'earlier run')}: mulligan patterns show {hit.pattern}"
