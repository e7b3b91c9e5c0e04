"""Alerts: what is worth one, how often it is told, and that a command and a webhook hear of it."""

from __future__ import annotations

import http.server
import json
import shlex
import sys
import threading
import time

import pytest

import mulligan
from mulligan.core.events import RunEnded, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, SettingsError, StoreError
from mulligan.core.records import Pattern, RecoveryStop, Run, Step
from mulligan.report import alert_targets, alerts
from mulligan.report.alerts import AlertLog, AlertRules, Alerts

QUOTA = Failure.of(Kind("model", "quota_exceeded", Remedy.STOP), "no credit \x1b[31mleft", fingerprint="f-q")
SLOW = Failure.of(Kind("tool", "timeout", Remedy.RETRY), "too slow", fingerprint="f-t")


def step(failure=None, name="search", **fields):
    return StepEnded(Step(run="run_a", seq=1, call=1, name=name, outcome="failure" if failure else "success",
                          failure=failure, **fields))  # fmt: skip


def given_up(name="search"):
    return step(SLOW, name, stop=RecoveryStop(reason="out of attempts"))


def test_what_only_a_person_can_fix_is_told_once_in_a_while():
    watch = AlertRules()
    (alert,) = watch.evaluate([step(QUOTA)], 100.0)

    assert (alert.type, alert.kind, alert.run) == ("person_needed", "model/quota_exceeded", "run_a")
    assert "\x1b" not in alert.message
    assert watch.evaluate([step(QUOTA)] * 5, 200.0) == []
    assert len(watch.evaluate([step(QUOTA, "other")], 200.0)) == 1
    assert len(watch.evaluate([step(QUOTA)], 100.0 + alerts.REPEAT_INTERVAL_SECONDS)) == 1


def test_what_recovers_or_is_told_to_the_model_alarms_nobody():
    assert AlertRules().evaluate([step(SLOW), step(), step(Failure.of(Kind("tool", "x"), "no"))], 1.0) == []


def test_a_pattern_that_was_never_met_is_told_and_a_known_or_muted_one_is_not():
    for runs, state, first, count in (
        (1, "new", 0, 1), (7, "active", 0, 0), (1, "muted", 0, 0),
        (7, "new", 9_999_000, 1), (7, "muted", 9_999_000, 0),  # seven runs were stored together
    ):  # fmt: skip
        facts = {"tool": "search", "fingerprint": "f-t", "kind": "tool/timeout"}
        found = Pattern(id="p", **facts, runs=runs, state=state, first_seen_at=first)
        told = AlertRules(lambda id, found=found: found).evaluate([step(SLOW), step(SLOW)], 10_000.0)
        assert [alert.type for alert in told] == ["new_pattern"] * count


class SharedLog:
    """The log of several processes, which may be out of reach."""

    log = AlertLog()
    is_there = True
    updates = 0

    def __call__(self, change):
        if not self.is_there:
            raise StoreError("the store is away")
        self.updates += 1
        self.log = change(self.log) or self.log


def test_processes_that_share_a_log_tell_each_alert_once_and_are_bounded_together():
    shared = SharedLog()
    here, there = AlertRules(update_log=shared), AlertRules(update_log=shared)
    assert len(here.evaluate([step(QUOTA)], 100.0)) == 1
    assert there.evaluate([step(QUOTA)], 101.0) == []
    assert len(there.evaluate([step(QUOTA)], 100.0 + alerts.REPEAT_INTERVAL_SECONDS)) == 1
    assert here.evaluate([step(QUOTA)], 101.0 + alerts.REPEAT_INTERVAL_SECONDS) == []
    told = [
        *here.evaluate([step(QUOTA, f"tool-{number}") for number in range(20)], 1100.0),
        *there.evaluate([step(QUOTA, f"other-{number}") for number in range(20)], 1100.0),
    ]
    assert len(told) + 2 == len(shared.log.entries) == alerts.MAX_ALERTS_PER_HOUR
    asked = shared.updates
    there.evaluate([step(QUOTA, f"more-{number}") for number in range(20)], 1100.0)
    assert shared.updates == asked  # the limit is known: nobody is asked again
    (later,) = there.evaluate([step(QUOTA, "tool-x")], 4800.0)
    assert (later.suppressed, len(shared.log.entries)) == (12 + 20, 1)


