"""What is asked is answered from the same sums as the command's, page by page, as JSON, CSV and Prometheus text."""

from __future__ import annotations

import csv
import io
import itertools
import json
import random
from urllib.parse import quote

import pytest

from mulligan.contract import counters
from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import DEFAULT_TENANT, PatternCommand
from mulligan.core.records import Lesson
from mulligan.report import overview

NOW = 1_794_700_000_000
HOUR = 3_600_000
SAYS = ["Read timed out after 3 s", "429 Too Many Requests", "k must be 10 or less", "no such file: a.txt"]


def runs(count=60, seed=5):
    chance = random.Random(seed)
    for number in range(count):
        started = NOW - chance.randrange(20 * 24) * HOUR
        steps = []
        for call in range(chance.randint(1, 3)):
            tool, first = chance.choice(["search", "fetch", "=cmd|calc"]), len(steps) + 1
            if chance.random() < 0.4:
                steps.append(
                    {"name": tool, "failure": {"message": chance.choice(SAYS)}, "duration_seconds": chance.random()}
                )
                if chance.random() < 0.6:
                    steps.append({"name": tool, "call": first, "duration_seconds": chance.random()})
            else:
                steps.append({"name": tool, "duration_seconds": chance.random()})
            if call == 2 and chance.random() < 0.5:
                steps.append({"name": "small-1", "type": "model", "duration_seconds": 0.2, "tokens": {"input": 9}})
        yield {
            "id": f"r-{number:03}", "agent": chance.choice(["ann", "bob"]), "version": chance.choice(["1", "2"]),
            "environment": chance.choice(["prod", None]), "started_at": started,
            "ended_at": started + 1000, "steps": steps, "end_reason": chance.choice(["finished"] * 5 + ["raised"]),
        }  # fmt: skip


def has_failed(run):
    """Whether a run raised, or no call of it succeeded in the end."""
    return run["end_reason"] == "raised" or all("failure" in step for step in run["steps"])


ASKED = (
    "since=all", "since=7d", "since=48h", "since=all&agent=ann", "since=30d&tool=search", "since=7d&by=tool",
    "since=all&by=kind", "since=all&by=agent", "since=all&by=version", "since=all&by=environment", "since=all&by=model",
    "since=all&kind=tool/timeout", "since=30d&by=time", "since=all&by=attempt",
)  # fmt: skip


@pytest.fixture
def filled(serving, anybody):
    assert anybody.post("/v1/runs", list(runs())).status == 200
    return serving


def test_the_figures_are_those_of_the_command_and_of_counting_every_run_anew(filled, types, tmp_path):
    person, histories = filled.person(), list(filled.store.export(DEFAULT_TENANT))
    for asked in ASKED:
        told = person.get(f"/v1/stats?now={NOW}&{asked}").json
        fields = dict(each.split("=") for each in asked.split("&"))
        past = {"all": None, "7d": 7 * 24, "48h": 48, "30d": 30 * 24}[fields.pop("since")]
        query = StatsQuery(now=NOW, since=None if past is None else NOW - past * HOUR, **fields)
        counted = json.loads(json.dumps(overview.build_answer(counters.stats(histories, query))))
        for part in told.get("parts", ()):
            part.pop("tool_failures", None)  # counted from the episodes of runs, not from counters
        told["total"].pop("model_recovery_tokens", None)
        assert {name: told[name] for name in counted} == counted, asked
    words = ("stats", "--since", "all", "--store", str(tmp_path / "mulligan.db"), "--json")
    command = json.loads(types(*words)[1])
    del command["undeclared_kinds"]  # which kinds are declared, only this machine knows
    told = person.get("/v1/stats?since=all").json
    assert {name: told[name] for name in command} == command


