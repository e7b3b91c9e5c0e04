"""What programs read of mulligan, field by field: records, events, commands, the API and the wire of remote stores.

`pytest --update-golden tests/test_golden.py` rewrites tests/golden. Each changed line is a break for somebody's script.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from click.testing import CliRunner, Result
from golden_documents import FOLDER, NOW, compare, fill_store, freeze_time, mask
from session_logs import ClaudeCode, write
from struct_filler import encoded_fields, fill

import mulligan
from mulligan.cli import cli
from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import (
    DEFAULT_TENANT,
    AuditQuery,
    FixQuery,
    ForgetRequest,
    LessonQuery,
    PatternCommand,
    PatternQuery,
    RecallQuery,
    Retention,
    Revocation,
    RunQuery,
    SessionQuery,
)
from mulligan.core import events, records
from mulligan.core.failure import Failure
from mulligan.core.records import Lesson, Record, decode, encode, to_builtins
from mulligan.server import routes
from mulligan.store import wire_protocol
from mulligan.store.sqlite import SqliteStore

pytestmark = pytest.mark.golden

SOURCE = Path(mulligan.__file__).parent
RECORDS = {
    name: struct
    for name, struct in vars(records).items()
    if isinstance(struct, type) and issubclass(struct, Record) and struct is not Record
}
STORED = {
    "Failure": Failure,
    **{
        name: getattr(importlib.import_module(module), name)
        for module, names in {
            "mulligan.learn.fixes": "FixAction FixRecord OperatorDecision",
            "mulligan.learn.lessons": "StoredLesson",
            "mulligan.learn.pattern_decisions": "PatternDecision",
            "mulligan.contract.store": "SeenSchema",
            "mulligan.learn.tracker": "Tracker",
            "mulligan.contract.audit": "AuditEntry",
            "mulligan.store.wire_protocol": "RecallRequest RecallResponse OutcomeReport",
            "mulligan.hooks.agents": "HookState",
            "mulligan.server.tenants": "Tenant Token",
            "mulligan.server.limits": "Usage",
            "mulligan.server.payloads": "RunPayload StepPayload FailurePayload BatchPayload",
            "mulligan.proxy.pins": "Pins",
        }.items()
        for name in names.split()
    },
}
"""What else stands in a store, on the shelf or on the wire."""


@pytest.fixture
def should_update(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="module")
def filled_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store that no test changes."""
    path = tmp_path_factory.mktemp("golden") / "golden.db"
    with pytest.MonkeyPatch.context() as monkeypatch:
        freeze_time(monkeypatch)
        fill_store(path)
    return path


class Ids(NamedTuple):
    """What commands and routes are asked about."""

    run: str
    pattern: str
    fix: str
    lesson: str
    other: str
    """Another pattern."""


def find_ids(path: Path) -> Ids:
    store = SqliteStore(path)
    try:
        (fix,) = store.fixes(DEFAULT_TENANT, FixQuery(now=NOW))
        (lesson,) = store.lessons(DEFAULT_TENANT, LessonQuery(now=NOW))
        patterns = {row.tool: row.id for row in store.patterns(DEFAULT_TENANT, PatternQuery())}
    finally:
        store.close()
    return Ids("run_repaired0", patterns["forecast"], fix.id, lesson.id, patterns["ship"])


# Records and events


@pytest.mark.parametrize("name", [*RECORDS, *STORED])
def test_records_keep_their_fields(name: str, should_update: bool) -> None:
    struct = {**RECORDS, **STORED}[name]
    record = fill(struct)
    document = json.loads(wire_protocol.encode_value(record))
    assert set(document) == encoded_fields(struct), "the filler left a field at its default"
    assert wire_protocol.decode_value(wire_protocol.encode_value(record), struct) == record
    compare(f"records/{name}", document, should_update)


@pytest.mark.parametrize("name", events.EVENTS)
def test_events_keep_their_fields(name: str, should_update: bool) -> None:
    event = fill(events.EVENTS[name])
    assert decode(encode(event), events.AnyEvent) == event  # type: ignore[arg-type]
    compare(f"events/{name}", to_builtins(event), should_update)


