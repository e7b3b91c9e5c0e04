"""Rules for LLM provider errors, by duck typing: no provider package is imported.

The class and the status determine which kinds are possible. The provider's code and the text choose among them. The
order matters: providers reuse each other's words (a quota per minute is a rate limit, a spent quota is not).
"""

from __future__ import annotations

from mulligan.classify.error_numbers import parse_overflow
from mulligan.classify.evidence import Evidence
from mulligan.classify.kinds import KINDS, MODEL_CONTEXT_LENGTH_EXCEEDED, MODEL_UNKNOWN, find_kinds_of_status
from mulligan.classify.rules import compile_rule_pattern, match_rules, python, read_kinds, read_rules, shell
from mulligan.core.failure import Kind, Remedy
from mulligan.redaction.regex import compile_regex, index_patterns

CLASSES = read_kinds("""
model kinds
context_length_exceeded: ContextWindowExceededError ContextLengthExceededError ContextOverflowError
    ContextWindowOverflowException RequestTooLargeError
content_policy: ContentPolicyViolationError ContentFilterFinishReasonError ContentFilterError BlockedPromptException
    GuardrailRaisedException OpenAIRefusalError
content_policy output_limit invalid_output: StopCandidateException
output_limit: LengthFinishReasonError IncompleteOutputException IncompleteToolCall MaxTokensReachedException
invalid_output bad_request context_length_exceeded: ValidationError
invalid_output: OutputParsingException ModelBehaviorError ToolRetryError
    APIResponseValidationError JSONSchemaValidationError InstructorRetryException AgentParsingError
    AI_TypeValidationError
invalid_output output_limit content_policy: UnexpectedModelBehavior ResponseValidationError OutputParserException
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
unavailable context_length_exceeded invalid_output content_policy not_found: ModelErrorException ModelError
unavailable context_length_exceeded timeout rate_limit: InternalServerError InternalServerException ServerError
unavailable timeout rate_limit auth_error: ModelAPIError
bad_request context_length_exceeded auth_error quota_exceeded content_policy not_found rate_limit invalid_output
    output_limit: BadRequestError InvalidRequestError InvalidArgument ValidationException BadRequest
bad_request: UnsupportedParamsError
bad_request context_length_exceeded invalid_output: UnprocessableEntityError
""")

CODES = read_kinds("""
model kinds
context_length_exceeded: string_above_max_length
rate_limit: resource_exhausted requests tokens throttling.ratequota throttling.allocationquota limit_requests
auth_error: permission_denied access_denied unrecognizedclientexception unsupported_country_region_territory forbidden
    organization_restricted
content_policy: safety invalid_prompt blocklist spii recitation
not_found: not_found_error model_decommissioned not_found
unavailable: server_error unavailable internal api_error internal_error
invalid_output: tool_use_failed malformed_function_call
output_limit: max_output_tokens max_tokens
bad_request: unsupported_parameter unsupported_value invalid_function_parameters array_above_max_length invalid_image
    image_too_large invalid_image_url missing_required_parameter unknown_parameter invalid_parameter_value
    invalid_base64_image image_parse_error unsupported_image_media_type failed_precondition validation_error bad_request
    invalid_argument invalid_request_error validationexception invalid_request integer_above_max_value
    integer_below_min_value badrequest previous_response_not_found
""")

_NAME_WORDS = read_rules(r"""
model/context_length_exceeded: context
    context_?(?:length|window|limit|size|overflow)|(?:prompt|input|request)_?too_?(?:long|large)|(?:input|prompt|
    max)\w{0,8}_?tokens?_?(?:limit_?)?exceed|tokens?_?limit_?(?:exceed|reach)
model/output_limit: output
    length_?limit|output_?(?:truncat|limit|length)|incomplete_?output|max_?tokens_?(?:reached|error)|model_?max_?length
model/content_policy: content
    content_?(?:filter|polic|moderat|block|violat|risk)|moderat|safety|guardrail|refusal|sensitive|prohibited|
    inappropriate|harmful|policy_?violation|prompt_?block|data_?inspection
model/quota_exceeded: quota
    quota|billing|credit|balance|budget|payment|arrear|overdue|(?:usage|spend\w{0,3}|plan|monthly)_?limit|funds|trial
model/rate_limit: rate
    rate_?limit|throttl|too_?many|slow_?down|(?:concurren|request|burst|rpm|tpm)\w{0,12}_?limit|limit_?burst|_limited$
model/auth_error: credentials
    authenti|unauthori|not_?authori|api_?key|credential|permission|access_?denied|(?:token|key)_?(?:expired|invalid|
    revoked)|(?:invalid|expired|missing)_?(?:\w{1,10}_)?(?:token|key|signature)|(?:account|consumer|
    service)_?(?:suspend|disabled|deactivat)|gated|mismatched_|access_?denied|auth_error
model/not_found: model
    (?:model|deployment|endpoint|engine|repository)\w{0,8}_?(?:not_?(?:found|exist|available|supported|open)|retired|
    deprecated)|(?:unknown|invalid|unsupported|no_?such)_?(?:model|deployment)|no_?endpoints|resource_?not_?found
model/timeout: time
    time(?:d_?)?out|deadline
model/unavailable: server
    overload|unavailable|capacity|server_?(?:busy|error)|internal_?(?:server|failure|service)|bad_?gateway|upstream|
    not_?ready|loading|connection|system_?busy|engine_?dead|stream_?error|incomplete_?generation|inference_?endpoint
model/invalid_output: answer
    (?:output|answer|json|tool_?call|adapter)_?(?:pars|validat)|(?:pars(?:e|ing)|malformed\w{0,10})_?(?:error|action|
    failed)|(?:invalid|unexpected)_?tool_?(?:call|input|arg)|no_?(?:object|output)_?generated|failed_?generation|
    structured_?output
""")
"""Words in names of classes and codes that are in no table, such as `InsufficientCreditsError`."""

_VAGUE = frozenset(
    """
    access_denied api_error bad_request badrequest failed_precondition forbidden internal internal_error
    invalid_argument invalid_parameter_value invalid_request invalid_request_error json_validate_failed
    max_output_tokens max_tokens
    not_found not_found_error permission_denied requests resource_exhausted safety server_error tokens unavailable
    validation_error validationexception
    """.split()
)
"""Ambiguous codes: the text is matched first."""

