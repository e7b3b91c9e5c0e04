"""Token counts: estimates of texts and messages, how a provider counts, and the context windows of common models."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mulligan.core.conversation import MAX_MESSAGE_PARTS, TextSlot, dump_json, get_field, has_call_blocks

IMAGE_TOKENS = 1000
"""Estimated tokens of an image or file. The cost does not depend on the length of its data."""
CONTEXT_FILL_RATIO = 0.957
"""Share of the window that is filled: token counts are estimates, and a second overflow costs more than a few
sentences."""
UNKNOWN_WINDOW_RATIO = 0.5
"""Share of the conversation to keep if the window is unknown."""


# Estimates


_TOKEN_PATTERN = r"[A-Za-z]{1,9}|[^\w\s]{1,2}|_|\n\s*|  +|[^\x00-\x7f]"
_WORD_PIECES = re.compile(rf"\d{{1,3}}|{_TOKEN_PATTERN}")
_DIGIT_PIECES = re.compile(rf"\d|{_TOKEN_PATTERN}")
TOKENS_PER_PIECE = 1.02
"""Average tokens per matched piece for common tokenizers, measured on prose, code, logs and JSON."""
MAX_COUNTED_CHARS = 12_000
"""Longer texts are estimated from three samples."""


def _count_pieces(pattern: re.Pattern[str], text: str) -> float:
    if len(text) > MAX_COUNTED_CHARS:
        third, middle = MAX_COUNTED_CHARS // 3, len(text) // 2
        sample = text[:third] + text[middle : middle + third] + text[-third:]
        return TOKENS_PER_PIECE * len(pattern.findall(sample)) * len(text) / len(sample)
    return TOKENS_PER_PIECE * len(pattern.findall(text))


count_word_tokens = partial(_count_pieces, _WORD_PIECES)
"""Estimates the tokens of a text from word pieces, digit groups, punctuation and indentation."""
count_digit_tokens = partial(_count_pieces, _DIGIT_PIECES)
"""Estimates the tokens of a text for tokenizers with one token per digit."""


def count_letter_tokens(text: str) -> float:
    """Estimate the tokens of a text as one per four characters."""
    return len(text) / 4


_LABEL_FIELDS = frozenset(
    {
        "type", "role", "kind", "part_kind", "cache_control", "mime_type", "mimeType", "status",
        "signature", "thought_signature", "thoughtSignature", "encrypted_content",
    }
)  # fmt: skip
"""Fields that the model does not read as text."""
_BINARY_FIELDS = frozenset({"data", "image_url", "file_data", "inline_data", "inlineData", "bytes", "audio"})
_UNSENT_FIELDS = frozenset(
    {
        "additional_kwargs", "response_metadata", "usage_metadata", "invalid_tool_calls", "artifact", "usage",
        "provider_specific_fields", "reasoning_content", "annotations", "logprobs",
    }
)  # fmt: skip
"""Fields of a message that are copies, or that a client adds to the answers and does not send back."""
_OBJECT_FIELDS = (
    "content", "parts", "text", "tool_calls", "function", "function_call", "function_response", "output", "arguments",
    "name", "input", "args", "response", "type", "role", "id", "tool_call_id", "tool_use_id", "call_id", "thinking",
    "summary", "executable_code", "code", "code_execution_result", "kind", "part_kind", "tool_name", "contents",
    "result",
)  # fmt: skip
"""Fields of message objects that belong to a request."""
_STRUCTURE_FIELDS = frozenset(_OBJECT_FIELDS) | _LABEL_FIELDS | {"toolUseId", "summary"}
"""Field names that belong to the structure of a message, not to its content."""
_RESULT_FIELDS = ("response", "json")
"""Fields in which providers accept tool results as data."""


def estimate_tokens(
    value: Any, count_tokens: Callable[[str], float] = count_word_tokens, *, is_serialized: bool = False
) -> float:
    """Estimate the tokens of a message, a schema or a whole conversation.

    Most providers count the text that the model reads. `is_serialized` counts the request as JSON, with all names,
    punctuation and escapes.
    """
    total = 0.0
    pending = [value]
    for _ in range(MAX_MESSAGE_PARTS * 20):
        if not pending:
            break
        item = pending.pop()
        if isinstance(item, str):
            if item.startswith("data:") and len(item) > 1000:
                total += IMAGE_TOKENS
            else:
                total += count_tokens(dump_json(item) if is_serialized else item)
        elif isinstance(item, bytes):
            total += IMAGE_TOKENS
        elif isinstance(item, list | tuple):
            total += count_tokens("[]") if is_serialized else 1
            pending.extend(item[:MAX_MESSAGE_PARTS])
        elif isinstance(item, bool | int | float):
            total += count_tokens(str(item)) if is_serialized else 1
        elif item is not None:
            is_form = not isinstance(item, Mapping)
            total += count_tokens("{}") if is_serialized else 0
            for name, member in _members_of(item):
                if member is None:
                    continue  # the optional fields of a client's class
                if is_serialized:
                    total += count_tokens(f'"{name}": , ')
                else:
                    total += 0.4 if is_form or name in _STRUCTURE_FIELDS else len(str(name)) / 4 + 1
                if name in _BINARY_FIELDS and _is_binary(item, name, member):
                    total += IMAGE_TOKENS
                elif not is_serialized and name in _RESULT_FIELDS and (data := _as_text(member)):
                    total += count_tokens(data)
                elif is_serialized or name not in _LABEL_FIELDS:
                    pending.append(member)
    return total


def _as_text(result: Any) -> str:
    """Return a data result as the text a model reads; empty if it is text already."""
    if not isinstance(result, Mapping) or (len(result) == 1 and isinstance(next(iter(result.values())), str)):
        return ""
    return dump_json(result)


def _is_binary(item: Any, name: str, member: Any) -> bool:
    """Return whether a field holds an image or a file, not a text document or a serialized message."""
    if isinstance(member, int | float) or (name == "data" and not isinstance(member, str | bytes)):
        return False
    return name != "data" or get_field(item, "type") != "text"


def _members_of(thing: Any) -> Iterable[tuple[Any, Any]]:
    """Return the fields of a mapping or a message object that belong to a request."""
    if isinstance(thing, Mapping):
        if "content" not in thing:
            return thing.items()
        members = [(name, value) for name, value in thing.items() if name not in _UNSENT_FIELDS]
    else:
        members = [(name, get_field(thing, name)) for name in _OBJECT_FIELDS]
    content = get_field(thing, "content")
    has_content = content is not None or get_field(thing, "contents") is not None
    copies = {"text"} if has_content and not isinstance(thing, Mapping) else set()
    if has_call_blocks(content):
        copies.add("tool_calls")
    return [member for member in members if member[0] not in copies]


# How a provider counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of a model's context window, in tokens."""

    window: int | None = None
    requested: int | None = None
    answer: int = 0
    """Tokens of both that are reserved for the answer."""


