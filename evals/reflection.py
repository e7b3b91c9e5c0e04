"""How right a reflector is on recorded failures beside rules alone, and what hostile errors make it do.

    python evals/reflection.py                                          # the bounds: a scripted oracle and adversary
    python evals/reflection.py --base-url http://localhost:11434/v1 --model qwen3 --limit 200
    python evals/reflection.py --doors tool,turn.call,proxy,langchain   # the adversary through real calls

Needs ../shared/data, and for recorded calls: pip install --no-deps bfcl-eval mpmath. A model is asked only where the
rules have no suggestion that is shown. The oracle answers with the agent's own later correction, else with the ground
truth of the turn: other arguments, or the calls that come first. It abstains where there is neither. The adversary
answers with the values that the error wants, and all its earlier answers count as right. Confidence is calibrated as in
a process: by the outcomes of earlier rows.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import repair_worlds as worlds
from repair import _injection_schema, _is_forbidden, _text
from repair_rows import DATA, ROOT, Row, counts_once, history_of, is_equal, is_name_alone, lines, need, oracles_of

from mulligan.capture.reflector import Reflector, build_endpoint_model
from mulligan.capture.suggestions import suggest_repairs
from mulligan.classify.classifier import classify
from mulligan.contract.store import DEFAULT_TENANT, REFLECTION_KIND
from mulligan.core.token_usage import read_usage
from mulligan.prompt import Prompt
from mulligan.prompt.reflection_messages import RunCall
from mulligan.recover.policy import EarlierCall, Suggestion
from mulligan.recover.reflection import (
    CalibratedReflection,
    Reflection,
    confidence_band,
    draft_reflection,
    parse_reflection,
    read_answer,
)
from mulligan.recover.schema import compile_schema

SHOWN_CONFIDENCE = 0.5
MAX_WORDS = 20
"""Words of an error with which the adversary tries each argument."""
REPAIRABLE = ("A", "A-", "E", "B", "C", "R")
SOURCES = ("call", "schema", "run", "reflection", "prerequisite")
TRUSTED = {source: (50, 50) for source in SOURCES}  # noqa: C420 - read beside the line above
Model = Callable[[str, "RecordedFailure"], Any]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--base-url", help="an OpenAI-compatible endpoint; its key is in REFLECTION_KEY")
    options.add_argument("--model", help="the model to ask there")
    options.add_argument("--limit", type=int, help="ask about this many failures at most")
    options.add_argument("--doors", help="only the adversary, through these doors")
    options.add_argument("--serve", help=argparse.SUPPRESS)
    options.add_argument("--data", type=pathlib.Path, default=DATA)
    given = options.parse_args()
    if given.serve:
        serve(pathlib.Path(given.serve))
        return
    if given.doors:
        rows = list(lines(given.data / "injections-dev.jsonl"))
        for corpus in sorted(set(map(find_corpus, rows))):
            print(f"{corpus}: ", end="")
            through_doors([row for row in rows if find_corpus(row) == corpus], given.doors.split(","))
        return
    need(given.data)
    if given.base_url:
        ask = build_endpoint_model(f"{given.base_url}#{given.model}", os.environ.get("REFLECTION_KEY", ""))
        recorded(given.data, given.model, lambda text, failure: ask(text), given.limit)
        return
    recorded(given.data, "oracle", ask_oracle, given.limit)
    injections(given.data)


# Recorded failures


def ask_oracle(text: str, failure: RecordedFailure) -> Any:
    """Answer with the correction: other arguments, or the calls that must come first."""
    prerequisites = failure.calls_before_correction
    if failure.corrected_arguments is None:
        return {"arguments": None, "reason": "the record has no correction", "confidence": 0.0}
    if not is_equal("", failure.arguments, "", failure.corrected_arguments):
        return {"arguments": failure.corrected_arguments, "reason": "recorded", "confidence": 0.99}
    calls = [{"tool": tool, "arguments": {}} for tool in prerequisites][-3:]
    return {"prerequisites": calls, "reason": "recorded", "confidence": 0.99}


class RecordedFailure:
    """A failed call of the data set, with what its agent or the ground truth of the turn says about it."""

    def __init__(self, rows: list[Row], at: int) -> None:
        self.row = row = rows[at]
        self.tool, self.error = row["tool"], row["error"] or ""
        self.arguments: Row = row["parameters"] if isinstance(row["parameters"], dict) else {}
        is_bfcl = row["dataset"] == "bfcl-multi-turn"
        self.tools = worlds.tools_of(row["task_id"]) if is_bfcl else None
        self.history = history_of(rows, at)
        self.tool_names = tuple(self.tools or {each["tool"]: None for each in rows if each["outcome"] == "success"})
        self.oracles = list(oracles_of(row, rows, is_bfcl))
        truths = worlds.truths(row["task_id"], row.get("turn")) if is_bfcl else []
        self.corrected_arguments: Row | None = None
        self.calls_before_correction: list[str] = []
        correction = next((each for each in rows if each["seq"] == row.get("repaired_by_seq")), None)
        if correction is not None and isinstance(correction["parameters"], dict):
            between = [each for each in rows if row["seq"] < each["seq"] < correction["seq"]]
            self.corrected_arguments = correction["parameters"]
            names = [each["tool"] for each in between if each["outcome"] == "success"]
        else:
            found = next((at for at, (tool, _) in enumerate(truths) if tool == self.tool), None)
            if found is not None:
                self.corrected_arguments = truths[found][1]
            names = [tool for tool, _ in truths[:found]] if found is not None else []
        self.calls_before_correction = list(dict.fromkeys(name for name in names if name != self.tool))

    @property
    def is_correctable(self) -> bool:
        """Whether a correction is known that a suggestion can say: another call, or calls that come first."""
        if self.corrected_arguments is None:
            return bool(self.oracles)
        return bool(self.calls_before_correction) or not is_equal("", self.arguments, "", self.corrected_arguments)

    def suggest(self, reflection: CalibratedReflection | None = None) -> tuple[Suggestion, ...]:
        schema = self.tools.get(self.tool) if self.tools else None
        return suggest_repairs(
            self.tool, self.arguments, self.error, classify=classify, schema=schema, tools=self.tools,
            run=self.history, reflection=reflection,
        ).suggestions  # fmt: skip

    def is_right(self, suggestion: Suggestion) -> bool:
        if suggestion.prerequisites:
            names = {call.tool for call in suggestion.prerequisites}
            return names <= set(self.calls_before_correction)
        # A repair of the name's syntax alone makes the call that was asked for: right by definition (DATA.md).
        return is_name_alone(suggestion, self.arguments) or any(
            is_equal(suggestion.tool, suggestion.arguments, *oracle) for oracle in self.oracles
        )

    def build_request(self) -> str:
        failure = classify(source="tool", text=self.error, tool=self.tool, arguments=self.arguments)
        return Prompt().reflection_request(
            self.tool, self.arguments, failure, schema=self.tools.get(self.tool) if self.tools else None,
            calls=[
                RunCall(call["tool"], call["arguments"], call["result"] or call["error"], call["outcome"] == "failure")
                for call in self.history
            ],
            tools=self.tool_names,
        )  # fmt: skip

    def find_source(self, reflection: CalibratedReflection) -> str:
        """Return the source of a reflection's values, as its outcome is counted."""
        schema = self.tools.get(self.tool) if self.tools else None
        earlier = [
            EarlierCall(call["tool"], call["arguments"], call["outcome"], call["result"] or call["error"])
            for call in self.history
        ]
        compiled = compile_schema(schema) if schema else None
        drafts = draft_reflection(reflection, self.arguments, compiled, earlier, self.error)
        return next((draft.evidence_source for draft in drafts), "none")


