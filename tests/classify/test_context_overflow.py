"""A conversation that does not fit is recognised in every provider's words, and nothing else is."""

from __future__ import annotations

import pytest

from mulligan.classify.context_overflow import parse_overflow

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
