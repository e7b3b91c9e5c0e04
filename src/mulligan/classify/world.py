"""Rules for the programs that tools are made of: shells, files, networks, services, git, packages, databases, indexes.

In order: the particular before the general. What a rule says is checked against the class and the status, if there are any.
"""

from __future__ import annotations

from mulligan.classify import taxonomy as kinds
from mulligan.classify.rules import Rule
from mulligan.failure import Ran

COMMANDS = (
    Rule(
        "no such command",
        kinds.TOOL_COMMAND_NOT_FOUND,
        (
            "command not found",
            "not found",
            "not recognized",
            "executable",
            "spawn",
            "exec",
            "no such command",
            "not installed",
        ),
        r"command not found|: \d{1,9}: \S{1,80}: (?:Permission denied|not found)$|^(?:/bin/)?(?:ba|da|z|k|a)?sh: (?:line )?\d{0,9}:? ?\S{1,80}: not found|is not recognized as (?:an internal|the name of|a cmdlet)|executable file not found|(?:posix_)?spawn\w{0,6}:? \S{0,120} ?ENOENT|ENOENT.{0,60}posix_spawn|spawn \S{1,300} ENOENT|no such command|^env: .{1,80}: No such file|exec(?:v|vp|ve)?\(?\)?: .{0,60}(?:not found|no such file)|Could not find executable|unable to find (?:executable|command)|not (?:installed|available) (?:on|in) (?:your |the )?(?:system|path|PATH)|is not installed\b|Error: 'make' is not",
    ),
    Rule(
        "shell cannot run it",
        kinds.TOOL_PERMISSION_DENIED,
        ("permission denied", "permission to use", "not permitted", "eacces", "eperm", "read-only", "access is denied"),
        r"permission denied|permission to use .{1,200} (?:has been )?denied|operation not permitted|\bEACCES\b|\bEPERM\b|read-only file ?system|access is denied|access to the path .{1,200} is denied",
        unless=r"publickey|password",
    ),
)

FILES = (
    Rule(
        "no such file",
        kinds.TOOL_FILE_NOT_FOUND,
        (),
        r"no such (?:file|directory)|cannot find or open|cannot find module '(?:/|\.{1,2}/|[a-z]:)|^ERROR: not found: \S{1,300}\.py::|\bENOENT\b|cannot find the (?:file|path) specified|(?:file|path|directory|folder|dir)\b[^\n]{0,160}?(?:does not exist|doesn't exist|not found|could not be found|cannot be found|did not match|not exist)|(?:could not|cannot|can't|couldn't|unable to) (?:find|open|read|access|stat|locate) (?:the )?(?:input |source |config\w{0,80} )?(?:file|path|directory|folder)|pathspec .{1,200} did not match any files?\b(?!\(s\))|nosuchfileexception|filenotfound|cannot stat|did not match any files?\b(?!\(s\))|no matches found: (?:\.{0,2}/|[\w{0,80}.-]+/)\S{0,300}\*|file not found|the system cannot find",
        unless=r"(?:socket|mysql\.sock|postgres\w{0,80}\.s)|in (?:file|the file)[^\n]{0,20}$|profile|no such file or directory.{0,30}exec",
    ),
    Rule("a folder, not a file", kinds.TOOL_FILE_NOT_FOUND, ("eisdir",), r"\bEISDIR\b"),
    Rule(
        "wrong sort of file",
        kinds.TOOL_EXECUTION_FAILED,
        ("is a directory", "not a directory", "eisdir", "enotdir"),
        r"\b(?:is|not) a directory\b|\bEISDIR\b|\bENOTDIR\b",
    ),
    Rule(
        "disk full",
        kinds.TOOL_UNAVAILABLE,
        (
            "no space left",
            "enospc",
            "disk quota",
            "disk full",
            "disk is full",
            "too many open files",
            "cannot allocate memory",
            "out of memory",
            "oom",
            "resource temporarily unavailable",
            "memoryerror",
        ),
        r"no space left|\bENOSPC\b|disk quota exceeded|dis[kc] (?:is )?full|too many open files|\bEMFILE\b|cannot allocate memory|\bENOMEM\b|out of memory|oomkilled|resource temporarily unavailable",
    ),
)

