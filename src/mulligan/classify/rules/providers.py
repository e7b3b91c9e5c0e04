"""Rules for LLM provider errors, by duck typing: no provider package is imported.

The class and the status determine which kinds are possible. The provider's code and the text choose among them. The
order matters: providers reuse each other's words (a quota per minute is a rate limit, a spent quota is not).
"""

from __future__ import annotations

from mulligan.classify.error_numbers import parse_overflow
from mulligan.classify.evidence import Evidence
from mulligan.classify.kinds import MODEL_CONTEXT_LENGTH_EXCEEDED, MODEL_QUOTA_EXCEEDED, MODEL_RATE_LIMIT, MODEL_UNKNOWN
from mulligan.classify.rules import compile_rule_pattern, match_rules, python, read_kinds, read_rules
from mulligan.core.failure import Kind

STATUSES = read_kinds("""
model kinds
bad_request context_length_exceeded auth_error quota_exceeded content_policy not_found rate_limit invalid_output
    output_limit: 400
auth_error: 401
quota_exceeded: 402
auth_error content_policy quota_exceeded rate_limit: 403
not_found auth_error: 404
bad_request: 405 415
timeout: 408 522 524
bad_request unavailable: 409
context_length_exceeded bad_request: 413
bad_request context_length_exceeded invalid_output: 422
unavailable bad_request context_length_exceeded: 424
rate_limit quota_exceeded context_length_exceeded: 429
content_policy: 451
rate_limit: 498
unavailable context_length_exceeded timeout rate_limit: 500
unavailable timeout: 502
unavailable rate_limit timeout: 503
timeout unavailable: 504
unavailable: 520 521 529
""")

CLASSES = read_kinds("""
model kinds
context_length_exceeded: ContextWindowExceededError ContextLengthExceededError ContextOverflowError
    ContextWindowOverflowException RequestTooLargeError
content_policy: ContentPolicyViolationError ContentFilterFinishReasonError ContentFilterError BlockedPromptException
    GuardrailRaisedException
content_policy output_limit: StopCandidateException
output_limit: LengthFinishReasonError IncompleteOutputException IncompleteToolCall MaxTokensReachedException
invalid_output: OutputParserException OutputParsingException ModelBehaviorError ToolRetryError
    APIResponseValidationError JSONSchemaValidationError InstructorRetryException
invalid_output output_limit content_policy: UnexpectedModelBehavior
timeout: APITimeoutError Timeout DeadlineExceeded ModelTimeoutException
rate_limit quota_exceeded context_length_exceeded: RateLimitError
rate_limit quota_exceeded: TooManyRequestsError TooManyRequests ResourceExhausted
rate_limit: ThrottlingException ModelThrottledException
quota_exceeded: BudgetExceededError PaymentRequiredError
quota_exceeded rate_limit: ServiceQuotaExceededException
auth_error: AuthenticationError ForbiddenError UnauthorizedError Unauthenticated PermissionDenied AccessDeniedException
auth_error content_policy quota_exceeded: PermissionDeniedError
not_found: NotFoundError ModelNotFoundError NotFound
unavailable: OverloadedError ModelNotReadyException BadGatewayError
unavailable timeout: ServiceUnavailableError ServiceUnavailable APIConnectionError
unavailable context_length_exceeded: ModelErrorException
unavailable context_length_exceeded timeout rate_limit: InternalServerError InternalServerException ServerError
unavailable timeout rate_limit auth_error: ModelAPIError
bad_request context_length_exceeded auth_error quota_exceeded content_policy not_found rate_limit invalid_output
    output_limit: BadRequestError InvalidRequestError InvalidArgument ValidationException
bad_request: UnsupportedParamsError
bad_request context_length_exceeded invalid_output: UnprocessableEntityError
""")

