"""Every endpoint, page and command, asked by one tenant with the ids of another: not found, and nothing of it told.

What there is to ask is asked of the application itself: a route, a method of the store or a command that is added is
asked too, or fails here until somebody says how.
"""

from __future__ import annotations

import http.client
import logging
import re
import time
import types as python_types
from collections.abc import Iterator, Sequence
from typing import Any, Union, get_args, get_origin
from urllib.parse import quote, urlencode

import msgspec
import pytest

pytest.importorskip("jinja2", reason="needs the extra: pip install 'mulligan[server]'")

from servers import Answer, Client, Running, served
from stores import STORES
from two_tenants import CANARY, NUMBER, OURS, Ids, everything, ours, run, theirs

from mulligan.classify.classifier import classify
from mulligan.cli import COMMANDS
from mulligan.contract.store import DEFAULT_TENANT
from mulligan.dashboard.pages import build_routes as pages
from mulligan.mcp.knowledge import TOOLS, InvalidToolCallError, Knowledge
from mulligan.prompt import Prompt
from mulligan.server.app import build_app
from mulligan.server.routes import ROUTE_GROUPS, api_document
from mulligan.store import wire_protocol
from mulligan.store.remote import RemoteStore

NOBODYS = {
    "/healthz", "/readyz", "/openapi.json", "/docs", "/docs.css", "/static/{name}", "/enter/{ticket}", "/sign-in",
    "/sign-out", "/favicon.ico",
}  # fmt: skip
"""What needs no token, and so tells nothing of anybody: held below."""
WORDS = (
    "mute", "resolve", "split", "merge", "approve", "revoke", "disable", "note", "acknowledge", "assign", "link",
    "comment",
)  # fmt: skip
"""What a form of any page may ask to do."""


