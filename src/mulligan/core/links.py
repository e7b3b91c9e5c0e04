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

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from mulligan.core.argument_comparison import (
    COMMAND_ARGUMENTS,
    FORM_OPERATIONS,
    Comparison,
    are_similar_texts,
    compact_arguments,
    compare_arguments,
    continues_conversation,
    diff_calls,
    has_lost_values,
    is_certainly_same,
    is_hidden,
    is_long_text,
    is_rejected_argument,
    is_same_text,
    is_word_of,
    leaf_of,
    result_text,
    root_of,
    values_of,
)
from mulligan.core.argument_rejections import rejects_arguments
from mulligan.core.calls import TOOL_NAME_PATH, Call, group_attempts, is_retry, is_same_json, similarity
from mulligan.core.failure import Failure, Remedy
from mulligan.core.privileged_arguments import names_identity_or_money, split_words
from mulligan.core.quantity_arguments import measures_quantity
from mulligan.core.read_only_calls import may_prepare_command
from mulligan.core.records import Change, History, Link, LinkEvidence, LinkMethod, Run, Status, Step
from mulligan.core.stated_limits import follows_direction, supports_value

MAX_OPEN_FAILURES = 100
"""Open failures of a run that later calls are compared with, the latest."""
MAX_COMPARED_FAILURES = 8
"""Open failures of one tool that a call with other arguments is compared with, the latest."""
MAX_INTENT_CALLS = 1000
"""Failed calls of one intent that a success recovers, the latest."""
MAX_INTENT_MEMBERS = 10
"""Failed calls of one intent that are compared with the success, the latest."""
MAX_INTERMEDIATE_TOOLS = 50
MAX_RECENT_SUCCESSES = 24
"""Successes since the first open failure whose arguments are stored: a prerequisite may be among them."""
MAX_RESULT_MEMBERS = 200
"""Members of a result that are searched for a short value."""
MAX_RESULTS = 8
"""Results since a failure that are searched for a new value, the latest."""
MIN_RESULT_VALUE_CHARS = 3
"""Shorter values are looked up only in fields whose name has a word of the argument's name."""
MIN_TOOL_NAME_SIMILARITY = 0.75
_STAGES = frozenset({"plan", "respond", "reflection"})
"""Types of steps that are not calls: their success does not mean that anything was executed."""


class Receiver(msgspec.Struct, frozen=True, eq=False):
    """What a function depends on besides its arguments. The same method of another object is another target."""

    function: Any
    """A reference to a function that may be created repeatedly with other values; None for a method."""
    values: tuple[Any, ...]
    """References to the object of a method, or to the values in a function's closure."""

    def is_same_as(self, other: Receiver | None) -> bool:
        if other is None:
            return False
        function = _dereference(self.function)
        if function is not None and function is _dereference(other.function):
            return True
        return len(self.values) == len(other.values) and all(map(_is_same_object, self.values, other.values))


def _dereference(reference: Any) -> Any:
    return reference() if isinstance(reference, weakref.ref) else reference


_PLAIN = (str, int, float, bool, bytes)


def _is_same_object(first: Any, second: Any) -> bool:
    """Return whether two references are to one object, or to equal plain values. A dead reference equals nothing."""
    one, other = _dereference(first), _dereference(second)
    if one is None and isinstance(first, weakref.ref):
        return False
    return one is other or (type(one) is type(other) and isinstance(one, _PLAIN) and one == other)


class CallFacts(msgspec.Struct, frozen=True):
    """Facts about a call beyond its record. Used to judge links, never stored."""

    failures_before: int | None = None
    """Failures of the run that were delivered before the call began; None if only times are known."""
    task: tuple[int, ...] | None = None
    """The task or thread of the call, preceded by its ancestors; None if tasks are unknown."""
    handled: tuple[int, ...] = ()
    """Failed calls whose exception was being handled when the call began."""
    turn: tuple[int, int] | None = None
    """The loop, and the number of the model turn that requested the call."""
    item: tuple[Any, ...] = ()
    """The item scopes around the call, and the values of its declared item arguments."""
    item_arguments: tuple[str, ...] = ()
    """Arguments that are declared to name items."""
    privileged: Collection[str] = ()
    """Arguments that are declared privileged."""
    is_destructive: bool = False
    """Whether the tool is declared destructive: all its arguments are privileged."""
    corrected: tuple[int, ...] = ()
    """Failed calls that the program says this call corrects."""
    receiver: Receiver | None = None
    """What the function depends on besides its arguments: the object of a method, or its closure."""
    knows_program: bool = False
    """Whether a program in this process made the call, so that an exception handler would have been detected."""
    is_logged: bool = False
    """Whether a model made the calls of the run and turns are unknown, as in an agent's log or behind a proxy."""
    lost_answers: tuple[Any, ...] = ()
    """Of a call that only reads: the lost answers of the session before it, which its success may settle."""
    reads_only: bool = False
    """Whether the tool is declared to have no effects, so that its call changes nothing that a later one depends on."""


