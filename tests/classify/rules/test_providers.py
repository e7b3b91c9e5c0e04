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


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Prompt exceeds 128k token limit", "model/context_length_exceeded"),
        ("The chat history is too long for this model", "model/context_length_exceeded"),
        ("Monthly token quota exceeded", "model/quota_exceeded"),
        ("LLM returned invalid JSON", "model/invalid_output"),
        ("Model inference timeout", "model/timeout"),
    ],
)
def test_a_model_failure_is_known_without_the_class_of_a_provider(text: str, kind: str) -> None:
    assert classify(text=text).kind == kind
    assert classify(RuntimeError(text), source="model").kind == kind


def test_an_invalid_query_of_a_retriever_is_repaired() -> None:
    failure = classify(text="Invalid semantic search query", source="retrieval")
    assert (failure.kind, failure.remedy) == ("retrieval/invalid_query", Remedy.REPAIR)


@pytest.mark.parametrize(
    "text", ["deadlock detected", "could not serialize access due to concurrent update", "Lock wait timeout exceeded"]
)
def test_a_deadlock_of_a_database_is_retried(text: str) -> None:
    assert classify(text=text, tool="query").remedy is Remedy.RETRY


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("credits_used_up", "model/quota_exceeded"),
        ("burst_rate_limit_hit", "model/rate_limit"),
        ("prompt_too_long_for_model", "model/context_length_exceeded"),
        ("output_moderation_block", "model/content_policy"),
        ("iam_token_expired", "model/auth_error"),
        ("gpu_capacity_gone", "model/unavailable"),
    ],
)
def test_the_words_of_a_code_that_is_in_no_table_tell_the_kind(code: str, kind: str) -> None:
    assert classify({"error": {"code": code, "message": "..."}}, source="model").kind == kind
    assert classify(text=f"The call ended with {code}_error", source="model").kind == kind


def test_the_words_of_a_class_that_is_in_no_table_tell_the_kind() -> None:
    assert classify(text="...", exception="acme.CreditBalanceError", source="model").kind == "model/quota_exceeded"
    # A rate limit may be a spent quota, which its text tells.
    spent = classify(text="You exceeded your current quota.", exception="acme.RateLimitHit", source="model")
    assert (spent.kind, spent.remedy) == ("model/quota_exceeded", Remedy.STOP)


def test_a_status_of_429_is_a_rate_limit_whatever_its_text_says() -> None:
    assert classify(text="No capacity is available.", status=429, source="model").kind == "model/rate_limit"


def test_a_parameter_that_is_not_permitted_is_a_bad_request_and_no_matter_of_credentials() -> None:
    text = "tools.0.strict: Extra inputs are not permitted"
    assert classify(text=text, status=400, source="model").kind == "model/bad_request"


def test_a_tool_that_calls_a_model_returns_errors_of_the_provider() -> None:
    text = 'API Error: 400 {"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long"}}'
    assert classify(text=text, tool="Task").kind == "model/context_length_exceeded"
    assert classify(text=text, tool="fetch_page").kind != "model/context_length_exceeded"
    assert classify(text="Agent type 'claude-helper' not found.", tool="Task").kind.type == "tool"


def test_a_guardrail_of_a_framework_is_no_failure_of_a_model() -> None:
    name = "agents.exceptions.OutputGuardrailTripwireTriggered"
    assert classify(text="Guardrail triggered", exception=name).kind == "orchestration/constraint_violation"


def test_a_connection_to_a_model_that_fails_is_retried() -> None:
    text = "TypeError: fetch failed\n  [cause]: Error: connect ECONNREFUSED 127.0.0.1:11434"
    assert classify(text=text, source="model").remedy is Remedy.RETRY


