"""Windows and providers of models are known by name, or not at all."""

from __future__ import annotations

import pytest

from mulligan.recover.tokens import provider_of, window_of


@pytest.mark.parametrize(
    ("model", "window", "provider"),
    [
        ("gpt-4o-2024-08-06", 128_000, "openai"),
        ("openai/gpt-4.1-mini", 1_047_576, "openai"),
        ("gpt-4", 8_192, "openai"),
        ("o3-mini", 200_000, "openai"),
        ("claude-3-5-sonnet-latest", 200_000, "anthropic"),
        ("us.anthropic.claude-3-haiku-20240307-v1:0", 200_000, "anthropic"),
        ("bedrock/anthropic.claude-3-haiku", 200_000, "bedrock"),
        ("models/gemini-1.5-pro", 2_097_152, "google"),
        ("my-own-model", None, ""),
        ("", None, ""),
        (None, None, ""),
        (7, None, ""),
    ],
)
def test_a_model_is_known_by_its_name(model: object, window: int | None, provider: str) -> None:
    assert window_of(model) == window
    assert provider_of(model) == provider