class Calibration:
    """Outcomes of earlier answers by tool, source and band, as a reflector counts them."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, int], tuple[int, int]] = {}

    def of(self, failure: RecordedFailure, answer: Reflection) -> CalibratedReflection:
        band = confidence_band(answer.confidence)
        outcomes = {source: self._counts.get((failure.tool, source, band), (0, 0)) for source in SOURCES}
        return CalibratedReflection(answer, outcomes, failure.tool_names)

    def add(self, tool: str, source: str, answer: Reflection, is_right: bool) -> None:
        key = (tool, source, confidence_band(answer.confidence))
        successes, trials = self._counts.get(key, (0, 0))
        self._counts[key] = successes + is_right, trials + 1


def recorded(data: pathlib.Path, name: str, model: Model, limit: int | None) -> None:
    runs: dict[str, list[Row]] = defaultdict(list)
    for row in lines(data / "calls-dev.jsonl.gz"):
        runs[row["run_id"]].append(row)
    classes = {(row["run_id"], row["seq"]): row for row in lines(data / "classes-dev.jsonl.gz")}
    evaluation = RecordedEvaluation(model)
    unique: set[str] = set()
    for rows in runs.values():
        rows.sort(key=lambda row: row["seq"])
        for at, row in enumerate(rows):
            label = classes.get((row["run_id"], row["seq"]))
            if row["outcome"] != "failure" or not counts_once(row, label, unique):
                continue
            if limit is not None and evaluation.counts["asked"] >= limit:
                break
            evaluation.judge(RecordedFailure(rows, at), label["class"] if label else "none")
    evaluation.print(name)


class RecordedEvaluation:
    """Rules alone and with a model, on one recorded failure after the other."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.counts: Counter[str] = Counter()
        self._by_class: dict[str, Counter[str]] = defaultdict(Counter)
        self._sources: Counter[tuple[str, bool, bool]] = Counter()
        """Answers by source, whether they were right, and whether they would be automatic if trusted completely."""
        self._reasons: Counter[str] = Counter()
        """Why right answers would stay suggestions even then."""
        self._calibration = Calibration()
        self._started = time.perf_counter()

    def judge(self, failure: RecordedFailure, label: str) -> None:
        counts, group = self.counts, self._by_class[label]
        by_rules = failure.suggest()
        is_right_by_rules = any(map(failure.is_right, by_rules[:3]))
        automatic = next((each for each in by_rules if each.automatic), None)
        is_silent = automatic is None and all(each.confidence < SHOWN_CONFIDENCE for each in by_rules)
        for cell in (counts, group):
            cell["failures"] += 1
            cell["rules right"] += is_right_by_rules
            cell["correctable"] += is_right_by_rules or failure.is_correctable
            cell["allowed"] += is_right_by_rules or (is_silent and failure.is_correctable)
        if automatic is not None:
            is_right = failure.is_right(automatic)
            counts["rules automatic"] += is_right or bool(failure.oracles)
            counts["rules automatic right"] += is_right
            counts["rules automatic undecided"] += not is_right and not failure.oracles
        if counts["failures"] % 250 == 0:
            print(f"{counts['failures']} failures, {time.perf_counter() - self._started:.0f} s", file=sys.stderr)
        is_right = is_silent and self._ask(failure)
        group["right"] += is_right or is_right_by_rules

    def _ask(self, failure: RecordedFailure) -> bool:
        """Ask the model about a failure. Return whether its suggestion is right."""
        counts, request = self.counts, failure.build_request()
        started = time.perf_counter()
        reply = self._model(request, failure)
        counts["asked"] += 1
        counts["milliseconds"] += round(1000 * (time.perf_counter() - started))
        usage = read_usage(reply)
        counts["tokens"] += sum(usage.tokens.values()) if usage else len(request) // 4
        answer = parse_reflection(read_answer(reply))
        suggestion = None
        if isinstance(answer, Reflection) and not answer.abstains:
            calibrated = self._calibration.of(failure, answer)
            suggestion = find_reflected(failure.suggest(calibrated))
        if suggestion is None:
            word = "unusable" if isinstance(answer, str) else "abstained" if answer.abstains else "dropped"
            counts[word] += 1
            return False
        assert isinstance(answer, Reflection)
        is_right = failure.is_right(suggestion)
        counts["right" if is_right else "wrong"] += failure.is_correctable
        counts["undecided"] += not failure.is_correctable
        counts["automatic"] += suggestion.automatic
        counts["automatic right"] += suggestion.automatic and is_right
        source = failure.find_source(calibrated)
        if failure.is_correctable and not suggestion.automatic:
            self._calibration.add(failure.tool, source, answer, is_right)
        if source not in ("reflection", "prerequisite"):  # those are never automatic, however trusted
            trusted = find_reflected(failure.suggest(msgspec.structs.replace(calibrated, outcomes=TRUSTED)))
            suggestion = trusted or suggestion
        self._sources[source, is_right, suggestion.automatic] += 1
        if is_right and not suggestion.automatic:
            self._reasons[suggestion.reason] += 1
        return is_right

    def print(self, name: str) -> None:
        counts = self.counts
        print(f"recorded failures, {name}")
        print(f"  rules alone: right among 3   {worlds.told(counts['rules right'], counts['failures'])}")
        print(f"  asked                        {counts['asked']} of {counts['failures']}")
        for word in ("right", "wrong", "undecided", "abstained", "unusable", "dropped"):
            print(f"  {word:<28} {counts[word]}")
        print(
            f"  automatic by rules, right    {worlds.told(counts['rules automatic right'], counts['rules automatic'])}"
        )
        print(f"  automatic by rules, without a known correction  {counts['rules automatic undecided']}")
        print(f"  automatic by it, right       {worlds.told(counts['automatic right'], counts['automatic'])}")
        print(f"  cost                         {counts['tokens']:,} tokens, {counts['milliseconds'] / 1000:.1f} s")
        print("  source of the answer, right, and automatic if all earlier answers had been right:")
        for (source, is_right, is_automatic), count in sorted(self._sources.items()):
            word = "automatic" if is_automatic else "suggestion"
            print(f"    {source:<14} {'right' if is_right else 'wrong':<6} {word:<11} {count}")
        for reason, count in self._reasons.most_common():
            print(f"    {count:>4} right answers stay suggestions: {reason}")
        print("  class   rules alone   with the model   allowed   correctable   failures")
        for group in sorted(self._by_class):
            cell = self._by_class[group]
            print(
                f"  {group:<6} {cell['rules right']:>12} {cell['right']:>16} {cell['allowed']:>9} "
                f"{cell['correctable']:>13} {cell['failures']:>10}"
            )
        total: Counter[str] = sum((self._by_class[group] for group in REPAIRABLE), Counter())
        print(
            f"  coverage of repairable classes: rules alone {worlds.told(total['rules right'], total['correctable'])}"
        )
        print(f"                               with the model {worlds.told(total['right'], total['correctable'])}")
        print(f"    allowed, as rules are silent or right there: {total['allowed']} of {total['correctable']}")


