"""Messages about one failed call: the failure, suggestions, repairs, and why recovery stopped."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from mulligan.core.calls import TOOL_NAME_PATH
from mulligan.core.failure import Failure, TookEffect
from mulligan.core.records import LAST_PATH_SEGMENT, REQUOTED, RUN_SPECIFIC, Change, Precedent, Prerequisite, Recovery
from mulligan.prompt.sanitizer import MAX_LISTED_CHANGES, MAX_NAME_CHARS, MAX_PATH_CHARS, Sanitizer, strip_quote_marks
from mulligan.redaction import sanitize

MIN_SHOWN_CONFIDENCE = 0.5
"""Suggestions with lower confidence are not shown to a model. People can list all."""


class FailureMessages(Sanitizer):
    """Messages about one call."""

    __slots__ = ()

    def answer(
        self,
        failure: Failure,
        *,
        tool: str,
        precedents: Sequence[Precedent] = (),
        names: Sequence[str] = (),
        shareable: Collection[str] = (),
        has_effects: bool = True,
        suggested: Sequence[Recovery] = (),
        spiral: str = "",
        repeat_note: str = "",
    ) -> dict[str, Any]:
        """Build the tool result for a failed call: the failure, a hint, suggestions and precedents.

        `names` are tools that the model may have intended. `shareable` are texts that may be repeated, such as enum
        members. No other text of an earlier run is repeated.
        """
        payload: dict[str, Any] = {
            "error": self._line(failure.kind, MAX_NAME_CHARS),
            "code": self._code(failure.code) or self._line(failure.kind.code, MAX_NAME_CHARS),
            "message": self._quote(failure.message, tool),
            "hint": self._hint(failure),
            "recoverable": failure.recoverable,
        }
        if failure.ran is TookEffect.UNKNOWN and has_effects:
            payload["outcome"] = "unknown: it may have taken effect. Check before you do it again."
        suggestions = [f"Did you mean {self._line(name, MAX_NAME_CHARS)}?" for name in names]
        suggestions += self.suggestions(suggested[:MAX_LISTED_CHANGES])
        suggestions += [self.precedent(precedent, shareable) for precedent in precedents]
        suggestions += [note for note in (repeat_note, spiral) if note]
        if suggestions:
            payload["suggestions"] = suggestions
        return payload

    def _hint(self, failure: Failure) -> str:
        # the kind's hint does not fit an unrecoverable error
        if not failure.recoverable and failure.hint == failure.kind.hint:
            return "Trying again cannot help: go on without it, or say that it failed."
        return strip_quote_marks(self._redactor.text_for_display(failure.hint, 300))

    def suggestions(self, recoveries: Iterable[Recovery]) -> list[str]:
        """Return the suggestions with enough confidence to show to a model."""
        return [self.suggestion(recovery) for recovery in recoveries if recovery.confidence >= MIN_SHOWN_CONFIDENCE]

    def suggestion(self, recovery: Recovery) -> str:
        """Describe a repair that was not made. Its values come from the model's call or the schema, so they may be
        shown."""
        phrases = ", ".join(self._describe_change(change) for change in recovery.changes[:MAX_LISTED_CHANGES])
        # A number from the error text that is no bound is untrusted, so name its source.
        is_from_error = any(change.from_ == "error" and change.how == "substitute" for change in recovery.changes)
        source_note = ", by what the error says" if is_from_error else ""
        return f"This may work: {phrases}{source_note}." if phrases else "The same call may work later."

    def hint(self, precedents: Sequence[Precedent]) -> str:
        """Return the hint after a failure in a coding agent: what recovered it in earlier sessions in this folder."""
        text = " ".join(self.precedent(precedent) for precedent in precedents)
        return f"mulligan, from earlier sessions in this folder: {text}" if text else ""

    def precedent(self, precedent: Precedent, shareable: Collection[str] = ()) -> str:
        """Describe what recovered the same failure before, and how often."""
        times = f"in {precedent.worked} of {precedent.seen} runs" if precedent.seen > 1 else "once"
        if 0 < precedent.likeness < 1:
            times += ", for a failure much like this one"
        if precedent.how == "recipe" and precedent.changes:
            sources = " and ".join(name for name in map(self._name, precedent.between[:MAX_LISTED_CHANGES]) if name)
            names = " and ".join(
                name for name in (self._name(change.path) for change in precedent.changes[:MAX_LISTED_CHANGES]) if name
            )
            if sources and names:
                return f"This worked before, {times}: call {sources} first, use its {names}."
        if precedent.shareable:
            shareable = {*shareable, *(change.after for change in precedent.changes if isinstance(change.after, str))}
        if precedent.changes:
            phrases = "; ".join(self.change(change, shareable) for change in precedent.changes[:MAX_LISTED_CHANGES])
            if not precedent.likeness:
                return f"Calls of this tool that worked look like this: {phrases}."
            return f"This worked before, {times}: {phrases}."
        if precedent.how == "recipe" and precedent.first:
            calls = [
                phrase
                for prerequisite in precedent.first[:MAX_LISTED_CHANGES]
                if (phrase := self._describe_prerequisite(prerequisite, shareable))
            ]
            if calls:
                return f"The same call worked before, {times}, after {', then '.join(calls)}."
        tool_names = ", ".join(name for name in map(self._name, precedent.between[:MAX_LISTED_CHANGES]) if name)
        if precedent.how == "recipe" and tool_names:
            return f"The same call worked before, {times}, after {tool_names}."
        return f"The same call worked before, {times}, when it was made again later."

    def change(self, change: Change, shareable: Collection[str] = ()) -> str:
        """Describe one changed argument. Texts of other runs are mentioned, not repeated."""
        path = self._name(change.path)
        return self.change_instruction(change, shareable) or (f"another {path}" if path else "other arguments")

    def change_instruction(self, change: Change, shareable: Collection[str] = ()) -> str:
        """Describe a change as an instruction; empty if it only says that a value was different."""
        path = self._name(change.path)
        if change.path == TOOL_NAME_PATH:
            return f"call {self._name(change.after) or 'another tool'} instead"
        if change.how == "rename":
            return f"{path or 'an argument'} is called {self._name(change.after) or 'something else'}"
        if change.how == "drop":
            return f"leave {path or 'an argument'} out"
        text = change.after if isinstance(change.after, str) else None
        if path and (words := _CHANGE_PHRASES.get((change.how, text)) or _CHANGE_PHRASES.get((change.how, None))):
            return words.format(path)
        if (
            path
            and text not in (RUN_SPECIFIC, LAST_PATH_SEGMENT, REQUOTED)
            and self._is_shareable(path, change.after, shareable)
        ):
            return f"{path}={self._display_value(change.after)}"
        return ""

    def _describe_prerequisite(self, call: Prerequisite, shareable: Collection[str]) -> str:
        """Describe a prerequisite call. Texts of other runs are mentioned, not repeated."""
        shown_arguments = [
            # Omit even the placeholder for a secret: it looks like a secret and would be redacted.
            name
            if self._secret_kind(name)
            else f"{name}={self._display_value(value) if self._is_shareable(name, value, shareable) else '...'}"
            for name, value in (*call.arguments.items(), *((name, ...) for name in call.open))
            if self._name(name)
        ]
        tool = self._name(call.tool)
        return f"{tool}({', '.join(shown_arguments[:MAX_LISTED_CHANGES])})" if tool else ""

    def note(self, tool: str, changes: Iterable[Change]) -> str:
        """Return the note about a repair. Without it, the model would only see the call that it made."""
        phrases = [self._describe_change(change) for change in changes]
        more = f" and {len(phrases) - MAX_LISTED_CHANGES} more" if len(phrases) > MAX_LISTED_CHANGES else ""
        return (
            f"mulligan: {self._line(tool, MAX_NAME_CHARS)} was called with "
            f"{', '.join(phrases[:MAX_LISTED_CHANGES])}{more}; the first arguments were rejected."
        )

    def _describe_change(self, change: Change) -> str:
        if change.path == TOOL_NAME_PATH:
            return f"the name {self._display_value(change.before)} -> {self._display_value(change.after)}"
        if not change.path and change.how == "parse":
            return "the arguments as JSON"
        path = self._line(change.path, MAX_PATH_CHARS)
        if change.how != "rename" and (kind := self._secret_kind(change.path)):
            return f"another {path or kind}"
        if change.how == "drop":
            return f"{path} left out"
        before, after = self._display_value(change.before), self._display_value(change.after)
        if before == after:  # only the type changed
            return f"{path} as {_TYPE_NAMES.get(type(change.after), 'another type')} {after}"
        if change.before is None and change.after is not None:  # the argument was missing
            return f"{path}={after}"
        return f"{path} {before} -> {after}"

    def prerequisites_made(self, tool: str, prerequisites: Sequence[Prerequisite]) -> str:
        """Return the note about prerequisites that were called after a failure."""
        phrases = [
            phrase for prerequisite in prerequisites if (phrase := self._describe_prerequisite(prerequisite, ()))
        ] or [f"{len(prerequisites)} other calls"]
        return (
            f"mulligan: {self._line(tool, MAX_NAME_CHARS)} was called again after {', then '.join(phrases)}, "
            "which had been missing."
        )

    def verified_note(self, tool: str) -> str:
        """Return the note about a call that executed although its answer was lost."""
        return f"mulligan: the answer of {self._line(tool, MAX_NAME_CHARS)} was lost; a check found that it had worked."

    def ignored_arguments(self, tool: str, names: Sequence[str], likely_names: Mapping[str, str]) -> str:
        """Return the note about unknown arguments: most servers ignore them silently, so the call seems correct."""
        ignored_names = ", ".join(self._line(name, MAX_PATH_CHARS) for name in names[:MAX_LISTED_CHANGES])
        more = f" and {len(names) - MAX_LISTED_CHANGES} more" if len(names) > MAX_LISTED_CHANGES else ""
        likely_phrases = [
            f"{self._line(likely_names[name], MAX_PATH_CHARS)} for {self._line(name, MAX_PATH_CHARS)}"
            for name in names[:MAX_LISTED_CHANGES]
            if name in likely_names
        ]
        hint = f" Did you mean {', '.join(likely_phrases)}?" if likely_phrases else ""
        finding = f"does not list {ignored_names}{more} as an argument and may have ignored it"
        return f"mulligan: {self._line(tool, MAX_NAME_CHARS)} {finding}.{hint}"

    def definition_changed(self, tool: str, server: str) -> str:
        """Explain that a call was blocked until a person accepts the tool's definition."""
        return (
            f"{self._line(tool, MAX_NAME_CHARS)} was not called: its definition is not the one that was accepted. "
            f"A person has to look at it: mulligan proxy accept {self._line(server, MAX_NAME_CHARS)}"
        )

    def circuit_open(self, tool: str, seconds: float) -> str:
        """Explain that a call was blocked by an open circuit breaker."""
        return (
            f"{self._line(tool, MAX_NAME_CHARS)} was not called: too many of its calls have failed in the last "
            f"seconds. It is tried again in {max(seconds, 0.1):.1f} s."
        )

    def identical_failure(self, tool: str, failure: Failure, count: int) -> str:
        """Explain that a call was blocked because it failed before with the same arguments."""
        times = "twice" if count == 2 else f"{count} times"
        return (
            f"{self._line(tool, MAX_NAME_CHARS)} was given up {times} in this run with the same arguments, each time "
            f"with {self._line(failure.kind, MAX_NAME_CHARS)}, so it was not called again."
        )

    def identical_failure_note(self, count: int) -> str:
        """Return the note about a call that failed again with the same arguments."""
        return f"mulligan: this call failed the same way {count} times in this run."

    def retry_instruction(self, failure: Failure, limit: int = 600) -> str:
        """Describe the error of the last request or answer, for the retry with the model."""
        if failure.kind.code in ("invalid_output", "output_limit"):
            reason = f"{self._line(failure.message, limit)} {self._hint(failure)}"
            return f"[mulligan] Your last answer could not be used. {reason}"
        reason = self._quote(failure.message, "provider", limit)
        return (
            f"[mulligan] The last request was refused: {reason} "
            "Answer without what it names, or say in one sentence what cannot be done."
        )

    def exception_note(
        self, failure: Failure, *, attempts: int, seconds: float, backoffs: Sequence[float], stop_reason: str, run: str
    ) -> str:
        """Return the note on an exception: attempts, stop reason, and the run to inspect, if it is recorded."""
        attempt_text = f"{attempts} attempts" if attempts > 1 else "1 attempt" if attempts else "no attempt"
        backoff_text = f", waited {' and '.join(f'{wait:.1f} s' for wait in backoffs)}" if backoffs else ""
        # The run's id is random, and may look like a secret.
        where = strip_quote_marks(" ".join(sanitize(" ".join(run.split()), 12).split()))
        kind = self._line(failure.kind, MAX_NAME_CHARS)
        text = f"mulligan: {kind}, {attempt_text} in {seconds:.1f} s{backoff_text}; {stop_reason}."
        return f"{text} Details: mulligan show {where}" if where else text


_CHANGE_PHRASES: dict[tuple[str, Any], str] = {
    ("cast", "integer"): "{} as an integer",
    ("cast", "number"): "{} as a number",
    ("cast", "string"): "{} as a text",
    ("cast", "boolean"): "{} as true or false",
    ("parse", None): "{} as a JSON value, not as a text",
    ("wrap", None): "{} as a list",
    ("trim", LAST_PATH_SEGMENT): "only the last part of {}",
    ("trim", None): "{} without surrounding spaces",
    ("substitute", REQUOTED): "{} with other quotes or escapes",
}
"""Phrases for changes without a value of a run."""
_TYPE_NAMES = {int: "the number", float: "the number", bool: "true or false:", str: "the text"}
