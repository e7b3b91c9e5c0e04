"""The ingest table of docs/opentelemetry.md: a turn of an agent, sent by the real SDKs, as the server's API returns it.

Each SDK runs in a process of its own, with OpenAI's client over a fake provider. A cell is "yes", or says what the SDK
does not send.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from servers import Running, served

from mulligan.server.access import AccessRules
from providers import Provider, Wrong

ROOT = Path(__file__).parents[2]
SENDERS = Path(__file__).parent / "senders"
NODE_PACKAGES = ROOT / ".otlp"
PAGE = ROOT / "docs" / "opentelemetry.md"
TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end of table -->)", re.DOTALL)
AGENT, MODEL, ANSWERING_MODEL, SESSION = "planner", "gpt-test", "m", "session-otlp-7"
USAGE = {"input": 21, "output": 7}
FACTS = ("run", "model", "tokens", "tools", "failures", "session")
LIMIT = Wrong(429, "rate_limit_error", "rate_limit_exceeded", "Rate limit reached for gpt-test.")
ASKS_FOR_WEATHER = Wrong(tool="weather", arguments='{"city": "Bergen"}')
ASKS_FOR_BOOKING = Wrong(tool="book", arguments='{"flight": "SK4035"}')


class Sender(NamedTuple):
    """An SDK, the program that uses it, and the cells of its row that are not yes."""

    title: str
    package: str
    program: str
    runs_tools: bool = False
    """Whether the SDK itself calls the tools that the model asks for."""
    limits: Mapping[str, str] = MappingProxyType({})


LANGFUSE = Sender(
    "Langfuse", "langfuse", "langfuse_sdk.py", limits={"model": "the model that answered, not the requested one"}
)
OPENINFERENCE = Sender("OpenInference", "openinference-instrumentation-openai", "openinference_sdk.py")
PYTHON_SENDERS = (
    LANGFUSE,
    Sender("Traceloop (OpenLLMetry)", "traceloop-sdk", "traceloop_sdk.py"),
    Sender("Logfire with PydanticAI", "logfire", "logfire_sdk.py", runs_tools=True),
    Sender("Logfire with OpenAI's client, tool spans of your own", "logfire", "logfire_openai_sdk.py"),
    OPENINFERENCE,
    Sender(
        "OpenTelemetry, tool spans of your own",
        "opentelemetry-instrumentation-openai-v2",
        "opentelemetry_sdk.py",
        limits={"tools": "names; arguments if you set `gen_ai.tool.call.arguments`"},
    ),
    Sender("MLflow, model spans of your own", "mlflow-skinny", "mlflow_sdk.py"),
    Sender("LangSmith", "langsmith", "langsmith_sdk.py"),
)
VERCEL = Sender("Vercel AI SDK", "ai", "vercel_ai_sdk.mjs", runs_tools=True)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Running]:
    with served(tmp_path) as running:
        yield running


def send_turn(
    serving: Running, sender: Sender, command: list[str], folder: Path, langfuse_key: str = "mulligan"
) -> None:
    """Play the turn in a process that sends its traces to the server."""
    server_url = f"http://127.0.0.1:{serving.port}"
    with Provider() as provider:
        provider.usage = {"prompt_tokens": 21, "completion_tokens": 7, "total_tokens": 28}
        bookings = [ASKS_FOR_BOOKING] if sender.runs_tools else []
        provider.script = [ASKS_FOR_WEATHER, *bookings, LIMIT, Wrong()]
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(folder),
            "TURN_MODEL": MODEL, "TURN_PROVIDER_URL": provider.url, "TURN_SESSION": SESSION,
            "OTEL_EXPORTER_OTLP_ENDPOINT": server_url, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "LANGFUSE_BASE_URL": server_url, "LANGFUSE_PUBLIC_KEY": "mulligan", "LANGFUSE_SECRET_KEY": langfuse_key,
            "TRACELOOP_BASE_URL": server_url,
        }  # fmt: skip
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert provider.script == []


def python_command(program: str, *words: str) -> list[str]:
    return [sys.executable, str(SENDERS / program), *words]


def read_runs(serving: Running) -> list[dict[str, Any]]:
    """Return the runs with their attempts, oldest first, as the API has them."""
    person = serving.person()
    ids = [run["id"] for run in person.get("/v1/runs").json["runs"]]
    return [person.get(f"/v1/runs/{id}").json for id in reversed(ids)]


def read_steps(runs: list[dict[str, Any]], type: str) -> list[dict[str, Any]]:
    return [step for run in runs for step in run["steps"] if step.get("type", "tool") == type]


def observe_facts(runs: list[dict[str, Any]]) -> dict[str, bool]:
    """Return which facts of the turn arrived."""
    models, tools = read_steps(runs, "model"), read_steps(runs, "tool")
    answers = [step for step in models if "failure" not in step]
    kinds = {(step["name"], step["failure"]["kind"]) for step in (*models, *tools) if "failure" in step}
    return {
        "run": [(run["agent"], run["end_reason"]) for run in runs] == [(AGENT, "finished")],
        "model": {step["metadata"]["model"] for step in models} == {MODEL},
        "tokens": bool(answers) and all(step.get("tokens") == USAGE for step in answers),
        "tools": [(step["name"], step.get("arguments")) for step in tools]
        == [("weather", {"city": "Bergen"}), ("book", {"flight": "SK4035"})],
        "failures": kinds == {("book", "tool/timeout"), (MODEL, "model/rate_limit")},
        "session": {run["run"]["session"] for run in runs} == {SESSION},
    }


def check_row(serving: Running, sender: Sender) -> None:
    runs = read_runs(serving)
    arrived = observe_facts(runs)
    assert arrived == {fact: fact not in sender.limits for fact in FACTS}, runs
    assert len(read_steps(runs, "model")) == (4 if sender.runs_tools else 3)
    assert [(step["name"], "failure" in step) for step in read_steps(runs, "tool")] == [
        ("weather", False),
        ("book", True),
    ]


@pytest.mark.parametrize("sender", PYTHON_SENDERS, ids=lambda sender: sender.program)
def test_sdk_sends_what_its_row_of_the_table_says(sender: Sender, serving: Running, tmp_path: Path) -> None:
    send_turn(serving, sender, python_command(sender.program), tmp_path)
    check_row(serving, sender)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.skipif(not (NODE_PACKAGES / ".installed").exists(), reason="scripts/otlp_packages installed nothing")
def test_vercel_ai_sdk_sends_what_its_row_of_the_table_says(serving: Running, tmp_path: Path) -> None:
    # Node looks for packages beside the program.
    (tmp_path / "node_modules").symlink_to(NODE_PACKAGES / "node_modules")
    shutil.copy(SENDERS / VERCEL.program, tmp_path)
    send_turn(serving, VERCEL, ["node", str(tmp_path / VERCEL.program)], tmp_path)
    check_row(serving, VERCEL)


def test_calls_without_an_agent_are_runs_that_end(serving: Running, tmp_path: Path) -> None:
    send_turn(serving, OPENINFERENCE, python_command(OPENINFERENCE.program, "lone"), tmp_path)
    runs = read_runs(serving)
    assert [(run["status"], run["end_reason"]) for run in runs] == [
        ("success", "finished"), ("success", "finished"), ("failure", "raised"), ("failure", "raised"),
        ("success", "finished"),
    ]  # fmt: skip
    arrived = observe_facts(runs)
    assert [fact for fact in FACTS if not arrived[fact]] == ["run"]


@pytest.mark.parametrize("role", ["ingest", None])
def test_langfuse_sdk_signs_in_with_a_token_as_its_secret_key(role: str | None, tmp_path: Path) -> None:
    with served(tmp_path, AccessRules(is_local=False)) as serving:
        reader = serving.holding("read")
        secret = serving.holding(role).token if role else "sk-lf-of-another-server"
        send_turn(serving, LANGFUSE, python_command(LANGFUSE.program), tmp_path, secret)
        agents = [run["agent"] for run in reader.get("/v1/runs").json["runs"]]
        assert agents == ([AGENT] if role else [])


def render_table() -> str:
    """Return the table of the page."""
    versions = dict(re.findall(r"^([\w.-]+)==(\S+)$", (Path(__file__).parent / "constraints.txt").read_text(), re.M))
    packages = (ROOT / "scripts" / "otlp_packages").read_text()
    lines = [f"| SDK | {' | '.join(FACTS)} |", "| --- " * (1 + len(FACTS)) + "|"]
    for sender in (*PYTHON_SENDERS, VERCEL):
        match = re.search(rf"(?<=[ (]){re.escape(sender.package)}@(\S+)", packages)
        version = versions.get(sender.package) or (match[1] if match else "")
        cells = [sender.limits.get(fact, "yes") for fact in FACTS]
        lines.append(f"| {sender.title}: `{sender.package}` {version} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def test_table_of_the_page_is_that_of_the_senders(request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text()
    if request.config.getoption("--update-golden"):
        text = TABLE.sub(lambda match: render_table(), text)
        PAGE.write_text(text)
    match = TABLE.search(text)
    assert match is not None
    assert match[0] == render_table(), "pytest -m otlp tests/otlp --update-golden writes the table."