class World:
    """A server with two tenants, and what is known about the first of them."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.ids = ours(running)
        self.them = theirs(running)
        self.remember()
        self.routes = sorted(
            (method, each.path)
            for each in build_app(running.server, (*ROUTE_GROUPS, pages)).routes
            for method in each.methods - {"HEAD"}
            if each.path not in NOBODYS
        )

    def writer(self, tenant: str) -> Client:
        """Another tenant, who calls its own records by the ids of the first: one for each test, in whatever order."""
        return self.running.holding("admin", tenant=tenant)

    def remember(self) -> None:
        """Remember what the first tenant has. Its lessons are consolidated, or the server would do so later."""
        self.running.store.consolidate(OURS, int(time.time() * 1000))
        self.before = everything(self.running)

    def find_changes(self) -> dict[str, Any]:
        """Return what the first tenant has now, where that is not what it had before."""
        return {name: value for name, value in everything(self.running).items() if value != self.before[name]}


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def world(request, tmp_path_factory) -> Iterator[World]:
    store = STORES[request.param](tmp_path_factory.mktemp("store"))
    with served(tmp_path_factory.mktemp("tenants"), groups=[pages], store=store) as running:
        yield World(running)


def told(answer: Answer, *asked: str) -> str:
    """What an answer says, but for what was asked and for the moment."""
    said = answer.body.decode("utf-8", "replace")
    for text in sorted(asked, key=len, reverse=True):
        for form in (text, quote(text, safe=""), quote(text)):
            said = said.replace(form, "ASKED")
    return said


def is_clean(said: str) -> bool:
    return CANARY not in said.lower() and str(NUMBER) not in said


def test_the_canaries_are_where_they_are_looked_for(world):
    """Or the tests below would find none because there is none."""
    us = world.running.holding("admin", tenant=OURS)
    for path in ("/v1/runs", "/v1/tools?since=all", "/v1/agents?since=all", "/v1/patterns", "/v1/fixes", "/metrics",
                 "/v1/alerts", "/alerts",
                 "/v1/stats?since=all&by=model", "/runs", "/patterns", "/tools", "/agents", "/learned", "/choices",
                 "/models?range=all", "/sessions?range=all",
                 f"/search?q={CANARY}", f"/v1/runs/{world.ids.run}", f"/runs/{world.ids.run}",
                 f"/v1/patterns/{world.ids.pattern}", f"/fixes/{world.ids.fix}"):  # fmt: skip
        answer = us.get(path)
        assert answer.status == 200, path
        assert CANARY in answer.body.decode(), path
    fixes = us.post("/v1/recall", {"fixes": {"tool": world.ids.tool, "now": 1_900_000_000_000}}).body.decode()
    assert str(NUMBER) in fixes


# Questions


def test_every_question_of_the_documentation_has_a_route(world):
    documented = {
        (method.upper(), path) for path, methods in api_document()["paths"].items() for method in methods
        if path not in NOBODYS
    }  # fmt: skip
    assert documented <= {(method, path.replace(":path}", "}")) for method, path in world.routes}


def test_lists_and_figures_tell_nothing_of_another_tenant(world):
    asked = 0
    for method, path in world.routes:
        if method != "GET" or "{" in path or path == "/live/events":
            continue
        for accept in ("application/json", "text/csv", "text/html"):
            answer = world.them.get(path, Accept=accept)
            assert answer.status in (200, 400), path  # figures as a whole have no rows
            assert is_clean(told(answer)), (path, accept)
            asked += 1
    assert asked > 40


def test_a_filter_with_another_tenants_names_finds_what_a_filter_with_nobodys_finds(world):
    """Every parameter that the documentation has, and every field of a page's address, with every id."""
    documented = {
        path: [each["name"] for each in about["get"].get("parameters", ()) if each["in"] == "query"]
        for path, about in api_document()["paths"].items()
        if "get" in about
    }
    fields = (
        "agent",
        "tool",
        "kind",
        "model",
        "environment",
        "version",
        "session",
        "pattern",
        "q",
        "name",
        "into",
        "a",
        "b",
    )
    asked = 0
    for method, path in world.routes:
        if method != "GET" or "{" in path or path == "/live/events":
            continue
        for name in documented.get(path, fields):
            for place in sorted({name} & set(Ids._fields)) or ("run", "tool"):
                real, never = getattr(world.ids, place), getattr(world.ids.never(), place)
                one, other = (world.them.get(f"{path}?{urlencode({name: text})}") for text in (real, never))
                assert one.status == other.status, (path, name, real)
                assert is_clean(told(one, real)), (path, name, real)
                # But for figures, which tell the time too, both say the same.
                said = [re.sub(r"[0-9]+", "0", told(*each)) for each in ((one, real), (other, never))]
                assert said[0] == said[1], (path, name, real)
                asked += 1
    assert asked > 200


def test_an_id_of_another_tenant_is_as_unknown_as_one_that_never_was(world):
    asked = 0
    for method, path in world.routes:
        if method != "GET" or "{" not in path:
            continue
        prefix, _, rest = path.partition("{")
        assert rest.endswith("}"), f"{path}: say how it is asked"
        for real, never in zip(world.ids, world.ids.never(), strict=True):
            for accept in ("application/json", "text/html"):
                one, other = (world.them.get(prefix + quote(text, safe=""), Accept=accept) for text in (real, never))
                assert one.status == other.status == 404, (path, real)
                assert told(one, real) == told(other, never), (path, real)
                assert is_clean(told(one, real))
                asked += 1
    assert asked >= 7 * 8 * 2


def test_the_live_tail_tells_of_ones_own_alone(world):
    stream = http.client.HTTPConnection("127.0.0.1", world.running.port, timeout=60)  # five times a slow poll
    stream.request("GET", "/live/events", headers={"Authorization": f"Bearer {world.them.token}"})
    answer = stream.getresponse()
    assert answer.status == 200
    said = b""
    while b"event: ready" not in said:
        said += answer.readline()
    now = int(time.time() * 1000)
    us = world.running.holding("ingest", tenant=OURS)
    late = [run(f"run_{CANARY}_late", world.ids.tool, world.ids.agent, CANARY, now)]
    assert us.post("/v1/runs", late).status == 200
    own = run("run_theirs_late", "search", "their-agent", "the last of it", now)
    own["steps"] = own["steps"][:1]
    assert world.them.post("/v1/runs", own).status == 200
    while b"run ended" not in said.partition(b"event: ready")[2]:
        said += answer.readline()
    stream.close()

    assert b"run_theirs_late" in said
    assert is_clean(said.decode())
    world.remember()  # it has one run more now