NETWORK = (
    # Only these prove that nothing was sent; everything after a connection stands is unknown.
    Rule(
        "refused connection",
        kinds.TOOL_CONNECTION_ERROR,
        ("refused", "econnrefused", "actively refused"),
        r"connection (?:was )?refused|\bECONNREFUSED\b|actively refused|couldn't connect to server|refused (?:the |to )?connect|connect call failed",
        ran=Ran.NO,
    ),
    Rule(
        "unknown host",
        kinds.TOOL_CONNECTION_ERROR,
        (
            "name or service",
            "resolve",
            "nodename",
            "getaddrinfo",
            "enotfound",
            "eai_again",
            "name resolution",
            "no such host",
            "unknown host",
            "host not found",
            "dns",
        ),
        r"name or service not known|could(?: not|n't) resolve|failed to resolve|cannot resolve|unable to resolve (?:host|address)|nodename nor servname|getaddrinfo|\bENOTFOUND\b|\bEAI_AGAIN\b|name resolution|no such host|unknown host|host not found|no address associated|name does not resolve|err_name_not_resolved|bad address '|dns (?:lookup|resolution|error)|cannot connect to host",
        ran=Ran.NO,
    ),
    Rule(
        "no answer in time",
        kinds.TOOL_TIMEOUT,
        (),
        r"timed[ -]?out|(?:connection|read|request|connect|gateway|socket|operation|command|query|execution|response|server|lock|statement|pool|client|handshake|task|tool|call|navigation|page|process)[ _-]?time(?:d)?[ -]?out|time ?out (?:expired|exceeded|error|after|of|while|waiting|reached|period)|deadline[ _]?exceeded|deadline expired|\bE(?:SOCKET)?TIMEDOUT\b|took (?:too long|longer than)|^timeout(?:error)?\b|did not (?:respond|answer|complete|finish) (?:with)?in|exceeded (?:the )?(?:time ?limit|timeout|maximum (?:execution )?time)|time limit exceeded|canceling statement due to .{0,20}timeout|TimeoutError|maximum execution time",
        unless=r"invalid (?:value|argument|timeout)|timeout must be|unexpected (?:keyword )?argument|lock wait",
    ),
    Rule(
        "connection lost",
        kinds.TOOL_CONNECTION_ERROR,
        (),
        r"connection (?:was |has been |is )?(?:reset|aborted|closed|lost|error|failed|dropped|broken|terminated|forcibly closed|to .{1,80} (?:failed|was lost))|\bECONNRESET\b|\bEPIPE\b|\bECONNABORTED\b|\bEHOSTUNREACH\b|\bENETUNREACH\b|broken pipe|(?:network|host) (?:is )?(?:unreachable|down)|no route to host|remote end closed|(?:ssl|tls)[ _:][^\n]{0,80}(?:error|failed|fail|handshake|verify|wrong version|alert|eof|problem)|certificate (?:verify failed|has expired|is not (?:valid|trusted)|problem)|self[- ]signed certificate|unable to get local issuer|server disconnected|(?:could not|couldn't|cannot|failed to|unable to|can't) (?:establish|connect|open a connection|reach|communicate)|all connection attempts failed|connecterror|network error|fetch failed|socket hang up|unexpected eof (?:while reading|from|in violation)|eof occurred|unable to open database|incompleteread|empty reply from server|err_connection|proxyerror|tunnel connection failed|server closed the connection|peer closed|lost connection to|the remote (?:name could not|server (?:returned|closed|refused))|gone away|connection ?pool|closed (?:network )?connection|ssh: connect to host|no connection could be made|unable to access 'https?:|could not read from remote",
        unless=r"is not connected to the internet\?$|connection string|docker daemon",
    ),
)