LOGGED = CallFacts(is_logged=True)
"""Facts of a call that another program recorded."""


SAME_ARGUMENTS_ONLY = CallFacts(task=())
"""Facts of an otherwise unknown call: it recovers a failure only with the same arguments."""


class PossibleCorrection(msgspec.Struct, frozen=True):
    """A call that may correct a failed one, with the arguments whose values it changes."""

    call: Call
    facts: CallFacts
    paths: tuple[str, ...]
    """Arguments in which no other success of the run may differ."""
    texts: tuple[str, ...] = ()
    """Arguments with a long text, to which no other call of the run may have a similar one."""
    intent: tuple[int, ...] = ()
    """The failed calls that it re-issues."""
    failed: int = 0
    """The failed call that it is compared with."""
    replaced: tuple[Mapping[str, Any], ...] = ()
    """The arguments of the failed calls, if the correction was made because of them.

    Other calls may have succeeded with what failed here: who corrects an error has first tried the usual value.
    """

    def is_other_item(self, root: str, value: Any) -> bool:
        """Return whether a value of another success in a changed argument shows that the argument names items."""
        arguments = self.call.last.arguments
        if isinstance(arguments, Mapping) and is_certainly_same(arguments.get(root), value):
            return False
        return not any(is_certainly_same(failed.get(root), value) for failed in self.replaced)


ItemTest = Callable[[PossibleCorrection], bool]
"""Returns whether other calls of the run show that a changed argument names an item."""


def has_no_items(candidate: PossibleCorrection) -> bool:
    """Item test for a caller that knows of no other calls."""
    return False


class IntentMember(msgspec.Struct, frozen=True):
    """An earlier failed call of an intent, and the tools that succeeded before it was issued again."""

    call: Call
    tools: tuple[str, ...]


class OpenFailure(msgspec.Struct, frozen=True):
    """An unrecovered failed call, and what happened since."""

    call: Call
    facts: CallFacts
    number: int
    """The number of failures of the run that were delivered before it."""
    intent: tuple[int, ...] = ()
    """Earlier failed calls of the same intent with the same values, the oldest first."""
    members: tuple[IntentMember, ...] = ()
    """The latest of these, with what succeeded between them."""
    previous: int = 0
    """The open failure that it re-issued with other values: the same intent, unless these values name items."""
    is_unknown_tool: bool = False
    """Whether it failed because there is no tool of that name: the call of a similar one may re-issue it."""
    tools_since: tuple[str, ...] = ()
    """Tools that have succeeded since, models excluded."""
    changing_tools: tuple[str, ...] = ()
    """Those of them that are not declared to only read: they may be why the same call succeeds later."""
    preparing_tools: tuple[str, ...] = ()
    """Those of them that may have changed what it depends on, if it is a shell command. The same intent keeps them."""
    results: tuple[tuple[str, Any], ...] = ()
    """Results received since from calls of other tools: the tool and the result."""
    has_lost_answer: bool = False
    """Whether it may have executed a call with effects="once" whose answer never arrived."""

    @property
    def failed_calls(self) -> tuple[int, ...]:
        return (*self.intent, self.call.id)[-MAX_INTENT_CALLS:]


