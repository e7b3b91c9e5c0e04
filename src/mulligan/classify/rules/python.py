"""Rules for exception classes, HTTP statuses and error codes. Each maps to the kinds it allows, likeliest first."""

from __future__ import annotations

from mulligan.classify.rules import read_kinds, read_rules
from mulligan.classify.rules.numbers import find_number
from mulligan.core.failure import Kind

# Keyed by class name without module: one class is exported by several modules, most of which are not imported here.
# `ValueError` and `RuntimeError` are raised for problems of any kind, so they are absent: the text decides. `TypeError`
# is either a bug in the tool or a check of its arguments.
CLASSES = read_kinds("""
tool kinds
timeout: TimeoutError Timeout TimeoutExpired TimeoutException ReadTimeout ConnectTimeout WriteTimeout PoolTimeout
    ServerTimeoutError ReadTimeoutError ConnectTimeoutError ConnectionTimeout DeadlineExceeded QueryCanceled
    RequestTimeout SocketTimeoutException QueryTimeoutError GatewayTimeout ConnectionTimeoutError HttpTimeoutException
    ToolTimeoutError WaitTimeoutError
connection_error timeout auth_error: ConnectionError ConnectError ConnectionRefusedError ConnectionResetError
    BrokenPipeError gaierror SSLError SSLCertVerificationError ConnectionAbortedError RemoteDisconnected
    NewConnectionError NameResolutionError URLError ReadError WriteError RemoteProtocolError LocalProtocolError
    ProxyError ClientConnectorError ServerDisconnectedError ClientConnectionError ClientOSError IncompleteRead
    ChunkedEncodingError ServerSelectionTimeoutError AutoReconnect ClientConnectorDNSError EndpointConnectionError
    NoHostAvailable ConnectException UnknownHostException SocketException ClosedResourceError BrokenResourceError
    NetworkError ConnectionClosed ConnectionClosedError WebSocketException SSHException ClientConnectorSSLError
connection_error invalid_response timeout: ClientPayloadError
file_not_found command_not_found: FileNotFoundError NoSuchFileException
execution_failed command_not_found build_failure orchestration/precondition: ModuleNotFoundError ImportError
execution_failed connection_error: EOFError
orchestration/uncaught_exception: KeyError AttributeError NameError UnboundLocalError
orchestration/uncaught_exception invalid_arguments file_not_found unknown_tool conflict connection_error timeout
    auth_error permission_denied rate_limit unavailable invalid_response retrieval/invalid_query
    orchestration/precondition orchestration/constraint_violation orchestration/invalid_state: TypeError
invalid_arguments retrieval/invalid_query: DivisionByZero InvalidTextRepresentation
permission_denied: PermissionError AccessDeniedException InsufficientPrivilege
conflict: FileExistsError IntegrityError UniqueViolation ForeignKeyViolation NotNullViolation CheckViolation
    DuplicateKeyError ConflictError ConditionalCheckFailedException StaleDataError VersionConflict AlreadyExists
invalid_response invalid_arguments: JSONDecodeError ContentTypeError DecodingError ContentDecodingError
    UnicodeDecodeError BadStatusLine InvalidJSONError ParseError ExpatError XMLSyntaxError ParserError ScannerError
    ComposerError ConstructorError TOMLDecodeError UnexpectedCharError UnexpectedCharacters UnexpectedToken
    UnidentifiedImageError BadZipFile BadGzipFile
invalid_arguments invalid_response unknown_tool retrieval/invalid_query file_not_found: ValidationError
    ValidationException InputValidationError InvalidURL MissingSchema InvalidSchema UnsupportedProtocol InvalidHeader
    ModelRetry MissingParameter NoSuchOption InvalidUrlClientError NonHttpUrlClientError InvalidParameterValue
    BadParameter UsageError IllegalArgumentException ArgumentError InvalidArgument InvalidArgumentError
    ParamValidationError NumericValueOutOfRange DatetimeFieldOverflow StringDataRightTruncation BadRequestError
    SchemaError LinAlgError MergeError
execution_failed: MemoryError IndexError ZeroDivisionError RecursionError NotImplementedError OverflowError
    ReferenceError RangeError NullPointerException ArithmeticException
unknown_tool: ToolNotFoundError UnknownToolError NoSuchToolError
retrieval/invalid_query: ProgrammingError UndefinedTable UndefinedColumn UndefinedFunction AmbiguousColumn GroupingError
    CatalogException BinderException ParserException SQLSyntaxErrorException BadSqlGrammarException RequestError
    XPathEvalError XPathError UndefinedVariableError CypherSyntaxError QuerySyntaxError SQLSyntaxError
auth_error permission_denied: AuthenticationError InvalidPassword NoCredentialsError Unauthenticated UnauthorizedError
    AuthError CredentialRetrievalError InvalidAuthorizationSpecification RefreshError
permission_denied auth_error: PermissionDenied PermissionDeniedError ForbiddenError Forbidden
rate_limit: RateLimitError TooManyRequests ResourceExhausted ThrottlingException RateLimitExceeded TooManyRequestsError
    RateLimitedError ThrottledError
unavailable: DeadlockDetected DeadlockDetectedError SerializationFailure SerializationError LockNotAvailable
unavailable timeout: ServiceUnavailable TooManyConnections ServiceUnavailableError BlockingIOError InterfaceError
    BusyLoadingError NotEnoughReplicasError LeaderNotAvailableError ClusterDownError
api_error: TooManyRedirects InternalServerError InternalServerException
not_found unknown_tool retrieval/invalid_query: NotFoundError NotFound NoSuchKey ResourceNotFoundException DoesNotExist
    ObjectDoesNotExist NoResultFound NoSuchElementException LookupError
orchestration/max_retries_exceeded: GraphRecursionError MaxTurnsExceeded UsageLimitExceeded MaxIterationsExceeded
    RetryError TooManyRetries MaxRetriesExceeded AgentMaxStepsError MaxStepsExceeded RetryExhaustedError
orchestration/loop_detected: AgentStuckInLoopError
orchestration/invalid_state: InvalidStateError IllegalStateException InvalidTransition StateMachineError
    InvalidUpdateError InvalidStateTransition
orchestration/constraint_violation: InputGuardrailTripwireTriggered OutputGuardrailTripwireTriggered PolicyViolation
    ConstraintViolation
orchestration/precondition: FailedPrecondition PreconditionFailed PreconditionError InvalidGitRepositoryError
    InvalidSessionIdException NoSuchSessionException
""")

