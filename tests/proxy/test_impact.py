"""An agent works over the proxy for two simulated weeks: advice is held out from some sessions, and `impact` shows the
effect that the simulation put in. The proxy and the MCP server are real processes.
"""

from __future__ import annotations

import json

import pytest
from mcp_client import proxied, stored_runs
from simulated_weeks import SHIFTED_CLOCK, SimulatedModel, check_impact, check_show, start_times

pytestmark = pytest.mark.slow
SESSIONS = 100
SERVER = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    if message["method"] == "initialize":
        info = {"name": "jobs", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    elif message["method"] == "tools/list":
        schema = {"type": "object", "properties": {"job": {"type": "string"}, "queue": {"type": "string"}}}
        result = {"tools": [{"name": "start", "description": "Start a job.", "inputSchema": schema}]}
    else:
        queue = message["params"]["arguments"]["queue"]
        is_error = queue != "slow"
        text = f"Invalid value for queue: {queue}" if is_error else "started"
        result = {"content": [{"type": "text", "text": text}], "isError": is_error}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
PROXY = f"{SHIFTED_CLOCK}\nfrom mulligan.cli import main\nmain()"


def test_impact_shows_what_the_simulation_put_in(types, tmp_path, monkeypatch):
    clock, server = tmp_path / "clock", tmp_path / "server.py"
    server.write_text(SERVER)
    clock.write_text("0")
    model = SimulatedModel(5)
    environment = {"MULLIGAN_HOLDOUT": "0.5", "TEST_CLOCK_FILE": str(clock)}
    has_advice = {}
    with proxied(program=PROXY, server=server, env=environment) as client:
        client.open()
        client.tools()
        for number, shift in enumerate(start_times(SESSIONS)):
            clock.write_text(str(shift))

            def start(queue: str, session: str = f"session-{number}", job: str = f"job {number}") -> str:
                arguments = {"job": job, "queue": queue}
                answer = client.ask(
                    "tools/call", {"name": "start", "arguments": arguments, "_meta": {"sessionId": session}}
                )
                return json.dumps(answer["result"])

            answer = start("fast")
            has_advice[f"session-{number}"] = "slow" in answer
            if not model.is_right("slow" in answer):
                start("medium")
            start("slow")
        client.close()
    check_impact(types)
    runs = [history.run for history in stored_runs()]
    held_out = {run.session: run.id for run in runs if any(record.held_out for record in run.advice)}
    advised = {run.session: run.id for run in runs if run.advice and run.session not in held_out}
    assert {has_advice[session] for session in held_out} == {False}
    assert {has_advice[session] for session in advised} == {True}
    check_show(types, next(iter(held_out.values())), next(iter(advised.values())))
