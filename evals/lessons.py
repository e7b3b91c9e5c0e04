"""What lessons are worth: made by consolidation of other scenarios, and applied to failures that they never saw.

    python evals/lessons.py             # needs ../shared/data, and: pip install --no-deps bfcl-eval mpmath
    python evals/lessons.py --quick     # one fold of four
    python evals/lessons.py --best      # the lessons learned from all of it, the best proven first; nothing is asked

A store in a file learns from the recorded runs of three quarters of the scenarios, as `memory.py` does, and is
consolidated. Each failure of the last quarter is then looked up by its tool and fingerprint; the lesson that is told
first, if there is one, is applied to the failed call with nothing but the run at hand, and what comes of it is right
or not by the rules of `memory.py`: equal to an oracle, or it executes and changes nothing that the recording or the
ground truth did not. A lesson that cannot be applied, because it needs a value that the run does not have, is counted
as such. A lesson is read by somebody who fills in what it leaves open, so it is judged a second time with these values
as the agent itself then had them, or the ground truth of the turn. It exits with 1 if a lesson holds a text of a run,
or if those in force, or those told of class R, fall short of 0.85.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile
from collections import Counter, defaultdict

import memory
import repair_worlds as worlds
from memory import FOLDS, NOW, _answer, fold_of, scenario
from repair_rows import DATA, Row, history_of, need, oracles_of
from repair_worlds import told

from mulligan.capture.suggestions import suggest_repairs
from mulligan.contract.store import DEFAULT_TENANT, LessonQuery
from mulligan.core.calls import TOOL_NAME_PATH
from mulligan.core.records import Fix, Lesson, Prerequisite
from mulligan.recover.policy import PrerequisiteCall, Suggestion
from mulligan.store.sqlite import SqliteStore

TARGET = 0.85


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true", help="one fold of four")
    options.add_argument("--fold", type=int, choices=range(FOLDS), help="this one alone")
    options.add_argument("--best", action="store_true", help="what is learned from everything")
    options.add_argument("--show", action="store_true", help="each lesson with what became of it")
    options.add_argument("--data", type=pathlib.Path, default=DATA)
    given = options.parse_args()
    need(given.data)
    evaluation = Lessons(given.data)
    if given.best:
        evaluation.best()
        return
    for fold in [given.fold] if given.fold is not None else range(1 if given.quick else FOLDS):
        evaluation.fold(fold, 1.0)
    evaluation.print()
    if given.show:
        evaluation.show()
    sys.exit(0 if evaluation.is_met() else 1)


class Lessons(memory.Evaluation):
    def __init__(self, data: pathlib.Path) -> None:
        super().__init__(data)
        self.sums: dict[str, Counter[str]] = defaultdict(Counter)
        self.by_lesson: dict[str, Counter[str]] = defaultdict(Counter)
        self.lessons: dict[str, Lesson] = {}
        self.made = self.active = self.folds = self.leaked = 0

    def learned(self, store: SqliteStore, fold: int | None) -> list[Lesson]:
        """Keeps the runs of all other folds, and makes lessons of them."""
        ids = [id for id, rows in self.recorded.runs.items() if fold_of(scenario(rows[0])) != fold]
        for number, id in enumerate(ids):
            store.append(DEFAULT_TENANT, self.recorded.events(id, number), f"run {id}", 1)
        store.consolidate(DEFAULT_TENANT, NOW)
        return store.lessons(DEFAULT_TENANT, LessonQuery(now=NOW, limit=5000))

    def best(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            store = SqliteStore(pathlib.Path(folder) / "memory.db", lambda: NOW)
            found = self.learned(store, None)
            store.close()
        states = Counter(lesson.state for lesson in found)
        print(f"{len(found)} lessons: {', '.join(f'{count} {state}' for state, count in states.items())}\n")
        for lesson in found[:40]:
            print(
                f"{lesson.state:9} {lesson.successes:>4} of {lesson.trials:<4} "
                f"occurrences {lesson.occurrences:<4} {lesson.correction}"
            )
            print(f"{'':41}{lesson.mistake}")

    def fold(self, fold: int, share: float) -> None:
        with tempfile.TemporaryDirectory() as folder:
            store = SqliteStore(pathlib.Path(folder) / "memory.db", lambda: NOW)
            found = self.learned(store, fold)
            self.folds += 1
            self.made += len(found)
            self.active += sum(lesson.state == "active" for lesson in found)
            self.leaked += sum(map(_holds_a_text, found))
            unique: set[str] = set()
            for rows in self.recorded.runs.values():
                if fold_of(scenario(rows[0])) == fold:
                    self._ask(rows, store, share, unique)
            store.close()

    def _one(
        self,
        row: Row,
        rows: list[Row],
        at: int,
        label: Row | None,
        world: worlds.World | None,
        store: SqliteStore,
        share: float,
    ) -> None:
        failure = self.recorded.failure(row)
        if not failure.is_failure:
            return
        every = self.sums["all"]
        every["failures"] += 1
        name = label["class"] if label else "none"
        every["R"] += name == "R"
        query = LessonQuery(tool=row["tool"], fingerprint=failure.fingerprint, now=NOW, limit=1)
        found = store.lessons(DEFAULT_TENANT, query)
        if not found:
            return
        lesson = found[0]
        self.lessons[lesson.id] = lesson
        arguments = row["parameters"] if isinstance(row["parameters"], dict) else {}
        history = history_of(rows, at)
        tools = worlds.tools_of(row["task_id"]) if world is not None else None
        made = suggest_repairs(
            row["tool"],
            arguments,
            row["error"] or "",
            classify=lambda *_, **__: failure,
            schema=tools.get(row["tool"]) if tools else None,
            run=history,
            recall=_answer([_fix(lesson)]),
        ).suggestions
        applied = [each for each in made if each.source == "memory" and _is_whole(each, lesson)]
        oracles = list(oracles_of(row, rows, world is not None))
        by_run = bool(applied) and self._is_right(applied[0], row, rows, at, oracles, world)
        filled = self._filled(lesson, row, rows, at, world)
        right = by_run or (filled is not None and self._is_right(filled, row, rows, at, oracles, world))
        is_judged = bool(applied) or filled is not None or bool(oracles)
        sort = "prerequisite" if lesson.prerequisites else "change"
        places = ("all", lesson.state, sort, row["dataset"], f"{sort}, {lesson.state}", f"class {name}")
        for counts in (*(self.sums[place] for place in places), self.by_lesson[lesson.id]):
            counts["told"] += 1
            counts["applied"] += bool(applied)
            counts["right by run"] += by_run
            counts["judged"] += is_judged
            counts["right"] += right and is_judged

    def _filled(
        self, lesson: Lesson, row: Row, rows: list[Row], at: int, world: worlds.World | None
    ) -> Suggestion | None:
        """A prerequisite with what it leaves open filled in as its reader would: as the agent itself then did, or as
        the ground truth of the turn does. None where neither made such a call.
        """
        if not lesson.prerequisites:
            return None
        until = row.get("repaired_by_seq")
        made = [
            (each["tool"], each["parameters"])
            for each in rows[at + 1 :]
            if until is not None and each["seq"] < until and each["outcome"] == "success"
            if isinstance(each["parameters"], dict)
        ]
        made += worlds.truths(row["task_id"], row.get("turn")) if world is not None else []
        first = []
        for ahead in lesson.prerequisites:
            known = [arguments for tool, arguments in made if tool == ahead.tool and _holds(arguments, ahead)]
            if not known:
                return None
            first.append(PrerequisiteCall(ahead.tool, known[0]))
        arguments = row["parameters"] if isinstance(row["parameters"], dict) else {}
        return Suggestion(
            tool=row["tool"], arguments=arguments, prerequisites=tuple(first), source="memory", confidence=0.0
        )

    def print(self) -> None:
        each = self.made / self.folds
        print(f"\n{each:.0f} lessons from three quarters of the scenarios, {self.active / self.folds:.0f} in force")
        every = self.sums["all"]
        print(f"{every['failures']} unique failures of the other quarter")
        print(f"  {'a lesson is told':<44}{told(every['told'], every['failures'])}")
        print(f"  {'it can be applied with what the run has':<44}{told(every['applied'], every['told'])}")
        print(f"  {'  and is then right':<44}{told(every['right by run'], every['applied'])}")
        print(f"  {'right, open values as the oracle has them':<44}{told(every['right'], every['judged'])}")
        print(f"\n{'':<46}{'with what the run has':<34}open values as the oracle has them")
        for name, counts in sorted(self.sums.items()):
            if name != "all" and counts["judged"]:
                own = told(counts["right by run"], counts["applied"])
                print(f"  {name:<44}{own:<34}{told(counts['right'], counts['judged'])}")
        print(f"\nTexts of runs in lessons: {self.leaked}")

    def is_met(self) -> bool:
        shares = [self.sums[name] for name in ("active", "class R")]
        return not self.leaked and all(each["right"] >= TARGET * each["judged"] for each in shares)

    def show(self) -> None:
        for id, counts in sorted(self.by_lesson.items(), key=lambda item: item[1]["right"] - item[1]["applied"]):
            lesson = self.lessons[id]
            record = f"{lesson.successes} of {lesson.trials}, met {lesson.occurrences}"
            judged = f"{counts['right']:>4} of {counts['judged']:<4} told {counts['told']:<4}"
            print(f"{judged} {lesson.state:9}{record}: {lesson.tool}: {lesson.correction}")


def _is_whole(made: Suggestion, lesson: Lesson) -> bool:
    """Whether the run had every value that the lesson leaves open."""
    wanted = [{*ahead.arguments, *ahead.variable_arguments} for ahead in lesson.prerequisites]
    return all(names <= call.arguments.keys() for names, call in zip(wanted, made.prerequisites, strict=True))


def _holds(arguments: Row, ahead: Prerequisite) -> bool:
    """Whether a call is the one that a lesson tells of: what is constant is the same, and nothing open is missing."""
    same = all(name in arguments and arguments[name] == value for name, value in ahead.arguments.items())
    return same and set(ahead.variable_arguments) <= arguments.keys()


def _fix(lesson: Lesson) -> Fix:
    """A lesson as something that can be applied: what it says, and nothing that only its fix knows."""
    return Fix(
        id=lesson.fix_id or lesson.id,
        tool=lesson.tool,
        fingerprint=lesson.fingerprint,
        type="prerequisite" if lesson.prerequisites else "change",
        changes=lesson.changes,
        prerequisites=lesson.prerequisites,
        trials=lesson.trials,
        successes=lesson.successes,
        last_tried_at=lesson.last_tried_at,
    )


def _holds_a_text(lesson: Lesson) -> bool:
    """Whether a change tells a text that is no name: texts belong to the run that they were in."""
    return any(
        isinstance(change.after, str)
        and change.operation not in ("rename", "cast")
        and not change.after.startswith("(")
        for change in lesson.changes
        if change.path != TOOL_NAME_PATH
    )


if __name__ == "__main__":
    main()
