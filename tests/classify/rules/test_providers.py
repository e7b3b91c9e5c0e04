"""Providers' errors, by the shape and the words of their clients; no client is installed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mulligan.classify.classifier import classify
from mulligan.core.failure import Remedy


def error_of(module: str, name: str, message: str, **attributes: Any) -> Exception:
    """An error like a client's own: a class of that module and name, with its attributes."""
    made = type(name, (Exception,), {"__module__": module})(message)
    for key, value in attributes.items():
        setattr(made, key, value)
    return made


def response(status: int, headers: dict[str, str] | None = None, text: str = "") -> SimpleNamespace:
    return SimpleNamespace(status_code=status, headers=headers or {}, text=text)


BY_TEXT = [
    # Anthropic
    (400, "invalid_request_error: Your credit balance is too low to access the API.", "quota_exceeded"),
    (400, "You have reached your specified API usage limits. You will regain access on the first.", "quota_exceeded"),
    (400, "Output blocked by content filtering policy", "content_policy"),
    (400, "messages: text content blocks must be non-empty", "bad_request"),
    (400, "messages.3: `tool_use` ids were found without `tool_result` blocks immediately after", "bad_request"),
    (401, "invalid x-api-key", "auth_error"),
    (404, "model: claude-9", "not_found"),
    (413, "Request exceeds the maximum size", "context_length_exceeded"),
    (529, "Overloaded", "unavailable"),
    # OpenAI, Azure
    (
        400,
        "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
        "content_policy",
    ),
    (404, "The API deployment for this resource does not exist.", "not_found"),
    (429, "Requests to this deployment have exceeded the call rate limit. Please retry after 6 seconds.", "rate_limit"),
    (429, "You exceeded your current quota, have a look at your billing details.", "quota_exceeded"),
    (403, "Country, region, or territory not supported", "auth_error"),
    # Google
    (400, "API key not valid. Please pass a valid API key.", "auth_error"),
    (
        429,
        "You exceeded your current quota. Quota exceeded for metric: generate_requests_per_minute, "
        "limit: 10. Please retry in 12s.",
        "rate_limit",
    ),
    (429, "Resource has been exhausted (e.g. check quota).", "rate_limit"),
    (400, "Please ensure that function call turn comes immediately after a user turn", "bad_request"),
    (404, "models/gemini-0 is not found for API version v1beta", "not_found"),
    (503, "The model is overloaded. Please try again later.", "unavailable"),
    # Bedrock
    (429, "Too many tokens, please wait before trying again.", "rate_limit"),
    (400, "The provided model identifier is invalid.", "not_found"),
    (403, "You don't have access to the model with the specified model ID.", "auth_error"),
    (403, "The security token included in the request is expired", "auth_error"),
    (424, "The model produced an error while it was processing", "unavailable"),
    # Mistral, Groq, Together, DeepSeek, OpenRouter, Ollama, vLLM, Databricks
    (422, "Input should be a valid string", "bad_request"),
    (402, "Insufficient Balance", "quota_exceeded"),
    (402, "This request requires more credits, or fewer max_tokens.", "quota_exceeded"),
    (
        400,
        "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more details.",
        "invalid_output",
    ),
    (498, "Flex tier capacity exceeded", "rate_limit"),
    (404, 'model "tiny" not found, try pulling it first', "not_found"),
    (500, "llama runner process has terminated", "unavailable"),
    (503, "Model is currently loading", "unavailable"),
    (408, "Request timeout", "timeout"),
    (504, "upstream request timeout", "timeout"),
]


