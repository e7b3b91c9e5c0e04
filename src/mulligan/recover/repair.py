"""Suggestions for a failed call: changes, their source, confidence, and whether they are applied automatically."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from mulligan.calls import TOOL, is_same_json
from mulligan.failure import Failure, Ran, Remedy
from mulligan.links import differing_names
from mulligan.privileged_arguments import is_privileged
from mulligan.records import Change, Fix
from mulligan.recover import earlier, paths, proven
from mulligan.recover.bounds import bound_in, expected_in
from mulligan.recover.confidence import SURENESS, sureness
from mulligan.recover.mend import Mended, mend, strangers
from mulligan.recover.near import named, nearest
from mulligan.recover.schema import Fault, Path, Pinned, pinned
from mulligan.recover.tool import Arguments, Seen, Tool

UNTOLD = 0.45
"""Maximum confidence of a suggestion that is not shown to a model."""
MOST = 5
"""Maximum suggestions for one call."""
Schema = Mapping[str, Any]
Known = Mapping[str, Schema | None]


@dataclass(frozen=True, slots=True)
class Before:
    """A call that must succeed before another."""

    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A proposed call that replaces a failed one."""

    tool: str
    arguments: dict[str, Any]
    first: tuple[Before, ...] = ()
    """Calls that must be made before it."""
    changes: tuple[Change, ...] = ()
    source: str = "schema"
    """Origin of the suggestion: schema, error, run, memory or rule."""
    confidence: float
    family: str = ""
    """The repair strategy: that of the change with the lowest confidence."""
    evidence: tuple[str, ...] = ()
    fix: str | None = None
    """Id of the fix in memory, for `mulligan fixes show`."""
    record: Fix | None = None
    """The fix with this id."""
    automatic: bool = False
    """Whether safety rules, mode and policy allow it to be applied automatically."""
    why: str = ""
    """Why it is not automatic."""


def suggest(
    arguments: Arguments,
    failure: Failure,
    tool: Tool,
    seen: Sequence[Seen] = (),
    *,
    tools: Known | None = None,
    confidence: float = 0.80,
    known: Sequence[Fix] = (),
) -> list[Suggestion]:
    """Return suggestions for a failed call, likeliest first. The list may be empty.

    `earlier_calls` are the calls of the same run, oldest first. `tools` are the schemas of all tools by name, in case
    the tool name itself is wrong. Suggestions with at most `min_confidence` are not automatic. `fixes` are fixes from
    memory for the same failure.
    """
    if not failure.counts or failure.remedy is Remedy.COMPRESS:
        return []
    if tools is None and failure.kind.code == "unknown_tool":
        tools = {call.tool: None for call in seen if call.outcome == "success"}  # names of tools that exist
    return _Repair(arguments, failure, tool, seen, tools or {}, confidence, known).suggestions()


@dataclass(slots=True)
class _Draft:
    """A suggestion before the safety checks."""

    arguments: dict[str, Any]
    changes: tuple[Change, ...]
    families: tuple[str, ...]
    source: str
    evidence: tuple[str, ...]
    is_refused: bool = False
    """Whether the failed call did not execute: rejected by our own schema check, or an unknown tool."""
    known: proven.Known | None = None
    """The applied fix, if the suggestion comes from memory."""