def test_while_the_shared_log_is_away_alerts_are_told():
    shared = SharedLog()
    shared.is_there = False
    watch = AlertRules(update_log=shared)
    assert len(watch.evaluate([step(QUOTA)], 100.0)) == 1
    assert watch.evaluate([step(QUOTA)], 101.0) == []


def test_ever_more_calls_that_are_given_up_are_told_and_a_few_are_not():
    watch = AlertRules()
    assert watch.evaluate([given_up() for _ in range(alerts.MIN_CALLS_IN_WINDOW - 1)], 1.0) == []
    (alert,) = watch.evaluate([given_up()], 2.0)
    assert alert.type == "high_failure_rate"
    assert "20 of the last 20" in alert.text
    calm = AlertRules()
    assert calm.evaluate([*(given_up() for _ in range(20)), *(step() for _ in range(50)), given_up()], 1.0)[1:] == []
    later = AlertRules()
    later.evaluate([given_up() for _ in range(19)], 1.0)
    assert later.evaluate([given_up()], 2.0 + alerts.FAILURE_WINDOW_SECONDS) == []  # the others are long ago


def of(run, *outcomes):
    """Attempts at one call of another program, which says of none that it was the last."""
    failed = {"outcome": "failure", "failure": SLOW}
    return [StepEnded(Step(run=run, seq=seq, call=1, attempt=seq, name="search", **({} if worked else failed)))
            for seq, worked in enumerate(outcomes, start=1)]  # fmt: skip


def ended(run):
    return RunEnded(Run(id=run, end_reason="finished"))


def test_calls_of_other_programs_are_given_up_when_their_run_has_ended_and_nothing_like_them_worked():
    watch = AlertRules()
    for number in range(alerts.MIN_CALLS_IN_WINDOW - 1):  # the run's end comes before its steps, as it is sent
        assert watch.evaluate([ended(f"r{number}"), *of(f"r{number}", False, False)], 1.0) == []
    assert watch.evaluate(of("last", False), 2.0) == []  # it may be made again
    (alert,) = watch.evaluate([ended("last")], 3.0)
    assert (alert.type, alert.run) == ("high_failure_rate", "last")
    assert "20 of the last 20" in alert.text
    overcome = AlertRules()
    for number in range(40):
        assert overcome.evaluate([*of(f"r{number}", False, True), ended(f"r{number}")], 1.0) == []


@pytest.mark.parametrize("effects", ["once", "none"])
@pytest.mark.parametrize("circuit_breaker", [False, True])
def test_target_that_is_down_is_told_once_whether_or_not_its_calls_fail_at_once(effects, circuit_breaker):
    m = mulligan.Mulligan(store="memory:")
    heard = []
    m.add_listener(heard.append, thread="caller")

    @m.tool(
        effects=effects, circuit_breaker=circuit_breaker, policy=mulligan.Policy(initial_backoff=0.0, retry_seconds=0)
    )
    def search():
        raise ConnectionError("connection reset by peer")

    for _ in range(8):
        with pytest.raises((ConnectionError, mulligan.InfraError, mulligan.AgentError)):
            search()
    told = AlertRules().evaluate(heard, 1.0)
    assert [(alert.type, alert.tool) for alert in told] == [("circuit_open", "search")]


def test_there_is_a_bound_on_all_alerts_together():
    watch = AlertRules()
    told = watch.evaluate([step(QUOTA, f"tool-{number}") for number in range(100)], 1.0)
    assert len(told) == alerts.MAX_ALERTS_PER_HOUR
    assert {alert.suppressed for alert in told} == {0}