@dataclass(frozen=True, slots=True)
class TokenScale:
    """How a provider counts: by words or letters, with or without JSON escapes, and tokens per unit of our estimate."""

    count: Callable[[str], float] = count_word_tokens
    should_escape: bool = False
    rate: float = 1.0

    def __call__(self, text: str) -> float:
        return self.rate * self.count(dump_json(text) if self.should_escape else text)

    def count_slot(self, slot: TextSlot) -> float:
        """Return the tokens of a text in its slot. Structured data in a slot has no escapes."""
        return self.rate * self.count(slot.text) if slot.wrap else self(slot.text)

    def count_value(self, value: Any) -> float:
        """Return the tokens of a message or any other nested value."""
        return self.rate * estimate_tokens(value, self.count, is_serialized=self.should_escape)

    @property
    def margin(self) -> float:
        """Return the share of the window to fill: less, the more the provider's count differs from ours."""
        # The share falls the more our estimate differs from the provider's count
        return CONTEXT_FILL_RATIO * (1 - 0.2 * min(max(abs(self.rate - 1) - 0.05, 0), 0.5))


def calibrate_scale(sizes: Sizes, request: Any, model: object = None) -> TokenScale:
    """Return the scale that best explains the provider's count of a request, given the model's name."""
    count_tokens: Callable[[str], float] = count_digit_tokens if counts_digits(model) else count_word_tokens
    if sizes.requested is None:
        words = estimate_tokens(request, count_tokens)
        rate = 1.0
        if sizes.window is not None and sizes.window > sizes.answer and words > 0:
            # The request exceeded the window, probably by little: conversations grow one message at a time.
            rate = max(rate, 1.12 * (sizes.window - sizes.answer) / words)
        return TokenScale(count_tokens, rate=rate if rate <= 4 else 1.0)
    counted_tokens = sizes.requested - sizes.answer
    # The most probable way of counting. Letters are counted exactly, tokens only estimated: a near match with letters
    # is weaker evidence than a fair match with tokens. Only gateways and test servers count letters, and their models
    # mostly have names of their own.
    letter_share = 0.1 if window_of(model) is None else 0.001
    likely, best = TokenScale(count_tokens), -math.inf
    # A piece of our estimate in JSON is 0.94 tokens: punctuation and escapes often share a token.
    for count, should_escape, usual_rate, spread, share in (
        (count_tokens, False, 1.008, 0.02, 0.5),
        (count_tokens, True, 0.94, 0.02, 0.3),
        (count_letter_tokens, True, 1.0, 0.003, letter_share),
        (count_letter_tokens, False, 0.988, 0.006, letter_share),
    ):
        rate = counted_tokens / max(estimate_tokens(request, count, is_serialized=should_escape), 1.0)
        deviation = rate / usual_rate - 1
        likelihood = math.log(share / spread) - (deviation / spread) ** 2 / 2
        if rate >= 0.2 and deviation < 4 and likelihood > best:  # otherwise it counted another unit, such as bytes
            likely, best = TokenScale(count, should_escape, rate), likelihood
    return likely