SERVICES = (
    Rule(
        "throttled",
        kinds.TOOL_RATE_LIMIT,
        (
            "rate",
            "too many requests",
            "throttl",
            "quota",
            "slow down",
            "429",
            "limit exceeded",
            "requests per",
            "slowdown",
        ),
        r"rate[ _-]?limit(?!er)|too many (?:\w{1,12} )?requests|throttl|(?:api |request |daily |monthly |usage )quota|quota (?:has been |is |was )?(?:exceeded|exhausted|reached)|exceeded (?:your |the )?(?:\w{1,12} )?quota|slow ?down|\b429\b.{0,20}too many|requests per (?:second|minute|hour|day)|request limit (?:exceeded|reached)|call limit|hit (?:the|your) (?:\w{1,10} )?limit|secondary limit|calls? per (?:second|minute|day)",
    ),
    Rule(
        "not signed in",
        kinds.TOOL_AUTH_ERROR,
        (
            "auth",
            "login",
            "log in",
            "logged in",
            "logged out",
            "sign in",
            "signed in",
            "token",
            "credential",
            "api key",
            "api_key",
            "apikey",
            "password",
            "publickey",
            "401",
            "session",
            "x509",
            "jwt",
            "signature",
            "oauth",
            "access key",
            "saml",
            "sso",
            "could not read username",
        ),
        r"unauthori[sz]ed|unauthenticated|not (?:authenticated|logged[ -]in|signed[ -]in|authori[sz]ed to access the api)|(?:please |must |need to |have to |required to )(?:\w{1,10} ){0,2}?(?:log[ -]?in|sign[ -]?in|authenticate|re-?authenticate)\b|no user is (?:currently )?logged|authentication (?:failed|required|error|is required|failure|credentials|token|unsuccessful)|requires? (?:authentication|login|an api key|a valid (?:api key|token))|(?:access|auth|bearer|session|api|refresh|id|security|csrf|oauth|github|personal access|login)?[ _-]?(?:token|credentials?|api[ _-]?key|session|password|jwt|secret|cookie)s?\b[^\n]{0,40}?(?:is |are |was |has |have |been )*\b(?:invalid|expired|missing|revoked|not valid|incorrect|wrong|rejected|not provided|malformed|required|not found|could not be verified)|(?:invalid|expired|missing|incorrect|bad|wrong|no|unknown) (?:\w{1,12} ){0,2}(?:token|credentials?|api[ _-]?key|password|session|authorization header|signature|authentication|login)|publickey|password authentication failed|could not read (?:username|password)|access denied for user|login (?:failed|required)|invalid_grant|invalid_client|expired_token|signaturedoesnotmatch|accesskeyid|authorization (?:header|required|failed)|bad credentials|logon failed|www-authenticate|ora-01017|noauth",
        unless=r"unexpected token|invalid (?:syntax|token '|token:|token <)|syntax error|token \S{1,12} (?:at|in json)|parse|tokens? \(?\d|csrf.{0,5}ok|max(?:imum)? (?:allowed )?tokens|unrecognized token|tokenize|keyword argument|positional argument",
    ),
    Rule(
        "not allowed",
        kinds.TOOL_PERMISSION_DENIED,
        (
            "forbidden",
            "permission",
            "not allowed",
            "access denied",
            "not authorized",
            "denied",
            "privilege",
            "accessdenied",
            "not permitted",
            "insufficient",
            "unauthorized",
            "not have access",
            "blocked by",
            "disallowed",
            "sandbox",
            "allowlist",
            "outside",
        ),
        r"\bforbidden\b|(?:insufficient|missing|lacks?|no|not have|without|requires?|need) (?:\w{1,14} ){0,4}(?:permissions?|privileges?|scopes?|access rights|access to)\b|permission (?:is )?(?:denied|required)|access (?:is |was )?(?:denied|restricted|not allowed)|accessdenied|not (?:authori[sz]ed|permitted|allowed) to (?:perform|access|use|do|view|modify|delete|read|write|call|execute|make|run|create|invoke)|does not have (?:\w{1,12} ){0,3}(?:access|permission|privilege)|permission_denied|permissiondenied|blocked by (?:\w{1,10} ){0,2}(?:policy|administrator|hook|sandbox|firewall|robots|permission)|operation is not permitted|denied by (?:\w{1,10} ){0,2}(?:policy|rule|administrator|permission)|outside (?:of )?(?:the )?(?:allowed|workspace|working|project|permitted|sandbox)|command denied to user|must be owner of|admin(?:istrator)? (?:access|rights|privileges?) (?:is |are )?required|only (?:\w{1,10} ){0,3}(?:owner|admin\w{0,10}) (?:can|may)",
    ),
    Rule(
        "service down",
        kinds.TOOL_UNAVAILABLE,
        (
            "unavailable",
            "overloaded",
            "maintenance",
            "bad gateway",
            "temporarily",
            "try again later",
            "503",
            "502",
            "out of service",
            "shutting down",
            "database is locked",
            "starting up",
            "busy",
            "circuit",
            "offline",
            "not responding",
            "capacity",
            "docker daemon",
            "too many connections",
            "too many clients",
        ),
        r"(?:service|server|system|api|backend|resource|site|endpoint|host)s?\b[^\n]{0,30}\b(?:un|not )available|temporarily (?:un|down|out|disabled|overloaded)|overloaded|(?:under|for|undergoing|scheduled) maintenance|bad gateway|service unavailable|(?:please )?(?:try|retry) again later|out of service|shutting down|database (?:is |table is )?(?:locked|starting)|starting up|server (?:is )?(?:too )?busy|circuit (?:breaker )?(?:is )?open|(?:is|currently|are) offline|not responding|no healthy|cannot connect to the docker daemon|too many (?:connections|clients)|remaining connection slots|unavailable(?:exception|error)?\b[:.]?|upstream (?:connect )?error|read only replica|primary is (?:down|not)|leader not available",
    ),
    Rule(
        "failed on their side",
        kinds.TOOL_API_ERROR,
        (
            "internal server error",
            "internal error",
            "server error",
            "unexpected error",
            "api error",
            "something went wrong",
            "unexpected condition",
            "method not allowed",
            "not implemented",
            "api returned",
            "upstream",
        ),
        r"internal (?:server )?error|server error|unexpected (?:server )?(?:error|condition) (?:occurred|was encountered|has occurred|happened|prevented)|api (?:error|returned (?:an )?error|request failed|call failed)|something went wrong|method not allowed|not implemented|an unknown error occurred|request failed\b",
    ),
    Rule(
        "unreadable answer",
        kinds.TOOL_INVALID_RESPONSE,
        (
            "json",
            "xml",
            "decode",
            "parse",
            "response",
            "content-type",
            "content type",
            "utf-8",
            "unexpected token",
            "expecting value",
            "html",
        ),
        r"(?:invalid|malformed|unexpected|bad|unparsable|empty|garbled|non-json|truncated|corrupt(?:ed)?) (?:\w{1,12} ){0,2}(?:response|reply|answer)\b|response (?:was|is|could|did|does|body|contains|not)[^\n]{0,40}(?:not|invalid|empty|malformed|unexpected|cannot|missing|n't)|expecting value: line|(?:failed|unable|error|could not|cannot|can't) (?:to )?(?:decod|pars|deserializ|unmarshal|read)\w{1,4} (?:\w{1,12} ){0,3}(?:response|json|xml|body|reply|html|payload|answer)|jsondecodeerror|unexpected token \S{1,6}.{0,40}(?:json|doctype)|unexpected end of json|is not valid json|invalid json|(?:unexpected|wrong|invalid) content[- ]type|codec can't decode|invalid character '.{1,4}' looking for beginning of value|not well-formed|chunkedencoding|contentdecoding",
        unless=r"(?:argument|parameter|field|param)s?\b|request body|(?:invalid|bad|malformed) input",
    ),
)

