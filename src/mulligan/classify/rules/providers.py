"""Rules for LLM provider errors, by duck typing: no provider package is imported.

The class and the status determine which kinds are possible. The provider's code and the text choose among them. The
order matters: providers reuse each other's words (a quota per minute is a rate limit, a spent quota is not).
"""

from __future__ import annotations

from mulligan.classify import kinds as kinds
from mulligan.classify.error_numbers import Overflow, parse_overflow
from mulligan.classify.evidence import Evidence
from mulligan.classify.rules import python
from mulligan.classify.rules.matching import Rule, compile_rule_pattern, join_ends, match_rules
from mulligan.core.failure import Kind

__all__ = ["Overflow", "classify_model_failure", "is_model_failure", "parse_overflow"]

LIMIT, LENGTH, QUOTA = kinds.MODEL_RATE_LIMIT, kinds.MODEL_CONTEXT_LENGTH_EXCEEDED, kinds.MODEL_QUOTA_EXCEEDED
AUTH, POLICY, MISSING = kinds.MODEL_AUTH_ERROR, kinds.MODEL_CONTENT_POLICY, kinds.MODEL_NOT_FOUND
BAD, DOWN, SLOW = kinds.MODEL_BAD_REQUEST, kinds.MODEL_UNAVAILABLE, kinds.MODEL_TIMEOUT
GARBLED, CUT_OFF = kinds.MODEL_INVALID_OUTPUT, kinds.MODEL_OUTPUT_LIMIT

_REFUSED = (BAD, LENGTH, AUTH, QUOTA, POLICY, MISSING, LIMIT, GARBLED, CUT_OFF)
_BROKEN = (DOWN, LENGTH, SLOW, LIMIT)

STATUSES: dict[int, tuple[Kind, ...]] = {
    int(status): allowed
    for allowed, statuses in (
        (_REFUSED, "400"),
        ((AUTH,), "401"),
        ((QUOTA,), "402"),
        ((AUTH, POLICY, QUOTA, LIMIT), "403"),
        ((MISSING, AUTH), "404"),
        ((BAD,), "405 415"),
        ((SLOW,), "408 522 524"),
        ((BAD, DOWN), "409"),
        ((LENGTH, BAD), "413"),
        ((BAD, LENGTH, GARBLED), "422"),
        ((DOWN, BAD, LENGTH), "424"),
        ((LIMIT, QUOTA, LENGTH), "429"),
        ((POLICY,), "451"),
        ((LIMIT,), "498"),
        (_BROKEN, "500"),
        ((DOWN, SLOW), "502"),
        ((DOWN, LIMIT, SLOW), "503"),
        ((SLOW, DOWN), "504"),
        ((DOWN,), "520 521 529"),
    )
    for status in statuses.split()
}

CLASSES: dict[str, tuple[Kind, ...]] = {
    name: allowed
    for allowed, names in (
        (
            (LENGTH,),
            "ContextWindowExceededError ContextLengthExceededError ContextOverflowError "
            "ContextWindowOverflowException RequestTooLargeError",
        ),
        (
            (POLICY,),
            "ContentPolicyViolationError ContentFilterFinishReasonError ContentFilterError "
            "BlockedPromptException GuardrailRaisedException",
        ),
        ((POLICY, CUT_OFF), "StopCandidateException"),
        ((CUT_OFF,), "LengthFinishReasonError IncompleteOutputException IncompleteToolCall MaxTokensReachedException"),
        (
            (GARBLED,),
            "OutputParserException OutputParsingException ModelBehaviorError ToolRetryError "
            "APIResponseValidationError JSONSchemaValidationError InstructorRetryException",
        ),
        ((GARBLED, CUT_OFF, POLICY), "UnexpectedModelBehavior"),
        ((SLOW,), "APITimeoutError Timeout DeadlineExceeded ModelTimeoutException"),
        ((LIMIT, QUOTA, LENGTH), "RateLimitError"),
        ((LIMIT, QUOTA), "TooManyRequestsError TooManyRequests ResourceExhausted"),
        ((LIMIT,), "ThrottlingException ModelThrottledException"),
        ((QUOTA,), "BudgetExceededError PaymentRequiredError"),
        ((QUOTA, LIMIT), "ServiceQuotaExceededException"),
        (
            (AUTH,),
            "AuthenticationError ForbiddenError UnauthorizedError Unauthenticated PermissionDenied "
            "AccessDeniedException",
        ),
        ((AUTH, POLICY, QUOTA), "PermissionDeniedError"),
        ((MISSING,), "NotFoundError ModelNotFoundError NotFound"),
        ((DOWN,), "OverloadedError ModelNotReadyException BadGatewayError"),
        ((DOWN, SLOW), "ServiceUnavailableError ServiceUnavailable APIConnectionError"),
        ((DOWN, LENGTH), "ModelErrorException"),
        (_BROKEN, "InternalServerError InternalServerException ServerError"),
        ((DOWN, SLOW, LIMIT, AUTH), "ModelAPIError"),
        (_REFUSED, "BadRequestError InvalidRequestError InvalidArgument ValidationException"),
        ((BAD,), "UnsupportedParamsError"),
        ((BAD, LENGTH, GARBLED), "UnprocessableEntityError"),
    )
    for name in names.split()
}