CANCELLATIONS = frozenset(("CancelledError", "KeyboardInterrupt", "Cancelled", "TaskCancelledError"))
QUERY_PACKAGES = frozenset(
    "cssselect elementpath graphql jmespath jsonpath_ng luqum soupsieve sqlglot sqlparse".split()
)
"""Packages that only parse and evaluate queries, so each of their errors is about the query."""

BINDING_ERROR_PATTERN = (
    r"([\w<>]{1,80})\(\) (?:missing \d{1,9} required|got an unexpected keyword|got multiple values for|"
    r"takes (?:no|\d|from|at (?:least|most)|exactly)|got some positional-only)"
)
TYPE_ERROR_PATTERN = (
    r"unsupported operand|bad operand type|"
    r"object (?:is not|does not support|has no|cannot be interpreted|can't be used|doesn't)|^unhashable type|"
    r"^can only (?:concatenate|join)|indices must be|cannot unpack non-iterable|"
    r"is not (?:iterable|JSON serializable)|^sequence item \d|not all arguments converted|"
    r"format(?: requires|: an? )|^exceptions must derive|is not a (?:function|constructor)|cannot read propert"
)
"""Messages of the interpreter for a `TypeError`: about a call, and about anything else."""
_UNREADABLE_FILE = r"[^\n]{1,200} \((?!<)[^()\n]{1,200}, line \d{1,9}\)\Z"
INTERPRETER_MESSAGES = {
    "SyntaxError": _UNREADABLE_FILE,
    "IndentationError": _UNREADABLE_FILE,
    "TabError": _UNREADABLE_FILE,
    "ValueError": r"(?:not enough|too many) values to unpack \(expected ",
    "IndexError": r"[\w ]{0,40}index out of range\Z|pop from (?:an )?empty ",
    "RecursionError": r"maximum recursion depth exceeded",
    "RuntimeError": r"[\w ]{0,40}(?:changed size|keys changed|mutated) during iteration",
}
"""Messages of the interpreter for other classes, which code also raises with messages of its own.

A division by zero is absent: a call with other values may succeed.
"""

# Words in the names of exception classes that are not in the table, such as `OrderNotFoundError`.
CLASS_NAMES = read_rules("classes", "names of classes")

# Codes of errno, gRPC, AWS and common APIs, in lower case.
CODES = read_kinds("""
tool kinds
quota_exceeded: quota_exceeded quotaexceeded dailylimitexceeded insufficient_credits out_of_credits payment_required
    usage_limit_exceeded plan_limit_exceeded plan_limit_reached
captcha_required: captcha_required captcha
timeout: timeout request_timeout requesttimeout
permission_denied: permission_denied accessdenied accessdeniedexception forbidden access_denied
    insufficient_scope missing_scope unauthorizedoperation insufficient_permissions restricted_action no_permission
    not_allowed_token_type restricted_resource team_access_not_granted ekm_access_denied
auth_error: unauthenticated unauthorized invalid_token expiredtoken expiredtokenexception invalid_grant invalid_client
    signaturedoesnotmatch invalidaccesskeyid unrecognizedclientexception invalid_auth not_authed authentication_error
    invalid_credentials token_expired authfailure token_revoked account_inactive
not_found: not_found resourcenotfoundexception nosuchkey nosuchbucket nosuchentity notfound resource_not_found
    channel_not_found user_not_found object_not_found message_not_found thread_not_found users_not_found
conflict: already_exists conflict conditionalcheckfailedexception bucketalreadyexists aborted
    resourceinuseexception resourceconflictexception duplicate_key name_taken already_in_channel already_reacted
    already_pinned is_archived entityalreadyexists bucketnotempty dependencyviolation resourcealreadyexistsexception
    invalidgroup.duplicate unable_to_lock_row version_conflict edit_conflict concurrent_modification
invalid_arguments: invalid_argument validationexception validation_error invalid_request invalidparametervalue
    invalid_params invalid_arguments missing_argument invalid_parameter out_of_range invalidparameterexception
    bad_request no_text msg_too_long invalid_blocks missing_argument invalid_json
rate_limit: resource_exhausted throttlingexception throttling rate_limited ratelimited slowdown rate_limit_exceeded
    requestlimitexceeded too_many_requests toomanyrequestsexception rate_limit provisionedthroughputexceededexception
unavailable: unavailable service_unavailable serviceunavailable sqlite_busy sqlite_locked maintenance
api_error: internal internal_error internalerror internalfailure internalservererror servicefailure unimplemented
    data_loss
orchestration/precondition: failed_precondition preconditionfailed not_in_channel
output_too_large: response_too_large output_too_large
""")

