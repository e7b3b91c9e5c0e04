"""The judge: what three plays of one program come to, from the standpoint of whoever uses it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from learning.advice import LEAST_CONFIDENCE, Sentence, is_complete, judge_sentence, list_claims
from learning.stage import MODES, Entry, Mode, Play, RunEntry, is_same_call

MAX_EXAMPLES = 5
GOALS: tuple[tuple[str, str, str], ...] = (
    ("wrong_results", "wrong results", "0"),
    ("regressions", "regressions", "0"),
    ("harm", "harm", "0"),
    ("false_recovered", "false recovered", "at most 1 % of runs that lost something"),
    ("wrong_advice", "wrong advice", "at most 2 % of what was told"),
    ("corrections", "real corrections told or repaired", "at least 90 % from the third occurrence on"),
    ("unread", "sentences that the judge cannot read", "0"),
)


@dataclass
class Week:
    """How calls and runs ended in one mode and week."""

    calls: int = 0
    calls_done: int = 0
    runs: int = 0
    runs_done: int = 0

    def add(self, other: Week) -> None:
        self.calls += other.calls
        self.calls_done += other.calls_done
        self.runs += other.runs
        self.runs_done += other.runs_done


@dataclass
class Verdicts:
    """All that was counted, for one program or for all of them."""

    runs: int = 0
    runs_with_loss: int = 0
    false_recovered: int = 0
    runs_recovered: int = 0
    """Runs in which something failed and nothing was lost."""
    unseen_recovered: int = 0
    """Those of them that are not reported as recovered: information, no goal."""
    wrong_results: int = 0
    regressions: int = 0
    harm: int = 0
    advice: int = 0
    wrong_advice: int = 0
    unread: int = 0
    corrections: int = 0
    corrections_met: int = 0
    values_executed: int = 0
    """Repairs by a value that only memory can have known: information. The rules of learning allow none."""
    lessons: int = 0
    wrong_lessons: int = 0
    """Lessons, made of all runs, that are true of no failure of the program: information."""
    warnings: int = 0
    """What mulligan logged about itself."""
    by_rule: dict[str, list[int]] = field(default_factory=dict)
    """By rule: corrections that were due, and those of them that were told or repaired."""
    statuses: Counter[str] = field(default_factory=Counter)
    """`expected, reported` of runs that are not reported as they should be."""
    weeks: dict[str, list[Week]] = field(default_factory=lambda: {mode: [Week(), Week()] for mode in MODES})
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, other: Verdicts) -> None:
        for name, value in vars(other).items():
            if isinstance(value, int):
                setattr(self, name, getattr(self, name) + value)
        for rule, more in other.by_rule.items():
            counts = self.by_rule.setdefault(rule, [0, 0])
            counts[0] += more[0]
            counts[1] += more[1]
        self.statuses.update(other.statuses)
        for mode, weeks in other.weeks.items():
            for week, other_week in zip(self.weeks[mode], weeks, strict=True):
                week.add(other_week)

    def add_example(self, sort: str, play: Play, text: str) -> None:
        cases = self.examples.setdefault(sort, [])
        if len(cases) < MAX_EXAMPLES:
            cases.append(f"run {play.number + 1}: {text}")

    def list_missed_goals(self) -> list[str]:
        """Name the goals that are missed."""
        names = [name for name in ("wrong_results", "regressions", "harm", "unread") if getattr(self, name)]
        if self.false_recovered > 0.01 * self.runs_with_loss:
            names.append("false_recovered")
        if self.wrong_advice > 0.02 * self.advice:
            names.append("wrong_advice")
        if self.corrections_met < 0.9 * self.corrections:
            names.append("corrections")
        return names

    def make_json(self) -> dict[str, Any]:
        return {**vars(self), "weeks": {mode: [asdict(week) for week in weeks] for mode, weeks in self.weeks.items()}}


def find_expected_status(run: RunEntry) -> str:
    """Say what a run's status is by the truth."""
    if run.has_raised:
        return "failure"
    if run.entries and all(entry.has_failed and not entry.is_settled for entry in run.entries):
        return "failure"  # nothing got done in the end
    if has_loss(run.entries):
        return "partial"
    return "recovered" if any(entry.has_struggled for entry in run.entries) else "success"


def has_loss(entries: Iterable[Entry]) -> bool:
    """Say whether a failed call never got done."""
    return any(entry.has_failed and not entry.is_settled for entry in entries)


def judge_plays(plays: dict[Mode, list[Play]], days: float = 14.0) -> Verdicts:
    """Judge the plays of one program: all with full memory, held against the others."""
    verdicts = Verdicts()
    corrections: Counter[str] = Counter()
    for full, empty, off in zip(plays["full"], plays["empty"], plays["off"], strict=True):
        _judge_statuses(verdicts, full)
        _judge_results(verdicts, full)
        _judge_advice(verdicts, full)
        _judge_corrections(verdicts, full, corrections)
        _compare(verdicts, full, empty, off)
    for mode in MODES:
        for play in plays[mode]:
            verdicts.weeks[mode][int(play.day >= days / 2)].add(_count_week(play))
    return verdicts


def _count_week(play: Play) -> Week:
    successes = sum(not entry.has_failed for entry in play.entries)
    is_done = not play.error and not has_loss(play.entries)
    return Week(len(play.entries), successes, 1, int(is_done))


def _judge_statuses(verdicts: Verdicts, play: Play) -> None:
    for run in play.runs:
        verdicts.runs += 1
        status = find_expected_status(run)
        is_lost = has_loss(run.entries)
        verdicts.runs_with_loss += is_lost
        if is_lost and run.status in ("recovered", "success"):
            verdicts.false_recovered += 1
            failure = next(entry for entry in run.entries if entry.has_failed and not entry.is_settled)
            verdicts.add_example("false recovered", play, f"{run.status}, and lost {describe_entry(failure)}")
        if status == "recovered":
            verdicts.runs_recovered += 1
            verdicts.unseen_recovered += run.status != "recovered"
        if status != run.status:
            verdicts.statuses[f"{status}, {run.status}"] += 1


