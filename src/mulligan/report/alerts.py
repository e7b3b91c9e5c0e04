"""Alerts to a command or a webhook: failures that need a person, new patterns, high failure rates, open circuits.

Off by default. Alerts are built from redacted events. Repeated alerts are suppressed for an interval, and the number
of alerts per hour is limited.
"""

from __future__ import annotations

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

from mulligan.events import AnyEvent, RunEnded, StepEnded
from mulligan.failure import Remedy, SettingsError
from mulligan.records import Pattern, Record, Step, encode, pattern_id
from mulligan.redaction import clean

log = logging.getLogger("mulligan")

T = TypeVar("T")

AGAIN = 900.0
"""Minimum time between two alerts with the same type and subject."""
HOURLY = 30
"""Maximum number of alerts per hour, of all types together."""
WINDOW, LEAST, SHARE = 600.0, 20, 0.5
"""High failure rate: in this window, with at least this many calls, at least this ratio was unrecovered."""
SECONDS = 10.0
"""Timeout of one command run or webhook request."""
PAUSES = (1.0, 5.0)
"""Backoff before each retry of a webhook request that timed out or failed with a server error."""
WAITING = 100
REMEMBERED = 10_000
UNMADE = "it was not made"
"""Evidence of a blocked call. If its circuit breaker is open, the failure also has `retry_after`."""
CIRCUIT_OPEN = "its circuit breaker is open"
"""Stop reason of calls that an open circuit breaker ended."""


class Alert(Record, frozen=True):
    """One alert, as sent in JSON."""

    what: Literal["person_needed", "new_pattern", "giving_up", "circuit_open"]
    told: str
    """Summary in one sentence."""
    at: int
    tool: str = ""
    kind: str = ""
    run: str = ""
    message: str = ""
    pattern: str = ""
    link: str = ""
    """Dashboard URL of the run, if a server is configured."""
    untold: int = 0
    """Earlier alerts that were not sent because of the hourly limit."""


class Watch:
    """Rules that derive alerts from stored events. Pure: the caller passes the time and sends the alerts."""

    def __init__(self, find: Callable[[str], Pattern | None] | None = None, link: str = "") -> None:
        self._find = find
        self._link = link.rstrip("/")
        self._met: dict[str, None] = {}
        """Patterns that were already looked up, so that each is checked once."""
        self._told: dict[tuple[str, str], float] = {}
        self._hour: deque[float] = deque()
        self._ended: deque[tuple[float, bool]] = deque(maxlen=REMEMBERED)
        self._open: dict[str, dict[int, Step]] = {}
        """Failed calls that may still recover, by run. Imported records have no stop reason that would settle this."""
        self._over: dict[str, None] = {}
        """Ended runs: their open failures are unrecovered."""
        self._untold = 0
        """Alerts not sent because of the hourly limit since the last sent one."""

    def heard(self, events: Iterable[AnyEvent], now: float) -> list[Alert]:
        """Return the alerts for a batch of events stored at this time."""
        found: list[Alert] = []
        heard: set[str] = set()
        for event in events:
            if isinstance(event, StepEnded):
                found += self._of(event.step, now)
                heard.add(event.step.run)
            elif isinstance(event, RunEnded):
                _keep(self._over, event.run.id, None)
                heard.add(event.run.id)
        for run in heard & self._over.keys() & self._open.keys():
            for step in self._open.pop(run).values():
                found += self._given_up(step, now)
        return [self._counted(alert) for alert in found if self._is_told(alert, now)]

    def _of(self, step: Step, now: float) -> Iterable[Alert]:
        failure = step.failure
        if step.outcome == "success":
            self._ended.append((now, False))
            self._close(step.run, lambda each: each.call == step.call or each.name == step.name)
        elif step.ending is not None and step.has_failed:
            self._close(step.run, lambda each: each.call == step.call)
            yield from self._given_up(step, now)
        elif step.has_failed and step.type != "run":
            if step.run not in self._open:
                _keep(self._open, step.run, {})
            self._open[step.run][step.call] = step
        if failure is None or not step.has_failed:
            return
        name = clean(step.name, 80)
        is_blocked = UNMADE in failure.evidence
        if (is_blocked and failure.retry_after is not None) or (step.ending and CIRCUIT_OPEN in step.ending.why):
            yield self._alert("circuit_open", f"{name} fails so often that {CIRCUIT_OPEN}", step, now)
        if is_blocked:
            return
        if failure.remedy is Remedy.STOP:
            yield self._alert("person_needed", f"{failure.kind} in {name}: only a person can fix it", step, now)
        elif self._is_new(step):
            yield self._alert("new_pattern", f"{failure.kind} in {name}: not met before", step, now)

    def _close(self, run: str, is_over: Callable[[Step], bool]) -> None:
        """Remove open failures of a run that match: they were attempted again or have recovered."""
        if run in self._open:
            self._open[run] = {call: each for call, each in self._open[run].items() if not is_over(each)}

    def _given_up(self, step: Step, now: float) -> Iterable[Alert]:
        self._ended.append((now, True))
        if told := self._giving_up(now):
            yield self._alert("giving_up", told, step, now)

    def _giving_up(self, now: float) -> str:
        while self._ended and self._ended[0][0] < now - WINDOW:
            self._ended.popleft()
        given_up = sum(is_given_up for _, is_given_up in self._ended)
        if len(self._ended) < LEAST or given_up < SHARE * len(self._ended):
            return ""
        return f"{given_up} of the last {len(self._ended)} calls were given up"

    def _is_new(self, step: Step) -> bool:
        """Return whether the pattern of a failure first occurred in this run."""
        if self._find is None or step.failure is None or not step.failure.fingerprint:
            return False
        id = pattern_id(step.name, step.failure.fingerprint)
        if id in self._met:
            return False
        _keep(self._met, id, None)
        pattern = self._find(id)
        return pattern is not None and pattern.runs <= 1 and pattern.state != "muted"

    def _alert(self, what: Any, told: str, step: Step, now: float) -> Alert:
        failure = step.failure
        id = pattern_id(step.name, failure.fingerprint) if failure is not None and failure.fingerprint else ""
        return Alert(
            what=what,
            told=told,
            at=int(now * 1000),
            tool=clean(step.name, 200),
            kind=str(failure.kind) if failure is not None else "",
            run=step.run,
            message=clean(failure.message, 300) if failure is not None else "",
            pattern=id,
            link=f"{self._link}/runs/{quote(step.run, safe='')}" if self._link else "",
        )

    def _is_told(self, alert: Alert, now: float) -> bool:
        about = {"giving_up": "", "circuit_open": alert.tool}.get(alert.what, f"{alert.kind} {alert.tool}")
        key = (alert.what, about)
        if now - self._told.get(key, float("-inf")) < AGAIN:
            return False
        while self._hour and self._hour[0] < now - 3600:
            self._hour.popleft()
        if len(self._hour) >= HOURLY:
            self._untold += 1
            return False
        if len(self._told) >= REMEMBERED:
            self._told.clear()
        self._told[key] = now
        self._hour.append(now)
        return True

    def _counted(self, alert: Alert) -> Alert:
        """Return the alert with the number of suppressed alerts before it."""
        untold, self._untold = self._untold, 0
        if not untold:
            return alert
        some = "an alert before this one was" if untold == 1 else f"{untold} alerts before this one were"
        return replace(alert, untold=untold, told=f"{alert.told}; {some} not told, there were so many")