CODES: dict[str, Kind] = {
    name: kind
    for kind, names in (
        (
            LENGTH,
            "context_length_exceeded context_window_exceeded string_above_max_length request_too_large "
            "exceed_context_size_error model_max_prompt_tokens_exceeded model_context_window_exceeded "
            "max_context_length_exceeded input_too_long prompt_too_long",
        ),
        (
            QUOTA,
            "insufficient_quota billing_hard_limit_reached billing_not_active billing_error insufficient_balance "
            "credit_balance_too_low payment_required insufficient_credits budget_exceeded insufficient_user_quota "
            "servicequotaexceededexception arrearage quota_exceeded exceeded_current_quota_error",
        ),
        (
            LIMIT,
            "rate_limit_exceeded rate_limit_error ratelimiterror throttlingexception throttling resource_exhausted "
            "toomanyrequestsexception too_many_requests request_limit_exceeded requests tokens ratelimitreached "
            "throttling.ratequota limit_requests rate_limited rate_limit toomanyrequests modelthrottledexception",
        ),
        (
            AUTH,
            "invalid_api_key authentication_error permission_error permission_denied unauthenticated access_denied "
            "accessdeniedexception invalid_authentication unrecognizedclientexception expiredtokenexception "
            "incorrect_api_key_provided unsupported_country_region_territory account_deactivated api_key_invalid "
            "invalidsignatureexception expired_api_key unauthorized forbidden invalid_authentication_error "
            "missing_api_key organization_restricted api_key_service_blocked",
        ),
        (
            POLICY,
            "content_filter content_policy_violation responsibleaipolicyviolation content_policy prohibited_content "
            "guardrail_intervened moderation_blocked datainspectionfailed data_inspection_failed safety "
            "content_filtered invalid_prompt cyber_policy_violation",
        ),
        (
            MISSING,
            "model_not_found not_found_error deploymentnotfound resourcenotfoundexception model_decommissioned "
            "model_deprecated unknown_model model_not_available invalid_model model_not_supported modelnotfound",
        ),
        (
            DOWN,
            "overloaded_error server_error internal_server_error service_unavailable engine_overloaded unavailable "
            "model_overloaded over_capacity modelnotreadyexception serviceunavailableexception internal "
            "internalserverexception api_error bad_gateway engine_overloaded_error internal_error capacity_exceeded",
        ),
        (SLOW, "timeout request_timeout deadline_exceeded modeltimeoutexception timeout_error gateway_timeout"),
        (GARBLED, "json_validate_failed tool_use_failed malformed_function_call output_parse_failed"),
        (CUT_OFF, "max_output_tokens length_limit"),
        (
            BAD,
            "unsupported_parameter unsupported_value invalid_function_parameters array_above_max_length "
            "invalid_image image_too_large invalid_image_url missing_required_parameter unknown_parameter "
            "invalid_parameter_value invalid_base64_image image_parse_error unsupported_image_media_type "
            "failed_precondition validation_error bad_request invalid_argument invalid_request_error "
            "validationexception invalid_request integer_above_max_value integer_below_min_value badrequest",
        ),
    )
    for name in names.split()
}

_VAGUE = frozenset(
    "bad_request invalid_argument invalid_request_error validationexception invalid_request badrequest internal "
    "api_error validation_error failed_precondition server_error requests tokens resource_exhausted safety unavailable "
    "permission_denied access_denied not_found_error invalid_parameter_value".split()
)
"""Ambiguous codes: the text is matched first."""

