"""Suggestions for a failed call: changes, their source, confidence, and whether they are applied automatically."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from mulligan.core.calls import TOOL_NAME_PATH, is_same_json
from mulligan.core.failure import Failure, Remedy, TookEffect
from mulligan.core.links import differing_names
from mulligan.core.privileged_arguments import is_privileged
from mulligan.core.records import Change, Fix
from mulligan.recover import history, memory_repair, path_repair
from mulligan.recover.confidence import STRATEGY_CONFIDENCE, lowest_confidence
from mulligan.recover.error_bounds import find_error_bound, find_expected_values
from mulligan.recover.names import match_tool_name, nearest_tool_names
from mulligan.recover.schema import CompiledSchema, Path, SchemaViolation, compile_schema
from mulligan.recover.schema_repair import SchemaRepair, repair_from_schema, unknown_arguments
from mulligan.recover.tool import Arguments, EarlierCall, Tool

MAX_HIDDEN_CONFIDENCE = 0.45
"""Maximum confidence of a suggestion that is not shown to a model."""
MAX_SUGGESTIONS = 5
"""Maximum suggestions for one call."""
Schema = Mapping[str, Any]
ToolSchemas = Mapping[str, Schema | None]


@dataclass(frozen=True, slots=True)
class PrerequisiteCall:
    """A call that must succeed before another."""

    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A proposed call that replaces a failed one."""

    tool: str
    arguments: dict[str, Any]
    prerequisites: tuple[PrerequisiteCall, ...] = ()
    """Calls that must be made before it."""
    changes: tuple[Change, ...] = ()
    source: str = "schema"
    """Origin of the suggestion: schema, error, run, memory or rule."""
    confidence: float
    strategy: str = ""
    """The repair strategy: that of the change with the lowest confidence."""
    evidence: tuple[str, ...] = ()
    fix_id: str | None = None
    """Id of the fix in memory, for `mulligan fixes show`."""
    record: Fix | None = None
    """The fix with this id."""
    automatic: bool = False
    """Whether safety rules, mode and policy allow it to be applied automatically."""
    reason: str = ""
    """Why it is not automatic."""


def suggest(
    arguments: Arguments,
    failure: Failure,
    tool: Tool,
    earlier_calls: Sequence[EarlierCall] = (),
    *,
    tools: ToolSchemas | None = None,
    min_confidence: float = 0.80,
    fixes: Sequence[Fix] = (),
) -> list[Suggestion]:
    """Return suggestions for a failed call, likeliest first. The list may be empty.

    `earlier_calls` are the calls of the same run, oldest first. `tools` are the schemas of all tools by name, in case
    the tool name itself is wrong. Suggestions with at most `min_confidence` are not automatic. `fixes` are fixes from
    memory for the same failure.
    """
    if not failure.is_failure or failure.remedy is Remedy.COMPRESS:
        return []
    if tools is None and failure.kind.code == "unknown_tool":
        tools = {call.tool: None for call in earlier_calls if call.outcome == "success"}  # names of tools that exist
    return _SuggestionBuilder(
        arguments, failure, tool, earlier_calls, tools or {}, min_confidence, fixes
    ).build_suggestions()


@dataclass(slots=True)
class _Draft:
    """A suggestion before the safety checks."""

    arguments: dict[str, Any]
    changes: tuple[Change, ...]
    strategies: tuple[str, ...]
    source: str
    evidence: tuple[str, ...]
    is_rejected: bool = False
    """Whether the failed call did not execute: rejected by our own schema check, or an unknown tool."""
    applied_fix: memory_repair.AppliedFix | None = None
    """The applied fix, if the suggestion comes from memory."""