CODES = read_kinds("""
model kinds
context_length_exceeded: context_length_exceeded context_window_exceeded string_above_max_length request_too_large
    exceed_context_size_error model_max_prompt_tokens_exceeded model_context_window_exceeded max_context_length_exceeded
    input_too_long prompt_too_long
quota_exceeded: insufficient_quota billing_hard_limit_reached billing_not_active billing_error insufficient_balance
    credit_balance_too_low payment_required insufficient_credits budget_exceeded insufficient_user_quota
    servicequotaexceededexception arrearage quota_exceeded exceeded_current_quota_error
rate_limit: rate_limit_exceeded rate_limit_error ratelimiterror throttlingexception throttling resource_exhausted
    toomanyrequestsexception too_many_requests request_limit_exceeded requests tokens ratelimitreached
    throttling.ratequota limit_requests rate_limited rate_limit toomanyrequests modelthrottledexception
auth_error: invalid_api_key authentication_error permission_error permission_denied unauthenticated access_denied
    accessdeniedexception invalid_authentication unrecognizedclientexception expiredtokenexception
    incorrect_api_key_provided unsupported_country_region_territory account_deactivated api_key_invalid
    invalidsignatureexception expired_api_key unauthorized forbidden invalid_authentication_error missing_api_key
    organization_restricted api_key_service_blocked
content_policy: content_filter content_policy_violation responsibleaipolicyviolation content_policy prohibited_content
    guardrail_intervened moderation_blocked datainspectionfailed data_inspection_failed safety content_filtered
    invalid_prompt cyber_policy_violation
not_found: model_not_found not_found_error deploymentnotfound resourcenotfoundexception model_decommissioned
    model_deprecated unknown_model model_not_available invalid_model model_not_supported modelnotfound
unavailable: overloaded_error server_error internal_server_error service_unavailable engine_overloaded unavailable
    model_overloaded over_capacity modelnotreadyexception serviceunavailableexception internal internalserverexception
    api_error bad_gateway engine_overloaded_error internal_error capacity_exceeded
timeout: timeout request_timeout deadline_exceeded modeltimeoutexception timeout_error gateway_timeout
invalid_output: json_validate_failed tool_use_failed malformed_function_call output_parse_failed
output_limit: max_output_tokens length_limit
bad_request: unsupported_parameter unsupported_value invalid_function_parameters array_above_max_length invalid_image
    image_too_large invalid_image_url missing_required_parameter unknown_parameter invalid_parameter_value
    invalid_base64_image image_parse_error unsupported_image_media_type failed_precondition validation_error bad_request
    invalid_argument invalid_request_error validationexception invalid_request integer_above_max_value
    integer_below_min_value badrequest
""")

_VAGUE = frozenset(
    """
    access_denied api_error bad_request badrequest failed_precondition internal invalid_argument invalid_parameter_value
    invalid_request invalid_request_error not_found_error permission_denied requests resource_exhausted safety
    server_error tokens unavailable validation_error validationexception
    """.split()
)
"""Ambiguous codes: the text is matched first."""

