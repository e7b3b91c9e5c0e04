"""Rules for LLM provider errors, by duck typing: no provider package is imported.

The class and the status determine which kinds are possible. The provider's code and the text choose among them. The
order matters: providers reuse each other's words (a quota per minute is a rate limit, a spent quota is not).
"""

from __future__ import annotations

from mulligan.classify.error_numbers import parse_overflow
from mulligan.classify.evidence import Evidence
from mulligan.classify.rules import (
    compile_rule_pattern,
    match_rules,
    python,
    read_kinds,
    read_pattern,
    read_rules,
    words,
)
from mulligan.classify.rules.numbers import find_number
from mulligan.core.failure import Kind, Remedy
from mulligan.core.kinds import KINDS, MODEL_CONTEXT_LENGTH_EXCEEDED, MODEL_UNKNOWN, find_kinds_of_status
from mulligan.redaction.regex import compile_regex, index_patterns

CLASSES = read_kinds("tables", "exceptions of models")

CODES = read_kinds("tables", "codes of models")

_NAME_WORDS = read_rules("providers", "names")
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

_RULES = read_rules("providers", "rules")

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
_MARKS = read_pattern("providers", "marks")
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

_STREAM_ERRORS = (
    r"\b(?:internalServer|serviceUnavailable|throttling|modelStreamError|modelTimeout|modelNotReady)Exception\b|"
    r"\bServiceFailure\b"
)
"""Errors of a stream that Bedrock and gateways send in a frame with status 400."""

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
            confidence = 0.95 if allowed else 0.85 if rule.is_certain(text) else 0.75
            return rule.kind, [f"text: {rule.name}", *reasons], confidence
    for code, kind in codes:
        if kind in allowed:
            return kind, [f"code {code}", *reasons], 0.9
    if allowed:
        return allowed[0], reasons, 0.9 if evidence.status else 0.8
    quoted_codes = compile_regex(_QUOTED_CODE, 0).findall(text[:1_000])
    for code, kind in (*codes, *((code, _kind_for_name(code)) for code in quoted_codes)):
        if kind is not None:
            return kind, [f"code {code}"], 0.8
    for table in (words.PARTICULAR_RULES, *words.find_language_tables(text)):
        for rule, _ in match_rules(table, text, can_decide=lambda rule: bool(rule.kind.model_codes)):
            return _find_model_kinds(rule.kind)[0], [f"text: {rule.name}"], 0.7
    stated = find_number(text, tuple(evidence.codes))
    if stated is not None and stated.kinds[0].model_codes:
        return _find_model_kinds(stated.kinds[0])[0], [stated.label], 0.8
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
    if status == 400:
        texts = (_excerpt_text(evidence), *evidence.codes)
        if any(compile_rule_pattern(_STREAM_ERRORS).search(text) for text in texts):
            return (), []
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