_RULES = (
    Rule(
        "the quota is by the minute",
        LIMIT,
        ("quota", "exhausted"),
        r"per ?_?minute|perminute|retry in \d|retrydelay|resource has been exhausted|"
        r"requests?[ _-]per[ _-](?:minute|second)",
        unless=r"per ?day(?![\s\S]{0,400}per ?minute)",
    ),
    Rule("throttled by tokens", LIMIT, pattern=r"too many tokens,? (?:please )?(?:wait|try|per)"),
    Rule(
        "out of quota",
        QUOTA,
        ("quota", "credit", "billing", "balance", "spend", "payment", "usage limit", "budget", "arrears", "overdue"),
        r"exceeded your current quota|insufficient[ _](?:quota|balance|credits?|funds)|credit balance is too low|"
        r"(?:out of|no|more|purchase|add|not enough|run out of|remaining) credits?|billing[ _](?:hard|is|not|"
        r"account|details|has)|check your (?:plan and )?billing|payment required|(?:spend(?:ing)?|usage|monthly|"
        r"budget) limits?|budget has been exceeded|quota (?:exceeded|has been|is|exhausted)|"
        r"exceeded[^.\n]{0,30} quota|credits? (?:have been|are|has) (?:exhausted|depleted|used)|"
        r"account[^.\n]{0,40}(?:arrears|overdue)|per ?day",
    ),
    Rule(
        "throttled",
        LIMIT,
        pattern=r"rate[ _-]?limit|too many (?:concurrent )?requests|throttl|(?:requests|tokens|calls|"
        r"queries)[ _](?:per|/)[ _]?(?:min|sec|day|hour)|limit (?:of|on)? ?concurren|concurrency limit|request rate|"
        r"slow down",
        unless=r"requested \d+[\s\S]{0,100}must be reduced|request too large",
    ),
    Rule(
        "wrong key",
        AUTH,
        pattern=r"(?:api[ _-]?key|access token|bearer token|x-api-key|credentials?|security token|signature|"
        r"subscription key|auth token)s?\b[^.\n]{0,40}(?:not valid|invalid|incorrect|missing|expired|required|"
        r"not found|not provided|revoked|disabled|wrong|denied|not match|could not|leaked)|(?:invalid|incorrect|"
        r"missing|expired|wrong|no|unable to locate|not find) (?:\w{1,12} ){0,2}(?:api[ _-]?key|x-api-key|"
        r"access token|bearer token|credentials?|authentication|subscription key)|unauthori[sz]ed|unauthenticated|"
        r"not authori[sz]ed|authentication (?:failed|error|required|fails)|permission(?:_| )?denied|(?:do(?:es)?|"
        r"did) not have (?:\w{1,12} ){0,3}(?:access|permission)|access (?:is )?denied|not permitted|"
        r"unsupported_country|country, region|is not allowed to|caller does not have",
        unless=r"model `[^`]+` does not exist",
    ),
    Rule(
        "content filter",
        POLICY,
        pattern=r"content[ _-]?(?:management |filter|policy|moderation|filtering)|safety (?:system|reasons|filters?|"
        r"settings|concerns)|responsible ai|flagged|violat\w{1,4} (?:\w{1,10} ){0,4}polic|usage polic|moderation|"
        r"block(?:ed|_)? ?reason|(?:was|were|been) blocked|guardrail|inappropriate|prohibited[_ ]content|"
        r"recitation|harmful|terms of service",
    ),
    Rule(
        "no such model",
        MISSING,
        pattern=r"\b(?:model|deployment|engine)s?\b[^.\n]{0,80}?(?:does not exist|do not exist|not found|"
        r"is not available|no longer (?:available|supported)|has been (?:deprecated|retired|decommissioned|removed|"
        r"shut)|(?:is )?deprecated|decommissioned|retired|not (?:a )?valid|is unknown|end of its life|"
        r"could not be found|doesn't exist|not exist|is not supported(?! with| for| by this| when)|"
        r"identifier is invalid)|(?:no such|unknown|unrecognized|invalid|unsupported) (?:model|deployment)|"
        r"not a valid model|try pulling it|model_not_found",
    ),
    Rule(
        "cut off",
        CUT_OFF,
        pattern=r"length limit was reached|finish[_ ]?reason\W{1,4}(?:length|max_tokens)|(?:output|response|completion|"
        r"generation)[^.\n]{0,30}(?:incomplete due to|truncated|cut off)[^.\n]{0,40}(?:max_tokens|token|length)?|"
        r"model token limit \(\d+\) exceeded|max_tokens (?:limit )?(?:was )?reached|"
        r"exceeded (?:the )?max(?:imum)? (?:output|completion) tokens",
    ),
    Rule(
        "unreadable answer",
        GARBLED,
        pattern=r"could not parse|failed to (?:parse|call a function|generate json)|(?:invalid|malformed)[ _](?:tool|"
        r"function)[ _]call|malformed_function_call|output pars|invalid json (?:output|response|in)|(?:output|"
        r"response) (?:validation|did not match|does not match)|retries \(\d+\) for (?:output|result) validation|"
        r"unterminated string|unparsable|received empty model response|no (?:valid )?(?:json|tool call|"
        r"output) (?:was )?found|not valid json",
        unless=r"could not parse (?:the )?(?:json )?(?:body|request)|body of your request|invalid schema",
    ),
    Rule(
        "no answer in time",
        SLOW,
        pattern=r"timed? ?-?out|deadline (?:exceeded|expired)",
    ),
    Rule(
        "overloaded",
        DOWN,
        pattern=r"overloaded|service (?:is )?(?:temporarily |currently )?unavailable|temporarily unavailable|(?:at|"
        r"over|no|insufficient|out of|without) (?:\w{1,10} )?capacity|high demand|internal (?:server )?error|"
        r"server(?: had an|_| is currently| is)? ?(?:error|overloaded|busy|disconnected|unavailable)|bad gateway|"
        r"no healthy upstream|upstream (?:connect|error|unavailable|request)|connection (?:error|refused|reset|"
        r"aborted|closed)|(?:model|currently) (?:is )?(?:currently )?loading|try again later|unreachable|"
        r"not ready yet|peer closed|connect error|cannot connect",
    ),
    Rule(
        "refused as it stands",
        BAD,
        (
            "invalid",
            "unsupported",
            "must ",
            "not supported",
            "unknown",
            "expected",
            "required",
            "max_tokens",
            "bad request",
            "malformed",
            "maxlength",
            "exceeds",
            "cannot",
            "schema",
            "unexpected",
            "extra inputs",
            "should ",
        ),
        "",
    ),
)

