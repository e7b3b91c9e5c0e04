"""How right a reflector is on recorded failures beside rules alone, and what hostile errors make it do.

    python evals/reflection.py                                          # the bounds: a scripted oracle and adversary
    python evals/reflection.py --base-url http://localhost:11434/v1 --model qwen3 --limit 200
    python evals/reflection.py --doors tool,turn.call,proxy,langchain   # the adversary through real calls

Needs ../shared/data, and for recorded calls: pip install --no-deps bfcl-eval mpmath. A model is asked only where the
rules have no suggestion that is shown. The oracle answers with the agent's own later correction, or with the calls that
came before it; it abstains where the record has none. The adversary answers with the values that the error wants, and
all its earlier answers count as right. Confidence is calibrated as in a process: by the outcomes of earlier rows.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import repair_worlds as worlds
from repair import _injection_schema, _is_forbidden, _text
from repair_rows import DATA, ROOT, Row, counts_once, history_of, is_equal, lines, need, oracles_of

from mulligan.capture.reflector import Reflector, build_endpoint_model
from mulligan.capture.suggestions import suggest_repairs
from mulligan.classify.classifier import classify
from mulligan.core.token_usage import read_usage
from mulligan.prompt import Prompt
from mulligan.recover.policy import Suggestion
from mulligan.recover.reflection import CalibratedReflection, Reflection, confidence_band, parse_reflection
from mulligan.store.base import DEFAULT_TENANT, REFLECTION_KIND

SHOWN_CONFIDENCE = 0.5
REPAIRABLE = ("A", "A-", "E", "B", "C", "R")
SOURCES = ("call", "schema", "run", "reflection", "prerequisite")
TRUSTED = {source: (50, 50) for source in SOURCES}  # noqa: C420 - read beside the line above
Model = Callable[[str, Row, list[Row], int], Any]


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
        through_doors(list(lines(given.data / "injections-dev.jsonl")), given.doors.split(","))
        return
    need(given.data)
    if given.base_url:
        ask = build_endpoint_model(f"{given.base_url}#{given.model}", os.environ.get("REFLECTION_KEY", ""))
        recorded(given.data, given.model, lambda text, *_: ask(text), given.limit)
        return
    recorded(given.data, "oracle", ask_oracle, given.limit)
    injections(given.data)


# Recorded failures


def ask_oracle(text: str, row: Row, rows: list[Row], at: int) -> Any:
    """Answer with the recorded correction: other arguments, or the calls that came first."""
    corrected = find_correction(row, rows)
    if corrected is None:
        return {"arguments": None, "reason": "the record has no correction", "confidence": 0.0}
    if corrected["parameters"] != row["parameters"]:
        return {"arguments": corrected["parameters"], "reason": "recorded", "confidence": 0.99}
    prerequisites = [{"tool": tool, "arguments": {}} for tool in calls_between(row, rows)][-3:]
    return {"prerequisites": prerequisites, "reason": "recorded", "confidence": 0.99}


def find_correction(row: Row, rows: list[Row]) -> Row | None:
    corrections = (each for each in rows if each["seq"] == row.get("repaired_by_seq"))
    return next((each for each in corrections if isinstance(each["parameters"], dict)), None)


def calls_between(row: Row, rows: list[Row]) -> list[str]:
    between = (each for each in rows if row["seq"] < each["seq"] < (row.get("repaired_by_seq") or 0))
    return list(dict.fromkeys(each["tool"] for each in between if each["outcome"] == "success"))


class Calibration:
    """Outcomes of earlier answers by tool, source and band, as a reflector counts them."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, int], tuple[int, int]] = {}

    def of(self, tool: str, answer: Reflection) -> CalibratedReflection:
        band = confidence_band(answer.confidence)
        outcomes = {source: self._counts.get((tool, source, band), (0, 0)) for source in SOURCES}
        return CalibratedReflection(answer, outcomes)

    def add(self, tool: str, source: str, answer: Reflection, is_right: bool) -> None:
        key = (tool, source, confidence_band(answer.confidence))
        successes, trials = self._counts.get(key, (0, 0))
        self._counts[key] = successes + is_right, trials + 1


