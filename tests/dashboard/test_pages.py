"""Pages over real HTTP: what they say, how they are asked, and who may decide. What a browser makes of them is in
tests/browser."""

from __future__ import annotations

import csv
import gzip
import html
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("jinja2", reason="needs the extra: pip install 'mulligan[server]'")

import dashboards
import servers
import taught
from agents_week import fill, histories
from spans import BEGUN, Made, as_json

from mulligan.contract.audit import AuditQuery
from mulligan.contract.counters import HOUR
from mulligan.contract.store import (
    DAY,
    DEFAULT_TENANT,
    FixQuery,
    ForgetRequest,
    LessonQuery,
    PatternQuery,
    RunQuery,
    Store,
)
from mulligan.core.events import RunStarted, StepEnded
from mulligan.core.failure import Failure, Remedy
from mulligan.core.kinds import KINDS
from mulligan.core.records import (
    AvoidedTurn,
    History,
    MessagePart,
    RecordedMessage,
    Recovery,
    Run,
    Step,
    SuspectedFailure,
)
from mulligan.dashboard import formatting, overview_pages, run_pages
from mulligan.report import call_text
from mulligan.server.tenants import Tenant

NOW = dashboards.NOW


@pytest.fixture(scope="module")
def week(tmp_path_factory) -> Iterator[dashboards.Shown]:
    with dashboards.week(tmp_path_factory.mktemp("week")) as shown:
        yield shown


@pytest.fixture(scope="module")
def person(week):
    return week.running.person()


class Handlers(HTMLParser):
    """The attributes of a page that would run something, as a browser reads them."""

    @classmethod
    def of(cls, body: str) -> list[str]:
        read = cls()
        read.found = []
        read.feed(body)
        return read.found

    def handle_starttag(self, tag, attrs):
        self.found += [name for name, _ in attrs if name.startswith("on") or name == "style"]


def words(answer) -> str:
    """What a page says, without its markup."""
    said = re.sub(r"<(script|style|svg)\b.*?</\1>", " ", answer.body.decode(), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", said)).split())


def test_every_page_answers(week, person):
    for name, path in week.pages.items():
        answer = person.get(path)
        assert answer.status == (400 if name == "refused" else 200), name
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "same-origin", "a form would be sent with the origin null"
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        assert "<script>" not in answer.body.decode(), name
        assert Handlers.of(answer.body.decode()) == [], name


def test_figures_on_the_overview_are_those_of_the_api(week, person):
    since = NOW // DAY * DAY - 6 * DAY
    stats = person.get(f"/v1/stats?since={since}&now={NOW}").json
    total = stats["total"]
    said = words(person.get("/"))
    assert total["runs"] == {"success": 58, "recovered": 69, "partial": 4, "failure": 9}
    assert stats["unrecovered_runs"] == 4 + 9
    assert "Unrecovered runs 13 9.3 % of ended runs: 4 partial, 9 failed" in said
    assert f"Recovered runs {total['runs']['recovered']}" in said
    assert f"{total['recovered']} of {total['recovered'] + total['unrecovered']}" in said
    tool_calls, model_calls = count_calls(person, f"since={since}")
    assert tool_calls + model_calls == total["calls"]
    assert re.search(rf"{tool_calls:,} calls of \d+ tools · {model_calls:,} calls of models", said)
    for kind, each in total["kinds"].items():
        assert re.search(rf"{kind.partition('/')[2]} {each['failures']}\b", said), kind
    for status, runs in total["runs"].items():
        assert f"{status} {runs}" in said


def count_calls(person, query: str) -> list[int]:
    """Calls of tools and of models, by the API."""
    asked = (person.get(f"/v1/stats?{query}&now={NOW}&type={type}").json for type in ("tool", "model"))
    return [stats["total"]["calls"] for stats in asked]


@pytest.mark.parametrize(
    ("query", "asked"),
    [("range=24h", "24h"), ("agent=gardener", "agent"), ("tool=find_orders", "tool"), ("version=2.1", "version")],
)
def test_a_narrower_question_has_the_figures_of_the_api_too(week, person, query, asked):
    since = NOW // 3_600_000 * 3_600_000 - 23 * 3_600_000 if asked == "24h" else NOW // DAY * DAY - 6 * DAY
    narrowed = "" if asked == "24h" else f"&{query}"
    total = person.get(f"/v1/stats?since={since}&now={NOW}{narrowed}").json["total"]
    said = words(person.get(f"/?{query}"))
    tool_calls, model_calls = count_calls(person, f"since={since}{narrowed}")
    assert tool_calls + model_calls == total["calls"]
    assert f"{tool_calls:,} calls of " in said
    assert (f"{model_calls:,} calls of models" in said) is bool(model_calls)
    assert f"{total['recovered']:,} of {total['recovered'] + total['unrecovered']:,}" in said


def test_seven_days_are_seven_bars_and_a_day_is_twenty_four(week, person):
    rows = re.findall(r'<tr><th scope="row">([^<]+)</th>', person.get("/").body.decode())
    assert len([row for row in rows if " " not in row]) == 14  # runs by status, and latency, seven each
    hours = re.findall(r'<tr><th scope="row">(\S+ \d\d:00)</th>', person.get("/?range=24h").body.decode())
    assert len(set(hours)) == 24


def test_days_can_be_chosen_and_every_link_keeps_them(week, person):
    answer = person.get("/?from=2026-09-16&to=2026-09-18")
    assert answer.status == 200
    assert "2026-09-16 to 2026-09-18" in words(answer)
    nav = re.findall(r'<a href="([^"]+)" data-key="p"', answer.body.decode())
    assert nav == ["/patterns?from=2026-09-16&amp;to=2026-09-18"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/?range=1y", "Invalid range '1y'. Use 1h, 24h, 7d, 30d, 90d, all, or from and to."),
        ("/?from=yesterday", "Invalid from 'yesterday'. Use a date, for example 2026-01-31"),
        ("/?from=2026-09-18&to=2026-09-16", "from 2026-09-18 is after to 2026-09-16"),
        ("/?from=0001-01-01", "from 1970 on"),
        ("/runs?status=odd", "Invalid status 'odd'. Use one of: success, recovered, partial, failure"),
        ("/runs?cursor=x", "Invalid cursor."),
        ("/tools?page=0", "Invalid page '0'. Use a number from 1."),
        ("/patterns?order=odd", "Invalid order 'odd'. Use one of: unrecovered"),
        ("/runs?by=colour", "Invalid by 'colour'. Use one of: agent, session, user, version"),
        ("/runs?columns=colour", "Invalid column 'colour'. Use some of: status, agent"),
        ("/compare?by=colour", "Invalid by 'colour'. Use one of: version"),
        ("/compare?by=time&a=x", "Invalid a 'x'. Use a period"),
    ],
)
def test_what_cannot_be_asked_says_what_can(person, path, said):
    answer = person.get(path)
    assert answer.status == 400
    assert said in words(answer)


@pytest.mark.parametrize(
    "path",
    [
        "/runs/run_none",
        "/patterns/pat_none",
        "/tools/none",
        "/agents/none",
        "/models/none",
        "/sessions/none",
        "/fixes/none",
    ],
)
def test_what_is_not_there_is_said_to_be_not_there(person, path):
    answer = person.get(path)
    assert answer.status == 404
    assert "Not found" in words(answer)


def test_a_run_shows_its_attempts_what_changed_and_what_the_model_was_told(week, person):
    said = words(person.get(week.pages["run"]))
    assert "limit must be at most 25" in said
    before = re.search(r"limit (\d\d) 25 tool schema", said)
    assert before is not None
    assert f"mulligan: find_orders was called with limit {before[1]} -> 25" in said.replace("\u203a", ">")
    assert "assert played.calls[0].has_succeeded" in said
    assert "Remedy repair the arguments" in said


def test_groups_of_runs_have_the_sums_of_the_api_and_the_same_rows_as_csv(week, person):
    page = person.get("/runs?range=all&by=agent&order=tokens")
    groups = person.get(f"/v1/run-groups?by=agent&order=tokens&since=all&now={NOW}").json
    assert groups["is_cut"] is False
    assert groups["runs"] == sum(group["runs"] for group in groups["groups"])
    said = words(page)
    assert f"Groups of {groups['runs']} runs." in said
    for group in groups["groups"]:
        assert f"{group['agent']} {group['runs']}" in said
    addresses = [
        html.unescape(found) for found in re.findall(r'href="(/v1/run-groups[^"]+format=csv)"', page.body.decode())
    ]
    rows = list(csv.DictReader(person.get(addresses[0]).body.decode().splitlines()))
    assert [row["agent"] for row in rows] == [group["agent"] for group in groups["groups"]]


