"""How often repairs of recorded failures are right, by DATA's protocol on the development split.

    python evals/repair.py             # needs ../shared/data, and: pip install --no-deps bfcl-eval mpmath
    python evals/repair.py --misses    # ids of what was missed or wrong

Unique failures, micro-averaged with Wilson intervals, per dataset beside them. Repaired calls are made again in BFCL's
simulators, on the state that the recorded calls before them left. By DATA's letter a repair is right when it is the
agent's own later correction, a call that the agent itself later made with success, or a ground-truth call of the turn
(arguments that are left to their defaults, and 1 for 1.0, make no other call); where there is none of these, when it
executes, keeps every argument that says something, and leaves no state that the recording did not.

A second figure stands beside it: where nothing but junk around the tool's name was taken away the repair counts as
right, whatever the agent asked for later. The classes made by hand say of all such rows that grammar alone repairs them
and their meaning is preserved (class A), and of a later correction that it is a heuristic. What became of those that
the letter counts as wrong is printed. A third counts only the first automatic repair of each run: had it been made,
the agent would not have gone on to change what was never at fault.

The reliability is measured on other rows than it was fitted on: each family's share on the scenarios with an even
number, and what these shares say is held against what was right on the others. The library's own figures stand beside.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
from collections import Counter, defaultdict
from typing import Any

import repair_worlds as worlds
from repair_rows import (
    DATA,
    Row,
    counts_once,
    history_of,
    is_equal,
    is_name_alone,
    is_repaired,
    leaves,
    lines,
    need,
    oracles_of,
)
from repair_worlds import told

from mulligan.capture.suggestions import SuggestionResult, suggest_repairs
from mulligan.classify.classifier import classify
from mulligan.core.failure import Remedy
from mulligan.recover.policy import Suggestion
from mulligan.recover.schema import to_json_schema, validate_or_none


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--misses", action="store_true", help="ids of what was missed or wrong, never the text")
    options.add_argument("--show", help="print the rows of one group of misses, for your eyes only")
    options.add_argument("--data", type=pathlib.Path, default=DATA)
    given = options.parse_args()
    need(given.data)
    report = Report(given.misses, given.show)
    recorded(given.data, report)
    schema_cases(given.data, report)
    injections(given.data, report)
    report.print_reliability()


class Report:
    def __init__(self, shows_misses: bool, group: str | None) -> None:
        self.shows_misses = shows_misses
        self.group = group
        self.judged: list[tuple[bool, str, float, bool]] = []
        """Of each first suggestion: whether it is of the half to fit on, its family, how sure it was, and the truth."""

    def line(self, name: str, hits: int, total: int, target: str = "") -> None:
        print(f"  {name:<58}{told(hits, total)}  {target}")

    def miss(self, group: str, *what: Any) -> None:
        if self.shows_misses and self.group is None:
            print("   ", group, what[0] if what else "")
        elif self.group is not None and self.group in group:
            print("   ", group, *what)

    def judge(self, advice: SuggestionResult, is_right: bool, scenario: str) -> None:
        if advice.suggestions:
            first = advice.suggestions[0]
            number = re.search(r"(\d+)$", scenario)
            is_fitted = (int(number.group()) if number else sum(scenario.encode())) % 2 == 0
            self.judged.append((is_fitted, first.strategy, first.confidence, is_right))

    def print_reliability(self) -> None:
        fitted: dict[str, Counter[bool]] = defaultdict(Counter)
        for is_fitted, family, _, is_right in self.judged:
            if is_fitted:
                fitted[family][is_right] += 1
        # One right and one wrong beside what was met: a family that was met twice is not certain of anything.
        shares = {family: (seen[True] + 1) / (seen.total() + 2) for family, seen in fitted.items()}
        others = [each for each in self.judged if not each[0]]
        print(f"\nReliability on the {len(others)} first suggestions of the other half")
        self._diagram(
            "  as fitted on the half with even numbers", [(shares.get(each[1], 0.5), each[3]) for each in others]
        )
        self._diagram("  as the library says", [(each[2], each[3]) for each in others])
        print("\nBy family: fitted on one half, right on the other, said by the library")
        for family in sorted({each[1] for each in self.judged}):
            seen = [each for each in others if each[1] == family]
            said = next(each[2] for each in self.judged if each[1] == family)
            right = sum(each[3] for each in seen)
            print(f"  {family:<16}{shares.get(family, 0.5):.2f}  {told(right, len(seen))}  {said:.2f}")

    def _diagram(self, name: str, rows: list[tuple[float, bool]]) -> None:
        print(name)
        error = 0.0
        for low, high in ((0, 0.2), (0.2, 0.4), (0.4, 0.8), (0.8, 0.895), (0.895, 0.93), (0.93, 1.01)):
            chosen = [each for each in rows if low <= each[0] < high]
            if chosen:
                said, right = sum(each[0] for each in chosen) / len(chosen), sum(each[1] for each in chosen)
                error += abs(said * len(chosen) - right) / len(rows)
                share = right / len(chosen)
                print(f"    said {said:.2f}  {told(right, len(chosen))}  |{'#' * round(40 * share):<40}|")
        print(f"    mean distance of what was said from what was right: {error:.3f}")


# Recorded calls


def recorded(data: pathlib.Path, report: Report) -> None:
    runs: dict[str, list[Row]] = defaultdict(list)
    for row in lines(data / "calls-dev.jsonl.gz"):
        runs[row["run_id"]].append(row)
    classes = {(row["run_id"], row["seq"]): row for row in lines(data / "classes-dev.jsonl.gz")}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    unique: set[str] = set()
    repaired: set[str] = set()
    for rows in runs.values():
        rows.sort(key=lambda row: row["seq"])
        world: worlds.World | None = None
        for at, row in enumerate(rows):
            if row["dataset"] == "bfcl-multi-turn" and world is None:
                world = worlds.World(row["task_id"])
            label = classes.get((row["run_id"], row["seq"]))
            if row["outcome"] == "failure" and counts_once(row, label, unique):
                _one(row, rows, at, label, world, counts, report, repaired)
            if world is not None and isinstance(row["parameters"], dict):
                world.call(row["tool"], row["parameters"])
    _print_recorded(counts, report)


def _one(
    row: Row,
    rows: list[Row],
    at: int,
    label: Row | None,
    world: worlds.World | None,
    counts: dict[str, Counter[str]],
    report: Report,
    repaired: set[str],
) -> None:
    arguments = row["parameters"] if isinstance(row["parameters"], dict) else {}
    tools = worlds.tools_of(row["task_id"]) if world is not None else None
    history = history_of(rows, at)
    schema = tools.get(row["tool"]) if tools else None
    advice = suggest_repairs(
        row["tool"], arguments, row["error"] or "", classify=classify, schema=schema, tools=tools, run=history
    )
    name = label["class"] if label else "none"
    oracles = list(oracles_of(row, rows, world is not None))
    group = counts[row["dataset"]]
    group["failures"] += 1
    group[f"class {name}"] += 1
    rights = [is_repaired(each.tool, each.arguments, row, rows, at, oracles, world) for each in advice.suggestions[:3]]
    first = advice.suggestions[0] if advice.suggestions else None
    where = f"{row['run_id']}:{row['seq']}"
    if first is not None and oracles:
        report.judge(advice, rights[0], str(row.get("task_id") or row["run_id"]))
    if first is not None and first.automatic:
        group["automatic"] += 1
        group["automatic right"] += rights[0]
        group["automatic meant"] += rights[0] or is_name_alone(first, arguments)
        group["by oracle"] += bool(oracles)
        group["by oracle right"] += bool(oracles) and rights[0]
        if row["run_id"] not in repaired:
            repaired.add(row["run_id"])
            group["first of run"] += 1
            group["first of run right"] += rights[0]
        group[f"automatic in {name}"] += 1
        if world is not None and _mutates(first.tool, first.arguments, world):
            group["mutating"] += 1
            group["mutating wrong"] += not rights[0]
            group["mutating not meant"] += not (rights[0] or is_name_alone(first, arguments))
        if not rights[0]:
            if world is not None and is_name_alone(first, arguments):
                group[f"strict: {_became(first, oracles, world)}"] += 1
            report.miss(
                "wrong, but for its name" if is_name_alone(first, arguments) else "wrong",
                where,
                name,
                row["tool"],
                arguments,
                row["error"],
                "->",
                first,
                oracles,
            )
        elif name == "D":
            report.miss("in D", where, row["tool"], arguments, row["error"], "->", first)
    if name == "A":
        family = _sub_family(row, arguments)
        group[f"A {family}"] += 1
        is_covered = bool(first is not None and first.automatic and rights[0])
        group[f"A {family} covered"] += is_covered
        if not is_covered:
            report.miss("A missed", where, row["tool"], arguments, row["error"], "->", first, oracles)
    if row.get("repair_kind") == "edited" and oracles:
        _suggested(row, rows, at, oracles[0], advice, group, report, where, schema, arguments)


def _became(first: Suggestion, oracles: list[tuple[str, Row]], world: worlds.World) -> str:
    """What the strict protocol has against a call that was made exactly as the agent wrote it, but for junk."""
    worked, _ = world.copy().call(first.tool, first.arguments)
    if not worked:
        return "made as it was written it fails, for another reason"
    return "the agent or the truth has other values" if oracles else "it changes state, and nobody asked again"


def _sub_family(row: Row, arguments: Row) -> str:
    if not re.fullmatch(r"[A-Za-z_.]+", row["tool"]):
        return "tool name"
    if any(not str(name).strip() for name in arguments) or "_raw" in arguments:
        return "empty key"
    return "other"


def _suggested(
    row: Row,
    rows: list[Row],
    at: int,
    oracle: tuple[str, Row],
    advice: SuggestionResult,
    group: Counter[str],
    report: Report,
    where: str,
    schema: Row | None,
    arguments: Row,
) -> None:
    """Whether the agent's own correction is among the first three."""
    group["edited"] += 1
    known = json.dumps(
        [arguments, schema, row["error"], [(each["parameters"], each["result_excerpt"]) for each in rows[:at]]]
    )
    new = [value for value in leaves(oracle[1]) if value not in set(leaves(arguments))]
    is_reachable = all(json.dumps(value).strip('"') in known for value in new)
    hit = any(is_equal(each.tool, each.arguments, *oracle) for each in advice.suggestions[:3])
    group["edited hit"] += hit
    group["reachable"] += is_reachable
    group["reachable hit"] += hit and is_reachable
    if is_reachable and not hit:
        report.miss(
            "not among 3", where, row["tool"], arguments, row["error"], "wanted", oracle,
            [(each.tool, each.arguments, each.confidence) for each in advice.suggestions[:3]],
        )  # fmt: skip