# What changes something


def sample(type: Any, id: str, fills: bool) -> Any:
    """A value of this type, with the id wherever a text may stand."""
    origin = get_origin(type)
    if type is str:
        return id
    if type in (int, float):
        return 5
    if type is bool:
        return True
    if type is bytes:
        return b"x"
    if type is None or type is python_types.NoneType:
        return None
    if origin in (Union, python_types.UnionType):
        return sample(next(each for each in get_args(type) if each is not python_types.NoneType), id, fills)
    if origin is dict:
        return {}
    if origin in (list, tuple, Sequence):
        return [sample(get_args(type)[0], id, fills)]
    if origin is not None and all(isinstance(each, str) for each in get_args(type)):
        return get_args(type)[0]  # one of some words
    assert isinstance(type, python_types.GenericAlias) or issubclass(type, msgspec.Struct), type
    made = {}
    for field in msgspec.structs.fields(type):
        takes_text = (field.type is str or str in get_args(field.type)) and field.name != "order"
        if field.required or (fills and takes_text):
            made[field.name] = sample(field.type, id, fills)
    return type(**made)


@pytest.mark.parametrize("fills", [False, True])
@pytest.mark.parametrize("method", [*wire_protocol.METHODS])
def test_every_method_of_a_store_is_the_callers_own(world, method, fills):
    """As a library asks: without a filter, and with another tenant's id in every field that takes a text."""
    about = wire_protocol.METHODS[method]
    writer = world.writer(f"{method}-{fills}")
    for real, never in zip(world.ids, world.ids.never(), strict=True):
        answers = []
        for text in (real, never):
            sent = [sample(each, text, fills) for each in about.argument_types]
            if method == "forget":
                sent = [
                    msgspec.structs.replace(type(sent[0])(), **{name: text})
                    for name in (("run",) if fills else ("text",))
                ]
            if method == "prune":
                sent = [type(sent[0])(keep_failures=0, keep_successes=0), 1, True]
            answers.append(writer.post(f"/v1/store/{method}", body=wire_protocol.encode_value(sent)))
        one, other = answers
        assert one.status == other.status, (method, real, one.body)
        assert is_clean(told(one, real)), (method, real)
        assert one.status != 500
    assert world.find_changes() == {}


def bodies(ids: Ids, fingerprint: str = "f") -> dict[str, list[Any]]:
    """For every address that something is sent to: what would touch another tenant's records, if it could."""
    now = int(time.time() * 1000)
    step = {"run": ids.run, "seq": 1, "name": ids.tool, "failure": {"message": "no"}}
    span = {"traceId": "ab" * 16, "spanId": "cd" * 8, "name": "x", "startTimeUnixNano": str(now * 10**6),
            "attributes": [{"key": "session.id", "value": {"stringValue": ids.session}}]}  # fmt: skip
    export = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
    return {
        "/v1/runs": [
            run(ids.run, ids.tool, ids.agent, "mine", now),
            {"id": "x", "parent": ids.run, "session": ids.session},
        ],
        "/v1/steps": [step, {**step, "seq": 2, "call": 1}],
        "/v1/failures": [{"run": ids.run, "message": "no"}, {"run": ids.run, "step": 1, "message": "no"}],
        "/v1/batch": [{"client": "c", "journal": "j", "offset": 1, "events": []}],
        "/v1/recall": [
            {"question": {"tool": ids.tool, "fingerprint": fingerprint, "run": ids.run}},
            {"fixes": {"tool": ids.tool, "fingerprint": fingerprint, "text": "k is too small", "agent": ids.agent}},
            {"fixes": {"tool": "search", "now": now, "limit": 100}},
            {"fixes": {"now": now, "limit": 100}},
        ],
        "/v1/outcomes": [{"fix": ids.fix, "run": ids.run, "successful": False}],
        "/v1/export": [{}, {"since": 1}],
        "/v1/forget": [
            {name: id, "confirm": True} for name, id in (("run", ids.run), ("tool", ids.tool), ("session", ids.session))
        ],
        "/v1/patterns": [
            {"ids": [ids.pattern], "action": action, "text": text}
            for action, text in (("mute", ""), ("resolve", ""), ("assign", "me"), ("comment", "mine"))
        ],
        "/v1/alerts": [{}, {"remove_targets": ["pagerduty"]}, {"types": ["person_needed"]}],
        "/v1/alerts/test": [{}],
        "/alerts": [{}],
        "/patterns": [{}],
        "/search": [{}],
        "/v1/prune": [{"keep_failures": 0, "keep_successes": 0, "include_imported": True, "confirm": True}],
        "/v1/revocations": [{"tool": ids.tool}, {"principal": ids.agent}, {"since": 1}],
        "/v1/traces": [export],
        "/api/public/otel/v1/traces": [export],
        "/v1/logs": [{"resourceLogs": []}],
        "/v1/metrics": [{"resourceMetrics": []}],
    }


