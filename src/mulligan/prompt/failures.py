"""Messages about one failed call: the failure, suggestions, repairs, and why recovery stopped."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from mulligan.calls import TOOL
from mulligan.failure import Failure, Ran
from mulligan.prompt.guard import CHANGES, NAME, PATH, Guard, unmarked
from mulligan.records import LAST_PART, OPEN, REQUOTED, Ahead, Change, Precedent, Recovery
from mulligan.redaction import clean

MIN_TOLD_CONFIDENCE = 0.5
"""Suggestions with lower confidence are not shown to a model. People can list all."""


class Failures(Guard):
    """Messages about one call."""

    __slots__ = ()

    def answer(
        self,
        failure: Failure,
        *,
        tool: str,
        precedents: Sequence[Precedent] = (),
        names: Sequence[str] = (),
        closed: Collection[str] = (),
        has_effects: bool = True,
        offered: Sequence[Recovery] = (),
        spiral: str = "",
        repeat_note: str = "",
    ) -> dict[str, Any]:
        """Build the tool result for a failed call: the failure, a hint, suggestions and precedents.

        `names` are tools that the model may have intended. `shareable` are texts that may be repeated, such as enum
        members. No other text of an earlier run is repeated.
        """
        told: dict[str, Any] = {
            "error": self._line(failure.kind, NAME),
            "code": self._code(failure.code) or self._line(failure.kind.code, NAME),
            "message": self._quoted(failure.message, tool),
            "hint": self._hint(failure),
            "recoverable": failure.recoverable,
        }
        if failure.ran is Ran.UNKNOWN and has_effects:
            told["outcome"] = "unknown: it may have taken effect. Check before you do it again."
        suggestions = [f"Did you mean {self._line(name, NAME)}?" for name in names]
        suggestions += self.suggestions(offered[:CHANGES])
        suggestions += [self.precedent(each, closed) for each in precedents]
        suggestions += [note for note in (repeat_note, spiral) if note]
        if suggestions:
            told["suggestions"] = suggestions
        return told

    def _hint(self, failure: Failure) -> str:
        # the kind's hint does not fit an unrecoverable error
        if not failure.recoverable and failure.hint == failure.kind.hint:
            return "Trying again cannot help: go on without it, or say that it failed."
        return unmarked(self._redactor.shown(failure.hint, 300))

    def suggestions(self, offered: Iterable[Recovery]) -> list[str]:
        """Return the suggestions with enough confidence to show to a model."""
        return [self.suggestion(each) for each in offered if each.confidence >= MIN_TOLD_CONFIDENCE]

    def suggestion(self, offered: Recovery) -> str:
        """Describe a repair that was not made. Its values come from the model's call or the schema, so they may be
        shown."""
        told = ", ".join(self._changed(each) for each in offered.changes[:CHANGES])
        # A number from the error text that is no bound is untrusted, so name its source.
        is_theirs = any(each.from_ == "error" and each.how == "substitute" for each in offered.changes)
        whose = ", by what the error says" if is_theirs else ""
        return f"This may work: {told}{whose}." if told else "The same call may work later."

    def hint(self, known: Sequence[Precedent]) -> str:
        """Return the hint after a failure in a coding agent: what recovered it in earlier sessions in this folder."""
        told = " ".join(self.precedent(each) for each in known)
        return f"mulligan, from earlier sessions in this folder: {told}" if told else ""

    def precedent(self, known: Precedent, closed: Collection[str] = ()) -> str:
        """Describe what recovered the same failure before, and how often."""
        times = f"in {known.worked} of {known.seen} runs" if known.seen > 1 else "once"
        if 0 < known.likeness < 1:
            times += ", for a failure much like this one"
        if known.how == "recipe" and known.changes:
            sources = " and ".join(name for name in map(self._name, known.between[:CHANGES]) if name)
            names = " and ".join(name for name in (self._name(each.path) for each in known.changes[:CHANGES]) if name)
            if sources and names:
                return f"This worked before, {times}: call {sources} first, use its {names}."
        if known.tellable:
            closed = {*closed, *(each.after for each in known.changes if isinstance(each.after, str))}
        if known.changes:
            told = "; ".join(self.change(each, closed) for each in known.changes[:CHANGES])
            if not known.likeness:
                return f"Calls of this tool that worked look like this: {told}."
            return f"This worked before, {times}: {told}."
        if known.how == "recipe" and known.first:
            calls = [told for each in known.first[:CHANGES] if (told := self._ahead(each, closed))]
            if calls:
                return f"The same call worked before, {times}, after {', then '.join(calls)}."
        first = ", ".join(name for name in map(self._name, known.between[:CHANGES]) if name)
        if known.how == "recipe" and first:
            return f"The same call worked before, {times}, after {first}."
        return f"The same call worked before, {times}, when it was made again later."

    def change(self, changed: Change, closed: Collection[str] = ()) -> str:
        """Describe one changed argument. Texts of other runs are mentioned, not repeated."""
        path = self._name(changed.path)
        return self.advice(changed, closed) or (f"another {path}" if path else "other arguments")

    def advice(self, changed: Change, closed: Collection[str] = ()) -> str:
        """Describe a change as an instruction; empty if it only says that a value was different."""
        path = self._name(changed.path)
        if changed.path == TOOL:
            return f"call {self._name(changed.after) or 'another tool'} instead"
        if changed.how == "rename":
            return f"{path or 'an argument'} is called {self._name(changed.after) or 'something else'}"
        if changed.how == "drop":
            return f"leave {path or 'an argument'} out"
        form = changed.after if isinstance(changed.after, str) else None
        if path and (words := _FORMS.get((changed.how, form)) or _FORMS.get((changed.how, None))):
            return words.format(path)
        if path and form not in (OPEN, LAST_PART, REQUOTED) and self._may_tell(path, changed.after, closed):
            return f"{path}={self._shown(changed.after)}"
        return ""

    def _ahead(self, call: Ahead, closed: Collection[str]) -> str:
        """Describe a prerequisite call. Texts of other runs are mentioned, not repeated."""
        given = [
            # Omit even the placeholder for a secret: it looks like a secret and would be redacted.
            name
            if self._secret(name)
            else f"{name}={self._shown(value) if self._may_tell(name, value, closed) else '...'}"
            for name, value in (*call.arguments.items(), *((name, ...) for name in call.open))
            if self._name(name)
        ]
        tool = self._name(call.tool)
        return f"{tool}({', '.join(given[:CHANGES])})" if tool else ""

    def note(self, tool: str, changes: Iterable[Change]) -> str:
        """Return the note about a repair. Without it, the model would only see the call that it made."""
        told = [self._changed(each) for each in changes]
        more = f" and {len(told) - CHANGES} more" if len(told) > CHANGES else ""
        return (
            f"mulligan: {self._line(tool, NAME)} was called with {', '.join(told[:CHANGES])}{more}; "
            "the first arguments were rejected."
        )

    def _changed(self, changed: Change) -> str:
        if changed.path == TOOL:
            return f"the name {self._shown(changed.before)} -> {self._shown(changed.after)}"
        if not changed.path and changed.how == "parse":
            return "the arguments as JSON"
        path = self._line(changed.path, PATH)
        if changed.how != "rename" and (kind := self._secret(changed.path)):
            return f"another {path or kind}"
        if changed.how == "drop":
            return f"{path} left out"
        before, after = self._shown(changed.before), self._shown(changed.after)
        if before == after:  # only the type changed
            return f"{path} as {_TYPES.get(type(changed.after), 'another type')} {after}"
        if changed.before is None and changed.after is not None:  # the argument was missing
            return f"{path}={after}"
        return f"{path} {before} -> {after}"

    def prepared(self, tool: str, first: Sequence[Ahead]) -> str:
        """Return the note about prerequisites that were called after a failure."""
        told = [shown for each in first if (shown := self._ahead(each, ()))] or [f"{len(first)} other calls"]
        return (
            f"mulligan: {self._line(tool, NAME)} was called again after {', then '.join(told)}, which had been missing."
        )

    def confirmed(self, tool: str) -> str:
        """Return the note about a call that executed although its answer was lost."""
        return f"mulligan: the answer of {self._line(tool, NAME)} was lost; a check found that it had worked."

    def ignored(self, tool: str, names: Sequence[str], meant: Mapping[str, str]) -> str:
        """Return the note about unknown arguments: most servers ignore them silently, so the call seems correct."""
        told = ", ".join(self._line(name, PATH) for name in names[:CHANGES])
        more = f" and {len(names) - CHANGES} more" if len(names) > CHANGES else ""
        near = [
            f"{self._line(meant[name], PATH)} for {self._line(name, PATH)}" for name in names[:CHANGES] if name in meant
        ]
        hint = f" Did you mean {', '.join(near)}?" if near else ""
        said = f"does not list {told}{more} as an argument and may have ignored it"
        return f"mulligan: {self._line(tool, NAME)} {said}.{hint}"

    def held_back(self, tool: str, server: str) -> str:
        """Explain that a call was blocked until a person accepts the tool's definition."""
        return (
            f"{self._line(tool, NAME)} was not called: its definition is not the one that was accepted. "
            f"A person has to look at it: mulligan proxy accept {self._line(server, NAME)}"
        )

    def left_alone(self, tool: str, seconds: float) -> str:
        """Explain that a call was blocked by an open circuit breaker."""
        return (
            f"{self._line(tool, NAME)} was not called: too many of its calls have failed in the last seconds. "
            f"It is tried again in {max(seconds, 0.1):.1f} s."
        )

    def repeated(self, tool: str, failure: Failure, count: int) -> str:
        """Explain that a call was blocked because it failed before with the same arguments."""
        times = "twice" if count == 2 else f"{count} times"
        return (
            f"{self._line(tool, NAME)} was given up {times} in this run with the same arguments, each time with "
            f"{self._line(failure.kind, NAME)}, so it was not called again."
        )

    def failed_identically(self, count: int) -> str:
        """Return the note about a call that failed again with the same arguments."""
        return f"mulligan: this call failed the same way {count} times in this run."

    def again(self, failure: Failure, limit: int = 600) -> str:
        """Describe the error of the last request or answer, for the retry with the model."""
        if failure.kind.code in ("invalid_output", "output_limit"):
            said = f"{self._line(failure.message, limit)} {self._hint(failure)}"
            return f"[mulligan] Your last answer could not be used. {said}"
        said = self._quoted(failure.message, "provider", limit)
        return (
            f"[mulligan] The last request was refused: {said} "
            "Answer without what it names, or say in one sentence what cannot be done."
        )

    def epitaph(
        self, failure: Failure, *, attempts: int, seconds: float, waits: Sequence[float], why: str, run: str
    ) -> str:
        """Return the note on an exception: attempts, stop reason, and the run to inspect, if it is recorded."""
        tried = f"{attempts} attempts" if attempts > 1 else "1 attempt" if attempts else "no attempt"
        waited = f", waited {' and '.join(f'{wait:.1f} s' for wait in waits)}" if waits else ""
        where = unmarked(" ".join(clean(" ".join(run.split()), 12).split()))  # random, and may look like a secret
        said = f"mulligan: {self._line(failure.kind, NAME)}, {tried} in {seconds:.1f} s{waited}; {why}."
        return f"{said} Details: mulligan show {where}" if where else said


_FORMS: dict[tuple[str, Any], str] = {
    ("cast", "integer"): "{} as an integer",
    ("cast", "number"): "{} as a number",
    ("cast", "string"): "{} as a text",
    ("cast", "boolean"): "{} as true or false",
    ("parse", None): "{} as a JSON value, not as a text",
    ("wrap", None): "{} as a list",
    ("trim", LAST_PART): "only the last part of {}",
    ("trim", None): "{} without surrounding spaces",
    ("substitute", REQUOTED): "{} with other quotes or escapes",
}
"""Phrases for changes without a value of a run."""
_TYPES = {int: "the number", float: "the number", bool: "true or false:", str: "the text"}