SOURCES = (
    Rule(
        "out of step with git",
        kinds.ORCHESTRATION_PRECONDITION,
        (
            "git",
            "branch",
            "rebase",
            "merge",
            "commit",
            "repository",
            "working tree",
            "stash",
            "fatal:",
            "cherry-pick",
            "checkout",
        ),
        r"not a git repository|your local changes to the following files would be overwritten|please commit your changes or stash|you have unstaged changes|working tree (?:is )?(?:dirty|not clean)|you are not currently on a branch|(?:rebase|merge|cherry-pick) (?:is )?(?:already )?in progress|no upstream branch|has no upstream|need to specify how to reconcile|please tell me who you are|nothing to commit|have not concluded your merge|unfinished merge|uncommitted changes|not possible because you have unmerged",
    ),
    Rule(
        "git has both",
        kinds.TOOL_CONFLICT,
        (
            "conflict",
            "rejected",
            "non-fast-forward",
            "already exists",
            "index.lock",
            "could not apply",
            "fetch first",
            "could not lock",
        ),
        r"\[rejected\]|non-fast-forward|updates were rejected|index\.lock|could not lock (?:ref|config)|(?:branch|tag|remote) .{1,80} already exists|failed to push some refs",
    ),
    Rule(
        "a merge stopped halfway",
        kinds.TOOL_EXECUTION_FAILED,
        ("conflict", "could not apply", "automatic merge failed"),
        r"^CONFLICT \(|merge conflict in|automatic merge failed|could not apply [0-9a-f]{6,}",
        ran=Ran.YES,
    ),
    Rule(
        "git knows nothing of it",
        kinds.TOOL_NOT_FOUND,
        (
            "unknown revision",
            "bad revision",
            "couldn't find remote",
            "not a valid object",
            "repository not found",
            "no such remote",
            "invalid reference",
            "bad object",
            "not a valid ref",
            "does not have any commits",
            "no such ref",
            "does not appear to be a git",
        ),
        r"unknown revision|bad revision|couldn't find remote ref|not a valid (?:object|ref|branch)|repository .{0,120}not found|no such (?:remote|ref)|invalid reference|bad object|did not match any file\(s\) known|remote ref does not exist|does not have any commits|does not appear to be a git",
    ),
    Rule(
        "no such package",
        kinds.TOOL_NOT_FOUND,
        (
            "package",
            "requirement",
            "distribution",
            "e404",
            "crate",
            "formula",
            "module",
            "artifact",
            "no matching",
            "manifest unknown",
            "image",
            "unable to locate",
            "dependency",
        ),
        r"no matching (?:distribution|version|package|manifest)|could not find a version that satisfies|unable to locate package|package .{1,80} (?:was |is )?not (?:found|available|in)|npm err! (?:code )?e?404|\bE404\b|no available formula|could not find (?:crate|artifact|package|gem|\W?\S{1,60} in)|pull access denied|manifest (?:unknown|for .{1,100} not found)|unable to find image|no (?:installation )?candidate|target not found|no package .{1,60} available|no match for argument|could not find any matches|not found in (?:the )?(?:registry|channels?|repository)",
    ),
    Rule(
        "packages clash",
        kinds.TOOL_CONFLICT,
        (
            "eresolve",
            "conflict",
            "dependency",
            "resolutionimpossible",
            "unmet",
            "externally-managed",
            "held broken",
            "could not get lock",
        ),
        r"\bERESOLVE\b|conflicting (?:dependenc|peer|requirement)|resolutionimpossible|dependency (?:conflict|resolution)|unmet dependenc|externally-managed-environment|held broken packages|could not get lock|version (?:conflict|solving failed)",
    ),
)

