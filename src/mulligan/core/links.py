"""Recovery links: which later call recovered a failed call of the same run, and by which evidence.

A wrong link is worse than none: it reports a lost item as recovered and teaches one item's value to another. Similar
arguments are therefore no evidence. A success S recovers a failed call F only if

1. S began after the outcome of F was delivered; unless the arguments are equal, in a task related to that of F;
2. S recovers one intent: F, or a chain of re-issues that ends in F;
3. S has the same arguments, the same values in another form, the same plus what the error says is missing, or
   other values. Each of these meets a limit that the error states, or was looked up after F. Where one does not,
   the call itself must be evidence: it was made while F was handled, or by a model whose arguments F rejected. Then
   no other success of the run may show that the changed argument names an item;
4. no call with effects="once" lies between them, or is F itself, whose answer was lost and is not settled.

Everything here is a plain function of records and of `CallFacts`, which the recording process notes and never stores.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from mulligan.core.argument_comparison import (
    Comparison,
    are_similar_texts,
    compact_arguments,
    compare_arguments,
    continues_conversation,
    diff_calls,
    has_lost_values,
    is_certainly_same,
    is_hidden,
    is_rejected_argument,
    leaf_of,
    root_of,
    values_of,
)
from mulligan.core.argument_rejections import rejects_arguments
from mulligan.core.call_facts import (
    LOGGED,
    SAME_ARGUMENTS_ONLY,
    CallFacts,
    IntentMember,
    ItemTest,
    OpenFailure,
    PossibleCorrection,
    RecentSuccess,
    has_no_items,
)
from mulligan.core.calls import TOOL_NAME_PATH, Call, is_retry, is_same_json, similarity
from mulligan.core.failure import Remedy
from mulligan.core.privileged_arguments import names_identity_or_money
from mulligan.core.read_only_calls import may_prepare_command
from mulligan.core.records import Change, Link, LinkEvidence, LinkMethod, Run, Status, Step
from mulligan.core.value_support import find_sources, find_supported_values

MAX_OPEN_FAILURES = 100
"""Open failures of a run that later calls are compared with, the latest."""
MAX_INTERMEDIATE_TOOLS = 50
MAX_RECENT_SUCCESSES = 24
"""Successes since the first open failure whose arguments are stored: a prerequisite may be among them."""
STAGES = frozenset({"plan", "respond", "reflection"})
"""Types of steps that are not calls: their success does not mean that anything was executed."""


class RunProgress(msgspec.Struct, frozen=True):
    """The state of a run after some of its calls. Immutable, so that a caller can return to an earlier state."""

    open: tuple[OpenFailure, ...] = ()
    failed: int = 0
    """Calls with a failed attempt, regardless of their final outcome."""
    recovered: int = 0
    """Failed calls that a later attempt or call recovered."""
    has_own_failure: bool = False
    """Whether the run itself failed, not only a call of it."""
    has_success: bool = False
    """Whether a call succeeded."""
    recent: tuple[RecentSuccess, ...] = ()
    latest_calls: dict[str, int] = {}
    """By tool: its latest call, while a failure is open."""
    delivered: int = 0
    """Failed calls whose outcome the caller knows."""

    def status(self, run: Run) -> Status:
        if run.end_reason in ("raised", "abandoned") or self.has_own_failure:
            return "failure"
        if not self.failed:
            return "partial" if run.cut_off else "success"
        if not self.has_success:
            return "failure"
        return "recovered" if self.recovered >= self.failed and not run.cut_off else "partial"

    def after(
        self,
        call: Call,
        facts: CallFacts | None = None,
        is_item: ItemTest = has_no_items,
        withdrawn: Collection[int] = (),
        *,
        is_final: bool = False,
        settled_calls: Collection[int] = (),
    ) -> tuple[RunProgress, list[Link]]:
        """Return where the run stands after its next call, and the links from failed calls to it.

        A link of a failed call leads to a re-issue that failed too: it closes nothing and shows what was tried.
        `withdrawn` are calls whose links turned out to be wrong. `is_final` says that the run has ended.
        `settled_calls` are calls with a lost answer whose outcome the caller knows meanwhile.
        """
        if call.first.type == "reflection":
            return self, []
        if not call.has_succeeded:
            if call.has_failed and call.first.type == "run":
                return replace(self, failed=self.failed + 1, has_own_failure=True), []
            return self._after_failure(call, facts, settled_calls) if call.has_failed else (self, [])
        has_failed = call.has_failed
        links = [_link_attempts(call)] if has_failed else []
        has_success = self.has_success or call.first.type not in STAGES
        has_own_failure = self.has_own_failure or (has_failed and call.first.type == "run")
        failed, recovered = self.failed + has_failed, self.recovered + has_failed
        if not self.open:
            if not has_failed and has_success == self.has_success:
                return self, links
            counts: dict[str, Any] = {"failed": failed, "recovered": recovered, "has_success": has_success}
            return replace(self, has_own_failure=has_own_failure, **counts), links
        match = self._find_recovered(call, facts, is_item, withdrawn, settled_calls)
        remaining = self.open
        if match is not None:
            matches = self._follow_intent(match, call, facts or LOGGED, is_item)
            recovered_ids = {match.failure.call.id for match in matches}
            remaining = tuple(failure for failure in self.open if failure.call.id not in recovered_ids)
            new_links = [link for match in reversed(matches) for link in match.links(call, is_final)]
            recovered += len(new_links)
            links += new_links
        if call.first.type != "model":
            reads_only = facts is not None and facts.reads_only
            remaining = tuple(_note_success(failure, call, reads_only=reads_only) for failure in remaining)
        recent: tuple[RecentSuccess, ...] = ()
        if remaining:
            success = RecentSuccess(call.id, call.name, compact_arguments(call.last.arguments))
            recent = (*self.recent[1 - MAX_RECENT_SUCCESSES :], success)
        latest_calls = {**self.latest_calls, call.first.tool_key: call.id} if remaining else {}
        flags = (has_own_failure, has_success)
        return RunProgress(remaining, failed, recovered, *flags, recent, latest_calls, self.delivered), links

    def _after_failure(
        self, call: Call, facts: CallFacts | None, settled_calls: Collection[int]
    ) -> tuple[RunProgress, list[Link]]:
        links: list[Link] = []
        intent: tuple[int, ...] = ()
        members: tuple[IntentMember, ...] = ()
        preparing_tools: tuple[str, ...] = ()
        previous = 0
        remaining = self.open
        # A re-issue that failed continues the intent of the failed call before it. Items are told apart at its end.
        match = self._find_recovered(call, facts, has_no_items, (), settled_calls)
        if match is not None:
            links = match.links(call, is_final=True)[-1:]
            previous = match.failure.call.id
        if match is not None and match.keeps_values:
            before = match.failure
            remaining = tuple(failure for failure in remaining if failure is not before)
            intent, previous = before.failed_calls, before.previous
            preparing_tools = before.preparing_tools
            # In a second round of a program over its items, what succeeded in between is no prerequisite.
            tools = match.tools if match.method == "prerequisite" or match.changes else ()
            # Failed calls of one intent that are compared with the success, the latest.
            members = (*before.members, IntentMember(before.call, tools))[-10:]
        is_unknown_tool = call.failure is not None and call.failure.kind.is_about_tool_name
        failure = OpenFailure(
            call, facts or LOGGED, self.delivered, intent, members, previous, is_unknown_tool,
            preparing_tools=preparing_tools, has_lost_answer=call.has_lost_answer,
        )  # fmt: skip
        latest_calls = {**self.latest_calls, call.first.tool_key: call.id}
        progress = replace(
            self,
            open=(*remaining[1 - MAX_OPEN_FAILURES :], failure),
            failed=self.failed + 1,
            recent=self.recent if self.open else (),
            latest_calls=latest_calls,
            delivered=self.delivered + 1,
        )
        return progress, links

    def _find_recovered(
        self,
        call: Call,
        facts: CallFacts | None,
        is_item: ItemTest,
        withdrawn: Collection[int],
        settled_calls: Collection[int],
    ) -> Match | None:
        """Return the one open failure whose intent this call carries out."""
        links = [link for link in call.last.links if not (link.possible or (link.provisional and call.id in withdrawn))]
        carried = {link.failed_call: link for link in links}
        for failure in reversed(self.open):
            if failure.call.last.links_decided and failure.call.id in carried:
                return Match.from_link(failure, carried)
        unsettled = self._find_unsettled(settled_calls)
        linkable_failures = [failure for failure in self.open if failure.call.id not in unsettled]
        unjudged = [failure for failure in linkable_failures if not failure.call.last.links_decided]
        if unjudged:
            return self._judge(call, facts or LOGGED, unjudged, is_item)
        return self._judge(call, facts, linkable_failures, is_item) if facts is not None else None

    def _find_unsettled(self, settled_calls: Collection[int]) -> set[int]:
        """Return the open failures with a lost answer that is not settled, and those that they re-issued."""
        return {
            member.call.id
            for failure in self.open
            if failure.has_lost_answer and failure.call.id not in settled_calls
            for member in self._intent_of(failure)
        }

    def _follow_intent(self, match: Match, call: Call, facts: CallFacts, is_item: ItemTest) -> list[Match]:
        """Return a match with the earlier failures of its intent, as long as no argument names an item."""
        matches = [match]
        intent = self._intent_of(match.failure)
        if match.carried:
            # A failure that was recorded after its step had ended has no decision: equal arguments suffice.
            late_failures = [
                failure
                for failure in reversed(self.open)
                if not failure.call.last.links_decided and may_be_reissue(failure, call, facts)
            ]
            late_matches = (_find_same_arguments(failure, call, facts) for failure in late_failures)
            matches += [late_match for late_match in late_matches if late_match is not None]
            return matches + [
                Match.from_link(failure, match.carried)
                for failure in reversed(self.open)
                if failure is not match.failure
                and (failure in intent or _has_same_request(failure.call, match.failure.call))
                and failure.call.last.links_decided
                and failure.call.id in match.carried
            ]
        calls = tuple(number for failure in intent for number in failure.failed_calls)
        call_evidence = CALL_EVIDENCE.intersection(match.evidence)
        replaced = _list_arguments(intent) if call_evidence else ()
        for failure in intent[1:]:
            before, after = values_of(failure.call.last), values_of(call.last)
            if not isinstance(before, Mapping) or not isinstance(after, Mapping):
                break
            comparison = compare_arguments(before, after, failure.call.failure)
            if comparison is None:
                break
            # Each failure of a chain is tested by its own changes, however the last one is recovered.
            supported = find_supported_values(failure, comparison)
            unsupported = [path for path in comparison.item_paths if _may_name_item(supported.get(path), call_evidence)]
            paths, texts = (*unsupported, *comparison.doubtful), _find_changed_texts(comparison)
            is_doubtful = bool(paths or texts)
            candidate = PossibleCorrection(call, facts, paths, texts, calls, failure.call.id, replaced)
            if is_doubtful and is_item(candidate):
                break
            matches.append(match_changes(failure, call, match.evidence, is_provisional=is_doubtful))
        return matches

    def _intent_of(self, failure: OpenFailure) -> list[OpenFailure]:
        """Return an open failure and the failures that it re-issued with other values, the latest first."""
        intent = [failure]
        if not failure.previous:
            return intent
        by_number = {failure.call.id: failure for failure in self.open}
        while (previous := by_number.get(intent[-1].previous)) is not None:
            intent.append(previous)
        return intent

    def _judge(self, call: Call, facts: CallFacts, failures: Sequence[OpenFailure], is_item: ItemTest) -> Match | None:
        """Apply the rules to the open failures: by strength of evidence, then the latest first."""
        matches: list[Match] = []
        compared: dict[str, int] = {}
        values = values_of(call.last)
        for failure in reversed(failures):
            key = failure.call.first.tool_key
            # Open failures of one tool that a call with other arguments is compared with, the latest.
            can_compare = compared.get(key, 0) < 8
            # The cheap test first: of the further failures of a tool, only those with the same arguments count.
            if not can_compare and not is_same_json(values_of(failure.call.last), values):
                continue
            if not may_be_reissue(failure, call, facts):
                continue
            rule = _find_same_arguments(failure, call, facts)
            if rule is None and can_compare:
                compared[key] = compared.get(key, 0) + 1
                rule = self._compare(failure, call, facts, is_item)
            if rule is not None:
                matches.append(rule)
                if rule.evidence[0] == "explicit":
                    return rule
        return min(matches, key=lambda match: _RANKS.get(match.evidence[0], len(_RANKS)), default=None)

    def _compare(self, failure: OpenFailure, call: Call, facts: CallFacts, is_item: ItemTest) -> Match | None:
        if failure.call.id in facts.corrected:
            return match_changes(failure, call, ("explicit",))
        if facts is SAME_ARGUMENTS_ONLY:
            return None
        if not _are_related(failure.facts.task, facts.task) and not _is_later_turn(failure.facts.turn, facts.turn):
            return None
        if call.first.type == "model":
            return _match_conversation(failure, call)
        before, after = values_of(failure.call.last), values_of(call.last)
        if not isinstance(before, Mapping) or not isinstance(after, Mapping) or is_hidden(before) or is_hidden(after):
            return None  # no link from redacted values; an unchanged one may be of another call
        is_program = facts.knows_program and facts.turn is None
        comparison = compare_arguments(before, after, failure.call.failure, is_program=is_program)
        is_next_turn = _is_next_turn(failure.facts.turn, facts.turn)
        if comparison is None or _is_renamed_away(failure.call, call, comparison, is_next_turn=is_next_turn):
            return None
        if not comparison.values:
            evidence: LinkEvidence = "missing_arguments" if comparison.has_additions else "same_values"
            # A longer or shorter path may belong to another file of the same name.
            is_doubtful = bool(comparison.doubtful)
            candidate = PossibleCorrection(call, facts, comparison.doubtful, (), failure.failed_calls, failure.call.id)
            if is_doubtful and is_item(candidate):
                return None
            return match_changes(failure, call, (evidence,), is_provisional=is_doubtful)
        if any(root_of(path) in facts.item_arguments for path in comparison.values):
            return None
        supported = find_supported_values(failure, comparison)
        call_evidence = self._find_call_evidence(failure, call, facts, comparison)
        if not _is_supported(failure, comparison, supported, call_evidence):
            return None
        evidence_of_change = tuple(dict.fromkeys((*call_evidence, *supported.values())))
        paths = [path for path in comparison.item_paths if _may_name_item(supported.get(path), call_evidence)]
        texts = _find_changed_texts(comparison)
        if not paths and not texts:
            return match_changes(failure, call, evidence_of_change)
        intent = self._intent_of(failure)
        calls = tuple(number for member in intent for number in member.failed_calls)
        replaced = _list_arguments(intent) if call_evidence else ()
        candidate = PossibleCorrection(call, facts, tuple(paths), texts, calls, failure.call.id, replaced)
        return None if is_item(candidate) else match_changes(failure, call, evidence_of_change, is_provisional=True)

    def _find_call_evidence(
        self, failure: OpenFailure, call: Call, facts: CallFacts, comparison: Comparison
    ) -> tuple[LinkEvidence, ...]:
        """Return the evidence that this call was made because of the failure, whatever its values."""
        if failure.call.id in facts.handled:
            return ("handler",)
        cause = failure.call.failure
        is_rejected = cause is not None and rejects_arguments(cause)
        if not comparison.has_unchanged or not is_rejected:
            return ()  # after a failure that lies in the state of the world, a model may go on with the next item
        turn, failed_turn = facts.turn, failure.facts.turn
        if turn is not None and failed_turn is not None:
            return ("model_turn",) if _is_next_turn(failed_turn, turn) else ()
        if facts.is_logged and self.latest_calls.get(call.first.tool_key) == failure.call.id:
            return ("next_call",)
        return ()


_KEPT_VALUES = frozenset({"same_arguments", "same_values", "missing_arguments", "conversation", "explicit"})
CALL_EVIDENCE = frozenset[LinkEvidence]({"handler", "model_turn", "next_call"})
"""Evidence that a call was made because of the failure, whatever its values."""
_RANKS: dict[str, int] = {"same_arguments": 0, "same_values": 1, "missing_arguments": 2, "conversation": 2}


class Match(msgspec.Struct, frozen=True):
    """An open failure and why a call re-issues it."""

    failure: OpenFailure
    method: LinkMethod
    changes: tuple[Change, ...]
    evidence: tuple[LinkEvidence, ...]
    is_provisional: bool
    tools: tuple[str, ...]
    carried: Mapping[int, Link] = {}
    """Links that the recording process decided, by failed call."""

    @classmethod
    def from_link(cls, failure: OpenFailure, carried: Mapping[int, Link]) -> Match:
        link = carried[failure.call.id]
        tools = link.intermediate_tools
        return cls(failure, link.method, link.changes, link.evidence, link.provisional, tools, carried)

    @property
    def keeps_values(self) -> bool:
        """Whether both calls have the same values, or the program says that they have the same intent."""
        return all(evidence in _KEPT_VALUES for evidence in self.evidence)

    def links(self, call: Call, is_final: bool) -> list[Link]:
        """Return one link for each failed call of the intent, the last call last."""
        if self.carried:
            # Clients are untrusted: link only calls of this intent, and only to this call.
            intent = frozenset(self.failure.failed_calls)
            position: dict[str, Any] = {"run": call.first.run, "recovering_call": call.id}
            # A failure that was recorded after its step had ended has no decision, but the same values.
            late_calls = [member.call.id for member in self.failure.members if not member.call.last.links_decided]
            late_links = [
                Link(failed_call=id, method="retry", evidence=("same_arguments",), **position)
                for id in late_calls
                if id not in self.carried
            ]
            return late_links + [
                replace(link, **position, provisional=link.provisional and not is_final)
                for link in self.carried.values()
                if link.failed_call in intent
            ]
        links = {
            failed: Link(
                run=call.first.run,
                failed_call=failed,
                recovering_call=call.id,
                method=self.method,
                changes=self.changes if failed == self.failure.call.id else (),
                intermediate_tools=self.tools,
                evidence=self.evidence,
                provisional=self.is_provisional and not is_final,
            )
            for failed in self.failure.failed_calls
        }
        is_same_call = self.evidence == ("same_arguments",)
        tools = self.tools if self.method == "prerequisite" else ()
        for member in reversed(self.failure.members):
            tools = tuple(dict.fromkeys((*member.tools, *tools)))[:MAX_INTERMEDIATE_TOOLS]
            link, changes = links[member.call.id], _diff_reissue(member.call, call)
            if changes or not is_same_call:
                link = replace(link, method="agent", changes=changes)
            elif tools:
                link = replace(link, method="prerequisite", intermediate_tools=tools)
            links[member.call.id] = link
        return list(links.values())


def repeats_cut_off_call(cut_off: Step, success: Step) -> bool:
    """Return whether a success is what a call that was cut off was made for: same arguments, or conversation."""
    if cut_off.type == success.type == "model" and continues_conversation(cut_off, success):
        return True
    is_same_tool = cut_off.type == success.type and cut_off.tool_key == success.tool_key
    return is_same_tool and is_same_json(values_of(cut_off), values_of(success))


def _list_arguments(failures: Iterable[OpenFailure]) -> tuple[Mapping[str, Any], ...]:
    arguments = (failure.call.last.arguments for failure in failures)
    return tuple(values for values in arguments if isinstance(values, Mapping))


def _has_same_request(first: Call, second: Call) -> bool:
    """Return whether two calls certainly have the same tool and arguments."""
    is_same_tool = first.first.tool_key == second.first.tool_key
    return is_same_tool and is_certainly_same(first.last.arguments, second.last.arguments)


def may_be_reissue(failure: OpenFailure, call: Call, facts: CallFacts) -> bool:
    """Return whether a call has the same tool and item and began after the failure was delivered."""
    if failure.call.id in facts.corrected:
        return True
    first, failed = call.first, failure.call.first
    # The tool first: most open failures are of other tools.
    if first.tool_key != failed.tool_key and not (
        failure.is_unknown_tool and first.server == failed.server and similarity(failed.name, first.name) >= 0.75
    ):
        return False
    return (
        first.type == failed.type
        and facts.item == failure.facts.item
        and _is_later(failure, call, facts)
        and _has_same_receiver(failure, facts)
    )


def _has_same_receiver(failure: OpenFailure, facts: CallFacts) -> bool:
    """Return whether both calls work on the same object, or other evidence of intent replaces that.

    A handler may create a new client. A model names only a tool, not its object.
    """
    if failure.call.id in facts.handled or (facts.turn is not None and failure.facts.turn is not None):
        return True
    receiver = failure.facts.receiver
    return facts.receiver is None if receiver is None else receiver.is_same_as(facts.receiver)


def _is_later(failure: OpenFailure, call: Call, facts: CallFacts) -> bool:
    if facts.failures_before is not None:
        return failure.number < facts.failures_before
    return is_delivered_before(failure.call.last, call.first)


def is_delivered_before(failed_step: Step, later_step: Step) -> bool:
    """Return whether a step began after the end of a failed one, by their numbers and times."""
    if later_step.seq < failed_step.seq:
        return False
    if not later_step.started_at or not failed_step.started_at:
        return True
    # Log timestamps are in milliseconds and may be rounded, so only a clear overlap counts.
    return later_step.started_at + 1 >= failed_step.started_at + int(failed_step.duration_seconds * 1000)


def _are_related(first: tuple[int, ...] | None, second: tuple[int, ...] | None) -> bool:
    """Return whether one task is the other, or its ancestor."""
    if first is None or second is None:
        return first is second
    if not first or not second:
        return first == second
    return first[-1] in second or second[-1] in first


def _is_later_turn(first: tuple[int, int] | None, second: tuple[int, int] | None) -> bool:
    """Return whether the second call is of a later turn of the same conversation: its model has read the failure."""
    return first is not None and second is not None and first[0] == second[0] and first[1] < second[1]


def _find_same_arguments(failure: OpenFailure, call: Call, facts: CallFacts) -> Match | None:
    failed, last = failure.call, call.last
    before, after = values_of(failed.last), values_of(last)
    is_silent = before is None and last.type != "model"  # nothing identifies the item
    if is_silent or failed.first.tool_key != call.first.tool_key or not is_same_json(before, after):
        return None
    if has_lost_values(before):
        return None
    tools = failure.changing_tools if _may_have_prerequisites(failure, facts) else ()
    method: LinkMethod = "prerequisite" if tools else "retry"
    if not tools and failure.preparing_tools:
        # Another command may be why this one succeeds now, such as one that started a server. Nothing is learned.
        method, tools = "agent", failure.preparing_tools
    return Match(failure, method, (), ("same_arguments",), False, tools)


def _may_have_prerequisites(failure: OpenFailure, facts: CallFacts) -> bool:
    """Return whether calls that succeeded in between may be why the same call succeeds now.

    False if only time could help, or if a program returned to the call in a second round over its items, with many
    other tools in between.
    """
    cause = failure.call.failure
    if cause is not None and cause.remedy is Remedy.RETRY:
        return False
    is_answered = facts.turn is not None and failure.facts.turn is not None and facts.turn[0] == failure.facts.turn[0]
    return facts.is_logged or is_answered or not facts.knows_program or failure.call.id in facts.handled


def _match_conversation(failure: OpenFailure, call: Call) -> Match | None:
    """Match a model call that continues the conversation of the failed one."""
    if not continues_conversation(failure.call.last, call.last):
        return None
    changes = diff_calls(failure.call.last, call.last)
    return Match(failure, "agent", changes, ("conversation",), False, failure.tools_since if changes else ())


def match_changes(
    failure: OpenFailure, call: Call, evidence: tuple[LinkEvidence, ...], *, is_provisional: bool = False
) -> Match:
    reissue_changes = _diff_reissue(failure.call, call)
    sources: dict[str, None] = {}
    marked: list[Change] = []
    for change in reissue_changes:
        tools = find_sources(change.after, failure, leaf_of(change.path)) if change.operation == "substitute" else []
        sources |= dict.fromkeys(tools)
        marked.append(replace(change, source="run") if tools else change)
    return Match(failure, "agent", tuple(marked), evidence, is_provisional, tuple(sources) or failure.tools_since)


def _diff_reissue(failed: Call, call: Call) -> tuple[Change, ...]:
    """Return what a re-issue changed: its arguments, and its tool if it differs."""
    argument_changes = diff_calls(failed.last, call.last)
    if failed.name == call.name:
        return argument_changes
    return (Change(path=TOOL_NAME_PATH, operation="rename", before=failed.name, after=call.name), *argument_changes)


def _is_next_turn(failed: tuple[int, int] | None, turn: tuple[int, int] | None) -> bool:
    """Return whether a model requested the call in the turn after the one that it requested the failed call in."""
    return failed is not None and turn is not None and turn == (failed[0], failed[1] + 1)


def _is_renamed_away(failed: Call, call: Call, comparison: Comparison, *, is_next_turn: bool) -> bool:
    """Return whether another tool was called with other values: a similar name alone is no evidence.

    A model that read the right name may correct one value in the same turn, beside arguments that stay the same.
    """
    is_corrected = is_next_turn and comparison.has_unchanged and len(comparison.values) == 1
    return failed.name != call.name and bool(comparison.values) and not is_corrected


def _find_changed_texts(comparison: Comparison) -> tuple[str, ...]:
    """Return the paths of arguments whose long text changed."""
    return tuple(path for path in comparison.values if path not in comparison.item_paths)


def _is_supported(
    failure: OpenFailure,
    comparison: Comparison,
    supported: Mapping[str, LinkEvidence],
    call_evidence: Collection[LinkEvidence],
) -> bool:
    """Return whether the new values serve the same intent.

    The evidence of a call supports one value, in a handler two if another argument is unchanged.
    """
    is_handled = "handler" in call_evidence
    unsupported_count = len(comparison.values) - len(supported)
    if unsupported_count > (2 if is_handled and comparison.has_unchanged else bool(call_evidence)):
        return False
    if comparison.dropped and not is_handled:
        return False  # a model that leaves a value out may do something else: it has chosen no new value
    return is_handled or not any(
        names_identity_or_money(path)
        and supported.get(path) != "tool_result"
        and not is_rejected_argument(failure.call.failure, path)
        for path in comparison.values
    )


def _may_name_item(support: LinkEvidence | None, call_evidence: Collection[LinkEvidence]) -> bool:
    """Return whether other calls must show that a changed argument names no item.

    A value that was looked up needs no such test. One that meets a stated limit needs it if nothing says that the
    call was made because of the failure: the next item of a loop meets the limit too.
    """
    return support is None or (support == "stated_limit" and not call_evidence)


def _note_success(failure: OpenFailure, call: Call, *, reads_only: bool) -> OpenFailure:
    """Store what has succeeded since a failure, and the results of other tools."""
    first = call.first
    facts: dict[str, Any] = {}
    if first.name not in failure.tools_since and len(failure.tools_since) < MAX_INTERMEDIATE_TOOLS:
        facts["tools_since"] = (*failure.tools_since, first.name)
    if not reads_only and first.name not in failure.changing_tools:
        facts["changing_tools"] = (*failure.changing_tools, first.name)[:MAX_INTERMEDIATE_TOOLS]
    preparing_tools = failure.preparing_tools
    if (
        first.name not in preparing_tools
        and len(preparing_tools) < MAX_INTERMEDIATE_TOOLS
        and may_prepare_command(call.last, failure.call.first)
    ):
        facts["preparing_tools"] = (*preparing_tools, first.name)
    if call.last.result is not None and first.tool_key != failure.call.first.tool_key:
        # Results since a failure that are searched for a new value, the latest.
        facts["results"] = (*failure.results[-7:], (first.name, call.last.result))
    return replace(failure, **facts) if facts else failure


# Items


def differs_in(candidate: PossibleCorrection, steps: Iterable[Step]) -> bool:
    """Item test: return whether another call of the tool has another value, or a similar text, in a changed argument.

    Redacted values count as different, because equal ones cannot be recognized.
    """
    last = candidate.call.last
    arguments = last.arguments
    if not isinstance(arguments, Mapping):
        return False
    roots = {root_of(path) for path in candidate.paths}
    texts = {root_of(path): arguments.get(root_of(path)) for path in candidate.texts}
    for step in steps:
        other = step.arguments
        if step.call == candidate.call.id or step.tool_key != last.tool_key or not isinstance(other, Mapping):
            continue
        is_success, is_reissued = step.outcome == "success", step.call in candidate.intent
        if is_success and any(candidate.is_other_item(root, other.get(root)) for root in roots):
            return True
        if not is_reissued and any(are_similar_texts(text, other.get(root)) for root, text in texts.items()):
            return True
    return False


def _link_attempts(call: Call) -> Link:
    names = (name for step in call.steps if step.recovery for name in step.recovery.prerequisites)
    prerequisites = tuple(dict.fromkeys(names))
    method: LinkMethod = "retry" if all(is_retry(step.recovery) for step in call.steps) else "repair"
    if not call.changes and prerequisites:
        method = "prerequisite"
    return Link(
        run=call.first.run,
        failed_call=call.id,
        recovering_call=call.id,
        method="repair" if call.changes else method,
        changes=call.changes,
        intermediate_tools=prerequisites[:MAX_INTERMEDIATE_TOOLS] if method == "prerequisite" else (),
        evidence=("attempt",),
    )
