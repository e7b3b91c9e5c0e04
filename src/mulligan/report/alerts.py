"""Alerts to a command or a webhook: failures that need a person, new patterns, high failure rates, targets down.

Off by default. Alerts are built from redacted events. Repeated alerts are suppressed for an interval, and the number
of alerts per hour is limited. Processes that share an `AlertLog` are limited together.
"""

from __future__ import annotations

import datetime
import logging
import queue
import re
import threading
import time
import urllib.error
import zoneinfo
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from mulligan.contract.store import Store
from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Remedy, SettingsError, StoreError
from mulligan.core.records import Pattern, Record, Run, Step, pattern_id
from mulligan.redaction import sanitize
from mulligan.report.alert_targets import Alert, AlertTarget, AlertType, build_targets, parse_target

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
PATTERN_CHECK_SECONDS = 60.0
"""Minimum time between two lookups of a pattern."""
MAX_QUEUED_ALERTS = 100
MAX_TARGETS = 20
"""Targets of one tenant."""
MAX_TRACKED_ENTRIES = 10_000
TARGET_DOWN = "its target is down"
"""Stop reason of calls whose target is down."""


class AlertSettings(Record, frozen=True):
    """Rules for alerts of a tenant: the table `[alerts]` of the settings file."""

    targets: tuple[str, ...] = ()
    """Where alerts go: `parse_target` reads each."""
    types: tuple[AlertType, ...] = ()
    """Types of alerts that are sent. Empty means all."""
    failure_rate: float = UNRECOVERED_RATIO
    """Ratio of unrecovered calls in ten minutes from which on an alert is sent."""
    min_calls: int = MIN_CALLS_IN_WINDOW
    """Calls in ten minutes below which the ratio is not computed."""
    interval_minutes: float = REPEAT_INTERVAL_SECONDS / 60
    """Minimum time between two alerts about the same."""
    quiet_hours: str = ""
    """Hours without messages, such as `22:00-07:00` or `22:00-07:00 Europe/Berlin`. Alerts wait until they end."""
    resolved: bool = True
    """Whether a message says that an alert is over."""
    smtp: str = ""
    """Mail server of `mail:` targets. Only that of the server's own settings counts."""

    def check(self) -> AlertSettings:
        """Return these settings. Raise `SettingsError` for an invalid value."""
        if not 0 < self.failure_rate <= 1:
            raise SettingsError(f"failure_rate of alerts must be above 0 and at most 1, got {self.failure_rate}.")
        if self.min_calls < 1 or not 0 <= self.interval_minutes <= 1440:
            raise SettingsError("Alerts need min_calls of at least 1, and interval_minutes from 0 to 1440.")
        find_quiet_end(self.quiet_hours, 0.0)
        if len(self.targets) > MAX_TARGETS:
            raise SettingsError(f"Alerts have at most {MAX_TARGETS} targets, got {len(self.targets)}.")
        for target in self.targets:
            parse_target(target, self.smtp)
        return self


def parse_alert_settings(values: Mapping[str, Any]) -> AlertSettings:
    """Return the settings of a table `[alerts]`. Raise `SettingsError` for unknown names and invalid values."""
    names = AlertSettings.__struct_fields__
    for name in values:
        if name not in names:
            raise SettingsError(f"Unknown setting {name!r} of alerts. Use: {', '.join(names)}.")
    try:
        return msgspec.convert(dict(values), AlertSettings).check()
    except msgspec.ValidationError as error:
        raise SettingsError(f"Invalid settings of alerts: {error}") from None


_QUIET_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)(?: ([\w/+-]{1,60}))?", re.ASCII)