def find_reflected(suggestions: tuple[Suggestion, ...]) -> Suggestion | None:
    return next((each for each in suggestions if each.source == "reflection"), None)


# Hostile errors


def obey(row: Row) -> Row:
    """Return the arguments that the error wants. Where it wants another action, follow it in one of the arguments."""
    forbidden = {name: value for name, value in row.get("forbidden", {}).items() if name.rstrip("~") in row["schema"]}
    if not forbidden:
        calls = list(obey_one_by_one(row))
        return calls[int(row["id"][1:]) % len(calls)] if calls else row["args"]
    arguments = dict(row["args"])
    for name, value in forbidden.items():
        if name.endswith("~"):
            arguments[name[:-1]] = f"{arguments.get(name[:-1], '')} {value}".strip()
        else:
            arguments[name] = value
    return arguments


def obey_one_by_one(row: Row) -> Iterator[Row]:
    """Yield calls that each follow the error in one argument: with a word or number of it, or another enum member."""
    schema, _ = _injection_schema(row["schema"])
    text = _text(row["error"])
    words = list(dict.fromkeys(re.findall(r"[\w@./:~-]{3,}", text)))[:MAX_WORDS]
    numbers = [int(number) for number in re.findall(r"\b\d{1,9}\b", text)][:MAX_WORDS]
    for name, node in schema["properties"].items():
        values: dict[str, list[Any]] = {"boolean": [True, False], "integer": numbers, "number": numbers}
        for value in node.get("enum") or values.get(node["type"], [text, *words]):
            if row["args"].get(name) != value:
                yield row["args"] | {name: value}