def test_chosen_columns_are_shown_and_exported(person):
    page = person.get("/runs?columns=agent&columns=cost")
    titles = re.findall(r"<th [^>]*>(?:<a[^>]*>)?([^<]*)", page.body.decode())
    assert titles == ["Run", "Agent", "Cost"]
    (address,) = re.findall(r'href="(/v1/runs[^"]+format=csv)"', page.body.decode())
    exported = person.get(html.unescape(address)).body.decode().splitlines()
    assert exported[0] == "id,agent,cost_usd"
    assert len(exported) > 25  # not only this page


def test_two_runs_are_compared_side_by_side(week, person):
    first, second = week.pages["run"].rpartition("/")[2], week.pages["run-partial"].rpartition("/")[2]
    said = words(person.get(f"/runs/{first}?with={second}"))
    assert "Side by side" in said
    assert f"run {first} {second} differs" in said
    comparison = person.get(f"/v1/runs/{first}?with={second}").json["comparison"]
    assert comparison["facts"][0] == {"name": "run", "first": first, "second": second, "differs": True}
    assert all(not row["differs"] for row in person.get(f"/v1/runs/{first}?with={first}").json["comparison"]["calls"])
    assert "No run has this id" in words(person.get(f"/runs/{first}?with=run_nowhere"))
    assert person.get(f"/v1/runs/{first}?with=run_nowhere").status == 404


def test_no_other_tenant_can_be_grouped_or_compared(week):
    other = week.running.holding("admin", tenant="other")
    run = week.pages["run"].rpartition("/")[2]
    assert other.get("/v1/run-groups?by=agent&since=all").json["groups"] == []
    assert other.get(f"/v1/runs/{run}?with={run}").status == 404


def test_a_run_of_many_calls_is_turned_over(week, person):
    steps = tuple(Step(run="run_long", seq=n, call=n, name=f"tool-{n}", started_at=NOW + n) for n in range(1, 251))
    long = History(
        run=Run(id="run_long", agent="a", started_at=NOW, ended_at=NOW + 300, end_reason="finished"), steps=steps
    )
    fill(week.running.store, [long], journal="long", tenant="elsewhere")
    answer = week.running.holding("read", tenant="elsewhere").get("/runs/run_long?page=3")
    said = words(answer)
    assert "tool-250" in said
    assert "tool-201" in said
    assert "tool-200" not in said
    assert "page 3 of 3" in said


def test_run_page_leads_to_the_first_failure(tmp_path):
    fails = {"outcome": "failure", "failure": Failure.of(KINDS["tool/timeout"], "slow")}
    steps = tuple(
        Step(run="run_far", seq=n, call=n, name="pay", started_at=NOW, **(fails if n == 130 else {}))
        for n in range(1, 151)
    )
    run = Run(id="run_far", started_at=NOW - 5000, ended_at=NOW, end_reason="finished")
    with dashboards.empty(tmp_path, clock=lambda: NOW) as shown:
        fill(shown.running.store, [History(run=run, steps=steps)])
        person = shown.running.person()
        body = person.get("/runs/run_far").body.decode()
        assert 'id="first-failure"' in body  # it opens there
        assert 'id="first-failure"' not in person.get("/runs/run_far?page=1").body.decode()
        assert 'href="/runs/run_far#first-failure"' in person.get("/runs").body.decode()
        link = re.search(r'href="([^"]+)">First failure: call 130<', body)
        path, _, anchor = html.unescape(link[1]).partition("#")
        assert f'id="{anchor}"' in person.get(path).body.decode()


def test_a_run_that_did_not_come_to_its_end_says_so(tmp_path):
    with dashboards.empty(tmp_path, clock=lambda: NOW) as shown:
        run = Run(id="run_cut", agent="shop", started_at=NOW - 5000, ended_at=NOW, end_reason="abandoned")
        fill(shown.running.store, [History(run=run)])
        person = shown.running.person()
        assert "failure, abandoned" in words(person.get("/runs"))
        assert "end: abandoned" in words(person.get("/runs/run_cut"))


def test_suspected_failure_is_shown_in_the_list_in_its_run_and_in_the_figures(tmp_path):
    sentence = "bash: kubectl: command not found"
    suspected = SuspectedFailure(kind="tool/command_not_found", confidence=0.7, sentence=sentence)
    run = Run(id="run_odd", agent="shop", started_at=NOW - 5000, ended_at=NOW, end_reason="finished")
    step = Step(run="run_odd", seq=1, call=1, name="shell", started_at=NOW - 5000, suspected=suspected)
    with dashboards.empty(tmp_path, clock=lambda: NOW) as shown:
        fill(shown.running.store, [History(run=run, steps=(step,))])
        person = shown.running.person()
        listed, page, overview = (words(person.get(path)) for path in ("/runs", "/runs/run_odd", "/"))
    assert "suspected tool/command_not_found in shell" in listed.replace("\u200b", "")  # where a line may break
    assert "1 call in 1 attempt · 1 suspected failure" in page
    assert "suspected failure: tool/command_not_found, confidence 70 %" in page
    assert sentence in page
    assert "Suspected failures 1 counted as successes" in overview


def test_call_that_was_cut_off_is_shown_in_the_list_and_in_its_run(tmp_path):
    run = Run(id="run_cut", agent="shop", started_at=NOW - 5000, ended_at=NOW, end_reason="finished", cut_off=(1,))
    step = Step(run="run_cut", seq=1, call=1, name="fetch", outcome="cancelled", started_at=NOW - 4000)
    with dashboards.empty(tmp_path, clock=lambda: NOW) as shown:
        fill(shown.running.store, [History(run=run, steps=(step,))])
        person = shown.running.person()
        assert "partial" in words(person.get("/runs"))
        assert "fetch cut off" in words(person.get("/runs"))
        page = words(person.get("/runs/run_cut"))
    assert "1 call in 1 attempt · 1 call cut off" in page
    assert "cut off: cancelled while the run went on, and not made again" in page


def test_run_under_way_is_running_and_has_no_status(tmp_path):
    steps = (Step(run="run_open", seq=1, call=1, name="pay", started_at=NOW - 4000),)
    with dashboards.empty(tmp_path, clock=lambda: NOW) as shown:
        fill(shown.running.store, [History(run=Run(id="run_open", agent="shop", started_at=NOW - 5000), steps=steps)])
        person = shown.running.person()
        for path in ("/runs", "/runs/run_open"):
            pills = re.findall(r'<span class="pill [^"]*">([^<]*)</span>', person.get(path).body.decode())
            assert pills == ["running"], path
        said = words(person.get("/"))
        assert "1 run · 1 call of 1 tool · 1 running" in said
        assert "Unrecovered runs 0 all" not in said
        assert "success 0" in said


def test_older_runs_are_announced_and_one_click_shows_them(week, person):
    since = NOW // DAY * DAY - 6 * DAY
    older = person.get(f"/v1/stats?since={since}&now={NOW}").json["older_runs"]
    assert older == 90
    for path in ("/", "/runs?tool=no_such_tool"):
        body = person.get(path).body.decode()
        assert "90 older runs before 2026-09-15. Include" in words(person.get(path)), path
        link = re.search(r'href="([^"]+)">Include older runs', body)
        answer = person.get(html.unescape(link[1]))
        assert answer.status == 200
        assert "older runs before" not in words(answer)
    with_older = person.get(html.unescape(re.search(r'href="(/\?[^"]+)">Include', person.get("/").body.decode())[1]))
    assert "230 runs" in words(with_older)


def test_period_without_data_says_how_many_runs_are_older(tmp_path):
    with dashboards.empty(tmp_path, clock=lambda: NOW) as shown:
        old = [Run(id=f"run_{n}", started_at=NOW - 40 * DAY, ended_at=NOW, end_reason="finished") for n in range(3)]
        fill(shown.running.store, [History(run=run) for run in old])
        person = shown.running.person()
        for path in ("/", "/runs", "/tools", "/agents", "/patterns"):
            said = words(person.get(path))
            assert "No data in this period 3 older runs before" in said, path


