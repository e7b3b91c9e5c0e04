"""One definition of unrecovered, recovered, success rate and total failures: every surface is asked about one store."""

from __future__ import annotations

import html
import json
import re

import dashboards
import pytest

from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.events import RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy
from mulligan.core.records import AdvisedFix, Link, Run, Step

NOW = 1_794_700_000_000
FAILURE = {"message": "Read timed out after 3 s"}
RUNS = (
    {"id": "r-success", "steps": [{"name": "search"}]},
    {"id": "r-recovered", "steps": [{"name": "search", "failure": FAILURE}, {"name": "search", "call": 1}]},
    {"id": "r-partial", "steps": [{"name": "fetch"}, {"name": "search", "failure": FAILURE}]},
    {"id": "r-failure", "steps": [{"name": "search", "failure": FAILURE}]},
    {"id": "r-raised", "end_reason": "raised", "steps": [{"name": "search"}]},
    {"id": "r-own", "steps": [{"name": "search"}]},
    {"id": "r-open", "end_reason": None, "steps": [{"name": "search"}]},
)
TIMEOUT, OWN = "tool/timeout", "orchestration/max_retries_exceeded"
STATUSES = {"success": 1, "recovered": 1, "partial": 1, "failure": 3}
CALLS = {"calls": 8, "first_try": 5, "recovered": 1, "unrecovered": 2}
"""Calls of all runs, also of the one that has not ended."""


@pytest.fixture
def asked(tmp_path):
    with dashboards.served(tmp_path, groups=(dashboards.build_routes,), clock=lambda: NOW + 5000) as running:
        send_runs(running.anybody())
        yield running.person()


def send_runs(anybody):
    for run in RUNS:
        record = {"agent": "ann", "started_at": NOW, "end_reason": "finished", **run}
        if record["end_reason"] is None:
            del record["end_reason"]
        else:
            record["ended_at"] = NOW + 1000
        assert anybody.post("/v1/runs", [record]).status == 200
    own_failure = {"run": "r-own", "type": "orchestration", "code": "max_retries_exceeded", "message": "too many turns"}
    assert anybody.post("/v1/failures", [own_failure]).status == 200


def test_every_surface_gives_the_same_figures(asked, types, tmp_path):
    store = ("--store", str(tmp_path / "mulligan.db"))
    api = asked.get("/v1/stats?since=all").json
    api_kinds = asked.get("/v1/stats?since=all&by=kind").json["parts"]
    command = json.loads(types("stats", "--since", "all", "--json", *store)[1])["total"]
    expected = {"total_runs": 7, "total_failures": 3, "unrecovered_runs": 4, "success_rate": 33.33, "runs": STATUSES}
    for total in (api["total"], command):
        assert {name: total[name] for name in expected} == expected
        assert {name: total[name] for name in CALLS} == CALLS
    assert {name: api[name] for name in ("total_runs", "total_failures", "unrecovered_runs", "success_rate")} == {
        name: expected[name] for name in ("total_runs", "total_failures", "unrecovered_runs", "success_rate")
    }

    # By kind, the failure of a run itself counts, too: it is unrecovered, and no call.
    kinds = {
        TIMEOUT: {"failures": 3, "calls": 3, "recovered": 1, "unrecovered": 2},
        OWN: {"failures": 1, "calls": 0, "recovered": 0, "unrecovered": 1},
    }
    for name, counts in kinds.items():
        assert {field: command["kinds"][name][field] for field in counts} == counts
        assert (api["failure_breakdown"][name], api["unrecovered_breakdown"][name]) == (
            counts["failures"],
            counts["unrecovered"],
        )
        [part] = [part for part in api_kinds if part["kind"] == name]
        assert {field: part[field] for field in counts} == counts
    assert "1 of these recovered, 2 unrecovered" in types("stats", "--since", "all", "--kind", TIMEOUT, *store)[1]

    listed = [run["status"] for run in asked.get("/v1/runs?since=all").json["runs"]]
    assert {status: listed.count(status) for status in STATUSES} == STATUSES
    command_runs = [run["status"] for run in json.loads(types("runs", "--json", *store)[1])]
    assert sorted(map(str, command_runs)) == sorted(map(str, listed))

    patterns = asked.get("/v1/patterns?since=all").json["patterns"]
    assert sum(pattern["recovered"] for pattern in patterns) == 1
    assert sum(pattern["unrecovered"] for pattern in patterns) == 3
    assert sum(pattern["occurrences"] for pattern in patterns) == 4

    metrics = dict(
        re.findall(r"^mulligan_(\w+(?:\{[^}]*\})?) (\S+)$", asked.get("/metrics").body.decode(), re.MULTILINE)
    )
    assert {status: float(metrics[f'runs_total{{status="{status}"}}']) for status in STATUSES} == STATUSES
    for name, counts in kinds.items():
        assert float(metrics[f'unrecovered_total{{kind="{name}"}}']) == counts["unrecovered"]
        assert float(metrics[f'failures_total{{kind="{name}"}}']) == counts["failures"]
    outcomes = {name: float(metrics[f'calls_total{{outcome="{name}"}}']) for name in list(CALLS)[1:]}
    assert outcomes == {name: CALLS[name] for name in outcomes}

    page = html.unescape(re.sub(r"<[^>]+>", " ", asked.get("/?range=all").body.decode()))
    page = " ".join(page.split())
    assert "Unrecovered runs 4 66.7" in page
    assert "1 partial, 3 failed" in page


def test_impact_has_a_page_and_a_route_with_the_commands_figures(asked, types, tmp_path):
    store = ("--store", str(tmp_path / "mulligan.db"))
    facts = asked.get("/v1/impact?since=all").json
    assert facts["conclusion"].startswith("Nothing can be compared yet")
    command = json.loads(types("impact", "--since", "all", "--json", *store)[1])
    assert {name: facts[name] for name in ("conclusion", "summary", "incomparable", "runs")} == {
        name: command[name] for name in ("conclusion", "summary", "incomparable", "runs")
    }
    page = asked.get("/impact?range=all")
    assert page.status == 200
    assert "Nothing can be compared yet" in html.unescape(page.body.decode())


def test_impact_page_shows_held_out_cases_with_a_button_for_each_fix(tmp_path):
    failure = Failure.of(Kind("tool", "timeout", Remedy.RETRY, "unknown"), "too slow")
    with dashboards.served(tmp_path, groups=(dashboards.build_routes,), clock=lambda: NOW + 5000) as running:
        for number in range(60):
            advice = (AdvisedFix(1, "fix_1", held_out=number % 2 == 0),)
            run = Run(
                id=f"r-{number}", agent="ann", started_at=NOW, ended_at=NOW + 9, end_reason="finished", advice=advice
            )
            times = {"run": run.id, "name": "search", "started_at": NOW}
            steps = [Step(seq=1, call=1, outcome="failure", failure=failure, links_decided=True, **times)]
            if number % 2:
                steps.append(Step(seq=2, call=2, links=(Link(run.id, 1, 2, "agent"),), **times))
            events = [RunStarted(run), *map(StepEnded, steps), RunEnded(run)]
            running.store.append(DEFAULT_TENANT, events, "journal_a", number + 1)
        page = running.person().get("/impact?range=all").body.decode()
    assert "all time, 60 runs with failures" in page
    assert "Learned fixes help: 100 % of failures recovered with them, 0 % without them" in page
    assert "Learned fixes</th>" in page
    form = page.split('action="/fixes/fix_1')[1].split("</form>")[0]
    assert 'value="revoke">Confirm: disable' in form