def test_totals_have_the_names_and_meanings_that_were_promised(filled):
    told = filled.person().get(f"/v1/stats?since=all&now={NOW}").json
    sent = list(runs())
    failures = sum(map(has_failed, sent))
    assert failures > sum(run["end_reason"] == "raised" for run in sent)
    assert told["total_runs"] == 60
    assert told["total_failures"] == failures
    partial = told["total"]["runs"]["partial"]
    assert partial > 0
    assert told["unrecovered_runs"] == failures + partial
    assert told["success_rate"] == round((60 - failures - partial) / 60 * 100, 2)
    said = [step["failure"]["message"] for run in sent for step in run["steps"] if "failure" in step]
    assert told["failure_breakdown"]["tool/timeout"] == said.count(SAYS[0])
    assert sum(told["failure_breakdown"].values()) == len(said)
    assert sum(told["unrecovered_breakdown"].values()) == told["total"]["unrecovered"]
    assert sum(each["calls"] for each in told["series"]) == told["total"]["calls"]
    assert told["most_failing_step"]["unrecovered"] > 0
    assert isinstance(told["advice"], list)
    assert told["total"]["by_attempt"][0]["attempt"] == 1
    assert "p95" in told["total"]["latency_seconds"]
    assert "seconds_before" in told["total"]["kinds"]["tool/timeout"]


def test_run_under_way_has_no_status_and_no_share_in_rates(filled):
    person = filled.person()
    before = person.get(f"/v1/stats?since=all&now={NOW}").json
    failed = {"name": "search", "failure": {"message": SAYS[0]}}
    assert person.post("/v1/runs", [{"id": "r-open", "started_at": NOW - HOUR, "steps": [failed]}]).status == 200
    run = person.get("/v1/runs/r-open").json
    assert (run["status"], run["end_reason"]) == (None, None)
    row = next(row for row in person.get("/v1/runs?limit=1000").json["runs"] if row["id"] == "r-open")
    assert (row["status"], row["running"]) == (None, True)
    for status in ("success", "recovered", "partial", "failure"):
        rows = person.get(f"/v1/runs?status={status}&limit=1000").json["runs"]
        assert {row["status"] for row in rows} == {status}
        assert "r-open" not in {row["id"] for row in rows}
    after = person.get(f"/v1/stats?since=all&now={NOW}").json
    assert (after["total_runs"], after["total"]["running"]) == (61, 1)
    assert after["total"]["runs"] == before["total"]["runs"]
    assert after["success_rate"] == before["success_rate"]
    ended = {"id": "r-open", "ended_at": NOW, "end_reason": "finished"}
    assert person.post("/v1/runs", [ended]).status == 200
    assert person.get("/v1/runs/r-open").json["status"] == "failure"
    final = person.get(f"/v1/stats?since=all&now={NOW}").json["total"]
    assert (final["running"], final["runs"]["failure"]) == (0, before["total"]["runs"]["failure"] + 1)


def test_stats_name_the_runs_before_their_period(filled):
    person = filled.person()
    for since, length in (("7d", 24 * HOUR), ("48h", HOUR)):
        first = (NOW - {"7d": 7 * 24, "48h": 48}[since] * HOUR) // length * length
        older = sum(run["started_at"] < first for run in runs())
        assert older > 0
        stats = person.get(f"/v1/stats?since={since}&now={NOW}").json
        assert (stats["older_runs"], stats["total_runs"]) == (older, 60 - older)
    assert person.get(f"/v1/stats?since=all&now={NOW}").json["older_runs"] == 0


def test_lists_come_page_by_page_and_each_row_once(filled):
    person = filled.person()
    for name, key in (("runs", "id"), ("patterns", "id"), ("tools", "tool"), ("agents", "agent"), ("fixes", "id")):
        path = f"/v1/{name}"
        whole = person.get(f"{path}?limit=1000&now={NOW}" + ("&since=all" if name in ("tools", "agents") else "")).json
        assert whole["next"] is None
        seen, cursor = [], ""
        while True:
            more = f"&cursor={cursor}" if cursor else ""
            since = "&since=all" if name in ("tools", "agents") else ""
            page = person.get(f"{path}?limit=7&now={NOW}{since}{more}").json
            seen += [row[key] for row in page[name]]
            if page["next"] is None:
                break
            cursor = page["next"]
        assert seen == [row[key] for row in whole[name]]
        assert len(set(seen)) == len(seen)