def test_costs_of_recovery_and_avoided_costs_stand_beside_each_other(tmp_path):
    usage = {
        "type": "model",
        "started_at": NOW,
        "duration_seconds": 1.0,
        "tokens": {"input": 1000, "cached_input": 600, "output": 100},
    }
    retry, avoided = Recovery(remedy=Remedy.RETRY), AvoidedTurn(model="m", input_tokens=1000, cost_nanos=250_000)
    failed = {"outcome": "failure", "failure": Failure.of(KINDS["tool/timeout"], "slow")}
    run = Run(id="run_paid", agent="shop", started_at=NOW - 5000, ended_at=NOW, end_reason="finished")
    steps = [
        Step(
            run=run.id,
            seq=1,
            call=1,
            name="ask",
            metadata={"model": "m"},
            cost_nanos=7_000_000,
            **usage,
        ),
        Step(run=run.id, seq=2, call=2, name="ask", metadata={"model": "other"}, **usage),
        Step(run=run.id, seq=3, call=3, name="pay", started_at=NOW, **failed),
        Step(run=run.id, seq=4, call=3, attempt=2, name="pay", started_at=NOW, recovery=retry, avoided=avoided),
    ]
    with dashboards.empty(tmp_path, clock=lambda: NOW) as shown:
        fill(shown.running.store, [History(run=run, steps=tuple(steps))])
        person = shown.running.person()
        overview, models, page = (words(person.get(path)) for path in ("/", "/models", "/runs/run_paid"))
    assert "Cost $0.00 of $0.0070, unknown for 1 of 2 attempts" in overview
    assert "Cost avoided $0.00025 at least; 1 model turn, 1,000 input tokens" in overview
    assert re.search(r" too few \(1\) too few \(1\) 1,100 \$0\.0070 .* 1,100 unknown", models)
    assert "tokens: 2,000 input (1,200 cached), 200 output · cost: $0.0070, unknown for 1 of 2 attempts" in page
    assert "cost avoided: 1 model turn" in page


def test_a_cost_of_recovery_without_a_price_is_unknown_and_not_zero(tmp_path):
    usage = {"type": "model", "name": "ask", "started_at": NOW, "tokens": {"input": 1000, "output": 100}}
    failed = {"outcome": "failure", "failure": Failure.of(KINDS["model/unavailable"], "overloaded")}
    run = Run(id="run_paid", agent="shop", session="s", started_at=NOW - 5000, ended_at=NOW, end_reason="finished")
    retry = Recovery(remedy=Remedy.RETRY)
    steps = [
        Step(run=run.id, seq=1, call=1, metadata={"model": "priced"}, cost_nanos=7_000_000, **usage),
        Step(run=run.id, seq=2, call=2, **{**usage, "tokens": None}, **failed),
        Step(run=run.id, seq=3, call=2, attempt=2, metadata={"model": "other"}, recovery=retry, **usage),
    ]
    with dashboards.empty(tmp_path, clock=lambda: NOW) as shown:
        fill(shown.running.store, [History(run=run, steps=tuple(steps))])
        person = shown.running.person()
        overview, page, session = (words(person.get(path)) for path in ("/", "/runs/run_paid", "/sessions/s"))
        links = person.get("/").body.decode()
        summary = person.get("/v1/runs/run_paid").json
        (listed,) = person.get("/v1/runs").json["runs"]
        total = person.get("/v1/stats").json["total"]
    assert "Cost unknown of $0.0070, unknown for 1 of 2 attempts" in overview
    assert "cost: $0.0070, unknown for 1 of 2 attempts · cost of recovery: unknown" in page
    assert "tokens: 2,000 input, 200 output · cost: $0.0070" in session
    for facts in (summary, listed, total):
        assert (facts["tokens"], facts["recovery_tokens"]) == (2200, 1100)
        assert facts["cost_usd"] == pytest.approx(0.007)
        assert facts["recovery_cost_usd"] is None
        assert facts["unpriced_attempts"] == 1
    assert "/tools/ask" not in links  # a model has no page among the tools


def test_the_run_page_names_each_action_of_a_compression_as_show_does(tmp_path):
    run = Run(id="run_long", agent="shop", started_at=NOW - 5000, ended_at=NOW)
    failure = Failure.of(KINDS["model/context_length_exceeded"], "too long")
    actions = [
        {"action": "summarized", "message": 2, "tool": "read<b>", "tokens_before": 1973, "tokens_after": 15},
        {"action": "dropped", "message": 5, "messages": 3, "tokens_before": 900, "tokens_after": 40},
    ]
    facts = {"by": "model", "tokens_before": 12_237, "tokens_after": 7176, "actions": actions}
    steps = (
        Step(run=run.id, seq=1, call=1, type="model", name="chat", outcome="failure", failure=failure),
        Step(
            run=run.id, seq=2, call=1, type="model", attempt=2, name="chat", metadata={"compressed": facts},
            recovery=Recovery(remedy=Remedy.COMPRESS, source="model"),
        ),
    )  # fmt: skip
    with dashboards.empty(tmp_path, clock=lambda: NOW) as shown:
        fill(shown.running.store, [History(run=run, steps=steps)])
        page = words(shown.running.person().get("/runs/run_long"))
    expected = call_text.describe_compression(steps[1])
    assert len(expected) == 3
    assert re.search(rf"conversation compressed [\d.]+ \w+ {re.escape(' '.join(expected))}", page)


def talk(store: Store, session: str = "session/of ada", script: str = "<script>alert(1)</script>") -> None:
    """Two runs of one session: an attempt of the model fails, and the second run sends the conversation again."""
    failure = Failure.of(KINDS["model/timeout"], f"slow {script}")
    for number, id in enumerate(("run_one", "run_two")):
        run = Run(id=id, agent="shop", session=session, started_at=NOW - 5000 + number, ended_at=NOW)
        asked = RecordedMessage(role="user", parts=(MessagePart(text=f"Where is it?\n{script}"),), number=1)
        called = MessagePart(type="call", name=f"find{script}", arguments={"id": script})
        answered = RecordedMessage(role="assistant", parts=(called,), number=2)
        common: dict[str, Any] = {"run": id, "type": "model", "name": "ask", "started_at": NOW - 4000}
        lost = Step(seq=1, call=1, messages=((1, 1),), outcome="failure", failure=failure, **common)
        recovery = Recovery(remedy=Remedy.RETRY, backoff_seconds=2.0)
        won = Step(seq=2, call=1, attempt=2, messages=((1, 1),), answer=2, recovery=recovery, **common)
        events = [RunStarted(run), StepEnded(lost, (asked,)), StepEnded(won, (answered,))]
        store.append(DEFAULT_TENANT, events, f"journal_{id}", 3)


def test_a_session_shows_its_conversation_once_with_failures_and_recoveries_at_their_place(tmp_path):
    with dashboards.empty(tmp_path, clock=lambda: NOW) as shown:
        talk(shown.running.store)
        person = shown.running.person()
        run_page = person.get("/runs/run_one")
        (link,) = set(re.findall(r'href="(/sessions[?/][^"]+)"', run_page.body.decode()))
        answer = person.get(html.unescape(link))
        assert person.get("/sessions/unknown").status == 404
        assert person.get(f"{html.unescape(link)}&page=x").status == 400
    said = words(answer)
    assert "2 runs · 2 messages recorded · 2 failed attempts" in said
    in_order = ("user Where is it", "failure model/timeout in ask : slow", "recovery: retry", "assistant call find")
    assert re.search(".*".join(in_order), said)
    assert said.count("Where is it?") == 1
    assert "Conversation 2 messages recorded" in words(run_page)
    for page in (run_page, answer):
        assert page.status == 200
        assert "<script>alert" not in page.body.decode()
        assert "script-src 'self'" in page.headers["content-security-policy"]
        assert Handlers.of(page.body.decode()) == []


def test_a_long_conversation_has_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(run_pages, "ENTRIES_PER_PAGE", 3)
    with dashboards.empty(tmp_path, clock=lambda: NOW) as shown:
        talk(shown.running.store, "s")
        person = shown.running.person()
        first, second = words(person.get("/sessions/s")), words(person.get("/sessions/s?page=2"))
    assert "page 1 of 2 Later messages" in first
    assert "assistant call find" not in first
    assert "assistant call find" in second


def test_a_run_of_the_api_has_its_messages_for_who_may_read_it(tmp_path):
    with dashboards.empty(tmp_path, clock=lambda: NOW) as shown:
        talk(shown.running.store, script="plain")
        answer = shown.running.holding("read").get("/v1/runs/run_one")
        assert shown.running.anybody().get("/v1/runs/run_one").status == 401
        assert shown.running.holding("ingest").get("/v1/runs/run_one").status == 403
    assert answer.json["messages"] == [
        {"role": "user", "parts": [{"text": "Where is it?\nplain"}], "number": 1},
        {
            "role": "assistant",
            "parts": [{"type": "call", "name": "findplain", "arguments": {"id": "plain"}}],
            "number": 2,
        },
    ]