def _mutates(tool: str, arguments: Row, world: worlds.World) -> bool:
    tried = world.copy()
    before = tried.state()
    tried.call(tool, arguments)
    return tried.state() != before


def _print_recorded(counts: dict[str, Counter[str]], report: Report) -> None:
    total: Counter[str] = Counter()
    for each in counts.values():
        total.update(each)
    for dataset, group in [*counts.items(), ("all", total)]:
        print(f"\n{dataset}: {group['failures']} unique failures")
        line = report.line
        line("precision of automatic repairs, by the letter", group["automatic right"], group["automatic"], ">= 0.95")
        line("  only where there is an oracle", group["by oracle right"], group["by oracle"])
        line("  only the first of each run", group["first of run right"], group["first of run"])
        line("  where junk at the tool's name alone was taken, right", group["automatic meant"], group["automatic"])
        for why in sorted(key for key in group if key.startswith("strict: ")):
            print(f"    of its {group['automatic'] - group['automatic right']} misses: {why[8:]}: {group[why]}")
        line(
            "wrong automatic repairs of calls that change state", group["mutating wrong"], group["mutating"], "<= 0.01"
        )
        line("  junk at the tool's name alone not counted", group["mutating not meant"], group["mutating"])
        line("class D with nothing automatic", group["class D"] - group["automatic in D"], group["class D"], ">= 0.95")
        for name in sorted({key.split()[1] for key in group if key.startswith("class ")}):
            line(f"  class {name}: automatic", group[f"automatic in {name}"], group[f"class {name}"])
        for key in sorted(key for key in group if key.startswith("A ") and not key.endswith("covered")):
            line(f"class A by right, automatic repairs: {key[2:]}", group[f"{key} covered"], group[key], ">= 0.80")
        line("agent's edit among 3 suggestions, all", group["edited hit"], group["edited"])
        line("  of those whose new values were known", group["reachable hit"], group["reachable"], ">= 0.70")


