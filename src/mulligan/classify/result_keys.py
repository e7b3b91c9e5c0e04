"""Keys of dictionaries that may be failures. Every result is checked for them, most without another rule."""

from __future__ import annotations

MESSAGE_KEYS = frozenset(
    "message Message msg errmsg error_message errorMessage error_description description detail details reason error "
    "errors errorMessages title exception faultstring".split()
)
STATUS_KEYS = ("statusCode", "status_code", "httpStatus", "http_status", "status", "code")
EMPTY_KEYS = ("data", "result", "results", "output", "response", "content")
"""Keys of a result's data, which an error leaves empty."""
ENVELOPE_KEYS = MESSAGE_KEYS.union(
    STATUS_KEYS,
    EMPTY_KEYS,
    "ok success isError is_error type name object kind apiVersion metadata jsonapi jsonrpc meta errorCode error_code "
    "errcode errorType error_type errorMessages Error Code hint hints recoverable retryable retry_after retryAfter "
    "suggestion suggestions timestamp time path instance method documentation_url more_info link links help error_uri "
    "request_id requestId RequestId trace_id traceId correlation_id stack stackTrace stack_trace trace traceback extra "
    "messages response_metadata ResponseMetadata statusText headers body text extensions fields param params".split(),
)
"""Keys that describe an error and its request. A dictionary with another key holds data."""
MAX_DESCRIPTION_KEYS = 6
DESCRIPTION_KEYS = frozenset(
    "message Message msg detail details info information Information note Note warning reason cause problem why "
    "explanation errors error hint".split()
)
"""Keys of sentences about a call."""
DONE_KEYS = frozenset(
    "ok success created started sent saved booked updated moved cancelled canceled accepted executed applied written "
    "scheduled delivered completed confirmed processed done deleted".split()
)
"""Keys whose `false` says that the call did not do what it was for."""
