"""Context windows and providers of common models, for providers whose errors do not state a size."""

from __future__ import annotations

import re

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