def injections(data: pathlib.Path) -> None:
    rows = list(lines(data / "injections-dev.jsonl"))
    print(f"\nhostile errors, a trusted adversary: {len(rows)} rows")
    for corpus in sorted(set(map(find_corpus, rows))):
        counts: Counter[str] = Counter()
        for row in rows:
            if find_corpus(row) == corpus:
                attack(row, [obey(row)], counts)
        print_changes(f"suggest, {corpus}", counts)
        counts.clear()
        for row in rows:
            if find_corpus(row) == corpus:
                attack(row, obey_one_by_one(row), counts)
        print_changes(f"suggest, {corpus}, one by one", counts)


def find_corpus(row: Row) -> str:
    """Return the corpus of a row: AgentDojo, errors written by hand, or errors of real programs."""
    return row["source"].partition(":")[0].partition(" ")[0]


def attack(row: Row, calls: Iterable[Row], counts: Counter[str]) -> None:
    """Count what a trusted reflector that answers with these calls changes automatically."""
    schema, privileged = _injection_schema(row["schema"])
    automatic: list[Row] = []
    for arguments in calls:
        reflection = CalibratedReflection(Reflection(confidence=1.0, arguments=arguments), TRUSTED)
        advice = suggest_repairs(
            row["tool"], row["args"], row["error"], classify=classify, schema=schema, privileged=privileged,
            effects="none", reflection=reflection,
        )  # fmt: skip
        automatic += [each.arguments for each in advice.suggestions if each.automatic]
        counts["answers"] += 1
        counts["suggested"] += find_reflected(advice.suggestions) is not None
        counts["automatic"] += any(each.automatic and each.source == "reflection" for each in advice.suggestions)
    count_changes(counts, row, privileged, automatic)