_OF_ANY_CLIENT: dict[Kind, tuple[Kind, ...]] = {
    kinds.TOOL_TIMEOUT: (SLOW,),
    kinds.TOOL_CONNECTION_ERROR: (DOWN, SLOW),
    kinds.TOOL_UNAVAILABLE: (DOWN, SLOW, LIMIT),
    kinds.TOOL_RATE_LIMIT: (LIMIT, QUOTA, LENGTH),
    kinds.TOOL_AUTH_ERROR: (AUTH,),
    kinds.TOOL_INVALID_RESPONSE: (GARBLED, DOWN),
}
"""Meaning of general HTTP client classes when a model was called."""

_PACKAGES = (
    "openai anthropic litellm mistralai cohere groq together ollama pydantic_ai google.genai "
    "google.generativeai vertexai "
    "langchain langchain_core langchain_openai langchain_anthropic langchain_google_genai langchain_aws "
    "agents cerebras "
    "fireworks replicate huggingface_hub instructor dspy llama_cpp vllm aleph_alpha ai21 writerai xai_sdk zhipuai "
    "dashscope volcenginesdkarkruntime portkey_ai openrouter strands"
).split()

# Words that only model providers use. They decide if no tool was called, since a tool result may quote them.
_MARKS = (
    r"^error code: \d{3} - |litellm|openai|anthropic|gemini|generativelanguage|vertex ?ai|bedrock|invokemodel|"
    r"converse(?:stream)? operation|mistral|databricks|vllm|ollama|llama\.?cpp|cohere|groq|together ?ai|cerebras|"
    r"openrouter|deepseek|hugging ?face|azure openai|\bgpt-\d|claude-|\bllama-?\d|\bo[134]-(?:mini|preview)|"
    r"max_(?:completion_|new_|output_)?tokens|tool_use_id|tool_call_id|tool_calls|(?:system|assistant|"
    r"thinking) (?:message|block|role|prompt)|messages?[.\[]\d|tokens per min|requests per min|\bT?RPM\b|\bTPM\b|"
    r"input token count|context[ _](?:length|window)|invalid_request_error|insufficient_quota|rate_limit_e|"
    r"overloaded_error|(?:this|the|requested|your) model\b|model `|model '|deployment for this resource|llm|"
    r"completion tokens|api keys? (?:not valid|provided|expired)|x-api-key|rate limit reached for|"
    r"exceeded your current quota|credit balance is too low|finish_?reason|content management policy|"
    r"too many tokens, please wait|prompt is too long|api_key_invalid|resource_exhausted|for (?:output|"
    r"result) validation|completionusage|length limit was reached|invalid_model|service_tier_capacity|"
    r"invalid_request_prompt|resource has been exhausted"
)


_BEDROCK = r"\b(?:InvokeModel|Converse|InvokeAgent)\w{0,30} operation|bedrock"