LISTS = (
    "runs", "runs?order=attempts", "runs?order=tool_failures&min_tool_failures=1",
    "patterns", "patterns?order=unrecovered", "patterns?order=last_seen", "patterns?since=30d",
    "patterns?since=30d&order=unrecovered", "patterns?text=T", "fixes", "lessons", "tools?since=all",
    "agents?since=all", "audit",
)  # fmt: skip


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_pages_stay_complete_while_others_write(store, tmp_path):
    """A cursor is the sort key of the last row: what comes before it moves nothing behind it."""
    from servers import served
    from stores import STORES

    with served(tmp_path, store=STORES[store](tmp_path)) as running:
        anybody, admin = running.anybody(), running.holding("admin")
        texts = [f"{word} failed: T{word}" for word in "red blue green gray pink black white brown".split()]
        sent = []
        for number, text in enumerate(texts):
            for copy in range(number % 4 + 1):
                steps = [
                    {"name": f"tool-{number}", "arguments": {"k": 1}, "failure": {"message": text}},
                    {"name": f"tool-{number}", "arguments": {"k": 2}, "call": 1} if number % 2 else {"name": "other"},
                ]
                started_at = NOW - (number + copy) * 26 * HOUR
                run = {"id": f"r-{number}-{copy}", "agent": f"agent-{number}", "started_at": started_at, "steps": steps}
                sent.append({**run, "ended_at": started_at + 9})
        assert anybody.post("/v1/runs", sent).status == 200
        given = {"tool": "t", "mistake": "No.", "source": "file"}
        lessons = [Lesson(id=f"les_{word * 12}", correction=f"Use {word}.", **given) for word in "abcdef"]
        running.store.save_lessons(DEFAULT_TENANT, lessons)
        resolved = admin.get("/v1/patterns").json["patterns"][3]["id"]
        running.store.update_pattern(DEFAULT_TENANT, PatternCommand(action="resolve", pattern=resolved, at=NOW))
        for number in range(6):
            running.server.tokens.create("read", 5, name=f"t{number}")
        new_numbers = itertools.count()

        def write_more():
            """Add a new first row. With an offset, each page would then repeat the last row of the one before."""
            id = f"new-{next(new_numbers)}"
            failed = [{"name": id, "failure": {"message": f"{text} {id}"}} for text in texts]
            run = {"id": id, "agent": id, "started_at": NOW, "ended_at": NOW + 1, "steps": failed}
            assert anybody.post("/v1/runs", run).status == 200
            running.server.tokens.create("read", running.server.clock(), name="new")

        for asked in LISTS:
            name = asked.partition("?")[0]
            key = {"tools": "tool", "agents": "agent"}.get(name, "id")
            path = f"/v1/{asked}{'&' if '?' in asked else '?'}now={NOW}"
            whole = [row[key] for row in admin.get(f"{path}&limit=1000").json[name]]
            assert len(whole) > 3, asked
            seen, cursor, pages = [], "", 0
            while cursor is not None:
                page = admin.get(f"{path}&limit=3{cursor and f'&cursor={cursor}'}").json
                seen += [row[key] for row in page[name]]
                cursor, pages = page["next"], pages + 1
                if pages < 3:
                    write_more()
            assert [id for id in seen if id in whole] == whole, asked
            assert len(set(seen)) == len(seen), asked


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ("agent=ann", lambda run: run["agent"] == "ann"),
        ("version=2", lambda run: run["version"] == "2"),
        ("environment=prod", lambda run: run["environment"] == "prod"),
        ("tool=fetch", lambda run: any(step["name"] == "fetch" for step in run["steps"])),
        ("model=small-1", lambda run: any(step["name"] == "small-1" for step in run["steps"])),
        (
            "kind=tool/timeout",
            lambda run: any(step.get("failure", {}).get("message") == SAYS[0] for step in run["steps"]),
        ),
        (
            "min_tool_failures=1",
            lambda run: any(step.get("type", "tool") == "tool" and "failure" in step for step in run["steps"]),
        ),
        ("min_attempts=2", lambda run: len(run["steps"]) > 1),
        ("since=7d", lambda run: run["started_at"] >= NOW - 7 * 24 * HOUR),
        (f"until={NOW - 240 * HOUR}", lambda run: run["started_at"] < NOW - 240 * HOUR),
        ("status=failure", has_failed),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_runs_are_found_by_what_is_asked(filled, asked, kept):
    found = filled.person().get(f"/v1/runs?limit=1000&now={NOW}&{asked}").json["runs"]
    assert {run["id"] for run in found} == {run["id"] for run in runs() if kept(run)}