_RULES = read_rules(r"""
model/bad_request: unreadable attachment
    (?:error|timeout|failed|unable to|could not)\b[^.\n]{0,24} download(?:ing)? (?:the )?(?:https?:|image|file|
    attachment)
model/rate_limit: quota per minute
    per[ _-]?minute|retry in \d|retrydelay|rate limit quota|resource has been exhausted|requests?[ _-]per[ _-](?:minute|
    second)|rate limit[\s\S]{0,300}try again in \d|_per_base_model|\bresource exhausted\b|
    prediction requests? quota|increase your quota limit|with (?:\w{1,12} )?backoff
    words: quota|exhausted|try again in|limit
    unless: per ?day(?![\s\S]{0,400}(?:per ?minute|try again in \d))|(?:used|purchase|buy|more|add) [^.\n]{0,20}credits
model/rate_limit: token rate limit
    too many tokens,? (?:please )?(?:wait|try|per)|reached (?:\w{1,14} )?max (?:request|rpm|tpm|concurren)|
    service[ _]tier[ _]capacity|current requests list|\u901f\u7387\u9650\u5236
model/quota_exceeded: quota exhausted
    exceeded your current quota|insufficient[ _](?:quota|balance|credits?|funds)|credit balance is too low|(?:out of|no|
    more|purchase|add|buy|top up|not enough|run out of|remaining) (?:\w{1,12} ){0,3}(?:credits?|balance|
    funds)\b(?! (?:were|was|will))|top up|not have (?:any|enough) (?:\w{1,12} ){0,2}(?:credits?|balance|funds)|
    n't have (?:any|enough) (?:\w{1,12} ){0,2}(?:credits?|balance|funds)|billing[ _](?:hard|is|not|account|details|has|
    method)|check your (?:plan and )?billing|payment required|(?:spend(?:ing)?|usage|monthly|budget) limits?|
    budget has been exceeded|(?:quota|allowance|budget|balance|credits)\b(?:[^.\n\x22]|\x22(?![,:])){0,60}(?:exceeded|
    used up|exhausted|spent|reached|depleted|run out|ran out)|quota (?:has been|is)|exceeded[^.\n]{0,30} (?:quota|
    allowance)|over budget|credits? (?:have been |are |has been |is )?(?:exhausted|depleted|used)|
    account[^.\n]{0,40}(?:arrears|overdue)|\barrear(?:s|age)|per ?day
    words: quota|credit|billing|balance|spend|payment|usage limit|budget|arrear|overdue|allowance|top up|funds
model/quota_exceeded: plan used up
    (?:per|/) ?month\b|\bmonthly\b[^.\n]{0,40}(?:limit|allotment|allocation|\bcap\b|tokens|usage)|(?:spend(?:ing)?|
    usage|cost|credit|budget) cap\b|(?:allotment|allocation|allowance) of\b|token consumption|(?:used up|consumed|spent|
    ran out of|run out of|hit|reached|exhausted)(?: [\w,.]{1,12}){0,4} (?:allotment|allocation|allowance|plan limit|
    free (?:tier|plan|trial|quota|usage)|prepaid|credits?)\b|billing (?:period|cycle|limit)|recharge|wallet|
    (?:subscription|plan) [^.\n]{0,40}(?:lapsed|expired)|past invoices|(?:weekly|monthly|daily|plan|spend) limit (?:is |
    was )?(?:used up|spent|gone)|(?:trial|subscription|credits?|free (?:tier|plan))\b[^.\n]{0,20} (?:has |have |is |
    are )?(?:expired|ended|lapsed|over\b|run out|ran out)|payment (?:method|failed|is due)|(?:usage|session|weekly|
    5-hour|daily|plan) limit (?:has been |was |is )?(?:reached|hit|exceeded)|exceeded your monthly|free[- ](?:tier|plan|
    usage)\b[^.\n]{0,40}exhausted|(?:key|credit|total) limit (?:has been |was |is )?exceeded|
    hit your (?:\w{1,10} )?limit\b|(?<!rate )limit (?:will )?resets?\b|reached your (?!rate|request|token|
    concurren)(?:[\w.-]{1,12} ){1,3}limit\b|used (?:up )?all (?:of )?your\b|exhausted (?:your|the|all|
    its) (?:\w{1,12} ){0,3}(?:quota|capacity|requests|tokens)\b|premium requests?\b|\u4f59\u989d\u4e0d\u8db3|
    \u989d\u5ea6\u4e0d\u8db3|out of (?:\w{1,10} )?usage\b|usage (?:is gone|exceeded)|limit used up|prepaid tokens|
    balance (?:is )?(?:too low|empty)|no more free\b
model/rate_limit: rate limit
    rate[ _-]?limit|too many (?:concurrent )?requests|throttl|(?:requests|tokens|calls|queries)[ _]?(?:per|
    /)[ _]?(?:min|sec|day|hour)|limit (?:of|on)? ?concurren|concurrency limit|(?:high|reduce|too much) concurrency|
    request rate|slow(?:ing)? down|too quickly|\b(?:RPM|TPM|RPD|TPD)\b|per-(?:minute|second)|(?:requests|calls|
    tokens) an? (?:minute|second|hour)|back off\b|faster than|enqueued token|pace your|acceleration limit|(?:concurrent|
    parallel|in-flight) (?:\w{1,10} )?(?:requests?|calls|connections)|requests? limit|calls? / (?:min|sec|hour)|
    \bin flight\b
    unless: requested \d+[\s\S]{0,100}must be reduced|request too large|over capacity
model/content_policy: content rejected
    content violates|(?:input|prompt|output|response|content|messages?|text|request) (?:was|were|has been|have been|
    is) (?:removed|blocked|flagged|rejected|filtered|refused|moderated|stopped) (?:by|due|because|as|for)\b|(?:hap|
    toxicity|profanity|abuse|safety|content|jailbreak) (?:filter|detector|classifier|shield)|classifiers? inter|
    blocked (?:the|your|this|my|our) (?:prompt|input|request|answer|response|output|message)|(?:stop|
    finish)_?reason\W{1,4}(?:is )?(?:\d{1,2} \()?(?:refusal|content_filter|safety|blocklist|prohibited|spii)|\brefusal\b
    unless: too many|\brate\b|quota|credit
model/auth_error: invalid credentials
    (?:api[ _-]?key|access token|bearer token|x-api-key|credentials?|security token|signature|subscription key|
    auth token|iam token|api token|(?:authentication|oauth|api) token)s?\b[^.\n]{0,40}(?:not valid|invalid|incorrect|
    missing|expired|required|not found|not provided|revoked|disabled|blocked|wrong|denied|not match|could not|leaked|
    must be (?:set|provided|passed)|not set|unset|unknown|inactive|rejected)|(?:invalid|incorrect|missing|expired|wrong|
    no|unable to locate|not find|unknown|bad) (?:\w{1,12} ){0,2}(?:api[ _-]?key|api token|x-api-key|access token|
    bearer token|credentials?|authentication|auth header|subscription key)|unauthori[sz]ed|unauthenticated|
    not authori[sz]ed|authentication (?:failed|error|required|fails)|re-?authenticat|application-default login|
    log ?in fail|not logged in|/login\b|(?:sign|log) ?in (?:to \w{1,12} )?again|(?:sign|log)(?:ging|ing) in again|
    ^invalid token\.?$|token seems|^user not found\.?$|member of an organi|requires verification|\bre-?login\b|
    session (?:has )?expired|not enabled for this account|(?:not|n't|must|to|please) provide (?:an?|your) api[ _-]?key|
    find (?:a |the )?secret\b|api secret key|\u9a8c\u8bc1\u5931\u8d25|\u9a8c\u8bc1\u4e0d\u6b63\u786e|permission(?:_|
     )?denied|(?:do(?:es)?|did)(?: not|n't) have (?:\w{1,12} ){0,3}(?:access|permission)|access (?:is )?denied|
    permission '[^'\n]{1,80}' denied|access to (?:\w{1,10} ){0,3}\S{1,80} is restricted|(?:rejected|refused|
    revoked) (?:the|your|this|our) (?:\w{1,10} )?(?:key|token|credentials?)\b|(?:not|must be) verified|
    resolve authentication|(?:set|export|provide|pass|missing)\b[^.\n]{0,60}_API_KEY|unsupported_country|
    country, region|(?:is|are) not allowed to (?:use|sample|access|call|query)|is not allowed to|not signed in|
    key is for\b|caller does not have|location is not supported|(?:account|organi[sz]ation|workspace|project|
    key) (?:\w{1,12} ){0,3}(?:deactivated|disabled|suspended|banned|archived|revoked)|gated (?:repo|model)|
    insufficient (?:permission|scope|privilege)|invalid (?:user ?name|login) or password|has not been used in project|
    no (?:api )?key (?:for|was|is|has)\b|\b(?:key|token)\b[^.\n]{0,30} (?:is stale|belongs to)|(?:missing|lacks?|
    without|needs?) (?:the )?(?:\S{1,40} )?(?:role|scope|permission|privilege)s?\b|(?:403|401)\W{1,2}(?:forbidden|
    unauth)|private (?:endpoint|link)|public access is disabled|service_disabled
    unless: model `[^`]+` does not exist|(?:not found|not exist) or your? (?:[\w-]{1,40} ){0,3}do|not found the model|
    may not exist or
model/content_policy: content filter
    content[ _-]?(?:management |filter|policy|moderation|filtering)|safety (?:system|reasons|filters?|settings|concerns|
    polic|guidelines)|responsible ai|flagged|violat\w{1,4} (?:\w{1,10} ){0,4}(?:polic|guideline|terms)|polic(?:y|
    ies) violation|usage polic|moderation|block(?:ed|_)? ?reason|(?:was|were|been) blocked|guardrail|inappropriate|
    prohibited[_ ]content|recitation|harmful|terms of service|exists risk|refus(?:ed|es) to (?:answer|respond|help|
    comply|continue)|unsafe (?:content|prompt|input)|sensitive (?:content|information|words)|\bnsfw\b|harm_category|
    high risk|(?:content|prompt)\b[^.\n]{0,50} is blocked|turned (?:\w{1,8} ){1,2}down|\bself-harm\b|withheld|
    declined to (?:answer|respond|help)|jailbreak|(?:input|output) new_sensitive|data_?inspection_?failed|
    \u654f\u611f\u5185\u5bb9|refused (?:this|the|your|my) (?:request|prompt)|acceptable use
model/not_found: no such model
    \b(?:model|deployment|engine)s?\b(?:[^.\n]|\.(?=\d)){0,80}?(?:does not exist|do not exist|not found|
    is not available|no longer (?:available|supported)|(?:has been|was) (?:deprecated|retired|decommissioned|removed|
    shut)|(?:is )?deprecated|decommissioned|retired|not (?:a )?valid\b(?! (?:json|\w{1,12} call|output|object))|
    is unknown|end of its life|could not be found|doesn't exist|not exist|is archived|is not supported for task|
    reached (?:its )?end|not in (?:the )?(?:\w{1,10} )?list|not (?:been )?(?:deployed|enabled|downloaded|installed|
    hosted|served)|is missing$|is not supported(?! with| for| by this| when)|identifier is invalid)|(?:no such|unknown|
    unrecognized|invalid|unsupported) (?:model|deployment)|not a valid model|unavailable model|try pulling it|
    model_not_found|no (?:model|deployment)s? (?:named |called |with |matching |matches )?\W?[\w.:/-]{1,60}\W? (?:is |
    was |exists |are )?(?:in|found|exists|exist)\b|^model: \S{1,80}$|no endpoints found|no model (?:called|named) |
    could not resolve the (?:\w{1,12} )?model|no allowed providers|not found the model|issue with the selected model|
    \u6a21\u578b\u4e0d\u5b58\u5728|(?:unable|failed) to load (?:the )?model|(?:specified |model )version does not exist|
    on-demand throughput|no provider (?:serves|offers|has)|(?:has|knows|offers|serves) no (?:\w{1,10} )?model\b|
    \b(?:gpt|claude|gemini|gemma|llama|mi[sx]tral|text|command|titan|nova|grok|qwen|deepseek|phi|
    o[134])\b[\w.:/-]{0,40}\W? (?:is |was |has (?:not )?been |were )(?:\w{1,10} )?(?:longer (?:available|served|
    supported)|shut|retired|removed|sunset|discontinued|withdrawn|offered|pulled|deprecated|unknown|turned off|
    downloaded|switched off)|(?:removed|retired|discontinued|dropped) (?:the )?(?:model|gpt|claude|gemini|text)\b|
    unable to access (?:[\w-]{1,20} )?model|requires a dedicated endpoint|not available on serverless
    unless: called a tool
model/output_limit: output truncated
    length limit was reached|(?:finished|stopped|ended|terminated|stops) (?:\w{1,10} )?(?:due to|because of|by|
    at) (?:the )?(?:max\w{0,4} )?(?:length\b|max_|token)|(?:response|output|answer|completion|generation|
    model stopped)\b[^.\n]{0,60}\b(?:length|token|output) limit|reached (?:the |its )?(?:max(?:imum)? )?(?:output|
    completion|answer|response) (?:token|length)|(?:finish|stop)[_ ]?reason\W{1,4}(?:\d{1,2} \()?(?:length|max_tokens|
    max_output_tokens|model_length)|(?:output|response|completion|reply|answer|generation|
    tool call)\b[^.\n]{0,40}(?:incomplete (?:due to|because)|truncated|cut (?:off|short)|stops? (?:in the|mid)|
    incomplete: (?:\w{1,10} ){0,3}max[ _])|model token limit \(\d+\) exceeded|max_tokens (?:limit )?(?:was )?reached|
    exceeded (?:the |its )?(?:[\d,]{1,9} )?(?:max(?:imum)? )?(?:output|completion|response) tokens?\b|(?:output|
    completion) token (?:maximum|limit|cap|budget)|stopped at max_tokens|(?:reply|answer|output|response|
    generation) (?:was |ended |stopped |broke |breaks )?(?:cut\b|early\b|off\b)|incomplete: max_|(?:hit|reached|
    ran into) (?:its|the) (?:max\w{0,4} )?(?:output|token|length|completion|max_tokens) (?:limit|token)|
    model output limit|max(?:imum)?[ _](?:number of )?(?:(?:completion|output|new)[ _])?tokens (?:was |were |
    is )?(?:reached|hit|used)|reason\W{1,3}max_output_tokens|output budget|ran out of (?:output|completion) tokens|
    (?:hit|reached) (?:the|its|a) [\d,]{1,9}[ -]token|(?:stopped|ended): length|ran out of tokens|
    (?:hit|reached) max_\w{0,12}tokens|maximum of [\d,]{1,9} tokens and
    unless: max_tokens: \d|must be|at most|maximum value
model/invalid_output: unreadable answer
    (?:could not|cannot|unable to) (?:parse|decode|read|deserialize|interpret)|instead of (?:\w{1,12} ){0,3}json|
    (?:output|response|answer|completion|reply)\b[^\n]{0,30}fail(?:s|ed) (?:\w{1,12} ){0,2}validation|
    failed to (?:parse|decode|call a function|generate json)|(?:invalid|malformed)[ _](?:tool|function)[ _]call|
    malformed_function_call|output pars|invalid json (?:output|response|in)|(?:output|response) (?:validation|
    did not match|does not match)|retries \(\d+\) for (?:output|result) validation|(?:invalid|malformed|broken|
    truncated|unparsable|bad|incorrect|wrong|corrupt|garbled|no) (?:\w{1,12} )?json|unterminated string|unparsable|
    json pars(?:e|ing) (?:error|failed)|received empty model response|(?:output|response|answer|completion|
    reply)\b[^\n]{0,40}(?:could not be|cannot be|failed to be|is not|was not|does not|did not) (?:parsed|decoded|read\b|
    valid|match|a valid|an? (?:\w{1,10} )?(?:json|object|list)|contain|conform|satisfy|follow|include|have)|(?:output|
    response|answer|completion|reply) (?:is missing|misses|lacks|has no|contains no|contained no|had no)\b|
    \b(?:returned|produced|gave|sent|generated|emitted|answered|replied|responded)[^\n]{0,30}(?:empty|not valid|invalid|
    malformed|unparsable|blank|no (?:json|text|answer|tool|content|choices)|nothing\b|prose|plain text)|
    no (?:valid )?(?:json|tool call|output|object|generations?|candidates|choices) (?:was |were )?(?:found|generated|
    returned|produced)|(?<!non-)empty (?:completion|answer|reply|model (?:response|output))|hallucinated|
    could not (?:find|extract|locate) [^\n]{1,40} (?:in|from) (?:\S{1,20} ){0,2}(?:answer|output|reply|completion)\b|
    tool call with (?:broken|invalid|malformed|wrong)|(?:json|xml|yaml|list|object) was (?:required|expected|asked|
    requested)|not in request\.tools|invalid response from|none or empty|(?<!non-)empty (?:choices|candidates|string|
    content|message|parts)\b|invented (?:a|an|the)\b|(?:trailing|extra) (?:text|data|characters)\b|parsing tool call|
    unexpected_tool_call|not parse?able|(?:the )?(?:model|llm|assistant) (?:gave|said|wrote|answered) ['"]|
    tool call without|(?:answer|output|json|reply|response)\b[^\n]{0,30} (?:violates?|breaks?|fails?) (?:the |
    its )?(?:\w{1,10} )?(?:grammar|schema|format)|turn was empty|without (?:an? |any )?(?:tool call|candidates|choices|
    text|content)\b|arguments (?:that )?(?:are|were|is) not (?:valid )?json|(?:validation errors?|missing|required|
    expected)\b[^\n]{0,80}(?:model|llm|assistant)(?:'s (?:answer|output|reply|response)| but it)|not valid json|
    missing 'action|did not use a tool|(?:output|response|answer) was not formatted|include your response in|(?:not|
    n't) conform to|code snippet is invalid|did not (?:provide|produce|include) any \w|did not validate\b|
    tool call (?:validation failed|could not be)|model (?:did not call|called) a tool|exactly one (?:action|tool|
    code block|command)|tried to call unavailable|no tool calls? (?:\w{1,10} )?in the (?:response|answer|output)|
    your (?:response|answer|output|reply) (?:must|should|has to) (?:contain|be|include|have|follow)|
    tool call with missing|(?:two|several|multiple) json\b|(?:reply|answer|response|completion|output) was empty|
    called a tool that|arguments that (?:fail|violate|do not)
    unless: could not parse (?:the )?(?:json )?(?:body|request)|body of your request|invalid schema|invalid grammar|
    parse (?:the )?grammar|grammar (?:error|is|could)|    request body|pars(?:e|ing) (?:the )?(?:request|body)|
    json payload|in request\b(?!\.tools)|function call output|tool_use_id|tool_call_id|messages?[.\[]\d|input cannot be|
    not support image
model/timeout: timeout
    timed? ?-?out|deadline[ _](?:exceeded|expired)|exceeded (?:its|the)[^.\n]{0,16} deadline|within the deadline|
    gave up (?:waiting|after)|took over|waited \d|no (?:\w{1,10} )?(?:tokens?|chunks?|output|data)\b[^.\n]{0,30} for \d|
    into the \d{1,5}[ -]?(?:s|sec\w{0,4}|min\w{0,4}) limit|(?:stalled|hung|idle|silent) (?:for|after) \d|(?:took|taking|
    takes) (?:too long|longer than)|did not (?:respond|answer|complete|finish|return|produce|send|
    start)[^\n]{0,20} (?:with)?in \d|no (?:first )?(?:token|response|reply|answer|data|chunk|
    bytes) (?:\w{1,10} ){0,3}(?:after|within|in|for) \d|etimedout|not (?:ready|finished|done) within \d|(?:hung|
    stalled) and was
model/unavailable: overloaded
    overloaded|service (?:is )?(?:temporarily |currently )?unavailable|temporarily unavailable|(?:at|over|no|full|
    insufficient|out of|without) (?:\w{1,10} )?capacity|high (?:demand|load|traffic)|internal[ _](?:server )?error|
    server(?: had an|_| is currently| is)? ?(?:error|overloaded|busy|disconnected|unavailable)|bad gateway|
    no (?:healthy|available) \w|upstream (?:connect|error|unavailable|request)|
    connection (?:to (?:\w{1,12} ){1,4})?(?:was |has been )?(?:error|refused|reset|aborted|closed|lost|dropped|
    terminated|failed|broken)|(?:model|currently) (?:is )?(?:currently |still )?(?:being )?load(?:ing|ed)|unreachable|
    not ready\b|peer closed|connect error|cannot connect|\b(?:is|are|was|went|currently) (?:down|offline)\b|
    error (?:occurred )?while processing|(?:can|please|should) retry (?:your|the|this) request|
    unexpected (?:\w{1,10} )?error\b|requires more (?:\w{1,10} )?memory|encountered an? (?:issue|error)|
    unable to process (?:your|the) request|error communicating|all (?:providers|models|deployments|
    fallbacks)\b[^.\n]{0,20}failed|provider returned error|try your request again|not (?:responding|running)|
    (?:container|worker|instance|replica|engine|backend|process)s?\b[^.\n]{0,30} (?:did not start|crashed|died|
    failed to start|not running|restarting|terminated)|cuda|out of memory|stream (?:error|disconnected|closed|ended|
    was (?:reset|closed|interrupted))|econn\w{3,8}|fetch failed|maintenance|incomplete chunked|something went wrong|
    \bunavailable\b|warming up|too busy|currently (?:busy|experiencing)|\boutage\b|capacity (?:is |
    was )?(?:temporarily )?exceeded|degraded|no (?:\w{1,10} ){0,2}(?:instances|replicas|workers|nodes|backends|channel|
    deployments? available)\b|went away|server (?:was |has )?restarted|model (?:was |is |has )?(?:unloaded|crashed)|
    runner process|unable to connect|are busy\b|server crashed|scaling up\b|elevated errors
model/unavailable: try again later [vague]
    (?:try|retry)(?: your request)? (?:again )?(?:later|shortly|in a (?:moment|few|minute))|please try again
model/bad_request: invalid request [vague]
    should |invalid|unsupported|must |not supported|unknown(?! error)|expected|required|max_tokens|bad request|
    malformed|maxlength|exceeds?\b|cannot|schema|unexpected|extra inputs|messages?[.\[]\d|not allowed|at (?:least|
    most) |unrecognized|(?:does not|n't|only) support|maximum (?:of|number)|(?:may|can) only|range\b|only for\b|
    not work with|ensure that|valid role|not the same|no (?:user|tool|function) (?:query|call|output|message)s? found|
    is empty|response with id|incompatible|too (?:many|large|small|long|short)|missing|not (?:specified|enabled|
    permitted|accept(?:ed)?\b)|without|requires|could not parse|supported\b|in a row|\ballowed\b|rejects\b|alternate|
    has to\b|does not know|takes no|not process|not provided|not found in tools|\u53c2\u6570|\u4e0d\u80fd\u4e3a\u7a7a|
    duplicate|deprecated
""")