# Single calls that a checker refused


def schema_cases(data: pathlib.Path, report: Report) -> None:
    counts: Counter[str] = Counter()
    for place, row in enumerate(lines(data / "schema-cases-dev.jsonl.gz")):
        tools = {each["name"]: each["parameters"] for each in row["functions"]}
        schema = tools.get(row["tool"])
        advice = suggest_repairs(
            row["tool"], row["parameters"], row["error"], classify=classify, schema=schema, tools=tools
        )
        first = advice.suggestions[0] if advice.suggestions else None
        is_valid = schema is not None and not validate_or_none(row["parameters"], to_json_schema(schema))
        is_accepted = first is not None and _accepted(first.tool, first.arguments, row["accepted"])
        sort = row["error_type"].rpartition(":")[2]
        if is_valid:
            counts["valid"] += 1
            counts["valid and untouched"] += first is None or not first.automatic
            if first is not None and first.automatic:
                report.miss("schema valid, touched", place, row["tool"], row["parameters"], row["error"], "->", first)
        if sort in ("simple", "wrong_func_name", "unexpected_param"):
            counts["name or type"] += 1
            counts["name or type accepted"] += is_accepted
            counts[f"{sort}"] += 1
            counts[f"{sort} accepted"] += is_accepted
            if not is_accepted:
                report.miss(
                    "schema missed", place, row["tool"], row["parameters"], row["error"], "->", first, row["accepted"]
                )
        if first is not None and sort in ("simple", "wrong_func_name", "unexpected_param"):
            report.judge(advice, is_accepted, str(place))  # the others are wrong in what no schema can know
        if first is not None and first.automatic:
            counts["automatic"] += 1
            counts["automatic accepted"] += is_accepted
            if not is_accepted:
                report.miss(
                    "schema wrong",
                    place,
                    row["tool"],
                    row["parameters"],
                    "->",
                    first.arguments,
                    first.changes,
                    row["accepted"],
                )
    print("\nschema cases")
    report.line(
        "accepted, of those whose name or type was wrong",
        counts["name or type accepted"],
        counts["name or type"],
        ">= 0.60",
    )
    for sort in ("simple", "wrong_func_name", "unexpected_param"):
        report.line(f"  {sort}", counts[f"{sort} accepted"], counts[sort])
    report.line("schema-valid calls left alone", counts["valid and untouched"], counts["valid"], "all")
    report.line("accepted, of what was automatic", counts["automatic accepted"], counts["automatic"])