def test_whatever_is_sent_stays_with_who_sent_it(world):
    fingerprint = world.before["patterns"][0].fingerprint
    sent, nobodys = bodies(world.ids, fingerprint), bodies(world.ids.never(), fingerprint)
    taken = {path for method, path in world.routes if method == "POST" and not path.startswith("/v1/store/")}
    forms = {path for path in taken if "{" in path}
    assert taken - forms == set(sent), "say in `bodies` how a new address is asked with another tenant's ids"

    writer = world.writer("initech")
    for path in sorted(sent):
        for one, other in zip(sent[path], nobodys[path], strict=True):
            found, unknown = writer.post(path, one), writer.post(path, other)
            assert found.status == unknown.status, (path, found.body, unknown.body)
            assert is_clean(told(found, *world.ids)), path
            if found.status == 404:
                assert told(found, *world.ids) == told(unknown, *world.ids.never())
    assert world.find_changes() == {}


def decided(client: Client, path: str, id: str, do: str) -> Answer:
    """What a person says of one thing: in the form of a page, or as JSON."""
    where, said = path.partition("{")[0] + quote(id, safe=""), {"action": do, "into": id, "part": id}
    if path.startswith("/v1/"):
        (takes,) = api_document()["paths"][path.replace(":path}", "}")]["post"]["requestBody"]["content"].values()
        schema = api_document()["components"]["schemas"][takes["schema"]["$ref"].rpartition("/")[2]]
        unused = {"text", "until", "max_per_day"} | ({"note"} if do != "note" else set())
        names = [name for name in schema["properties"] if name not in unused]
        if do == "note" and "note" in names:
            names.remove("into")
        return client.post(where, {name: said.get(name, do) for name in names})
    return client.post(where, body=urlencode(said).encode(), Content_Type="application/x-www-form-urlencoded")


def test_a_decision_is_about_ones_own_alone(world):
    forms = [path for method, path in world.routes if method == "POST" and "{" in path]
    assert len(forms) > 2
    for path in forms:
        statuses = set()
        for real, never in zip(world.ids, world.ids.never(), strict=True):
            for do in WORDS:
                one, other = (decided(world.them, path, text, do) for text in (real, never))
                assert one.status == other.status, (path, do, real)
                assert one.status in (400, 404), (path, do, real)
                assert told(one, real) == told(other, never)
                statuses.add(one.status)
        assert 404 in statuses, f"{path}: say in WORDS what it takes"
    assert world.find_changes() == {}


def test_a_decision_is_possible_where_it_is_ones_own(world):
    """Or the test above would say nothing."""
    us = world.running.holding("admin", tenant=OURS)
    for path, do in ((f"/fixes/{world.ids.fix}", "revoke"), (f"/fixes/{world.ids.fix}", "approve")):
        done = us.post(path, body=f"action={do}".encode(), Content_Type="application/x-www-form-urlencoded")
        assert done.status == 303
    world.remember()


# Nobody and everybody


def test_what_needs_no_token_tells_nothing_of_anybody(world):
    for path in NOBODYS:
        for text in world.ids:
            answer = Client(world.running.port).get(
                path.partition("{")[0] + (quote(text, safe="") if "{" in path else "")
            )
            assert is_clean(told(answer, text)), path