_PACKAGES = tuple(
    f"{package}."
    for package in """
    openai anthropic litellm mistralai cohere groq together ollama pydantic_ai google.genai google.generativeai vertexai
    langchain langchain_core langchain_openai langchain_anthropic langchain_google_genai langchain_aws agents cerebras
    fireworks replicate huggingface_hub instructor dspy llama_cpp vllm aleph_alpha ai21 writerai xai_sdk zhipuai
    dashscope volcenginesdkarkruntime portkey_ai openrouter strands ibm_watsonx_ai azure.ai.inference langchain_groq
    langchain_mistralai langchain_cohere langchain_ollama langchain_fireworks langchain_huggingface lmstudio perplexity
    llama_index.llms text_generation voyageai smolagents.models any_llm
""".split()
)

# Words that only model providers use. They decide if no tool was called, since a tool result may quote them.
_MARKS = (
    r"^error code: \d{3} - |litellm|openai|anthropic|gemini|generativelanguage|vertex ?ai|bedrock|invokemodel|"
    r"converse(?:stream)? operation|mistral|databricks|vllm|ollama|llama\.?cpp|cohere|groq|together ?ai|cerebras|"
    r"openrouter|deepseek|hugging ?face|azure openai|workers ai|sagemaker|watsonx|fireworks\.ai|replicate|perplexity|"
    r"\bgrok\b|api\.x\.ai|\bqwen|dashscope|moonshot|\bkimi\b|\bglm-\d|minimax|lm ?studio|\bgpt-\d|claude-|\bllama-?\d|"
    r"\bo[134]-(?:mini|preview)|max_(?:completion_|new_|output_)?tokens|tool_use_id|tool_call_id|tool_calls|(?:system|"
    r"assistant|thinking) (?:message|block|role|prompt)|messages?[.\[]\d|tokens per min|requests per min|\bT?RPM\b|"
    r"\bTPM\b|input token count|context[ _](?:length|window)|invalid_request_error|insufficient_quota|rate_limit_e|"
    r"overloaded_error|(?:this|the|requested|your|language|ai|chat) models?\b|\bclaude\b|\binference\b|"
    r"(?:output )?token (?:quota|budget|allowance|limit)|\bmodel (?:inference|server|response|output|answer|call|"
    r"request|completion|returned|produced|refused|timed|hallucinated|generated|emitted|json)|(?:the|your) (?:prompt|"
    r"completion)|\bprompt (?:is|has|was|does|exceed|too|length|tokens)|model `|model '|deployment for this resource|"
    r"llm|completion tokens|api keys? (?:not valid|provided|expired)|x-api-key|rate limit reached for|"
    r"exceeded your current quota|credit balance is too low|finish_?reason|content management policy|"
    r"too many tokens, please wait|prompt is too long|api_key_invalid|resource_exhausted|for (?:output|"
    r"result) validation|completionusage|length limit was reached|invalid_model|service_tier_capacity|"
    r"invalid_request_prompt|resource has been exhausted|content filter|\bgpt (?:answered|returned|replied)|(?:agent|"
    r"planner|router|assistant|critic)'s (?:answer|output|reply)|\b(?:pars|decod|interpret|validat)(?:e|"
    r"ing)\b[^\n]{0,40}\b(?:answer|completion|generation)\b|available context size|"
    r"max(?:imum)? (?:output|completion) tokens|assistant (?:replied|answered|returned|gave)|\bcloudflare ai\b|"
    r"missing 'action|did not use a tool|your (?:\w{1,10} )?(?:output|response|answer) was not|"
    r"include your response in|code snippet is invalid|\bai_(?:retry|apicall|noobjectgenerated|jsonparse)error\b|"
    r"stream disconnected before|^api error(?: \(|: )[45]\d\d\b|^unexpected status [45]\d\d\b|"
    r"exceeded retry limit, last status|\bno choices\b|assistant turn\b|tool call arguments|code block from|"
    r"agent output\b|structured output\b|tool call is not|"
    r"credits? (?:have been |are |has been |is )?(?:exhausted|depleted)|"
    r"(?:out of|no|insufficient|purchase|add|any|available|more|enough|included) credits\b|"
    r"^(?:error code: )?(?:402 (?:- )?)?insufficient balance\.?(?: \(1008\))?$|"
    r"(?:hit|reached) your (?:(?!withdraw|transfer|order|purchas|book|storage|download|trading|upload|contact|invite|"
    r"seat|user)[\w.-]{1,12} ){0,3}limit\b(?! of )|limit reached\b[^\n]{0,6}resets|"
    r"\b(?:api |your |weekly |daily |your \w{1,12} )usage (?:limits?|cap)\b|^usage limit (?:exceeded|reached)|"
    r"(?:monthly|workspace|organization) spend(?:ing)? (?:limit|cap)|premium requests?\b|billing (?:hard|details)|"
    r"prepayment credit|\barrearage\b|"
    r"your account (?:is in arrears|has an overdue|is suspended|does not have enough balance)|"
    r"credit limit exceeded, please|\btrial key, which|on the trial key|exceeded your monthly budget|"
    r"budget has been exceeded|exceededbudget|key budget|your trial has|to continue using the api|"
    r"purchase more tokens|subscription quota|quota exceeded for the month|free quota\b|disabled overage|"
    r"used all of your|please top up|failure to pay|request tokens\b|requests rate limit|"
    r"your (?:account|organization)'s rate limit|concurrent connections has exceeded|free-models-per|"
    r"rate limit is \d{1,6} queries|current requests list|sending requests too quickly|concurrency usage|"
    r"request rate increased|max (?:request|concurrency): \d|too many requests, please wait before|"
    r"increase your quota limit|use api sparingly|^resource exhausted\. please try|too many requests in \d|"
    r"\bpace your requests|(?:run|use) /login\b|authentication fails\b|auth credentials found|"
    r"api[- ]key (?:provided|supplied)|wrong api key|wrong api endpoint|"
    r"^(?:error: )?(?:\d{3} )?invalid (?:authentication|bearer token)\.?$|aiplatform\.|generative language|"
    r"generativeai|pass a valid api key|fix external api key|reported as leaked|"
    r"location is not supported for the api|scopes: (?:api\.)?model|foundation[- ]model|"
    r"resolve authentication method|^(?:error: )?invalid api[ -]key(?: provided)?\.?$|organization has been disabled|"
    r"^oauth token (?:revoked|has expired)|token seems invalid|virtual network/firewall|\bchatgpt\b|"
    r"blocked due to (?:safety|prohibited|recitation|other|blocklist|spii)|inappropriate content|"
    r"data_?inspection_?failed|new_sensitive|content exists risk|safety system|usage (?:guidelines|policies)|"
    r"considered high risk|sensitive content\b|may be sensitive|machine outputted|"
    r"(?:by|requires|provider's) moderation\b|safety filters?\b|model identifier|valid model id|no endpoints found|"
    r"^model not (?:exist|found)|^model \S{1,80} is (?:currently loading|archived)|"
    r"unable to access (?:non-serverless )?model|no allowed providers|supported for task|permitted models|"
    r"llama.?(?:runner|server)\b|requires more system memory|engine_?(?:core|dead)|"
    r"^\[?api error: (?:stream|connection|request (?:timed|rejected)|the (?:operation|socket)|unable to connect|"
    r"rate limit|fetch failed|repeated|terminated|overloaded|<|\d{3}\b)|^\[?api error \((?:connection|request timed)|"
    r"unable to connect to api\b|provider returned error|^overloaded\.?$|overloaded with other requests|"
    r"sorry about that|upstream error from|response stream was|experiencing high (?:demand|traffic)|"
    r"(?:engine is|servers are) currently overloaded|selected model|try your request again|visibility check was|"
    r"at capacity\. please try|^model (?:is )?(?:too busy|not ready|failed to load)|^connection error\.$|"
    r"^request timed out\.$|model (?:has timed|did not|stopped)|(?:for|before|to) (?:the )?first token|"
    r"chat completion|stream idle|^streaming response|from the provider\b|finished due to length|"
    r"number of tokens was reached|output budget|output tokens\b|^messages[:.]|"
    r"['\x22`]messages['\x22`] (?:must|is\b|:)|- ['\x22`]messages['\x22`]$|input\.messages\b|query found in messages|"
    r"messages array|or messages must|empty messages|messages with role|"
    r"(?:invalid|unexpected|unsupported) role:? ['\x22`]?(?:user|assistant|system|tool|developer|thinking|function|"
    r"model|role_)|\brole must be in \[user|roles must alternate|role:? ['\x22`]?(?:assistant|system|tool)\b|"
    r"(?:have|use|the|after) role ['\x22`]?user\b|['\x22`](?:assistant|developer)['\x22`]|['\x22`]user['\x22`] role|"
    r"valid role: user|last role\b|user/assistant|user and assistant|assistant (?:content|turn)|"
    r"\ba user (?:message|turn)\b|tool_(?:use|result|choice)\b|tool ?(?:result|use) (?:content )?blocks?\b|"
    r"toolresult|tool choice\b|tool names?\b[^\n]{0,20} (?:must|can)|support tool use|tool call id\b|stream_options|"
    r"response_format|reasoning_(?:effort|content)|['\x22`]reasoning['\x22`]|redacted_thinking|enable_thinking|"
    r"thinking (?:mode|level|is)|thinking['\x22`]|budget_tokens|\btop_p\b|logprobs|stop sequences|chat template|"
    r"chatrequest|generatecontent|function_declarations|"
    r"function call(?:s and| parts| turn|ing\b| output| call_| is missing)|thought_signature|schema for function '|"
    r"['\x22`]tools['\x22`\[]|tools\[\d|^tools(?:\.\d|: tool)|input_schema|json_schema:|cache_control|"
    r"message prefill|prefill is not|content blocks?\b|model parameter|stream parameter|stream must be|stream mode|"
    r"image\(s\) may be|could not process image|text parameter|internalerror\.algo|"
    r"^(?:invalid params|insufficient balance|rate limit|login fail|invalid api key|"
    r"unknown model)[^\n]{0,100} \(\d{4}\)$|developer instruction|"
    r"temperature\b[^\n]{0,30}\W0(?:\.0)?(?: and |, ?|\.\.| to )[12]\b|temperature['\x22`: ]{1,3}(?:only|may only)|"
    r"invalid temperature\b|each message must|history must have|chat setting|message content type|"
    r"check the api reference|request argument supplied|malformed input request|'\$\.input|previous response with|"
    r"vision model|embedding input|field: ['\x22`](?:stream|tool)|does not support (?:chat|tools)$|template error:|"
    r"^prompt is required|tool call validation|malformed_function_call|error parsing tool call|no object generated|"
    r"empty completion|triple backticks|exactly one (?:action|tool|code block)|no tool calls? found|"
    r"your (?:response|answer) must|context size has been|\u901f\u7387\u9650\u5236|\u4f59\u989d\u4e0d\u8db3|"
    r"\u989d\u5ea6\u4e0d\u8db3|\u9a8c\u8bc1\u5931\u8d25|\u9a8c\u8bc1\u4e0d\u6b63\u786e|\u654f\u611f\u5185\u5bb9|"
    r"\u6a21\u578b\u4e0d\u5b58\u5728|out of (?:extra )?usage\b|resets (?:mon|tue|wed|thu|fri|sat|sun|tomorrow)|"
    r"(?:usage|spending) cap\b|prepaid tokens|credits have run out|no more free requests|content policy violation|"
    r"prohibited content|copyrighted text|^unknown model: |stream closed before|waiting for gpt\b|generation stopped|"
    r"ran out of tokens|maximum of [\d,]{1,9} tokens|last message must|user turns\b|logit_bias|by this provider|"
    r"function names must|message role '|output parser failed|provider is having|base_resp|"
    r"['\x22]object['\x22]: ?['\x22]error['\x22], ?['\x22]message|\baierror\b|flagged as sensitive|free allocation|"
    r"no such model\b|list of tools|model\.?(?:accessdenied|notfound)|(?::|port=)11434\b|\bcopilot\b|"
    r"reasoning\.effort|error from provider\b|\bcodex (?:rate|oauth|access)|^\W{0,3}api error: [\[{]|used all your\b|"
    r"from (?:the )?provider:|from (?:the )?model:|the provider did\b|input was flagged|'input\[\d|content parts\b"
)
_MODEL_TOOLS = r"(?:^|_)(?:task|agent|sub_?agent|delegate|llm|ask_model|chat_completion)$"
_MODEL_TOOL_ERRORS = (
    r"(?:(?:sub-?)?agent|task|delegate)\b[^:\n]{0,40}: (?:\d{3} \w{1,30}_error|credit balance|usage limit)|"
    r"(?:api |llm |model )error\b|(?:\w{1,20} ){0,3}(?:usage|rate) limit\b|(?:your )?credit balance|invalid api key|"
    r"prompt is too long|overloaded"
)
"""Tools that call a model, and how the errors of a provider start that they return."""
_OTHER_ENVELOPES = (
    r"""["']type["']\s*:\s*["'](?:[A-Z]{3,20}(?:_[A-Z]{1,20}){1,6}["']|OAuthException|card_error)|["']domain["']\s*:"""
    r"""\s*["'](?!googleapis)|["']code["']\s*:\s*["'](?:[a-z]{2,20}[A-Z]|Error[A-Z]|(?:Request|Authorization)_|"""
    r"""InvalidAuthenticationToken|resource_missing)"""
)
"""Codes of other services whose errors are an object in `error` too."""
_HOSTS = (
    r"\bapi\.(?:openai|anthropic|mistral|groq|deepseek|cohere|x|together|perplexity|cerebras|fireworks|moonshot|minimax)\."
    r"(?:com|ai|cn|io|xyz)\b|\b(?:generativelanguage|aiplatform|dashscope|bedrock-runtime)\.|generative language api|"
    r"cloud\.google\.com/vertex-ai|"
    r"openrouter\.ai/api|(?:api-inference|router)\.huggingface|\.openai\.azure\.com|(?::|port=)11434\b"
)
"""Hosts of model providers."""
_BEDROCK = r"\b(?:InvokeModel|Converse|InvokeAgent)\w{0,30} operation|bedrock"