# Commands


NOT_COMPARED = {
    "demo": "it times real calls",
    "install proxy": "it edits the settings of a client that must be there",
    "uninstall proxy": "it edits the settings of a client that must be there",
    "tail": "it does not end",
    "install mcp-server": "needs the extra mcp",
    "uninstall mcp-server": "needs the extra mcp",
}
"""Commands with --json that have no golden document, and why."""
FAILED_CALL = {
    "id": 1,
    "tool": "forecast",
    "arguments": {"city": "Rome", "days": "50"},
    "error": "days: not an integer",
}
COMMANDS: dict[str, tuple[str, Any]] = {
    "scan": ("scan {logs}", None),
    "install aider": ("install aider --dry-run", None),
    "install claude-code": ("install claude-code --dry-run", None),
    "install codex": ("install codex --dry-run", None),
    "install copilot": ("install copilot --dry-run", None),
    "install cursor": ("install cursor --dry-run", None),
    "install gemini": ("install gemini --dry-run", None),
    "install opencode": ("install opencode --dry-run", None),
    "install pi": ("install pi --dry-run", None),
    "uninstall aider": ("uninstall aider --dry-run", None),
    "uninstall claude-code": ("uninstall claude-code --dry-run", None),
    "uninstall codex": ("uninstall codex --dry-run", None),
    "uninstall copilot": ("uninstall copilot --dry-run", None),
    "uninstall cursor": ("uninstall cursor --dry-run", None),
    "uninstall gemini": ("uninstall gemini --dry-run", None),
    "uninstall opencode": ("uninstall opencode --dry-run", None),
    "uninstall pi": ("uninstall pi --dry-run", None),
    "proxy accept": ("proxy accept --store {store}", None),
    "runs": ("runs --store {store}", None),
    "search": ("search shop --store {store}", None),
    "show": ("show {run} --store {store}", None),
    "impact": ("impact --since all --store {store}", None),
    "patterns": ("patterns --store {store}", None),
    "patterns similar": ("patterns similar {pattern} --store {store}", None),
    "patterns merge": ("patterns merge {other} {pattern} --store {store}", None),
    "patterns acknowledge": ("patterns acknowledge {pattern} --store {store}", None),
    "patterns assign": ("patterns assign {pattern} --to search-team --store {store}", None),
    "patterns comment": ("patterns comment {pattern} known --store {store}", None),
    "patterns link": ("patterns link {pattern} https://tracker.example.com/42 --store {store}", None),
    "patterns mute": ("patterns mute {pattern} --store {store}", None),
    "patterns note": ("patterns note {pattern} known --store {store}", None),
    "patterns reopen": ("patterns reopen {pattern} --store {store}", None),
    "patterns resolve": ("patterns resolve {pattern} --store {store}", None),
    "patterns show": ("patterns show {pattern} --store {store}", None),
    "patterns split": ("patterns split {pattern} --store {store}", None),
    "patterns unmute": ("patterns unmute {pattern} --store {store}", None),
    "stats": ("stats --since all --store {store}", None),
    "stats by tool": ("stats --since all --by tool --store {store}", None),
    "sessions": ("sessions --store {store}", None),
    "sessions show": ("sessions show session-1 --store {store}", None),
    "fixes": ("fixes --store {store}", None),
    "fixes approve": ("fixes approve {fix} --store {store}", None),
    "fixes revoke": ("fixes revoke {fix} --store {store}", None),
    "fixes show": ("fixes show {fix} --store {store}", None),
    "lessons": ("lessons --store {store}", None),
    "lessons approve": ("lessons approve {lesson} --store {store}", None),
    "lessons disable": ("lessons disable {lesson} --store {store}", None),
    "lessons edit": ("lessons edit {lesson} --mistake Mistake --correction Correction --store {store}", None),
    "lessons export": ("lessons export {folder}/lessons --store {store}", None),
    "lessons import": ("lessons import {folder}/lessons --store {store}", None),
    "lessons revoke": ("lessons revoke {lesson} --store {store}", None),
    "lessons show": ("lessons show {lesson} --store {store}", None),
    "lessons trust": ("lessons trust {folder} --remove --store {store}", None),
    "consolidate": ("consolidate --store {store}", None),
    "seed": ("seed --store {store}", None),
    "prompt": ("prompt --proposed --no-seeds --store {store}", None),
    "classify": ("classify --jsonl", '{"id": 1, "text": "connection refused", "tool": "fetch"}\n'),
    "suggest": ("suggest --store {store}", json.dumps(FAILED_CALL) + "\n"),
    "reflect": ("reflect {run} --using golden_model:ask --store {store}", None),
    "replay": ("replay --store {store}", None),
    "redact": ("redact --report", "mail ann@example.org\n"),
    "token create": ("token create --role read --name reader --store {store}", None),
    "token list": ("token list --store {store}", None),
    "token revoke": ("token revoke {prepared[id]} --store {store}", None),
    "tenant create": ("tenant create ada --note Note --store {store}", None),
    "tenant list": ("tenant list --store {store}", None),
    "tenant remove": ("tenant remove ada --yes --store {store}", None),
    "tenant set": ("tenant set local --keep-failures 90 --store {store}", None),
    "tenant show": ("tenant show local --store {store}", None),
    "alerts list": ("alerts list --store {store}", None),
    "alerts set": ("alerts set --quiet-hours 22:00-07:00 --store {store}", None),
    "alerts test": ("alerts test --store {store}", None),
    "audit": ("audit --store {store}", None),
    "env": ("env --url https://mulligan.example.com --token mul_abcdefgh", None),
    "doctor": ("doctor --store {store}", None),
    "import": ("import {logs} --store {store}", None),
    "export": ("export --store {store} -o {folder}/export.jsonl", None),
    "backup": ("backup {folder}/backup.db --store {store}", None),
    "copy": ("copy {store} {folder}/copy.db", None),
    "migrate": ("migrate --dry-run --store {store}", None),
    "prune": ("prune --keep-failures 0 --keep-successes 0 --store {store}", None),
    "forget": ("forget --run {run} --yes --store {store}", None),
    "settings": ("settings", None),
}
"""By name: what is typed before --json, and what is on stdin."""


