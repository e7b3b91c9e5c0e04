"""Token usage that a model's answer or stream reports, in the forms of every provider.

`input` and `output` are totals. The other counts are parts of them: `cached_input`, `cache_write`, `cache_write_1h` and
`audio_input` of the input, `reasoning` and `audio_output` of the output. A count that is not reported is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mulligan.core.conversation import get_field

MAX_TOKEN_COUNT = 2**40
"""Larger counts are errors."""
MAX_NAME_CHARS = 200
OUTPUT_NAMES = ("output", "reasoning", "audio_output")
_STANDARD_TIERS = ("auto", "default", "standard", "on_demand")
_USAGE_FIELDS = ("usage", "usage_metadata", "usageMetadata", "token_usage", "usage_details")
_HOLDERS = ("response", "message", "metadata", "data", "delta", "meta", "raw", "llm_output")
"""Members of an answer or event that may hold the usage: of OpenAI responses, Anthropic, Bedrock, Mistral, Cohere and
LangChain, in this order."""
_MODEL_HOLDERS = ("response", "message", "response_metadata", "data", "raw")

_TOTALS = {
    "input": (
        "prompt_tokens", "input_tokens", "prompt_token_count", "promptTokenCount", "inputTokens",
        "input_token_count",
    ),
    "output": (
        "completion_tokens", "output_tokens", "candidates_token_count", "candidatesTokenCount", "outputTokens",
        "output_token_count",
    ),
}  # fmt: skip
_PARTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "cached_input": (
        ("prompt_tokens_details", "cached_tokens"),
        ("input_tokens_details", "cached_tokens"),
        ("input_token_details", "cache_read"),
        ("prompt_cache_hit_tokens",),
        ("cached_content_token_count",),
        ("cachedContentTokenCount",),
        ("cache_read_input_token_count",),
    ),
    "cache_write": (
        ("prompt_tokens_details", "cache_write_tokens"),
        ("prompt_tokens_details", "cache_creation_tokens"),
        ("input_tokens_details", "cache_write_tokens"),
        ("input_token_details", "ephemeral_5m_input_tokens"),
        ("input_token_details", "cache_creation"),
        ("cache_creation_input_token_count",),
    ),
    "cache_write_1h": (("input_token_details", "ephemeral_1h_input_tokens"),),
    "audio_input": (
        ("prompt_tokens_details", "audio_tokens"),
        ("input_tokens_details", "audio_tokens"),
        ("input_token_details", "audio"),
    ),
    "reasoning": (
        ("completion_tokens_details", "reasoning_tokens"),
        ("output_tokens_details", "reasoning_tokens"),
        ("output_tokens_details", "thinking_tokens"),
        ("output_token_details", "reasoning"),
        ("reasoning_output_token_count",),
    ),
    "audio_output": (
        ("completion_tokens_details", "audio_tokens"),
        ("output_tokens_details", "audio_tokens"),
        ("output_token_details", "audio"),
    ),
}
"""Paths of the counts that are parts of a total."""
_BESIDE_INPUT = {
    "cached_input": ("cache_read_input_tokens", "cacheReadInputTokens"),
    "cache_write": ("cache_creation_input_tokens", "cacheWriteInputTokens"),
}
"""Counts that Anthropic and Bedrock report beside the input, not as parts of it."""


class TokenUsage(NamedTuple):
    """What an answer or stream reports about its tokens."""

    tokens: dict[str, int]
    model: str | None = None
    """The model that answered."""
    tier: str | None = None
    """The service tier, if it is not the standard one: prices differ."""

    def to_metadata(self, arguments: Any) -> dict[str, str]:
        """Return what a step records about it: the model if the arguments name another or none, and the tier.

        Providers answer requests to `gpt-4o` with the name of its version.
        """
        has_model = isinstance(get_field(arguments, "model"), str)
        facts = {"model": None if has_model else self.model, "service_tier": self.tier}
        if has_model and self.model != get_field(arguments, "model"):
            facts["model_version"] = self.model
        return {name: fact for name, fact in facts.items() if fact}


def read_usage(answer: Any) -> TokenUsage | None:
    """Return the token usage that an answer reports; None if it reports none."""
    if answer is None or isinstance(answer, str | bytes):
        return None
    usage = _find_usage(answer)
    tokens = None if usage is None else _parse_usage(usage)
    return None if tokens is None else TokenUsage(tokens, _find_model(answer), _find_tier(answer, usage))


class StreamUsage:
    """The token usage of a stream, collected from its events."""

    __slots__ = ("_has_ended", "_model", "_tier", "_tokens")

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}
        self._model: str | None = None
        self._tier: str | None = None
        self._has_ended = True

    def add(self, event: Any) -> None:
        """Add the usage of one event. Later counts replace earlier ones, except those of LangChain, which are added."""
        if event is None or isinstance(event, str | bytes):
            return
        self._model = self._model or _find_model(event)
        usage = _find_usage(event)
        tokens = None if usage is None else _parse_usage(usage)
        if tokens is None:
            return
        self._tier = self._tier or _find_tier(event, usage)
        event_type = get_field(event, "type")
        # Anthropic states the input first and the output at the end. In between, the stated output is incomplete.
        self._has_ended = event_type != "message_start"
        if _is_langchain(usage):
            for name, count in tokens.items():
                self._tokens[name] = self._tokens.get(name, 0) + count
        elif event_type == "message_delta" and tokens.get("input", 0) <= self._tokens.get("input", 0):
            # The input again, with fewer parts than at the start.
            self._tokens |= {name: tokens[name] for name in OUTPUT_NAMES if name in tokens}
        else:
            self._tokens = tokens

    @property
    def usage(self) -> TokenUsage | None:
        tokens = {name: count for name, count in self._tokens.items() if self._has_ended or name not in OUTPUT_NAMES}
        return TokenUsage(tokens, self._model, self._tier) if tokens else None


def _is_langchain(usage: Any) -> bool:
    return isinstance(usage, Mapping) and {"input_tokens", "total_tokens"} <= usage.keys()


def _find_model(answer: Any) -> str | None:
    for holder in (answer, *(get_field(answer, name) for name in _MODEL_HOLDERS)):
        for name in ("model", "model_version", "modelVersion", "model_name") if holder is not None else ():
            model = get_field(holder, name)
            if type(model) is str and 0 < len(model) <= MAX_NAME_CHARS:
                return model
    return None


def _find_tier(answer: Any, usage: Any) -> str | None:
    response = get_field(answer, "response")
    for holder, name, standard in (
        (answer, "service_tier", _STANDARD_TIERS),
        (response, "service_tier", _STANDARD_TIERS),
        (usage, "service_tier", _STANDARD_TIERS),
        (usage, "speed", _STANDARD_TIERS),
        (usage, "inference_geo", ("global", "not_available")),
        (usage, "traffic_type", ("on_demand",)),
    ):
        value = get_field(holder, name)
        text = getattr(value, "value", value)
        if type(text) is str and text and text.lower() not in standard:
            return text[:MAX_NAME_CHARS]
    return None


def _find_usage(answer: Any) -> Any:
    for holder in (answer, *(get_field(answer, name) for name in _HOLDERS)):
        for name in _USAGE_FIELDS if holder is not None else ():
            usage = get_field(holder, name)
            if usage is not None and not callable(usage):
                return usage
    # Streams of the Agent Framework have the counts among the contents of an update.
    contents = get_field(answer, "contents")
    for content in contents if isinstance(contents, list) else ():
        if (usage := get_field(content, "usage_details")) is not None:
            return usage
    # Cohere's first API has the counts in `meta` itself.
    meta = get_field(answer, "meta")
    return meta if get_field(meta, "billed_units") is not None else None


def _parse_usage(usage: Any) -> dict[str, int] | None:
    for holder in ("billed_units", "tokens"):  # of Cohere
        if (nested := get_field(usage, holder)) is not None and _count(nested, "input_tokens") is not None:
            usage = nested
            break
    counts = {
        name: count
        for name, spellings in _TOTALS.items()
        if (count := next((c for spelling in spellings if (c := _count(usage, spelling)) is not None), None))
        is not None
    }
    if not counts:
        return None
    for name, paths in _PARTS.items():
        for path in paths:
            holder = usage if len(path) == 1 else get_field(usage, path[0])
            if count := _count(holder, path[-1]):
                counts[name] = count
                break
    _add_gemini_counts(counts, usage)
    if get_field(usage, "prompt_tokens") is None:
        _add_counts_beside_input(counts, usage)
    if not counts.get("input"):
        counts.pop("input", None)  # no request is empty: the input is reported elsewhere or not at all
    return counts or None


def _add_gemini_counts(counts: dict[str, int], usage: Any) -> None:
    """Gemini reports reasoning beside the output, and the prompts of tools beside the input."""
    for name, total, spellings in (
        ("reasoning", "output", ("thoughts_token_count", "thoughtsTokenCount")),
        ("", "input", ("tool_use_prompt_token_count", "toolUsePromptTokenCount")),
    ):
        if count := next((c for spelling in spellings if (c := _count(usage, spelling))), None):
            counts[total] = counts.get(total, 0) + count
            if name:
                counts[name] = count
    for name, spellings in (
        ("audio_input", ("prompt_tokens_details", "promptTokensDetails")),
        ("audio_output", ("candidates_tokens_details", "candidatesTokensDetails")),
    ):
        for spelling in spellings:
            for detail in details if isinstance(details := get_field(usage, spelling), list | tuple) else ():
                modality = str(getattr(kind := get_field(detail, "modality"), "value", kind)).upper()
                audio = _count(detail, "token_count") or _count(detail, "tokenCount")
                if modality == "AUDIO" and audio:
                    counts[name] = audio


def _add_counts_beside_input(counts: dict[str, int], usage: Any) -> None:
    for name, spellings in _BESIDE_INPUT.items():
        if count := next((c for spelling in spellings if (c := _count(usage, spelling))), None):
            counts["input"] = counts.get("input", 0) + count
            counts[name] = count
    if one_hour := _count(get_field(usage, "cache_creation"), "ephemeral_1h_input_tokens"):
        counts["cache_write_1h"] = one_hour
        counts["cache_write"] = counts.get("cache_write", one_hour) - one_hour
        if counts["cache_write"] <= 0:
            del counts["cache_write"]


def _count(holder: Any, name: str) -> int | None:
    count = get_field(holder, name)
    if type(count) is float and count.is_integer():  # Cohere's counts
        count = int(count)
    return count if type(count) is int and 0 <= count < MAX_TOKEN_COUNT else None