def test_csv_has_the_rows_and_no_formula(filled):
    for path, rows in (("/v1/runs?format=csv&limit=1000", 60), (f"/v1/tools?format=csv&since=all&now={NOW}", 3)):
        told = filled.person().get(path)
        assert told.headers["content-type"].startswith("text/csv")
        found = list(csv.reader(io.StringIO(told.body.decode())))
        assert len(found) == rows + 1
        assert not any(cell.startswith("=") for row in found for cell in row)
    assert filled.person().get("/v1/patterns", Accept="text/csv").headers["content-type"].startswith("text/csv")
    assert filled.person().get("/v1/stats?format=csv").json["field"] == "by"


def test_where_values_are_hidden_models_are_still_told_apart_by_their_names(tmp_path):
    from servers import served

    with served(tmp_path, level="shared") as running:
        step = {"type": "model", "name": "ask", "metadata": {"model": "big-1"}, "arguments": {"text": "private words"}}
        told = running.anybody().post(
            "/v1/runs", {"id": "r", "started_at": NOW, "ended_at": NOW, "metadata": {"model": "small-1"},
                         "steps": [step, {"name": "fetch"}]},
        )  # fmt: skip
        assert told.status == 200
        for query, calls in (("", {"big-1": 1}), ("&tool=fetch", {"small-1": 1}), ("&type=tool", {"small-1": 1})):
            parts = running.person().get(f"/v1/stats?by=model&now={NOW}{query}").json["parts"]
            assert {part["model"]: part["calls"] for part in parts} == calls
        assert b"private words" not in running.person().get("/v1/runs/r").body


def test_an_export_leaves_out_no_run(filled):
    told = filled.person().post("/v1/export", {"since": 0})
    ids = [json.loads(line)["run"]["id"] for line in told.body.splitlines()]
    assert sorted(ids) == sorted(run["id"] for run in runs())  # more than go at a time


def test_csv_says_above_its_rows_where_they_go_on(filled):
    person, ids = filled.person(), []
    there = f"/v1/runs?format=csv&limit=7&now={NOW}"
    while there:
        told = person.get(there)
        ids += [row[0] for row in list(csv.reader(io.StringIO(told.body.decode())))[1:]]
        link = told.headers.get("link")
        there = link and link.removeprefix("<").removesuffix('>; rel="next"')
    assert sorted(ids) == sorted(run["id"] for run in runs())


def test_the_document_says_of_every_field_that_may_be_sent_what_it_means(filled):
    schemas = filled.person().get("/openapi.json").json["components"]["schemas"]
    for name in ("RunPayload", "StepPayload", "FailurePayload", "BatchPayload"):
        fields = schemas[name]["properties"].items()
        assert [each for each, about in fields if not about.get("description") and each not in ("type", "events")] == []
    assert "seq of the call&#x27;s first attempt" in filled.person().get("/docs", Accept="text/html").body.decode()


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ("since=soon", "since"), ("since=2d&until=9d", "since"), ("limit=0", "limit"), ("limit=1e3", "limit"),
        ("limit=1001", "limit"), ("cursor=zzz", "cursor"), ("cursor=%00", "cursor"), ("cursor=bnVsbA", "cursor"),
        ("cursor=WzFd", "cursor"), ("cursor=Wzk5OTk5OTk5OTk5OTk5OTk5OTk5OSwiYSJd", "cursor"), ("agnet=x", "agnet"),
        ("status=sad", "status"), ("agent=a&agent=b", "agent"), ("now=-1", "now"), ("format=xml", "format"),
        ("kind=/", "kind"), ("agent=" + "x" * 2000, "agent"), ("since=99999d%0a", "since"),
    ],
)  # fmt: skip
def test_a_parameter_that_cannot_be_meant_is_refused_by_name(person, asked, field):
    told = person.get(f"/v1/runs?{asked}")
    assert (told.status, told.json["field"]) == (400, field), told.json