REPORTS = ("export", "redact")
"""Commands that write data to stdout, and the report about it to stderr."""
PREPARATIONS = {
    "alerts list": "alerts set --target command:/bin/true --store {store}",
    "alerts test": "alerts set --target command:/bin/true --store {store}",
    "audit": "fixes approve {fix} --store {store}",
    "lessons import": "lessons export {folder}/lessons --store {store}",
    "patterns reopen": "patterns resolve {pattern} --store {store}",
    "patterns split": "patterns merge {other} {pattern} --store {store}",
    "patterns unmute": "patterns mute {pattern} --store {store}",
    "tenant remove": "tenant create ada --store {store}",
    "token list": "token create --role read --name reader --store {store}",
    "token revoke": "token create --role read --name reader --store {store}",
}
"""What is typed before some commands; its output is `prepared`."""
VOLATILE = {"reflect": {"seconds"}, "seed": {"new"}, "prune": {"bytes_before", "bytes_after"}}
"""By command: fields of its output that change for other reasons."""


def commands_with_json(command: click.Command = cli, words: tuple[str, ...] = ()) -> Iterator[str]:
    context = click.Context(command)
    if any("--json" in parameter.opts for parameter in command.params):
        yield " ".join(words)
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        inner = command.get_command(context, name)
        assert inner is not None
        yield from commands_with_json(inner, (*words, name))


