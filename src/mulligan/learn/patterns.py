"""Failure patterns: the failures of one tool and fingerprint, merges, and similar patterns.

Plain functions of records; the counters are in `store/pattern_counts.py`.

A text's three-byte pieces are hashed to the bits of one large integer, its sketch. Comparing two sketches takes one
operation on two integers, so that all patterns of a tool can be compared while a call waits
(`python evals/memory.py --alike` compares it with `difflib`). `find_related` searches the patterns of all tools, for
people. An embedder of theirs may supply vectors instead; a pattern's vector is stored as a key-value entry.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import mul, truediv
from zlib import crc32

import msgspec

from mulligan.classify.fingerprint import build_template, compute_fingerprint
from mulligan.contract.store import DAY, PatternCommand, PatternQuery, Store
from mulligan.core.failure import Failure, StoreError, UnsupportedOperationError
from mulligan.core.records import Pattern, Step
from mulligan.learn.pattern_decisions import Occurrences, PatternDecision, apply_decision, resolve_owner

MAX_SHOWN_AGENTS = 10
MAX_SHOWN_EXAMPLES = 5
"""Limit for a pattern shown to people; a pattern can have many more."""
MAX_MESSAGE_CHARS = 500
"""Length of the message stored with a pattern. The steps hold the full message."""


def order_of(step: Step) -> tuple[int, str, int]:
    """Return the sort key that decides which of two failures came first, independent of arrival order."""
    return step.started_at, step.run, step.seq


def start_of_day(time: int) -> int:
    return time // DAY * DAY


def extract_message_and_template(step: Step) -> tuple[str, str]:
    """Return the message of a failure and its template. Failures with the same template belong to the same pattern."""
    message = step.failure.message if step.failure else ""
    arguments = step.arguments if isinstance(step.arguments, Mapping) else None
    return message[:MAX_MESSAGE_CHARS], build_template(message, arguments)


def assign_to_step(failure: Failure, step: Step) -> Failure:
    """Return a failure whose tool was unknown with the fingerprint that it has as a failure of this step."""
    arguments = step.arguments if isinstance(step.arguments, dict) else None
    fingerprint = compute_fingerprint(failure.kind, step.name, failure.message, arguments)
    return msgspec.structs.replace(failure, fingerprint=fingerprint)


# Decisions of people: merges


def resolve_command(
    command: PatternCommand, pattern_ids: Collection[str], decisions: Mapping[str, PatternDecision]
) -> tuple[PatternCommand, str] | None:
    """Return the command with complete ids, and the id of the pattern to change; None if there is no such pattern.

    A command for a merged pattern applies to the pattern it was merged into, except `split`, which applies to the
    merged one.
    """
    pattern = complete_id(command.pattern, pattern_ids)
    if pattern is None:
        return None
    if command.action == "split":
        return command, pattern
    pattern = find_merge_root(pattern, decisions)
    if command.action != "merge":
        return command, pattern
    if command.into is None:
        raise UnsupportedOperationError(
            "Merging needs two pattern ids: the pattern to merge and the pattern to merge it into."
        )
    into = complete_id(command.into, pattern_ids)
    if into is None:
        raise UnsupportedOperationError(f"No pattern {command.into}. List patterns: mulligan patterns")
    into = find_merge_root(into, decisions)
    if into == pattern:
        raise UnsupportedOperationError(f"{command.pattern} and {command.into} are already merged.")
    return msgspec.structs.replace(command, into=into), pattern


def complete_id(id: str, existing_ids: Collection[str]) -> str | None:
    """Return the existing id that equals this id or uniquely starts with it; None if there is none."""
    if id in existing_ids:
        return id
    matching_ids = [existing_id for existing_id in existing_ids if existing_id.startswith(id)]
    return matching_ids[0] if len(matching_ids) == 1 else None


def limit_details(pattern: Pattern, with_examples: bool = False) -> Pattern:
    """Return the pattern with its most frequent agents and, on request, its newest examples."""
    agents = dict(sorted(pattern.agents.items(), key=lambda item: (-item[1], item[0]))[:MAX_SHOWN_AGENTS])
    newest = sorted(pattern.examples, key=lambda example: (-example.started_at, example.run, example.seq))
    examples = tuple(newest[:MAX_SHOWN_EXAMPLES]) if with_examples else ()
    return msgspec.structs.replace(pattern, agents=agents, examples=examples)


def find_merge_root(id: str, decisions: Mapping[str, PatternDecision]) -> str:
    """Follow merges from a pattern. Return the id it is counted under, its own if it was not merged."""
    visited_ids = {id}
    while (
        (decision := decisions.get(id)) is not None and decision.into is not None and decision.into not in visited_ids
    ):
        id = decision.into
        visited_ids.add(id)
    return id


def merge_patterns(
    parts: Iterable[Pattern], decisions: Mapping[str, PatternDecision], occurrences: Occurrences, now: int
) -> list[Pattern]:
    """Combine merged patterns and set the state of each resulting pattern at this time."""
    patterns_by_id = {part.id: part for part in parts}
    root_ids = {id: find_merge_root(id, decisions) for id in patterns_by_id}
    groups: dict[str, list[Pattern]] = {id: [part] for id, part in patterns_by_id.items() if root_ids[id] == id}
    for id, part in patterns_by_id.items():
        if root_ids[id] != id:
            # The target of a merge may have been deleted; then the merged pattern counts separately.
            groups.setdefault(root_ids[id] if root_ids[id] in patterns_by_id else id, []).append(part)
    merged_patterns = {id: _merge_group(id, group) for id, group in groups.items()}
    return [
        apply_decision(decisions.get(id, PatternDecision()), pattern, occurrences, now)
        for id, pattern in merged_patterns.items()
    ]


def _merge_group(id: str, group: list[Pattern]) -> Pattern:
    first, last = min(part.first_seen_at for part in group), max(part.last_seen_at for part in group)
    main = next(part for part in group if part.id == id)
    agents: Counter[str] = Counter()
    days: Counter[int] = Counter()
    for part in group:
        agents.update(part.agents)
        days.update(part.days)
    return msgspec.structs.replace(
        main,
        occurrences=sum(part.occurrences for part in group),
        recovered=sum(part.recovered for part in group),
        unrecovered=sum(part.unrecovered for part in group),
        runs=sum(part.runs for part in group),
        first_seen_at=first,
        last_seen_at=last,
        agents=dict(agents),
        examples=tuple(example for part in group for example in part.examples),
        days=dict(sorted(days.items())),
        merged=tuple(sorted(part.id for part in group if part.id != id)),
    )


def matches_query(pattern: Pattern, query: PatternQuery) -> bool:
    if query.state not in (pattern.state, pattern.status) and (query.state is not None or pattern.state == "muted"):
        return False
    if query.owner is not None and pattern.owner != resolve_owner(query.owner):
        return False
    if query.text is not None and not contains_text(pattern, query.text):
        return False
    if query.regressed and not (pattern.resolved_at and pattern.state != "resolved"):
        return False
    return (
        (query.tool is None or pattern.tool == query.tool)
        and (query.kind is None or matches_kind(pattern.kind, query.kind))
        and (query.agent is None or query.agent in pattern.agents)
        and (query.since is None or pattern.last_seen_at >= query.since)
        and (query.new_since is None or pattern.first_seen_at >= query.new_since)
    )


def contains_text(pattern: Pattern, text: str) -> bool:
    """Return whether tool, kind, message or template contain the text, ignoring case."""
    texts = (pattern.tool, pattern.kind, pattern.message, pattern.template)
    return text.casefold() in "\n".join(texts).casefold()


def matches_kind(kind: str, kind_filter: str) -> bool:
    """Return whether a kind matches the filter. A filter such as `tool/` matches all kinds of that type."""
    return kind.startswith(kind_filter) if kind_filter.endswith("/") else kind == kind_filter


def sort_patterns(patterns: Iterable[Pattern], query: PatternQuery) -> list[Pattern]:
    """Return one page of the patterns in the order of the query."""
    following = [pattern for pattern in patterns if query.after is None or query.position_of(pattern) > query.after]
    return sorted(following, key=query.position_of)[: max(query.limit, 0)]


# Similar texts


SKETCH_BITS = 1024
PIECE_BYTES = 3
MAX_SKETCH_CHARS = 400
"""Characters of a text that are used."""
MIN_SIMILARITY = 0.5
"""Minimum similarity at which failures of one tool and kind share fixes (`evals/memory.py --alike`)."""


_BIT = tuple(1 << position for position in range(SKETCH_BITS))


def sketch(text: str) -> int:
    """Return the sketch of a text, with one bit per hashed piece."""
    normalized = f"  {' '.join(text[:MAX_SKETCH_CHARS].casefold().split())} ".encode("utf-8", "replace")
    positions = {
        crc32(normalized[start : start + PIECE_BYTES]) % SKETCH_BITS
        for start in range(len(normalized) - PIECE_BYTES + 1)
    }
    return sum(map(_BIT.__getitem__, positions))


def pack(bits: int) -> bytes:
    return bits.to_bytes(SKETCH_BITS // 8, "little")


def unpack(data: bytes) -> int:
    return int.from_bytes(data, "little")


def sketch_similarity(left: int, right: int) -> float:
    """Return the similarity of two sketches from 0 to 1, as the cosine of their bit sets."""
    if not left or not right:
        return 0.0
    return float((left & right).bit_count() / (left.bit_count() * right.bit_count()) ** 0.5)


class Sketches:
    """Named sketches, prepared for comparison with new texts."""

    def __init__(self, sketches: Iterable[tuple[str, int]]) -> None:
        pairs = [(name, bits) for name, bits in sketches if bits]
        self._names = [name for name, _ in pairs]
        self._bits = [bits for _, bits in pairs]
        self._sizes = [bits.bit_count() for bits in self._bits]

    def __len__(self) -> int:
        return len(self._names)

    def nearest(self, text: str, limit: int = 8, threshold: float = MIN_SIMILARITY) -> list[tuple[float, str]]:
        """Return similarities and names, the most similar first; possibly none."""
        query_bits = sketch(text)
        # Rank without square roots, which keeps the order; compute the exact similarity only for the best.
        shared = list(map(int.bit_count, map(query_bits.__and__, self._bits)))
        ranks = list(map(truediv, map(mul, shared, shared), self._sizes))
        best = sorted(ranks, reverse=True)[:limit]
        min_rank = max(0.99 * threshold * threshold * query_bits.bit_count(), best[-1] if len(best) == limit else 0.0)
        near = [index for index, rank in enumerate(ranks) if rank >= min_rank]
        matches = [(sketch_similarity(query_bits, self._bits[index]), self._names[index]) for index in near]
        matches = [match for match in matches if match[0] >= threshold]
        return sorted(matches, key=lambda match: (-match[0], match[1]))[:limit]


def nearest(
    text: str, sketches: Iterable[tuple[str, int]], limit: int = 8, threshold: float = MIN_SIMILARITY
) -> list[tuple[float, str]]:
    """Compare a text with sketches that are used once."""
    return Sketches(sketches).nearest(text, limit, threshold)


# Related patterns


Embedder = Callable[[str], Iterable[float]]
MAX_COMPARED_PATTERNS = 5000
"""Patterns that are compared: those with the most occurrences."""
VECTOR_KIND = "vector"


def find_related(
    store: Store, tenant: str, pattern: Pattern, limit: int = 10, embed: Embedder | None = None, name: str = ""
) -> list[tuple[float, Pattern]]:
    """Return other patterns with their similarity, most similar first.

    `name` identifies the embedder: its vectors are stored under this name.
    """
    patterns = store.patterns(tenant, PatternQuery(limit=MAX_COMPARED_PATTERNS))
    other_patterns = [other for other in patterns if other.id != pattern.id]
    if embed is None:
        own_sketch, min_similarity = sketch(_match_text(pattern)), MIN_SIMILARITY
        ranked = [(sketch_similarity(own_sketch, sketch(_match_text(other))), other) for other in other_patterns]
    else:
        own_vector, min_similarity = _load_vector(store, tenant, pattern, embed, name), 0.0
        ranked = [
            (_cosine(own_vector, _load_vector(store, tenant, other, embed, name)), other) for other in other_patterns
        ]
    ranked.sort(key=lambda match: (-match[0], match[1].id))
    return [match for match in ranked[: max(limit, 0)] if match[0] > 0 and match[0] >= min_similarity]


def _match_text(pattern: Pattern) -> str:
    return pattern.template or pattern.message


def _load_vector(store: Store, tenant: str, pattern: Pattern, embed: Embedder, name: str) -> Sequence[float]:
    """Return the stored unit vector of a pattern, or compute and store it."""
    kind = f"{VECTOR_KIND} {name}"
    stored_bytes = store.get(tenant, kind, pattern.id)
    if stored_bytes is not None and len(stored_bytes) % 4 == 0:
        stored_vector = array("f")
        stored_vector.frombytes(stored_bytes)
        return stored_vector
    try:
        # Longer message templates are truncated for the embedder.
        vector = array("f", embed(_match_text(pattern)[:2000]))
    except Exception as error:
        raise StoreError(f"The embedder {name} failed: {type(error).__name__}: {error}") from error
    norm = math.sqrt(sum(component * component for component in vector))
    if not vector or not math.isfinite(norm):
        raise StoreError(f"The embedder {name} returned no vector for {pattern.id}.")
    unit_vector = array("f", (component / (norm or 1.0) for component in vector))
    store.put(tenant, kind, pattern.id, unit_vector.tobytes())
    return unit_vector


def _cosine(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(map(float.__mul__, left, right)) if len(left) == len(right) else 0.0