class _Repair:
    def __init__(
        self,
        arguments: Arguments,
        failure: Failure,
        tool: Tool,
        seen: Sequence[Seen],
        tools: Known,
        confidence: float,
        known: Sequence[Fix] = (),
    ) -> None:
        self.arguments = arguments
        self.failure = failure
        self.tool = tool
        self.seen = seen
        self.tools = tools
        self.confidence = confidence
        self.known = known
        self.text = f"{failure.message}\n{failure.detail}"[:4000]

    def suggestions(self) -> list[Suggestion]:
        """Return the suggestions, likeliest first. Memory only adds to the suggestions of rules.

        Equal suggestions are merged. The result is automatic if any of them is.
        """
        judged = [self._judged(name, draft) for name, draft in self._drafts()]
        judged.sort(key=lambda suggestion: -suggestion.confidence)
        by_rules = _without_duplicates([suggestion for suggestion in judged if suggestion.source != "memory"])[:MOST]
        by_memory = _without_duplicates([suggestion for suggestion in judged if suggestion.source == "memory"])
        for suggestion in by_memory:
            equal = next((index for index, rule in enumerate(by_rules) if _is_same(rule, suggestion)), None)
            # Keep the rule's own suggestion if it is automatic, so that memory does not delay it.
            if equal is not None and not by_rules[equal].automatic and _rank(suggestion) > _rank(by_rules[equal]):
                by_rules[equal] = suggestion
        added = [suggestion for suggestion in by_memory if not any(_is_same(rule, suggestion) for rule in by_rules)]
        room = max(MOST - len(by_rules), 1)
        return sorted([*by_rules, *added[:room]], key=lambda suggestion: -suggestion.confidence)

    def _drafts(self) -> Iterator[tuple[str, _Draft]]:
        if self.tools and self.tool.name not in self.tools:
            yield from self._renamed()
            return
        schema = self.tools.get(self.tool.name) or self.tool.schema()
        for draft in self._of_arguments(pinned(schema) if schema else None):
            yield self.tool.name, draft
        for draft in self._of_memory(pinned(schema) if schema else None):
            yield self.tool.name, draft

    # Tool names

    def _renamed(self) -> Iterator[tuple[str, _Draft]]:
        """Yield drafts with another tool name.

        C10: junk or case that leaves exactly one known name. Otherwise the most similar names, or the one tool that
        accepts the arguments.
        """
        match = named(self.tool.name, list(self.tools))
        if match is not None:
            yield match.name, self._under(match.name, f"tool {match.how}", "there is one tool of this name")
            return
        # Tools that accept the arguments come first: `get_order(order_id)` means `get_order_details`, not `get_user`.
        near = sorted(nearest(self.tool.name, list(self.tools)), key=lambda name: not self._suits(self.tools[name]))
        for name in near:
            yield name, self._under(name, "tool near", "its name is the nearest")
        if not near:
            fitting = [name for name, schema in list(self.tools.items())[:100] if self._suits(schema)]
            if len(fitting) == 1:
                family = "tool fits" if self.tool.name.strip() else "tool nameless"
                yield fitting[0], self._under(fitting[0], family, "no other tool takes these arguments")

    def _suits(self, schema: Schema | None) -> bool:
        if not schema or not self.arguments:
            return False
        known = pinned(schema)
        return known.faults(self.arguments) == [] and not strangers(self.arguments, known)

    def _under(self, name: str, family: str, evidence: str) -> _Draft:
        """Build the call with another tool name, with arguments repaired by that tool's schema."""
        renamed = Change(path=TOOL, how="rename", before=self.tool.name, after=name, from_="schema")
        schema = self.tools.get(name)
        known = pinned(schema) if schema else None
        is_whole = known is None or not (known.faults(self.arguments) or self._has_strangers(known))
        mended = None if known is None or is_whole else self._mended(known)
        if mended is None:
            families = (family,) if is_whole else (family, "tool alone")
            if is_whole and family != "tool junk" and not self._is_about_the_name():
                families = (family, "tool answered")
            return _Draft(dict(self.arguments), (renamed,), families, "schema", (evidence,), is_refused=True)
        return _Draft(
            mended.arguments,
            (renamed, *mended.changes),
            (family, *mended.families),
            "schema",
            (evidence, *map(_told, mended.changes)),
            is_refused=True,
        )

    def _is_about_the_name(self) -> bool:
        """Return whether the error is about the tool name. Otherwise the tool was known: some servers rename dots."""
        return (
            self.failure.kind.code == "unknown_tool"
            or re.search(_ABOUT_NAME, self.text, re.IGNORECASE | re.DOTALL) is not None
        )

    # Arguments

    def _of_arguments(self, schema: Pinned | None) -> Iterator[_Draft]:
        found = schema.faults(self.arguments) if schema is not None else None
        if schema is not None and (found or self._has_strangers(schema)):
            mended = self._mended(schema)
            if mended is not None:
                evidence = tuple(map(_told, mended.changes))
                yield _Draft(mended.arguments, mended.changes, mended.families, "schema", evidence, is_refused=True)
            yield from self._filled(schema, found or [])
            return  # a call that violates its schema fails whatever else is repaired
        yield from self._of_the_error(schema)
        yield from self._of_the_run(schema)

    def _of_the_error(self, schema: Pinned | None) -> Iterator[_Draft]:
        """Yield drafts from numbers in the error text.

        S1: a bound is the only value that error text may supply automatically. Expected values are suggestions.
        """
        bound = bound_in(self.text, self.arguments)
        if bound is not None and self._may_touch(bound[1].path):
            for draft in self._named(*bound, "bound in error", schema):
                yield draft
                return
        for path, change, is_shown in expected_in(self.text, self.arguments):
            yield from self._named(path, change, "expected in error" if is_shown else "rest in error", schema)

    def _named(self, path: Path, change: Change, family: str, schema: Pinned | None) -> Iterator[_Draft]:
        made = paths.put(self.arguments, path, change.after)
        if self._fits(made, path, schema):
            yield _Draft(made, (change,), (family,), "error", (f"the error names {change.after}",))

    def _filled(self, schema: Pinned, found: Sequence[Fault]) -> Iterator[_Draft]:
        """Yield drafts with missing arguments from earlier calls. They are never automatic.

        Only if nothing else violates the schema.
        """
        if any(fault.rule != "required" or fault.path for fault in found) or strangers(self.arguments, schema):
            return
        required = next((fault.limit for fault in found if isinstance(fault.limit, list)), [])
        missing = [name for name in required if name not in self.arguments]
        if not missing:
            return
        options = earlier.fillings(missing, self.seen)
        if not all(options.values()):
            return
        for at in range(max(map(len, options.values()))):
            chosen = {name: values[min(at, len(values) - 1)] for name, values in options.items()}
            made = {**self.arguments, **{name: value for name, (value, _) in chosen.items()}}
            if schema.faults(made) == []:
                changes = tuple(
                    Change(path=name, how="substitute", after=value, from_="run") for name, (value, _) in chosen.items()
                )
                family = "filled" if at == 0 else "one of several"
                yield _Draft(made, changes, (family,), "run", tuple(why for _, why in chosen.values()), is_refused=True)

    def _has_strangers(self, schema: Pinned) -> bool:
        """Return whether the call has arguments that the schema does not define and the failure is about them."""
        unknown = strangers(self.arguments, schema)
        if any(not name.strip(" \t\r\n'\"`") for name in unknown):
            return True
        return bool(unknown) and (
            any(re.search(rf"(?<!\w){re.escape(name[:200])}(?!\w)", self.text) for name in unknown)
            or re.search(_UNKNOWN, self.text, re.IGNORECASE) is not None
            or re.search(_SYNTAX, self.text, re.IGNORECASE) is not None
        )

    def _mended(self, schema: Pinned) -> Mended | None:
        """Repair the arguments by the schema: certain repairs first, then uncertain ones."""
        is_about_names = self._has_strangers(schema)
        strict = is_about_names or bool(schema.faults(self.arguments))
        # Unknown names may be misspelled missing ones. If they are not, and the schema allows them, they stay.
        ways = [(strict, False)] if is_about_names else [(strict, False), (False, False)]
        for is_strict, bold in (*ways, (strict, True)):
            mended = mend(self.arguments, schema, strict=is_strict, bold=bold)
            if mended is not None:
                return mended
        return None

    def _fits(self, made: dict[str, Any], path: Path, schema: Pinned | None) -> bool:
        """Return whether the schema accepts the new arguments, or only the changed one if others are not JSON."""
        if schema is None:
            return True
        found = schema.faults(made)
        if found is None and schema.schema:
            keywords = ("$schema", "properties", "$defs", "definitions")
            parts = {key: schema.schema[key] for key in keywords if key in schema.schema}
            found = Pinned(parts).faults({path[0]: made[path[0]]}) if isinstance(path[0], str) else None
        return found == []

    # Values from this run

    def _of_the_run(self, schema: Pinned | None) -> Iterator[_Draft]:
        if self.failure.remedy is Remedy.WAIT or self.failure.kind.code in _NOT_THE_ARGUMENTS:
            return
        names = list((schema.schema or {}).get("properties", {})) if schema is not None else []
        guesses = earlier.guesses(self.arguments, self.text, names, self.tool.name, self.seen) if self.seen else []
        if self.failure.remedy is Remedy.STOP:  # a person must act, but should see a typing mistake
            guesses = [guess for guess in guesses if guess.family in ("same id", "near id")]
        items = self._find_item_arguments() if guesses else frozenset()
        for guess in guesses:
            if guess.path[0] in items and guess.family not in _SAME_VALUES:
                continue  # the value of another item is no correction
            yield from self._substituted(guess.path, guess.after, guess.family, guess.evidence, schema)
        if self.failure.remedy is Remedy.STOP:
            return
        required = (schema.schema or {}).get("required", ()) if schema is not None else None
        for rewrite in paths.rewrites(self.arguments, self.text, required):
            yield _Draft(rewrite.arguments, rewrite.changes, (rewrite.family,), "call", (rewrite.evidence,))

    def _find_item_arguments(self) -> frozenset[str]:
        """Return the arguments that name items: declared, or different in two successful calls of this tool."""
        names = set(self.tool.items)
        first: Mapping[str, Any] | None = None
        for call in self.seen:
            if call.tool == self.tool.name and call.outcome == "success" and isinstance(call.arguments, Mapping):
                if first is None:
                    first = call.arguments
                else:
                    names |= differing_names(first, call.arguments)
        return frozenset(names)

    def _substituted(
        self, path: tuple[str | int, ...], after: Any, family: str, evidence: str, schema: Pinned | None
    ) -> Iterator[_Draft]:
        change = earlier.changed(self.arguments, earlier.Guess(path, after, family, evidence))
        if isinstance(change.before, int) and not isinstance(change.before, bool) and str(after).isdigit():
            after = int(after)
            change = msgspec.structs.replace(change, after=after)
        made = paths.put(self.arguments, path, after)
        if schema is None or schema.faults(made) in ([], None):
            yield _Draft(made, (change,), (family,), "run", (evidence,))

    # Fixes from other runs

    def _of_memory(self, schema: Pinned | None) -> Iterator[_Draft]:
        for each in proven.applied(self.known, self.arguments, schema, self.seen) if self.known else ():
            family = "recipe" if each.first else "exemplar" if each.fix.sort == "exemplar" else "fix"
            yield _Draft(each.arguments, each.changes, (family,), "memory", each.evidence, known=each)

    # Safety checks

    def _may_touch(self, path: str) -> bool:
        return not is_privileged(path, self.tool.privileged, self.tool.released)

    def _judged(self, name: str, draft: _Draft) -> Suggestion:
        sure = sureness(draft.families) if draft.known is None else draft.known.sureness
        if draft.source in ("error", "memory") and not self._is_approved(draft) and self._touches_privileged(draft):
            sure = min(sure, UNTOLD)  # the model sees the error text anyway, and a smaller payment is a different call
        why = self._why_not(draft, sure)
        return Suggestion(
            tool=name,
            arguments=draft.arguments,
            first=_before(draft),
            changes=draft.changes,
            source=draft.source,
            fix=draft.known.id if draft.known is not None else None,
            record=draft.known.fix if draft.known is not None else None,
            confidence=sure,
            family=min(draft.families, key=SURENESS.__getitem__),
            evidence=draft.evidence,
            automatic=not why,
            why=why,
        )

    def _is_approved(self, draft: _Draft) -> bool:
        return draft.known is not None and draft.known.fix.state == "approved"

    def _touches_privileged(self, draft: _Draft) -> bool:
        """Return whether it changes a privileged argument, or any argument of a destructive tool."""
        paths = [change.path for change in draft.changes if change.path != TOOL]
        is_protected = self.tool.destructive and draft.source == "memory"
        return bool(paths) and (is_protected or not all(map(self._may_touch, paths)))

    def _why_not(self, draft: _Draft, sure: float) -> str:
        """Return why a suggestion is not automatic, or an empty string."""
        tool, failure = self.tool, self.failure
        if tool.mode != "repair":
            return "repairs are only suggested" if tool.mode == "suggest" else "it is only observed"
        if not failure.recoverable:
            return "its author says that trying again cannot help"
        if failure.remedy is Remedy.WAIT:
            return "it may work by itself, later"
        if failure.remedy is Remedy.STOP:
            return "only a person can help"
        if draft.known is not None and (why := self._why_unproven(draft.known)):
            return why
        if draft.known is not None and draft.known.first:
            return self._why_not_first(draft.known, sure)
        of_arguments = [change for change in draft.changes if change.path != TOOL]
        if tool.destructive and of_arguments:
            return "the tool is marked as destructive"
        for change in of_arguments:
            for path in _touched(change):
                if not self._may_touch(path):
                    return f"{path} is an argument that is not changed without asking"
        if draft.source == "error" and "bound in error" not in draft.families:
            return "of an error's own numbers only a bound is used without asking"
        if draft.is_refused and failure.kind.code in _LOOKED and of_arguments:
            return "it failed by something else than what its schema forbids"
        if draft.is_refused and of_arguments and (name := self._blamed()):
            roots = {
                path.partition(".")[0] for change in of_arguments for path in (*_touched(change), str(change.before))
            }
            if name not in roots:
                return f"the error is about {name}, which this leaves as it is"
        if not draft.is_refused:
            if failure.remedy is not Remedy.REPAIR:
                return "only the model can help"
            if not tool.is_repeatable and failure.ran is not Ran.NO:
                return "it may have taken effect and is not known to be repeatable"
        if sure <= self.confidence:  # SAFETY 2: automatic repairs exceed the threshold
            return "no repair is sure enough"
        return ""

    def _blamed(self) -> str:
        """Return the one argument that the error names as the cause, or an empty string."""
        found = {name for match in re.finditer(_BLAMED, self.text, re.IGNORECASE) for name in match.groups() if name}
        return found.pop() if len(found) == 1 and found <= self.arguments.keys() else ""

    def _why_unproven(self, known: proven.Known) -> str:
        """Return why a fix from memory is not automatic.

        SAFETY S3: it must be promoted or approved, for exactly this failure.
        """
        fix = known.fix
        if known.first and self.tool.learn != "repair":
            return 'prerequisites are run automatically only with learn = "repair"'
        if fix.likeness < 1:
            return "it worked for a failure that is only alike"
        if fix.state not in ("promoted", "approved"):
            return fix.why or "it is not proven"
        if known.is_foreign_text:
            return "its text is not listed in the tool's schema"
        if known.is_value and fix.state != "approved":
            return "a remembered value is applied only after an operator approved it"
        return ""

    def _why_not_first(self, known: proven.Known, sure: float) -> str:
        """Return why prerequisite calls are not made automatically, if the operator allows them at all."""
        if known.missing:
            return f"nothing in this run says {known.missing[0]}"
        for tool, given in known.first:
            for name, value in given.items():
                if is_privileged(name) and not self._is_of_this_run(value):
                    return f"{tool}.{name} is an argument that is not given without asking"
                if not self._is_of_this_run(value) and any(isinstance(each, str) for each in _leaves(value)):
                    return f"{tool}.{name} would be a text of another run"
        if not self.tool.is_repeatable and self.failure.ran is not Ran.NO:
            return "it may have taken effect and is not known to be repeatable"
        return "no repair is sure enough" if sure <= self.confidence else ""

    def _is_of_this_run(self, value: Any) -> bool:
        own = [self.arguments, *(each.arguments for each in self.seen)]
        return any(is_same_json(value, each) for given in own if isinstance(given, Mapping) for each in given.values())


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(each)
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
_NOT_THE_ARGUMENTS = frozenset(
    "build_failure test_failure edit_mismatch stale_file permission_denied command_not_found output_too_large "
    "loop_detected conflict".split()
)
"""Codes of failures that another value of this run cannot repair."""