def test_prometheus_is_told_the_same_figures(filled):
    told = filled.person().get("/metrics")
    assert told.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = dict(line.rpartition(" ")[::2] for line in told.body.decode().splitlines() if not line.startswith("#"))
    total = filled.person().get("/v1/stats?since=all").json["total"]
    assert float(lines['mulligan_calls_total{outcome="first_try"}']) == total["first_try"]
    assert float(lines['mulligan_runs_total{status="failure"}']) == total["runs"]["failure"]
    assert float(lines['mulligan_attempt_seconds_bucket{le="+Inf"}']) == total["latency_seconds"]["sample_size"]
    assert float(lines['mulligan_failures_total{kind="tool/timeout"}']) == total["kinds"]["tool/timeout"]["failures"]
    assert 'mulligan_tool_calls_total{tool="search",outcome="recovered"}' in lines


def test_a_tool_with_a_hostile_name_breaks_no_line(serving, anybody):
    name = 'a"b\\c\nd{e="f"} 1'
    anybody.post("/v1/runs", {"id": "r", "ended_at": 1, "started_at": 1, "steps": [{"name": name}]})
    for line in serving.person().get("/metrics").body.decode().splitlines():
        assert line.startswith(("#", "mulligan_")), line


def test_the_documentation_can_be_read_by_people_and_programs(anybody):
    told = anybody.get("/openapi.json").json
    assert told["openapi"] == "3.1.0"
    page = anybody.get("/docs").body.decode()
    for path in told["paths"]:
        assert path in page
    assert "<script" not in page
    assert anybody.get("/docs.css").headers["content-type"].startswith("text/css")


def test_every_route_for_others_is_documented(serving):
    from mulligan.server.routes import ROUTE_GROUPS

    told = serving.anybody().get("/openapi.json").json["paths"]
    ours = ("/v1/store/", "/v1/export", "/openapi.json", "/docs")  # of mulligan's own, and those that tell
    for group in ROUTE_GROUPS:
        for each in group(serving.server):
            if not each.path.startswith(ours):
                assert {method.lower() for method in each.methods} - {"head"} <= set(
                    told[each.path.replace(":path", "")]
                )


@pytest.mark.parametrize("id", ["team/a/17", "a//b", "50% of it?", "../../etc", "\u00fc ber"])
def test_a_run_is_found_by_an_id_with_anything_in_it(anybody, person, id):
    run = {"id": id, "agent": "ann", "end_reason": "finished", "steps": [{"name": "search"}]}
    assert anybody.post("/v1/runs", run).status == 200
    found = person.get(f"/v1/runs/{quote(id, safe='')}")
    assert (found.status, found.json["id"]) == (200, id)


def test_no_id_at_all_is_no_run(person):
    assert person.get("/v1/runs/").status == 404
    assert person.get("/v1/runs/team/x").status == 404


def test_a_search_has_pages_and_names_the_parameter_with_a_fault(filled):
    person = filled.person()
    ids = [row["id"] for row in person.get("/v1/runs?text=agent:ann&limit=1000").json["runs"]]
    pages, cursor = [], ""
    while cursor is not None:
        answer = person.get(f"/v1/search?q=agent:ann&limit=7{cursor and f'&cursor={cursor}'}").json
        pages.append([hit["id"] for hit in answer["hits"]])
        cursor = answer["next"]
    assert [id for page in pages for id in page] == ids
    assert len(pages) > 2
    for address, field in (
        ("search?q=since:wrong", "q"), ("search?q=-word", "q"), ("search", "q"), ("search?since=wrong", "since"),
        ("runs?text=status:wrong", "text"), ("run-groups?text=-word", "text"), ("runs?since=1d&until=2d", "since"),
    ):  # fmt: skip
        refusal = person.get(f"/v1/{address}")
        assert (refusal.status, refusal.json["field"]) == (400, field), address
    assert person.get("/v1/search?status=failure").json["hits"]
    assert person.get("/v1/search?q=status:failure").json["hits"]