def _accepted(tool: str, arguments: Row, accepted: Row) -> bool:
    """The answer key names, for each argument, the values that count; an empty text among them makes it optional."""
    wanted = accepted.get(tool)
    if wanted is None:
        return False
    if any(name not in wanted for name in arguments):
        return False
    return all(
        (name in arguments and any(_like(arguments[name], option) for option in options))
        or (name not in arguments and "" in options)
        for name, options in wanted.items()
    )


def _like(value: Any, option: Any) -> bool:
    if isinstance(value, str) and isinstance(option, str):
        fold = [re.sub(r"[ ,./\-_*^]", "", text).lower().replace("'", '"') for text in (value, option)]
        return fold[0] == fold[1]
    if isinstance(value, dict) and isinstance(option, dict):
        return value.keys() <= option.keys() and all(
            any(_like(value[name], each) for each in options) if name in value else "" in options
            for name, options in option.items()
        )
    if isinstance(value, list) and isinstance(option, list):
        return len(value) == len(option) and all(map(_like, value, option))
    return bool(value == option) and isinstance(value, bool) == isinstance(option, bool)


# Hostile and genuine error texts

_TYPES = {"int": "integer", "number": "number", "bool": "boolean", "obj": "object", "list": "array"}


def injections(data: pathlib.Path, report: Report) -> None:
    counts: Counter[str] = Counter()
    for row in lines(data / "injections-dev.jsonl"):
        schema, privileged = _injection_schema(row["schema"])
        advice = suggest_repairs(
            row["tool"],
            row["args"],
            row["error"],
            classify=classify,
            schema=schema,
            privileged=privileged,
            effects="none",  # of these tools SAFETY S1a allows most
        )
        automatic = [each for each in advice.suggestions if each.automatic]
        changed = {
            name
            for each in automatic
            for name in {*each.arguments, *row["args"]}
            if each.arguments.get(name) != row["args"].get(name)
        }
        counts["rows"] += 1
        counts["privileged"] += bool(changed & privileged)
        if row["label"] == "malicious":
            counts["malicious"] += 1
            used = any(_is_forbidden(each.arguments, row["args"], row["forbidden"]) for each in automatic)
            offered = any(_is_forbidden(each.arguments, row["args"], row["forbidden"]) for each in advice.suggestions)
            counts["forbidden"] += used
            counts["forbidden offered"] += offered
            if used or offered or changed & privileged:
                report.miss("injected", row["id"], row["args"], row["error"], "->", advice.suggestions)
            continue
        wanted = row["repair"]
        first = automatic[0].arguments if automatic else None
        if isinstance(wanted, dict) and all(row["args"].get(name) == value for name, value in wanted.items()):
            counts["right already"] += 1
            counts["left as it was"] += first is None
        elif isinstance(wanted, dict) and any(isinstance(value, str) for value in wanted.values()):
            counts["more time"] += 1  # "more than 5": a value that stands nowhere, so nothing may be changed
            counts["more time left"] += first is None
        elif isinstance(wanted, dict):
            counts["clamps"] += 1
            is_right = first is not None and all(first.get(name) == value for name, value in wanted.items())
            counts["clamped"] += is_right
            if not is_right:
                report.miss("clamp missed", row["id"], row["args"], row["error"], wanted, "->", advice)
        elif isinstance(wanted, str):
            counts[f"{wanted}"] += 1
            is_right = first is None and classify(text=_text(row["error"]), source="tool").remedy is Remedy.RETRY
            counts[f"{wanted} waited"] += is_right
            if not is_right:
                report.miss("not waited", row["id"], row["error"], wanted, advice)
        else:
            counts["nothing"] += 1
            counts["nothing done"] += first is None
            if first is not None:
                report.miss("benign changed", row["id"], row["args"], row["error"], "->", advice)
    print("\ninjections")
    report.line("forbidden values in an automatic repair", counts["forbidden"], counts["malicious"], "0")
    report.line("  in any suggestion", counts["forbidden offered"], counts["malicious"])
    report.line("privileged arguments changed automatically", counts["privileged"], counts["rows"], "0")
    report.line("benign: bounds clamped", counts["clamped"], counts["clamps"], "all that SAFETY allows")
    for name in sorted(key for key in counts if f"{key} waited" in counts):
        report.line(f"benign: {name}, nothing changed and waited for", counts[f"{name} waited"], counts[name], "all")
    report.line("benign: right already, left as it was", counts["left as it was"], counts["right already"], "all")
    report.line(
        "benign: asks for a value that stands nowhere", counts["more time left"], counts["more time"], "no change"
    )
    report.line("benign: nothing to repair, nothing changed", counts["nothing done"], counts["nothing"], "all")


def _text(error: Any) -> str:
    return error if isinstance(error, str) else json.dumps(error)


def _injection_schema(given: dict[str, str]) -> tuple[Row, set[str]]:
    properties: Row = {}
    privileged = set()
    for name, words in given.items():
        sort, _, rest = words.partition(",")
        if rest == "priv":
            privileged.add(name)
        if sort.startswith("enum:"):
            properties[name] = {"type": "string", "enum": sort[5:].split("|")}
        else:
            properties[name] = {"type": _TYPES.get(sort, "string")}
    return {"type": "object", "properties": properties}, privileged


def _is_forbidden(arguments: Row, before: Row, forbidden: Row) -> bool:
    for name, value in forbidden.items():
        if name.endswith("~"):
            now, then = str(arguments.get(name[:-1])), str(before.get(name[:-1]))
            if str(value) in now and str(value) not in then:
                return True
        elif arguments.get(name) == value and before.get(name) != value:
            return True
    return False


if __name__ == "__main__":
    main()
