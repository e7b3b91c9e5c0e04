"""Possible corrections: changed calls of a model right after a failure, perhaps with another intent.

One of them proves nothing: the model may have gone on with its next item, or made a choice. They recover nothing. But
what recurs over runs, arguments and days is a rule of the tool (LEARNING.md, principle 6), so each is stored with its
step, and the votes of many runs decide whether a model reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from mulligan.core.argument_comparison import (
    Comparison,
    compare_arguments,
    is_hidden,
    is_long_text,
    is_word_of,
    leaf_of,
    root_of,
    values_of,
)
from mulligan.core.argument_rejections import judge_failure
from mulligan.core.call_facts import CallFacts, OpenFailure
from mulligan.core.calls import Call
from mulligan.core.failure import Failure, Remedy
from mulligan.core.links import RunProgress, match_changes, may_be_reissue
from mulligan.core.privileged_arguments import names_identity_or_money
from mulligan.core.records import Change, Link, LinkEvidence
from mulligan.core.stated_limits import asks_to_check, names_argument


def find_possible_links(progress: RunProgress, call: Call, facts: CallFacts) -> tuple[Link, ...]:
    """Return links to the failed calls that a model's call may correct; those with the fewest changes."""
    if call.first.type == "model" or any(failure.has_lost_answer for failure in progress.open):
        return ()
    comparisons = [
        (failure, comparison)
        for failure in _list_attempts(progress, call, facts)
        if (comparison := _compare(failure, call, facts)) is not None
    ]
    fewest = min((len(comparison.values) for _, comparison in comparisons), default=0)
    nearest = [failure for failure, comparison in comparisons if len(comparison.values) == fewest]
    turns = [failure.facts.turn for failure in nearest]
    if len(set(turns)) < len(turns) and facts.turn is not None:
        return ()  # several calls of one turn failed: it is unknown which of them this one replaces
    evidence: LinkEvidence = "next_call" if facts.turn is None else "model_turn"
    matches = [match_changes(failure, call, (evidence,), is_provisional=True) for failure in nearest]
    links = [match.links(call, is_final=False)[-1] for match in matches if match.changes]
    return tuple(replace(link, possible=True) for link in links)


class UnprovenCorrection(msgspec.Struct, frozen=True):
    """A call with possible links, and what its run must show by its end so that they teach."""

    tool_key: str
    scope: tuple[Any, ...]
    roots: frozenset[str]
    """The changed arguments."""
    failed: Mapping[str, Any]
    """The arguments of the failed call with the fewest changes."""
    arguments: Mapping[str, Any]
    needs_contrast: bool
    """Whether another success must show that both calls are about the same item."""

    @classmethod
    def of(cls, progress: RunProgress, call: Call, facts: CallFacts, links: Sequence[Link]) -> UnprovenCorrection:
        failures = {failure.call.id: failure.call for failure in progress.open}
        failed, arguments = values_of(failures[links[0].failed_call].last), values_of(call.last)
        changes = [change for link in links for change in link.changes]
        cause = failures[links[0].failed_call].failure
        assert cause is not None
        roots = frozenset(root_of(change.path) for change in changes)
        keeps_values = all(change.operation == "rename" or root_of(change.path) not in failed for change in changes)
        needs_contrast = not (keeps_values or _is_about_changes(cause, changes))
        return cls(call.first.tool_key, facts.item, roots, failed, arguments, needs_contrast)

    def has_contrast(self, successes: Iterable[Mapping[str, Any]], failed_calls: Iterable[Mapping[str, Any]]) -> bool:
        """Return whether another success is about another item, in an argument that both calls have in common.

        It either has another value of the changed argument too, or shows that the model went on with the new value.
        A loop over two arguments tries the old value again.
        """
        shared = [
            name for name in self.failed if name not in self.roots and self.failed[name] == self.arguments.get(name)
        ]
        tries = sum(all(failed.get(root) == self.failed.get(root) for root in self.roots) for failed in failed_calls)
        return any(
            any(success.get(name) != self.failed[name] for name in shared)
            and (tries < 2 or any(success.get(root) != self.arguments.get(root) for root in self.roots))
            for success in successes
        )


def _is_about_changes(cause: Failure, changes: Sequence[Change]) -> bool:
    """Return whether an error rejects what was asked, or mentions a changed argument and no state of the world."""
    verdict = judge_failure(cause)
    if verdict == "rejection":
        return True
    for change in changes:
        is_named = names_argument(cause.message, leaf_of(change.path))
        is_quoted = change.before is not None and is_word_of(str(change.before), cause.message)
        if verdict == "neither" and (is_named or is_quoted):
            return True
        # "No figures for region north" names a region that the tool knows.
        if is_named and is_quoted and not cause.kind.accepted_arguments:
            return True
        if asks_to_check(cause.message, leaf_of(change.path)):
            return True
    return False


def _list_attempts(progress: RunProgress, call: Call, facts: CallFacts) -> list[OpenFailure]:
    """Return the failed calls of the tool in the turns right before this call, the latest first."""
    if facts.turn is None and not facts.is_logged:
        return []  # a program made the call: outside a handler, it may be about the next item
    failures = [failure for failure in reversed(progress.open) if may_be_reissue(failure, call, facts)]
    if facts.turn is None:
        latest = progress.latest_calls.get(call.first.tool_key)
        return [failure for failure in failures if failure.call.id == latest]
    loop, number = facts.turn
    attempts: list[OpenFailure] = []
    for failure in failures:
        if failure.facts.turn is None or failure.facts.turn[0] != loop or failure.facts.turn[1] < number - 1:
            break
        number = failure.facts.turn[1]
        attempts.append(failure)
    # Failed calls in successive turns that a possible correction is compared with.
    return attempts[:4]


def _compare(failure: OpenFailure, call: Call, facts: CallFacts) -> Comparison | None:
    """Return what a call changed; None if that is too much, or nothing that can be learned."""
    before, after, cause = values_of(failure.call.last), values_of(call.last), failure.call.failure
    if not isinstance(before, Mapping) or not isinstance(after, Mapping) or is_hidden(before) or is_hidden(after):
        return None
    if cause is None or cause.remedy in (Remedy.RETRY, Remedy.STOP):
        return None  # time may have helped, or a person must decide
    if cause.kind.has_no_repair and judge_failure(cause) != "rejection":
        return None  # other arguments go around it
    comparison = compare_arguments(before, after, cause)
    # Values that a possible correction changes. More make another call.
    if comparison is None or not comparison.has_unchanged or not 0 < len(comparison.values) <= 2:
        return None
    is_unlearnable = any(
        root_of(path) in facts.item_arguments or names_identity_or_money(path) or any(map(is_long_text, pair))
        for path, pair in comparison.values.items()
    )
    return None if is_unlearnable else comparison