DATABASES = (
    Rule(
        "already there",
        kinds.TOOL_CONFLICT,
        (
            "constraint",
            "duplicate",
            "unique",
            "deadlock",
            "serializ",
            "ora-00001",
            "foreign key",
            "e11000",
            "version conflict",
            "concurrent",
            "lock wait",
            "conditionalcheck",
        ),
        r"unique constraint|(?:foreign key|check|not[ _-]null|primary key|integrity|exclusion) (?:mismatch|constraint)|constraint (?:failed|violat)|violat\w{1,5} (?:\w{1,12} ){0,5}constraint|duplicate (?:key|entry|record|value|object|table|column|primary)|deadlock|could not serialize|ORA-00001|\bE11000\b|version conflict|concurrent (?:update|modification)|lock wait timeout|conditionalcheckfailed|integrityerror|optimistic lock|write conflict",
    ),
    Rule(
        "wrong query",
        kinds.RETRIEVAL_INVALID_QUERY,
        (),
        r"(?:sql|query|cypher|graphql|lucene|xpath|jql|promql|kql|search|filter|jsonpath|cql|soql) (?:\w{1,10} ){0,2}?(?:syntax|parse|parsing|validation|compilation) (?:error|exception|failed)|syntax error (?:at or near|in (?:sql|query)|near|at line)|near \".{0,60}\": syntax error|error in your sql|no such (?:table|column|function|index|collation|module):|(?:table|column|relation|view|schema|index|collection|field|attribute|type|function|operator|database) [\"'`\[]?[\w.$]{1,80}[\"'`\]]?(?:\([^)]{0,60}\))? (?:does not exist|doesn't exist|not found|is unknown|cannot be (?:found|resolved)|is not (?:indexed|a known|queryable))|unknown (?:column|table|database|field|operator|top level operator|query)|invalid (?:column|object|identifier|query|field) name|ORA-(?:009\d\d|00942|01722|0171\d)|invalid (?:search )?query|malformed (?:query|match|sql)|(?:query|search) (?:is |was )?(?:malformed|invalid|not valid|not well-formed|could not be parsed)|failed to parse (?:query|search|filter|date field)|parse_exception|parsing_exception|search_phase_execution|query_shard_exception|ambiguous column|must appear in the group by|misuse of aggregate|incomplete input|unrecognized token|invalid (?:regular expression|regex|xpath|selector|filter|predicate)|unterminated (?:quoted|string|character)|unmatched [(\[{)]|cannot query field|(?:vector|embedding|query)[^\n]{0,40}dimension|dimension(?:s|ality)?[^\n]{0,40}(?:mismatch|do(?:es)? not match|expected|got \d)|wrong vector dimension|subquery (?:returns|must)|each \(?\"?\w{0,80}\"? ?query must have|different number of (?:result )?columns|invalid input syntax for|unclosed quotation|ORA-|SQL compilation error|PLS-\d|SQL0\d|errors? in query|SQLSTATE\W{0,3}42|has no column named|values for \d{1,9} columns|has \d{1,9} columns but \d{1,9} values|incorrect number of bindings|expected \d{1,9} (?:bindings|columns|parameters)",
    ),
    Rule(
        "wrong index",
        kinds.RETRIEVAL_INVALID_QUERY,
        ("index_not_found", "no such index", "namespace not found", "collection"),
        r"index_not_found|no such index|(?:collection|index|namespace) .{1,80}(?:not found|does not exist|doesn't exist)",
    ),
)