_SHARED_CLASS_NAMES = frozenset(
    """
    APIConnectionError AccessDeniedException AuthenticationError BadGatewayError BadRequestError DeadlineExceeded
    ForbiddenError InternalServerError InternalServerException InvalidArgument InvalidRequestError NotFound
    NotFoundError PermissionDenied PermissionDeniedError RateLimitError ResourceExhausted ServerError
    ServiceQuotaExceededException ServiceUnavailable ServiceUnavailableError ThrottlingException Timeout TooManyRequests
    TooManyRequestsError ToolRetryError Unauthenticated UnauthorizedError ValidationException BadRequest ModelError
    ResponseValidationError ValidationError
    """.split()
)
"""Class names that other client libraries use too. Alone they do not prove that a model was called."""


def is_model_failure(evidence: Evidence, is_envelope: bool = False) -> bool:
    """Return whether a model was called, by the step's source, the class, or the text if no tool is known."""
    if evidence.source is not None:
        return evidence.source == "model"
    modules = [f"{module}." for module in evidence.modules]
    general_kinds = [python.CLASSES[name][0] for name in evidence.names[:1] if name in python.CLASSES]
    if any(module.startswith(_PACKAGES) for module in modules):
        return not general_kinds or general_kinds[0].type != "orchestration"  # a limit or a guardrail of a framework
    is_aws = any(module.startswith("botocore") for module in modules)
    if is_aws and compile_rule_pattern(_BEDROCK).search(evidence.text[:400]):
        return True  # botocore serves all of AWS: the operation tells whether it was a model
    if any(name in CLASSES and name not in _SHARED_CLASS_NAMES for name in evidence.names):
        return True
    if evidence.rpc is not None or evidence.exit_code is not None:
        return False
    if evidence.tool:
        is_model_tool = compile_rule_pattern(_MODEL_TOOLS).search(evidence.tool)
        return bool(is_model_tool and (is_envelope or compile_rule_pattern(_MODEL_TOOL_ERRORS).match(evidence.text)))
    if is_envelope:
        is_agent = compile_rule_pattern(r"\A\W{0,4}api error").match(evidence.text) is not None
        return is_agent or not compile_regex(_OTHER_ENVELOPES, 0).search(evidence.text[:1_000])
    if evidence.modules - {"builtins"}:  # a class of another client library: the host tells whether it was a model
        return bool(compile_rule_pattern(_HOSTS).search(evidence.text[:400]))
    text = _excerpt_text(evidence)
    return index_patterns(_MARKS).has_match(text, text.lower()) or parse_overflow(text) is not None