def find_quiet_end(quiet_hours: str, now: float) -> float:
    """Return when the quiet hours end that contain this time; this time itself if none do."""
    if not quiet_hours:
        return now
    match = _QUIET_HOURS.fullmatch(quiet_hours)
    try:
        zone = zoneinfo.ZoneInfo((match and match[5]) or "UTC")
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        match = None
    if match is None:
        raise SettingsError(f"Invalid quiet hours {quiet_hours!r}. Use, for example, 22:00-07:00 Europe/Berlin.")
    local = datetime.datetime.fromtimestamp(now, zone)
    start, end = int(match[1]) * 60 + int(match[2]), int(match[3]) * 60 + int(match[4])
    minute = local.hour * 60 + local.minute
    if (minute - start) % 1440 >= (end - start) % 1440:
        return now
    ends_at = local.replace(hour=end // 60, minute=end % 60, second=0, microsecond=0)
    return (ends_at if minute < end else ends_at + datetime.timedelta(days=1)).timestamp()


class AlertLog(Record, frozen=True):
    """Alerts of the last hour: the time of each, and a hash of its type and subject."""

    entries: tuple[tuple[float, str], ...] = ()

    def is_repeated(self, key: str, now: float, interval_seconds: float = REPEAT_INTERVAL_SECONDS) -> bool:
        return any(key == other and now - at < interval_seconds for at, other in self.entries)

    def is_full(self, now: float) -> bool:
        return sum(now - at < 3600 for at, _ in self.entries) >= MAX_ALERTS_PER_HOUR

    def add(self, key: str, now: float, interval_seconds: float = REPEAT_INTERVAL_SECONDS) -> AlertLog:
        max_age = max(3600.0, interval_seconds)
        return AlertLog((*(entry for entry in self.entries if now - entry[0] < max_age), (now, key)))


AlertLogUpdate = Callable[[Callable[[AlertLog], AlertLog | None]], object]
"""Applies a function to the log that several processes share. It returns the new log, or `None` to leave it."""


class AlertRules:
    """Rules that derive alerts from stored events. Pure: the caller passes the time and sends the alerts."""

    def __init__(
        self,
        find_pattern: Callable[[str], Pattern | None] | None = None,
        link: str = "",
        update_log: AlertLogUpdate | None = None,
        settings: AlertSettings = AlertSettings(),  # noqa: B008 - immutable
    ) -> None:
        self.settings = settings
        self.open_alerts: dict[str, Alert] = {}
        """Alerts by key that a later success resolves."""
        self._repeats: dict[str, int] = {}
        """Alerts by key that the interval suppressed."""
        self._find_pattern = find_pattern
        self._link = link.rstrip("/")
        self._log = AlertLog()
        """The log as this process saw it last."""
        self._update_log = update_log or (lambda change: change(self._log))
        self._seen_patterns: dict[str, float] = {}
        """When patterns were looked up, so that each is checked once in a while."""
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
        return self.limit(alerts, now)

    def limit(self, alerts: Iterable[Alert], now: float) -> list[Alert]:
        """Return the alerts that are sent: of the chosen types, within interval and hourly limit."""
        sent_alerts = []
        for alert in alerts:
            if self.settings.types and alert.type not in self.settings.types:
                continue
            sent_alert = (alert if self.settings.resolved else None) if alert.resolved else self._limit(alert, now)
            if sent_alert is not None:
                sent_alerts.append(sent_alert)
        return sent_alerts

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
            yield from self._resolve(step, now)
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
        elif change := self._find_change(step, now):
            yield self._build_alert(*change, step, now)

    def _count_unrecovered(self, step: Step, now: float) -> Iterable[Alert]:
        calls = self._finished_calls
        calls.append((now, True))
        while calls[0][0] < now - FAILURE_WINDOW_SECONDS:
            calls.popleft()
        unrecovered = sum(is_unrecovered for _, is_unrecovered in calls)
        if len(calls) >= self.settings.min_calls and unrecovered >= self.settings.failure_rate * len(calls):
            text = f"{unrecovered} of the last {len(calls)} calls are unrecovered"
            yield self._build_alert("high_failure_rate", text, step, now)

    def _resolve(self, step: Step, now: float) -> Iterable[Alert]:
        """Yield the end of alerts after a success: those about its tool, and that of the rate if it is low again."""
        for key, alert in list(self.open_alerts.items()):
            has_ended = alert.type in ("circuit_open", "person_needed") and alert.tool == sanitize(step.name, 200)
            if alert.type == "high_failure_rate":
                latest = [failed for at, failed in self._finished_calls if at >= now - FAILURE_WINDOW_SECONDS]
                has_ended = sum(latest) < self.settings.failure_rate * len(latest)
            if has_ended and step.started_at >= alert.failed_at:
                del self.open_alerts[key]
                yield replace(alert, resolved=True, at=int(now * 1000))

    def _find_change(self, step: Step, now: float) -> tuple[str, str] | None:
        """Return the type and the text of the alert if the pattern of a failure is new or came back."""
        pattern = self._look_up_pattern(step, now)
        if pattern is None or pattern.state == "muted" or step.failure is None:
            return None
        name, kind = sanitize(step.name, 80), step.failure.kind
        if pattern.regressed_at and now - pattern.regressed_at / 1000 < REPEAT_INTERVAL_SECONDS:
            version = f" in version {sanitize(pattern.regressed_version, 80)}" if pattern.regressed_version else ""
            return "regressed_pattern", f"{kind} in {name}: resolved, and occurred again{version}"
        # Of several runs that are stored at the same time, here or by other processes, each finds the others counted.
        is_new = pattern.runs <= 1 or now - pattern.first_seen_at / 1000 < REPEAT_INTERVAL_SECONDS
        return ("new_pattern", f"{kind} in {name}: new failure pattern") if is_new else None

    def _look_up_pattern(self, step: Step, now: float) -> Pattern | None:
        id = _pattern_id(step)
        seen_at = self._seen_patterns.get(id)
        if self._find_pattern is None or not id:
            return None
        if seen_at is not None and now - seen_at < PATTERN_CHECK_SECONDS:
            return None
        _remember(self._seen_patterns, id, now)
        pattern = self._find_pattern(id)
        # A pattern that is known already can only have come back.
        return pattern if seen_at is None or (pattern is not None and pattern.regressed_at) else None

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
            failed_at=step.started_at,
            action=describe_action((step,)),
            pattern_link=_build_link(self._link, "patterns", pattern),
            **self._run_origins.get(step.run, {}),
        )

    def _limit(self, alert: Alert, now: float) -> Alert | None:
        """Return the alert with the number of suppressed alerts before it, or None if it is not sent."""
        key, is_added = alert.key, False

        interval = self.settings.interval_minutes * 60

        def add(log: AlertLog) -> AlertLog | None:
            nonlocal is_added
            is_added = not (log.is_repeated(key, now, interval) or log.is_full(now))
            self._log = log.add(key, now, interval) if is_added else log
            return self._log if is_added else None

        if not (self._log.is_repeated(key, now, interval) or self._log.is_full(now)):
            try:
                self._update_log(add)
            except StoreError as error:  # Better sent by each process than by none.
                log.warning("The log of sent alerts is unavailable: %s", error)
                add(self._log)
        if not is_added:
            is_repeated = self._log.is_repeated(key, now, interval)
            self._suppressed += not is_repeated
            if is_repeated:
                _remember(self._repeats, key, self._repeats.pop(key, 0) + 1)
            return None
        alert = replace(alert, repeats=self._repeats.pop(key, 0))
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