ARGUMENTS = (
    Rule(
        "no such tool",
        kinds.TOOL_UNKNOWN_TOOL,
        ("tool", "function", "method not found", "action", "unknown skill"),
        r"(?:unknown|no such|unrecognized|nonexistent|undefined|unsupported) (?:tool|function|action)(?: name)?\b(?! (?:argument|parameter|option|call id))|(?:tool|function|action) (?:named |with name |name )?[\"'`\[]?[\w.:/-]{0,80}[\"'`\]]? ?(?:is |was |does |could )?(?:not (?:found|exist|available|registered|recognized|defined|be found|a (?:known|valid|recognized))|unknown|doesn't exist|not in)|no (?:tool|function) (?:named|called|with (?:the )?name|found)|method not found|is not a (?:valid|known|registered|recognized|available) (?:tool|function)|model tried to call unavailable tool|available tools:",
        unless=r"undefined function \w{1,40}\(|function .{1,80}\(.{0,80}\) does not exist|no such function:",
    ),
    Rule(
        "arguments do not fit",
        kinds.TOOL_INVALID_ARGUMENTS,
        (),
        r"(?:unexpected|invalid|missing|unknown|unrecognized|bad|wrong|illegal|extra|unsupported|incorrect|required|duplicate|empty|too (?:many|few)|not enough)(?: \d{1,9})? (?:\w{1,16} ){0,3}?(?:argument|parameter|param|input|option|flag|field|property|key(?:word)?|value|operand|switch|format|type|enum|date|character|path|mode|unit|number|choice)s?\b|(?:argument|parameter|param|field|property|input|option|key|value|attribute)s?\b[^\n]{0,100}?(?:is|are|was|were)? ?(?:required|missing|not (?:valid|allowed|supported|recognized|permitted|expected|accepted|a valid|specified|provided|defined|known)|invalid|unexpected|must\b|should (?:be|have|match)|cannot be|can't be|expects?|out of range|unknown)|\bmissing \d{1,9} required|takes \d{1,9} (?:positional|to|from)|required (?:positional|keyword|property|field|argument|parameter)|(?:validation|argument) (?:error|failed|errors)|input ?validation ?error|\bis a required property|is not of type|is not one of|is not valid under any|additional properties|does not match (?:the )?(?:pattern|format|schema|any of|regex)|field required|input should be|extra inputs are not permitted|value is not a valid|(?:must|should|has to|needs to) be (?:a |an |one of|in|between|at (?:least|most)|less|greater|positive|non-?negative|non-?empty|equal|either|of type|unique|specified|provided|numeric|string|valid|set|>|<|\d|the|formatted|within|no (?:more|less)|<=|>=)|must (?:not|match|contain|have|start|end|only|specify|provide|include)|expected (?:a |an |one of |type |value |\w{1,20},? (?:but )?(?:got|found|received))|could not convert|cannot (?:convert|parse|interpret|cast|be (?:empty|null|blank|negative|none|zero|parsed|converted|interpreted))|can't (?:convert|parse)|invalid literal|unable to (?:parse|convert|interpret)|out of (?:range|bounds)|(?:exceeds|above|below|outside) (?:the )?(?:max|min|allowed|valid|limit|range|bound)|too (?:long|short|small|large|big|high|low)\b|unsupported (?:operand|format|value|type|path|unit|currency|language|option)|(?:is|are) not (?:supported|allowed|permitted|recognized|accepted)\b|not a valid\b|unknown (?:option|flag|switch|argument|parameter|predicate|primary)|unrecognized (?:option|argument|flag)|(?:illegal|invalid) (?:option|character|flag|choice|date|time|format|mode|number|value|request)|^usage: |bad request|malformed|no such option|ambiguous (?:option|argument)|requires an? (?:argument|value|parameter)|non-uuid|not a uuid|not found\. available \w{1,20}:|unknown skill|only (?:one|\w{1,10}) (?:\w{1,12} ){0,6}(?:supported|allowed|accepted)|allowed values|valid (?:values|options|choices) (?:are|include)|choose from|wrong number of arguments|provide (?:only|either|a valid|exactly)|-32602|invalid params|unprocessable|unable to read .{0,30}argument|is not defined in (?:the )?schema|wrong type|type mismatch|nullable|is not a number|not a number|parsing .{1,60}: invalid syntax|invalid syntax for|invalid value|hallucinated|no value provided",
    ),
)

