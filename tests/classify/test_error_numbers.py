"""Retry-After in every form, and overflows in the words of every provider."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.classify.error_numbers import MAX_RETRY_AFTER_SECONDS, parse_overflow, parse_retry_after


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
        ("try again in 1m30s", 90.0),
        ("Try again in 1h2m.", 3720.0),
        ("retry in 1 hour and 2 minutes", 3720.0),
        ("Your quota will reset after 53s.", 53.0),
        ("Try again in an hour", 3600.0),
        ("Expected available in 12 seconds.", 12.0),
        ("Cool down for 3 s", 3.0),
        ("'quotaResetDelay': '8h44m31.2s'", 31471.2),
        ("Please try again later.", None),
        ("It failed after 30 seconds.", None),
        ("", None),
    ],
)
def test_words(text: str, seconds: float | None) -> None:
    assert parse_retry_after({}, text) == seconds


NEW_YEAR = 1735689600.0
"""2025-01-01, 00:00 UTC."""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ('"quotaResetTimeStamp": "2025-01-01T08:44:31Z"', 31471.0),
        ('"resets_at": 1735700000', 10400.0),
        ("AI usage limit reached|1735700000", 10400.0),
        ("try again at 2025-01-01 08:44:00 UTC", 31440.0),
        ("Retry after 2025-01-01 00:10:00", 600.0),
        ("retry-after: Wed, 01 Jan 2025 00:01:00 GMT", 60.0),
        ("Your limit resets at 14:30 UTC", 52200.0),
        ("Your limit will reset at 3pm (America/New_York).", 72000.0),
        ("The quota resets at midnight Pacific time", 28800.0),
        ("Monthly quota exceeded. It resets on the 1st.", 31 * 86400.0),
        ("resets at 2024-12-31T00:00:00Z", None),
        ("resets at 25:70", None),
        ("resets at 3pm (Mars/Olympus)", None),
    ],
)
def test_a_point_in_time_is_a_wait_until_then(text: str, seconds: float | None) -> None:
    assert parse_retry_after({}, text, NEW_YEAR) == seconds


@pytest.mark.parametrize("text", ["resets at 3pm", "resets at 3pm Pacific time", "resets on the 1st"])
@pytest.mark.parametrize("date", ["Fri, 31 Dec 9999 23:59:59 GMT", "Mon, 01 Jan 0001 00:00:00 GMT", "nonsense"])
def test_any_clock_of_a_server_gives_a_wait_or_none(text: str, date: str) -> None:
    seconds = parse_retry_after({"date": date}, text)
    assert seconds is None or 0 <= seconds <= MAX_RETRY_AFTER_SECONDS


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"x-ratelimit-reset-requests-day": "3600", "x-ratelimit-remaining-requests-day": "0"}, 3600.0),
        ({"ratelimit": '"default";r=0;t=243'}, 243.0),
        ({"ratelimit": "limit=100, remaining=0, reset=50"}, 50.0),
        ({"ratelimit": '"default";r=7;t=243'}, None),
        ({"x-ratelimit-reset-after": "1.5", "x-ratelimit-remaining": "0"}, 1.5),
        ({"x-rate-limit-reset": "1735689660", "x-rate-limit-remaining": "0"}, 60.0),
        ({"x-ratelimit-reset": "1735689660000"}, 60.0),
        ({"anthropic-ratelimit-unified-reset": "1735693200"}, 3600.0),
        ({"ratelimitbysize-reset": "13", "ratelimitbysize-remaining": "0"}, 13.0),
    ],
)
def test_headers_of_providers(headers: dict[str, str], seconds: float | None) -> None:
    assert parse_retry_after(headers, "", NEW_YEAR) == seconds


def test_the_header_is_believed_before_the_words() -> None:
    assert parse_retry_after({"retry-after": "2"}, "try again in 60s") == 2.0


@given(
    st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms", "date", "x-ratelimit-reset"]), st.text()),
    st.text(),
)
def test_any_header_and_any_text_give_a_bounded_wait_or_none(headers: dict[str, str], text: str) -> None:
    seconds = parse_retry_after(headers, text, now=0.0)
    assert seconds is None or 0 <= seconds <= MAX_RETRY_AFTER_SECONDS


OVERFLOWS = [
    ("This model's maximum context length is 4097 tokens. However, your messages resulted in 5012 tokens.", 4097, 5012),
    (
        "This model's maximum context length is 8192 tokens. However, you requested 9211 tokens (8187 in "
        "the messages, 1024 in the completion).",
        8192,
        9211,
    ),
    ("The input exceeds the context window of the model.", None, None),
    (
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300123 tokens.",
        272000,
        300123,
    ),
    ("prompt is too long: 214112 tokens > 199999 maximum", 199999, 214112),
    (
        "input length and `max_tokens` exceed context limit: 190001 + 20000 > 200000, decrease input "
        "length or `max_tokens`",
        200000,
        210001,
    ),
    ("The input token count (1200000) exceeds the maximum number of tokens allowed (1048575).", 1048575, 1200000),
    (
        "Unable to submit request because the input token count is 40123 but model only supports up to 32768.",
        32768,
        40123,
    ),
    (
        "An error occurred (ValidationException) when calling the InvokeModel operation: Input is too "
        "long for requested model.",
        None,
        None,
    ),
    ("Too many input tokens. Max input tokens: 8000, request input token count: 9100", 8000, 9100),
    (
        "Malformed input request: expected maxLength: 50000, actual: 61234, please reformat your input and try again.",
        50000,
        61234,
    ),
    ("Prompt contains 40123 tokens, too large for model with 32768 maximum context length", 32768, 40123),
    ("The decoder prompt (length 9001) is longer than the maximum model length of 8192.", 8192, 9001),
    (
        "the request exceeds the available context size. try increasing the context size or enable context shift",
        None,
        None,
    ),
    ("request (9100 tokens) exceeds the available context size (8192 tokens), try increasing it", 8192, 9100),
    ("Requested tokens (2100) exceed context window of 2048", 2048, 2100),
    ("input length exceeds the context length", None, None),
    (
        "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4090 `inputs` tokens and 100 `max_new_tokens`",
        4096,
        None,
    ),
    ("`inputs` must have less than 1024 tokens. Given: 1500", 1024, 1500),
    ("The input (9001 tokens) is longer than the model's context length (8192 tokens).", 8192, 9001),
    ("Please reduce the length of the messages or completion. Current length is 9100 while limit is 8192", 8192, 9100),
    (
        "Request too large for model `llama` on tokens per minute (TPM): Limit 6000, Requested 8100, "
        "please reduce your message size and try again.",
        6000,
        8100,
    ),
    ("The prompt is too long: 40001, model maximum context length: 32768", 32768, 40001),
    ("This model's maximum prompt length is 131072 but the request contains 140001 tokens.", 131072, 140001),
    ("This endpoint's maximum context length is 32768 tokens. However, you requested about 40012 tokens", 32768, 40012),
    ("prompt token count of 130001 exceeds the limit of 128000", 128000, 130001),
    ("too many tokens: size limit exceeded by 1132 tokens. The limit for this model is 4081 tokens.", 4081, None),
    ("Invalid request: Your request exceeded model token limit: 8192", 8192, None),
    ("the number of input tokens 9012 cannot exceed the total tokens limit 8192 for this model", 8192, 9012),
    ("Range of input length should be [1, 30720]", 30720, None),
]

OTHERS = [
    "Too many tokens, please wait before trying again.",
    "Rate limit reached for tokens per min (TPM): Limit 30000, Used 29000, Requested 2000. Please try again in 2s.",
    "max_tokens: 8193 > 4096, which is the maximum allowed number of output tokens",
    "max_tokens is too large: 100000. This model supports at most 16384 completion tokens.",
    "The maximum tokens you requested exceeds the model limit of 4096.",
    "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes",
    "At least one of the image dimensions exceed max allowed size: 8000 pixels",
    "You exceeded your current quota, have a look at your billing details.",
    "Invalid 'tools': array too long. Expected an array with maximum length 128, but got 140 instead.",
    "Unable to submit request because it has a maxOutputTokens value of 9000 but the supported range "
    "is from 1 to 8192.",
    "The connection was closed before the answer was complete.",
    "File name too long",
    "",
]


@pytest.mark.parametrize(("text", "window", "requested"), OVERFLOWS)
def test_the_window_and_what_was_asked_for_are_read(text: str, window: int | None, requested: int | None) -> None:
    said = parse_overflow(text)
    assert said is not None
    assert (said.window, said.requested) == (window, requested)


@pytest.mark.parametrize("text", OTHERS)
def test_throttling_answer_limits_and_pictures_are_no_overflow(text: str) -> None:
    assert parse_overflow(text) is None


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("Monthly quota exceeded. It resets on Dec 1", 13),
        ("Your limit resets November 21 at 09:00 UTC", 3),
        ("quota exceeded, available again on 21st Nov", 3),
        ("Resets Dec 1, 2026", 13),
        ("Your plan renews on 15. December", 27),
    ],
)
def test_date_in_words_clears_at_the_end_of_its_day(text: str, days: int) -> None:
    midnight = 1795046400.0  # 2026-11-19 00:00 UTC
    assert parse_retry_after({}, text, now=midnight) == days * 86400


def test_date_in_words_that_has_passed_tells_nothing() -> None:
    assert parse_retry_after({}, "Resets Nov 1, 2026", now=1795046400.0) is None
