"""Page queries: the period, filters and other parameters of a dashboard URL.

The URL holds the whole state of a page.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup, escape

from mulligan.contract.counters import DAY, HOUR, Grain, StatsQuery
from mulligan.contract.store import Store
from mulligan.core.failure import SettingsError
from mulligan.dashboard import formatting
from mulligan.report.resources import (
    LESSON_SPEC,
    MODEL_SPEC,
    RESOURCES,
    SESSION_SPEC,
    STATS_SPEC,
    STEP_SPEC,
    Parameter,
    ResourceSpec,
)
from mulligan.server.routes import decode_cursor, encode_cursor

RANGES = {
    "1h": "this and the previous hour", "24h": "last 24 hours", "7d": "last 7 days", "30d": "last 30 days",
    "90d": "last 90 days", "all": "all time",
}  # fmt: skip
PAGE_RESOURCES = {
    **RESOURCES, "live": STEP_SPEC, "learned": LESSON_SPEC, "models": MODEL_SPEC, "sessions": SESSION_SPEC,
}  # fmt: skip
"""Resources by the first part of a page's path."""
UNNAMED_AGENT = "(no name)"
"""Filter value for agents without a name. An empty field means no filter."""
MAX_VALUE_CHARS = 500


def find_resource(path: str) -> ResourceSpec:
    """Return the resource that a page lists. Pages without one filter metrics."""
    return PAGE_RESOURCES.get(path.split("/")[1], STATS_SPEC)


def form_filters(resource: ResourceSpec) -> list[Parameter]:
    """Return the filters with a form field. The period has its own fields."""
    return [parameter for parameter in resource.filters if parameter.name not in ("since", "until")]