def token_limit(sizes: Sizes, tokens: float, margin: float = CONTEXT_FILL_RATIO) -> float:
    """Return the token limit of a request, given that one with `tokens` tokens was too long."""
    if sizes.window is None or sizes.window <= sizes.answer:
        return tokens * UNKNOWN_WINDOW_RATIO
    fitting = margin * (sizes.window - sizes.answer)
    return fitting if fitting < tokens else tokens * UNKNOWN_WINDOW_RATIO


# Models


# Published context windows by prefix of the model name. The first match counts. Only windows that do not vary between
# versions are listed: an unknown window is better than a wrong one.
_WINDOWS = (
    (r"gpt-4\.1", 1_047_576),
    (r"gpt-4o|gpt-4-turbo|chatgpt-4o", 128_000),
    (r"gpt-4-32k", 32_768),
    (r"gpt-4(?:-0613|-0314)?$", 8_192),
    (r"gpt-3\.5-turbo", 16_385),
    (r"gpt-5", 400_000),
    (r"o1-(?:mini|preview)", 128_000),
    (r"o[134](?:-|$)", 200_000),
    (r"claude-2\.0|claude-instant", 100_000),
    (r"claude", 200_000),
    (r"gemini-1\.5-pro", 2_097_152),
    (r"gemini-(?:1\.5|2)", 1_048_576),
    (r"mistral-large|mistral-small|mistral-medium|ministral", 128_000),
    (r"codestral", 256_000),
    (r"mixtral-8x22b", 65_536),
    (r"mixtral-8x7b|mistral-7b", 32_768),
    (r"(?:meta-)?llama-?3\.[123]", 131_072),
    (r"(?:meta-)?llama-?3", 8_192),
    (r"deepseek", 65_536),
    (r"command-r", 128_000),
)

_PROVIDERS = (
    (r"gpt-|o[134](?:-|$)|chatgpt|text-embedding|davinci", "openai"),
    (r"claude", "anthropic"),
    (r"gemini|gemma", "google"),
    (r"mistral|mixtral|codestral|ministral|pixtral", "mistral"),
    (r"deepseek", "deepseek"),
    (r"command", "cohere"),
    (r"grok", "xai"),
)

_DIGITS = re.compile(r"gemini|gemma|mistral|mixtral|ministral|codestral|pixtral|qwen|llama-?2")


def counts_digits(model: object) -> bool:
    """Return whether the model's tokenizer splits numbers into single digits, by the model's name."""
    return _DIGITS.match(_base_name(model)) is not None


def window_of(model: object) -> int | None:
    """Return the context window of a model in tokens, if its name is known."""
    name = _base_name(model)
    return next((window for pattern, window in _WINDOWS if re.match(pattern, name)), None)


def provider_of(model: object) -> str:
    """Return the provider of a model by its name: `anthropic/claude-...`, `gpt-4o`. Empty if unknown."""
    if isinstance(model, str) and "/" in model and not model.startswith("models/"):
        return model.partition("/")[0].lower()
    name = _base_name(model)
    return next((provider for pattern, provider in _PROVIDERS if re.match(pattern, name)), "")


def _base_name(model: object) -> str:
    """Return a model name without provider and region: `us.anthropic.claude-...`, `openai/gpt-4o`, `models/gemini`."""
    if not isinstance(model, str):
        return ""
    return re.sub(r"^(?:(?:us|eu|apac|global|anthropic|meta|mistral|cohere)\.)+", "", model.rpartition("/")[2].lower())