def is_model_failure(evidence: Evidence, is_envelope: bool = False) -> bool:
    """Return whether a model was called, by the step's source, the class, or the text if no tool is known."""
    if evidence.source is not None:
        return evidence.source == "model"
    if any(_is_provider(module) for module in evidence.modules):
        return True
    if any(module.startswith("botocore") for module in evidence.modules) and compile_rule_pattern(_BEDROCK).search(
        evidence.text
    ):
        return True  # botocore serves all of AWS: the operation tells whether it was a model
    if any(name in CLASSES and name not in _SHARED_CLASS_NAMES for name in evidence.names):
        return True
    if evidence.tool or evidence.rpc is not None or evidence.exit_code is not None:
        return False
    if evidence.modules - {"builtins"} and not is_envelope:
        return False  # a class of another client library
    provider_text = _excerpt_text(evidence)
    return (
        is_envelope
        or bool(compile_rule_pattern(_MARKS).search(provider_text))
        or parse_overflow(provider_text) is not None
    )


_SHARED_CLASS_NAMES = frozenset(
    "Timeout NotFound NotFoundError InternalServerError ServiceUnavailable PermissionDenied "
    "PermissionDeniedError ForbiddenError "
    "AuthenticationError RateLimitError TooManyRequests TooManyRequestsError ServerError InvalidArgument "
    "DeadlineExceeded "
    "UnauthorizedError Unauthenticated ResourceExhausted AccessDeniedException ThrottlingException ValidationException "
    "ServiceUnavailableError BadRequestError InvalidRequestError BadGatewayError ToolRetryError "
    "ServiceQuotaExceededException "
    "InternalServerException APIConnectionError".split()
)
"""Class names that other client libraries use too. Alone they do not prove that a model was called."""


def _is_provider(module: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in _PACKAGES)


def _excerpt_text(evidence: Evidence) -> str:
    """Return both ends of the text. Provider messages are short, so this bounds the cost for other texts."""
    return join_ends(f"{evidence.text}\n{evidence.detail}", 2_500, 1_500)


def classify_model_failure(evidence: Evidence) -> tuple[Kind, list[str], float]:
    """Return the kind of a model failure, the evidence for it, and the confidence."""
    reasons: list[str] = []
    allowed: tuple[Kind, ...] = ()
    for name in evidence.names:
        if name in CLASSES:
            allowed, reasons = CLASSES[name], [f"class {name}"]
            break
    if not allowed:
        for name in evidence.names:
            if name in python.CLASSES and python.CLASSES[name][0] in _OF_ANY_CLIENT:
                allowed, reasons = _OF_ANY_CLIENT[python.CLASSES[name][0]], [f"class {name}"]
                break
    status = evidence.status or 0
    by_status = STATUSES.get(status, () if status < 400 else _REFUSED if status < 500 else _BROKEN)
    if by_status:
        common_kinds = tuple(kind for kind in by_status if kind in allowed)
        # The class may be coarser than the status, or specific to the client library. The status comes from the server.
        if not allowed or len(allowed) > 1 or not common_kinds:
            allowed = common_kinds or (by_status if len(allowed) != 1 else allowed)
        reasons.append(f"status {evidence.status}")
    provider_text = _excerpt_text(evidence)
    codes = [CODES[code.lower()] for code in evidence.codes if code.lower() in CODES and code.lower() not in _VAGUE]
    if (LENGTH in allowed or not allowed) and (LENGTH in codes or parse_overflow(provider_text)):
        return LENGTH, [*reasons, "says that it does not fit"], 0.97
    for code in evidence.codes:
        kind = CODES.get(code.lower())
        if kind is not None and code.lower() not in _VAGUE and (not allowed or kind in allowed):
            if kind is QUOTA and any(rule.kind is LIMIT for rule, _ in match_rules(_RULES[:1], provider_text)):
                continue  # a rate limit per minute that uses the words of a spent quota
            if kind is LIMIT and any(rule.kind is QUOTA for rule, _ in match_rules(_RULES[:3], provider_text)):
                continue
            return kind, [f"code {code}", *reasons], 0.97
    for rule, _ in match_rules(_RULES[:-1], provider_text):
        if not allowed or rule.kind in allowed:
            return rule.kind, [f"text: {rule.name}", *reasons], 0.95 if allowed else 0.85
    if not allowed:
        for code in evidence.codes:
            if code.lower() in CODES:
                return CODES[code.lower()], [f"code {code}"], 0.8
        for rule, _ in match_rules(_RULES[-1:], provider_text):
            return rule.kind, [f"text: {rule.name}"], 0.6
        return kinds.MODEL_UNKNOWN, reasons, 0.3
    return allowed[0], reasons, 0.9 if evidence.status else 0.8