class RecentSuccess(msgspec.Struct, frozen=True):
    """A call that succeeded while a failure was open: it may be a prerequisite."""

    call: int
    name: str
    arguments: dict[str, Any]
    """Compact: long texts and nested values are None."""


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
        """Derive the status of the run."""
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
        has_success = self.has_success or call.first.type not in _STAGES
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
            members = (*before.members, IntentMember(before.call, tools))[-MAX_INTENT_MEMBERS:]
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
            return matches + [
                Match.from_link(failure, match.carried)
                for failure in reversed(self.open)
                if failure is not match.failure
                and (failure in intent or _has_same_request(failure.call, match.failure.call))
                and failure.call.last.links_decided
                and failure.call.id in match.carried
            ]
        calls = tuple(number for failure in intent for number in failure.failed_calls)
        call_evidence = _CALL_EVIDENCE.intersection(match.evidence)
        replaced = _list_arguments(intent) if call_evidence else ()
        for failure in intent[1:]:
            before, after = values_of(failure.call.last), values_of(call.last)
            if not isinstance(before, Mapping) or not isinstance(after, Mapping):
                break
            comparison = compare_arguments(before, after, failure.call.failure)
            if comparison is None:
                break
            # Each failure of a chain is tested by its own changes, however the last one is recovered.
            supported = _find_supported_values(failure, comparison)
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
            can_compare = compared.get(key, 0) < MAX_COMPARED_FAILURES
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
        supported = _find_supported_values(failure, comparison)
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
_CALL_EVIDENCE = frozenset[LinkEvidence]({"handler", "model_turn", "next_call"})
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
            return [
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
        failure.is_unknown_tool
        and first.server == failed.server
        and similarity(failed.name, first.name) >= MIN_TOOL_NAME_SIMILARITY
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
    last, first = failure.call.last, call.first
    if first.seq < last.seq:
        return False
    if not first.started_at or not last.started_at:
        return True
    # Log timestamps are in milliseconds and may be rounded, so only a clear overlap counts.
    return first.started_at + 1 >= last.started_at + int(last.duration_seconds * 1000)


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
        tools = _find_sources(change.after, failure, leaf_of(change.path)) if change.operation == "substitute" else []
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


# Support for new values


def _find_supported_values(failure: OpenFailure, comparison: Comparison) -> dict[str, LinkEvidence]:
    """Return the changed arguments whose new value has evidence of its own, with that evidence."""
    supported = {
        path: support
        for path, (old, new) in comparison.values.items()
        if (support := _find_value_support(failure, path, old, new)) is not None
    }
    cause = failure.call.failure
    # Beside another changed value, a smaller number may be chance. Too many requests are no number of this call.
    if len(comparison.values) == 1 and not supported and cause is not None and cause.remedy is not Remedy.RETRY:
        [(path, values)] = comparison.values.items()
        if measures_quantity(path, *values) and follows_direction(_error_text(cause), *values):
            return {path: "stated_limit"}
    return supported


def _find_value_support(failure: OpenFailure, path: str, old: Any, new: Any) -> LinkEvidence | None:
    cause = failure.call.failure
    if supports_value(_error_text(cause), old, new, is_quantity=measures_quantity(path, old, new)):
        return "stated_limit"
    if _find_sources(new, failure, leaf_of(path)):
        return "tool_result"
    if cause is not None and cause.kind.is_about_quotation:
        return "same_text"  # the same edit with another quotation of the text that it replaces
    is_command = root_of(path) in COMMAND_ARGUMENTS
    return "same_text" if is_same_text(cause, old, new, is_command=is_command) else None


def _error_text(failure: Failure | None) -> str:
    return f"{failure.message}\n{failure.detail}"[:4000] if failure is not None else ""


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


def _find_sources(value: Any, failure: OpenFailure, name: str) -> list[str]:
    """Return the tools whose results since the failure contain a value: it was looked up there."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return []
    text = str(value)
    if len(text) >= MIN_RESULT_VALUE_CHARS:
        spellings = {text, msgspec.json.encode(text)[1:-1].decode()}  # results are searched as JSON
        results = [(tool, result_text(result)) for tool, result in failure.results]
        return [tool for tool, result in results if any(is_word_of(spelling, result) for spelling in spellings)]
    words = frozenset(word.casefold() for word in split_words(name))
    return [tool for tool, result in failure.results if _has_field(result, words, text)]


def _has_field(result: Any, words: Collection[str], text: str) -> bool:
    """Return whether a result has this value in a field whose name has one of these words. Bounded."""
    waiting: list[tuple[str, Any]] = [("", result)]
    for _ in range(MAX_RESULT_MEMBERS):
        if not waiting:
            break
        name, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [(str(key), member) for key, member in list(value.items())[:MAX_RESULT_MEMBERS]]
        elif isinstance(value, list | tuple):
            waiting += [(name, member) for member in value[:MAX_RESULT_MEMBERS]]
        elif str(value) == text and any(word.casefold() in words for word in split_words(name)):
            return True
    return False


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
        facts["results"] = (*failure.results[1 - MAX_RESULTS :], (first.name, call.last.result))
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


# Whole runs


def derive_status(run: Run, steps: Iterable[Step], links: Iterable[Link]) -> Status:
    """Derive the status of a run from its steps and its final links."""
    calls = group_attempts(steps)
    failed = [call for call in calls if call.has_failed]
    linked = {link.failed_call for link in links}
    return RunProgress(
        failed=len(failed),
        recovered=sum(call.has_succeeded or call.id in linked for call in failed),
        has_own_failure=any(call.first.type == "run" for call in failed),
        has_success=any(call.has_succeeded and call.first.type not in _STAGES for call in calls),
    ).status(run)


def link_recoveries(steps: Iterable[Step], run: Run | None = None, *, is_settled: bool = False) -> list[Link]:
    """Return a link for each recovered call of a whole run, in the order of the failed calls.

    `is_settled` judges a run that has not ended.
    """
    is_final = is_settled or run is None or run.end_reason is not None
    judged_calls = judge_calls(steps, run, is_final=is_final)
    links = [link for _, call, call_links in judged_calls if call.has_succeeded for link in call_links]
    return sorted(links, key=lambda link: link.failed_call)


def find_refuted(steps: Iterable[Step]) -> tuple[int, ...]:
    """Return the calls whose provisional links are refuted by other calls of their run.

    For a run that never ended: its recording process could not store which links it withdrew.
    """
    calls = group_attempts(steps)
    others = [step for call in calls for step in call.steps]
    return tuple(
        call.id
        for call in calls
        if any(differs_in(candidate, others) for candidate in _iter_provisional_corrections(call))
        or any(link.possible for link in call.last.links)  # what supports them was not stored
    )


def _iter_provisional_corrections(call: Call) -> Iterator[PossibleCorrection]:
    intent = tuple(link.failed_call for link in call.last.links)
    for link in call.last.links if call.has_succeeded else ():
        if link.provisional and not link.possible:
            changes = [change for change in link.changes
                       if change.operation not in FORM_OPERATIONS and change.path != TOOL_NAME_PATH]  # fmt: skip
            texts = tuple(change.path for change in changes if all(map(is_long_text, (change.before, change.after))))
            paths = tuple(change.path for change in changes if change.path not in texts)
            is_caused = not _CALL_EVIDENCE.isdisjoint(link.evidence)
            replaced = {root_of(change.path): change.before for change in changes}
            yield PossibleCorrection(
                call, LOGGED, paths, texts, intent, link.failed_call, (replaced,) if is_caused else ()
            )


def attach_links(history: History) -> History:
    """Store the links of a whole run in its steps, so that a store need not derive them from redacted values."""
    if any(step.links_decided for step in history.steps) or not any(step.has_failed for step in history.steps):
        return history
    last_steps = {call.id: call.last.seq for call in group_attempts(history.steps)}
    links: dict[int, list[Link]] = {}
    for link in history.links:
        if link.failed_call != link.recovering_call and link.recovering_call in last_steps:
            links.setdefault(last_steps[link.recovering_call], []).append(link)
    steps = [
        replace(step, links_decided=step.has_failed, links=tuple(links.get(step.seq, ())))
        if step.has_failed or step.seq in links
        else step
        for step in history.steps
    ]
    return replace(history, steps=tuple(steps))


def judge_calls(
    steps: Iterable[Step], run: Run | None = None, *, is_final: bool
) -> Iterator[tuple[RunProgress, Call, list[Link]]]:
    """Judge the calls of a run in order. Yield the state of the run before each call, the call and its links."""
    calls = group_attempts(steps)
    others = [step for call in calls for step in call.steps]
    withdrawn = frozenset(run.withdrawn) if run is not None else frozenset()
    progress = RunProgress()
    for call in calls:
        before = progress
        progress, links = before.after(
            call, None, lambda candidate: differs_in(candidate, others), withdrawn, is_final=is_final
        )
        yield before, call, links


def _link_attempts(call: Call) -> Link:
    """Link a call to its own last attempt."""
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
