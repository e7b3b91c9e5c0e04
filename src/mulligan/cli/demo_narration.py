"""What the demo prints: each call, its attempts from the events of mulligan, and the texts for the model."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from mulligan.capture.tool_outcome import ToolOutcome
from mulligan.cli.options import is_color_off
from mulligan.core.events import AnyEvent, RecoveryPlanned, StepEnded
from mulligan.prompt import Prompt
from mulligan.report.tables import format_duration, to_line


class Narrator:
    """Prints each step of the demo from the events that mulligan publishes."""

    def __init__(self, is_quiet: bool, pause: float) -> None:
        self._is_quiet = is_quiet
        self.is_silent = False
        """Whether output is suppressed for now."""
        self._pause = pause
        self._number = 0
        self.failed_attempts = 0
        """Failed attempts so far, printed or not, those of the MCP server included."""

    def say(self, text: str, **style: Any) -> None:
        """Print a text, wrapped. Its continuation lines are indented like the text after its symbol."""
        if self._is_quiet or self.is_silent:
            return
        for line in text.split("\n"):
            indent = len(line) - len(line.lstrip(" "))
            has_symbol = line[indent : indent + 2] in ("x ", "> ", "+ ", '" ')
            continuation = " " * (indent + 2 * has_symbol)
            for wrapped in textwrap.wrap(line, 80, subsequent_indent=continuation, break_long_words=False) or [""]:
                click.echo(wrapped if is_color_off() else click.style(wrapped, **style))

    def title(self, text: str) -> None:
        self._number = 0
        self.say(f"\n{text}\n", bold=True)

    def announce_call(self, headline: str, tool: str, arguments: Mapping[str, Any]) -> None:
        """Print a call before it is made."""
        self._number += 1
        argument_text = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        self.say(f"{self._number:>3}. {headline}", bold=True)
        self.say(f"       {tool}({argument_text})")

    def narrate_outcome(self, outcome: ToolOutcome, failure_comment: str) -> None:
        """Print what the model reads after a call. The attempts were printed as they ended."""
        if outcome.answer is not None:
            self._narrate_failure(outcome.answer, outcome.notes, failure_comment)
        self._pause_for_reader()

    def narrate_mcp_result(self, result: Mapping[str, Any], failure_comment: str) -> None:
        """Print the result of an MCP tool as the proxy passes it on."""
        if (answer := result.get("_meta", {}).get("mulligan/failure")) is not None:
            self._say_failed(answer["error"], result["content"][0]["text"])
            self._narrate_failure(answer, (), failure_comment)
        else:
            text, *notes = (part["text"] for part in result["content"])
            if notes:
                self.say("     > repaired before the server got the call", fg="yellow")
            self.say(f"     + {text}", fg="green")
            for note in notes:
                self.say(f'     " {note}', fg="cyan")
        self._pause_for_reader()

    def _say_failed(self, kind: str, message: str) -> None:
        self.failed_attempts += 1
        self.say(f"     x {kind}: {to_line(message, 48)}", fg="red")

    def _narrate_failure(self, answer: Mapping[str, Any], notes: Sequence[str], comment: str) -> None:
        if comment:
            self.say(f"     > {comment}", fg="yellow")
        self.say(f'     " {to_line(answer["message"], 140)}', fg="cyan")
        for sentence in filter(None, (answer.get("outcome"), answer["hint"], *notes)):
            self.say(f"       {sentence}", fg="cyan")

    def narrate_compaction(self, message_count: int, reminder: str) -> None:
        """Print the reminder that mulligan adds after a compaction."""
        self._number += 1
        self.say(
            f"{self._number:>3}. The conversation is compacted: {message_count} messages become a summary", bold=True
        )
        self.say("     > the failures so far are added to the summary", fg="yellow")
        for line in reminder.splitlines():
            self.say(f'     " {line}', fg="cyan")
        self._pause_for_reader()

    def _pause_for_reader(self) -> None:
        time.sleep(0 if self.is_silent else self._pause)

    def on_event(self, event: AnyEvent) -> None:
        match event:
            case StepEnded(step) if step.type == "tool" and step.failure is not None:
                self._say_failed(step.failure.kind, step.failure.message)
            case StepEnded(step) if step.type == "tool":
                self.say(f"     + {to_line(step.result, 70)}", fg="green")
                if step.recovery is not None and step.recovery.changes:
                    self.say(f'     " {Prompt().note(step.name, step.recovery.changes)}', fg="cyan")
            case RecoveryPlanned(_, recovery) if recovery.changes:
                change_text = ", ".join(
                    f"{change.path} {change.before!r} -> {change.after!r}" for change in recovery.changes
                )
                self.say(f"     > repair: {change_text} ({recovery.confidence:.0%} confidence)", fg="yellow")
            case RecoveryPlanned(_, recovery):
                self.say(f"     > retry after {format_duration(recovery.backoff_seconds)}", fg="yellow")