_RULES = read_rules(r"""
model/rate_limit: quota per minute
    per ?_?minute|perminute|retry in \d|retrydelay|resource has been exhausted|requests?[ _-]per[ _-](?:minute|second)
    words: quota|exhausted
    unless: per ?day(?![\s\S]{0,400}per ?minute)
model/rate_limit: token rate limit
    too many tokens,? (?:please )?(?:wait|try|per)
model/quota_exceeded: quota exhausted
    exceeded your current quota|insufficient[ _](?:quota|balance|credits?|funds)|credit balance is too low|(?:out of|no|
    more|purchase|add|not enough|run out of|remaining) credits?|billing[ _](?:hard|is|not|account|details|has)|
    check your (?:plan and )?billing|payment required|(?:spend(?:ing)?|usage|monthly|budget) limits?|
    budget has been exceeded|quota (?:exceeded|has been|is|exhausted)|exceeded[^.\n]{0,30} quota|credits? (?:have been|
    are|has) (?:exhausted|depleted|used)|account[^.\n]{0,40}(?:arrears|overdue)|per ?day
    words: quota|credit|billing|balance|spend|payment|usage limit|budget|arrears|overdue
model/rate_limit: rate limit
    rate[ _-]?limit|too many (?:concurrent )?requests|throttl|(?:requests|tokens|calls|queries)[ _](?:per|/)[ _]?(?:min|
    sec|day|hour)|limit (?:of|on)? ?concurren|concurrency limit|request rate|slow down
    unless: requested \d+[\s\S]{0,100}must be reduced|request too large
model/auth_error: invalid credentials
    (?:api[ _-]?key|access token|bearer token|x-api-key|credentials?|security token|signature|subscription key|
    auth token)s?\b[^.\n]{0,40}(?:not valid|invalid|incorrect|missing|expired|required|not found|not provided|revoked|
    disabled|wrong|denied|not match|could not|leaked)|(?:invalid|incorrect|missing|expired|wrong|no|unable to locate|
    not find) (?:\w{1,12} ){0,2}(?:api[ _-]?key|x-api-key|access token|bearer token|credentials?|authentication|
    subscription key)|unauthori[sz]ed|unauthenticated|not authori[sz]ed|authentication (?:failed|error|required|fails)|
    permission(?:_| )?denied|(?:do(?:es)?|did) not have (?:\w{1,12} ){0,3}(?:access|permission)|access (?:is )?denied|
    not permitted|unsupported_country|country, region|is not allowed to|caller does not have
    unless: model `[^`]+` does not exist
model/content_policy: content filter
    content[ _-]?(?:management |filter|policy|moderation|filtering)|safety (?:system|reasons|filters?|settings|
    concerns)|responsible ai|flagged|violat\w{1,4} (?:\w{1,10} ){0,4}polic|usage polic|moderation|block(?:ed|
    _)? ?reason|(?:was|were|been) blocked|guardrail|inappropriate|prohibited[_ ]content|recitation|harmful|
    terms of service
model/not_found: no such model
    \b(?:model|deployment|engine)s?\b[^.\n]{0,80}?(?:does not exist|do not exist|not found|is not available|
    no longer (?:available|supported)|has been (?:deprecated|retired|decommissioned|removed|shut)|(?:is )?deprecated|
    decommissioned|retired|not (?:a )?valid|is unknown|end of its life|could not be found|doesn't exist|not exist|
    is not supported(?! with| for| by this| when)|identifier is invalid)|(?:no such|unknown|unrecognized|invalid|
    unsupported) (?:model|deployment)|not a valid model|try pulling it|model_not_found
model/output_limit: output truncated
    length limit was reached|finish[_ ]?reason\W{1,4}(?:length|max_tokens)|(?:output|response|completion|
    generation)[^.\n]{0,30}(?:incomplete due to|truncated|cut off)[^.\n]{0,40}(?:max_tokens|token|length)?|
    model token limit \(\d+\) exceeded|max_tokens (?:limit )?(?:was )?reached|exceeded (?:the )?max(?:imum)? (?:output|
    completion) tokens
model/invalid_output: unreadable answer
    could not parse|failed to (?:parse|call a function|generate json)|(?:invalid|malformed)[ _](?:tool|
    function)[ _]call|malformed_function_call|output pars|invalid json (?:output|response|in)|(?:output|
    response) (?:validation|did not match|does not match)|retries \(\d+\) for (?:output|result) validation|
    unterminated string|unparsable|received empty model response|no (?:valid )?(?:json|tool call|output) (?:was )?found|
    not valid json
    unless: could not parse (?:the )?(?:json )?(?:body|request)|body of your request|invalid schema
model/timeout: timeout
    timed? ?-?out|deadline (?:exceeded|expired)
model/unavailable: overloaded
    overloaded|service (?:is )?(?:temporarily |currently )?unavailable|temporarily unavailable|(?:at|over|no|
    insufficient|out of|without) (?:\w{1,10} )?capacity|high demand|internal (?:server )?error|server(?: had an|
    _| is currently| is)? ?(?:error|overloaded|busy|disconnected|unavailable)|bad gateway|no healthy upstream|
    upstream (?:connect|error|unavailable|request)|connection (?:error|refused|reset|aborted|closed)|(?:model|
    currently) (?:is )?(?:currently )?loading|try again later|unreachable|not ready yet|peer closed|connect error|
    cannot connect
model/bad_request: invalid request
    should |invalid|unsupported|must |not supported|unknown|expected|required|max_tokens|bad request|malformed|
    maxlength|exceeds|cannot|schema|unexpected|extra inputs
""")

_OF_ANY_CLIENT = read_kinds("""
model kinds
timeout: tool/timeout
unavailable timeout: tool/connection_error
unavailable timeout rate_limit: tool/unavailable
rate_limit quota_exceeded context_length_exceeded: tool/rate_limit
auth_error: tool/auth_error
invalid_output unavailable: tool/invalid_response
""")
"""Meaning of general HTTP client classes when a model was called."""

_PACKAGES = tuple(
    f"{package}."
    for package in """
    openai anthropic litellm mistralai cohere groq together ollama pydantic_ai google.genai google.generativeai vertexai
    langchain langchain_core langchain_openai langchain_anthropic langchain_google_genai langchain_aws agents cerebras
    fireworks replicate huggingface_hub instructor dspy llama_cpp vllm aleph_alpha ai21 writerai xai_sdk zhipuai
    dashscope volcenginesdkarkruntime portkey_ai openrouter strands
""".split()
)

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

_SHARED_CLASS_NAMES = frozenset(
    """
    APIConnectionError AccessDeniedException AuthenticationError BadGatewayError BadRequestError DeadlineExceeded
    ForbiddenError InternalServerError InternalServerException InvalidArgument InvalidRequestError NotFound
    NotFoundError PermissionDenied PermissionDeniedError RateLimitError ResourceExhausted ServerError
    ServiceQuotaExceededException ServiceUnavailable ServiceUnavailableError ThrottlingException Timeout TooManyRequests
    TooManyRequestsError ToolRetryError Unauthenticated UnauthorizedError ValidationException
    """.split()
)
"""Class names that other client libraries use too. Alone they do not prove that a model was called."""