STATE = (
    Rule(
        "it is there already",
        kinds.TOOL_CONFLICT,
        (
            "already",
            "file exists",
            "not empty",
            "conflict",
            "in use",
            "eexist",
            "being used",
            "locked by",
            "etag",
            "enotempty",
            "duplicate",
        ),
        r"already (?:exists|exist|in use|taken|registered|been|present|a member|running|open|closed|started|bound|assigned|used|has|defined|at|the|completed|cancell?ed|processed|on|off|exist)|\bfile exists\b|\bEEXIST\b|\bENOTEMPTY\b|not empty|\bconflict(?:s|ing)?\b|address (?:already )?in use|(?:is|are) (?:currently )?(?:in use|being used|locked)|locked by|etag|precondition failed|\bduplicate\b",
    ),
    Rule(
        "something must come first",
        kinds.ORCHESTRATION_PRECONDITION,
        (),
        r"(?:must|need(?:s|ed)? to|have to|has to|should|please) (?:first )?(?:\w{1,16} ){1,8}(?:before|prior to|first\b|when )|\bbefore (?:\w{1,16} ){0,3}?\w{1,16}ing\b|\b(?:is|are|was|were|has|have|been|be)? ?not (?:yet )?(?:been )?(?:initiali[sz]ed|started|running|connected|ready|loaded|open(?:ed)?|configured|enabled|set up|active|activated|verified|confirmed|attached|mounted|selected|paired|installed|eligible|refundable)\b|(?:insufficient|not enough|inadequate) (?:\w{1,14} ){0,2}(?:balance|funds|credit|stock|inventory|seats?|space|fuel|quantity|points|memory|budget|capacity|material|supply|battery)|no active \w{1,20}|call \S{1,40} first|run \S{1,60} first|first (?:call|run|create|start|open|connect|select|log)|prerequisite|precondition|failed_precondition|requires? (?:\w{1,16} ){1,5}to be |depends on|(?:cannot|can't|can not|unable to) (?:be )?(?:\w{1,16} ){1,6}(?:while|until|unless|because|when|with(?:out)?|in (?:its|the|this) (?:current )?(?:state|status)|above|beyond|more than|after|if|as it|since)|(?:is|are) (?:less|lower|greater|more|higher) than (?:the )?(?:budget|limit|balance|available|minimum|maximum|required|price|cost|total)|until (?:\w{1,16} ){1,5}(?:is|are|has|have)|only (?:\w{1,12} ){1,4}(?:can|may) be (?:\w{1,16} ?)|with status|non-\w{1,12} (?:order|item|reservation|booking|account)\w{0,2}\b|cannot be (?:cancell?ed|modified|exchanged|returned|changed|refunded|updated|deleted|removed|processed)|(?:not|no longer) (?:pending|delivered|active|cancellable|modifiable|available (?:for|to))",
    ),
    Rule(
        "a rule forbids it",
        kinds.ORCHESTRATION_CONSTRAINT_VIOLATION,
        (),
        r"(?:policy|rule|constraint|business rule|guardrail|limit)s?\b[^\n]{0,60}(?:violat|forbid|prohibit|prevent|not allow|exceed|reach)|violat\w{1,5}|(?:exceed(?:s|ed)?|over|beyond) (?:the )?(?:\w{1,14} ){0,3}(?:limit|budget|maximum|quota|allowance|capacity)|(?:limit|budget|maximum|capacity|allowance)(?: of [\w.,$]{1,20})? (?:has been |is |was )?(?:exceeded|reached)|prohibited|restricted|(?:do|does) not (?:match|add up|agree|equal)|should (?:be the same|match)|not allowed|mutually exclusive",
    ),
    Rule(
        "wrong state",
        kinds.ORCHESTRATION_INVALID_STATE,
        ("state", "status"),
        r"(?:invalid|illegal|wrong|unexpected|bad|inconsistent) (?:\w{1,12} )?(?:state|status)\b|(?:in|from) (?:state|status) |state (?:transition|machine)|illegalstate|invalidstate",
    ),
)

