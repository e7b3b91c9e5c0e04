"""Retry-After in every form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.classify.retry_after import MAX_RETRY_AFTER_SECONDS, parse_retry_after


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "Wed, 01 Jan 2025 00:01:00 GMT", "date": "Wed, 01 Jan 2025 00:00:00 GMT"}, 60.0),
        ({"retry-after-ms": "250"}, 0.25),
        ({"x-ms-retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "6m0s"}, 360.0),
        ({"x-ratelimit-reset-requests": "90s", "x-ratelimit-remaining-requests": "12"}, None),
        ({"x-ratelimit-reset": "1735689660", "date": "Wed, 01 Jan 2025 00:00:00 GMT"}, 60.0),
        (
            {
                "anthropic-ratelimit-tokens-reset": "2025-01-01T00:00:30Z",
                "anthropic-ratelimit-tokens-remaining": "0",
                "date": "Wed, 01 Jan 2025 00:00:00 GMT",
            },
            30.0,
        ),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "99999999"}, None),
        ({}, None),
    ],
)
def test_headers(headers: dict[str, str], seconds: float | None) -> None:
    assert parse_retry_after(headers) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Please try again in 7.66s.", 7.66),
        ("Please try again in 431ms.", 0.431),
        ("Try again in 6m0s", 360.0),
        ("try again in 1h2m3.5s", 3723.5),
        ("Please retry after 20 seconds.", 20.0),
        ("Please retry in 12.5s.", 12.5),
        ("Too fast: wait 30 seconds", 30.0),
        ("please wait at least 2 minutes", 120.0),
        ('{"retryDelay": "34s"}', 34.0),
        ('{"retry_after": 3}', 3.0),
        ('{"retry_after_ms": 1500}', 1.5),
        ("Retry-After: 5", 5.0),
        ("Please try again later.", None),
        ("It failed after 30 seconds.", None),
        ("", None),
    ],
)
def test_words(text: str, seconds: float | None) -> None:
    assert parse_retry_after({}, text) == seconds


def test_the_header_is_believed_before_the_words() -> None:
    assert parse_retry_after({"retry-after": "2"}, "try again in 60s") == 2.0


@given(
    st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms", "date", "x-ratelimit-reset"]), st.text()),
    st.text(),
)
def test_any_header_and_any_text_give_a_bounded_wait_or_none(headers: dict[str, str], text: str) -> None:
    seconds = parse_retry_after(headers, text, now=0.0)
    assert seconds is None or 0 <= seconds <= MAX_RETRY_AFTER_SECONDS