def test_figures_of_the_server_as_a_whole_are_the_operators(world):
    where = world.running.store.health(DEFAULT_TENANT).where.rpartition("/")[2].encode()
    assert "mulligan_server_records" not in world.them.get("/metrics").body.decode()
    assert "mulligan_server_records" in world.running.person().get("/metrics").body.decode()
    for path, body in (("/v1/store/health", b"[]"), ("/v1/store/prune", b"[{},1,true]")):
        assert where not in world.them.post(path, body=body).body
    for client, is_told in ((world.them, False), (world.running.person(), True)):
        page = client.get("/health").body
        assert (b"<dt>Store</dt>" in page) == is_told
        assert is_told or where not in page


def test_the_operators_own_pages_have_nothing_of_tenants_either(world):
    """`local` is a tenant like the others, for whoever looks."""
    person = world.running.person()
    for method, path in world.routes:
        if method == "GET" and "{" not in path and path not in ("/live/events", "/settings"):  # which lists tenants
            assert is_clean(told(person.get(path))), path
    tokens = re.sub(
        rf"{CANARY}-\d", "", told(person.get("/settings")).lower()
    )  # the names of their tokens and principals
    assert is_clean(tokens)


def test_what_is_logged_holds_no_record(world, caplog):
    with caplog.at_level(logging.DEBUG):
        for text in world.ids:
            world.them.get(f"/v1/runs/{quote(text)}")
            world.them.post("/v1/store/run", body=wire_protocol.encode_value([text]))
    assert all(f"{CANARY} said" not in each.getMessage() for each in caplog.records)


# Commands

NOTHING = "asks no store"
BELOW = "is asked below"
OWNER = "is for whoever can open the store itself, and refuses a server"
ASKED: dict[str, str | list[tuple[str, ...]]] = {
    "demo": NOTHING, "scan": NOTHING, "install": NOTHING, "uninstall": NOTHING, "env": NOTHING, "proxy": NOTHING,
    "classify": NOTHING, "redact": NOTHING, "settings": NOTHING, "completion": NOTHING,
    "serve": OWNER, "token": OWNER, "alerts": OWNER, "tenant": OWNER, "backup": OWNER, "copy": OWNER,
    "migrate": OWNER,
    "runs": [("--limit", "100"), ("--agent", "{agent}"), ("--tool", "{tool}"), ("--pattern", "{pattern}"),
             ("--session", "{session}"), ("--json",)],
    "search": [("zanzibar",), ("{run}",), ("{agent}", "--json"), ("tool:{tool}",)],
    "show": [("{run}",), ("{run}", "--json"), ("last",)],
    "tail": NOTHING,
    "reflect": [("{run}",), ("{run}", "--json")],
    "patterns": [(), ("--json",), ("--csv",), ("--text", "zanzibar"), ("show", "{pattern}"), ("similar", "{pattern}"),
                 ("mute", "{pattern}"), ("resolve", "{pattern}"), ("merge", "{pattern}", "{pattern}"),
                 ("--owner", "zanzibar"), ("assign", "{pattern}"), ("comment", "{pattern}", "mine")],
    "fixes": [(), ("--json",), ("--tool", "{tool}"), ("show", "{fix}"), ("approve", "{fix}"), ("revoke", "{fix}"),
              ("revoke", "--tool", "{tool}")],
    "lessons": [(), ("--json",), ("--tool", "{tool}"), ("--text", "zanzibar"), ("show", "{fix}"), ("approve", "{fix}"),
                ("disable", "{fix}"), ("revoke", "{fix}"), ("edit", "{fix}", "--mistake", "m")],
    "consolidate": [(), ("--json",)],
    "prompt": [(), ("--tool", "{tool}"), ("--tool", "{tool}", "--proposed", "--json"), ("--format", "agents-md")],
    "stats": [("--since", "all"), ("--since", "all", "--json"), ("--by", "tool"), ("--by", "agent"),
              ("--tool", "{tool}")],
    "impact": [(), ("--json",), ("--markdown",), ("--agent", "{agent}")],
    "sessions": [(), ("--json",), ("show", "{session}"), ("show", "{note}")],
    "export": [(), ("--run", "{run}")],
    "import": NOTHING,
    "suggest": NOTHING,
    "replay": [(), ("--json",), ("--run", "{run}")],
    "prune": [("--dry-run", "--keep-failures", "0", "--keep-successes", "0")],
    "forget": [("--run", "{run}", "--yes"), ("--tool", "{tool}", "--yes"), ("--session", "{session}", "--yes"),
               ("--text", "zanzibar", "--yes")],
    "doctor": [(), ("--json",)],
    "seed": [("--list", "--json")], "mcp": BELOW,
    "audit": [(), ("--json",), ("--by", "{agent}")],
}  # fmt: skip