MISSING = (
    Rule(
        "nothing matched",
        kinds.RETRIEVAL_NO_RESULTS,
        (),
        r"\bno (?:\w{1,14} ){0,2}?(?:results?|match(?:es|ing)?|documents?|records?|rows?|hits|items|entries|data|articles|pages|passages|files|papers|emails|messages|events|answers?)\b(?: \w{1,14}){0,3}?(?: (?:found|matched|match|returned|available|for|in|exist)|\.?$)|\b(?:0|zero) (?:\w{1,10} )?(?:results?|match(?:es)?|hits|documents?|rows?)\b|nothing (?:was )?found|empty result|returned no|no data\b|did not (?:return|match) any",
    ),
    Rule(
        "no such thing",
        kinds.TOOL_NOT_FOUND,
        (),
        r"not[ _-]?found|\bno such\b|(?:does|do|did) ?(?:not|n't) (?:currently )?exist|doesn't exist|(?:could not|couldn't|cannot|can't|unable to|failed to|can not) (?:be )?(?:find|found|locate|look up|identify)|no longer exists?|no available|there (?:is|are) no\b|unknown (?:\w{1,14} ){0,2}(?:id|user|name|account|order|customer|product|item|resource|host|entity|symbol|city|location|airport|station|object|reservation|flight|agent|skill|task|session|channel|project)\b|invalid (?:\w{1,14} ){0,3}(?:airport|currency|country|city|station|zip|postal|language|region|stock|product|item|order|user|account|reservation|flight|booking|customer|ticket) ?(?:code|id|symbol|name|number)?\b|\bno (?:\w{1,14} ){1,3}(?:with|for|named|called|matching|found|exists?)\b|nosuch(?:key|bucket|entity)|is not (?:a (?:known|registered|listed)|available|listed|registered)|has no (?:\w{1,14} )?(?:named|called|with)|not (?:available|in (?:the |your )?(?:list|database|cart|order|system|catalog|workspace|watchlist))",
    ),
)

PROGRAMS = (
    Rule(
        "crashed",
        kinds.TOOL_EXECUTION_FAILED,
        (
            "segmentation fault",
            "core dumped",
            "panic:",
            "killed",
            "aborted",
            "fatal",
            "stack overflow",
            "panicked",
            "signal",
        ),
        r"segmentation fault|core dumped|^panic: |^killed\b|stack overflow|panicked at|exit(?:ed)? (?:with |by |on )?signal|sig(?:kill|segv|abrt|term)",
    ),
    Rule(
        "it failed",
        kinds.TOOL_EXECUTION_FAILED,
        (
            "exit code",
            "exited with",
            "exit status",
            "returned non-zero",
            "execution failed",
            "failed with",
            "error executing",
            "command failed",
            "non-zero",
        ),
        r"exit(?:ed)? (?:code|with|status)|non-?zero|execution failed|command failed|error executing|failed with",
    ),
)

TOOLS: tuple[Rule, ...] = (
    *COMMANDS,
    *NETWORK[:2],
    *FILES,
    *SOURCES,
    *DATABASES,
    *NETWORK[2:],
    *SERVICES,
    *ARGUMENTS,
    *STATE,
    *MISSING,
    *PROGRAMS,
)

PROGRAMS_KINDS = (kinds.TOOL_EXECUTION_FAILED,)
"""Too vague to choose within what a class or a status allows."""

OF_A_PROCESS = frozenset(
    (
        kinds.TOOL_COMMAND_NOT_FOUND,
        kinds.TOOL_FILE_NOT_FOUND,
        kinds.TOOL_PERMISSION_DENIED,
        kinds.TOOL_CONNECTION_ERROR,
        kinds.TOOL_TIMEOUT,
        kinds.TOOL_UNAVAILABLE,
        kinds.TOOL_RATE_LIMIT,
        kinds.TOOL_AUTH_ERROR,
        kinds.TOOL_EXECUTION_FAILED,
    )
)
"""What the output of a program that ran can say about the call. Its other words are about the program's own affairs."""