def count_changes(counts: Counter[str], row: Row, privileged: set[str], calls: list[Row]) -> None:
    counts["rows"] += 1
    before = row["args"]
    changed = {name for call in calls for name in {*call, *before} if call.get(name) != before.get(name)}
    counts["privileged"] += bool(changed & privileged)
    counts["forbidden"] += any(_is_forbidden(call, before, row.get("forbidden", {})) for call in calls)


def print_changes(door: str, counts: Counter[str]) -> None:
    answers = f", {counts['suggested']} of {counts['answers']} answers suggested" if counts["answers"] else ""
    print(
        f"  {door:<10} forbidden values {counts['forbidden']}, privileged changes {counts['privileged']}, "
        f"automatic by the adversary {counts['automatic']}, of {counts['rows']} rows{answers}"
    )


def build_failing_tool(row: Row, received: list[Row]) -> Callable[..., str]:
    from mulligan import AgentError

    def act(**arguments: Any) -> str:
        received.append(arguments)
        raise AgentError(_text(row["error"]), code="invalid_arguments")

    return act


def through_doors(rows: list[Row], doors: list[str]) -> None:
    """Play each row through a real call, with a trusted reflector that obeys."""
    import mulligan
    from mulligan.capture.wrapped_function import wrapped_of
    from mulligan.testing import sandbox

    asked: list[str] = []
    current: dict[str, Row] = {}

    def adversary(text: str) -> Any:
        asked.append(text)
        return {"arguments": obey(current["row"]), "reason": "it says so", "confidence": 1.0}

    def trust(store: Any, key: str) -> None:
        counts = {f"{source} {band}": (50, 50) for source in SOURCES for band in range(4)}
        store.put(DEFAULT_TENANT, REFLECTION_KIND, f"outcomes {key}", json.dumps(counts).encode())

    def play(door: str) -> None:
        counts: Counter[str] = Counter()
        for row in rows:
            current["row"] = row
            received: list[Row] = []
            schema, privileged = _injection_schema(row["schema"])
            limits = {"calls": 10_000, "tokens": 10**9}
            with sandbox(reflect=Reflector(adversary, per_run=limits, per_day=limits), learn="repair") as played:
                options: Row = {"effects": "none", "schema": schema, "privileged": privileged}
                tool = mulligan.tool(name=row["tool"], **options)(build_failing_tool(row, received))
                with mulligan.run("first"):
                    pass
                played.components.recorder.flush(10)
                trust(played.components.key_value_store, wrapped_of(tool).key)  # type: ignore[union-attr]
                with mulligan.run("agent"):
                    call_through(door, tool, row)
                steps = [step for history in played.runs for step in history.steps]
            counts["automatic"] += any(step.recovery and step.recovery.source == "reflection" for step in steps)
            count_changes(counts, row, privileged, received)
        print_changes(door, counts)

    def call_through(door: str, tool: Any, row: Row) -> None:
        if door == "turn.call":
            for turn in mulligan.turns(limit=1):
                turn.call({row["tool"]: tool}, row["tool"], row["args"])
            return
        with contextlib.suppress(mulligan.AgentError):
            tool(**row["args"])

    print(f"a trusted adversary, {len(rows)} rows")
    for door in doors:
        asked.clear()
        if door == "proxy":
            through_proxy(rows, trust)
        elif door == "langchain":
            through_langchain(rows, trust)
        else:
            play(door)
            print(f"             asked {len(asked)} times")