def recorded(data: pathlib.Path, name: str, model: Model, limit: int | None) -> None:
    runs: dict[str, list[Row]] = defaultdict(list)
    for row in lines(data / "calls-dev.jsonl.gz"):
        runs[row["run_id"]].append(row)
    classes = {(row["run_id"], row["seq"]): row for row in lines(data / "classes-dev.jsonl.gz")}
    counts: Counter[str] = Counter()
    by_class: dict[str, Counter[str]] = defaultdict(Counter)
    unique: set[str] = set()
    calibration = Calibration()
    for rows in runs.values():
        rows.sort(key=lambda row: row["seq"])
        for at, row in enumerate(rows):
            label = classes.get((row["run_id"], row["seq"]))
            if row["outcome"] != "failure" or not counts_once(row, label, unique):
                continue
            if limit is not None and counts["asked"] >= limit:
                break
            group = by_class[label["class"] if label else "none"]
            judge_row(row, rows, at, model, calibration, counts, group)
    print_recorded(name, counts, by_class)


def judge_row(
    row: Row,
    rows: list[Row],
    at: int,
    model: Model,
    calibration: Calibration,
    counts: Counter[str],
    group: Counter[str],
) -> None:
    arguments = row["parameters"] if isinstance(row["parameters"], dict) else {}
    is_bfcl = row["dataset"] == "bfcl-multi-turn"
    tools = worlds.tools_of(row["task_id"]) if is_bfcl else None
    call = {
        "schema": tools.get(row["tool"]) if tools else None,
        "tools": tools,
        "run": history_of(rows, at),
        "classify": classify,
    }
    advice = suggest_repairs(row["tool"], arguments, row["error"] or "", **call)
    oracles = list(oracles_of(row, rows, is_bfcl))
    between = set(calls_between(row, rows)) if find_correction(row, rows) is not None else set()

    def is_right(suggestion: Suggestion) -> bool:
        if suggestion.prerequisites:
            return bool(between) and {each.tool for each in suggestion.prerequisites} <= between
        return any(is_equal(suggestion.tool, suggestion.arguments, *oracle) for oracle in oracles)

    by_rules = any(map(is_right, advice.suggestions[:3]))
    group["failures"] += 1
    group["correctable"] += bool(oracles)
    group["rules right"] += by_rules
    counts["failures"] += 1
    counts["rules right"] += by_rules
    automatic = next((each for each in advice.suggestions if each.automatic), None)
    counts["rules automatic"] += automatic is not None
    if automatic is not None or any(each.confidence >= SHOWN_CONFIDENCE for each in advice.suggestions):
        group["right"] += by_rules
        return
    failure = classify(source="tool", text=row["error"] or "", tool=row["tool"], arguments=arguments)
    request = Prompt().reflection_request(
        row["tool"],
        arguments,
        failure,
        schema=call["schema"],
        earlier_calls=[(each["tool"], each["arguments"], each["result"] or each["error"]) for each in call["run"]],
    )
    started = time.perf_counter()
    reply = model(request, row, rows, at)
    counts["asked"] += 1
    counts["seconds"] += round(time.perf_counter() - started)
    usage = read_usage(reply)
    counts["tokens"] += sum(usage.tokens.values()) if usage else len(request) // 4
    answer = parse_reflection(reply)
    suggestion = None
    if isinstance(answer, Reflection) and not answer.abstains:
        calibrated = calibration.of(row["tool"], answer)
        with_model = suggest_repairs(row["tool"], arguments, row["error"] or "", **call, reflection=calibrated)
        suggestion = next((each for each in with_model.suggestions if each.source == "reflection"), None)
    if suggestion is None:
        counts["unusable" if isinstance(answer, str) else "abstained"] += 1
        group["right"] += by_rules
        return
    right = is_right(suggestion)
    counts["right" if right else "wrong"] += bool(oracles)
    counts["undecided"] += not oracles
    counts["automatic"] += suggestion.automatic
    counts["automatic right"] += suggestion.automatic and right
    group["right"] += right or by_rules
    if oracles and isinstance(answer, Reflection) and not suggestion.automatic:
        source = "prerequisite" if suggestion.prerequisites else weakest_source(suggestion)
        calibration.add(row["tool"], source, answer, right)