def test_the_next_alert_says_how_many_before_it_were_not_told():
    watch = AlertRules()
    watch.evaluate([step(QUOTA, f"tool-{number}") for number in range(100)], 1.0)
    (told,) = watch.evaluate([step(QUOTA, "tool-x")], 3700.0)
    assert told.suppressed == 100 - alerts.MAX_ALERTS_PER_HOUR
    assert told.text.endswith("a person must act; 70 earlier alerts suppressed (limit 30 per hour)")
    (again,) = watch.evaluate([step(QUOTA, "tool-y")], 3701.0)
    assert again.suppressed == 0


def test_an_end_does_not_fail_because_nobody_answers(monkeypatch, caplog):
    monkeypatch.setattr(alerts, "MAX_QUEUED_ALERTS", 3)
    asked, answers = threading.Event(), threading.Event()
    monkeypatch.setattr(alert_targets, "run_command", lambda words, alert: asked.set() or answers.wait(20))
    listening = Alerts(command="true")
    listening(step(QUOTA, "tool-0"))
    assert asked.wait(20)  # from now on nobody takes one
    for number in range(1, 10):
        listening(step(QUOTA, f"tool-{number}"))
    listening.close(0.1)
    assert "alerts were not sent before shutdown" in caplog.text
    answers.set()


@pytest.mark.slow
def test_a_command_is_given_the_alert_on_its_standard_input(tmp_path):
    file = tmp_path / "told.json"
    script = f"import sys, pathlib; pathlib.Path({str(file)!r}).write_text(sys.stdin.read())"
    listening = Alerts(command=f"{shlex.quote(sys.executable)} -c {shlex.quote(script)}", link="http://h/")
    listening(step(QUOTA, name="$(touch x); `rm`"))
    listening.close(20)

    told = json.loads(file.read_text())
    assert told["type"] == "person_needed"
    assert told["link"] == "http://h/runs/run_a"
    assert told["tool"] == "$(touch x); `rm`"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.slow
def test_a_webhook_is_posted_to_and_a_redirect_is_not_followed():
    heard = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            heard.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(302 if len(heard) == 2 else 200)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def do_GET(self):
            heard.append((self.path, None))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        listening = Alerts(webhook=f"http://127.0.0.1:{server.server_port}/hook")
        listening(step(QUOTA, "<!channel> <https://evil.example|pay>"))
        listening(step(QUOTA, "other"))
        listening.close(20)
        server.shutdown()
        thread.join(5)

    assert [path for path, _ in heard] == ["/hook", "/hook"]
    assert heard[0][1]["alert"]["kind"] == "model/quota_exceeded"
    text = heard[0][1]["text"]
    assert text.startswith("mulligan: model/quota_exceeded in ")
    assert not set("<>|") & set(text), "in Slack it would be a mention or a link"


@pytest.mark.slow
def test_a_webhook_that_is_out_of_order_is_told_again_and_one_that_refuses_is_not(monkeypatch, caplog):
    monkeypatch.setattr(alerts, "WEBHOOK_RETRY_DELAYS_SECONDS", (0.01, 0.01))
    heard = []
    answers = iter([503, 200, 400, 500, 500, 500])

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["alert"]["tool"])
            self.send_response(next(answers))
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        listening = Alerts(webhook=f"http://127.0.0.1:{server.server_port}/hook")
        for name in ("again", "refused", "broken"):
            listening(step(QUOTA, name))
        deadline = time.monotonic() + 20
        while len(heard) < 6 and time.monotonic() < deadline:
            time.sleep(0.01)
        listening.close(20)
        server.shutdown()
        thread.join(5)

    assert heard == ["again", "again", "refused", "broken", "broken", "broken"]
    assert caplog.text.count("Alert not delivered") == 2


def test_whoever_cannot_be_told_is_no_trouble_for_the_agent(caplog):
    listening = Alerts(command="/nonexistent/command", webhook="http://127.0.0.1:1/")
    listening(step(QUOTA))
    listening.close(20)
    assert "Alert not delivered" in caplog.text


@pytest.mark.parametrize("given", [{}, {"webhook": "file:///etc/passwd"}])
def test_alerts_that_cannot_be_meant_are_refused(given):
    with pytest.raises(SettingsError):
        Alerts(**given)