def read_output(text: str) -> Any:
    """Return the JSON document, or a list of JSON lines."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


def test_every_command_with_json_has_a_golden_document() -> None:
    names = set(commands_with_json())
    assert sorted(names - set(COMMANDS) - set(NOT_COMPARED)) == []
    assert sorted(set(NOT_COMPARED) - names) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_keep_their_json(
    name: str, filled_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, should_update: bool
) -> None:
    freeze_time(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MULLIGAN_HOLDOUT")
    monkeypatch.setenv("LOGNAME", "ann")
    monkeypatch.setenv("PATH", "")  # `install` names an agent that is not on the machine
    store = Path(shutil.copy(filled_store, tmp_path / "store.db"))
    session = ClaudeCode()
    logs = write(
        tmp_path / "session.jsonl",
        session.user("run the tests"),
        session.call("t1", "Bash", 1, command="make tset"),
        session.result("t1", "make: *** No rule to make target 'tset'.  Stop.", 2, is_error=True),
        session.call("t2", "Bash", 3, command="make test"),
        session.result("t2", "1 passed", 4),
    )
    (tmp_path / "golden_model.py").write_text(
        "def ask(text):\n    return {'arguments': {'city': 'Rome'}, 'reason': 'Reason.', 'confidence': 0.9}\n"
    )
    ids = find_ids(filled_store)
    facts = {**ids._asdict(), "store": store, "folder": tmp_path, "logs": logs}
    if name in PREPARATIONS:
        facts["prepared"] = read_output(type_command(PREPARATIONS[name].format(**facts)).stdout)
    words, given = COMMANDS[name]
    result = type_command(words.format(**facts), given)
    output = read_output(result.stderr if name in REPORTS else result.stdout)
    for field in VOLATILE.get(name, ()):
        output[field] = f"<{field}>"
    assert result.exit_code == 0, result.output
    folders = {
        str(tmp_path): "<folder>", str(Path.home()): "<home>", sys.executable: "<python>", str(SOURCE): "<source>"
    }  # fmt: skip
    document = mask({"code": result.exit_code, "output": output}, folders)
    compare(f"commands/{name.replace(' ', '-')}", document, should_update)


def type_command(words: str, given: str | None = None) -> Result:
    return CliRunner().invoke(cli, [*words.split(), "--json"], input=given)


# The API and the wire


QUERIES = (
    "/healthz", "/readyz", "/v1/runs?since=all", "/v1/runs/{run}", "/v1/stats?since=all", "/v1/stats?since=all&by=tool",
    "/v1/patterns", "/v1/patterns/{pattern}", "/v1/fixes", "/v1/fixes/{fix}", "/v1/lessons", "/v1/lessons/{lesson}",
    "/v1/tools?since=all", "/v1/agents?since=all", "/v1/audit", "/v1/alerts", "/v1/impact?since=all",
    "/v1/search?q=shop",
    "/v1/run-groups?since=all&by=version", "/v1/runs?since=all&limit=2&columns=id,cost_usd",
    "/v1/compare?since=all&by=agent&a=shop&b=weather",
)  # fmt: skip
UNKNOWN = ("/v1/runs/nowhere", "/v1/runs/run_", "/v1/patterns?state=odd", "/v1/nowhere")
"""Requests that are refused: errors are read by programs too."""


def wire_arguments(ids: Ids) -> dict[str, tuple[Any, ...]]:
    """Return what each method is asked with, in the order in which they are asked: those that change come last."""
    lesson = Lesson(id="les_aaaaaaaaaaaa", tool="ship", mistake="Mistake.", correction="Correction.", source="file")
    return {
        "offset": ("remote:none",),
        "journals": (),
        "release": (["remote:none"],),
        "ended_runs": ([ids.run],),
        "put": ("note", "key", b"value"),
        "get": ("note", "key"),
        "compare_and_set": ("note", "key", b"value", b"other"),
        "keys": ("note",),
        "runs": (RunQuery(limit=1),),
        "run": (ids.run,),
        "find": ("run_rep", 2),
        "find_ids": ("patterns", "pat_", 2),
        "runs_by_id": ([ids.run, "run_nowhere"],),
        "health": (),
        "evidence": (ids.fix, 2),
        "value_profiles": ("search", ""),
        "patterns": (PatternQuery(),),
        "pattern": (ids.pattern,),
        "lessons": (LessonQuery(now=NOW),),
        "lesson": (ids.lesson, NOW),
        "stats": (StatsQuery(now=NOW),),
        "sessions": (SessionQuery(),),
        "recall": (RecallQuery(tool="forecast", fingerprint="1:days"),),
        "fixes": (FixQuery(tool="forecast", fingerprint="1:days", now=NOW),),
        "decide": (ids.fix, True, NOW),
        "audit": (AuditQuery(),),
        "update_pattern": (PatternCommand(pattern=ids.pattern, action="mute", at=NOW),),
        "save_lesson": (lesson,),
        "save_lessons": ([lesson],),
        "remove_lessons": ("seed",),
        "decide_lesson": (ids.lesson, "approve", NOW),
        "consolidate": (NOW, None, None),
        "revoke": (Revocation(tool="ship", since=NOW),),
        "prune": (Retention(), NOW, True),
        "preview_forget": (ForgetRequest(run=ids.run),),
        "forget": (ForgetRequest(run=ids.run),),
    }


@pytest.fixture
def golden_server(filled_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from servers import served  # skips, with the reason, where the extra is not installed

    freeze_time(monkeypatch)
    store = SqliteStore(shutil.copy(filled_store, tmp_path / "served.db"))
    with served(tmp_path, store=store, clock=lambda: NOW) as server:
        yield server
    store.close()


def test_query_routes_keep_their_json(
    golden_server: Any, filled_store: Path, tmp_path: Path, should_update: bool
) -> None:
    ids, person = find_ids(filled_store), golden_server.person()
    covered = {route.partition("?")[0].format(id="", **dict.fromkeys(ids._fields, "{id}")) for route in QUERIES}
    assert {query.path for query in routes.query_endpoints()} <= covered
    document = {}
    for route in (*QUERIES, *UNKNOWN):
        answer = person.get(route.format(**ids._asdict()))
        document[route] = {"status": answer.status, "answer": answer.json}
    compare("api/queries", mask(document, {str(tmp_path): "<folder>"}), should_update)


def test_wire_methods_keep_their_json(
    golden_server: Any, filled_store: Path, tmp_path: Path, should_update: bool
) -> None:
    arguments, person = wire_arguments(find_ids(filled_store)), golden_server.person()
    assert set(arguments) == set(wire_protocol.METHODS)
    question = RecallQuery(tool="forecast", fingerprint="1:days")
    query = FixQuery(tool="forecast", fingerprint="1:days", now=NOW)
    requests = {
        "/v1/recall": encode(wire_protocol.RecallRequest(question=question, fixes=query)),
        "/v1/outcomes": encode(wire_protocol.OutcomeReport(fix_id="fix_none", run="run_a", successful=True, at=NOW)),
        **{f"/v1/store/{name}": wire_protocol.encode_value(values) for name, values in arguments.items()},
    }
    document = {}
    for route, body in requests.items():
        answer = person.post(route, body=body, Origin=f"http://127.0.0.1:{person.port}")
        document[route] = {"asked": json.loads(body), "status": answer.status, "answer": answer.json}
    document["/v1/store/prune"]["answer"] = sorted(document["/v1/store/prune"]["answer"])  # sizes of files
    compare("api/wire", mask(document, {str(tmp_path): "<folder>"}), should_update)


def test_openapi_keeps_its_paths_and_schemas(golden_server: Any, should_update: bool) -> None:
    document = golden_server.anybody().get("/openapi.json").json
    fields = {name: sorted(schema.get("properties", {})) for name, schema in document["components"]["schemas"].items()}
    parameters = {
        f"{method} {path}": sorted(parameter["name"] for parameter in operation.get("parameters", ()))
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    compare("api/openapi", {"parameters": parameters, "fields": fields}, should_update)


def test_golden_documents_of_nothing_are_removed() -> None:
    names = {path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.json")}
    current = {f"commands/{name.replace(' ', '-')}" for name in COMMANDS}
    current |= {f"records/{name}" for name in [*RECORDS, *STORED]} | {f"events/{name}" for name in events.EVENTS}
    current |= {"api/queries", "api/wire", "api/openapi"}
    assert sorted(names - current) == []