def test_every_command_is_in_the_table():
    assert set(ASKED) == set(COMMANDS), "say in ASKED how a new command is asked with another tenant's ids"


@pytest.mark.parametrize("command", [name for name, asked in ASKED.items() if isinstance(asked, list)])
def test_every_command_sees_ones_own_alone(world, types, monkeypatch, command):
    monkeypatch.setenv("MULLIGAN_STORE", f"http://127.0.0.1:{world.running.port}")
    monkeypatch.setenv("MULLIGAN_TOKEN", world.them.token)
    for words in ASKED[command]:
        results = []
        for ids in (world.ids, world.ids.never()):
            facts = ids._asdict()
            code, out, err = types(command, *(each.format(**facts) for each in words))
            said = told(Answer(0, {}, f"{out}\n{err}".encode()), *ids)
            results.append((code, said))
        assert results[0][0] == results[1][0], (command, words, results)
        if words != ("--text", CANARY):
            assert is_clean(results[0][1]), (command, words, results[0][1])
    assert world.find_changes() == {}


@pytest.mark.parametrize("command", [name for name, asked in ASKED.items() if asked == OWNER])
def test_what_is_the_owners_is_not_done_through_a_server(world, types, monkeypatch, tmp_path, command):
    monkeypatch.setenv("MULLIGAN_STORE", f"http://127.0.0.1:{world.running.port}")
    monkeypatch.setenv("MULLIGAN_TOKEN", world.them.token)
    words = {
        "serve": [()],
        "token": [("list",), ("create", "--role", "admin", "--tenant", OURS), ("revoke", "tok_x")],
        "tenant": [
            ("list",),
            ("show", OURS),
            ("set", OURS, "--records", "1"),
            ("remove", OURS, "--yes"),
            ("create", "x"),
        ],
        "alerts": [("list", "--tenant", OURS), ("test", "--tenant", OURS), ("set", "--tenant", OURS, "--no-targets")],
        "migrate": [()],
        "backup": [(str(tmp_path / "copy.db"),)],
        "copy": [(f"http://127.0.0.1:{world.running.port}", str(tmp_path / "copy.db"), "--tenant", OURS)],
    }[command]
    for each in words:
        code, out, err = types(command, *each)
        assert code == 2, (command, each, out, err)
        assert is_clean(out + err.replace(CANARY, ""))
    assert not (tmp_path / "copy.db").exists()
    assert world.find_changes() == {}


def test_an_agent_that_asks_for_one_tenant_is_told_nothing_of_another(world):
    """As `mulligan mcp` answers, with every tool it has."""
    answers = []
    for ids in (world.ids, world.ids.never()):
        store = RemoteStore(f"http://127.0.0.1:{world.running.port}", world.them.token)
        knowledge = Knowledge(
            lambda store=store: store, Prompt(), classify, now=lambda: int(time.time() * 1000), session=ids.session
        )
        asked = {"tool": ids.tool, "error": "k is too small", "fix": ids.fix, "successful": True, "arguments": {"k": 9}}
        for tool in TOOLS.values():
            takes = tool.schema["properties"]
            try:
                said = knowledge.call(tool.name, {name: asked[name] for name in takes if name in asked})
            except InvalidToolCallError as refused:
                said = str(refused)
            answers.append((tool.name, told(Answer(0, {}, said.encode()), *ids)))
        store.close()
    half = len(answers) // 2
    assert half == len(TOOLS)
    assert answers[:half] == answers[half:]
    assert all(is_clean(said) for _, said in answers)
    assert world.find_changes() == {}
