"""Decides recovery links during a run, from all its calls, before redaction.

Between calls, only two facts are stored per tool: the arguments of its first success and which have varied since.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import msgspec

from mulligan.capture.argument_variation import ArgumentVariation, CalledTool, Scope
from mulligan.capture.call_origin import corrected_calls, enter_task, find_marked_calls
from mulligan.core.argument_comparison import are_similar_texts, has_long_text
from mulligan.core.call_facts import CallFacts, ItemTest, OpenFailure, PossibleCorrection, Receiver
from mulligan.core.calls import TOOL_NAME_PATH, Call
from mulligan.core.failure import Failure
from mulligan.core.holdout import REMINDER
from mulligan.core.links import RunProgress, differs_in, is_delivered_before, repeats_cut_off_call
from mulligan.core.possible_corrections import UnprovenCorrection, find_possible_links
from mulligan.core.records import (
    ANY_FIX,
    MAX_ADVISED_FIX_RECORDS,
    QUERY_TOOLS,
    AdvisedFix,
    Link,
    Outcome,
    Step,
    StepType,
)
from mulligan.recover.plan import BLOCKED

TOOL_STEP_TYPES: tuple[StepType, ...] = ("tool", "retrieval")


def outcome_of(failure: Failure) -> Outcome:
    """Return the outcome for a failure. User rejections and cancellations have their own."""
    if failure.is_failure:
        return "blocked" if failure.kind.is_loop and BLOCKED in failure.evidence else "failure"
    return "cancelled" if failure.kind.is_cancelled else "blocked"


class JudgedCall(msgspec.Struct, frozen=True):
    """A call that was judged, and the progress of the run before it."""

    before: RunProgress
    call: Call
    facts: CallFacts


class RunJudge:
    """Decides which later call recovers which failed call of a live run. The caller holds the lock of the tracer."""

    def __init__(self, run: str, prompt_fixes: Mapping[str, Collection[str]] = MappingProxyType({})) -> None:
        self.run = run
        self._prompt_fixes = prompt_fixes
        """By tool: the fixes that the prompts of this process tell."""
        self.is_logged = False
        """Whether a model makes the calls and turns are unknown, as behind a proxy."""
        self.item_scopes: ContextVar[Scope] | None = None
        """Created by the first item scope of the run."""
        self.item_arguments: dict[str, Collection[str]] = {}
        """By tool key: arguments that named items in earlier runs. Loaded when a tool fails."""
        self.variations: dict[object, ArgumentVariation] = {}
        """By call template, or by tool key and item scope."""
        self.progress = RunProgress()
        self.links: list[Link] = []
        self._judged_calls: list[JudgedCall] = []
        """The latest calls that were judged, in this order."""
        self._attempts: dict[int, list[Step]] = {}
        self._texts: list[Step] = []
        """The latest calls with long texts since the first failure."""
        self._provisional: dict[int, list[tuple[PossibleCorrection, OpenFailure]]] = {}
        """By recovering call: the links that a later success may still refute."""
        self._withdrawn: set[int] = set()
        self._possible: dict[int, UnprovenCorrection] = {}
        """By call with possible links: what refutes them."""
        self._advice: dict[str, tuple[str, ...]] = {}
        """By tool: the fixes that the run was told after failures of the tool, by id."""
        self.advised_fixes: tuple[AdvisedFix, ...] = ()
        """What it has read after which call, and what was held out."""
        self.settled_calls: set[int] = set()
        """Calls whose answer was lost and whose outcome is settled."""
        self.cut_off: dict[int, Step] = {}
        """Calls that were cancelled while the run went on, until they are made again."""

    def call_facts(
        self,
        arguments: Mapping[str, Any],
        items: tuple[str, ...] = (),
        *,
        privileged: tuple[str, ...] = (),
        is_destructive: bool = False,
        turn: tuple[int, int] | None = None,
        receiver: Receiver | None = None,
        lost_answers: tuple[Any, ...] = (),
        reads_only: bool = False,
    ) -> CallFacts:
        """Return the facts about a call that starts now. Corrections are looked up only after a failure of the run."""
        delivered = self.progress.delivered
        calls = find_marked_calls(sys.exception()) if delivered else ()
        return CallFacts(
            failures_before=delivered,
            task=None if self.is_logged else enter_task(),
            handled=tuple(call for run, call in calls if run == self.run),
            turn=turn,
            corrected=tuple(call for run, call in corrected_calls.get() if run == self.run and delivered),
            receiver=receiver,
            knows_program=not self.is_logged,
            is_logged=self.is_logged,
            item=self.item_scope(items, arguments),
            item_arguments=items,
            privileged=privileged,
            is_destructive=is_destructive,
            lost_answers=lost_answers,
            reads_only=reads_only,
        )

    def item_scope(self, declared: Collection[str], arguments: Mapping[str, Any]) -> Scope:
        """Return the item scope of a call: the enclosing scopes, and the values of its declared item arguments."""
        scopes = self.item_scopes.get() if self.item_scopes is not None else ()
        return (*scopes, *((name, _normalize(arguments.get(name))) for name in declared))

    def needs_items(self, step: Step) -> bool:
        """Return whether it is still unknown which arguments of the step's tool name items."""
        return step.type in TOOL_STEP_TYPES and step.tool_key not in self.item_arguments

    def load_items(self, tool_key: str, load: Callable[[str], Collection[str]]) -> None:
        """Look up, once per run and tool, which arguments name items."""
        # Not marked as known before: another thread would judge its calls without them, and links would be wrong.
        self.item_arguments[tool_key] = load(tool_key)

    def note_success(self, tool: CalledTool, positional: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Add the arguments of a successful call outside any item scope."""
        variation = self.variations.get(tool)
        if variation is None:
            first = ArgumentVariation(tool.tool_key, (), tool.positional_names, positional, keywords)
            variation = self.variations.setdefault(tool, first)
            if variation is first:
                return
        if not variation.is_settled:
            variation.add(positional, keywords)

    def note_arguments(self, key: str, scope: Scope, arguments: Mapping[str, Any]) -> None:
        """Add the arguments of a successful call, by name. Withdraw links that they show to be a loop over items."""
        variation = self.variations.get((key, scope))
        if variation is None:
            self.variations[key, scope] = ArgumentVariation(key, scope, (), (), dict(arguments))
        elif not variation.is_settled:
            variation.add((), arguments)
        if self._provisional:
            self._withdraw(self._is_item)

    def _withdraw_refuted(self, success: Step, facts: CallFacts) -> None:
        """Withdraw the links that a success refutes, before it is judged: it may itself recover the failed call."""
        self._withdraw(
            lambda candidate: (
                candidate.facts.item == facts.item
                and differs_in(msgspec.structs.replace(candidate, texts=()), (success,))
            )
        )

    def _withdraw(self, is_item: ItemTest) -> None:
        for number, provisional in list(self._provisional.items()):
            if any(is_item(candidate) for candidate, _ in provisional):
                del self._provisional[number]
                self._withdrawn.add(number)
                self.links = [link for link in self.links if link.recovering_call != number or not link.provisional]
                reopened = sorted((failure for _, failure in provisional), key=lambda failure: failure.number)
                self.progress = msgspec.structs.replace(
                    self.progress,
                    open=(*self.progress.open, *reopened),
                    recovered=self.progress.recovered - sum(len(failure.failed_calls) for failure in reopened),
                )

    def _is_item(self, candidate: PossibleCorrection) -> bool:
        key = candidate.call.first.tool_key
        roots = {path.partition(".")[0] for path in candidate.paths}
        if any(
            variation.has_other_item(candidate, roots)
            for variation in list(self.variations.values())
            if variation.key == key and variation.scope == candidate.facts.item
        ):
            return True
        if candidate.texts and self._has_similar_text(candidate):
            return True
        names = roots | {mark_text_item(path.partition(".")[0]) for path in candidate.texts}
        return bool(names) and not names.isdisjoint(self.item_arguments.get(key, ()))

    def _has_similar_text(self, candidate: PossibleCorrection) -> bool:
        """Return whether another call of the run has a text similar to a changed one."""
        if differs_in(msgspec.structs.replace(candidate, paths=()), self._texts):
            return True
        arguments = candidate.call.last.arguments
        if not isinstance(arguments, Mapping):
            return False
        # For calls before the first failure, only the first and last success of each tool are stored.
        others = [
            success
            for variation in list(self.variations.values())
            if variation.key == candidate.call.first.tool_key and variation.scope == candidate.facts.item
            for success in (variation.first, variation.last)
        ]
        texts = {root: arguments.get(root) for root in (path.partition(".")[0] for path in candidate.texts)}
        return any(
            text != other.get(root) and are_similar_texts(text, other.get(root))
            for other in others
            for root, text in texts.items()
        )

    def judge(self, step: Step, facts: CallFacts, *, is_final: bool = True) -> Step:
        """Judge a finished attempt. Return its step with the links of its call.

        `is_final` means that no further attempt of the call follows.
        """
        attempts = self._attempts.setdefault(step.call, [])
        attempts.append(step)
        if step.has_failed:
            step = msgspec.structs.replace(step, links_decided=True)
        if not is_final:
            return step
        del self._attempts[step.call]
        call = Call(steps=tuple(attempts))
        if call.has_succeeded and self.cut_off:
            self.cut_off = {
                number: cut_off for number, cut_off in self.cut_off.items() if not repeats_cut_off_call(cut_off, step)
            }
        links = self._judge_call(call, facts)
        if has_long_text(step.arguments):
            # Calls whose long texts are compared, the latest.
            self._texts = [*self._texts[-49:], msgspec.structs.replace(step, result=None)]
        recovery_links = tuple(link for link in links if link.failed_call != call.id)
        return msgspec.structs.replace(step, links=recovery_links) if recovery_links else step

    def _judge_call(self, call: Call, facts: CallFacts) -> list[Link]:
        """Judge a call after those before it. Return its links."""
        candidates: list[PossibleCorrection] = []

        def is_item(candidate: PossibleCorrection) -> bool:
            if self._is_item(candidate):
                return True
            candidates.append(candidate)
            return False

        if call.has_succeeded and self._provisional:
            self._withdraw_refuted(call.last, facts)
        before = self.progress
        # Calls whose judgement can be taken back, the latest: for a further attempt, or a failure that is recorded
        # late.
        self._judged_calls = [*self._judged_calls[-31:], JudgedCall(before, call, facts)]
        self.progress, links = before.after(call, facts, is_item, settled_calls=self.settled_calls)
        if before.open and not any(link.failed_call != call.id for link in links):
            links += find_possible_links(before, call, facts)
        if links and (advice := self._list_all_advice(call.last)):
            links = [msgspec.structs.replace(link, advice=advice) for link in links]
        if links and (facts.privileged or facts.is_destructive):
            links = [mark_privileged(link, facts) for link in links]
        if call.has_succeeded:
            self.links += [link for link in links if not link.possible]
            if possible_links := [link for link in links if link.possible]:
                self._possible[call.id] = UnprovenCorrection.of(before, call, facts, possible_links)
            provisional = {link.failed_call for link in links if link.provisional and not link.possible}
            tested = {candidate.failed: candidate for candidate in candidates}
            if provisional:
                self._provisional[call.id] = [
                    (tested[failure.call.id], failure) for failure in before.open if failure.call.id in provisional
                ]
        return links

    def reopen_call(self, number: int) -> None:
        """Take back the judgement of a call, of which another attempt has ended. Later calls are judged again."""
        numbers = [judged_call.call.id for judged_call in self._judged_calls]
        if number not in numbers:
            return
        reopened, *later_calls = self._rewind(numbers.index(number))
        self._attempts[number] = list(reopened.call.steps)
        for judged_call in later_calls:
            self._judge_call(judged_call.call, judged_call.facts)

    def fail_step(self, step: Step, later_successes: Iterable[Step]) -> None:
        """Judge a step that had ended as a success and failed afterwards. Judge the later calls again.

        `later_successes` are steps after it, which were not judged if no call had failed before them.
        """
        positions = (
            index
            for index, judged_call in enumerate(self._judged_calls)
            if judged_call.call.id == step.call or judged_call.call.first.seq > step.seq
        )
        later_calls = self._rewind(next(positions, len(self._judged_calls)))
        facts = CallFacts(task=None if self.is_logged else enter_task(), is_logged=self.is_logged)
        judged_steps = {attempt.seq for judged_call in later_calls for attempt in judged_call.call.steps}
        later_calls += [
            JudgedCall(self.progress, Call(steps=(success,)), facts)
            for success in later_successes
            if success.seq not in judged_steps
        ]
        failed_call = Call(steps=(step,))
        for judged_call in later_calls:
            if judged_call.call.id == step.call:
                failed_call, facts = _fail_attempt(judged_call.call, step), judged_call.facts
        self._judge_call(failed_call, facts)
        for judged_call in sorted(later_calls, key=lambda later_call: later_call.call.first.seq):
            if judged_call.call.id != step.call:
                self._judge_call(judged_call.call, _count_failure(judged_call, step))

    def _rewind(self, index: int) -> list[JudgedCall]:
        """Return to the progress before a judged call. Return it with the calls after it."""
        judged_calls = self._judged_calls[index:]
        self._judged_calls = self._judged_calls[:index]
        if not judged_calls:
            return []
        # Whether a call has succeeded, the history of the run knows.
        self.progress = msgspec.structs.replace(judged_calls[0].before, has_success=False)
        numbers = {judged_call.call.id for judged_call in judged_calls}
        self.links = [link for link in self.links if link.recovering_call not in numbers]
        for number in numbers:
            self._provisional.pop(number, None)
            self._possible.pop(number, None)
        return judged_calls

    def note_advice(self, tool: str, advice: Sequence[AdvisedFix]) -> None:
        """Note the fixes shown to the run after a failure of a tool: what then succeeds may have followed them."""
        self.advised_fixes = tuple(dict.fromkeys((*self.advised_fixes, *advice)))[-MAX_ADVISED_FIX_RECORDS:]
        self.note_fixes(tool, [advised_fix.fix for advised_fix in advice if not advised_fix.held_out])

    def note_reminder(self, tools: Iterable[str], is_held_out: bool) -> None:
        """Note a reminder about failures of these tools, or that it was held out."""
        for tool in () if is_held_out else tools:
            self.note_fixes(tool, (ANY_FIX,))
        self.note_help(AdvisedFix(0, REMINDER, is_held_out))

    def note_help(self, record: AdvisedFix) -> None:
        """Note help that belongs to no call: a reminder, or a lesson."""
        if record not in self.advised_fixes:
            self.advised_fixes = (record, *self.advised_fixes)[:MAX_ADVISED_FIX_RECORDS]

    def note_fixes(self, tool: str, fixes: Iterable[str]) -> None:
        """Note fixes of a tool that were shown to the run, by id. `ANY_FIX` stands for unknown ones."""
        if fixes := tuple(fixes):
            # Fixes read by a model after failures of one tool that a run remembers, the latest.
            self._advice[tool] = tuple(dict.fromkeys((*self.list_advice(tool), *fixes)))[-16:]

    def list_advice(self, tool: str) -> tuple[str, ...]:
        """Return the fixes that the run was told after failures of a tool, by id."""
        return self._advice.get(tool, ())

    def _list_all_advice(self, step: Step) -> tuple[str, ...]:
        """Return the fixes told about the tool of a step anywhere: after failures, in prompts, by the MCP server."""
        prompt_fixes = self._prompt_fixes.get(step.name, ())
        tool_keys = (variation.key for variation in list(self.variations.values()))
        unknown_fixes = (ANY_FIX,) if any(key.endswith(QUERY_TOOLS) for key in tool_keys) else ()
        return tuple(dict.fromkeys((*prompt_fixes, *unknown_fixes, *self.list_advice(step.name))))

    def note_cut_off(self, step: Step, successes: Iterable[Step]) -> None:
        """Note a call that was cancelled, unless one of these was concurrent and has the same arguments: a race."""
        inner_calls = [number for number, inner in self.cut_off.items() if inner.parent == step.seq]
        if inner_calls and step.type == "custom":
            return  # a stage is no call: those in it are made again, or not
        for number in inner_calls:
            del self.cut_off[number]
        is_won = any(
            round(success.started_at + success.duration_seconds * 1000) > step.started_at
            and repeats_cut_off_call(step, success)
            for success in successes
        )
        # Calls of a run that were cut off and are compared with later ones.
        if not is_won and len(self.cut_off) < 100:
            self.cut_off[step.call] = step

    @property
    def withdrawn(self) -> tuple[int, ...]:
        """The calls whose provisional and possible links other calls of the run refute."""
        refuted = {call for call, correction in self._possible.items() if self._refutes(correction)}
        return tuple(sorted(self._withdrawn | refuted))

    def _refutes(self, correction: UnprovenCorrection) -> bool:
        """Return whether the other calls of the run speak against a possible correction, or not for it."""
        variations = [
            variation
            for variation in list(self.variations.values())
            if variation.key == correction.tool_key and variation.scope == correction.scope
        ]
        if any(not variation.item_names.isdisjoint(correction.roots) for variation in variations):
            return True
        successes = [success for variation in variations for success in (variation.first, variation.last)]
        failed_calls = self.list_open_arguments(correction.tool_key)
        return correction.needs_contrast and not correction.has_contrast(successes, failed_calls)

    def list_open_arguments(self, tool_key: str) -> list[Mapping[str, Any]]:
        """Return the arguments of the failed calls of a tool that no later call has recovered."""
        return [
            arguments
            for failure in self.progress.open
            if failure.call.first.tool_key == tool_key and isinstance(arguments := failure.call.last.arguments, Mapping)
        ]

    def items(self) -> dict[str, tuple[str, ...]]:
        """Return the arguments that name items, by tool key."""
        items: dict[str, set[str]] = {}
        for variation in list(self.variations.values()):
            if variation.item_names and not variation.scope:
                first, last = variation.first, variation.last
                texts = [name for name in variation.item_names if are_similar_texts(first.get(name), last.get(name))]
                items.setdefault(variation.key, set()).update(variation.item_names, map(mark_text_item, texts))
        return {key: tuple(sorted(names)) for key, names in items.items()}


def _fail_attempt(call: Call, step: Step) -> Call:
    """Return a call with the outcome of a step. Its arguments stay: those of the step may be shapes."""
    changes: dict[str, Any] = {"outcome": step.outcome, "failure": step.failure}
    return Call(
        steps=tuple(
            msgspec.structs.replace(attempt, **changes) if attempt.seq == step.seq else attempt
            for attempt in call.steps
        )
    )


def _count_failure(judged_call: JudgedCall, step: Step) -> CallFacts:
    """Return the facts of a call, with a failed step among those before it."""
    facts = judged_call.facts
    if facts.failures_before is None or not is_delivered_before(step, judged_call.call.first):
        return facts
    return msgspec.structs.replace(facts, failures_before=facts.failures_before + 1)


def mark_privileged(link: Link, facts: CallFacts) -> Link:
    """Mark changes of arguments that are declared privileged, so that their values are not shared."""
    changes = tuple(
        msgspec.structs.replace(change, privileged=True)
        if change.path != TOOL_NAME_PATH
        and (facts.is_destructive or not {change.path, *change.path.split(".")}.isdisjoint(facts.privileged))
        else change
        for change in link.changes
    )
    return msgspec.structs.replace(link, changes=changes)


def mark_text_item(name: str) -> str:
    """Return the name for an argument that holds similar texts for different items, such as letters."""
    return f"{name} (texts)"


def _normalize(value: Any) -> str:
    """Normalize the name of an item, so that the number 2 and the text "2" are the same item."""
    return str(value)[:1000].strip().casefold()