class ListPages(NamedTuple):
    """Links from one page of a list to others, where there are any."""

    first: Markup | None
    next: Markup | None


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
        parameters = {name: value.strip() for name, value in query.items() if value.strip()}
        for name, value in parameters.items():
            if name != "q":  # the search page says that it is too long
                parameters[name] = value[:MAX_VALUE_CHARS]
        first, last = parameters.pop("from", ""), parameters.pop("to", "")
        span = parameters.pop("range", "7d")
        if first or last:
            span = "custom"
            since, until = parse_date_range(first, last, now)
        elif span == "all":
            since, until = 0, None
        elif span in RANGES:
            # Full hours or days, including the current one: 7d yields seven bars. 1h adds the hour before.
            length = HOUR if span.endswith("h") else DAY
            since, until = now // length * length - (max(2, int(span[:-1])) - 1) * length, None
        else:
            raise SettingsError(f"Invalid range {span[:40]!r}. Use {', '.join(RANGES)}, or from and to.")
        filters = {}
        for parameter in form_filters(find_resource(path)):
            if text := parameters.pop(parameter.name, ""):
                try:
                    parameter.parse(text, now)
                except ValueError as error:
                    raise SettingsError(f"Invalid {parameter.name} {text[:40]!r}. Use {error}.") from None
                filters[parameter.name] = text.rstrip("/") if parameter.type == "kind" else text
        return cls(now, path, span, since, until, filters, parameters)

    @property
    def form_filters(self) -> list[Parameter]:
        return form_filters(find_resource(self.path))

    def narrow(self, **filters: str) -> PageQuery:
        return self._replace(filters={**self.filters, **filters})

    @property
    def page_index(self) -> int:
        """Number of the requested page of a list with numbered pages, from 0."""
        page = self.other_parameters.get("page", "1")
        if not page.isascii() or not page.isdigit() or len(page) > 9 or int(page) < 1:
            raise SettingsError(f"Invalid page {page[:20]!r}. Use a number from 1.")
        return int(page) - 1

    def find_order(self, orders: Mapping[str, str], default: str) -> str:
        """Return the order of a list that the URL selects."""
        order = self.other_parameters.get("order", default)
        if order not in orders:
            raise SettingsError(f"Invalid order {order[:40]!r}. Use one of: {', '.join(orders)}.")
        return order

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
    def start_label(self) -> str:
        """Start of the period."""
        start = formatting.date(self.since)
        return f"{start} {formatting.hour(self.since)} UTC" if self.grain == "hour" else start

    @property
    def pattern_start(self) -> str:
        """Start of the day from which patterns are counted, if the period starts within that day."""
        return f"{formatting.date(self.since)} 00:00 UTC" if self.since % DAY else ""

    @property
    def dates(self) -> tuple[str, str]:
        """First and last day of the period, in the format of a date field."""
        return formatting.date(self.since), formatting.date((self.until or self.now + 1) - 1)

    @property
    def grain(self) -> Grain:
        return "hour" if self.since >= self.now - 3 * DAY else "day"

    def link(self, path: str | None = None, *, keep: bool = True, **overrides: str | None) -> Markup:
        """Return a link to a page with the same period, and the same filters as far as it has them.

        Keyword arguments override parameters; `None` removes one.
        """
        base, _, path_query = (self.path if path is None else path).partition("?")
        values: dict[str, str] = {}
        if path is None:
            values |= {**self.filters, **self.other_parameters}
            for position in ("cursor", "page"):  # another selection starts at its first page
                values.pop(position, None)
        elif keep:
            choices = {parameter.name: parameter.choices for parameter in self.form_filters}
            for parameter in form_filters(find_resource(base)):
                # The state of a lesson is no state of a pattern.
                if parameter.name in self.filters and choices.get(parameter.name, ()) == parameter.choices:
                    values[parameter.name] = self.filters[parameter.name]
        if "range" not in overrides and "from" not in overrides:
            values |= self.time_parameters
        parameters = {name: value for name, value in {**values, **overrides}.items() if value is not None}
        query = "&".join(filter(None, (path_query, urlencode(parameters, errors="replace"))))
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

    # Store queries

    def query(self, resource: ResourceSpec, **overrides: Any) -> Any:
        """Build the store query of a resource from the period and the filters that it has."""
        return resource.build_query(self._parse_filters(resource), **overrides)

    def _parse_filters(self, resource: ResourceSpec) -> dict[str, Any]:
        values = {
            parameter.name: parameter.parse(self.filters[parameter.name], self.now)
            for parameter in resource.filters
            if parameter.name in self.filters
        }
        if values.get("agent") == UNNAMED_AGENT:
            values["agent"] = ""
        return {"now": self.now, "since": self.since, "until": self.until, **values}

    def read_page(
        self, store: Store, tenant: str, resource: ResourceSpec, limit: int, **overrides: Any
    ) -> tuple[list[Any], ListPages]:
        """Read the page of a list that the cursor in the URL selects, with links to the first and the next page."""
        cursor = self.other_parameters.get("cursor", "")
        position = decode_cursor(cursor, resource.position_type) if cursor else None
        values = self._parse_filters(resource) | overrides
        records, next_position = resource.read_page(store, tenant, values, limit, position)
        more = self.link(cursor=encode_cursor(next_position)) if next_position is not None else None
        return records, ListPages(self.link() if position is not None else None, more)

    def stats_query(self, by: str | None = None, **overrides: Any) -> StatsQuery:
        query: StatsQuery = self.query(STATS_SPEC, by=by, **overrides)
        return query

    def previous_stats_query(self) -> StatsQuery:
        """Return the query for the preceding period of equal length."""
        length = (self.until or self.period_end) - self.since
        return self.stats_query(since=self.since - length, until=self.since)

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


def parse_date_range(first: str, last: str, now: int) -> tuple[int, int | None]:
    """Parse two dates into a half-open interval. Without a last day it is open-ended."""
    since = _midnight(first, "from") if first else now // DAY * DAY - 6 * DAY
    until = _midnight(last, "to") + DAY if last else None
    if since >= (until if until is not None else now + 1):
        raise SettingsError(
            f"Invalid period: from {first or formatting.date(since)} is after to {last or formatting.date(now)}."
        )
    return since, until


def parse_hour(text: str, name: str) -> int:
    """Parse a full hour such as 2026-01-31T08:00 (UTC)."""
    try:
        time = datetime.datetime.strptime(text, "%Y-%m-%dT%H:00").replace(tzinfo=datetime.UTC)
    except ValueError:
        raise SettingsError(f"Invalid {name} {text[:40]!r}. Use a full hour, for example 2026-01-31T08:00.") from None
    return int(time.timestamp() * 1000)


def _midnight(text: str, name: str) -> int:
    try:
        day = datetime.date.fromisoformat(text)
    except ValueError:
        raise SettingsError(f"Invalid {name} {text[:40]!r}. Use a date, for example 2026-01-31.") from None
    if not 1970 <= day.year <= 9998:
        raise SettingsError(f"Invalid {name} {text[:40]!r}. Use a date from 1970 on.")
    return int(datetime.datetime(day.year, day.month, day.day, tzinfo=datetime.UTC).timestamp() * 1000)