@pytest.mark.parametrize(("status", "text", "code"), BY_TEXT)
def test_status_and_words_together_give_the_kind(status: int, text: str, code: str) -> None:
    assert classify(text=text, status=status, source="model").kind == f"model/{code}"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (error_of("openai", "RateLimitError", "no", status_code=429, code="insufficient_quota"), "quota_exceeded"),
        (
            error_of(
                "openai", "RateLimitError", "Request too large for gpt: Limit 100, Requested 300", status_code=429
            ),
            "context_length_exceeded",
        ),
        (
            error_of("openai", "BadRequestError", "no", status_code=400, code="context_length_exceeded"),
            "context_length_exceeded",
        ),
        (error_of("openai", "APIConnectionError", "Connection error."), "unavailable"),
        (error_of("openai", "APITimeoutError", "Request timed out."), "timeout"),
        (
            error_of("anthropic._exceptions", "OverloadedError", "busy", status_code=529, type="overloaded_error"),
            "unavailable",
        ),
        (
            error_of(
                "anthropic",
                "BadRequestError",
                "no",
                status_code=400,
                body={"error": {"type": "invalid_request_error", "message": "prompt is too long: 9 > 8"}},
            ),
            "context_length_exceeded",
        ),
        (error_of("litellm.exceptions", "ContextWindowExceededError", "no"), "context_length_exceeded"),
        (error_of("litellm.exceptions", "ContentPolicyViolationError", "no", status_code=400), "content_policy"),
        (error_of("litellm.exceptions", "BudgetExceededError", "Budget has been exceeded"), "quota_exceeded"),
        (error_of("google.genai.errors", "ClientError", "no", code=400, status="INVALID_ARGUMENT"), "bad_request"),
        (error_of("google.genai.errors", "ServerError", "no", code=503, status="UNAVAILABLE"), "unavailable"),
        (
            error_of("pydantic_ai.exceptions", "ModelHTTPError", "no", status_code=429, body={"message": "slow down"}),
            "rate_limit",
        ),
        (
            error_of(
                "pydantic_ai.exceptions",
                "UnexpectedModelBehavior",
                "Exceeded maximum retries (1) for output validation",
            ),
            "invalid_output",
        ),
        (error_of("ollama._types", "ResponseError", "model 'x' not found", status_code=404), "not_found"),
        (
            error_of(
                "groq", "BadRequestError", "no", status_code=400, body={"error": {"code": "json_validate_failed"}}
            ),
            "invalid_output",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_clients_error_is_read_by_its_shape(error: Exception, code: str) -> None:
    failure = classify(error)
    assert failure.kind == f"model/{code}"


def test_an_aws_error_of_a_model_is_one_and_that_of_a_table_is_not() -> None:
    body = {"Error": {"Code": "ThrottlingException", "Message": "slow"}, "ResponseMetadata": {"HTTPStatusCode": 429}}
    said = "An error occurred (ThrottlingException) when calling the {} operation: Rate exceeded"
    asked = error_of("botocore.errorfactory", "ThrottlingException", said.format("Converse"), response=body)
    table = error_of("botocore.errorfactory", "ThrottlingException", said.format("PutItem"), response=body)
    assert classify(asked, source="model").kind == "model/rate_limit"
    assert classify(table).kind == "tool/rate_limit"


def test_the_wait_a_client_was_asked_for_is_kept() -> None:
    error = error_of(
        "openai", "RateLimitError", "slow down", status_code=429, response=response(429, {"Retry-After": "7"})
    )
    assert classify(error).retry_after == 7.0


def test_a_wait_is_not_kept_where_waiting_does_not_help() -> None:
    error = error_of(
        "openai",
        "RateLimitError",
        "no",
        status_code=429,
        code="insufficient_quota",
        response=response(429, {"retry-after": "7"}),
    )
    failure = classify(error)
    assert failure.remedy is Remedy.STOP
    assert failure.retry_after is None


def test_the_providers_own_code_is_kept() -> None:
    assert (
        classify(error_of("openai", "RateLimitError", "no", status_code=429, code="insufficient_quota")).code
        == "insufficient_quota"
    )


def test_a_provider_error_inside_a_tool_keeps_the_tools_type() -> None:
    error = error_of("openai", "RateLimitError", "slow down", status_code=429)
    assert classify(error, source="tool", tool="summarise").kind == "tool/rate_limit"


def test_a_tool_that_quotes_a_providers_words_is_still_a_tool() -> None:
    assert classify(text="The context window of the browser is closed", tool="click").kind.type != "model"


@pytest.mark.parametrize(
    ("name", "status", "text", "code"),
    [
        ("BadRequestError", 400, "Your input exceeds the context window of this model", "context_length_exceeded"),
        ("BadRequestError", 400, "Input is too long for requested model.", "context_length_exceeded"),
        (
            "BadRequestError",
            400,
            "The decoder prompt (length 9120) is longer than the maximum model length of 8192.",
            "context_length_exceeded",
        ),
        ("InternalServerError", 500, "AnthropicException - Overloaded", "unavailable"),
        ("RateLimitError", 429, "insufficient_quota: you are out of credit", "quota_exceeded"),
    ],
)
def test_what_litellm_files_under_another_error_is_known_by_its_text(name, status, text, code):
    error = error_of("litellm.exceptions", name, f"litellm.{name}: {text}", status_code=status)
    assert classify(error, source="model").kind.code == code