def test_a_run_shows_class_and_stack_trace_of_an_exception_folded(tmp_path):
    traces = {
        1: "  app/tools.py:42 in search\n  library httpx/_client.py:914 in send",
        2: 'Traceback (most recent call last):\n  File "/srv/pay.py", line 3, in pay\n<script>alert(1)</script>',
    }
    with dashboards.empty(tmp_path, clock=lambda: NOW) as shown:
        run = Run(id="run_cut", agent="shop", started_at=NOW - 5000, ended_at=NOW, end_reason="finished")
        steps = [
            Step(run=run.id, seq=seq, call=seq, name="pay", outcome="failure", started_at=NOW,
                 failure=Failure.of(KINDS["tool/timeout"], "slow", exception="httpx.ReadTimeout", trace=trace))
            for seq, trace in traces.items()
        ]  # fmt: skip
        fill(shown.running.store, [History(run=run, steps=tuple(steps))])
        answer = shown.running.person().get("/runs/run_cut")
    assert "Exception httpx.ReadTimeout" in words(answer)
    page = answer.body.decode()
    folded = re.findall(r"<details><summary>Stack trace</summary><pre>(.*?)</pre></details>", page, re.DOTALL)
    assert folded[0] == f"httpx.ReadTimeout\n{traces[1]}"
    assert "line 3, in pay" in folded[1]
    assert "<script>" not in folded[1]


