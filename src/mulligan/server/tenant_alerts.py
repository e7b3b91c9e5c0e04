"""Alerts of a server: evaluated beside ingest, stored before they are sent, and sent until their target accepts them.

Servers that share a store share the stored alerts of each tenant. One of them sends a message: it claims it with a
compare-and-set first. A message of a killed server is sent by the next one, so a target may get it twice.
"""

from __future__ import annotations

import logging
import shlex
import shutil
import subprocess
import threading
import time
import urllib.error
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from mulligan.contract.store import DEFAULT_TENANT, Store
from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import SettingsError, StoreError
from mulligan.core.records import Record, decode, encode, new_id
from mulligan.report.alert_targets import Alert, AlertTarget, build_targets, parse_target
from mulligan.report.alerts import AlertLog, AlertRules, AlertSettings, describe_alert, find_quiet_end
from mulligan.server.tenants import SERVER_ENTRY_KIND, Tenant, Tenants, update_entry

log = logging.getLogger(__name__)

HISTORY_KEY = "alert history"
MAX_STORED_ALERTS = 200
MAX_QUEUED_EVENTS = 50_000
"""Limit of events that wait for evaluation. Above it they raise no alert."""
POLL_SECONDS = 5.0
"""Delay between two looks for messages that are due, of this or another server."""
PATTERN_POLL_SECONDS = 60.0
HEALTH_POLL_SECONDS = 15.0
RETRY_DELAYS_SECONDS = (5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0)
"""Delay after each failed attempt; the last one repeats."""
MAX_DELIVERY_AGE_SECONDS = 24 * 3600.0
CLAIM_SECONDS = 60.0
"""A message that was claimed so long ago, and is not sent, is sent again: its server was killed."""
MAX_SENDING_THREADS = 8
CLOSE_SECONDS = 5.0
TEST_INTERVAL_SECONDS = 10.0
"""Minimum time between two test messages that people ask a server for."""
GROUPING_TARGETS = ("slack", "teams", "mail")
"""Targets read by people: alerts that are due together are one message there."""


class Delivery(Record, frozen=True):
    """One alert for one target. Times are UTC milliseconds."""

    target: str
    label: str
    attempts: int = 0
    next_at: int = 0
    sent_at: int = 0
    error: str = ""
    """Why the last attempt failed."""
    failed: bool = False
    """Whether no further attempt is made."""

    @property
    def is_pending(self) -> bool:
        return not (self.sent_at or self.failed)


class StoredAlert(Record, frozen=True):
    """An alert with its deliveries."""

    id: str
    alert: Alert
    deliveries: tuple[Delivery, ...] = ()
    resolved_at: int = 0

    @property
    def state(self) -> str:
        if any(delivery.is_pending for delivery in self.deliveries):
            return "pending"
        return "failed" if any(delivery.failed for delivery in self.deliveries) else "sent"


class AlertHistory(Record, frozen=True):
    """The latest alerts of a tenant, the newest last."""

    alerts: tuple[StoredAlert, ...] = ()