@pytest.mark.parametrize(
    ("status", "text", "code"),
    [
        (400, "No tool call found for function call output with call_id call_1.", "bad_request"),
        (400, "messages.0: all messages must have non-empty content except for the last", "bad_request"),
        (404, "Publisher Model `m` was not found or your project does not have access to it.", "not_found"),
        (400, "Unable to access non-serverless model m. Please create a dedicated endpoint.", "not_found"),
        (403, "Your newly created team doesn't have any credits or licenses yet.", "quota_exceeded"),
        (403, "Project `p` does not have access to model `m`", "auth_error"),
        (None, "Timeout while downloading https://example.com/cat.png.", "bad_request"),
        (None, "You've hit your limit, it resets at 6pm", "quota_exceeded"),
        (400, "Unavailable model: m", "not_found"),
    ],
)
def test_a_request_without_access_credits_or_content_is_not_repeated(status: int | None, text: str, code: str) -> None:
    assert classify(text=text, status=status, source="model").kind.code == code


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("API Error (503 Too many connections, please wait before trying again.)", "model/unavailable"),
        ("unexpected status 401 Unauthorized: Missing bearer or basic authentication", "model/auth_error"),
        ("exceeded retry limit, last status: 429 Too Many Requests", "model/rate_limit"),
        ("stream disconnected before completion: stream closed", "model/unavailable"),
    ],
)
def test_a_status_in_the_words_of_an_agent_is_that_of_its_model(text: str, kind: str) -> None:
    assert classify(text=text).kind == kind


@pytest.mark.parametrize(
    "text",
    [
        "Invalid Format: Missing 'Action:' after 'Thought:'",
        "[ERROR] You did not use a tool in your previous response!",
        "Your output was not formatted correctly.",
        "Please include your response in a tool call.",
        "The LLM did not conform to the edit format.",
        "Structured output did not validate: 2 errors",
        "Tool call is not valid JSON",
    ],
)
def test_what_a_framework_asks_of_the_next_answer_is_about_the_last_one(text: str) -> None:
    assert classify(text=text).kind == "model/invalid_output"


@pytest.mark.parametrize(
    "text",
    [
        "The maximum tokens you requested exceed the model limit of 4096. Try again with a value lower than 4096.",
        "too many tokens: max tokens must be less than or equal to 4096, the maximum output for this model",
        "Invalid 'messages[1].tool_calls[0].id': string too long.",
        "messages: at least one message is required",
        "Invalid role: thinking",
        "Error: 400 Extra inputs are not permitted, field: 'stream_options'",
        "No user query found in messages.",
        "invalid request: temperature must be between 0 and 1.0 inclusive.",
        'tools[3].function.parameters: schema must have type "object"',
        "Conversation roles must alternate user/assistant/user/assistant/...",
        "Range of max_tokens should be [1, 8192]",
    ],
)
def test_a_request_with_a_wrong_argument_is_not_compressed_or_repeated(text: str) -> None:
    assert classify(text=text).kind == "model/bad_request"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Monthly AI credits exhausted", "quota_exceeded"),
        ("402 Insufficient Balance", "quota_exceeded"),
        ("You've hit your limit \u00b7 resets 3:30am (Europe/Berlin)", "quota_exceeded"),
        ("You've reached your weekly limit. Resets Monday 9am.", "quota_exceeded"),
        ("You have exhausted your daily quota on this model.", "quota_exceeded"),
        ("\u4f59\u989d\u4e0d\u8db3", "quota_exceeded"),
        ("Your account reached max request: 3, please try again after 1 seconds", "rate_limit"),
        ("Resource exhausted. Please try again later.", "rate_limit"),
        ("401 Authentication Fails, Your api key: ****mock is invalid", "auth_error"),
        ("Not logged in \u00b7 Please run /login", "auth_error"),
        ("Unable to connect to API (ECONNRESET)", "unavailable"),
        ("API Error: Stream idle timeout - partial response received", "timeout"),
        ("llama runner process has terminated: exit status 2", "unavailable"),
        ("[API Error: 400 <400> InternalError.Algo.DataInspectionFailed: inappropriate content.]", "content_policy"),
        ("[GoogleGenerativeAI Error]: Candidate was blocked due to SAFETY", "content_policy"),
        ("output new_sensitive (1027)", "content_policy"),
        ("This message is finished due to length, increasing max output tokens may help", "output_limit"),
        ("Not found the model m or Permission denied", "not_found"),
        ("The model m does not exist or your team t does not have access to it.", "not_found"),
        ("tool call validation failed: parameters for tool search did not match schema", "invalid_output"),
        ("Please always provide EXACTLY ONE action in triple backticks, found 0 actions.", "invalid_output"),
        ("An unknown error occurred while calling the model.", "unknown"),
    ],
)
def test_words_that_only_providers_use_need_no_source(text: str, code: str) -> None:
    assert classify(text=text, source="model").kind.code == code
    if not text.startswith("Not found the model"):
        assert classify(text=text).kind == f"model/{code}"