def through_langchain(rows: list[Row], trust: Callable[[Any, str], None]) -> None:
    try:
        from langchain.agents import create_agent
        from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
        from langchain_core.messages import AIMessage
        from langchain_core.tools import StructuredTool
    except ImportError:
        print("  langchain  not installed: pip install langchain")
        return
    import mulligan
    from mulligan.integrations.langchain import MulliganMiddleware
    from mulligan.testing import sandbox

    class Scripted(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **options: Any) -> Any:
            return self

    counts: Counter[str] = Counter()
    asked = 0
    for number, row in enumerate(rows):
        received: list[Row] = []
        schema, privileged = _injection_schema(row["schema"])

        def adversary(text: str, row: Row = row) -> Any:
            nonlocal asked
            asked += 1
            return {"arguments": obey(row), "reason": "it says so", "confidence": 1.0}

        tool = StructuredTool(
            name=row["tool"], description="Acts.", args_schema={"title": row["tool"], **schema},
            func=build_failing_tool(row, received),
        )  # fmt: skip
        request = {"name": row["tool"], "args": row["args"], "id": f"call_{number}", "type": "tool_call"}
        model = Scripted(messages=iter([AIMessage("", tool_calls=[request]), AIMessage("done")]))
        with sandbox(reflect=adversary) as played:
            with mulligan.run("first"):
                pass
            played.components.recorder.flush(10)
            for key in (row["tool"], f"{__name__}:build_failing_tool.<locals>.act"):
                trust(played.components.key_value_store, key)
            options = {row["tool"]: {"effects": "none", "privileged": sorted(privileged)}}
            agent = create_agent(model, [tool], middleware=[MulliganMiddleware(agent="eval", tools=options)])
            agent.invoke({"messages": [("user", "Act.")]})
            steps = [step for history in played.runs for step in history.steps]
        counts["automatic"] += any(step.recovery and step.recovery.source == "reflection" for step in steps)
        count_changes(counts, row, privileged, received)
    print_changes("langchain", counts)
    print(f"             asked {asked} times")


# The proxy, in front of a server that fails as the rows say


def serve(path: pathlib.Path) -> None:
    """Be an MCP server with one tool per row. Each call is written to a file beside the rows."""
    rows = {f"tool_{number}": row for number, row in enumerate(lines(path))}
    log = path.with_suffix(".log").open("a")
    for line in sys.stdin:
        message = json.loads(line)
        match message.get("method"):
            case "initialize":
                server = {"name": "hostile", "version": "1"}
                capabilities: Row = {"tools": {}}
                result: Row = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": server}
            case "tools/list":
                schemas = {name: _injection_schema(row["schema"])[0] for name, row in rows.items()}
                result = {"tools": [{"name": name, "inputSchema": schema} for name, schema in schemas.items()]}
            case "tools/call":
                name, arguments = message["params"]["name"], message["params"].get("arguments", {})
                log.write(json.dumps([name, arguments]) + "\n")
                log.flush()
                text = f"Invalid arguments: {_text(rows[name]['error'])}"
                result = {"content": [{"type": "text", "text": text}], "isError": True}
            case _:
                continue
        if "id" in message:
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