class TenantAlerts:
    """Background work that evaluates stored events and sends alerts to the targets of each tenant."""

    def __init__(
        self,
        store: Store,
        tenants: Tenants,
        settings: AlertSettings = AlertSettings(),  # noqa: B008 - immutable
        command: str = "",
        webhook: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._tenants, self._settings, self._clock = store, tenants, settings, clock
        self._server_targets = build_targets(command, webhook, settings.targets, settings.smtp)
        self.link = ""
        """Address of the dashboard. Empty beyond loopback: there, clients use a name that the server does not know."""
        self.check_health: Callable[[], str] = lambda: ""
        """Describes why the server is unhealthy; empty if it is not."""
        self._invalid_tenants: set[str] = set()
        """Tenants whose targets are invalid, so that each is logged once."""
        self._rules: dict[str, AlertRules] = {}
        self._events: deque[tuple[str, Sequence[AnyEvent] | str]] = deque()
        self._event_count = 0
        self._lock = threading.Lock()
        self._wake, self._is_stopping = threading.Event(), threading.Event()
        self._senders: dict[tuple[str, str], threading.Thread] = {}
        self._scanned_at = self._checked_at = self._patterns_checked_at = float("-inf")
        self._thread = threading.Thread(target=self._run, name="mulligan-alerts", daemon=True)

    # Settings

    def find_missing_program(self) -> str:
        """Return the program of the server's own command if it is not installed."""
        for target in self._server_targets:
            program = next(iter(shlex.split(target.address)), "") if target.type == "command" else ""
            if program and shutil.which(program) is None:
                return program
        return ""

    def settings_for(self, tenant: str) -> AlertSettings:
        """Return the rules of a tenant. Without its own it has those of the server, but not the server's targets."""
        own_settings = self._tenants.settings_for(tenant).alerts
        return own_settings or (self._settings if tenant == DEFAULT_TENANT else replace(self._settings, targets=()))

    def change_settings(
        self,
        tenant: str,
        changes: Mapping[str, Any],
        added_targets: Sequence[str] = (),
        removed_targets: Iterable[str] = (),
    ) -> AlertSettings:
        """Change rules of a tenant, add targets, and remove those with these ids.

        Raise `SettingsError` for an invalid value, an unknown target or tenant.
        """
        removed = set(removed_targets)

        def change(before: Tenant) -> Tenant:
            current = before.alerts or replace(self._settings, targets=())
            ids = {target: parse_stored_target(target).id for target in changes.get("targets", current.targets)}
            if unknown := removed - set(ids.values()):
                raise SettingsError(f"No target {min(unknown)[:80]!r} of this tenant.")
            remaining = [target for target, id in ids.items() if id not in removed]
            targets = tuple(dict.fromkeys((*remaining, *added_targets)))
            new_settings = replace(current, **{**changes, "targets": targets}, smtp=self._settings.smtp).check()
            return replace(before, alerts=replace(new_settings, smtp=""))  # the mail server of the server counts

        self._tenants.set(tenant, change)
        self._tenants.refresh()
        return self.settings_for(tenant)

    def find_targets(self, tenant: str) -> list[AlertTarget]:
        """Return the targets of a tenant. The default tenant falls back to the server's."""
        try:
            targets = self._build_own_targets(self._tenants.settings_for(tenant))
        except SettingsError as error:  # For example, the server has no mail server any more.
            if tenant not in self._invalid_tenants:
                log.warning("Alerts of tenant %s are not sent: %s", tenant, error)
                self._invalid_tenants.add(tenant)
            return []
        self._invalid_tenants.discard(tenant)
        return targets or (self._server_targets if tenant == DEFAULT_TENANT else [])

    def list_own_targets(self, tenant: str) -> list[AlertTarget]:
        """Return the targets in the rules of a tenant, which those who change the rules can remove."""
        own_settings = self._tenants.settings_for(tenant).alerts
        return [parse_stored_target(target) for target in own_settings.targets] if own_settings is not None else []

    def _build_own_targets(self, tenant: Tenant) -> list[AlertTarget]:
        listed_targets = tenant.alerts.targets if tenant.alerts is not None else ()
        return build_targets(tenant.alert_command, tenant.alert_webhook, listed_targets, self._settings.smtp)

    # Events of the server, called by its other threads: nothing here waits for a store or a target.

    def on_stored(self, tenant: str, events: Sequence[AnyEvent]) -> None:
        relevant_events = [event for event in events if isinstance(event, StepEnded | RunStarted | RunEnded)]
        if relevant_events and self.find_targets(tenant):
            self._push(tenant, relevant_events, len(relevant_events))

    def on_quota_exhausted(self, tenant: str, message: str) -> None:
        if self.find_targets(tenant):
            self._push(tenant, message, 1)

    def _push(self, tenant: str, item: Sequence[AnyEvent] | str, count: int) -> None:
        with self._lock:
            is_full = self._event_count > MAX_QUEUED_EVENTS
            if not is_full:
                self._events.append((tenant, item))
                self._event_count += count
        if is_full:
            log.warning("Alerts are not evaluated for %d events: too many wait", count)
        self._wake.set()

    # The thread

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Leave the rest to `close`: the server may still store records."""

    def close(self) -> None:
        """Evaluate what is stored and send what is due. Give up after a few seconds: the rest is stored."""
        self._is_stopping.set()
        self._wake.set()
        deadline = time.monotonic() + CLOSE_SECONDS
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)
            self._scanned_at = float("-inf")
            self.work()
        for thread in list(self._senders.values()):
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            self.work()
            self._wake.wait(POLL_SECONDS)
            self._wake.clear()
            self._is_stopping.wait(0.1)  # Requests in quick succession are evaluated together.

    def work(self) -> None:
        """Evaluate queued events and start the deliveries that are due."""
        for step in (self._evaluate, self._check_server, self._scan_tenants):
            try:
                step()
            except StoreError as error:
                log.warning("Alerts wait: %s", error)
            except Exception:
                log.exception("Alerts failed")

    def _evaluate(self) -> None:
        while self._events:
            with self._lock:
                tenant, item = self._events.popleft()
                self._event_count -= 1 if isinstance(item, str) else len(item)
            rules, now = self._find_rules(tenant), self._clock()
            if isinstance(item, str):
                alert = Alert(type="budget_exhausted", text=item, at=int(now * 1000), tenant=tenant)
                self.add(tenant, rules.limit([alert], now))
            else:
                self.add(tenant, rules.evaluate(item, now))

    def _find_rules(self, tenant: str) -> AlertRules:
        if tenant not in self._rules:
            find_pattern = partial(self._store.pattern, tenant)
            self._rules[tenant] = AlertRules(find_pattern, self.link, partial(self._update_log, tenant))
        self._rules[tenant].settings = self.settings_for(tenant)
        return self._rules[tenant]

    def _update_log(self, tenant: str, change: Callable[[AlertLog], AlertLog | None]) -> None:
        def update(stored_value: bytes | None) -> bytes | None:
            changed_log = change(decode(stored_value, AlertLog) if stored_value else AlertLog())
            return encode(changed_log) if changed_log is not None else None

        update_entry(self._store, tenant, "alerts", update)

    def _check_server(self) -> None:
        if time.monotonic() - self._checked_at < HEALTH_POLL_SECONDS or not self.find_targets(DEFAULT_TENANT):
            return
        self._checked_at = time.monotonic()
        problem, now = self.check_health(), self._clock()
        rules = self._find_rules(DEFAULT_TENANT)
        alert = Alert(type="server_unhealthy", text=f"the server is unhealthy: {problem}", at=int(now * 1000))
        if problem:
            self.add(DEFAULT_TENANT, rules.limit([alert], now))
        elif open_alert := rules.open_alerts.pop(alert.key, None):
            self.add(DEFAULT_TENANT, rules.limit([replace(open_alert, resolved=True, at=int(now * 1000))], now))

    def _scan_tenants(self) -> None:
        if time.monotonic() - self._scanned_at < POLL_SECONDS and not self._is_stopping.is_set():
            return
        self._scanned_at = time.monotonic()
        checks_patterns = self._scanned_at - self._patterns_checked_at >= PATTERN_POLL_SECONDS
        if checks_patterns:
            self._patterns_checked_at = self._scanned_at
        for tenant in self._tenants.load_all_with_default():
            if self.find_targets(tenant.name):
                try:
                    self._scan_tenant(tenant.name, checks_patterns)
                except StoreError as error:  # of a worker that has this tenant; the others go on
                    log.warning("Alerts wait: %s", error)

    def _scan_tenant(self, tenant: str, checks_patterns: bool) -> None:
        history, rules = load_history(self._store, tenant), self._find_rules(tenant)
        rules.open_alerts = {
            entry.alert.key: entry.alert
            for entry in history.alerts
            if not (entry.alert.resolved or entry.resolved_at or entry.alert.type == "test")
        }
        if checks_patterns:
            self._resolve_by_state(tenant, rules)
        self._start_senders(tenant, history)

    def _resolve_by_state(self, tenant: str, rules: AlertRules) -> None:
        """Resolve alerts about patterns that a person resolved or muted, and quotas of earlier days."""
        now = self._clock()
        for key, alert in list(rules.open_alerts.items()):
            has_ended = alert.type == "budget_exhausted" and alert.at // 86_400_000 < int(now) // 86_400
            if alert.type in ("new_pattern", "regressed_pattern"):
                pattern = self._store.pattern(tenant, alert.pattern)
                has_ended = pattern is not None and pattern.state in ("resolved", "muted")
            if has_ended:
                del rules.open_alerts[key]
                self.add(tenant, rules.limit([replace(alert, resolved=True, at=int(now * 1000))], now))

    # Stored alerts

    def _change(self, tenant: str, change: Callable[[AlertHistory], AlertHistory | None]) -> None:
        def update(stored_value: bytes | None) -> bytes | None:
            new_history = change(decode(stored_value, AlertHistory) if stored_value else AlertHistory())
            return encode(new_history) if new_history is not None else None

        update_entry(self._store, tenant, HISTORY_KEY, update)

    def add(self, tenant: str, alerts: Iterable[Alert]) -> None:
        """Store alerts for delivery after the quiet hours. If the store is unavailable, send them at once."""
        alerts, targets, now = list(alerts), self.find_targets(tenant), self._clock()
        if not alerts:
            return
        next_at = int(find_quiet_end(self.settings_for(tenant).quiet_hours, now) * 1000)
        entries = [
            StoredAlert(
                new_id("alt"), replace(alert, tenant=tenant),
                tuple(Delivery(target.id, target.label, next_at=next_at) for target in targets),
            )
            for alert in alerts
        ]  # fmt: skip
        resolved_keys = {alert.key for alert in alerts if alert.resolved}

        def append(history: AlertHistory) -> AlertHistory:
            existing = [
                replace(entry, resolved_at=int(now * 1000))
                if entry.alert.key in resolved_keys and not entry.resolved_at
                else entry
                for entry in history.alerts
            ]
            return AlertHistory((*existing, *entries)[-MAX_STORED_ALERTS:])

        rules = self._find_rules(tenant)
        rules.open_alerts |= {alert.key: alert for alert in alerts if not alert.resolved and alert.type != "test"}
        self._scanned_at = float("-inf")
        try:
            self._change(tenant, append)
        except StoreError as error:
            log.warning("Alerts are sent without being stored: %s", error)
            for target in targets:
                self._start_sender(tenant, target, entries)

    def _start_senders(self, tenant: str, history: AlertHistory) -> None:
        now = int(self._clock() * 1000)
        targets = {target.id: target for target in self.find_targets(tenant)}
        due_ids = {id for id, delivery in _find_first_pending(history).items() if delivery.next_at <= now}
        for id in due_ids & targets.keys():
            self._start_sender(tenant, targets[id], None)
        if due_ids - targets.keys():
            self._finish(tenant, None, due_ids - targets.keys(), "the target was removed", is_final=True)

    def _start_sender(self, tenant: str, target: AlertTarget, entries: Sequence[StoredAlert] | None) -> None:
        """Send in a thread: one per target, so that alerts keep their order, and few in all."""
        self._senders = {key: thread for key, thread in self._senders.items() if thread.is_alive()}
        if (tenant, target.id) not in self._senders and len(self._senders) < MAX_SENDING_THREADS:
            thread = threading.Thread(
                target=self._send, args=(tenant, target, entries), name="mulligan-alert-sender", daemon=True
            )
            self._senders[tenant, target.id] = thread
            thread.start()

    def _send(self, tenant: str, target: AlertTarget, entries: Sequence[StoredAlert] | None) -> None:
        try:
            if entries is not None:
                self._send_group(tenant, target, entries)
            while entries is None and (claimed := self._claim(tenant, target)):
                if not self._send_group(tenant, target, claimed):
                    return
        except StoreError as error:
            log.warning("Delivery of alerts is repeated: %s", error)
        except Exception:
            log.exception("Alerts failed")

    def _send_group(self, tenant: str, target: AlertTarget, claimed: Sequence[StoredAlert]) -> bool:
        """Send claimed alerts in order. Return whether the target can be asked for more."""
        size = len(claimed) if target.type in GROUPING_TARGETS else 1
        for start in range(0, len(claimed), size):
            group = claimed[start : start + size]
            ids = {entry.id for entry in group}
            try:
                target.deliver(self._describe(tenant, [entry.alert for entry in group]))
            except Exception as error:  # noqa: BLE001 - the next attempt may succeed
                is_rejected = isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429
                reason = describe_delivery_error(error)
                log.warning("Alert not delivered to %s: %s", target.label, reason)
                self._finish(tenant, ids, {target.id}, reason, is_final=is_rejected)
                if not is_rejected:
                    self._finish(tenant, {entry.id for entry in claimed[start + size :]}, {target.id}, reason)
                    return False
            else:
                self._finish(tenant, ids, {target.id}, "")
        return True

    def _describe(self, tenant: str, alerts: Sequence[Alert]) -> Alert:
        alert = alerts[0]
        try:
            alert = describe_alert(self._store, tenant, alert)
        except StoreError:
            log.warning("Alert sent without details: the store is unavailable")
        return replace(alert, grouped=tuple(other.text for other in alerts[1:]))

    def _claim(self, tenant: str, target: AlertTarget) -> list[StoredAlert]:
        """Mark the due deliveries of a target as being sent by this server, and return their alerts."""
        now = int(self._clock() * 1000)
        claimed: list[StoredAlert] = []

        def claim(history: AlertHistory) -> AlertHistory | None:
            claimed.clear()
            first = _find_first_pending(history).get(target.id)
            if first is None or first.next_at > now:
                return None  # Later alerts wait for the retry of the first one, and the target gets no more requests.

            def mark(delivery: Delivery, entry: StoredAlert) -> Delivery:
                if delivery.target != target.id or not delivery.is_pending or delivery.next_at > now:
                    return delivery
                claimed.append(entry)
                return replace(delivery, attempts=delivery.attempts + 1, next_at=now + int(CLAIM_SECONDS * 1000))

            alerts = tuple(
                replace(entry, deliveries=tuple(mark(delivery, entry) for delivery in entry.deliveries))
                for entry in history.alerts
            )
            return AlertHistory(alerts) if claimed else None

        self._change(tenant, claim)
        return claimed

    def _finish(
        self, tenant: str, ids: set[str] | None, targets: set[str], error: str, *, is_final: bool = False
    ) -> None:
        """Store the result of deliveries. `ids` of `None` means all pending ones of these targets."""
        now = int(self._clock() * 1000)

        def finish(delivery: Delivery, entry: StoredAlert) -> Delivery:
            is_meant = delivery.target in targets and delivery.is_pending and (ids is None or entry.id in ids)
            if not is_meant:
                return delivery
            if not error:
                return replace(delivery, sent_at=now, error="")
            is_expired = now - entry.alert.at > MAX_DELIVERY_AGE_SECONDS * 1000
            if is_final or is_expired or entry.alert.type == "test":
                return replace(delivery, error=error, failed=True)
            delay = RETRY_DELAYS_SECONDS[min(delivery.attempts, len(RETRY_DELAYS_SECONDS)) - 1]
            return replace(delivery, error=error, next_at=now + int(delay * 1000))

        def change(history: AlertHistory) -> AlertHistory:
            alerts = []
            for entry in history.alerts:
                entry = replace(entry, deliveries=tuple(finish(delivery, entry) for delivery in entry.deliveries))
                if not any(delivery.is_pending for delivery in entry.deliveries):
                    # The texts are in the run and the pattern, where `forget` and retention reach them.
                    entry = replace(entry, alert=replace(entry.alert, message="", action="", owner=""))
                alerts.append(entry)
            return AlertHistory(tuple(alerts))

        self._change(tenant, change)

    # What people ask for

    def send_test(self, tenant: str, author: str = "") -> list[Delivery]:
        """Send a test alert to every target of a tenant now. Return the results, which are in the history, too."""
        results = []
        alert = self._build_test_alert(tenant, author)
        for target in self.find_targets(tenant):
            result = Delivery(target.id, target.label, attempts=1)
            try:
                target.deliver(alert)
                results.append(replace(result, sent_at=int(self._clock() * 1000)))
            except Exception as error:  # noqa: BLE001 - the answer to the person who asked
                results.append(replace(result, error=describe_delivery_error(error), failed=True))
        if results:
            entry = StoredAlert(new_id("alt"), alert, tuple(results))
            self._change(tenant, lambda history: AlertHistory((*history.alerts, entry)[-MAX_STORED_ALERTS:]))
        return results

    def queue_test(self, tenant: str, author: str = "") -> StoredAlert:
        """Store a test alert, which is sent in a moment: the caller does not wait for its targets.

        Raise `SettingsError` without a target, and shortly after another test.
        """
        alert = self._build_test_alert(tenant, author)
        deliveries = tuple(Delivery(target.id, target.label) for target in self.find_targets(tenant))
        entry, is_added = StoredAlert(new_id("alt"), alert, deliveries), False
        if not deliveries:
            raise SettingsError("No target to test. Add one first.")

        def append(history: AlertHistory) -> AlertHistory | None:
            nonlocal is_added
            tests = (other.alert for other in history.alerts if other.alert.type == "test")
            is_added = all(alert.at - test.at >= TEST_INTERVAL_SECONDS * 1000 for test in tests)
            return AlertHistory((*history.alerts, entry)[-MAX_STORED_ALERTS:]) if is_added else None

        self._change(tenant, append)
        if not is_added:
            raise SettingsError(f"A test was sent a moment ago. Try again in {TEST_INTERVAL_SECONDS:.0f} seconds.")
        self._scanned_at = float("-inf")
        self._wake.set()
        return entry

    def _build_test_alert(self, tenant: str, author: str) -> Alert:
        sender = f" by {author}" if author else ""
        return Alert(
            type="test",
            text=f"test of alerts{sender}: this target works",
            at=int(self._clock() * 1000),
            tenant=tenant,
            link=f"{self.link.rstrip('/')}/alerts" if self.link else "",
        )


def _find_first_pending(history: AlertHistory) -> dict[str, Delivery]:
    """Return the oldest pending delivery by target."""
    pending: dict[str, Delivery] = {}
    for entry in history.alerts:
        for delivery in entry.deliveries:
            if delivery.is_pending:
                pending.setdefault(delivery.target, delivery)
    return pending


def load_history(store: Store, tenant: str) -> AlertHistory:
    stored_value = store.get(tenant, SERVER_ENTRY_KIND, HISTORY_KEY)
    return decode(stored_value, AlertHistory) if stored_value else AlertHistory()


def describe_delivery_error(error: Exception) -> str:
    """Describe why a target did not accept an alert, without its address."""
    match error:
        case urllib.error.HTTPError():
            return f"HTTP status {error.code}"
        case urllib.error.URLError() if isinstance(error.reason, OSError):
            return error.reason.strerror or "no connection"
        case subprocess.CalledProcessError():
            return f"exit status {error.returncode}"
        case TimeoutError() | subprocess.TimeoutExpired():
            return "no answer in time"
        case SettingsError():
            return str(error)
        case OSError():
            return error.strerror or type(error).__name__
    return type(error).__name__


_ANY_SMTP = "smtp://host/?from=mulligan@localhost"


def parse_stored_target(target: str) -> AlertTarget:
    """Parse a target to name it. Whether there is a mail server does not matter."""
    return parse_target(target, _ANY_SMTP)


def settings_facts(settings: AlertSettings) -> dict[str, Any]:
    """Return the rules without secrets: targets by their labels, no mail server."""
    facts: dict[str, Any] = {name: getattr(settings, name) for name in settings.__struct_fields__ if name != "smtp"}
    return facts | {"targets": [parse_stored_target(target).label for target in settings.targets]}


def alert_facts(entry: StoredAlert) -> dict[str, Any]:
    """Return a stored alert for the API and commands: without addresses of targets."""
    alert = entry.alert
    names = ("type", "text", "at", "tool", "kind", "run", "pattern", "resolved", "link", "pattern_link")
    facts: dict[str, Any] = {"id": entry.id, **{name: getattr(alert, name) for name in names}}
    facts |= {"state": entry.state, "resolved_at": entry.resolved_at or None}
    facts["deliveries"] = [
        {
            "target": delivery.label, "attempts": delivery.attempts, "sent_at": delivery.sent_at or None,
            "next_at": delivery.next_at if delivery.is_pending else None, "error": delivery.error,
        }
        for delivery in entry.deliveries
    ]  # fmt: skip
    return facts