def _judge_results(verdicts: Verdicts, play: Play) -> None:
    for entry in play.entries:
        if entry.has_failed or is_right_result(entry):
            continue
        verdicts.wrong_results += 1
        verdicts.add_example("wrong result", play, f"{describe_entry(entry)} was made with {entry.final_arguments}")


def is_right_result(entry: Entry) -> bool:
    """Say whether a call that returned has the result of its own arguments, or of the right ones in their place."""
    own = [execution for execution in entry.own_executions if not execution.has_failed]
    if not own or entry.result != own[-1].result:
        return False
    if is_same_call(entry.arguments, entry.final_arguments):
        return True
    cure = entry.cure  # what is privileged is not changed without asking, be it right or not
    return cure is not None and cure.rule != "privileged" and cure.accepts(entry.arguments, entry.final_arguments)


def _judge_advice(verdicts: Verdicts, play: Play) -> None:
    for entry in play.entries:
        for sentence in {sentence.text: sentence for sentence in entry.sentences}.values():
            verdict = judge_sentence(sentence, entry.arguments, entry.cure)
            if verdict == "unread":
                verdicts.unread += 1
                verdicts.add_example("unread", play, sentence.text)
            if verdict not in ("right", "wrong") or sentence.confidence < LEAST_CONFIDENCE:
                continue
            verdicts.advice += 1
            if verdict == "wrong":
                verdicts.wrong_advice += 1
                verdicts.add_example("wrong advice", play, f"{describe_entry(entry)}: {sentence.text}")


def _judge_corrections(verdicts: Verdicts, play: Play, corrections: Counter[str]) -> None:
    """Count corrections that were due: the same one was made in so many earlier runs that it may be told."""
    names: set[str] = set()
    for entry in play.entries:
        cure = entry.cure
        if cure is None or not entry.has_struggled:
            continue
        if entry.is_settled or not entry.has_failed:
            names.add(cure.name)
        if corrections[cure.name] + 1 < cure.occurrence:
            continue
        is_told = any(is_complete(sentence, entry.arguments, cure) for sentence in entry.sentences)
        is_met = is_told or (entry.is_repaired and is_right_result(entry))
        counts = verdicts.by_rule.setdefault(cure.rule, [0, 0])
        counts[0] += 1
        counts[1] += is_met
        if cure.is_tellable:
            verdicts.corrections += 1
            verdicts.corrections_met += is_met
            if not is_met:
                verdicts.add_example("correction not told", play, f"{cure.name}: {describe_entry(entry)}")
    corrections.update(names)


def _compare(verdicts: Verdicts, full: Play, empty: Play, off: Play) -> None:
    """Hold each call against the same call with an empty memory, and without mulligan."""
    without_memory = {entry.key: entry for entry in empty.entries}
    without_us = {entry.key: entry for entry in off.entries}
    if full.error and not off.error:
        verdicts.harm += 1
        verdicts.add_example("harm", full, f"the program raised: {full.error}")
    for entry in full.entries:
        if not entry.has_failed:
            other = without_memory.get(entry.key)
            is_value = (
                entry.cure is not None
                and entry.cure.rule != "form"
                and not is_same_call(entry.arguments, entry.final_arguments)
            )
            verdicts.values_executed += is_value and other is not None and other.has_failed
            continue
        other, plain = without_memory.get(entry.key), without_us.get(entry.key)
        if other is not None and other.is_repaired:
            verdicts.regressions += 1
            verdicts.add_example("regression", full, f"{describe_entry(entry)} is repaired with an empty memory")
        elif (other is not None and not other.has_failed) or (plain is not None and not plain.has_failed):
            verdicts.harm += 1
            verdicts.add_example("harm", full, f"{describe_entry(entry)} fails only with mulligan")
        elif not entry.own_executions and _would_be_made(entry, other, plain):
            verdicts.harm += 1
            verdicts.add_example("harm", full, f"{describe_entry(entry)} was not made: {entry.error or 'refused'}")


def _would_be_made(entry: Entry, empty: Entry | None, off: Entry | None) -> bool:
    """Say whether a call that was not made would have been: a model's may be refused, but not because of memory."""
    if empty is not None and empty.own_executions:
        return True
    return off is not None and bool(off.own_executions) and not entry.is_answered


def judge_lessons(verdicts: Verdicts, lessons: Iterable[Any], plays: Sequence[Play]) -> None:
    """Hold each lesson against the failures of its tool. One that is true of none of them is wrong."""
    failures = [entry for play in plays for entry in play.entries if entry.has_struggled]
    for lesson in lessons:
        sentence = Sentence(lesson.correction, tuple(list_claims(lesson.changes, lesson.prerequisites)))
        about = [entry for entry in failures if entry.tool == lesson.tool]
        verdicts.lessons += 1
        if not any(judge_sentence(sentence, entry.arguments, entry.cure) in ("right", "neutral") for entry in about):
            verdicts.wrong_lessons += 1
            verdicts.add_example("wrong lesson", plays[-1], f"{lesson.tool}: {lesson.correction}")


def describe_entry(entry: Entry) -> str:
    arguments = ", ".join(f"{name}={value!r:.40}" for name, value in entry.arguments.items())
    return f"{entry.tool}({arguments})"


def add_verdicts(parts: Sequence[Verdicts]) -> Verdicts:
    """Add up what was counted."""
    whole = Verdicts()
    for part in parts:
        whole.add(part)
    return whole