class _SuggestionBuilder:
    def __init__(
        self,
        arguments: Arguments,
        failure: Failure,
        tool: Tool,
        earlier_calls: Sequence[EarlierCall],
        tools: ToolSchemas,
        min_confidence: float,
        fixes: Sequence[Fix] = (),
    ) -> None:
        self.arguments = arguments
        self.failure = failure
        self.tool = tool
        self.earlier_calls = earlier_calls
        self.tools = tools
        self.min_confidence = min_confidence
        self.fixes = fixes
        self.text = f"{failure.message}\n{failure.detail}"[:4000]

    def build_suggestions(self) -> list[Suggestion]:
        """Return the suggestions, likeliest first. Memory only adds to the suggestions of rules.

        Equal suggestions are merged. The result is automatic if any of them is.
        """
        suggestions = [self._to_suggestion(name, draft) for name, draft in self._iter_drafts()]
        suggestions.sort(key=lambda suggestion: -suggestion.confidence)
        by_rules = _without_duplicates([suggestion for suggestion in suggestions if suggestion.source != "memory"])[
            :MAX_SUGGESTIONS
        ]
        by_memory = _without_duplicates([suggestion for suggestion in suggestions if suggestion.source == "memory"])
        for suggestion in by_memory:
            equal = next((index for index, rule in enumerate(by_rules) if _is_same(rule, suggestion)), None)
            # Keep the rule's own suggestion if it is automatic, so that memory does not delay it.
            if equal is not None and not by_rules[equal].automatic and _rank(suggestion) > _rank(by_rules[equal]):
                by_rules[equal] = suggestion
        added = [suggestion for suggestion in by_memory if not any(_is_same(rule, suggestion) for rule in by_rules)]
        remaining_slots = max(MAX_SUGGESTIONS - len(by_rules), 1)
        return sorted([*by_rules, *added[:remaining_slots]], key=lambda suggestion: -suggestion.confidence)

    def _iter_drafts(self) -> Iterator[tuple[str, _Draft]]:
        if self.tools and self.tool.name not in self.tools:
            yield from self._draft_renamed_tools()
            return
        schema = self.tools.get(self.tool.name) or self.tool.schema()
        for draft in self._draft_argument_repairs(compile_schema(schema) if schema else None):
            yield self.tool.name, draft
        for draft in self._draft_from_memory(compile_schema(schema) if schema else None):
            yield self.tool.name, draft

    # Tool names

    def _draft_renamed_tools(self) -> Iterator[tuple[str, _Draft]]:
        """Yield drafts with another tool name.

        C10: junk or case that leaves exactly one known name. Otherwise the most similar names, or the one tool that
        accepts the arguments.
        """
        match = match_tool_name(self.tool.name, list(self.tools))
        if match is not None:
            yield (
                match.name,
                self._draft_for_tool(match.name, f"tool {match.method}", "exactly one tool matches this name"),
            )
            return
        # Tools that accept the arguments come first: `get_order(order_id)` means `get_order_details`, not `get_user`.
        near = sorted(
            nearest_tool_names(self.tool.name, list(self.tools)),
            key=lambda name: not self._accepts_arguments(self.tools[name]),
        )
        for name in near:
            yield name, self._draft_for_tool(name, "tool near", "its name is the most similar")
        if not near:
            fitting = [name for name, schema in list(self.tools.items())[:100] if self._accepts_arguments(schema)]
            if len(fitting) == 1:
                strategy = "tool fits" if self.tool.name.strip() else "tool nameless"
                yield fitting[0], self._draft_for_tool(fitting[0], strategy, "only this tool accepts these arguments")

    def _accepts_arguments(self, schema: Schema | None) -> bool:
        if not schema or not self.arguments:
            return False
        compiled = compile_schema(schema)
        return compiled.find_violations(self.arguments) == [] and not unknown_arguments(self.arguments, compiled)

    def _draft_for_tool(self, name: str, strategy: str, evidence: str) -> _Draft:
        """Build the call with another tool name, with arguments repaired by that tool's schema."""
        renamed = Change(path=TOOL_NAME_PATH, operation="rename", before=self.tool.name, after=name, source="schema")
        schema = self.tools.get(name)
        compiled = compile_schema(schema) if schema else None
        is_valid = compiled is None or not (
            compiled.find_violations(self.arguments) or self._has_unknown_arguments(compiled)
        )
        repaired = None if compiled is None or is_valid else self._repair_from_schema(compiled)
        if repaired is None:
            strategies = (strategy,) if is_valid else (strategy, "tool alone")
            if is_valid and strategy != "tool junk" and not self._blames_tool_name():
                strategies = (strategy, "tool answered")
            return _Draft(dict(self.arguments), (renamed,), strategies, "schema", (evidence,), is_rejected=True)
        return _Draft(
            repaired.arguments,
            (renamed, *repaired.changes),
            (strategy, *repaired.strategies),
            "schema",
            (evidence, *map(_describe_change, repaired.changes)),
            is_rejected=True,
        )

    def _blames_tool_name(self) -> bool:
        """Return whether the error is about the tool name. Otherwise the tool was known: some servers rename dots."""
        return (
            self.failure.kind.code == "unknown_tool"
            or re.search(_ABOUT_NAME, self.text, re.IGNORECASE | re.DOTALL) is not None
        )

    # Arguments

    def _draft_argument_repairs(self, schema: CompiledSchema | None) -> Iterator[_Draft]:
        violations = schema.find_violations(self.arguments) if schema is not None else None
        if schema is not None and (violations or self._has_unknown_arguments(schema)):
            repaired = self._repair_from_schema(schema)
            if repaired is not None:
                evidence = tuple(map(_describe_change, repaired.changes))
                yield _Draft(
                    repaired.arguments, repaired.changes, repaired.strategies, "schema", evidence, is_rejected=True
                )
            yield from self._draft_missing_values(schema, violations or [])
            return  # a call that violates its schema fails whatever else is repaired
        yield from self._draft_from_error(schema)
        yield from self._draft_from_run(schema)

    def _draft_from_error(self, schema: CompiledSchema | None) -> Iterator[_Draft]:
        """Yield drafts from numbers in the error text.

        S1: a bound is the only value that error text may supply automatically. Expected values are suggestions.
        """
        bound = find_error_bound(self.text, self.arguments)
        if bound is not None and self._can_change(bound[1].path):
            for draft in self._draft_error_value(*bound, "bound in error", schema):
                yield draft
                return
        for path, change, is_shown in find_expected_values(self.text, self.arguments):
            yield from self._draft_error_value(
                path, change, "expected in error" if is_shown else "rest in error", schema
            )

    def _draft_error_value(
        self, path: Path, change: Change, strategy: str, schema: CompiledSchema | None
    ) -> Iterator[_Draft]:
        new_arguments = path_repair.replace_at_path(self.arguments, path, change.after)
        if self._fits_schema(new_arguments, path, schema):
            yield _Draft(new_arguments, (change,), (strategy,), "error", (f"the error names {change.after}",))

    def _draft_missing_values(self, schema: CompiledSchema, violations: Sequence[SchemaViolation]) -> Iterator[_Draft]:
        """Yield drafts with missing arguments from earlier calls. They are never automatic.

        Only if nothing else violates the schema.
        """
        if any(fault.rule != "required" or fault.path for fault in violations) or unknown_arguments(
            self.arguments, schema
        ):
            return
        required = next((fault.limit for fault in violations if isinstance(fault.limit, list)), [])
        missing = [name for name in required if name not in self.arguments]
        if not missing:
            return
        options = history.missing_value_candidates(missing, self.earlier_calls)
        if not all(options.values()):
            return
        for at in range(max(map(len, options.values()))):
            chosen_values = {name: values[min(at, len(values) - 1)] for name, values in options.items()}
            new_arguments = {**self.arguments, **{name: value for name, (value, _) in chosen_values.items()}}
            if schema.find_violations(new_arguments) == []:
                changes = tuple(
                    Change(path=name, operation="substitute", after=value, source="run")
                    for name, (value, _) in chosen_values.items()
                )
                strategy = "filled" if at == 0 else "one of several"
                yield _Draft(
                    new_arguments,
                    changes,
                    (strategy,),
                    "run",
                    tuple(evidence_text for _, evidence_text in chosen_values.values()),
                    is_rejected=True,
                )

    def _has_unknown_arguments(self, schema: CompiledSchema) -> bool:
        """Return whether the call has arguments that the schema does not define and the failure is about them."""
        unknown = unknown_arguments(self.arguments, schema)
        if any(not name.strip(" \t\r\n'\"`") for name in unknown):
            return True
        return bool(unknown) and (
            any(re.search(rf"(?<!\w){re.escape(name[:200])}(?!\w)", self.text) for name in unknown)
            or re.search(_UNKNOWN, self.text, re.IGNORECASE) is not None
            or re.search(_SYNTAX, self.text, re.IGNORECASE) is not None
        )

    def _repair_from_schema(self, schema: CompiledSchema) -> SchemaRepair | None:
        """Repair the arguments by the schema: certain repairs first, then uncertain ones."""
        is_about_names = self._has_unknown_arguments(schema)
        strict = is_about_names or bool(schema.find_violations(self.arguments))
        # Unknown names may be misspelled missing ones. If they are not, and the schema allows them, they stay.
        option_pairs = [(strict, False)] if is_about_names else [(strict, False), (False, False)]
        for is_strict, can_guess in (*option_pairs, (strict, True)):
            repaired = repair_from_schema(self.arguments, schema, is_strict=is_strict, can_guess=can_guess)
            if repaired is not None:
                return repaired
        return None

    def _fits_schema(self, new_arguments: dict[str, Any], path: Path, schema: CompiledSchema | None) -> bool:
        """Return whether the schema accepts the new arguments, or only the changed one if others are not JSON."""
        if schema is None:
            return True
        violations = schema.find_violations(new_arguments)
        if violations is None and schema.schema:
            keywords = ("$schema", "properties", "$defs", "definitions")
            parts = {key: schema.schema[key] for key in keywords if key in schema.schema}
            violations = (
                CompiledSchema(parts).find_violations({path[0]: new_arguments[path[0]]})
                if isinstance(path[0], str)
                else None
            )
        return violations == []

    # Values from this run

    def _draft_from_run(self, schema: CompiledSchema | None) -> Iterator[_Draft]:
        if self.failure.remedy is Remedy.RETRY or self.failure.kind.code in _UNRELATED_CODES:
            return
        names = list((schema.schema or {}).get("properties", {})) if schema is not None else []
        guesses = (
            history.candidate_values(self.arguments, self.text, names, self.tool.name, self.earlier_calls)
            if self.earlier_calls
            else []
        )
        if self.failure.remedy is Remedy.STOP:  # a person must act, but should see a typing mistake
            guesses = [guess for guess in guesses if guess.strategy in ("same id", "near id")]
        items = self._find_item_arguments() if guesses else frozenset()
        for guess in guesses:
            if guess.path[0] in items and guess.strategy not in _SAME_VALUES:
                continue  # the value of another item is no correction
            yield from self._draft_substitution(guess.path, guess.after, guess.strategy, guess.evidence, schema)
        if self.failure.remedy is Remedy.STOP:
            return
        required = (schema.schema or {}).get("required", ()) if schema is not None else None
        for rewrite in path_repair.suggest_rewrites(self.arguments, self.text, required):
            yield _Draft(rewrite.arguments, rewrite.changes, (rewrite.strategy,), "call", (rewrite.evidence,))

    def _find_item_arguments(self) -> frozenset[str]:
        """Return the arguments that name items: declared, or different in two successful calls of this tool."""
        names = set(self.tool.items)
        first_arguments: Mapping[str, Any] | None = None
        for call in self.earlier_calls:
            if call.tool == self.tool.name and call.outcome == "success" and isinstance(call.arguments, Mapping):
                if first_arguments is None:
                    first_arguments = call.arguments
                else:
                    names |= differing_names(first_arguments, call.arguments)
        return frozenset(names)

    def _draft_substitution(
        self, path: tuple[str | int, ...], after: Any, strategy: str, evidence: str, schema: CompiledSchema | None
    ) -> Iterator[_Draft]:
        change = history.build_change(self.arguments, history.Guess(path, after, strategy, evidence))
        if isinstance(change.before, int) and not isinstance(change.before, bool) and str(after).isdigit():
            after = int(after)
            change = msgspec.structs.replace(change, after=after)
        new_arguments = path_repair.replace_at_path(self.arguments, path, after)
        if schema is None or schema.find_violations(new_arguments) in ([], None):
            yield _Draft(new_arguments, (change,), (strategy,), "run", (evidence,))

    # Fixes from other runs

    def _draft_from_memory(self, schema: CompiledSchema | None) -> Iterator[_Draft]:
        for applied_fix in (
            memory_repair.apply_fixes(self.fixes, self.arguments, schema, self.earlier_calls) if self.fixes else ()
        ):
            strategy = (
                "prerequisite"
                if applied_fix.prerequisites
                else "exemplar"
                if applied_fix.fix.type == "exemplar"
                else "fix"
            )
            yield _Draft(
                applied_fix.arguments,
                applied_fix.changes,
                (strategy,),
                "memory",
                applied_fix.evidence,
                applied_fix=applied_fix,
            )

    # Safety checks

    def _can_change(self, path: str) -> bool:
        return not is_privileged(path, self.tool.privileged, self.tool.unprivileged)

    def _to_suggestion(self, name: str, draft: _Draft) -> Suggestion:
        confidence = lowest_confidence(draft.strategies) if draft.applied_fix is None else draft.applied_fix.confidence
        if draft.source in ("error", "memory") and not self._is_approved(draft) and self._touches_privileged(draft):
            confidence = min(
                confidence, MAX_HIDDEN_CONFIDENCE
            )  # the model sees the error text anyway, and a smaller payment is a different call
        reason = self._not_automatic_reason(draft, confidence)
        return Suggestion(
            tool=name,
            arguments=draft.arguments,
            prerequisites=_prerequisite_calls(draft),
            changes=draft.changes,
            source=draft.source,
            fix_id=draft.applied_fix.id if draft.applied_fix is not None else None,
            record=draft.applied_fix.fix if draft.applied_fix is not None else None,
            confidence=confidence,
            strategy=min(draft.strategies, key=STRATEGY_CONFIDENCE.__getitem__),
            evidence=draft.evidence,
            automatic=not reason,
            reason=reason,
        )

    def _is_approved(self, draft: _Draft) -> bool:
        return draft.applied_fix is not None and draft.applied_fix.fix.state == "approved"

    def _touches_privileged(self, draft: _Draft) -> bool:
        """Return whether it changes a privileged argument, or any argument of a destructive tool."""
        paths = [change.path for change in draft.changes if change.path != TOOL_NAME_PATH]
        is_protected = self.tool.destructive and draft.source == "memory"
        return bool(paths) and (is_protected or not all(map(self._can_change, paths)))

    def _not_automatic_reason(self, draft: _Draft, confidence: float) -> str:
        """Return why a suggestion is not automatic, or an empty string."""
        tool, failure = self.tool, self.failure
        if tool.mode != "repair":
            return 'the mode is "suggest"' if tool.mode == "suggest" else 'the mode is "observe"'
        if not failure.recoverable:
            return "the error is declared unrecoverable"
        if failure.remedy is Remedy.RETRY:
            return "a later retry may succeed"
        if failure.remedy is Remedy.STOP:
            return "a person must act"
        if draft.applied_fix is not None and (reason := self._unproven_reason(draft.applied_fix)):
            return reason
        if draft.applied_fix is not None and draft.applied_fix.prerequisites:
            return self._prerequisite_objection(draft.applied_fix, confidence)
        argument_changes = [change for change in draft.changes if change.path != TOOL_NAME_PATH]
        if tool.destructive and argument_changes:
            return "the tool is declared destructive"
        for change in argument_changes:
            for path in _changed_names(change):
                if not self._can_change(path):
                    return f"{path} is a privileged argument"
        if draft.source == "error" and "bound in error" not in draft.strategies:
            return "of the numbers in an error, only a bound is applied automatically"
        if draft.is_rejected and failure.kind.code in _ARGUMENTS_ACCEPTED_CODES and argument_changes:
            return "the failure is not a schema violation"
        if draft.is_rejected and argument_changes and (name := self._find_blamed_argument()):
            roots = {
                path.partition(".")[0]
                for change in argument_changes
                for path in (*_changed_names(change), str(change.before))
            }
            if name not in roots:
                return f"the error names {name}, which this repair does not change"
        if not draft.is_rejected:
            if failure.remedy is not Remedy.REPAIR:
                return "the model must choose another action"
            if not tool.is_retry_safe and failure.took_effect is not TookEffect.NO:
                return 'the call may have executed and the tool is declared effects="once"'
        if confidence <= self.min_confidence:  # SAFETY 2: automatic repairs exceed the threshold
            return "its confidence is too low"
        return ""

    def _find_blamed_argument(self) -> str:
        """Return the one argument that the error names as the cause, or an empty string."""
        blamed_names = {
            name for match in re.finditer(_BLAMED, self.text, re.IGNORECASE) for name in match.groups() if name
        }
        return blamed_names.pop() if len(blamed_names) == 1 and blamed_names <= self.arguments.keys() else ""

    def _unproven_reason(self, applied_fix: memory_repair.AppliedFix) -> str:
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

    def _prerequisite_objection(self, applied_fix: memory_repair.AppliedFix, confidence: float) -> str:
        """Return why prerequisite calls are not made automatically, if the operator allows them at all."""
        if applied_fix.missing_arguments:
            return f"this run contains no value for {applied_fix.missing_arguments[0]}"
        for tool, prerequisite_arguments in applied_fix.prerequisites:
            for name, value in prerequisite_arguments.items():
                if is_privileged(name) and not self._is_from_this_run(value):
                    return f"{tool}.{name} is a privileged argument"
                if not self._is_from_this_run(value) and any(isinstance(leaf, str) for leaf in _iter_leaves(value)):
                    return f"{tool}.{name} would repeat a text of another run"
        if not self.tool.is_retry_safe and self.failure.took_effect is not TookEffect.NO:
            return 'the call may have executed and the tool is declared effects="once"'
        return "its confidence is too low" if confidence <= self.min_confidence else ""

    def _is_from_this_run(self, value: Any) -> bool:
        run_arguments = [self.arguments, *(call.arguments for call in self.earlier_calls)]
        return any(
            is_same_json(value, argument_value)
            for call_arguments in run_arguments
            if isinstance(call_arguments, Mapping)
            for argument_value in call_arguments.values()
        )


