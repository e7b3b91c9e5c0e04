"""Rules for exception classes, HTTP statuses and error codes. Each maps to the kinds it allows, likeliest first."""

from __future__ import annotations

from mulligan.classify.rules import read_kinds
from mulligan.core.failure import Kind

STATUSES = read_kinds("""
tool kinds
invalid_arguments auth_error retrieval/invalid_query: 400
auth_error: 401 407
permission_denied: 402 451
permission_denied auth_error rate_limit: 403
not_found unknown_tool file_not_found: 404
api_error invalid_arguments: 405 406
timeout: 408 522 524
conflict: 409 412 423 428
not_found: 410
invalid_arguments: 411 413 414 415 422 431
api_error: 424 501
unavailable: 425 507 520 521 523 529
rate_limit: 429
api_error unavailable: 500
unavailable api_error: 502
unavailable rate_limit: 503
timeout unavailable: 504
""")

# Keyed by class name without module: one class is exported by several modules, most of which are not imported here.
# `ValueError` and `TypeError` are raised for many problems with values, so particular text overrides them.
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
execution_failed command_not_found build_failure: ModuleNotFoundError ImportError
execution_failed connection_error: EOFError
invalid_arguments not_found file_not_found unknown_tool conflict connection_error timeout auth_error permission_denied
    rate_limit unavailable invalid_response execution_failed retrieval/invalid_query orchestration/precondition
    orchestration/constraint_violation orchestration/invalid_state: ValueError TypeError
invalid_arguments retrieval/invalid_query: DivisionByZero InvalidTextRepresentation
permission_denied: PermissionError AccessDeniedException InsufficientPrivilege
conflict: FileExistsError IntegrityError UniqueViolation ForeignKeyViolation NotNullViolation CheckViolation
    DuplicateKeyError ConflictError ConditionalCheckFailedException DeadlockDetected SerializationFailure StaleDataError
    VersionConflict AlreadyExists
invalid_response invalid_arguments: JSONDecodeError ContentTypeError DecodingError ContentDecodingError
    UnicodeDecodeError BadStatusLine InvalidJSONError ParseError ExpatError XMLSyntaxError
invalid_arguments invalid_response unknown_tool retrieval/invalid_query file_not_found: ValidationError
    ValidationException InputValidationError InvalidURL MissingSchema InvalidSchema UnsupportedProtocol InvalidHeader
    ModelRetry MissingParameter NoSuchOption InvalidUrlClientError NonHttpUrlClientError InvalidParameterValue
    BadParameter UsageError IllegalArgumentException ArgumentError InvalidArgument InvalidArgumentError
    ParamValidationError NumericValueOutOfRange DatetimeFieldOverflow StringDataRightTruncation BadRequestError
    SchemaError
execution_failed: IndexError AttributeError ZeroDivisionError NameError UnboundLocalError RecursionError
    NotImplementedError OverflowError ReferenceError RangeError NullPointerException ArithmeticException
unknown_tool: ToolNotFoundError UnknownToolError NoSuchToolError
retrieval/invalid_query: ProgrammingError UndefinedTable UndefinedColumn UndefinedFunction AmbiguousColumn GroupingError
    CatalogException BinderException ParserException SQLSyntaxErrorException BadSqlGrammarException RequestError
    XPathEvalError XPathError
auth_error permission_denied: AuthenticationError InvalidPassword NoCredentialsError Unauthenticated UnauthorizedError
    AuthError CredentialRetrievalError InvalidAuthorizationSpecification RefreshError
permission_denied auth_error: PermissionDenied PermissionDeniedError ForbiddenError Forbidden
rate_limit: RateLimitError TooManyRequests ResourceExhausted ThrottlingException RateLimitExceeded TooManyRequestsError
    RateLimitedError ThrottledError
unavailable timeout: ServiceUnavailable MemoryError TooManyConnections ServiceUnavailableError BlockingIOError
    InterfaceError
api_error: TooManyRedirects InternalServerError InternalServerException
not_found unknown_tool retrieval/invalid_query: NotFoundError NotFound NoSuchKey ResourceNotFoundException DoesNotExist
    ObjectDoesNotExist NoResultFound NoSuchElementException LookupError