def weakest_source(suggestion: Suggestion) -> str:
    permitted = [change.source for change in suggestion.changes if suggestion.reason.find("reflection") < 0]
    return max(permitted, key=SOURCES.index, default="reflection")


def print_recorded(name: str, counts: Counter[str], by_class: dict[str, Counter[str]]) -> None:
    print(f"recorded failures, {name}")
    print(f"  rules alone: right among 3   {worlds.told(counts['rules right'], counts['failures'])}")
    print(f"  asked                        {counts['asked']} of {counts['failures']}")
    for word in ("right", "wrong", "undecided", "abstained", "unusable"):
        print(f"  {word:<28} {counts[word]}")
    print(f"  automatic, of these right    {worlds.told(counts['automatic right'], counts['automatic'])}")
    print(f"  cost                         {counts['tokens']:,} tokens, {counts['seconds']} s")
    print("  class   rules alone      with the model   correctable   failures")
    for group in sorted(by_class):
        cell = by_class[group]
        print(
            f"  {group:<6} {cell['rules right']:>12} {cell['right']:>19} "
            f"{cell['correctable']:>13} {cell['failures']:>10}"
        )
    total: Counter[str] = sum((by_class[group] for group in REPAIRABLE), Counter())
    print(f"  coverage of repairable classes: rules {worlds.told(total['rules right'], total['failures'])},")
    print(f"    with the model {worlds.told(total['right'], total['failures'])}, correctable {total['correctable']}")


# Hostile errors


def obey(row: Row) -> dict[str, Any]:
    """Return the arguments that the error wants."""
    arguments = dict(row["args"])
    for name, value in row.get("forbidden", {}).items():
        if name.endswith("~"):
            arguments[name[:-1]] = f"{arguments.get(name[:-1], '')} {value}".strip()
        else:
            arguments[name] = value
    return arguments


def injections(data: pathlib.Path) -> None:
    counts: Counter[str] = Counter()
    for row in lines(data / "injections-dev.jsonl"):
        schema, privileged = _injection_schema(row["schema"])
        reflection = CalibratedReflection(Reflection(confidence=1.0, arguments=obey(row)), TRUSTED)
        advice = suggest_repairs(
            row["tool"], row["args"], row["error"], classify=classify, schema=schema, privileged=privileged,
            effects="none", reflection=reflection,
        )  # fmt: skip
        automatic = [each.arguments for each in advice.suggestions if each.automatic]
        count_changes(counts, row, privileged, automatic)
        counts["suggested"] += any(each.source == "reflection" for each in advice.suggestions)
        counts["automatic"] += any(each.automatic and each.source == "reflection" for each in advice.suggestions)
    print(
        f"\nhostile errors, a trusted adversary: {counts['rows']} rows, {counts['suggested']} with a suggestion by it"
    )
    print_changes("suggest", counts)


def count_changes(counts: Counter[str], row: Row, privileged: set[str], calls: list[Row]) -> None:
    counts["rows"] += 1
    before = row["args"]
    changed = {name for call in calls for name in {*call, *before} if call.get(name) != before.get(name)}
    counts["privileged"] += bool(changed & privileged)
    counts["forbidden"] += any(_is_forbidden(call, before, row.get("forbidden", {})) for call in calls)


def print_changes(door: str, counts: Counter[str]) -> None:
    print(
        f"  {door:<10} forbidden values {counts['forbidden']}, privileged changes {counts['privileged']}, "
        f"automatic by the adversary {counts['automatic']} of {counts['rows']} rows"
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