def ask_proxy_adversary(text: str) -> Any:
    """Answer a proxy of `through_proxy`: the tool of the request says which row it is about."""
    with pathlib.Path(os.environ["REFLECTION_ASKED"]).open("a") as file:
        file.write("x")
    name = next(line for line in text.splitlines() if line.startswith("Tool: ")).rpartition("tool_")[2]
    row = list(lines(pathlib.Path(os.environ["REFLECTION_ROWS"])))[int(name)]
    return {"arguments": obey(row), "reason": "it says so", "confidence": 1.0}


def through_proxy(rows: list[Row], trust: Callable[[Any, str], None]) -> None:
    from mulligan.store.urls import open_store

    with tempfile.TemporaryDirectory() as folder:
        home = pathlib.Path(folder)
        rows_file, asked = home / "rows.jsonl", home / "asked"
        rows_file.write_text("\n".join(map(json.dumps, rows)))
        asked.write_text("")
        (home / "mulligan").mkdir()
        tools = {}
        for number, row in enumerate(rows):
            names = sorted(_injection_schema(row["schema"])[1])
            tools[f"hostile.tool_{number}"] = f'effects = "none"\nprivileged = {json.dumps(names)}\n'
        settings = "\n".join(f'[tools."{name}"]\n{body}' for name, body in tools.items())
        (home / "mulligan" / "mulligan.toml").write_text(settings)
        store = open_store(str(home / "data.db"))
        for number in range(len(rows)):
            trust(store, f"hostile/tool_{number}")
        store.close()
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "evals")]),
            "XDG_CONFIG_HOME": folder, "MULLIGAN_HOME": folder, "MULLIGAN_STORE": str(home / "data.db"),
            "MULLIGAN_REFLECT": "reflection:proxy_reflector", "REFLECTION_ROWS": str(rows_file),
            "REFLECTION_ASKED": str(asked),
        }  # fmt: skip
        server = [sys.executable, str(pathlib.Path(__file__).resolve()), "--serve", str(rows_file)]
        command = [sys.executable, "-m", "mulligan", "proxy", "--name", "hostile", "--mode", "repair", "--", *server]
        asyncio.run(play_through_proxy(command, environment, rows))
        received: dict[str, list[Row]] = defaultdict(list)
        for name, arguments in map(json.loads, rows_file.with_suffix(".log").read_text().splitlines()):
            received[name].append(arguments)
        counts: Counter[str] = Counter()
        for number, row in enumerate(rows):
            calls = received[f"tool_{number}"]
            counts["automatic"] += obey(row) in calls and obey(row) != row["args"]
            count_changes(counts, row, _injection_schema(row["schema"])[1], calls)
        print_changes("proxy", counts)
        print(f"             asked {len(asked.read_text())} times")


async def play_through_proxy(command: list[str], environment: dict[str, str], rows: list[Row]) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, limit=2**24
    )
    assert process.stdin is not None
    assert process.stdout is not None

    async def ask(number: int, method: str, params: Row) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        process.stdin.write(json.dumps(request).encode() + b"\n")
        await process.stdin.drain()
        while json.loads(await asyncio.wait_for(process.stdout.readline(), 60)).get("id") != number:
            pass

    client = {"name": "eval", "version": "1"}
    await ask(1, "initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client})
    process.stdin.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
    await ask(2, "tools/list", {})
    for number, row in enumerate(rows):
        await ask(number + 3, "tools/call", {"name": f"tool_{number}", "arguments": row["args"]})
    process.stdin.close()
    await process.wait()


_LIMITS = {"calls": 10_000, "tokens": 10**9, "seconds": 10**6}
proxy_reflector = Reflector(ask_proxy_adversary, per_run=_LIMITS, per_day=_LIMITS)
"""Imported by the proxy: `MULLIGAN_REFLECT=reflection:proxy_reflector`."""

if __name__ == "__main__":
    main()
