"""Suggestions for a failed call: changes, their source, confidence, and whether they are applied automatically.

The confidence of a strategy is its success rate, which `evals/repair.py` measures on recorded failures and
`evals/repair_perturbed.py` on calls broken on purpose. For strategies that are too rare to measure it is a cautious
estimate. A repair of at most 0.80 is only suggested.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from mulligan.core.argument_comparison import differing_names
from mulligan.core.calls import TOOL_NAME_PATH, is_same_json
from mulligan.core.conversation import replace_at
from mulligan.core.failure import Failure, Remedy, TookEffect
from mulligan.core.privileged_arguments import is_privileged
from mulligan.core.quantity_arguments import argument_name, is_other_action, measures_quantity
from mulligan.core.records import Change, Fix
from mulligan.core.stated_limits import contains_word
from mulligan.recover.error_repair import find_default_bound, find_error_bound, find_expected_values, find_padded_text
from mulligan.recover.history import candidate_values, missing_value_candidates
from mulligan.recover.meaning import RequestedCall, find_objection, find_value
from mulligan.recover.memory_repair import MAX_HIDDEN_CONFIDENCE, AppliedFix, apply_fixes
from mulligan.recover.names import (
    match_tool_name,
    nearest_tool_names,
)
from mulligan.recover.policy import (
    ADDED_SOURCES,
    Arguments,
    EarlierCall,
    PrerequisiteCall,
    Suggestion,
    Tool,
    describe_effects,
)
from mulligan.recover.reflection import CalibratedReflection, ReflectedDraft, draft_reflection
from mulligan.recover.schema import CompiledSchema, SchemaViolation, compile_schema
from mulligan.recover.schema_repair import (
    Draft,
    format_path,
    repair_from_schema,
    unknown_arguments,
    value_at,
)
from mulligan.recover.value_coercion import Candidate, is_number
from mulligan.recover.word_meaning import (
    are_opposites,
    is_same_name,
    names_other_unit,
)

MAX_SUGGESTIONS = 5
"""Maximum suggestions for one call."""
LOW_CONFIDENCE = "the confidence of the repair is too low"
"""Stop reason if the best repair is only suggested."""
Schema = Mapping[str, Any]
ToolSchemas = Mapping[str, Schema | None]

STRATEGY_CONFIDENCE: dict[str, float] = {
    # Tool names
    "tool junk": 0.85,
    "tool spelling": 0.88,
    "tool part": 0.85,
    "tool other": 0.70,
    "tool slip": 0.70,
    "tool near": 0.50,
    "tool fits": 0.45,
    "tool nameless": 0.75,
    "tool alone": 0.30,
    "tool answered": 0.06,
    # Argument names
    "empty key": 0.97,
    "drop empty": 0.92,
    "rename spelling": 0.95,
    "rename slip": 0.90,
    "rename part": 0.60,
    "rename only": 0.70,
    "drop unknown": 0.70,
    "unnest": 0.93,
    "nest": 0.90,
    "default": 0.90,
    # Argument values
    "cast": 0.95,
    "cast name": 0.70,
    "cast loose": 0.60,
    "parse": 0.94,
    "wrap": 0.92,
    "split": 0.55,
    "unwrap": 0.75,
    "unwrap list": 0.92,
    "enum spelling": 0.95,
    "enum code": 0.70,
    "enum slip": 0.88,
    "enum part": 0.65,
    "trim": 0.93,
    "clamp": 0.90,
    "bound in error": 0.85,
    "default bound": 0.75,
    "expected in error": 0.50,
    "rest in error": 0.35,
    # Values from this run
    "same id": 0.85,
    "same record": 0.45,
    "answered": 0.30,
    "near id": 0.38,
    "filled": 0.40,
    "only value": 0.25,
    "beside": 0.15,
    "one of several": 0.10,
    "last part": 0.25,
    # From other runs: a fix with a record has its own confidence
    "fix": 0.80,
    "exemplar": 0.50,
    "prerequisite": 0.80,
    # From the user's model: each has its own confidence
    "reflection": 0.60,
}


def lowest_confidence(strategies: Iterable[str]) -> float:
    """Return the confidence of a repair: the lowest of its strategies."""
    return min((STRATEGY_CONFIDENCE[strategy] for strategy in strategies), default=0.0)


def suggest(
    arguments: Arguments,
    failure: Failure,
    tool: Tool,
    earlier_calls: Sequence[EarlierCall] = (),
    *,
    tools: ToolSchemas | None = None,
    min_confidence: float = 0.80,
    fixes: Sequence[Fix] = (),
    reflection: CalibratedReflection | None = None,
    has_reader: bool = True,
) -> list[Suggestion]:
    """Return suggestions for a failed call, likeliest first. The list may be empty.

    `earlier_calls` are the calls of the same run, oldest first. `tools` are the schemas of all tools by name, in case
    the tool name itself is wrong. Suggestions with at most `min_confidence` are not automatic. `fixes` are fixes from
    memory for the same failure. `reflection` is the answer of the reflector. `has_reader` says whether a model reads
    the note about an automatic repair.
    """
    if not failure.is_failure or failure.remedy is Remedy.COMPRESS:
        return []
    if tools is None and failure.kind.is_about_tool_name:
        tools = {call.tool: None for call in earlier_calls if call.has_succeeded}  # names of tools that exist
    text = f"{failure.message}\n{failure.detail}"[:4000]
    builder = _SuggestionBuilder(
        arguments, failure, tool, earlier_calls, tools or {}, min_confidence, fixes, text, reflection, has_reader
    )
    return builder.build_suggestions()


def find_privileged_repair(
    arguments: Arguments, failure: Failure, tool: Tool, earlier_calls: Sequence[EarlierCall] = ()
) -> str:
    """Return the privileged argument that the best repair would change if it were released, or an empty string."""
    schema = tool.schema()
    properties = compile_schema(schema).properties if schema else {}
    released_tool = msgspec.structs.replace(tool, unprivileged=frozenset({*arguments, *properties}))
    for suggestion in suggest(arguments, failure, released_tool, earlier_calls)[:1]:
        for name in (name for change in suggestion.changes for name in _changed_names(change)):
            if is_privileged(name, tool.privileged, tool.unprivileged):
                return name
    return ""


@dataclass(slots=True)
class _SuggestionBuilder:
    arguments: Arguments
    failure: Failure
    tool: Tool
    earlier_calls: Sequence[EarlierCall]
    tools: ToolSchemas
    min_confidence: float
    fixes: Sequence[Fix]
    text: str
    reflection: CalibratedReflection | None = None
    has_reader: bool = True

    def build_suggestions(self) -> list[Suggestion]:
        """Return the suggestions, likeliest first. Memory and reflection only add to the suggestions of rules.

        Equal suggestions are merged. The result is automatic if any of them is.
        """
        drafts = (
            draft
            for draft in self._iter_drafts()
            if _is_approved(draft) or not any(map(self._is_misleading, draft.changes))
        )
        suggestions = sorted(map(self._to_suggestion, drafts), key=_by_confidence)
        additions = [suggestion for suggestion in suggestions if suggestion.source in ADDED_SOURCES]
        by_rules = _without_duplicates([suggestion for suggestion in suggestions if suggestion not in additions])
        by_rules = by_rules[:MAX_SUGGESTIONS]
        added: list[Suggestion] = []
        for suggestion in _without_duplicates(additions):
            equal = next((index for index, rule in enumerate(by_rules) if _is_same(rule, suggestion)), None)
            if equal is None:
                added.append(suggestion)
            # Keep the rule's own suggestion if it is automatic, so that nothing delays it.
            elif not by_rules[equal].automatic and _rank(suggestion) > _rank(by_rules[equal]):
                by_rules[equal] = suggestion
        remaining_slots = max(MAX_SUGGESTIONS - len(by_rules), 1)
        return sorted([*by_rules, *added[:remaining_slots]], key=_by_confidence)

    def _iter_drafts(self) -> Iterator[Draft]:
        if self.tools and self.tool.name not in self.tools:
            yield from self._draft_renamed_tools()
            return
        schema = self.tools.get(self.tool.name) or self.tool.schema()
        compiled = compile_schema(schema) if schema else None
        yield from self._draft_argument_repairs(compiled)
        yield from apply_fixes(self.fixes, self.arguments, compiled, self.earlier_calls)
        if self.reflection is not None:
            items = self._find_item_arguments()
            yield from draft_reflection(self.reflection, self.arguments, compiled, self.earlier_calls, self.text, items)

    # Tool names

    def _draft_renamed_tools(self) -> Iterator[Draft]:
        """Yield drafts with another tool name.

        C10: junk or case that leaves exactly one known name. Otherwise the most similar names, or the one tool that
        accepts the arguments.
        """
        match = match_tool_name(self.tool.name, list(self.tools))
        if match is not None:
            yield self._draft_for_tool(match.name, f"tool {match.method}", "exactly one tool matches this name")
            return
        # Tools that accept the arguments come first: `get_order(order_id)` means `get_order_details`, not `get_user`.
        near = sorted(
            nearest_tool_names(self.tool.name, list(self.tools)),
            key=lambda name: not self._accepts_arguments(self.tools[name]),
        )
        for name in near:
            yield self._draft_for_tool(name, "tool near", "its name is the most similar")
        if not near:
            fitting = [name for name, schema in list(self.tools.items())[:100] if self._accepts_arguments(schema)]
            if len(fitting) == 1:
                strategy = "tool fits" if self.tool.name.strip() else "tool nameless"
                yield self._draft_for_tool(fitting[0], strategy, "only this tool accepts these arguments")

    def _accepts_arguments(self, schema: Schema | None) -> bool:
        if not schema or not self.arguments:
            return False
        compiled = compile_schema(schema)
        return compiled.find_violations(self.arguments) == [] and not unknown_arguments(self.arguments, compiled)

    def _draft_for_tool(self, name: str, strategy: str, evidence: str) -> Draft:
        """Build the call with another tool name, with arguments repaired by that tool's schema."""
        renamed = Change(path=TOOL_NAME_PATH, operation="rename", before=self.tool.name, after=name, source="schema")
        draft = Draft(dict(self.arguments), (renamed,), (strategy,), evidence=(evidence,), is_rejected=True, tool=name)
        schema = self.tools.get(name)
        compiled = compile_schema(schema) if schema else None
        if compiled is None or (compiled.accepts(self.arguments) and not self._has_unknown_arguments(compiled)):
            # If the error is not about the name, the tool was known: some servers rename dots.
            is_about_name = self.failure.kind.is_about_tool_name or re.search(
                _ABOUT_NAME, self.text, re.IGNORECASE | re.DOTALL
            )
            if strategy != "tool junk" and not is_about_name:
                draft.strategies += ("tool answered",)
        elif (repaired := self._repair_from_schema(compiled)) is None:
            draft.strategies += ("tool alone",)
        else:
            draft.arguments = repaired.arguments
            draft.changes += repaired.changes
            draft.strategies += repaired.strategies
            draft.evidence += repaired.evidence
        return draft

    # Arguments

    def _draft_argument_repairs(self, schema: CompiledSchema | None) -> Iterator[Draft]:
        violations = schema.find_violations(self.arguments) if schema is not None else None
        if schema is not None and (violations or self._has_unknown_arguments(schema)):
            repaired = self._repair_from_schema(schema)
            if repaired is not None:
                yield repaired
            yield from self._draft_missing_values(schema, violations or [])
            return  # a call that violates its schema fails whatever else is repaired
        yield from self._draft_from_error(schema)
        yield from self._draft_from_run(schema)

    def _repair_from_schema(self, schema: CompiledSchema) -> Draft | None:
        """Repair the arguments by the schema: certain repairs first, then uncertain ones."""
        is_about_names = self._has_unknown_arguments(schema)
        strict = is_about_names or bool(schema.find_violations(self.arguments))
        # Unknown names may be misspelled missing ones. If they are not, and the schema allows them, they stay.
        option_pairs = [(strict, False), (strict, True)]
        if not is_about_names:
            option_pairs[1:1] = [(False, False), (False, True)]
        repairs = (
            repair_from_schema(self.arguments, schema, *option_pair, is_protected=self._is_protected)
            for option_pair in option_pairs
        )
        return next((repaired for repaired in repairs if repaired is not None), None)

    def _has_unknown_arguments(self, schema: CompiledSchema) -> bool:
        """Return whether the call has arguments that the schema does not define and the failure is about them."""
        unknown = unknown_arguments(self.arguments, schema)
        if any(not name.strip(" \t\r\n'\"`") for name in unknown):
            return True
        return bool(unknown) and (
            any(contains_word(self.text, name) for name in unknown)
            or re.search(_UNKNOWN, self.text, re.IGNORECASE) is not None
        )

    def _draft_missing_values(self, schema: CompiledSchema, violations: Sequence[SchemaViolation]) -> Iterator[Draft]:
        """Yield drafts with missing arguments from earlier calls. They are never automatic.

        Only if nothing else violates the schema.
        """
        if any(violation.rule != "required" or violation.path for violation in violations):
            return
        required = next((violation.limit for violation in violations if isinstance(violation.limit, list)), [])
        missing = [name for name in required if name not in self.arguments]
        options = missing_value_candidates(missing, self.earlier_calls) if missing else {}
        if not options or not all(options.values()) or unknown_arguments(self.arguments, schema):
            return
        for at in range(max(map(len, options.values()))):
            strategy = "filled" if at == 0 else "one of several"
            draft = Draft(dict(self.arguments), (), (strategy,), "run", is_rejected=True)
            for name, values in options.items():
                value, evidence = values[min(at, len(values) - 1)]
                draft.arguments[name] = value
                draft.changes += (Change(path=name, operation="substitute", after=value, source="run"),)
                draft.evidence += (evidence,)
            if schema.find_violations(draft.arguments) == []:
                yield draft

    # Values from the error text and from this run

    def _draft_from_error(self, schema: CompiledSchema | None) -> Iterator[Draft]:
        """Yield drafts by what the error text says: a bound, an expected number, a text with spaces around it.

        S1: the bound of a number in the call is the only value that error text may supply automatically. Bounds of
        omitted arguments and expected values are suggestions.
        """
        bound = find_error_bound(self.text, self.arguments)
        if bound is None and schema is not None:
            bound = find_default_bound(self.text, self.arguments, schema.properties)
        if bound is not None and self._can_change(format_path(bound.path)) and self._fits_schema(bound, schema):
            yield self._draft_guess(bound)
            return
        for guess in (*find_padded_text(self.text, self.arguments), *find_expected_values(self.text, self.arguments)):
            if self._fits_schema(guess, schema):
                yield self._draft_guess(guess)

    def _fits_schema(self, guess: Candidate, schema: CompiledSchema | None) -> bool:
        """Return whether the schema accepts a changed value. If other arguments are not JSON, only it is checked."""
        if schema is None:
            return True
        new_arguments = replace_at(self.arguments, guess.path, guess.after)
        violations = schema.find_violations(new_arguments)
        if violations is None and schema.schema and isinstance(name := guess.path[0], str):
            keywords = ("$schema", "properties", "$defs", "definitions")
            parts = {key: schema.schema[key] for key in keywords if key in schema.schema}
            violations = CompiledSchema(parts).find_violations({name: new_arguments[name]})
        return violations == []

    def _draft_guess(self, guess: Candidate) -> Draft:
        try:
            before = value_at(self.arguments, guess.path)
        except (KeyError, IndexError, TypeError):
            before = None
        after = guess.after
        if guess.source == "run" and type(before) is int and after.isdigit():
            after = int(after)
        change = Change(
            path=format_path(guess.path), operation=guess.operation, before=before, after=after, source=guess.source
        )
        new_arguments = replace_at(self.arguments, guess.path, after)
        return Draft(new_arguments, (change,), (guess.strategy,), guess.source, (guess.evidence,))

    def _draft_from_run(self, schema: CompiledSchema | None) -> Iterator[Draft]:
        if self.failure.remedy is Remedy.RETRY or self.failure.kind.is_unrelated_to_values:
            return
        guesses: list[Candidate] = []
        if self.earlier_calls:
            names = list(schema.properties) if schema is not None else []
            guesses = candidate_values(self.arguments, self.text, names, self.tool.name, self.earlier_calls)
        is_stopped = self.failure.remedy is Remedy.STOP
        if is_stopped:  # a person must act, but should see a typing mistake
            guesses = [guess for guess in guesses if guess.strategy in ("same id", "near id")]
        items = self._find_item_arguments() if guesses else frozenset()
        for guess in guesses:
            if guess.path[0] in items and guess.strategy != "same id":
                continue  # the value of another item is no correction
            draft = self._draft_guess(guess)
            if schema is None or schema.accepts(draft.arguments):
                yield draft

    def _find_item_arguments(self) -> frozenset[str]:
        """Return the arguments that name items: declared, or different in two successful calls of this tool."""
        successful_calls = (call for call in self.earlier_calls if call.tool == self.tool.name and call.has_succeeded)
        first, *others = [call.arguments for call in successful_calls if isinstance(call.arguments, Mapping)] or [{}]
        return frozenset(self.tool.items).union(*(differing_names(first, arguments) for arguments in others))

    # Safety checks

    def _is_protected(self, path: str) -> bool:
        return is_privileged(path, self.tool.privileged, self.tool.unprivileged)

    def _can_change(self, path: str) -> bool:
        return not self._is_protected(path)

    def _to_suggestion(self, draft: Draft) -> Suggestion:
        fix = draft if isinstance(draft, AppliedFix) else None
        confidence = lowest_confidence(draft.strategies)
        if isinstance(draft, AppliedFix | ReflectedDraft):
            confidence = draft.confidence
        is_approved = _is_approved(draft)
        is_untrusted = draft.source == "error" or draft.source in ADDED_SOURCES
        is_privileged_guess = is_untrusted and not is_approved and self._touches_privileged(draft)
        if is_privileged_guess or self._is_other_action(draft) or self._drops_intent(draft):
            # The model sees the error text anyway. A smaller payment, that of another object, or a call without
            # `dry_run` is a different call.
            confidence = min(confidence, MAX_HIDDEN_CONFIDENCE)
        reason = self._not_automatic_reason(draft, confidence)
        return Suggestion(
            tool=draft.tool or self.tool.name,
            arguments=draft.arguments,
            prerequisites=_prerequisites_of(draft),
            changes=draft.changes,
            source=draft.source,
            fix_id=None if fix is None else fix.id,
            record=None if fix is None else fix.fix,
            confidence=confidence,
            strategy=min(draft.strategies, key=STRATEGY_CONFIDENCE.__getitem__),
            evidence=draft.evidence,
            automatic=not reason,
            reason=reason,
        )

    def _touches_privileged(self, draft: Draft) -> bool:
        """Return whether it changes a privileged argument, or any argument of a destructive tool."""
        is_protected = self.tool.destructive and draft.source in ADDED_SOURCES
        names = (name for change in draft.argument_changes for name in _changed_names(change))
        return any(is_protected or not self._can_change(name) for name in names)

    def _iter_clamps(self, draft: Draft) -> Iterator[Change]:
        """Yield the changes to a bound, also by a reflector, except of arguments that the tool's author releases."""
        for change in draft.argument_changes:
            is_clamp = change.operation == "clamp" or (
                isinstance(draft, ReflectedDraft)
                and is_number(change.before)
                and is_number(change.after)
                and measures_quantity(change.path, change.before, change.after)
            )
            if is_clamp and self.tool.clamp.isdisjoint((change.path, *change.path.split("."))):
                yield change

    def _is_other_action(self, draft: Draft) -> bool:
        """Return whether a bound would make the call do something else than the model asked for."""
        tool, clamps = self.tool, self._iter_clamps(draft)
        return any(is_other_action(tool.name, tool.effects, c.path, c.before, c.after) for c in clamps)

    def _is_misleading(self, change: Change) -> bool:
        """Return whether a change is to an opposite, or moves a number to a name in another unit."""
        if is_opposite(change):
            return True
        value = find_value(self.arguments, change.path)
        name, target = argument_name(change.path), argument_name(str(change.after))
        is_moved = change.operation == "rename" and is_number(value) and not is_same_name(name, target)
        return is_moved and names_other_unit(name, target)

    def _drops_intent(self, draft: Draft) -> bool:
        """Return whether a call with effects would lose an argument that says something, or get a guessed value."""
        if self.tool.effects == "none" or draft.source in ADDED_SOURCES:
            return False
        drops = (change for change in draft.argument_changes if change.operation == "drop")
        return "enum part" in draft.strategies or any(map(self._find_meaning_objection(draft), drops))

    def _meaning_objection(self, draft: Draft) -> str:
        """Return why the draft would mean another call than the one that was asked for, or an empty string."""
        if _is_approved(draft):
            return ""
        return next(filter(None, map(self._find_meaning_objection(draft), draft.argument_changes)), "")

    def _find_meaning_objection(self, draft: Draft) -> Callable[[Change], str]:
        """Return a function that says why a change of the draft must not be executed without asking."""
        tool = self.tool
        schema = self.tools.get(draft.tool or tool.name) or tool.schema()
        compiled = compile_schema(schema) if schema else None
        call = RequestedCall(
            draft.tool or tool.name, tool.effects, self.arguments, self.has_reader, tool.clamp, compiled
        )
        return lambda change: find_objection(change, call)

    def _not_automatic_reason(self, draft: Draft, confidence: float) -> str:
        """Return why a suggestion is not automatic, or an empty string."""
        tool, failure = self.tool, self.failure
        fix = draft if isinstance(draft, AppliedFix) else None
        if tool.mode != "repair":
            return f'the mode is "{tool.mode}"'
        if not failure.recoverable:
            return "the error is declared unrecoverable"
        if failure.remedy is Remedy.RETRY:
            return "a later retry may succeed"
        if failure.remedy is Remedy.STOP:
            return "a person must act"
        if fix is not None and (reason := self._unproven_reason(fix)):
            return reason
        if isinstance(draft, ReflectedDraft) and draft.objection:
            return draft.objection
        is_prepared = fix is not None and bool(fix.prerequisites)
        if not draft.is_rejected and not tool.is_retry_safe and failure.took_effect is not TookEffect.NO:
            return describe_effects(failure)
        reason = self._prerequisite_objection(fix) if fix is not None and is_prepared else self._change_objection(draft)
        if reason:
            return reason
        if not draft.is_rejected and not is_prepared and failure.remedy is not Remedy.REPAIR:
            return "the model must choose another action"
        # SAFETY 2: automatic repairs exceed the threshold.
        return LOW_CONFIDENCE if confidence <= self.min_confidence else ""

    def _change_objection(self, draft: Draft) -> str:
        """Return why the changed arguments are not applied automatically, or an empty string."""
        changes = draft.argument_changes
        if changes and self.tool.destructive:
            return "the tool is declared destructive"
        changed_names = [name for change in changes for name in _changed_names(change)]
        for name in changed_names:
            if not self._can_change(name):
                return f"{name} is a privileged argument"
        if reason := self._meaning_objection(draft):
            return reason
        if draft.source == "error" and "bound in error" not in draft.strategies:
            return "the error names no bound for exactly one number of the call"
        if not changes or not draft.is_rejected:
            return ""
        if self.failure.kind.accepted_arguments and not self.failure.is_guess:
            return "the failure is not a schema violation"
        roots = {path.partition(".")[0] for path in (*changed_names, *(str(change.before) for change in changes))}
        blamed_name = self._find_blamed_argument()
        if blamed_name and blamed_name not in roots:
            return f"the error names {blamed_name}, which this repair does not change"
        return ""

    def _find_blamed_argument(self) -> str:
        """Return the one argument that the error names as the cause, or an empty string."""
        blamed_names = {first or second for first, second in re.findall(_BLAMED, self.text, re.IGNORECASE)}
        return blamed_names.pop() if len(blamed_names) == 1 and blamed_names <= self.arguments.keys() else ""

    def _unproven_reason(self, applied_fix: AppliedFix) -> str:
        """Return why a fix from memory is not automatic.

        SAFETY S3: it must be promoted or approved, for exactly this failure.
        """
        fix = applied_fix.fix
        if applied_fix.prerequisites and self.tool.learn != "repair":
            return 'prerequisites are run automatically only with learn = "repair"'
        if fix.similarity < 1:
            return "it succeeded for a similar failure only"
        if fix.state not in ("promoted", "approved"):
            return fix.reason or "the fix is not promoted"
        if applied_fix.has_unlisted_text:
            return "its text is not an enum value of the tool's schema"
        if applied_fix.has_new_value and fix.state != "approved":
            return "a value from memory needs approval by an operator"
        return ""

    def _prerequisite_objection(self, applied_fix: AppliedFix) -> str:
        """Return why prerequisite calls are not made automatically, if the operator allows them at all."""
        if applied_fix.missing_arguments:
            return f"this run contains no value for {applied_fix.missing_arguments[0]}"
        for tool, prerequisite_arguments in applied_fix.prerequisites:
            for name, value in prerequisite_arguments.items():
                if self._is_from_this_run(value):
                    continue
                if is_privileged(name):
                    return f"{tool}.{name} is a privileged argument"
                if _contains_text(value):
                    return f"{tool}.{name} would repeat a text of another run"
        return ""

    def _is_from_this_run(self, value: Any) -> bool:
        calls = [self.arguments, *(call.arguments for call in self.earlier_calls)]
        run_values = (item for arguments in calls if isinstance(arguments, Mapping) for item in arguments.values())
        return any(is_same_json(value, run_value) for run_value in run_values)


