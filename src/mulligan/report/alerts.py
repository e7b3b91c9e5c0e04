"""Alerts to a command or a webhook: failures that need a person, new patterns, high failure rates, targets down.

Off by default. Alerts are built from redacted events. Repeated alerts are suppressed for an interval, and the number
of alerts per hour is limited. Processes that share an `AlertLog` are limited together.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import urllib.error
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

from msgspec.structs import replace

from mulligan.contract.store import Store
from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Remedy, SettingsError, StoreError
from mulligan.core.records import Pattern, Record, Run, Step, pattern_id
from mulligan.redaction import sanitize
from mulligan.report.alert_targets import Alert, AlertTarget, build_targets

log = logging.getLogger(__name__)

T = TypeVar("T")

REPEAT_INTERVAL_SECONDS = 900.0
"""Minimum time between two alerts with the same type and subject."""
MAX_ALERTS_PER_HOUR = 30
"""Maximum number of alerts per hour, of all types together."""
FAILURE_WINDOW_SECONDS, MIN_CALLS_IN_WINDOW, UNRECOVERED_RATIO = 600.0, 20, 0.5
"""High failure rate: in this window, with at least this many calls, at least this ratio was unrecovered."""
WEBHOOK_RETRY_DELAYS_SECONDS = (1.0, 5.0)
"""Backoff before each retry of a request that timed out or failed with a server error."""
MAX_QUEUED_ALERTS = 100
MAX_TRACKED_ENTRIES = 10_000
TARGET_DOWN = "its target is down"
"""Stop reason of calls whose target is down."""


class AlertLog(Record, frozen=True):
    """Alerts of the last hour: the time of each, and a hash of its type and subject."""

    entries: tuple[tuple[float, str], ...] = ()

    def is_repeated(self, key: str, now: float) -> bool:
        return any(key == other and now - at < REPEAT_INTERVAL_SECONDS for at, other in self.entries)

    def is_full(self, now: float) -> bool:
        return sum(now - at < 3600 for at, _ in self.entries) >= MAX_ALERTS_PER_HOUR

    def add(self, key: str, now: float) -> AlertLog:
        return AlertLog((*(entry for entry in self.entries if now - entry[0] < 3600), (now, key)))


AlertLogUpdate = Callable[[Callable[[AlertLog], AlertLog | None]], object]
"""Applies a function to the log that several processes share. It returns the new log, or `None` to leave it."""


class AlertRules:
    """Rules that derive alerts from stored events. Pure: the caller passes the time and sends the alerts."""

    def __init__(
        self,
        find_pattern: Callable[[str], Pattern | None] | None = None,
        link: str = "",
        update_log: AlertLogUpdate | None = None,
    ) -> None:
        self._find_pattern = find_pattern
        self._link = link.rstrip("/")
        self._log = AlertLog()
        """The log as this process saw it last."""
        self._update_log = update_log or (lambda change: change(self._log))
        self._seen_patterns: dict[str, None] = {}
        """Patterns that were already looked up, so that each is checked once."""
        self._finished_calls: deque[tuple[float, bool]] = deque(maxlen=MAX_TRACKED_ENTRIES)
        self._open_failures: dict[str, dict[int, Step]] = {}
        """Failed calls that may still recover, by run. Imported records have no stop reason that would settle this."""
        self._ended_runs: dict[str, None] = {}
        """Ended runs: their open failures are unrecovered."""
        self._run_origins: dict[str, dict[str, Any]] = {}
        """Agent, version and environment of runs that started lately."""
        self._suppressed = 0
        """Alerts not sent because of the hourly limit since the last sent one."""

    def evaluate(self, events: Iterable[AnyEvent], now: float) -> list[Alert]:
        """Return the alerts for a batch of events stored at this time."""
        alerts: list[Alert] = []
        run_ids: set[str] = set()
        for event in events:
            if isinstance(event, StepEnded):
                alerts += self._alerts_for_step(event.step, now)
                run_ids.add(event.step.run)
            elif isinstance(event, RunStarted):
                self._remember_origin(event.run)
            elif isinstance(event, RunEnded):
                self._remember_origin(event.run)
                _remember(self._ended_runs, event.run.id, None)
                run_ids.add(event.run.id)
        for run in run_ids & self._ended_runs.keys() & self._open_failures.keys():
            for step in self._open_failures.pop(run).values():
                alerts += self._count_unrecovered(step, now)
        return [sent_alert for alert in alerts if (sent_alert := self._limit(alert, now))]

    def _remember_origin(self, run: Run) -> None:
        if run.id not in self._run_origins or run.agent:
            _remember(self._run_origins, run.id, get_run_origin(run))

    def _alerts_for_step(self, step: Step, now: float) -> Iterable[Alert]:
        failure = step.failure
        open_failures = self._open_failures.get(step.run, {})
        if step.outcome == "success":
            self._finished_calls.append((now, False))
            for call in [call for call, failed_step in open_failures.items() if failed_step.name == step.name]:
                del open_failures[call]
            open_failures.pop(step.call, None)
        elif step.stop is not None and step.has_failed:
            open_failures.pop(step.call, None)
            yield from self._count_unrecovered(step, now)
        elif step.has_failed and step.type != "run":
            if step.run not in self._open_failures:
                _remember(self._open_failures, step.run, open_failures)
            open_failures[step.call] = step
        if failure is None or not step.has_failed:
            return
        name = sanitize(step.name, 80)
        # Evidence of a blocked call. If its target is down, the failure also has `retry_after`.
        is_blocked = "the call was blocked" in failure.evidence
        if (is_blocked and failure.retry_after is not None) or (step.stop and TARGET_DOWN in step.stop.reason):
            yield self._build_alert("circuit_open", f"{name}: {TARGET_DOWN} after repeated failures", step, now)
        if is_blocked:
            return
        if failure.remedy is Remedy.STOP:
            yield self._build_alert("person_needed", f"{failure.kind} in {name}: a person must act", step, now)
        elif self._is_new_pattern(step, now):
            yield self._build_alert("new_pattern", f"{failure.kind} in {name}: new failure pattern", step, now)

    def _count_unrecovered(self, step: Step, now: float) -> Iterable[Alert]:
        calls = self._finished_calls
        calls.append((now, True))
        while calls[0][0] < now - FAILURE_WINDOW_SECONDS:
            calls.popleft()
        unrecovered = sum(is_unrecovered for _, is_unrecovered in calls)
        if len(calls) >= MIN_CALLS_IN_WINDOW and unrecovered >= UNRECOVERED_RATIO * len(calls):
            text = f"{unrecovered} of the last {len(calls)} calls are unrecovered"
            yield self._build_alert("high_failure_rate", text, step, now)

    def _is_new_pattern(self, step: Step, now: float) -> bool:
        """Return whether the pattern of a failure first occurred in this run, or only recently.

        Of several runs that are stored at the same time, here or by other processes, each finds the others counted.
        """
        id = _pattern_id(step)
        if self._find_pattern is None or not id or id in self._seen_patterns:
            return False
        _remember(self._seen_patterns, id, None)
        pattern = self._find_pattern(id)
        if pattern is None or pattern.state == "muted":
            return False
        return pattern.runs <= 1 or now - pattern.first_seen_at / 1000 < REPEAT_INTERVAL_SECONDS

    def _build_alert(self, alert_type: Any, text: str, step: Step, now: float) -> Alert:
        failure, pattern = step.failure, _pattern_id(step)
        return Alert(
            type=alert_type,
            text=text,
            at=int(now * 1000),
            tool=sanitize(step.name, 200),
            kind=str(failure.kind) if failure is not None else "",
            run=step.run,
            message=sanitize(failure.message, 300) if failure is not None else "",
            pattern=pattern,
            link=_build_link(self._link, "runs", step.run),
            call=step.call,
            action=describe_action((step,)),
            pattern_link=_build_link(self._link, "patterns", pattern),
            **self._run_origins.get(step.run, {}),
        )

    def _limit(self, alert: Alert, now: float) -> Alert | None:
        """Return the alert with the number of suppressed alerts before it, or None if it is not sent."""
        key, is_added = alert.key, False

        def add(log: AlertLog) -> AlertLog | None:
            nonlocal is_added
            is_added = not (log.is_repeated(key, now) or log.is_full(now))
            self._log = log.add(key, now) if is_added else log
            return self._log if is_added else None

        if not (self._log.is_repeated(key, now) or self._log.is_full(now)):
            try:
                self._update_log(add)
            except StoreError as error:  # Better sent by each process than by none.
                log.warning("The log of sent alerts is unavailable: %s", error)
                add(self._log)
        if not is_added:
            self._suppressed += not self._log.is_repeated(key, now)
            return None
        suppressed, self._suppressed = self._suppressed, 0
        if not suppressed:
            return alert
        noun = "alert" if suppressed == 1 else "alerts"
        note = f"{suppressed} earlier {noun} suppressed (limit {MAX_ALERTS_PER_HOUR} per hour)"
        return replace(alert, suppressed=suppressed, text=f"{alert.text}; {note}")


def get_run_origin(run: Run) -> dict[str, Any]:
    return {"agent": run.agent, "version": run.version or "", "environment": run.environment or ""}


def _build_link(base_url: str, page: str, id: str) -> str:
    return f"{base_url}/{page}/{quote(id, safe='')}" if base_url and id else ""


def describe_action(attempts: Sequence[Step]) -> str:
    """Describe what mulligan did about a call, from its attempts so far. Empty if it only recorded them."""
    if not any(step.stop or step.recovery for step in attempts):
        return ""
    last = attempts[-1]
    repairs = sum(bool(step.recovery and step.recovery.changes) for step in attempts)
    text = "made 1 attempt" if last.attempt == 1 else f"made {last.attempt} attempts"
    if repairs:
        text += f", {repairs} with repaired arguments"
    if last.outcome == "success":
        return f"recovered the call: {text}"
    return f"{text}, then stopped: {last.stop.reason}" if last.stop else text


def describe_alert(store: Store, tenant: str, alert: Alert) -> Alert:
    """Return the alert with what the store knows: the origin of its run, its pattern, what mulligan did."""
    history = store.run(tenant, alert.run) if alert.run else None
    pattern = store.pattern(tenant, alert.pattern) if alert.pattern else None
    if history is not None:
        attempts = sorted((step for step in history.steps if step.call == alert.call), key=lambda step: step.attempt)
        action = describe_action(attempts) or alert.action
        alert = replace(alert, action=action, **get_run_origin(history.run))
    if pattern is not None:
        alert = replace(
            alert, occurrences=pattern.occurrences, first_seen_at=pattern.first_seen_at, owner=pattern.owner
        )
    return replace(alert, tenant=tenant)


def _pattern_id(step: Step) -> str:
    failure = step.failure
    return pattern_id(step.name, failure.fingerprint) if failure is not None and failure.fingerprint else ""


def _remember(entries: dict[str, T], name: str, value: T) -> None:
    """Add an entry and evict the oldest one if the limit is reached."""
    if len(entries) >= MAX_TRACKED_ENTRIES:
        del entries[next(iter(entries))]
    entries[name] = value


class Alerts:
    """Listener that sends alerts to a command (JSON on standard input), a webhook (JSON in a POST request) and others.

        mulligan.add_listener(Alerts(command="notify-me"))

    A background thread sends them in order, so no caller waits for delivery.
    """

    def __init__(
        self,
        *,
        command: str = "",
        webhook: str = "",
        find: Callable[[str], Pattern | None] | None = None,
        link: str = "",
        update_log: AlertLogUpdate | None = None,
        clock: Callable[[], float] = time.time,
        describe: Callable[[Alert], Alert] = lambda alert: alert,
    ) -> None:
        self._targets = build_targets(command, webhook)
        if not self._targets:
            raise SettingsError("No alert receiver. Set a command or a webhook.")
        self._rules = AlertRules(find, link, update_log)
        self._clock, self._describe = clock, describe
        self._queue: queue.Queue[Alert | None] = queue.Queue(MAX_QUEUED_ALERTS)
        self._thread: threading.Thread | None = None
        self._is_closing = threading.Event()

    def __call__(self, event: AnyEvent) -> None:
        self.on_stored((event,))

    def on_stored(self, events: Iterable[AnyEvent]) -> None:
        """Evaluate stored events and queue their alerts for delivery."""
        for alert in self._rules.evaluate(events, self._clock()):
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mulligan-alerts", daemon=True)
                self._thread.start()
            try:
                self._queue.put_nowait(alert)
            except queue.Full:
                log.warning("Alert dropped, %d alerts are queued: %s", MAX_QUEUED_ALERTS, alert.text)

    def close(self, timeout: float = 2.0) -> None:
        """Send the queued alerts and stop the thread. Give up after the timeout."""
        if self._thread is not None:
            self._is_closing.set()
            deadline = time.monotonic() + timeout
            try:
                self._queue.put(None, timeout=timeout)
            except queue.Full:  # the receiver does not respond
                log.warning("%d alerts were not sent before shutdown", self._queue.qsize())
                return
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while (alert := self._queue.get()) is not None:
            try:
                alert = self._describe(alert)
            except Exception as error:  # noqa: BLE001 - the alert is worth more than its details
                log.warning("Alert sent without details: %s", error)
            for target in self._targets:
                try:
                    self._deliver(target, alert)
                except Exception as error:  # noqa: BLE001 - log it and continue with the next receiver
                    log.warning("Alert not delivered (%s): %s", error, alert.text)

    def _deliver(self, target: AlertTarget, alert: Alert) -> None:
        for delay in (*WEBHOOK_RETRY_DELAYS_SECONDS, None):
            try:
                target.deliver(alert)
                return
            except OSError as error:  # urllib errors are OSErrors
                is_rejected = isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429
                is_final = delay is None or is_rejected or target.type == "command"
                if is_final or self._is_closing.wait(delay or 0.0):
                    raise
