"""Page queries: the period, filters and other parameters of a dashboard URL.

The URL holds the whole state of a page.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args
from urllib.parse import urlencode

import msgspec
from markupsafe import Markup, escape

from mulligan.failure import SettingsError
from mulligan.figures import DAY, HOUR, By, Grain, StatsQuery
from mulligan.records import Status
from mulligan.remember.store import PatternQuery, RunQuery
from mulligan.serve.dashboard import shown

RANGES = {"24h": "last 24 hours", "7d": "last 7 days", "30d": "last 30 days"}
FILTERS = ("agent", "tool", "kind", "model", "environment", "version", "status")
NAMELESS = "(no name)"
"""Filter value for agents without a name. An empty field means no filter."""
LONGEST_VALUE = 500


class Asked(NamedTuple):
    """Parsed URL of one page request. Times are UTC milliseconds."""

    now: int
    path: str
    period: str
    """A key of RANGES, or `custom`."""
    since: int
    until: int | None
    filters: Mapping[str, str]
    rest: Mapping[str, str]
    """Parameters of a single page, such as `q`, `before`, `a`, `b`."""

    @classmethod
    def of(cls, path: str, query: Mapping[str, str], now: int) -> Asked:
        given = {name: value.strip()[:LONGEST_VALUE] for name, value in query.items() if value.strip()}
        first, last = given.pop("from", ""), given.pop("to", "")
        span = given.pop("range", "custom" if first or last else "7d")
        if span in RANGES:
            since, until = _since(span, now), None
        elif span == "custom":
            since, until = between(first, last, now)
        else:
            raise SettingsError(f"range takes {', '.join(RANGES)}, or from and to, got {span!r}.")
        filters = {name: given.pop(name) for name in FILTERS if name in given}
        if filters.get("status", "success") not in get_args(Status):
            raise SettingsError(f"status takes {', '.join(get_args(Status))}, got {filters['status']!r}.")
        if filters.get("kind", "").endswith("/"):
            filters["kind"] = filters["kind"].rstrip("/")
        return cls(now, path, span, since, until, filters, given)

    # Labels and links

    def value(self, name: str) -> str:
        """Return the value of a filter or other parameter, or an empty string."""
        return self.filters.get(name) or self.rest.get(name) or ""

    @property
    def span(self) -> str:
        if self.period in RANGES:
            return RANGES[self.period]
        last = (self.until or self.now) - 1
        first, end = shown.date(self.since), shown.date(last)
        return first if first == end else f"{first} to {end}"

    @property
    def dates(self) -> tuple[str, str]:
        """First and last day of the period, in the format of a date field."""
        return shown.date(self.since), shown.date((self.until or self.now + 1) - 1)

    @property
    def grain(self) -> Grain:
        return "hour" if self.since >= self.now - 3 * DAY else "day"

    def link(self, path: str | None = None, *, keep: bool = True, **changed: str | None) -> Markup:
        """Return a link to a page with the same period and filters.

        Keyword arguments override parameters; `None` removes one.
        """
        there = self.path if path is None else path
        base, _, own = there.partition("?")
        values: dict[str, str] = dict(self.filters) if keep else {}
        if path is None:
            values |= self.rest
        if "range" not in changed and "from" not in changed:
            values |= self.time
        values |= {name: value for name, value in changed.items() if value is not None}
        for name, value in changed.items():
            if value is None:
                values.pop(name, None)
        query = "&".join(filter(None, (own, urlencode(values, errors="replace"))))
        return escape(f"{base}?{query}" if query else base)

    def to(self, section: str, name: str) -> Markup:
        """Return a link to a detail page for the same period.

        Filters are dropped, because they could exclude the item.
        """
        return self.link(shown.place(section, name), keep=False)

    @property
    def time(self) -> dict[str, str]:
        if self.period == "7d":
            return {}
        if self.period in RANGES:
            return {"range": self.period}
        first, last = self.dates
        return {"from": first, "to": last}

    def with_dates(self, since: int, until: int) -> Markup:
        """Return a link to this page for other days."""
        dates: dict[str, Any] = {"range": None, "from": shown.date(since), "to": shown.date(until)}
        return self.link(**dates)

    @property
    def hidden(self) -> Iterator[tuple[str, str]]:
        """Hidden form fields that preserve the period."""
        yield from self.time.items()

    # Store queries

    @property
    def agent(self) -> str | None:
        named = self.filters.get("agent")
        return "" if named == NAMELESS else named

    def stats(self, by: By | None = None, **more: Any) -> StatsQuery:
        about: dict[str, Any] = {name: self.filters.get(name) for name in FILTERS if name not in ("agent", "status")}
        about |= {"now": self.now, "since": self.since, "until": self.until, "by": by, "agent": self.agent}
        return StatsQuery(**(about | more))

    def before(self, **more: Any) -> StatsQuery:
        """Return the query for the preceding period of equal length."""
        length = (self.until or self.ceiling) - self.since
        return msgspec.structs.replace(self.stats(**more), since=self.since - length, until=self.since)

    @property
    def ceiling(self) -> int:
        """End of the current hour or day."""
        length = HOUR if self.grain == "hour" else DAY
        return -(-(self.now + 1) // length) * length

    @property
    def buckets(self) -> range:
        """Start times of all hours or days of the period."""
        length = HOUR if self.grain == "hour" else DAY
        end = min(self.until, self.ceiling) if self.until is not None else self.ceiling
        return range(self.since // length * length, max(end, self.since + 1), length)

    def runs(self, **more: Any) -> RunQuery:
        about: dict[str, Any] = dict(self.filters) | {"agent": self.agent, "since": self.since, "until": self.until}
        if about.get("kind") and "/" not in about["kind"]:
            about["kind"] += "/"
        return RunQuery(**(about | more))

    def patterns(self, **more: Any) -> PatternQuery:
        kind = self.filters.get("kind")
        about: dict[str, Any] = {
            "tool": self.filters.get("tool"),
            "kind": f"{kind}/" if kind and "/" not in kind else kind,
            "agent": self.agent,
            "since": self.since,
        }
        return PatternQuery(**(about | more))


def _since(span: str, now: int) -> int:
    """Return the start of a period of full hours or days that includes the current one: 7d yields seven bars."""
    if span == "24h":
        return now // HOUR * HOUR - 23 * HOUR
    return now // DAY * DAY - (int(span[:-1]) - 1) * DAY


def between(first: str, last: str, now: int) -> tuple[int, int | None]:
    """Parse two dates into a half-open interval. Without a last day it is open-ended."""
    since = _midnight(first, "from") if first else now // DAY * DAY - 6 * DAY
    until = _midnight(last, "to") + DAY if last else None
    if since >= (until if until is not None else now + 1):
        raise SettingsError(f"from {first or shown.date(since)} is not before to {last or shown.date(now)}.")
    return since, until


def _midnight(text: str, name: str) -> int:
    try:
        given = datetime.date.fromisoformat(text)
    except ValueError:
        raise SettingsError(f"{name} takes a date such as 2026-01-31, got {text[:40]!r}.") from None
    if not 1970 <= given.year <= 9998:
        raise SettingsError(f"{name} takes a date from 1970 on, got {text[:40]!r}.")
    return int(datetime.datetime(given.year, given.month, given.day, tzinfo=datetime.UTC).timestamp() * 1000)
