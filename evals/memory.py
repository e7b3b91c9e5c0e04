"""What memory is worth: recipes and fixes learned from other scenarios, on the development split.

    python evals/memory.py             # needs ../shared/data, and: pip install --no-deps bfcl-eval mpmath
    python evals/memory.py --quick     # one fold, no curve
    python evals/memory.py --alike     # which way to tell whether two failures are alike, and how alike they must be

Memory is a store in a file that learns from the recorded runs through the same door as live calls. It is asked about
runs of other scenarios only: BFCL's by the number of the scenario, the others by the task. A prerequisite is right when
its calls and then the failed call execute in BFCL's simulators and change nothing that the recording, or the ground
truth of the turn, did not change as well; elsewhere when the agent itself made these calls and then the same call,
which worked. It exits with 1 if anything marked automatic holds a text of another run.
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

import repair_worlds as worlds
from repair_rows import DATA, Row, counts_once, history_of, is_name_alone, is_repaired, lines, need, oracles_of
from repair_worlds import told

from mulligan.capture.suggestions import suggest_repairs
from mulligan.classify.classifier import classify
from mulligan.classify.fingerprint import build_template
from mulligan.contract.store import DAY, DEFAULT_TENANT, FixQuery
from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure
from mulligan.core.records import Fix, Run, Step, pattern_id
from mulligan.learn import patterns
from mulligan.recover.policy import Suggestion
from mulligan.store.sqlite import SqliteStore

FOLDS = 4
SHARES = (0.0, 0.01, 0.05, 0.25, 0.5, 1.0)
SOURCES = ("schema", "run", "fixes", "recipes", "exemplars")
SORTS = {"prerequisite": "recipes", "change": "fixes", "exemplar": "exemplars"}
NOW = 1_800_000_000_000


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true", help="one fold of four, and no curve")
    options.add_argument("--alike", action="store_true", help="compare ways to tell whether two failures are alike")
    options.add_argument("--data", type=pathlib.Path, default=DATA)
    given = options.parse_args()
    need(given.data)
    evaluation = Evaluation(given.data, Alike() if given.alike else None)
    folds = range(1) if given.quick else range(FOLDS)
    for share in (1.0,) if given.quick or given.alike else SHARES:
        for fold in folds:
            evaluation.fold(fold, share)
    if evaluation.alike is not None:
        evaluation.alike.print()
        return
    evaluation.print()
    sys.exit(1 if any(counts["leaked"] for counts in evaluation.curve.values()) else 0)


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
        run = Run(id=id, agent=str(rows[0]["model"]), started_at=started, end_reason="finished")
        steps = [
            StepEnded(
                Step(
                    run=id,
                    seq=row["seq"] + 1,
                    call=row["seq"] + 1,
                    name=row["tool"],
                    server=row["dataset"],  # a tool that is known by a bare name only is never promoted
                    arguments=row["parameters"],
                    outcome=row["outcome"],
                    failure=self.failure(row) if row["outcome"] == "failure" else None,
                    started_at=started + row["seq"],
                )
            )
            for row in rows
        ]
        return [RunStarted(run), *steps, RunEnded(run)]


class Evaluation:
    def __init__(self, data: pathlib.Path, alike: Alike | None = None) -> None:
        self.recorded = Recorded(data)
        self.alike = alike
        self.curve: dict[float, Counter[str]] = defaultdict(Counter)
        self.tables: dict[str, Counter[str]] = defaultdict(Counter)
        self.datasets: dict[str, Counter[str]] = defaultdict(Counter)
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
                store.append(DEFAULT_TENANT, events, f"run {id}", 1)
                self.learning += time.process_time() - began
                self.calls += len(events) - 2
            unique: set[str] = set()
            for rows in self.recorded.runs.values():
                if fold_of(scenario(rows[0])) == fold:
                    self._ask(rows, store, share, unique)
            if self.alike is not None:
                self.alike.known.clear()
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
            if row["outcome"] == "failure" and counts_once(row, label, unique):
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
        if not failure.is_failure:
            return
        began = time.process_time()
        query = FixQuery.for_failure(row["tool"], failure, arguments, agent=str(row["model"]), now=NOW)
        known = store.fixes(DEFAULT_TENANT, query)
        self.asking.append(time.process_time() - began)
        tools = worlds.tools_of(row["task_id"]) if world is not None else None
        history = history_of(rows, at)
        name = label["class"] if label else "none"
        oracles = list(oracles_of(row, rows, world is not None))
        if self.alike is not None:
            for way, similarity, fix in self.alike.nearest(store, row["tool"], failure, arguments):
                recall = _answer([fix])
                made = suggest_repairs(row["tool"], arguments, failure, run=history, recall=recall).suggestions
                told_by = [each for each in made if each.source == "memory"]
                if told_by:
                    self.alike.add(way, similarity, self._is_right(told_by[0], row, rows, at, oracles, world))
            return
        without = ["all", *SOURCES] if share == 1.0 else ["all"]
        for left_out in without:
            told_of = [fix for fix in known if SORTS.get(fix.type) not in (None, left_out)]
            made = suggest_repairs(
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
            if left_out == "all":
                where.append(self.datasets[row["dataset"]])
        automatic = [each for each in made if each.automatic]
        leaked = sum(_leaks(each, row, rows, at) for each in automatic if each.source == "memory")
        for counts in where:
            counts["failures"] += 1
            counts["suggested"] += bool(made)
            counts["right first"] += bool(rights) and rights[0]
            counts["right among 3"] += any(rights)
            counts["automatic"] += bool(automatic)
            counts["automatic right"] += bool(automatic) and bool(made[0].automatic) and rights[0]
            counts["automatic meant"] += bool(automatic) and (
                (bool(made[0].automatic) and rights[0]) or is_name_alone(automatic[0], _arguments(row))
            )
            counts["automatic by memory"] += sum(each.source == "memory" for each in automatic)
            counts["leaked"] += leaked
            counts["helpable"] += name not in ("D", "none")
            counts["helpable right"] += name not in ("D", "none") and any(rights)
            if name == "R":
                counts["R"] += 1
                counts["R prerequisite first"] += bool(made) and bool(made[0].prerequisites)
                counts["R right first"] += bool(rights) and bool(made[0].prerequisites) and rights[0]
                counts["R right among 3"] += any(
                    right and bool(each.prerequisites) for right, each in zip(rights, made, strict=False)
                )

    def _is_right(
        self, each: Suggestion, row: Row, rows: list[Row], at: int, oracles: list[tuple[str, Row]], world: Any
    ) -> bool:
        if not each.prerequisites:
            return is_repaired(each.tool, each.arguments, row, rows, at, oracles, world)
        if world is None:
            return _is_what_they_did(each, row, rows, at)
        tried = world.copy()
        before = attributes(tried)
        for call in each.prerequisites:
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
        line("class R: a prerequisite is the first suggestion", "R prerequisite first", "R")
        line("class R: it executes and changes nothing else", "R right first", "R", ">= 0.85")
        line("class R: such a prerequisite is among 3", "R right among 3", "R")
        line("right suggestion among 3, of all failures", "right among 3", "failures")
        line("right suggestion among 3, of those something could help", "helpable right", "helpable", "usual: > 0.70")
        line("automatic, of all failures", "automatic", "failures", "usual: > 0.50")
        line("automatic and right, by the letter: see docs/repair.md", "automatic right", "automatic", ">= 0.95")
        line("  where junk at the tool's name alone was taken, right", "automatic meant", "automatic")
        print(f"  {'automatic by memory':<62}{whole['automatic by memory']:>5}")
        print(f"  {'values of other runs in anything automatic':<62}{whole['leaked']:>5}          0")
        for dataset, counts in sorted(self.datasets.items()):
            three, first = counts["right among 3"], counts["right first"]
            print(
                f"  {dataset}: right among 3 {told(three, counts['failures'])}",
                f"  first {told(first, counts['failures'])}",
            )
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
        before = worked / calls
        print(f"  before                                     {before:.4f}")
        none = self.curve.get(0.0, Counter())
        ways = (
            ("with automatic repairs alone", whole["automatic right"], whole["failures"]),
            ("if the first suggestion is followed", whole["right first"], whole["failures"]),
            ("  the same without memory", none["right first"], none["failures"]),
            ("if the right one among 3 is followed", whole["right among 3"], whole["failures"]),
        )
        for name, right, failures in ways:
            if failures:
                after = before + (1 - before) * right / failures
                fewer = right / failures
                print(f"  {name:<43}{after:.4f}   +{after - before:.4f}, {fewer:.1%} fewer failures")
        if self.calls:
            print(f"\nKeeping and learning took {1e6 * self.learning / self.calls:.0f} us CPU a call;", end=" ")
        if self.asking:
            asked = sorted(self.asking)
            print(
                f"a question {1e3 * asked[len(asked) // 2]:.2f} ms,",
                f"p99 {1e3 * asked[int(0.99 * len(asked))]:.2f} ms CPU.",
            )


def _arguments(row: Row) -> Row:
    return row["parameters"] if isinstance(row["parameters"], dict) else {}


def _is_what_they_did(each: Suggestion, row: Row, rows: list[Row], at: int) -> bool:
    """Whether the agent itself made the calls that come first, and then the same call, which worked."""
    until = row.get("repaired_by_seq")
    if until is None or row.get("repair_kind") != "same_params":
        return False
    between = [one for one in rows[at + 1 :] if one["seq"] < until and one["outcome"] == "success"]
    return all(
        any(one["tool"] == call.tool and (one["parameters"] or {}) == call.arguments for one in between)
        for call in each.prerequisites
    )


def _answer(fixes: Sequence[Fix]) -> Callable[..., Sequence[Fix]]:
    return lambda *_: fixes


def _leaks(each: Suggestion, row: Row, rows: list[Row], at: int) -> bool:
    """Whether a text of an automatic suggestion stands nowhere in this run."""
    known = json.dumps([(one["parameters"], one["result_excerpt"]) for one in rows[: at + 1]])
    return any(
        isinstance(change.after, str) and change.operation != "rename" and change.after not in known
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


# Which way to tell whether two failures are alike, and how alike they must be


class Alike:
    """Each failure is asked about as if its own wording had never been met: is what helped the nearest one right?"""

    BANDS = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

    def __init__(self) -> None:
        from difflib import SequenceMatcher

        self.known: dict[str, dict[str, tuple[str, Fix, str]]] = {}
        self.found: dict[str, list[tuple[float, bool]]] = defaultdict(list)
        self.spent: Counter[str] = Counter()
        self.compared: Counter[str] = Counter()
        self._sketches: dict[str, int] = {}
        self.ways: dict[str, Callable[[str, str], float]] = {
            "pieces as bits": lambda one, other: patterns.sketch_similarity(self._sketch(one), self._sketch(other)),
            "difflib": lambda one, other: SequenceMatcher(None, one[:400], other[:400], autojunk=False).ratio(),
            "hashed 3-5-grams, 512": lambda one, other: _cosine(self._vector(one), self._vector(other)),
        }
        self._vectors: dict[str, dict[int, int]] = {}
        try:
            from rapidfuzz import fuzz
        except ImportError:
            print("rapidfuzz is not installed, and is left out: pip install rapidfuzz")
        else:
            self.ways["rapidfuzz ratio"] = lambda one, other: fuzz.ratio(one[:400], other[:400]) / 100
            self.ways["rapidfuzz token_set"] = lambda one, other: fuzz.token_set_ratio(one[:400], other[:400]) / 100

    def _sketch(self, text: str) -> int:
        if text not in self._sketches:
            self._sketches[text] = patterns.sketch(text)
        return self._sketches[text]

    def _vector(self, text: str) -> dict[int, int]:
        """As the research had it: pieces of three to five characters, each counted in one of 512 places."""
        from zlib import crc32

        if text not in self._vectors:
            folded = f"  {' '.join(text[:400].casefold().split())} ".encode("utf-8", "replace")
            self._vectors[text] = Counter(
                crc32(folded[start : start + size]) % 512
                for size in (3, 4, 5)
                for start in range(len(folded) - size + 1)
            )
        return self._vectors[text]

    def nearest(
        self, store: SqliteStore, tool: str, failure: Failure, arguments: Row
    ) -> Iterable[tuple[str, float, Fix]]:
        known = self._of(store, tool)
        text = build_template(failure.message, arguments)
        kind = str(failure.kind)
        for rule, others in (
            ("any", [each for print, each in known.items() if print != failure.fingerprint]),
            (
                "of the same kind, worked twice",
                [
                    each
                    for print, each in known.items()
                    if print != failure.fingerprint and each[2] == kind and each[1].successes >= 2
                ],
            ),
        ):
            for way, alike in self.ways.items() if others else ():
                began = time.process_time()
                similarity, at = max((alike(text, other), -place) for place, (other, _, _) in enumerate(others))
                self.spent[f"{way}, {rule}"] += time.process_time() - began
                self.compared[f"{way}, {rule}"] += len(others)
                yield f"{way}, {rule}", similarity, others[-at][1]

    def _of(self, store: SqliteStore, tool: str) -> dict[str, tuple[str, Fix, str]]:
        """The best fix of each pattern of a tool, with its wording."""
        if tool not in self.known:
            best: dict[str, tuple[str, Fix, str]] = {}
            for fix in store.fixes(DEFAULT_TENANT, FixQuery(tool=tool, now=NOW, limit=1000)):
                if fix.fingerprint not in best and fix.type in ("change", "prerequisite"):
                    pattern = store.pattern(DEFAULT_TENANT, pattern_id(tool, fix.fingerprint))
                    if pattern is not None:
                        best[fix.fingerprint] = pattern.template, fix, pattern.kind
            self.known[tool] = best
        return self.known[tool]

    def add(self, way: str, similarity: float, is_right: bool) -> None:
        self.found[way].append((similarity, is_right))

    def print(self) -> None:
        print("The fix of the nearest other pattern of the tool is right, by how alike the two wordings are:")
        for way, found in self.found.items():
            micros = 1e6 * self.spent[way] / max(self.compared[way], 1)
            print(f"\n  {way}: {micros:.1f} us a comparison, of {self.compared[way]}")
            for low in self.BANDS:
                band = [right for similarity, right in found if low <= similarity < low + (0.2 if not low else 0.1001)]
                above = [right for similarity, right in found if similarity >= low]
                if band:
                    print(
                        f"    {low:.1f} {told(sum(band), len(band))}",
                        f"  this and above {told(sum(above), len(above))}",
                    )


def _cosine(one: dict[int, int], other: dict[int, int]) -> float:
    shared = sum(count * other.get(place, 0) for place, count in one.items())
    sizes = sum(count * count for count in one.values()) * sum(count * count for count in other.values())
    return float(shared / sizes**0.5) if sizes else 0.0


if __name__ == "__main__":
    main()