def _keep(known: dict[str, T], name: str, value: T) -> None:
    """Add an entry and evict the oldest one if the limit is reached."""
    if len(known) >= REMEMBERED:
        del known[next(iter(known))]
    known[name] = value


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
        clock: Callable[[], float] = time.time,
    ) -> None:
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise SettingsError(f"{command!r} is no command: {error}.") from None
        if not self._command and not webhook:
            raise SettingsError("alerts need somebody to tell: a command or a webhook.")
        if webhook and urlsplit(webhook).scheme not in ("http", "https"):
            raise SettingsError(f"a webhook is an http(s) address, got {webhook!r}.")
        self._webhook = webhook
        self._watch = Watch(find, link)
        self._clock = clock
        self._waiting: queue.Queue[Alert | None] = queue.Queue(WAITING)
        self._thread: threading.Thread | None = None
        self._is_closing = threading.Event()

    def __call__(self, event: AnyEvent) -> None:
        self.heard((event,))

    def heard(self, events: Iterable[AnyEvent]) -> None:
        """Evaluate stored events and queue their alerts for delivery."""
        for alert in self._watch.heard(events, self._clock()):
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mulligan-alerts", daemon=True)
                self._thread.start()
            try:
                self._waiting.put_nowait(alert)
            except queue.Full:
                log.warning("an alert was not told, because %d wait: %s", WAITING, alert.told)

    def close(self, timeout: float = 2.0) -> None:
        """Send the queued alerts and stop the thread. Give up after the timeout."""
        if self._thread is not None:
            self._is_closing.set()
            deadline = time.monotonic() + timeout
            try:
                self._waiting.put(None, timeout=timeout)
            except queue.Full:  # the receiver does not respond
                log.warning("%d alerts were not told before the end", self._waiting.qsize())
                return
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while (alert := self._waiting.get()) is not None:
            for tell in (self._run_command, self._post):
                try:
                    tell(alert)
                except Exception as error:  # noqa: BLE001 - log it and continue with the next receiver
                    log.warning("nobody could be alerted (%s): %s", error, alert.told)

    def _run_command(self, alert: Alert) -> None:
        if self._command:
            # No shell, and no alert text on the command line: it contains untrusted text.
            subprocess.run(
                self._command, input=encode(alert) + b"\n", timeout=SECONDS, check=True, stdout=subprocess.DEVNULL
            )

    def _post(self, alert: Alert) -> None:
        if self._webhook:
            body = json.dumps({"text": f"mulligan: {alert.told}", "alert": json.loads(encode(alert))}).encode()
            sent = urllib.request.Request(self._webhook, body, {"Content-Type": "application/json"})
            for pause in (*PAUSES, None):
                try:
                    with _opener.open(sent, timeout=SECONDS) as answer:
                        answer.read(1024)
                    return
                except OSError as error:  # urllib errors are OSErrors
                    refused = isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429
                    if pause is None or refused or self._is_closing.wait(pause):
                        raise


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None  # a redirect would send failure data to a host that is not configured


_opener = urllib.request.build_opener(_NoRedirects)