# What people write as the code of an `AgentError`, without the words of `CODE_PREFIXES` and `CODE_ENDINGS`.
DECLARED_CODES = read_kinds("""
tool kinds
execution_failed: tool tool_call execution failed failure fail incomplete midway interrupted aborted crash
    crashed operation action task job step process processing run runtime command function handler call query write
    send save commit submit upload update create delete transaction rollback
unknown: error exception unexpected generic general other
api_error: api server internal_server upstream downstream backend service external third_party dependency provider
    remote request http database db not_implemented
timeout: timed_out time_out deadline took_too_long
connection_error: connect connection_refused connection_reset connection_lost connection_closed disconnected network dns
    socket transport unreachable host_unreachable io
unavailable: temporarily_unavailable not_available overloaded overload busy down offline maintenance try_again_later
rate_limit: throttled rate_exceeded too_many_calls slow_down
auth_error: auth authentication not_authenticated unauthorised login login_required not_logged_in credential credentials
    bad_credentials missing_credentials missing_token bad_token expired_token token_invalid invalid_key
    api_key invalid_api_key missing_api_key bad_api_key expired_api_key api_key_expired api_key_invalid
    session_expired invalid_session
permission_denied: permission permissions denied authorization authorisation not_authorized not_authorised
    not_allowed not_permitted insufficient_permission insufficient_rights no_access access_forbidden
unknown_tool: invalid_tool invalid_tool_name no_such_tool tool_not_found tool_missing unknown_function
    function_not_found no_such_function unknown_action
not_found: missing_resource does_not_exist doesnt_exist no_such_resource unknown_resource unknown_id no_such_id
conflict: exists duplicate locked resource_locked version_mismatch stale
invalid_arguments: validation input_validation schema_validation invalid argument arguments arg args parameter
    parameters param params input schema invalid_input invalid_inputs invalid_args invalid_param
    invalid_parameters invalid_value invalid_type invalid_format invalid_schema invalid_id invalid_name invalid_date
    invalid_email bad_input bad_argument bad_arguments bad_parameter bad_value bad_format malformed malformed_request
    malformed_input missing_arguments missing_parameter missing_parameters missing_param missing_field missing_value
    missing_input required_field unknown_argument unsupported_value too_many too_few too_high too_low too_small
invalid_response: bad_response malformed_response unexpected_response empty_response parse parsing decode decoding
output_too_large: result_too_large
orchestration/precondition: prerequisite missing_prerequisite not_ready requirement missing_dependency
orchestration/invalid_state: state illegal_state wrong_state bad_state invalid_transition illegal_transition
orchestration/constraint_violation: constraint policy policy_violation rule_violation business_rule guardrail limit
    limit_reached rejected refused
orchestration/max_retries_exceeded: max_retries retries retries_exhausted too_many_retries max_attempts
orchestration/uncaught_exception: uncaught unhandled unhandled_exception bug assertion
retrieval/no_results: no_result no_matches no_match empty_result empty_results nothing_found no_data
retrieval/invalid_query: bad_query query_syntax
none/user_rejected: user_declined rejected_by_user declined_by_user
none/cancelled: canceled user_cancelled user_canceled
""")
CODE_PREFIXES = frozenset("tool agent error err e code api http request server service mcp".split())
CODE_ENDINGS = frozenset("error errors err failed failure exception exceeded".split())
CODE_FAMILIES = read_kinds("""
tool kinds
not_found: _not_found
timeout: _timeout _timed_out
unavailable: _unavailable
""")
"""Codes by their end, such as `order_not_found`."""

_CODES_WITHOUT_SEPARATORS = {
    name.replace("_", "").removesuffix("exception").removesuffix("error"): kind for name, kind in CODES.items()
}
"""The same codes without separators, for spellings such as `AlreadyExists` and `NotFound`."""


def kind_for_code(code: str) -> Kind | None:
    """Return the kind of an errno, gRPC, AWS or SQLSTATE code."""
    lower = code.lower()
    allowed = CODES.get(lower) or _CODES_WITHOUT_SEPARATORS.get(lower.removesuffix("exception").removesuffix("error"))
    stated = None if allowed else find_number("", (code,))
    return (allowed or (stated.kinds if stated else (None,)))[0]
