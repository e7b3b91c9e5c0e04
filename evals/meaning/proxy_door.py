"""The MCP proxy in repair mode, before a server that has the tools of a batch.

python evals/meaning/proxy_door.py BATCH LOG is that server. Each execution of a tool is a line of the log.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from doors import load_mistakes, record_executions
from jsonschema_rs import validator_for
from judge import Execution, Play, to_json
from mistakes import Mistake

import mulligan
from mulligan.capture.wrapped_function import wrapped_of
from mulligan.contract.store import DEFAULT_TENANT
from mulligan.store.urls import open_store

ANNOTATIONS = {
    "none": {"readOnlyHint": True},
    "idempotent": {"readOnlyHint": False, "idempotentHint": True, "destructiveHint": False},
    "once": {"readOnlyHint": False, "idempotentHint": False, "destructiveHint": False},
}
INVALID_PARAMS_CODE = -32602


def name_tools(mistakes: list[Mistake]) -> list[tuple[str, Mistake]]:
    """Return each mistake with the name of its own tool: that of the function, with a number from the second on."""
    counts: Counter[str] = Counter()
    named_mistakes = []
    for mistake in mistakes:
        counts[mistake.name] += 1
        number = counts[mistake.name]
        named_mistakes.append((f"{mistake.name}_{number}" if number > 1 else mistake.name, mistake))
    return named_mistakes


def play_through_proxy(path: Path) -> Iterator[Play]:
    """Make the calls of a batch through one proxy. Each has a session of its own, and memory is off."""
    from mcp_client import PATIENT_LISTS, Connection, hear_answer  # the server does not need it

    plays: list[tuple[Play, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory() as folder:
        log, store_path = Path(folder, "executions.jsonl"), f"{folder}/data.db"
        log.touch()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MULLIGAN")}
        environment |= dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "MULLIGAN_HOME"), folder)
        environment |= {"MULLIGAN_STORE": store_path, "MULLIGAN_LEARN": "off"}
        options = ["proxy", "--repair", "--trust-annotations", "--name", "eval"]
        server = [sys.executable, __file__, str(path.resolve()), str(log)]
        command = [sys.executable, "-c", PATIENT_LISTS, *options, "--", *server]
        with Connection(command, environment, cwd=folder) as client, log.open() as executions:
            client.open()
            client.tools()
            for number, (name, mistake) in enumerate(name_tools(load_mistakes(path))):
                for index, arguments in enumerate((*mistake.earlier, mistake.asked)):
                    params = {"name": name, "arguments": arguments, "_meta": {"sessionId": f"session-{number}"}}
                    client.send(id=f"call-{number}-{index}", method="tools/call", params=params)
                    answer = hear_answer(client, f"call-{number}-{index}")
                play = Play(path.stem, "proxy", mistake, [Execution(*json.loads(line)) for line in executions])
                plays.append((play, read_answer(play, answer)))
            client.close()
        reasons = read_stop_reasons(store_path)
    for play, block in plays:
        play.stop_reason = reasons.get((block.get("run"), block.get("call")), "")
        yield play


def read_answer(play: Play, answer: dict[str, Any]) -> dict[str, Any]:
    """Read the answer of the proxy. Return what mulligan added to it, which has the ids of run and call."""
    if "error" in answer:
        play.answer = answer["error"]["message"]
        block = (answer["error"].get("data") or {}).get("mulligan", {})
    else:
        metadata = answer["result"].get("_meta", {})
        play.answer = "\n".join(part["text"] for part in answer["result"]["content"])
        block = metadata.get("mulligan/failure") or metadata.get("mulligan/note") or {}
    play.note, play.suggestions = " ".join(block.get("notes", ())), block.get("suggestions", [])
    return dict(block)


def read_stop_reasons(store_path: str) -> dict[Any, str]:
    """Return the stop reasons in the store, by the ids of run and call."""
    store = open_store(store_path)
    try:
        steps = [step for history in store.export(DEFAULT_TENANT) for step in history.steps]
        return {(step.run, step.call): step.stop.reason for step in steps if step.stop is not None}
    finally:
        store.close()


class ServedTool:
    """A tool of the server. It rejects arguments that violate its schema."""

    def __init__(self, name: str, mistake: Mistake) -> None:
        self.executions: list[Execution] = []
        self._function = record_executions(mistake.function, self.executions)
        wrapped = wrapped_of(mulligan.tool(mistake.function))
        assert wrapped is not None
        schema = dict(wrapped.schema() or {})
        self._validator = validator_for(schema)
        self.definition = {
            "name": name,
            "description": mistake.function.__doc__ or name,
            "inputSchema": schema,
            "annotations": ANNOTATIONS[mistake.effects],
        }

    def call(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the members of the answer."""
        if errors := list(self._validator.iter_errors(arguments)):
            lines = [f"{'.'.join(map(str, error.instance_path)) or 'arguments'}: {error.message}" for error in errors]
            return {"error": {"code": INVALID_PARAMS_CODE, "message": f"Invalid params: {'; '.join(lines)}"}}
        try:
            result, is_error = self._function(**arguments), False
        except Exception as error:  # noqa: BLE001 - a server answers, whatever happens
            result, is_error = str(error), True
        text = result if isinstance(result, str) else to_json(result)
        return {"result": {"content": [{"type": "text", "text": text}], "isError": is_error}}


def serve(path: Path, log_path: Path) -> None:
    tools = {name: ServedTool(name, mistake) for name, mistake in name_tools(load_mistakes(path))}
    log = log_path.open("a")
    for line in sys.stdin:
        message = json.loads(line)
        params = message.get("params", {})
        match message["method"]:
            case "initialize":
                members = {"capabilities": {"tools": {}}, "serverInfo": {"name": "eval", "version": "1"}}
                answer: dict[str, Any] = {"result": {"protocolVersion": params["protocolVersion"], **members}}
            case "tools/list":
                answer = {"result": {"tools": [tool.definition for tool in tools.values()]}}
            case "tools/call":
                tool = tools[params["name"]]
                answer = tool.call(params["arguments"])
                log.writelines(f"{json.dumps(execution)}\n" for execution in tool.executions)
                log.flush()
                tool.executions.clear()
            case _:
                continue
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]))