def _excerpt_text(evidence: Evidence) -> str:
    """Return both ends of the text. Provider messages are short, so this bounds the cost for other texts."""
    text = f"{evidence.text}\n{evidence.detail}" if evidence.detail else evidence.text
    return text if len(text) <= 4_000 else f"{text[:2_500]}\n{text[-1_500:]}"


def classify_model_failure(evidence: Evidence) -> tuple[Kind, list[str], float]:
    """Return the kind of a model failure, the evidence for it, and the confidence."""
    allowed, reasons = _find_allowed_kinds(evidence)
    text = _excerpt_text(evidence)
    codes = [(code, kind) for code in evidence.codes if (kind := _kind_for_name(code))]
    clear_codes = [(code, kind) for code, kind in codes if code.lower() not in _VAGUE]
    length = MODEL_CONTEXT_LENGTH_EXCEEDED
    if (length in allowed or not allowed) and (
        any(kind is length for _, kind in clear_codes) or parse_overflow(text) is not None
    ):
        return length, [*reasons, "says that it does not fit"], 0.97
    for code, kind in clear_codes:
        if (not allowed or kind in allowed) and not _is_other_limit(kind, text):
            return kind, [f"code {code}", *reasons], 0.97
    for rule, _ in match_rules(_RULES, text, can_decide=lambda rule: not rule.is_vague):
        if not allowed or rule.kind in allowed:
            return rule.kind, [f"text: {rule.name}", *reasons], 0.95 if allowed else 0.85
    for code, kind in codes:
        if kind in allowed:
            return kind, [f"code {code}", *reasons], 0.9
    if allowed:
        return allowed[0], reasons, 0.9 if evidence.status else 0.8
    quoted_codes = compile_regex(_QUOTED_CODE, 0).findall(text[:1_000])
    for code, kind in (*codes, *((code, _kind_for_name(code)) for code in quoted_codes)):
        if kind is not None:
            return kind, [f"code {code}"], 0.8
    for rule, _ in match_rules(shell.PARTICULAR_RULES, text, can_decide=lambda rule: bool(rule.kind.model_codes)):
        return _find_model_kinds(rule.kind)[0], [f"text: {rule.name}"], 0.7
    for rule, _ in match_rules(_RULES, text, can_decide=lambda rule: rule.is_vague):
        return rule.kind, [f"text: {rule.name}"], 0.6
    return MODEL_UNKNOWN, reasons, 0.3