def _iter_leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping | list):
        for child in value.values() if isinstance(value, Mapping) else value:
            yield from _iter_leaves(child)
    else:
        yield value


_UNKNOWN = (  # compiled on first use, like the others
    r"\b(?:unexpected|unknown|unrecogni[sz]ed|extra|additional|unsupported|undefined|no such|not permitted|invalid) "
    r"(?:keyword |named )?(?:argument|parameter|param|propert|field|key|input|option|attribute|name)"
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
_SYNTAX = r"\binvalid syntax\b|\bSyntaxError\b|\bmalformed\b"
_SAME_VALUES = frozenset({"same id", "seen form"})
"""Strategies that change only the form of the call's own value."""
_UNRELATED_CODES = frozenset(
    "build_failure test_failure edit_mismatch stale_file permission_denied command_not_found output_too_large "
    "loop_detected conflict".split()
)
"""Codes of failures that another value of this run cannot repair."""

_ARGUMENTS_ACCEPTED_CODES = frozenset(
    "not_found file_not_found permission_denied conflict no_results precondition invalid_state constraint_violation "
    "build_failure test_failure".split()
)
"""Codes with which a tool reports that it accepted the arguments and looked for their object."""


def _is_same(one: Suggestion, other: Suggestion) -> bool:
    return (
        one.tool == other.tool
        and one.prerequisites == other.prerequisites
        and is_same_json(one.arguments, other.arguments)
    )


def _rank(suggestion: Suggestion) -> tuple[bool, float]:
    return suggestion.automatic, suggestion.confidence


def _without_duplicates(suggestions: Sequence[Suggestion]) -> list[Suggestion]:
    """Keep one of equal suggestions: an automatic one, else the likeliest."""
    unique_suggestions: list[Suggestion] = []
    for suggestion in sorted(suggestions, key=_rank, reverse=True):
        if not any(_is_same(other, suggestion) for other in unique_suggestions):
            unique_suggestions.append(suggestion)
    return sorted(unique_suggestions, key=lambda suggestion: -suggestion.confidence)


def _prerequisite_calls(draft: _Draft) -> tuple[PrerequisiteCall, ...]:
    return (
        tuple(PrerequisiteCall(tool, arguments) for tool, arguments in draft.applied_fix.prerequisites)
        if draft.applied_fix is not None
        else ()
    )


def _changed_names(change: Change) -> Iterator[str]:
    yield change.path
    if change.operation == "rename" and isinstance(change.after, str):
        yield change.after


def _describe_change(change: Change) -> str:
    """Describe a change in a few words, without its values."""
    match change.operation:
        case "rename":
            return f"{change.path}: named {change.after} in the schema"
        case "drop":
            return f"{change.path}: not in the schema, or empty"
        case "default":
            return f"{change.path}: required, has a default"
        case "clamp":
            return f"{change.path}: outside its bounds"
        case _:
            return f"{change.path}: {change.operation}, as the schema requires"