def test_runs_are_turned_over_without_missing_any(week, person):
    met: list[str] = []
    path = "/runs"
    while path:
        body = person.get(path).body.decode()
        met += re.findall(r'title="(run_[0-9a-f]+)">', body)
        older = re.search(r'href="([^"]+)" rel="next"', body)
        path = html.unescape(older[1]) if older else ""
    expected = [
        h.run.id
        for h in week.running.store.runs(DEFAULT_TENANT, RunQuery(since=NOW // DAY * DAY - 6 * DAY, limit=1000))
    ]
    assert met == expected


def test_a_pattern_is_muted_resolved_merged_and_split_from_its_page(tmp_path):
    with dashboards.week(tmp_path) as week:
        person, store = week.running.person(), week.running.store
        one, other = store.patterns(DEFAULT_TENANT, PatternQuery(tool="find_orders"))[:2]

        def decide(**form: str):
            sent = "&".join(f"{name}={value}" for name, value in form.items()).encode()
            return person.post(
                f"/patterns/{one.id}", body=sent, Content_Type="application/x-www-form-urlencoded",
                Origin=f"http://127.0.0.1:{week.running.port}",
            )  # fmt: skip

        answer = decide(action="mute")
        assert (answer.status, answer.headers["location"]) == (303, f"/patterns/{one.id}")
        assert store.pattern(DEFAULT_TENANT, one.id).state == "muted"
        decide(action="unmute")
        decide(action="resolve")
        assert store.pattern(DEFAULT_TENANT, one.id).state == "resolved"
        decide(action="reopen")
        decide(action="merge", into=other.id)
        assert one.id in store.pattern(DEFAULT_TENANT, other.id).merged
        decide(action="split")
        assert store.pattern(DEFAULT_TENANT, other.id).merged == ()
        decide(action="note", note="Ask+the+shop+team")
        decide(action="mute")
        decide(action="unmute")
        assert store.pattern(DEFAULT_TENANT, one.id).note == "Ask the shop team"
        for path in ("/patterns", f"/patterns/{one.id}"):
            assert "Ask the shop team" in words(person.get(path)), path
        decide(action="note", note="")
        assert store.pattern(DEFAULT_TENANT, one.id).note == ""
        assert decide(action="explode").status == 400
        assert decide(action="merge", into="pat_nowhere").status == 400


def test_patterns_are_assigned_commented_and_decided_together_on_their_pages(tmp_path):
    with dashboards.week(tmp_path) as week:
        person, store = week.running.person(), week.running.store
        one, other = store.patterns(DEFAULT_TENANT, PatternQuery(tool="find_orders"))[:2]

        def send(path: str, **form: str):
            return person.post(
                path, body=urlencode(form).encode(), Content_Type="application/x-www-form-urlencoded",
                Origin=f"http://127.0.0.1:{week.running.port}",
            )  # fmt: skip

        chosen = {f"pick {one.id}": "on", f"pick {other.id}": "on"}
        answer = send("/patterns?range=7d", action="assign", **chosen)
        assert (answer.status, answer.headers["location"]) == (303, "/patterns?range=7d")
        assert [store.pattern(DEFAULT_TENANT, id).owner for id in (one.id, other.id)] == ["dashboard"] * 2
        mine = person.get("/patterns?owner=me").body.decode()
        assert one.id in mine
        assert other.id in mine
        assert send("/patterns", action="assign").status == 400

        comment = '<script>alert(1)</script> @channel <a href="https://evil.example">x</a>'
        send(f"/patterns/{one.id}", action="comment", text=comment)
        send(f"/patterns/{one.id}", action="link", text="https://issues.example.com/42")
        send(f"/patterns/{one.id}", action="resolve", text="99.0")
        send(f"/patterns/{other.id}", action="mute", days="3000", max_per_day="3")
        page = person.get(f"/patterns/{one.id}").body.decode()
        assert 'href="https://issues.example.com/42"' in page
        assert "<script>alert" not in page
        assert 'href="https://evil.example' not in page
        assert "99.0" in words(person.get(f"/patterns/{one.id}"))
        assert store.pattern(DEFAULT_TENANT, other.id).muted_max_per_day == 3
        assert send(f"/patterns/{one.id}", action="link", text="javascript:alert(1)").status == 400
        assert send(f"/patterns/{one.id}", action="mute", max_per_day="x").status == 400


def test_a_fix_is_approved_and_revoked_from_its_page(tmp_path):
    with dashboards.week(tmp_path) as week:
        person, store = week.running.person(), week.running.store

        def state(id: str) -> str:
            return next(fix.state for fix in store.fixes(DEFAULT_TENANT, FixQuery(now=NOW, limit=50)) if fix.id == id)

        fix = next(
            each for each in store.fixes(DEFAULT_TENANT, FixQuery(now=NOW, limit=50)) if each.state == "proposed"
        )
        sent = {"Content_Type": "application/x-www-form-urlencoded"}
        assert person.post(f"/fixes/{fix.id}", body=b"action=approve", **sent).headers["location"] == f"/fixes/{fix.id}"
        assert state(fix.id) == "approved"
        assert person.post(f"/fixes/{fix.id}", body=b"action=revoke", **sent).status == 303
        assert state(fix.id) == "revoked"
        assert person.post("/fixes/fix_nowhere", body=b"action=revoke", **sent).status == 404


FAR, NEAR = (f"{word}, then follow the old road along the river for two more hours" for word in ("north", "south"))


def test_a_fix_says_whether_it_is_applied_and_told_why_not_and_why_its_calls_are_linked(tmp_path):
    rejected = Failure.of(KINDS["tool/invalid_arguments"], "This is not supported.", fingerprint="f-no")
    with dashboards.empty(tmp_path, clock=lambda: NOW) as shown:
        store, person = shown.running.store, shown.running.person()
        others = {"unit": "metric"}
        for tool, before, after in (("top", {"k": 50}, {"k": 10}), ("weather", {"place": FAR}, {"place": NEAR})):
            run = Run(id=f"run_{tool}", agent="a", started_at=NOW - 5000, ended_at=NOW, end_reason="finished")
            common = {"run": run.id, "name": tool, "started_at": NOW - 4000}
            steps = (
                Step(seq=1, call=1, arguments=before | others, outcome="failure", failure=rejected, **common),
                Step(seq=2, call=2, arguments=after | others, **common),
            )
            fill(store, [History(run=run, steps=steps)], journal=tool)
        (top,) = store.fixes(DEFAULT_TENANT, FixQuery(tool="top", now=NOW))
        page = words(person.get(f"/fixes/{top.id}"))
        assert "Applied no: a remembered value needs approval by a person" in page
        assert f"Shown no: {top.hidden_reason}" in page
        assert "the tool's next call in the log" in page
        timeline = words(person.get("/runs/run_top"))
        assert "recovered by call 2 · linked because: the tool's next call in the log" in timeline
        for fix in store.fixes(DEFAULT_TENANT, FixQuery(now=NOW)):
            store.decide(DEFAULT_TENANT, fix.id, approved=True, at=NOW)
        said = {
            fix.tool: words(person.get(f"/fixes/{fix.id}")) for fix in store.fixes(DEFAULT_TENANT, FixQuery(now=NOW))
        }
        assert "approved by a person: applied automatically" in said["top"]
        assert "Applied automatically" in said["top"]
        assert "not applied automatically: the value was specific to one run and is not stored" in said["weather"]
        assert "Applied no: the value was specific to one run and is not stored" in said["weather"]
        listed = person.get("/learned")
        assert "Fixes without a lesson 2 fixes" in words(listed)
        assert listed.body.decode().count("not applied automatically:") == 1


def test_to_look_needs_a_cookie_and_to_decide_more_than_to_read(week, person):
    assert week.running.anybody().get("/").status == 401
    reader = week.running.holding("read")
    assert reader.get("/").status == 200
    assert reader.post("/patterns/pat_1", body=b"action=mute").status == 403
    assert person.post("/patterns/pat_1", body=b"action=mute", Origin="http://elsewhere.example").status == 403


def test_nobody_sees_what_is_of_another_tenant(week):
    other = week.running.holding("admin", tenant="other")
    assert "No runs yet" in words(other.get("/"))
    for name in ("run", "pattern", "tool", "agent", "model", "session", "lesson", "fix"):
        assert other.get(week.pages[name]).status == 404, name
    for name in ("runs", "patterns", "tools", "agents", "models", "sessions", "learned", "live"):
        said = words(other.get(week.pages[name]))
        assert not any(word in said for word in ("find_orders", "planner-large", "chat-", "gardener")), name


def test_what_strangers_wrote_is_text_wherever_it_stands(tmp_path):
    hostile = "<script>alert(1)</script>\"' onload=alert(1) \u202e\x1b[31m {{ 7*7 }} ../.."
    failure = Failure.of(KINDS["tool/timeout"], hostile, fingerprint="f-1")
    with dashboards.empty(tmp_path, clock=lambda: NOW) as shown:
        run = Run(id=hostile, agent=hostile, version=hostile, environment=hostile, context=hostile,
                  started_at=NOW - 5000, ended_at=NOW, end_reason="finished")  # fmt: skip
        step = Step(run=hostile, seq=1, call=1, name=hostile, arguments={hostile: hostile}, started_at=NOW - 4000,
                    outcome="failure", failure=failure)  # fmt: skip
        fill(shown.running.store, [History(run=run, steps=(step,))])
        person = shown.running.person()
        paths = [
            "/",
            "/runs",
            "/patterns",
            "/tools",
            "/agents",
            "/search?q=%3Cscript%3E",
            "/choices",
            "/compare?by=agent",
        ]
        pages = [person.get(path) for path in paths]
        links = {
            html.unescape(link)
            for page in pages
            for link in re.findall(r'href="(/(?:runs|tools|agents|patterns)[/?][^"]+)"', page.body.decode())
        }
        assert any(link.startswith("/tools?name=") for link in links)
        pages += [person.get(link) for link in links]
        for page in pages:
            assert page.status in (200, 404), page.status
            body = page.body.decode()
            assert "<script>alert" not in body
            assert "\x1b" not in body
            assert "\u202e" not in body
            assert Handlers.of(body) == []


def test_nothing_recorded_says_how_to_send_and_asks_again_by_itself(tmp_path):
    with dashboards.empty(tmp_path) as shown:
        person = shown.running.person()
        body = person.get("/").body.decode()
        assert "No runs yet" in body
        assert 'hx-trigger="every 2s"' in body
        fill(shown.running.store, histories(shown.running.server.clock()))
        assert "No runs yet" not in person.get("/").body.decode()


def test_unrecognized_spans_are_shown_by_scope_where_no_run_is_and_on_health(tmp_path):
    with dashboards.empty(tmp_path) as shown:
        span = Made("1" * 32, "2" * 16, "", "GET /users", BEGUN, BEGUN + 1, {"http.request.method": "GET"})
        person, scope = shown.running.person(), "instrumentation.web <script>alert(1)</script>"
        assert "Unrecognized" not in person.get("/health").body.decode()
        for number in range(1, 4):
            shown.running.anybody().post("/v1/traces", as_json([span._replace(trace=f"{number:032x}")], scope=scope))
        assert "none of them describes an agent, a model or a tool" in words(person.get("/"))
        for path in ("/", "/runs", "/health"):
            page = person.get(path)
            assert re.search(r"instrumentation\.web .*alert\(1\).* 3 ", words(page))
            assert "<script>alert" not in page.body.decode()
        fill(shown.running.store, histories(shown.running.server.clock()))
        assert "instrumentation.web" not in words(person.get("/"))
        assert "Unrecognized OpenTelemetry spans" in words(person.get("/health"))


def test_nothing_in_this_time_leads_to_where_there_is_something(week, person):
    answer = person.get("/?from=2026-01-01&to=2026-01-02")
    assert "No data in this period" in words(answer)
    there = re.search(r'<a href="([^"]+)">Show the week of that run', answer.body.decode())
    assert there is not None
    assert "Runs by status" in words(person.get(html.unescape(there[1])))


def test_pages_are_small_and_packed(week, person):
    plain = person.get("/")
    packed = person.get("/", Accept_Encoding="gzip")
    assert gzip.decompress(packed.body) == plain.body
    loaded = len(packed.body) + sum(
        len(person.get(html.unescape(link), Accept_Encoding="gzip").body)
        for link in re.findall(r'(?:src|href)="(/static/[^"]+)"', plain.body.decode())
    )
    assert loaded < 100_000 / 2


def test_what_pages_load_is_kept_by_browsers_and_named_by_its_content(week):
    anybody = week.running.anybody()
    answer = anybody.get("/static/dashboard.css?v=1")
    assert answer.headers["content-type"].startswith("text/css")
    assert "immutable" in answer.headers["cache-control"]
    assert anybody.get("/static/../pages.py").status == 404
    assert anybody.get("/static/htmx.LICENSE").status == 404


def test_the_live_tail_tells_what_happens(week, person):
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", week.running.port, timeout=20)
    connection.request("GET", "/live/events", headers={"Cookie": person.cookie})
    answer = connection.getresponse()
    assert answer.headers["content-type"].startswith("text/event-stream")
    said = b""
    while b"event: ready" not in said:
        said += answer.readline()
    assert b'"look":"lost"' in said
    connection.close()


def test_whoever_compares_without_versions_is_told_how_a_program_sets_one(tmp_path):
    with dashboards.empty(tmp_path) as shown:
        shown.running.anybody().post("/v1/runs", {"id": "r", "agent": "a", "end_reason": "finished"})
        person = shown.running.person()
        for by in ("version", "environment"):
            assert f'set it with mulligan.run("agent", {by}="' in words(person.get(f"/compare?by={by}"))
        assert "Choose a longer period." in words(person.get("/compare?by=agent"))


def test_a_name_that_does_not_fit_is_cut_with_an_ellipsis():
    shown = formatting.line("billing-agent-with-a-name-that-is-longer-than-a-line-of-a-phone", 40)
    assert "cut" not in shown
    assert shown.startswith("billing-agent-w")
    assert "…" in shown


def test_comparing_two_versions_says_what_differs(week, person):
    said = words(person.get("/compare?by=version&a=2.0&b=2.1"))
    assert "first-try success" in said
    assert "No data for 9.9" in words(person.get("/compare?by=version&a=2.0&b=9.9"))


def test_search_finds_runs_patterns_lessons_tools_and_agents(week, person):
    assert "find_orders" in words(person.get("/search?q=find_ord"))
    assert "bookkeeper" in words(person.get("/search?q=BOOK"))
    assert f'href="/lessons/{taught.SEED}"' in person.get("/search?q=PUSH+again").body.decode()
    run = week.running.store.runs(DEFAULT_TENANT, RunQuery(limit=1))[0].run.id
    assert run in words(person.get(f"/search?q={run[:10]}"))
    assert "No results for" in words(person.get("/search?q=zzzz"))


def test_search_shows_where_the_words_of_a_run_are(week, person):
    page = person.get("/search?q=tool:find_orders").body.decode()
    assert "<mark>find_orders</mark>" in page
    assert 'href="/runs/' in page
    assert "Add a word" not in page
    assert "Use one of: success" in words(person.get("/search?q=status:wrong"))
    assert "<script>" not in person.get("/search?q=%3Cscript%3E").body.decode()


def test_a_count_beside_the_hits_adds_its_filter_to_the_search(week, person):
    page = person.get("/search?q=tool:find_orders").body.decode()
    link = re.search(r'href="(/search\?q=[^"]*status%3A(?:failure|success))">', page)
    assert link is not None
    assert "runs match" in words(person.get(html.unescape(link[1])))


def test_a_count_beside_the_hits_is_the_number_of_runs_behind_its_link(week, person):
    sent = [
        {"id": f"facet-{number}", "agent": agent, "end_reason": "finished", "context": "parcel 77"}
        for number, agent in enumerate(("night shift", "night shift", "night shift two", 'the "new" one'))
    ]
    assert person.post("/v1/runs", sent).status == 200
    page = person.get("/search?q=parcel+77").body.decode()
    links = re.findall(r'<a href="(/search[^"]*)">([^<]*)</a> (\d+)', page.partition("<dt>agent</dt>")[2])
    assert {html.unescape(name): count for _, name, count in links} == {
        "night shift": "2", "night shift two": "1", 'the "new" one': "1",
    }  # fmt: skip
    for link, _, count in links:
        assert f"{count} run" in words(person.get(html.unescape(link))), link
    assert "agent: night shift ✕" in words(person.get(html.unescape(links[0][0])))


def test_a_search_states_its_total_and_has_further_pages(week, person, monkeypatch):
    monkeypatch.setattr(overview_pages, "MAX_SHOWN_HITS", 10)
    monkeypatch.setattr("mulligan.report.run_search.MIN_COUNTED_RUNS", 20)
    store = week.running.store
    ids = [history.run.id for history in store.runs(DEFAULT_TENANT, RunQuery(text="agent:receptionist", limit=1000))]
    link, pages = "/search?q=agent:receptionist", []
    assert "More than 40 runs match." in words(person.get(link))
    while link:
        body = person.get(link).body.decode()
        pages.append(re.findall(r'<li><p><a class="said" href="[^"]*" title="([^"]+)"', body))
        more = re.search(r'href="([^"]+)" rel="next"', body)
        link = html.unescape(more[1]) if more else ""
    assert [id for page in pages for id in page] == ids
    assert [len(page) for page in pages[:-1]] == [10] * (len(pages) - 1)
    assert f"{len(ids)} runs match." in words(person.get("/search?q=agent:receptionist")) or len(ids) > 40


def test_a_search_that_finds_nothing_or_is_too_long_says_why(week, person):
    assert "type name:value" in words(person.get("/search?q=nothing%3Dnowhere"))
    assert "without a blank: error:declined" in words(person.get("/search?q=nosuchname:"))
    assert "has 700 characters. Use at most 500" in words(person.get(f"/search?q={'y' * 700}"))
    assert "runs match" in words(person.get("/search?q=status:failure"))


@pytest.mark.parametrize("is_store_slow", [False, True])
def test_a_live_tail_does_not_keep_the_server_from_stopping(tmp_path, monkeypatch, is_store_slow):
    import http.client
    import time

    if is_store_slow:  # then it is asked seldom
        monkeypatch.setattr(overview_pages, "POLL_DELAY_FACTOR", 1_000_000)
    with dashboards.empty(tmp_path) as shown:
        cookie = shown.running.person().cookie
        connection = http.client.HTTPConnection("127.0.0.1", shown.running.port, timeout=20)
        connection.request("GET", "/live/events", headers={"Cookie": cookie})
        answer = connection.getresponse()
        while b"event: ready" not in answer.readline():
            pass
        began = time.monotonic()
    assert time.monotonic() - began < servers.GRACE, "it waited for the tail until its patience was at an end"
    connection.close()


# Lessons


def learned(week):
    return week.running.store.lessons(DEFAULT_TENANT, LessonQuery(source="learned", now=NOW))[0]


def test_a_lesson_shows_its_words_its_evidence_and_whether_it_helped(week, person):
    lesson = learned(week)
    said = words(person.get(f"/lessons/{lesson.id}"))

    for each in (lesson.mistake, lesson.correction, lesson.failing_example, lesson.working_example):
        assert each in said
    assert f"{lesson.successes} of {lesson.trials} runs" in said
    assert (lesson.stats_before.days, lesson.stats_after.days) == (6, 7)
    was, now = (
        lesson.stats_before.occurrences / lesson.stats_before.days,
        lesson.stats_after.occurrences / lesson.stats_after.days,
    )
    assert f"before {lesson.stats_before.days} {lesson.stats_before.occurrences} {was:.1f}" in said
    assert f"after {lesson.stats_after.days} {lesson.stats_after.occurrences} {now:.1f}" in said
    assert f"Since activation the pattern occurs {'less' if now < was else 'more'} often per day" in said
    assert (
        f"in {lesson.helped_runs} of {lesson.helped_runs + lesson.unhelped_runs} runs with this pattern "
        "since activation" in said
    )
    assert "Text shown to models " + lesson.mistake in said
    for each in week.running.store.evidence(DEFAULT_TENANT, lesson.fix_id):
        assert each.run[:16] in said


def test_lessons_are_reached_from_the_navigation_and_from_their_pattern_tool_and_fix(week, person):
    lesson = learned(week)
    link = f'href="/lessons/{lesson.id}"'

    for path in ("/learned", f"/lessons/{lesson.id}", f"/fixes/{lesson.fix_id}"):
        assert '<a href="/learned" data-key="e" aria-current="page">Learned</a>' in person.get(path).body.decode()
    assert f'href="/lessons/{taught.SEED}"' in person.get("/tools/git").body.decode(), "which nobody called here yet"
    for path in ("/learned", f"/patterns/{lesson.pattern}", f"/tools/{lesson.tool}", f"/fixes/{lesson.fix_id}"):
        assert link in person.get(path).body.decode(), path


def test_a_seed_is_marked_as_such_and_has_no_evidence(week, person):
    said = words(person.get(f"/lessons/{taught.SEED}"))

    assert "seed, not seen here" in said
    assert "seed lessons do not count as evidence" in said
    assert "None: this seed lesson ships with mulligan." in said
    assert "git 2.39, run by hand" in said
    assert "seed, not seen here" in words(person.get("/learned?source=seed"))
    assert "seed, not seen here" not in words(person.get("/learned?source=learned"))


def test_lessons_are_listed_by_state_source_tool_and_words(week, person):
    def listed(query):
        return set(re.findall(r'href="/lessons/(les_[0-9a-f]+)"', person.get(f"/learned?{query}").body.decode()))

    everything = listed("")
    assert everything == {taught.SEED, taught.WRITTEN, learned(week).id}
    assert listed("state=proposed") == {taught.SEED, taught.WRITTEN}
    assert listed("state=active") == everything - {taught.SEED, taught.WRITTEN}
    assert listed("tool=git") == listed("text=push") == {taught.SEED}
    assert "No lessons match these filters." in words(person.get("/learned?state=expired"))
    for wrong in ("state=new", "source=web"):
        assert person.get(f"/learned?{wrong}").status == 400
    assert person.get("/lessons/les_nothing").status == 404


def test_a_lesson_is_approved_disabled_and_revoked_by_an_admin_from_our_own_page(tmp_path):
    with dashboards.week(tmp_path) as shown:
        person, store = shown.running.person(), shown.running.store
        home = f"http://127.0.0.1:{shown.running.port}"

        def decide(id, do, client=person, origin=home):
            form = {"Content_Type": "application/x-www-form-urlencoded", "Origin": origin}
            return client("POST", f"/lessons/{id}", body=f"action={do}".encode(), **form)

        def state(id):
            return store.lesson(DEFAULT_TENANT, id, NOW).state

        approved = decide(taught.WRITTEN, "approve")
        assert (approved.status, approved.headers["location"]) == (303, f"/lessons/{taught.WRITTEN}")
        assert state(taught.WRITTEN) == "active"
        assert decide(taught.WRITTEN, "disable").status == 303
        assert state(taught.WRITTEN) == "disabled"
        lesson = store.lessons(DEFAULT_TENANT, LessonQuery(source="learned", now=NOW))[0]
        assert decide(lesson.id, "revoke").status == 303
        assert state(lesson.id) == "disabled"
        assert decide(taught.SEED, "obey").status == 400
        assert decide("les_000000000000", "approve").status == 404
        assert decide(taught.SEED, "approve", origin="https://evil.example").status == 403
        assert decide(taught.SEED, "approve", client=shown.running.anybody()).status == 401
        assert decide(taught.SEED, "approve", client=shown.running.holding("read")).status == 403
        assert state(taught.SEED) == "proposed"


def test_the_tools_page_says_which_arguments_are_most_often_wrong_and_what_whose_description_should_say(person):
    said = words(person.get("/tools"))

    assert "Corrected arguments with a suggested sentence for the tool's description" in said
    assert "find_orders limit out of bounds" in said
    assert "`limit` has bounds; the nearest accepted value was 25." in said
    assert "find_orders customer_id wrong name" in said
    assert "The argument is named `customer`, not `customer_id`." in said


def test_what_a_lesson_says_is_text_whoever_wrote_it(tmp_path):
    evil = '<script>alert(1)</script>"><img src=x onerror=alert(1)>'
    with dashboards.empty(tmp_path) as shown:
        hostile = taught.written(
            tool=evil, mistake=evil, correction=evil, error=evil, failing_example=evil, working_example=evil, kind=evil
        )
        shown.running.store.save_lesson(DEFAULT_TENANT, hostile)
        person = shown.running.person()
        for path in ("/learned", f"/lessons/{taught.WRITTEN}", "/tools?name=%3Cscript%3E"):
            body = person.get(path).body.decode()
            assert "alert(1)</script>" not in body
            assert "<img" not in body
            assert Handlers.of(body) == []


def test_navigation_has_groups_and_a_menu_of_what_the_caller_may_open(week, person):
    nav = re.search(r"<nav.*?</nav>", person.get("/").body.decode(), re.DOTALL)[0]
    groups = [re.findall(r">([A-Z]\w+)</a>", group) for group in re.findall(r'class="group">(.*?)</span>', nav)]
    assert groups == [
        ["Overview", "Patterns", "Runs", "Compare"], ["Tools", "Agents", "Models"], ["Sessions", "Learned", "Live"],
    ]  # fmt: skip
    assert "More Impact Health Alerts Audit Settings" in words(person.get("/"))
    reader = week.running.holding("read")
    assert "More Impact Health" in words(reader.get("/"))
    assert "Settings" not in words(reader.get("/"))
    assert reader.get("/settings").status == reader.get("/audit").status == 403


def test_every_error_page_has_the_navigation_and_says_what_is_wrong(week, person):
    reader = week.running.holding("read")
    for client, path, status, message in (
        (person, "/no-such-page", 404, "Page not found."),
        (person, "/runs/run_none", 404, "No run 'run_none'"),
        (reader, "/settings", 403, "The role read is not sufficient."),
        (person, "/?range=1y", 400, "Invalid range '1y'."),
    ):
        answer = client.get(path, Accept="text/html")
        assert answer.status == status
        assert message in words(answer)
        assert '<a href="/patterns"' in answer.body.decode(), path
    assert week.running.anybody().get("/no-such-page").json["error"] == "not_found"


def test_lists_are_sorted_by_the_columns_of_patterns(week, person):
    for order, field in (
        ("occurrences", "occurrences"),
        ("last_seen", "last_seen_at"),
        ("first_seen", "first_seen_at"),
    ):
        body = person.get(f"/patterns?order={order}&range=all").body.decode()
        ids = re.findall(r'class="said" href="/patterns/(pat_\w+)\?', body)
        values = [getattr(week.running.store.pattern(DEFAULT_TENANT, id), field) for id in ids]
        assert len(ids) > 3
        assert values == sorted(values, reverse=True), order
        assert body.count('aria-sort="descending"') == 1
        assert f'href="/patterns?order={order}&amp;range=all"' in body


def test_runs_are_sorted_by_their_columns_and_filtered_by_a_least_value(person):
    for order, column in (("duration", 4), ("tokens", 5), ("cost", 6), ("attempts", 7), ("tool_failures", 8)):
        body = person.get(f"/runs?order={order}&range=all").body.decode()
        rows = [
            re.findall("<td.*?>(.*?)</td>", row, re.DOTALL) for row in re.findall("<tr><td.*?</tr>", body, re.DOTALL)
        ]
        assert len(rows) > 3
        assert body.count('aria-sort="descending"') == 1
        assert f'href="/runs?order={order}&amp;range=all"' in body
        if order in ("attempts", "tool_failures"):
            values = [int(row[column].replace(",", "") or 0) for row in rows]
            assert values == sorted(values, reverse=True), order
            least = values[len(values) // 2]
            body = person.get(f"/runs?min_{order}={least}&range=all&order={order}").body.decode() if least else ""
            assert body.count("<tr><td") == sum(value >= least for value in values) or not least
    assert "Use a number such as 5 or 0.25" in person.get("/runs?min_cost=much").body.decode()


def test_long_lists_have_pages_and_a_search(week, person, monkeypatch):
    monkeypatch.setattr("mulligan.dashboard.metric_cards.ROWS_PER_PAGE", 2)
    monkeypatch.setattr("mulligan.dashboard.memory_pages.MAX_SHOWN_PATTERNS", 3)
    for path, pattern in (("/tools", r'href="/tools/(\w+)"'), ("/patterns", r'class="said" href="/patterns/(\w+)"')):
        names: list[str] = []
        link = path
        while link:
            body = person.get(link).body.decode().partition("Corrected arguments")[0]
            names += re.findall(pattern, body)
            more = re.search(r'href="([^"]+)" rel="next"', body)
            link = html.unescape(more[1]) if more else ""
        assert len(names) == len(set(names)) > 3, path
    assert "1 tool " in words(person.get("/tools?q=FORE"))
    assert "fetch_forecast" in words(person.get("/tools?q=FORE"))


def test_models_page_counts_calls_of_models_only(week, person):
    parts = person.get(f"/v1/stats?by=model&since={NOW // DAY * DAY - 6 * DAY}&now={NOW}").json["parts"]
    (model,) = [part for part in parts if part["model"] == "planner-large"]
    for path in ("/models", "/models/planner-large"):
        said = words(person.get(path))
        assert f"{model['calls']:,}" in said, path
        assert f"{model['tokens']:,}" in said, path


def test_sessions_are_listed_with_their_runs_and_found_by_agent_and_id(week, person):
    said = words(person.get("/sessions"))
    assert re.search(r"chat-\d+ receptionist 3 ", said)
    assert "chat-" not in words(person.get("/sessions?agent=gardener"))
    assert set(re.findall(r"chat-\d+", words(person.get("/sessions?text=T-15")).partition("Agents")[2])) == {"chat-15"}
    runs = words(person.get("/runs?session=chat-15&range=all"))
    assert re.search(r"run_01\w+ receptionist", runs)
    assert "gardener" not in runs


def test_settings_show_tenants_tokens_quotas_retention_and_alerts_without_secrets(tmp_path):
    targets = {"command": "/usr/bin/notify --key hunter2", "webhook": ""}
    with dashboards.empty(tmp_path, alert_targets=targets) as shown:
        server = shown.running.server
        webhook = "https://hooks.example.com/services/T0/hunter2"
        server.tenants.create(
            Tenant("acme", quotas={"requests": 1000}, retention_days={"keep_failures": 12}, alert_webhook=webhook)
        )
        server.tenants.refresh()
        ours = shown.running.holding("admin", tenant="acme", name="acme-admin")
        said, all_said = words(ours.get("/settings")), words(shown.running.person().get("/settings"))
        assert "Tenant acme Retention Runs with failures 12 days" in said
        assert "Requests 1,000" in said
        assert "webhook at hooks.example.com" in said
        assert "acme-admin" in said
        assert "Tenant local" not in said
        assert "Tenant local" in all_said
        assert "acme-admin" in all_said
        own_said = words(shown.running.holding("admin", name="local-admin").get("/settings"))
        assert "Tenant local" in own_said
        assert "local-admin" in own_said
        assert "acme" not in own_said
        assert "command /usr/bin/notify" in all_said
        assert "hunter2" not in said + all_said


def test_fix_and_lesson_have_one_decision_with_the_change_and_a_confirmation(tmp_path):
    with dashboards.week(tmp_path) as shown:
        person, store = shown.running.person(), shown.running.store
        lesson = store.lessons(DEFAULT_TENANT, LessonQuery(source="learned", now=NOW))[0]
        for path in (f"/lessons/{lesson.id}", f"/fixes/{lesson.fix_id}"):
            body = person.get(path).body.decode()
            form = re.search(r'<form method="post" action="([^"]+)"><p>(.*?)</p><button[^>]*value="revoke"', body)
            assert form[1] == f"/lessons/{lesson.id}", path
            assert form[2] == "The fix is neither applied nor suggested. Its lesson is disabled."
            assert '<td class="was name">' in body, path
        for path in ("/learned", f"/patterns/{lesson.pattern}"):
            assert 'value="approve"' not in person.get(path).body.decode(), path
        person.post(form[1], body=b"action=revoke", Content_Type="application/x-www-form-urlencoded")
        assert store.lesson(DEFAULT_TENANT, lesson.id, NOW).state == "disabled"
        (fix,) = [fix for fix in store.fixes(DEFAULT_TENANT, FixQuery(now=NOW, limit=99)) if fix.id == lesson.fix_id]
        assert fix.state == "revoked"


def test_all_time_starts_at_the_first_run_and_names_the_year(tmp_path):
    with dashboards.empty(tmp_path, clock=lambda: NOW) as shown:
        starts = (NOW - 400 * DAY, NOW - DAY)
        runs = [Run(id=f"run_{at}", started_at=at, ended_at=at + 9, end_reason="finished") for at in starts]
        fill(shown.running.store, [History(run=run) for run in runs])
        body = shown.running.person().get("/?range=all").body.decode()
        assert "all time · 2 runs" in body
        assert 'scope="row">2025-08-' in body
        assert 'class="tick mid"' in body
        assert "older run" not in body


def test_a_run_shows_inputs_and_outputs_and_indents_calls_within_calls(tmp_path):
    steps = (
        Step(
            run="run_deep",
            seq=1,
            call=1,
            name="research",
            arguments={"topic": "roses"},
            result="pruned",
            started_at=NOW,
        ),
        Step(run="run_deep", seq=2, call=2, parent=1, name="search", arguments={"query": "rose care"}, started_at=NOW),
        Step(run="run_deep", seq=3, call=3, parent=2, name="fetch", result={"status": 200}, started_at=NOW),
    )
    run = Run(id="run_deep", started_at=NOW - 5, ended_at=NOW, end_reason="finished")
    with dashboards.empty(tmp_path, clock=lambda: NOW) as shown:
        fill(shown.running.store, [History(run=run, steps=steps)])
        answer = shown.running.person().get("/runs/run_deep")
        said = words(answer)
        assert 'input {"topic":"roses"} → output pruned' in said
        assert "level 2, tool" in said
        assert "level 3, tool" in said
        assert re.findall(r'class="name( depth-\d)?"><span class="quiet">', answer.body.decode()) == [
            "", " depth-1", " depth-2",
        ]  # fmt: skip


def test_the_list_of_models_has_the_failed_tool_calls_that_each_requested(week, person):
    page = person.get(week.pages["models"]).body.decode()
    row = re.search(r"planner-large</a>.*?</tr>", page, re.DOTALL)
    assert row is not None
    assert "Tool failures" in page
    requested = re.search(
        r"(\d+) failed tool calls</?|(\d+) failed tool calls requested", person.get(week.pages["model"]).body.decode()
    )
    assert requested is not None
    assert f">{requested[1] or requested[2]}<" in row[0]


def test_the_impact_page_draws_recovery_by_day_with_a_table(week, person):
    page = person.get(week.pages["impact"]).body.decode()
    for title in ("Recovered calls", "Time to recovery"):
        chart = page.split(f"<h2>{title}")[1].split("</section>")[0]
        assert chart.count("<circle") >= 14
        assert re.search(r"<th scope=\"row\">\d{4}-\d\d-\d\d, \d+ failed calls</th>", chart)


def test_the_overview_starts_with_what_changed_and_links_the_first_run(week, person):
    page = person.get(week.pages["overview"]).body.decode()
    section = page.split("<h2>What changed")[1].split("</section>")[0]
    assert page.index("<h2>What changed") < page.index('class="cards"')
    assert 'class="pill new"' in section
    assert "gardener 2.1" in section
    link = re.search(r'href="(/runs/[^"]+)">first</a>', section)
    assert link is not None
    assert person.get(html.unescape(link[1])).status == 200


def test_a_pattern_is_new_for_48_hours_on_the_overview_and_in_its_tab(tmp_path):
    failure = Failure.of(KINDS["tool/timeout"], "orders.internal timed out", fingerprint="slow")
    with dashboards.empty(tmp_path, clock=lambda: NOW) as shown:
        for at in (NOW - 30 * HOUR, NOW - HOUR):
            run = Run(id=f"run_{at}", started_at=at, ended_at=at + 9, end_reason="finished")
            step = Step(run=run.id, seq=1, call=1, name="pay", outcome="failure", failure=failure, started_at=at)
            fill(shown.running.store, [History(run=run, steps=(step,))])
        person = shown.running.person()
        changes = person.get("/?range=24h").body.decode().split("<h2>What changed")[1].split("</section>")[0]
        assert 'class="pill new"' in changes
        assert "New: first seen in this period, or in the last 48 hours" in words(person.get("/patterns?state=new"))
        for path in ("/patterns?range=24h&state=new", "/patterns?range=all&state=new"):
            assert "/patterns/pat_" in person.get(path).body.decode(), path
        # The state of the API has another meaning: all occurrences within one day.
        assert person.get("/v1/patterns?state=new").json["patterns"] == []
        assert person.get("/v1/patterns").json["patterns"][0]["state"] == "active"


def fill_days(store: Store, yesterday: str, today: str) -> None:
    """60 runs in each of two days. A letter is the end of some: finished or raised."""
    reasons = {"f": "finished", "r": "raised"}
    for name, letters, day in (("yesterday", yesterday, NOW - 26 * HOUR), ("today", today, NOW - 2 * HOUR)):
        runs = [
            Run(id=f"{name}_{number}", started_at=day, ended_at=day + 9, end_reason=reasons[letters[number % 30]])
            for number in range(60)
        ]
        fill(store, [History(run=run) for run in runs], journal=name)


def test_a_worse_figure_that_no_pattern_explains_is_not_called_quiet(tmp_path):
    with dashboards.empty(tmp_path, clock=lambda: NOW) as shown:
        fill_days(shown.running.store, yesterday="f" * 30, today="fr" * 15)
        person = shown.running.person()
        page = person.get("/?range=24h")
        assert "No single pattern explains what is worse: unrecovered runs." in words(page)
        assert "Quiet" not in words(page)
        link = re.search(r'href="([^"]+)">Compare with the period before', page.body.decode())
        assert link is not None
        compared = person.get(html.unescape(link[1]))
        assert compared.status == 200
        assert re.search(r"unrecovered runs 0\S* \S* 50\.0 \S* .*?worse", words(compared))


def test_a_card_is_called_worse_only_if_the_comparison_says_so(tmp_path):
    with dashboards.empty(tmp_path, clock=lambda: NOW) as shown:
        fill_days(shown.running.store, yesterday="f" * 30, today="f" * 29 + "r")
        said = words(shown.running.person().get("/?range=24h"))
        assert "3.3 points" in said
        assert "not significant" in said
        assert "worse" not in said


def test_a_run_states_its_time_to_recovery(week, person):
    assert re.search(r"recovered · time to recovery \d", words(person.get(week.pages["run"])))


def test_comparing_offers_what_there_is_and_says_what_there_is_not(week, person):
    said = words(person.get("/compare?by=version&a=2.1&b=9.9"))
    assert "No data for 9.9 in this period. Choose one of the versions above." in said
    page = person.get("/compare?by=time").body.decode()
    links = re.findall(r'href="([^"]+)">', page.split('aria-label="Periods"')[1].split("</ul>")[0])
    assert "yesterday and today" in page
    assert [person.get(html.unescape(link)).status for link in links] == [200] * len(links)


def test_days_without_a_change_are_quiet(week, person):
    assert "Quiet: no failure pattern is new" in person.get("/?range=24h&tool=find_orders").body.decode()


def test_a_run_page_shows_the_metadata_of_its_run(week, person):
    metadata = {"user": "ada", "tags": ["vip", "beta"]}
    run = {"id": "run-with-user", "agent": "ann", "end_reason": "finished", "metadata": metadata}
    assert person.post("/v1/runs", run).status == 200
    page = words(person.get("/runs/run-with-user"))
    assert 'user ada · tags ["vip","beta"]' in page, page.partition("Timeline")[0][-300:]


def test_a_search_is_saved_listed_opened_removed_and_forgotten(tmp_path):
    with dashboards.week(tmp_path) as shown:
        person = shown.running.person()

        def save(client=person, **fields):
            home = shown.url("/").rstrip("/")
            headers = {"Origin": home, "Content-Type": "application/x-www-form-urlencoded"}
            return client.post("/search", body=urlencode(fields).encode(), **headers)

        query = urlencode({"q": "Hilde Günde -refund", "agent": "receptionist", "range": "30d"})
        page = person.get(f"/search?{query}").body.decode()
        address = html.unescape(re.search(r'name="address" value="([^"]+)"', page)[1])
        saved = save(name="Refused <b>parcels", address=address)
        assert saved.status == 303, words(saved)[:400]
        assert save(name="", address=address).status == 400
        assert save(name="no words", address="/search").status == 400
        body = person.get("/search").body.decode()
        assert "Refused &lt;b&gt;parcels" in body or "Refused \u2039b\u203aparcels" in body
        link = html.unescape(re.search(r'<a href="(/search[^"]+)">Refused', body)[1])
        assert "agent: receptionist" in words(person.get(link))
        assert "Hilde Günde -refund" in words(person.get(link))
        assert save(shown.running.holding("read"), name="mine", address=address).status == 403
        assert "Refused" not in words(shown.running.holding("read", tenant="elsewhere").get("/search"))
        shown.running.store.forget(DEFAULT_TENANT, ForgetRequest(text="Hilde Günde"))
        assert "Refused" not in words(person.get("/search"))
        save(name="again", address="https://example.org/x?q=rose")
        body = person.get("/search").body.decode()
        assert '<a href="/search?q=rose">again</a>' in body
        id = re.search(r'name="remove" value="([^"]+)"', body)[1]
        assert save(remove=id).status == 303
        assert "Saved searches" not in words(person.get("/search"))
        actions = [entry.action for entry in shown.running.store.audit(DEFAULT_TENANT, AuditQuery(action="search."))]
        assert actions == ["search.remove", "search.save", "search.save"]