_LOOKED = frozenset(
    "not_found file_not_found permission_denied conflict no_results precondition invalid_state constraint_violation "
    "build_failure test_failure".split()
)
"""Codes with which a tool reports that it accepted the arguments and looked for their object."""


def _is_same(one: Suggestion, other: Suggestion) -> bool:
    return one.tool == other.tool and one.first == other.first and is_same_json(one.arguments, other.arguments)


def _rank(suggestion: Suggestion) -> tuple[bool, float]:
    return suggestion.automatic, suggestion.confidence


def _without_duplicates(suggestions: Sequence[Suggestion]) -> list[Suggestion]:
    """Keep one of equal suggestions: an automatic one, else the likeliest."""
    kept: list[Suggestion] = []
    for suggestion in sorted(suggestions, key=_rank, reverse=True):
        if not any(_is_same(other, suggestion) for other in kept):
            kept.append(suggestion)
    return sorted(kept, key=lambda suggestion: -suggestion.confidence)


def _before(draft: _Draft) -> tuple[Before, ...]:
    return tuple(Before(tool, arguments) for tool, arguments in draft.known.first) if draft.known is not None else ()


def _touched(change: Change) -> Iterator[str]:
    yield change.path
    if change.how == "rename" and isinstance(change.after, str):
        yield change.after


def _told(change: Change) -> str:
    """Describe a change in a few words, without its values."""
    match change.how:
        case "rename":
            return f"{change.path}: the schema knows it as {change.after}"
        case "drop":
            return f"{change.path}: not in the schema, or empty"
        case "default":
            return f"{change.path}: required, and has a default"
        case "clamp":
            return f"{change.path}: beyond its bound"
        case _:
            return f"{change.path}: {change.how}, as the schema asks"