@pytest.mark.parametrize(
    "text",
    [
        "Invalid role: admin2. Must be one of owner, member.",
        "Role 'user' may not delete projects",
        "You have reached your daily withdrawal limit of $500.",
        "Transfer failed: insufficient balance in account 1234",
        "Customer credit limit exceeded for order 12",
        'relation "messages" does not exist',
        "Method not found: 'tools/list'",
        "temperature must be between 10 and 30 degrees",
        "Please log in at https://example.com/login to continue",
        "No papers found for 'deep learning' (2013)",
        "Message content is required",
        "top_k must be greater than 0",
        '{"error":{"code":"InvalidAuthenticationToken","message":"the token is expired."}}',
        '{"error":{"code":"itemNotFound","message":"The resource could not be found."}}',
        '{"error":{"type":"UNKNOWN_FIELD_NAME","message":"Unknown field name"}}',
        '{"error":{"code":404,"message":"File not found","errors":[{"domain":"global","reason":"notFound"}]}}',
        '{"error":{"message":"No such customer","type":"invalid_request_error","code":"resource_missing"}}',
    ],
)
def test_words_that_other_services_use_too_are_no_model(text: str) -> None:
    assert classify(text=text).kind.type != "model"


@pytest.mark.parametrize(
    ("exception", "text", "kind"),
    [
        (
            "httpx.HTTPStatusError",
            "Client error '401 Unauthorized' for url 'https://api.openai.com/v1/x'",
            "model/auth_error",
        ),
        (
            "httpx.HTTPStatusError",
            "Client error '401 Unauthorized' for url 'https://api.shop.com/v1/x'",
            "tool/auth_error",
        ),
        ("requests.exceptions.ReadTimeout", "host='localhost', port=11434: Read timed out.", "model/timeout"),
        ("requests.exceptions.ReadTimeout", "host='localhost', port=8000: Read timed out.", "tool/timeout"),
        ("google.api_core.exceptions.PermissionDenied", "Generative Language API is disabled.", "model/auth_error"),
        ("google.api_core.exceptions.PermissionDenied", "Calendar API is disabled.", "tool/permission_denied"),
    ],
)
def test_the_host_tells_whether_a_client_of_any_service_called_a_model(exception: str, text: str, kind: str) -> None:
    assert classify(text=text, exception=exception).kind == kind


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (
            401,
            '{"error":{"message":"You exceeded your current quota","type":"insufficient_quota"}}',
            "model/quota_exceeded",
        ),
        (429, '{"code":"Throttling.RateQuota","message":"Requests rate limit exceeded"}', "model/rate_limit"),
        (None, '{"base_resp":{"status_code":1008,"status_msg":"insufficient balance"}}', "model/quota_exceeded"),
        (400, '{"object":"error","message":"Bad role","type":"invalid_request_message_order"}', "model/bad_request"),
        (
            None,
            '[API Error: [{"error": {"code": 400, "message": "a", "errors": [{"domain": "global"}]}}]]',
            "model/bad_request",
        ),
        (404, '{"object":"error","status":404,"code":"object_not_found","message":"No page"}', "tool/not_found"),
    ],
)
def test_bodies_of_providers_that_have_no_error_object(status: int | None, text: str, kind: str) -> None:
    assert classify(text=text, status=status).kind == kind