_QUOTED_CODE = r"\w{2,40}(?:_error|Error|Exception|_(?:exceeded|exhausted|failed|limited|reached|expired|denied))\b"
_KINDS_OF_NAMES = {str(kinds[0]): kinds for kinds in (CLASSES["RateLimitError"], CLASSES["InternalServerError"])}
"""The kinds that are possible where a name says one of them."""


def _find_model_kinds(kind: Kind) -> tuple[Kind, ...]:
    """Return what a kind of any client means if a model was called."""
    return tuple(KINDS[f"model/{code}"] for code in kind.model_codes)


def _kind_for_name(name: str) -> Kind | None:
    """Return the kind of a code or a class by the table of codes or by its words."""
    code_kinds = CODES.get(name.lower())
    return code_kinds[0] if code_kinds else next((rule.kind for rule, _ in match_rules(_NAME_WORDS, name)), None)


def _find_allowed_kinds(evidence: Evidence) -> tuple[tuple[Kind, ...], list[str]]:
    """Return the kinds that class and status allow, and the names of both as evidence."""
    allowed: tuple[Kind, ...] = ()
    reasons = []
    general_kinds = {name: python.CLASSES[name][0] for name in evidence.names if name in python.CLASSES}
    by_class = {name: CLASSES[name] for name in evidence.names if name in CLASSES} or {
        name: _find_model_kinds(kind) for name, kind in general_kinds.items() if kind.model_codes
    }
    if not by_class:
        named_kinds = ((name, _kind_for_name(name)) for name in evidence.names)
        by_class = {name: _KINDS_OF_NAMES.get(str(kind), (kind,)) for name, kind in named_kinds if kind}
    for name, kinds in list(by_class.items())[:1]:
        allowed, reasons = kinds, [f"class {name}"]
    status = evidence.status or 0
    if status >= 400:
        by_status = find_kinds_of_status(status, "model")
        common_kinds = tuple(kind for kind in by_status if kind in allowed)
        # The class may be coarser than the status, or specific to the client library. The status comes from the server.
        if len(allowed) != 1:
            allowed = common_kinds or by_status
        if allowed[0].remedy is Remedy.COMPRESS and len(allowed) > 1:
            allowed = (by_status[0], *allowed)  # only words prove an overflow, except for status 413
        reasons.append(f"status {status}")
    return allowed, reasons


def _is_other_limit(kind: Kind, text: str) -> bool:
    """Return whether the text contradicts the code: a rate limit per minute instead of a quota, or the reverse."""
    matched_rules = [rule for rule, _ in match_rules(_RULES, text, can_decide=_RULES[1:5].__contains__)]
    if kind.is_limit:
        return any(rule.kind.is_used_up for rule in matched_rules)
    return kind.is_used_up and _RULES[1] in matched_rules
