"""Alerts to a command or a webhook: failures that need a person, new patterns, high failure rates, targets down.

Off by default. Alerts are built from redacted events. Repeated alerts are suppressed for an interval, and the number
of alerts per hour is limited. Processes that share an `AlertLog` are limited together.
"""

from __future__ import annotations

import hashlib
import json
import logging
import queue
import shlex
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar
from urllib.parse import quote, urlsplit

from msgspec.structs import replace

from mulligan.core.events import AnyEvent, RunEnded, StepEnded
from mulligan.core.failure import Remedy, SettingsError, StoreError
from mulligan.core.records import Pattern, Record, Step, encode, pattern_id
from mulligan.redaction import sanitize

log = logging.getLogger(__name__)

T = TypeVar("T")

REPEAT_INTERVAL_SECONDS = 900.0
"""Minimum time between two alerts with the same type and subject."""
MAX_ALERTS_PER_HOUR = 30
"""Maximum number of alerts per hour, of all types together."""
FAILURE_WINDOW_SECONDS, MIN_CALLS_IN_WINDOW, UNRECOVERED_RATIO = 600.0, 20, 0.5
"""High failure rate: in this window, with at least this many calls, at least this ratio was unrecovered."""
DELIVERY_TIMEOUT_SECONDS = 10.0
"""Timeout of one command run or webhook request."""
WEBHOOK_RETRY_DELAYS_SECONDS = (1.0, 5.0)
"""Backoff before each retry of a webhook request that timed out or failed with a server error."""
MAX_QUEUED_ALERTS = 100
MAX_TRACKED_ENTRIES = 10_000
TARGET_DOWN = "its target is down"
"""Stop reason of calls whose target is down."""


class Alert(Record, frozen=True):
    """One alert, as sent in JSON."""

    type: Literal["person_needed", "new_pattern", "high_failure_rate", "circuit_open"]
    text: str
    """Summary in one sentence."""
    at: int
    tool: str = ""
    kind: str = ""
    run: str = ""
    message: str = ""
    pattern: str = ""
    link: str = ""
    """Dashboard URL of the run, if a server is configured."""
    suppressed: int = 0
    """Earlier alerts that were not sent because of the hourly limit."""


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
            elif isinstance(event, RunEnded):
                _remember(self._ended_runs, event.run.id, None)
                run_ids.add(event.run.id)
        for run in run_ids & self._ended_runs.keys() & self._open_failures.keys():
            for step in self._open_failures.pop(run).values():
                alerts += self._count_unrecovered(step, now)
        return [sent_alert for alert in alerts if (sent_alert := self._limit(alert, now))]

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
        failure = step.failure
        return Alert(
            type=alert_type,
            text=text,
            at=int(now * 1000),
            tool=sanitize(step.name, 200),
            kind=str(failure.kind) if failure is not None else "",
            run=step.run,
            message=sanitize(failure.message, 300) if failure is not None else "",
            pattern=_pattern_id(step),
            link=f"{self._link}/runs/{quote(step.run, safe='')}" if self._link else "",
        )

    def _limit(self, alert: Alert, now: float) -> Alert | None:
        """Return the alert with the number of suppressed alerts before it, or None if it is not sent."""
        subject = {"high_failure_rate": "", "circuit_open": alert.tool}.get(alert.type, f"{alert.kind} {alert.tool}")
        key = hashlib.blake2b(f"{alert.type} {subject}".encode(), digest_size=8).hexdigest()
        is_added = False

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


def _pattern_id(step: Step) -> str:
    failure = step.failure
    return pattern_id(step.name, failure.fingerprint) if failure is not None and failure.fingerprint else ""


def _remember(entries: dict[str, T], name: str, value: T) -> None:
    """Add an entry and evict the oldest one if the limit is reached."""
    if len(entries) >= MAX_TRACKED_ENTRIES:
        del entries[next(iter(entries))]
    entries[name] = value


class Alerts:
    """Listener that sends alerts to a command (JSON on standard input) or a webhook (JSON in a POST request).

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
    ) -> None:
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise SettingsError(f"Invalid alert command {command!r}: {error}. Quote it as for a shell.") from None
        if not self._command and not webhook:
            raise SettingsError("No alert receiver. Set a command or a webhook.")
        if webhook and urlsplit(webhook).scheme not in ("http", "https"):
            raise SettingsError(f"Invalid alert webhook {webhook!r}. Use an http or https URL.")
        self._webhook = webhook
        self._rules = AlertRules(find, link, update_log)
        self._clock = clock
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
            for deliver in (self.run_command, self._post):
                try:
                    deliver(alert)
                except Exception as error:  # noqa: BLE001 - log it and continue with the next receiver
                    log.warning("Alert not delivered (%s): %s", error, alert.text)

    def run_command(self, alert: Alert) -> None:
        if self._command:
            # No shell, and no alert text on the command line: it contains untrusted text.
            subprocess.run(
                self._command,
                input=encode(alert) + b"\n",
                timeout=DELIVERY_TIMEOUT_SECONDS,
                check=True,
                stdout=subprocess.DEVNULL,
            )

    def _post(self, alert: Alert) -> None:
        if self._webhook:
            text = f"mulligan: {alert.text} {alert.link}".rstrip()
            body = json.dumps({"text": text, "alert": json.loads(encode(alert))}).encode()
            request = urllib.request.Request(self._webhook, body, {"Content-Type": "application/json"})
            for delay in (*WEBHOOK_RETRY_DELAYS_SECONDS, None):
                try:
                    with _opener.open(request, timeout=DELIVERY_TIMEOUT_SECONDS) as answer:
                        answer.read(1024)
                    return
                except OSError as error:  # urllib errors are OSErrors
                    is_rejected = isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429
                    if delay is None or is_rejected or self._is_closing.wait(delay):
                        raise


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None  # a redirect would send failure data to a host that is not configured


_opener = urllib.request.build_opener(_NoRedirects)
