"""Prices of models, and the cost of a step by them.

`prices.json` has the shipped prices, in US dollars per million tokens, and the rules by which a model's name matches
them. The user's prices come first. A model that matches nothing has no cost.

The package genai-prices has the same prices for these models, and those of more. But it charges counts without a listed
price, such as cached input, like other input, and its import takes 180 ms of CPU with 47 modules of pydantic.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from mulligan.core.events import AnyEvent, StepEnded
from mulligan.core.failure import SettingsError
from mulligan.core.records import Step, build_decoder

PRICES_FILE = Path(__file__).with_name("prices.json")
ALL_MODELS = "*"
"""The user's entry for all models without one. Its only value is false: it disables the shipped prices."""
STANDARD_TIERS = ("auto", "default", "standard", "standard_only")
"""Service tiers at the listed prices."""
MAX_COST = 1e6
"""Dollars. A larger cost of one step is an error."""
Day = Annotated[str, msgspec.Meta(pattern=r"^(\d{4}-\d\d-\d\d)?$")]
Dollars = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class LongInputPrice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices of requests whose input is longer than `tokens`. None means unknown."""

    tokens: int
    input: Dollars | None = None
    output: Dollars | None = None
    cached_input: Dollars | None = None
    cache_write: Dollars | None = None
    cache_write_1h: Dollars | None = None


class ModelPrice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices of one model, in US dollars per million tokens."""

    input: Dollars
    output: Dollars
    cached_input: Dollars | None = None
    cache_write: Dollars | None = None
    cache_write_1h: Dollars | None = None
    long_input: LongInputPrice | None = None
    since: Day = msgspec.field(default="", name="from")
    """The first day of these prices. Earlier calls have no cost."""


class _PriceFile(msgspec.Struct, frozen=True):
    checked: str
    """When the prices were last compared with `source`."""
    source: str
    unit: str
    prefixes: tuple[str, ...]
    """Prefixes of a model's name that do not change its price."""
    suffixes: tuple[str, ...]
    """Regular expressions of suffixes that do not change its price: dates and versions."""
    models: dict[str, ModelPrice]


def load_shipped_prices() -> _PriceFile:
    prices: _PriceFile = build_decoder(_PriceFile).decode(PRICES_FILE.read_bytes())
    return prices


def parse_prices(prices: Mapping[str, Any]) -> dict[str, ModelPrice | None]:
    """Check the user's prices. Raises `SettingsError` with the model's name."""
    parsed: dict[str, ModelPrice | None] = {}
    for model, price in prices.items():
        if price is False:
            parsed[model.strip().lower()] = None
            continue
        try:
            if model == ALL_MODELS:
                raise ValueError("only false is possible, which disables the shipped prices")
            parsed[model.strip().lower()] = build_decoder(ModelPrice).decode(msgspec.json.encode(price))
        except (msgspec.ValidationError, ValueError) as error:
            example = "{ input = 2.5, output = 10.0 }, in US dollars per million tokens, or false"
            raise SettingsError(f'Invalid prices."{model}": {error}. Use {example}.') from None
    return parsed


