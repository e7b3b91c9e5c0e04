"""A team's server, beyond loopback: a lead who runs it, and a colleague whose program sends to it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from session_logs import otlp, span
from tests.stories.conftest import User

pytest.importorskip("uvicorn", reason="needs the extra: pip install 'mulligan[server]'")
pytestmark = pytest.mark.slow


class Team:
    """A server on all interfaces, in a process of its own, and the tokens for it."""

    def __init__(self, lead: User) -> None:
        self.lead = lead
        self.store = str(lead.folder / "team.db")
        self.admin = self.token("admin")
        self.process: subprocess.Popen[str] | None = None
        self.address = ""
        self.port = "0"

    def token(self, role: str) -> str:
        said = self.lead.types("token", "create", "--role", role, "--store", self.store)
        assert said.returncode == 0, said.stderr
        return re.search(r"mul_\w+", said.stdout)[0]

    def serves(self, *words: str) -> list[str]:
        """Start the server. Return what it prints."""
        options = ("--host", "0.0.0.0", "--port", self.port, "--store", self.store, *words)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mulligan", "serve", *options],
            env=self.lead.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        lines: list[str] = []
        while not lines or not lines[-1].startswith("Daily pruning"):
            lines.append(self.process.stdout.readline())
            assert lines[-1], self.process.stderr.read()
        self.port = re.search(r"port (\d+)", lines[0])[1]
        self.address = f"http://127.0.0.1:{self.port}"
        return lines

    def stops(self) -> str:
        """Stop the server. Return what it wrote to standard error."""
        self.process.terminate()
        return self.process.communicate(timeout=30)[1]

    def page(self, path: str) -> str:
        request = urllib.request.Request(self.address + path, headers={"Authorization": f"Bearer {self.admin}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.read().decode()))


@pytest.fixture
def team(user: User) -> Iterator[Team]:
    team = Team(user)
    yield team
    if team.process is not None and team.process.poll() is None:
        team.process.kill()
        team.process.communicate(timeout=30)


@pytest.fixture
def colleague(tmp_path: Path) -> User:
    folder = tmp_path / "colleague"
    folder.mkdir()
    return User(folder)


def joins(colleague: User, team: Team, role: str = "ingest") -> None:
    colleague.environment |= {"MULLIGAN_STORE": team.address, "MULLIGAN_TOKEN": team.token(role)}


LOOP = """
    import mulligan


    @mulligan.tool(effects="none")
    def list_orders(customer: str, {name}: {type}) -> str:
        if {name} != {right}:
            raise ValueError("This page size is not supported.")
        return f"25 orders of {{customer}}"


    for customer in ("ann", "ben", "eve"):
        with mulligan.run("support-agent"):
            for turn in mulligan.turns(limit=2):
                value = [{wrong}, {right}][turn.number - 1]
                outcome = turn.call([list_orders], "list_orders", {{"customer": customer, "{name}": value}})
                if not outcome.ok:
                    print(outcome.notes)
        mulligan.flush()
"""


def test_a_teams_memory_suggests_a_page_size_as_a_local_one_does(team, colleague):
    team.serves()
    joins(colleague, team)
    program = LOOP.format(name="per_page", type="int", wrong=100, right=25)

    ran = [colleague.runs_program(program) for _ in range(2)]

    assert "per_page=25" in ran[1].stdout.splitlines()[-1], [each.stdout + each.stderr for each in ran]


def test_a_value_that_level_shared_hides_is_said_to_be_hidden_and_how_it_is_allowed(team, colleague):
    said = team.serves()
    joins(colleague, team)
    program = LOOP.format(name="sort", type="str", wrong="'newest'", right="'date'")
    allow = "mulligan tenant set local --unredacted-arguments +sort"

    notes = [colleague.runs_program(program).stdout for _ in range(3)]

    assert "date" not in notes[-1]
    assert any("hidden values are never suggested" in line and "--unredacted-arguments +NAME" in line for line in said)
    [fix] = team.lead.sees("fixes", "--store", team.store)
    shown = team.lead.types("fixes", "show", fix["id"], "--store", team.store).stdout
    for text in (shown, team.page(f"/fixes/{fix['id']}")):
        assert "no: the value of sort is hidden at redaction level shared" in text
        assert "specific to" not in text
        assert allow in text
    assert allow in team.page("/tools")
    assert "differs per call" not in team.page("/tools")

    assert team.lead.types(*allow.split()[1:], "--store", team.store).returncode == 0
    notes = [colleague.runs_program(program).stdout for _ in range(3)]

    assert "sort=date" in notes[-1] or 'sort="date"' in notes[-1], notes


FAILING = """
    import mulligan


    @mulligan.tool
    def pay(invoice: str) -> str:
        raise PermissionError("not yours")


    try:
        pay("i-1")
    except PermissionError as error:
        print(*getattr(error, "__notes__", ["not recorded"]))
