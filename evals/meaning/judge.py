"""Whether what a door executed still means what the caller asked for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from mistakes import Arguments, Mistake

from mulligan.core.privileged_arguments import is_privileged

Verdict = Literal["wrong", "less", "same", "as asked", "missed", "protected", "not executed"]
EXECUTED_VERDICTS: tuple[Verdict, ...] = ("wrong", "less", "same", "as asked")
"""Verdicts about an execution, the worst first."""


class Execution(NamedTuple):
    """One execution of a tool's body, with its arguments by name."""

    arguments: dict[str, Any]
    error: str = ""
    """The class of the exception that it raised."""


@dataclass(slots=True)
class Play:
    """A mistaken call that was made through one door, and what the caller got."""

    batch: str
    door: str
    mistake: Mistake
    executions: list[Execution] = field(default_factory=list)
    answer: str = ""
    """The tool message for the model. For a program the result, or the exception with its notes."""
    note: str = ""
    """What mulligan says about its changes."""
    suggestions: list[str] = field(default_factory=list)
    stop_reason: str = ""
    problem: str = ""
    """Why the call could not be made, and is left out."""

    def drop_earlier(self) -> None:
        """Remove the executions of the earlier calls, which were made first."""
        earlier = [self.mistake.bind(arguments) for arguments in self.mistake.earlier]
        executed = [execution.arguments for execution in self.executions[: len(earlier)]]
        del self.executions[: len(earlier)]
        if not self.problem and not is_same(executed, earlier):
            self.problem = f"earlier calls were not executed as they were: {to_json(executed)}"

    @property
    def is_model(self) -> bool:
        return self.door != "program"

    @property
    def returned_arguments(self) -> list[dict[str, Any]]:
        return [execution.arguments for execution in self.executions if not execution.error]


def judge(play: Play) -> Verdict:
    """Compare what was executed with what was asked for. An execution that raised did nothing."""
    mistake, returned = play.mistake, play.returned_arguments
    if mistake.effects == "once" and len(returned) > 1:
        return "wrong"  # repeated
    if returned:
        verdicts = {_judge_execution(play, arguments) for arguments in returned}
        return next(verdict for verdict in EXECUTED_VERDICTS if verdict in verdicts)
    if mistake.kind == "meaning":
        return "not executed"
    # A body that failed in another way than by a rejection was accepted by the door.
    failed = [execution for execution in play.executions if execution.error != "AgentError"]
    if any(_is_as_asked(mistake, execution.arguments) for execution in failed):
        return "as asked"
    return "protected" if _needs_privileged_change(mistake) else "missed"


def _needs_privileged_change(mistake: Mistake) -> bool:
    """Return whether every call that means the same differs in a privileged argument, which is never changed."""
    return all(
        any(is_privileged(name) for name in {*mistake.asked, *same} if not _is_equal_at(name, mistake.asked, same))
        for same in mistake.same
    )


def _is_equal_at(name: str, left: Arguments, right: Arguments) -> bool:
    return name in left and name in right and is_same(left[name], right[name])


def _judge_execution(play: Play, arguments: Arguments) -> Verdict:
    mistake = play.mistake
    if _is_as_asked(mistake, arguments, is_exact=True):
        return "as asked"
    if any(is_same(arguments, mistake.bind(same)) for same in mistake.same):
        return "same"
    if any(is_same(arguments, mistake.bind(less)) for less in mistake.less):
        is_fine = play.is_model and mistake.effects == "none" and _mentions_changes(play, arguments)
        return "less" if is_fine else "wrong"
    return "as asked" if _is_as_asked(mistake, arguments) else "wrong"


def _is_as_asked(mistake: Mistake, arguments: Arguments, *, is_exact: bool = False) -> bool:
    """Return whether these are the arguments that the caller sent. An exact comparison tells 1 from 1.0."""
    try:
        asked = mistake.bind(mistake.asked)
    except TypeError:  # the tool has no such arguments
        return False
    if is_exact:
        return to_json(arguments) == to_json(asked)
    return is_same(arguments, asked)


def _mentions_changes(play: Play, arguments: Arguments) -> bool:
    """Return whether mulligan's note names every argument that the caller sent and that was changed."""
    asked = play.mistake.asked
    changed = [name for name in asked if name not in arguments or not is_same(asked[name], arguments[name])]
    return "mulligan" in play.note and all(name in play.note for name in changed)


def is_same(left: Any, right: Any) -> bool:
    """Compare JSON values: 1 equals 1.0, a tuple equals a list, True differs from 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(is_same(left[name], right[name]) for name in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(is_same, left, right))
    return bool(left == right)


def to_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str, ensure_ascii=False)


def count_verdicts(plays: Iterable[Play]) -> dict[str, Any]:
    """Count one row of the table."""
    plays = list(plays)
    counts = Counter((play.mistake.kind, judge(play)) for play in plays)
    repaired, missed = counts["form", "same"], counts["form", "missed"]
    meaning_plays = [play for play in plays if play.mistake.kind == "meaning"]
    return {
        "calls": len(plays),
        "with_effects": sum(play.mistake.effects != "none" for play in plays),
        "wrong": sum(count for (_, verdict), count in counts.items() if verdict == "wrong"),
        "form_repaired": repaired,
        "form_missed": missed,
        "form_protected": counts["form", "protected"],
        "form_as_asked": counts["form", "as asked"],
        "form_less": counts["form", "less"],
        "repaired_share": repaired / (repaired + missed) if repaired + missed else None,
        "equivalent_executed": counts["equivalent", "same"],
        "equivalent_not_executed": counts["equivalent", "missed"] + counts["equivalent", "protected"],
        "meaning_not_executed": counts["meaning", "not executed"],
        "meaning_less": counts["meaning", "less"],
        "meaning_same": counts["meaning", "same"],
        "meaning_as_asked": counts["meaning", "as asked"],
        "meaning_suggested": sum(bool(play.suggestions) for play in meaning_plays),
    }