def _contains_text(value: Any) -> bool:
    if isinstance(value, Mapping | list):
        return any(map(_contains_text, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, str)


_UNKNOWN = (  # compiled on first use, like the others
    r"\b(?:unexpected|unknown|unrecogni[sz]ed|extra|additional|unsupported|undefined|no such|not permitted|invalid) "
    r"(?:keyword |named )?(?:argument|parameter|param|propert|field|key|input|option|attribute|name)"
    r"|\binvalid syntax\b|\bSyntaxError\b|\bmalformed\b"
)
_ABOUT_NAME = (
    r"\b(?:unknown|no such|invalid|undefined|unrecogni[sz]ed|no) (?:tool|function|action|method|command)\b"
    r"|\b(?:tool|function|action|method)\b.{0,120}\b(?:not found|not defined|does not exist|unknown|not available)\b"
    r"|\bis not defined\b|\bhas no attribute\b"
)
_BLAMED = (
    r"\b(?:parameter|argument|param|field|property)\b:? ?[`'\"]([A-Za-z_][\w\-]{0,60})[`'\"]"
    r"|[`'\"]([A-Za-z_][\w\-]{0,60})[`'\"] (?:parameter|argument|param|field|property)\b"
)


def _is_same(one: Suggestion, other: Suggestion) -> bool:
    is_same_target = (one.tool, one.prerequisites) == (other.tool, other.prerequisites)
    return is_same_target and is_same_json(one.arguments, other.arguments)


def _prerequisites_of(draft: Draft) -> tuple[PrerequisiteCall, ...]:
    if isinstance(draft, AppliedFix):
        return tuple(PrerequisiteCall(*call) for call in draft.prerequisites)
    return draft.prerequisites if isinstance(draft, ReflectedDraft) else ()


def _by_confidence(suggestion: Suggestion) -> float:
    return -suggestion.confidence


def _rank(suggestion: Suggestion) -> tuple[bool, float]:
    return suggestion.automatic, suggestion.confidence


def _without_duplicates(suggestions: Sequence[Suggestion]) -> list[Suggestion]:
    """Keep one of equal suggestions: an automatic one, else the likeliest."""
    unique_suggestions: list[Suggestion] = []
    for suggestion in sorted(suggestions, key=_rank, reverse=True):
        if not any(_is_same(other, suggestion) for other in unique_suggestions):
            unique_suggestions.append(suggestion)
    return sorted(unique_suggestions, key=_by_confidence)


def _is_approved(draft: Draft) -> bool:
    """Return whether an operator was asked about this repair and has approved it."""
    return isinstance(draft, AppliedFix) and draft.fix.state == "approved"


def is_opposite(change: Change) -> bool:
    """Return whether a change replaces a name or a word by its opposite, which the caller cannot mean."""
    before = change.path.rpartition(".")[2] if change.operation == "rename" else change.before
    after = change.after.rpartition(".")[2] if isinstance(change.after, str) else None
    if not isinstance(before, str) or after is None or change.source == "run":
        return False
    return are_opposites(before, after)


def _changed_names(change: Change) -> Iterator[str]:
    is_unwrapped = change.operation == "rename" and change.path.endswith(f".{change.after}")
    if not is_unwrapped:  # the name of a wrapper says nothing
        yield change.path
    if change.operation == "rename" and isinstance(change.after, str):
        yield change.after
