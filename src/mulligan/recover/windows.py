"""How much fits into models that are often met, for providers that do not say it when something does not."""

from __future__ import annotations

import re

# The windows their providers name, by how a model's name begins; the first that fits. Only those that have not changed
# with a version: an unknown model is better than a wrong window.
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
    """Whether the tokenizer of a model takes each digit of a number for itself, as far as its name says."""
    return _DIGITS.match(_own_name(model)) is not None


def window_of(model: object) -> int | None:
    """The window of a model in tokens, where it is known by its name."""
    name = _own_name(model)
    return next((window for pattern, window in _WINDOWS if re.match(pattern, name)), None)


def provider_of(model: object) -> str:
    """Who serves a model, by its name: `anthropic/claude-...`, `gpt-4o`; empty where that cannot be told."""
    if isinstance(model, str) and "/" in model and not model.startswith("models/"):
        return model.partition("/")[0].lower()
    name = _own_name(model)
    return next((provider for pattern, provider in _PROVIDERS if re.match(pattern, name)), "")


def _own_name(model: object) -> str:
    """A model's name without who serves it and where: `us.anthropic.claude-...`, `openai/gpt-4o`, `models/gemini`."""
    if not isinstance(model, str):
        return ""
    return re.sub(r"^(?:(?:us|eu|apac|global|anthropic|meta|mistral|cohere)\.)+", "", model.rpartition("/")[2].lower())
