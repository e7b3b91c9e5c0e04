"""What memory is worth: recipes and fixes learned from other scenarios, on the development split.

    python evals/memory.py             # needs ../shared/data, and: pip install --no-deps bfcl-eval mpmath
    python evals/memory.py --quick     # one fold, no curve
    python evals/memory.py --alike     # how to tell whether two failures are alike

Memory is a store in a file that learns from the recorded runs through the same door as live calls. It is asked about
runs of other scenarios only: BFCL's by the number of the scenario, the others by the task. A recipe is right when its
calls and then the failed call execute in BFCL's simulators and change nothing that the recording, or the ground truth
of the turn, did not change as well.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
sys.path.insert(0, str(ROOT / "src"))

import repair_worlds as worlds  # noqa: E402
from repair import _counts, _is_right, _oracles, lines  # noqa: E402
from repair_worlds import told  # noqa: E402

from mulligan.capture.advice import advise  # noqa: E402
from mulligan.classify.classifier import classify  # noqa: E402
from mulligan.classify.fingerprint import template  # noqa: E402
from mulligan.events import AnyEvent, RunEnded, RunStarted, StepEnded  # noqa: E402
from mulligan.failure import Failure  # noqa: E402
from mulligan.records import Fix, Run, Step  # noqa: E402
from mulligan.recover.repair import Suggestion  # noqa: E402
from mulligan.remember import similar  # noqa: E402
from mulligan.remember.sqlite import SqliteStore  # noqa: E402
from mulligan.remember.store import DAY, LOCAL, FixQuery  # noqa: E402

Row = dict[str, Any]
FOLDS = 4
SHARES = (0.0, 0.25, 0.5, 1.0)
SOURCES = ("schema", "run", "fixes", "recipes")
NOW = 1_800_000_000_000


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true", help="one fold of four, and no curve")
    options.add_argument("--alike", action="store_true", help="compare ways to tell whether two failures are alike")
    options.add_argument("--data", type=pathlib.Path, default=DATA)
    given = options.parse_args()
    if not (given.data / "calls-dev.jsonl.gz").exists():
        print(f"There is no {given.data.name} folder beside the checkout, so there is nothing to measure.")
        return
    if given.alike:
        alike(given.data)
        return
    if not worlds.is_installed():
        print("This needs BFCL's simulators: pip install --no-deps bfcl-eval mpmath")
        sys.exit(2)
    evaluation = Evaluation(given.data)
    folds = range(1) if given.quick else range(FOLDS)
    for share in (1.0,) if given.quick else SHARES:
        for fold in folds:
            evaluation.fold(fold, share)
    evaluation.print()


def scenario(row: Row) -> str:
    """What must not be in memory when this row is asked about: the same number is the same scenario."""
    number = re.search(r"(\d+)$", str(task := row.get("task_id", row["run_id"])))
    return f"{row['dataset']} {number.group() if number else task}"


def fold_of(name: str) -> int:
    return sum(name.encode()) % FOLDS


class Recorded:
    """The runs, with their failures classified once."""

    def __init__(self, data: pathlib.Path) -> None:
        self.runs: dict[str, list[Row]] = defaultdict(list)
        for row in lines(data / "calls-dev.jsonl.gz"):
            self.runs[row["run_id"]].append(row)
        for rows in self.runs.values():
            rows.sort(key=lambda row: row["seq"])
        self.classes = {(row["run_id"], row["seq"]): row for row in lines(data / "classes-dev.jsonl.gz")}
        self._failures: dict[tuple[str, int], Failure] = {}

    def failure(self, row: Row) -> Failure:
        key = row["run_id"], row["seq"]
        if key not in self._failures:
            arguments = row["parameters"] if isinstance(row["parameters"], dict) else None
            self._failures[key] = classify(
                source="tool", text=row["error"] or "", tool=row["tool"], arguments=arguments
            )
        return self._failures[key]

    def events(self, id: str, number: int) -> list[AnyEvent]:
        """A run as a recorder would have told it: one a day, of an agent named after its model."""
        rows = self.runs[id]
        started = NOW - 25 * DAY + (number % 25) * DAY
        run = Run(id=id, agent=str(rows[0]["model"]), started=started, end="finished")
        steps = [
            StepEnded(
                Step(
                    run=id,
                    seq=row["seq"] + 1,
                    call=row["seq"] + 1,
                    name=row["tool"],
                    arguments=row["parameters"],
                    outcome=row["outcome"],
                    failure=self.failure(row) if row["outcome"] == "failure" else None,
                    started=started + row["seq"],
                )
            )
            for row in rows
        ]
        return [RunStarted(run), *steps, RunEnded(run)]


class Evaluation:
    def __init__(self, data: pathlib.Path) -> None:
        self.recorded = Recorded(data)
        self.curve: dict[float, Counter[str]] = defaultdict(Counter)
        self.tables: dict[str, Counter[str]] = defaultdict(Counter)
        self.learning = self.calls = 0.0
        self.asking: list[float] = []
        self.rank = {id: place for place, id in enumerate(sorted(self.recorded.runs, key=lambda id: hash_of(id)))}

    def fold(self, fold: int, share: float) -> None:
        """Learns from a share of the runs of other folds, and asks about the failures of this one."""
        ids = [id for id, rows in self.recorded.runs.items() if fold_of(scenario(rows[0])) != fold]
        ids = [id for id in ids if self.rank[id] % 100 < share * 100]
        with tempfile.TemporaryDirectory() as folder:
            store = SqliteStore(pathlib.Path(folder) / "memory.db", lambda: NOW)
            for number, id in enumerate(ids):
                events = self.recorded.events(id, number)
                began = time.process_time()
                store.append(LOCAL, events, f"run {id}", 1)
                self.learning += time.process_time() - began
                self.calls += len(events) - 2
            unique: set[str] = set()
            for rows in self.recorded.runs.values():
                if fold_of(scenario(rows[0])) == fold:
                    self._ask(rows, store, share, unique)
            store.close()

    def _ask(self, rows: list[Row], store: SqliteStore, share: float, unique: set[str]) -> None:
        world: worlds.World | None = None
        for at, row in enumerate(rows):
            if row["dataset"] == "bfcl-multi-turn" and world is None:
                world = worlds.World(row["task_id"])
            label = self.recorded.classes.get((row["run_id"], row["seq"]))
            counts = self.curve[share]
            counts["calls"] += 1
            counts["worked"] += row["outcome"] == "success"
            if row["outcome"] == "failure" and _counts(row, label, unique):
                self._one(row, rows, at, label, world, store, share)
            if world is not None and isinstance(row["parameters"], dict):
                world.call(row["tool"], row["parameters"])

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
        arguments = row["parameters"] if isinstance(row["parameters"], dict) else {}
        failure = self.recorded.failure(row)
        if not failure.counts:
            return
        began = time.process_time()
        known = store.fixes(
            LOCAL,
            FixQuery(
                tool=row["tool"],
                fingerprint=failure.fingerprint,
                text=template(failure.message, arguments),
                agent=str(row["model"]),
                now=NOW,
            ),
        )
        self.asking.append(time.process_time() - began)
        tools = worlds.tools_of(row["task_id"]) if world is not None else None
        history = [
            {
                "tool": each["tool"],
                "arguments": each["parameters"],
                "outcome": each["outcome"],
                "result": each["result_excerpt"],
                "error": each["error"],
            }
            for each in rows[max(0, at - 200) : at]
        ]
        name = label["class"] if label else "none"
        oracles = list(_oracles(row, rows, world is not None))
        without = ["all", *SOURCES] if share == 1.0 else ["all"]
        for left_out in without:
            told_of = [
                fix for fix in known if {"recipe": "recipes", "change": "fixes"}.get(fix.sort) not in (None, left_out)
            ]
            made = advise(
                row["tool"],
                arguments,
                row["error"] or "",
                classify=lambda *_, **__: failure,
                schema=tools.get(row["tool"]) if tools and left_out != "schema" else None,
                tools=tools if left_out != "schema" else None,
                run=history if left_out != "run" else (),
                recall=_answer(told_of),
            ).suggestions
            self._judge(row, rows, at, name, world, oracles, made, share, left_out)

    def _judge(
        self,
        row: Row,
        rows: list[Row],
        at: int,
        name: str,
        world: worlds.World | None,
        oracles: list[tuple[str, Row]],
        made: Sequence[Suggestion],
        share: float,
        left_out: str,
    ) -> None:
        rights = [self._is_right(each, row, rows, at, oracles, world) for each in made[:3]]
        where = [self.curve[share]] if left_out == "all" else []
        if share == 1.0:
            where.append(self.tables[f"without {left_out}" if left_out != "all" else "everything"])
        automatic = [each for each in made if each.automatic]
        leaked = sum(_leaks(each, row, rows, at) for each in automatic if each.source == "memory")
        for counts in where:
            counts["failures"] += 1
            counts["suggested"] += bool(made)
            counts["right first"] += bool(rights) and rights[0]
            counts["right among 3"] += any(rights)
            counts["automatic"] += bool(automatic)
            counts["automatic right"] += bool(automatic) and bool(made[0].automatic) and rights[0]
            counts["automatic by memory"] += sum(each.source == "memory" for each in automatic)
            counts["leaked"] += leaked
            counts["helpable"] += name not in ("D", "none")
            counts["helpable right"] += name not in ("D", "none") and any(rights)
            if name == "R":
                counts["R"] += 1
                counts["R recipe first"] += bool(made) and bool(made[0].first)
                counts["R right first"] += bool(rights) and bool(made[0].first) and rights[0]
                counts["R right among 3"] += any(
                    right and bool(each.first) for right, each in zip(rights, made, strict=False)
                )

    def _is_right(
        self, each: Suggestion, row: Row, rows: list[Row], at: int, oracles: list[tuple[str, Row]], world: Any
    ) -> bool:
        if not each.first:
            return _is_right(each.tool, each.arguments, row, rows, at, oracles, world)
        if world is None:
            return False
        tried = world.copy()
        before = attributes(tried)
        for call in each.first:
            if not tried.call(call.tool, call.arguments)[0]:
                return False
        if not tried.call(each.tool, each.arguments)[0]:
            return False
        changed = {name for name, value in attributes(tried).items() if value != before.get(name)}
        return changed <= self._allowed(row, rows, at, world, before)

    def _allowed(self, row: Row, rows: list[Row], at: int, world: Any, before: dict[str, str]) -> set[str]:
        """What the agent itself changed until the call worked; what the ground truth of the turn changes."""
        found: set[str] = set()
        until = row.get("repaired_by_seq")
        if until is not None:
            own = world.copy()
            for each in rows[at:]:
                if each["seq"] <= until and isinstance(each["parameters"], dict):
                    own.call(each["tool"], each["parameters"])
            found |= {name for name, value in attributes(own).items() if value != before.get(name)}
        truth = world.copy()
        for tool, arguments in worlds.truths(row["task_id"], row.get("turn")):
            truth.call(tool, arguments)
        return found | {name for name, value in attributes(truth).items() if value != before.get(name)}

    def print(self) -> None:
        whole = self.curve[1.0]

        def line(name: str, hits: str, total: str, target: str = "") -> None:
            print(f"  {name:<62}{told(whole[hits], whole[total])}  {target}")

        print(f"\n{whole['failures']} unique failures, memory from other scenarios")
        line("class R: a recipe is the first suggestion", "R recipe first", "R")
        line("class R: it executes and changes nothing else", "R right first", "R", ">= 0.85")
        line("class R: such a recipe is among 3", "R right among 3", "R")
        line("right suggestion among 3, of all failures", "right among 3", "failures")
        line("right suggestion among 3, of those something could help", "helpable right", "helpable", "usual: > 0.70")
        line("automatic, of all failures", "automatic", "failures", "usual: > 0.50")
        line("automatic and right", "automatic right", "automatic", ">= 0.95")
        print(f"  {'automatic by memory':<62}{whole['automatic by memory']:>5}")
        print(f"  {'values of other runs in anything automatic':<62}{whole['leaked']:>5}          0")
        print("\nLearning curve: right among 3, of all failures")
        for share, counts in sorted(self.curve.items()):
            right = told(counts["right among 3"], counts["failures"])
            print(
                f"  {share:>4.0%} of the other runs  {right}",
                f"  class R first {told(counts['R right first'], counts['R'])}",
            )
        print("\nAblation: right among 3, and first, of all failures")
        for name, counts in self.tables.items():
            first, three = counts["right first"], counts["right among 3"]
            print(f"  {name:<18}{told(three, counts['failures'])}   first {told(first, counts['failures'])}")
        calls, worked = whole["calls"], whole["worked"]
        print("\nOverall tool success, every recorded call")
        print(f"  before                        {worked / calls:.4f}")
        if whole["failures"]:
            share = whole["right first"] / whole["failures"]
            after = worked / calls + (1 - worked / calls) * share
            print(f"  if the first suggestion were followed  {after:.4f}   (+{after - worked / calls:.4f})")
        if self.calls:
            print(f"\nKeeping and learning took {1e6 * self.learning / self.calls:.0f} us CPU a call;", end=" ")
        if self.asking:
            asked = sorted(self.asking)
            print(
                f"a question {1e3 * asked[len(asked) // 2]:.2f} ms,",
                f"p99 {1e3 * asked[int(0.99 * len(asked))]:.2f} ms CPU.",
            )


def _answer(fixes: Sequence[Fix]) -> Callable[..., Sequence[Fix]]:
    return lambda *_: fixes


def _leaks(each: Suggestion, row: Row, rows: list[Row], at: int) -> bool:
    """Whether a text of an automatic suggestion stands nowhere in this run."""
    known = json.dumps([(one["parameters"], one["result_excerpt"]) for one in rows[: at + 1]])
    return any(
        isinstance(change.after, str) and change.how != "rename" and change.after not in known
        for change in each.changes
    )


def attributes(world: Any) -> dict[str, str]:
    return {
        f"{name}.{key}": repr(worlds._plain(value))
        for name, made in world.instances.items()
        for key, value in vars(made).items()
        if not key.startswith("_")
    }


def hash_of(id: str) -> int:
    from zlib import crc32

    return crc32(id.encode())


# Which way to tell whether two failures are alike


def alike(data: pathlib.Path) -> None:
    """Each pattern is asked for by the wording of another of the same tool and kind, among all patterns of its tool."""
    from difflib import SequenceMatcher

    rows: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
    for row in lines(data / "errors-dev.jsonl"):
        tool = str(row["source"])
        rows[tool][template(row["text"], None)] = (row["text"], row["kind"])
    ways: dict[str, Callable[[str, str], float]] = {
        "difflib": lambda one, other: SequenceMatcher(None, one[:200], other[:200], autojunk=False).ratio(),
        "sketch": lambda one, other: similar.likeness(similar.sketch(one), similar.sketch(other)),
    }
    print("The nearest of other failures of one source is of the same kind:")
    for name, way in ways.items():
        right = total = 0
        began = time.process_time()
        compared = 0
        for texts in rows.values():
            known = list(texts.items())[:120]
            for text, (_, kind) in known:
                others: Iterable[tuple[str, str]] = [(one, each) for one, (_, each) in known if one != text]
                if not any(each == kind for _, each in others):
                    continue
                best = max(others, key=lambda other: way(text, other[0]))
                compared += len(known) - 1
                total += 1
                right += best[1] == kind
        spent = time.process_time() - began
        print(
            f"  {name:<10}{told(right, total)}",
            f"  {1e6 * spent / max(compared, 1):.1f} us a comparison, sketches made anew",
        )


if __name__ == "__main__":
    main()
