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

from mulligan.core.failure import SettingsError
from mulligan.core.records import Status
from mulligan.dashboard import formatting
from mulligan.store.base import PatternQuery, RunQuery
from mulligan.store.counters import DAY, HOUR, By, Grain, StatsQuery

RANGES = {"24h": "last 24 hours", "7d": "last 7 days", "30d": "last 30 days"}
FILTERS = ("agent", "tool", "kind", "model", "environment", "version", "status")
UNNAMED_AGENT = "(no name)"
"""Filter value for agents without a name. An empty field means no filter."""
MAX_VALUE_CHARS = 500


class PageQuery(NamedTuple):
    """Parsed URL of one page request. Times are UTC milliseconds."""

    now: int
    path: str
    period: str
    """A key of RANGES, or `custom`."""
    since: int
    until: int | None
    filters: Mapping[str, str]
    other_parameters: Mapping[str, str]
    """Parameters of a single page, such as `q`, `before`, `a`, `b`."""

    @classmethod
    def parse(cls, path: str, query: Mapping[str, str], now: int) -> PageQuery:
        parameters = {name: value.strip()[:MAX_VALUE_CHARS] for name, value in query.items() if value.strip()}
        first, last = parameters.pop("from", ""), parameters.pop("to", "")
        span = parameters.pop("range", "custom" if first or last else "7d")
        if span in RANGES:
            since, until = _period_start(span, now), None
        elif span == "custom":
            since, until = parse_date_range(first, last, now)
        else:
            raise SettingsError(f"Invalid range {span[:40]!r}. Use {', '.join(RANGES)}, or from and to.")
        filters = {name: parameters.pop(name) for name in FILTERS if name in parameters}
        if filters.get("status", "success") not in get_args(Status):
            raise SettingsError(
                f"Invalid status {filters['status'][:40]!r}. Use one of: {', '.join(get_args(Status))}."
            )
        if filters.get("kind", "").endswith("/"):
            filters["kind"] = filters["kind"].rstrip("/")
        return cls(now, path, span, since, until, filters, parameters)

    # Labels and links

    def value(self, name: str) -> str:
        """Return the value of a filter or other parameter, or an empty string."""
        return self.filters.get(name) or self.other_parameters.get(name) or ""

    @property
    def period_label(self) -> str:
        if self.period in RANGES:
            return RANGES[self.period]
        last = (self.until or self.now) - 1
        first, end = formatting.date(self.since), formatting.date(last)
        return first if first == end else f"{first} to {end}"

    @property
    def dates(self) -> tuple[str, str]:
        """First and last day of the period, in the format of a date field."""
        return formatting.date(self.since), formatting.date((self.until or self.now + 1) - 1)

    @property
    def grain(self) -> Grain:
        return "hour" if self.since >= self.now - 3 * DAY else "day"

    def link(self, path: str | None = None, *, keep: bool = True, **overrides: str | None) -> Markup:
        """Return a link to a page with the same period and filters.

        Keyword arguments override parameters; `None` removes one.
        """
        target = self.path if path is None else path
        base, _, path_query = target.partition("?")
        values: dict[str, str] = dict(self.filters) if keep else {}
        if path is None:
            values |= self.other_parameters
        if "range" not in overrides and "from" not in overrides:
            values |= self.time_parameters
        values |= {name: value for name, value in overrides.items() if value is not None}
        for name, value in overrides.items():
            if value is None:
                values.pop(name, None)
        query = "&".join(filter(None, (path_query, urlencode(values, errors="replace"))))
        return escape(f"{base}?{query}" if query else base)

    def detail_link(self, section: str, name: str) -> Markup:
        """Return a link to a detail page for the same period.

        Filters are dropped, because they could exclude the item.
        """
        return self.link(formatting.detail_path(section, name), keep=False)

    @property
    def time_parameters(self) -> dict[str, str]:
        if self.period == "7d":
            return {}
        if self.period in RANGES:
            return {"range": self.period}
        first, last = self.dates
        return {"from": first, "to": last}

    def link_with_dates(self, since: int, until: int) -> Markup:
        """Return a link to this page for other days."""
        dates: dict[str, Any] = {"range": None, "from": formatting.date(since), "to": formatting.date(until)}
        return self.link(**dates)

    @property
    def hidden_fields(self) -> Iterator[tuple[str, str]]:
        """Hidden form fields that preserve the period."""
        yield from self.time_parameters.items()

    # Store queries

    @property
    def agent(self) -> str | None:
        agent_name = self.filters.get("agent")
        return "" if agent_name == UNNAMED_AGENT else agent_name

    def stats_query(self, by: By | None = None, **overrides: Any) -> StatsQuery:
        fields: dict[str, Any] = {name: self.filters.get(name) for name in FILTERS if name not in ("agent", "status")}
        fields |= {"now": self.now, "since": self.since, "until": self.until, "by": by, "agent": self.agent}
        return StatsQuery(**(fields | overrides))

    def previous_stats_query(self, **overrides: Any) -> StatsQuery:
        """Return the query for the preceding period of equal length."""
        length = (self.until or self.period_end) - self.since
        return msgspec.structs.replace(self.stats_query(**overrides), since=self.since - length, until=self.since)

    @property
    def period_end(self) -> int:
        """End of the current hour or day."""
        length = HOUR if self.grain == "hour" else DAY
        return -(-(self.now + 1) // length) * length

    @property
    def buckets(self) -> range:
        """Start times of all hours or days of the period."""
        length = HOUR if self.grain == "hour" else DAY
        end = min(self.until, self.period_end) if self.until is not None else self.period_end
        return range(self.since // length * length, max(end, self.since + 1), length)

    def run_query(self, **overrides: Any) -> RunQuery:
        fields: dict[str, Any] = dict(self.filters) | {"agent": self.agent, "since": self.since, "until": self.until}
        if fields.get("kind") and "/" not in fields["kind"]:
            fields["kind"] += "/"
        return RunQuery(**(fields | overrides))

    def pattern_query(self, **overrides: Any) -> PatternQuery:
        kind = self.filters.get("kind")
        fields: dict[str, Any] = {
            "tool": self.filters.get("tool"),
            "kind": f"{kind}/" if kind and "/" not in kind else kind,
            "agent": self.agent,
            "since": self.since,
        }
        return PatternQuery(**(fields | overrides))


def _period_start(span: str, now: int) -> int:
    """Return the start of a period of full hours or days that includes the current one: 7d yields seven bars."""
    if span == "24h":
        return now // HOUR * HOUR - 23 * HOUR
    return now // DAY * DAY - (int(span[:-1]) - 1) * DAY


def parse_date_range(first: str, last: str, now: int) -> tuple[int, int | None]:
    """Parse two dates into a half-open interval. Without a last day it is open-ended."""
    since = _midnight(first, "from") if first else now // DAY * DAY - 6 * DAY
    until = _midnight(last, "to") + DAY if last else None
    if since >= (until if until is not None else now + 1):
        raise SettingsError(
            f"Invalid period: from {first or formatting.date(since)} is after to {last or formatting.date(now)}."
        )
    return since, until


def _midnight(text: str, name: str) -> int:
    try:
        day = datetime.date.fromisoformat(text)
    except ValueError:
        raise SettingsError(f"Invalid {name} {text[:40]!r}. Use a date, for example 2026-01-31.") from None
    if not 1970 <= day.year <= 9998:
        raise SettingsError(f"Invalid {name} {text[:40]!r}. Use a date from 1970 on.")
    return int(datetime.datetime(day.year, day.month, day.day, tzinfo=datetime.UTC).timestamp() * 1000)