"""


def test_a_colleague_with_a_token_that_only_sends_can_test_the_connection(team, colleague):
    team.serves()
    joins(colleague, team)

    note = colleague.runs_program(FAILING).stdout
    doctor = colleague.types("doctor")
    facts = json.loads(colleague.types("doctor", "--json").stdout)
    denied = colleague.types("runs")

    assert f"Details: {team.address}/runs/run_" in note
    assert (doctor.returncode, doctor.stdout.splitlines()[0]) == (0, "Healthy."), doctor.stdout
    assert facts["server"]["send_denial"] == ""
    assert "role ingest is not sufficient" in facts["server"]["query_denial"]
    assert abs(facts["server"]["clock_difference"]) <= 2
    assert "role read" in denied.stderr


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"MULLIGAN_TOKEN": "mul_ingest_wrong"}, "denied access: Unknown token"),
        ({"MULLIGAN_STORE": "https://127.0.0.1:{port}"}, "speaks plain http. Set MULLIGAN_STORE to http://127.0.0.1:"),
        ({"MULLIGAN_STORE": "http://127.0.0.1:1"}, "Is `mulligan serve` running there?"),
        ({"MULLIGAN_STORE": "127.0.0.1:{port}"}, "Did you mean http://127.0.0.1:{port}?"),
    ],
)
def test_a_connection_that_cannot_work_is_told_by_doctor_and_once_by_the_program(team, colleague, environment, told):
    team.serves()
    joins(colleague, team)
    colleague.environment |= {name: text.format(port=team.port) for name, text in environment.items()}
    told = told.format(port=team.port)

    ran = colleague.runs_program(FAILING)
    doctor = colleague.types("doctor")

    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count(told) == 1, ran.stderr
    assert all(line.startswith("mulligan: ") for line in ran.stderr.splitlines()), ran.stderr
    assert doctor.returncode in (1, 2)
    assert told in doctor.stdout + doctor.stderr
    assert not [path for path in colleague.folder.iterdir() if path.name not in ("home", "agent.py")]


def test_records_for_a_wrong_address_are_found_and_sent_to_the_right_one(team, colleague):
    team.serves()
    joins(colleague, team)
    colleague.runs_program(FAILING, MULLIGAN_STORE="http://127.0.0.1:1")

    problem, *_ = colleague.types("doctor").stdout.splitlines()
    command = re.search(r"for http://127\.0\.0\.1:1 not sent yet\. Send to \S+: mulligan (doctor --send \S+)", problem)
    sent = colleague.types(*command[1].split())

    assert re.match(r"Sent \d+ records to ", sent.stderr), sent.stderr
    assert sent.stdout.startswith("Healthy."), sent.stdout
    assert "pay" in team.page("/tools")


def test_a_program_says_when_its_server_is_away_and_when_it_is_back(team, colleague):
    team.serves()
    joins(colleague, team)
    team.stops()
    ready = colleague.folder / "ready"
    waits = f"""
    import pathlib, time
    pathlib.Path({str(ready)!r}).touch()
    for _ in range(600):
        time.sleep(0.1)
        if mulligan.flush(0.5):
            break
    """
    program = colleague.folder / "waits.py"
    program.write_text(textwrap.dedent(FAILING) + textwrap.dedent(waits))
    process = subprocess.Popen(
        [sys.executable, str(program)],
        env=colleague.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not ready.exists():
        assert process.poll() is None
    team.serves()
    said = process.communicate(timeout=60)[1]

    assert re.fullmatch(
        r"mulligan: Store unavailable, recording queued: .*\n"
        r"mulligan: Store available again, queued records are being stored\.\n",
        said,
    )


def test_the_operator_is_told_of_clients_that_are_rejected(team, colleague):
    said = team.serves("--log")
    joins(colleague, team)
    colleague.runs_program(FAILING)
    colleague.runs_program(FAILING, MULLIGAN_TOKEN="mul_ingest_wrong")
    colleague.runs_program(FAILING, MULLIGAN_STORE=team.address.replace("http", "https"))
    for headers in ({"Host": "elsewhere.example.com"}, {"Accept": "text/html"}):
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(urllib.request.Request(team.address, headers=headers), timeout=30)

    health, metrics = team.page("/health"), team.page("/metrics")
    lines = team.stops().splitlines()

    assert any(line.startswith("Plain HTTP: tokens and records cross the network unencrypted.") for line in said)
    warnings = [line.partition("WARNING mulligan.server.access ")[2] for line in lines if " WARNING " in line]
    assert all(re.match(r"20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d", line) for line in lines), lines
    assert sorted(warning.partition(" (")[0] for warning in warnings) == [
        "Rejected request from 127.0.0.1: 401 no valid token",
        "Rejected request from 127.0.0.1: 421 host name not allowed",
        "Rejected request from 127.0.0.1: TLS on the plain HTTP port",
    ]
    for reason in ("401 no valid token", "421 host name not allowed", "TLS on the plain HTTP port"):
        assert f"{reason} " in health
        assert f'mulligan_rejected_requests_total{{reason="{reason}"}} ' in metrics
    token = colleague.environment["MULLIGAN_TOKEN"]
    assert any("path=/v1/batch status=200" in line and " client=127.0.0.1 token=" in line for line in lines)
    assert not any(token in line for line in lines)


def test_whoever_is_signed_out_gets_the_form_to_sign_in_and_headers_that_a_browser_heeds(team):
    team.serves()
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(team.address, headers={"Accept": "text/html"}), timeout=30)
    page = refused.value.read().decode()
    assert refused.value.code == 401
    assert 'name="token"' in page
    assert "`" not in page
    assert "that <code>mulligan serve</code> printed" not in page  # a colleague elsewhere does not see it

    def headers(host: str, **more: str) -> dict[str, str]:
        asked = urllib.request.Request(f"{team.address}/favicon.ico", headers={"Host": host, **more})
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return {name.lower(): value for name, value in answer.headers.items()}

    assert headers("127.0.0.1")["content-type"] == "image/svg+xml"
    assert "cross-origin-opener-policy" in headers("127.0.0.1")
    assert "cross-origin-opener-policy" not in headers("192.0.2.7")
    assert "cross-origin-opener-policy" in headers("192.0.2.7", **{"X-Forwarded-Proto": "https"})


def test_a_trace_that_is_sent_again_after_a_restart_adds_nothing_and_shows_its_marks(team):
    team.serves()
    tool = {"gen_ai__operation__name": "execute_tool", "gen_ai__tool__name": "search"}
    trace, root, parts = (
        "5b8efff798038103d269b633813fc60c",
        "eee19b7ec3c1b174",
        ("aaa19b7ec3c1b174", "bbb19b7ec3c1b174"),
    )
    spans = [span(trace, id, root, "search", number, number + 0.5, **tool) for number, id in enumerate(parts)]
    body = json.dumps(otlp(*spans, span(trace, root, None, "agent", 0, 3))).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {team.admin}"}

    for _ in range(2):
        urllib.request.urlopen(urllib.request.Request(f"{team.address}/v1/traces", body, headers), timeout=30).close()
        team.stops()
        team.serves()

    history = team.lead.sees("show", "last", "--store", team.store)
    shown = team.lead.types("show", "last", "--store", team.store).stdout
    assert len(history["steps"]) == 2
    assert "session" not in history["run"]
    assert "[str" not in shown, shown