def is_model_failure(evidence: Evidence, is_envelope: bool = False) -> bool:
    """Return whether a model was called, by the step's source, the class, or the text if no tool is known."""
    if evidence.source is not None:
        return evidence.source == "model"
    modules = [f"{module}." for module in evidence.modules]
    if any(module.startswith(_PACKAGES) for module in modules):
        return True
    is_aws = any(module.startswith("botocore") for module in modules)
    if is_aws and compile_rule_pattern(_BEDROCK).search(evidence.text):
        return True  # botocore serves all of AWS: the operation tells whether it was a model
    if any(name in CLASSES and name not in _SHARED_CLASS_NAMES for name in evidence.names):
        return True
    if evidence.tool or evidence.rpc is not None or evidence.exit_code is not None:
        return False
    if is_envelope:
        return True
    if evidence.modules - {"builtins"}:
        return False  # a class of another client library
    text = _excerpt_text(evidence)
    return compile_rule_pattern(_MARKS).search(text) is not None or parse_overflow(text) is not None


def _excerpt_text(evidence: Evidence) -> str:
    """Return both ends of the text. Provider messages are short, so this bounds the cost for other texts."""
    text = f"{evidence.text}\n{evidence.detail}"
    return text if len(text) <= 4_000 else f"{text[:2_500]}\n{text[-1_500:]}"


def classify_model_failure(evidence: Evidence) -> tuple[Kind, list[str], float]:
    """Return the kind of a model failure, the evidence for it, and the confidence."""
    allowed, reasons = _find_allowed_kinds(evidence)
    text = _excerpt_text(evidence)
    codes = [(code, CODES[code.lower()][0]) for code in evidence.codes if code.lower() in CODES]
    clear_codes = [(code, kind) for code, kind in codes if code.lower() not in _VAGUE]
    length = MODEL_CONTEXT_LENGTH_EXCEEDED
    if (length in allowed or not allowed) and (
        any(kind is length for _, kind in clear_codes) or parse_overflow(text) is not None
    ):
        return length, [*reasons, "says that it does not fit"], 0.97
    for code, kind in clear_codes:
        if (not allowed or kind in allowed) and not _is_other_limit(kind, text):
            return kind, [f"code {code}", *reasons], 0.97
    for rule, _ in match_rules(_RULES[:-1], text):
        if not allowed or rule.kind in allowed:
            return rule.kind, [f"text: {rule.name}", *reasons], 0.95 if allowed else 0.85
    if allowed:
        return allowed[0], reasons, 0.9 if evidence.status else 0.8
    for code, kind in codes:
        return kind, [f"code {code}"], 0.8
    for rule, _ in match_rules(_RULES[-1:], text):
        return rule.kind, [f"text: {rule.name}"], 0.6
    return MODEL_UNKNOWN, reasons, 0.3


def _find_allowed_kinds(evidence: Evidence) -> tuple[tuple[Kind, ...], list[str]]:
    """Return the kinds that class and status allow, and the names of both as evidence."""
    allowed: tuple[Kind, ...] = ()
    reasons = []
    general_kinds = {name: str(python.CLASSES[name][0]) for name in evidence.names if name in python.CLASSES}
    by_class = {name: CLASSES[name] for name in evidence.names if name in CLASSES} or {
        name: _OF_ANY_CLIENT[kind] for name, kind in general_kinds.items() if kind in _OF_ANY_CLIENT
    }
    for name, kinds in list(by_class.items())[:1]:
        allowed, reasons = kinds, [f"class {name}"]
    status = evidence.status or 0
    if status >= 400:
        by_status = STATUSES.get(str(status)) or STATUSES["400" if status < 500 else "500"]
        common_kinds = tuple(kind for kind in by_status if kind in allowed)
        # The class may be coarser than the status, or specific to the client library. The status comes from the server.
        if len(allowed) != 1:
            allowed = common_kinds or by_status
        reasons.append(f"status {status}")
    return allowed, reasons


def _is_other_limit(kind: Kind, text: str) -> bool:
    """Return whether the text contradicts the code: a rate limit per minute instead of a quota, or the reverse."""
    if kind is MODEL_QUOTA_EXCEEDED:
        return any(match_rules(_RULES[:1], text))
    quota_rules = (rule.kind is MODEL_QUOTA_EXCEEDED for rule, _ in match_rules(_RULES[:3], text))
    return kind is MODEL_RATE_LIMIT and any(quota_rules)