class PriceTable:
    """The user's and the shipped prices. The shipped ones are loaded for the first step with tokens."""

    def __init__(self, prices: Mapping[str, Any] | None = None) -> None:
        self._user_prices = parse_prices(prices or {})
        self._shipped: _PriceFile | None = None
        self._price_by_model: dict[str, ModelPrice | None] = {}

    def find(self, model: str) -> ModelPrice | None:
        if model not in self._price_by_model:
            if len(self._price_by_model) >= 1000:
                self._price_by_model.clear()
            self._price_by_model[model] = self._find(model)
        return self._price_by_model[model]

    def _find(self, model: str) -> ModelPrice | None:
        if self._shipped is None:
            self._shipped = load_shipped_prices()
        names = list(_iter_names(model, self._shipped))
        for name in names:
            if name in self._user_prices:
                return self._user_prices[name]
        if ALL_MODELS in self._user_prices:
            return None
        return next((self._shipped.models[name] for name in names if name in self._shipped.models), None)

    def add_cost(self, step: Step) -> Step:
        """Return the step with its cost and the cost that it avoided, as far as they are known."""
        avoided = step.avoided
        if step.cost_nanos is not None or not step.may_have_cost:
            return step
        if (cost_nanos := _read_stated_cost(step)) is None and step.tokens and _has_standard_tier(step):
            cost_nanos = self.cost_nanos(step.model, step.tokens, step.started_at)
        if avoided is not None and avoided.cost_nanos is None:
            avoided_nanos = self._resend_nanos(avoided.model, avoided.input_tokens, step.started_at)
            avoided = msgspec.structs.replace(avoided, cost_nanos=avoided_nanos)
        if cost_nanos is None and avoided is step.avoided:
            return step
        return msgspec.structs.replace(step, cost_nanos=cost_nanos, avoided=avoided)

    def add_costs(self, events: Sequence[AnyEvent]) -> list[AnyEvent]:
        """Return the events with the cost of their steps."""
        return [
            StepEnded(self.add_cost(event.step), event.messages)
            if isinstance(event, StepEnded) and event.step.may_have_cost
            else event
            for event in events
        ]

    def cost_nanos(self, model: str | None, tokens: Mapping[str, int], started_at: int) -> int | None:
        """Return the cost of these tokens in billionths of a dollar; None unless every count has a price."""
        price = self._find_at(model, started_at)
        total_input, total_output = tokens.get("input"), tokens.get("output")
        if price is None or total_input is None or (total_output is None and price.output):
            return None
        if tokens.get("audio_input") or tokens.get("audio_output"):
            return None
        rates = price.long_input if price.long_input is not None and total_input > price.long_input.tokens else price
        parts = {name: tokens.get(name, 0) for name in ("cached_input", "cache_write", "cache_write_1h")}
        counts = {"input": total_input - sum(parts.values()), "output": total_output or 0, **parts}
        dollars_per_million = 0.0
        for name, count in counts.items():
            rate = getattr(rates, name)
            if count < 0 or (count and rate is None):
                return None
            dollars_per_million += count * (rate or 0.0)
        return round(dollars_per_million * 1000)

    def _resend_nanos(self, model: str, input_tokens: int, started_at: int) -> int | None:
        """Return the least cost of sending a conversation again: as cached input, if the model has such a price."""
        price = self._find_at(model, started_at)
        if price is None:
            return None
        rates = price.long_input if price.long_input is not None and input_tokens > price.long_input.tokens else price
        dollar_rates = [rate for rate in (rates.input, rates.cached_input) if rate is not None]
        return round(input_tokens * min(dollar_rates) * 1000) if dollar_rates else None

    def _find_at(self, model: str | None, started_at: int) -> ModelPrice | None:
        price = self.find(model) if model else None
        if price is None or time.strftime("%Y-%m-%d", time.gmtime(started_at / 1000)) < price.since:
            return None
        return price


def _iter_names(model: str, rules: _PriceFile) -> Iterator[str]:
    """Yield the names under which a model may be listed, the most specific first."""
    name = model.strip().lower()
    yield name
    prefix = next((prefix for prefix in rules.prefixes if name.startswith(prefix)), "")
    if prefix:
        name = name.removeprefix(prefix)
        yield name
    for suffix in rules.suffixes:
        shorter = re.sub(f"(?:{suffix})$", "", name)
        if shorter != name:
            name = shorter
            yield name


def _read_stated_cost(step: Step) -> int | None:
    """Return the cost that the program stated in the metadata of the step, in dollars."""
    dollars = step.metadata.get("cost") if step.metadata else None
    if isinstance(dollars, bool) or not isinstance(dollars, int | float):
        return None
    return round(dollars * 1e9) if math.isfinite(dollars) and 0 <= dollars <= MAX_COST else None


def _has_standard_tier(step: Step) -> bool:
    arguments = step.arguments if isinstance(step.arguments, dict) else {}
    tiers = ((step.metadata or {}).get("service_tier"), arguments.get("service_tier"))
    return all(tier is None or tier in STANDARD_TIERS for tier in tiers)