orchestration/max_retries_exceeded: GraphRecursionError MaxTurnsExceeded UsageLimitExceeded MaxIterationsExceeded
    RetryError TooManyRetries MaxRetriesExceeded AgentMaxStepsError MaxStepsExceeded RetryExhaustedError
orchestration/invalid_state: InvalidStateError IllegalStateException InvalidTransition StateMachineError
    InvalidUpdateError InvalidStateTransition
orchestration/constraint_violation: InputGuardrailTripwireTriggered OutputGuardrailTripwireTriggered PolicyViolation
    ConstraintViolation
orchestration/precondition: FailedPrecondition PreconditionFailed PreconditionError
""")

# Codes of errno, gRPC, AWS and common APIs, in lower case.
CODES = read_kinds("""
tool kinds
connection_error: econnrefused econnreset enotfound eai_again epipe ehostunreach enetunreach
timeout: etimedout deadline_exceeded timeout request_timeout requesttimeout esockettimedout
file_not_found: enoent
permission_denied: eacces eperm permission_denied accessdenied accessdeniedexception forbidden access_denied
    insufficient_scope missing_scope unauthorizedoperation insufficient_permissions
auth_error: unauthenticated unauthorized invalid_token expiredtoken expiredtokenexception invalid_grant invalid_client
    signaturedoesnotmatch invalidaccesskeyid unrecognizedclientexception invalid_auth not_authed authentication_error
    invalid_credentials token_expired authfailure
not_found: not_found resourcenotfoundexception nosuchkey nosuchbucket nosuchentity notfound resource_not_found
    channel_not_found user_not_found
conflict: already_exists conflict conditionalcheckfailedexception bucketalreadyexists eexist aborted
    resourceinuseexception resourceconflictexception duplicate_key
invalid_arguments: invalid_argument validationexception validation_error invalid_request invalidparametervalue
    invalid_params invalid_arguments missing_argument invalid_parameter out_of_range invalidparameterexception
rate_limit: resource_exhausted throttlingexception throttling rate_limited ratelimited slowdown rate_limit_exceeded
    requestlimitexceeded too_many_requests toomanyrequestsexception rate_limit provisionedthroughputexceededexception
unavailable: unavailable service_unavailable serviceunavailable sqlite_busy sqlite_locked maintenance
api_error: internal internal_error internalerror internalfailure internalservererror unimplemented data_loss
orchestration/precondition: failed_precondition preconditionfailed
output_too_large: response_too_large output_too_large
""")

_CODES_WITHOUT_SEPARATORS = {
    name.replace("_", "").removesuffix("exception").removesuffix("error"): kind for name, kind in CODES.items()
}
"""The same codes without separators, for spellings such as `AlreadyExists` and `NotFound`."""

# Whole codes of SQLSTATE, and the first two characters of its classes.
_SQLSTATES = read_kinds("""
tool kinds
connection_error: 08
invalid_arguments: 22
conflict: 23 40
auth_error: 28
retrieval/invalid_query: 42
permission_denied: 42501
unavailable: 53 57
timeout: 57014
""")

_RPC_CODES = read_kinds("""
tool kinds
unknown_tool: -32601
invalid_arguments unknown_tool: -32602
invalid_arguments: -32600 -32700
timeout not_found auth_error unavailable: -32001
not_found unavailable: -32002
none/cancelled: -32800
""")


def kinds_for_status(status: int | None) -> tuple[Kind, ...]:
    """Return the kinds that a status allows, or an empty tuple."""
    if status is None or status < 400:
        return ()
    return STATUSES.get(str(status)) or STATUSES["501" if status >= 500 else "405"]


def kind_for_code(code: str) -> Kind | None:
    """Return the kind of an errno, gRPC, AWS or SQLSTATE code."""
    lower = code.lower()
    allowed = CODES.get(lower) or _CODES_WITHOUT_SEPARATORS.get(lower.removesuffix("exception").removesuffix("error"))
    is_sqlstate = len(code) == 5 and code.isalnum() and code == code.upper() and any(map(str.isdigit, code))
    if not allowed and is_sqlstate:
        allowed = _SQLSTATES.get(code) or _SQLSTATES.get(code[:2])
    return allowed[0] if allowed else None


def kinds_for_rpc_code(code: int | None) -> tuple[Kind, ...]:
    """Return the kinds that a JSON-RPC code allows."""
    return _RPC_CODES.get(str(code), ())
