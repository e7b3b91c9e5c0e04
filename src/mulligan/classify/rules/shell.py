"""Rules for common programs: shells, files, networks, services, git, packages, databases, search indexes.

Specific rules come before general ones. The classifier checks each result against the class and the status, if any.
"""

from __future__ import annotations

from mulligan.classify import kinds as kinds
from mulligan.classify.rules.matching import Rule
from mulligan.core.failure import TookEffect

COMMANDS = (
    Rule(
        "no such command",
        kinds.TOOL_COMMAND_NOT_FOUND,
        pattern=r"command not found|: \d{1,9}: \S{1,80}: (?:Permission denied|not found)$|^(?:/bin/)?(?:ba|da|z|k|"
        r"a)?sh: (?:line )?\d{0,9}:? ?\S{1,80}: not found|is not recognized as (?:an internal|the name of|a cmdlet)|"
        r"executable file not found|(?:posix_)?spawn\w{0,6}:? \S{0,120} ?ENOENT|ENOENT.{0,60}posix_spawn|"
        r"spawn \S{1,300} ENOENT|^env: .{1,80}: No such file|exec(?:v|vp|ve)?\(?\)?: .{0,60}(?:not found|"
        r"no such file)|Could not find executable|unable to find (?:executable|command)|not (?:installed|"
        r"available) (?:on|in) (?:your |the )?(?:system|path|PATH)|is not installed\b(?! (?:on|in|for) )|"
        r"^xargs: \S{1,80}: No such file|failed to (?:run|execute) command .{1,80}: No such file",
    ),
    Rule(
        "shell cannot run it",
        kinds.TOOL_PERMISSION_DENIED,
        pattern=r"permission denied|permission to use .{1,200} (?:has been )?denied|operation not permitted|\bEACCES\b|"
        r"\bEPERM\b|read-only file ?system|access is denied|access to the path .{1,200} is denied|write a readonly|"
        r"must be (?:the )?(?:superuser|root)\b|(?:only|are you|run (?:this |it )?as|requires?) root\b(?! (?:cause|"
        r"element|node))",
        unless=r"publickey|password",
    ),
)

FILES = (
    Rule(
        "no such file",
        kinds.TOOL_FILE_NOT_FOUND,
        pattern=r"no such (?:file|directory)|cannot find or open|cannot find module '(?:/|\.{1,2}/|[a-z]:)|"
        r"^ERROR: not found: \S{1,300}\.py::|\bENOENT\b|cannot find the (?:file|path) specified|(?:file|path|"
        r"directory|folder|dir)\b[^\n]{0,160}?(?:does not exist|doesn't exist|not found|could not be found|"
        r"cannot be found|did not match|not exist)|(?:could not|cannot|can't|couldn't|unable to) (?:find|open|read|"
        r"access|stat|locate) (?:the )?(?:input |source |config\w{0,80} )?(?:file|path|directory|folder)|"
        r"pathspec .{1,200} did not match any files?\b(?!\(s\))|nosuchfileexception|filenotfound|cannot stat|"
        r"did not match any files?\b(?!\(s\))|no matches found: (?:\.{0,2}/|[\w.-]{1,80}/)\S{0,300}\*|file not found|"
        r"the system cannot find|(?:can't|cannot|could not|couldn't) open ['\u2018`\"][^'\n]{1,200}['\u2019`\"]|"
        r"(?:could not open|unable to access|cannot find) (?:input |jar|script |source )?file\b|"
        r"failed to (?:load external entity|open/read local data from file)|(?:no such|bad) (?:path|source)\b[ ,'=]|"
        r"no files? (?:found that )?match\b",
        unless=r"(?:socket|mysql\.sock|postgres\w{0,80}\.s)|in (?:file|the file)[^\n]{0,20}$|profile|"
        r"no such file or directory.{0,30}exec",
    ),
    Rule("a folder, not a file", kinds.TOOL_FILE_NOT_FOUND, pattern=r"\bEISDIR\b"),
    Rule(
        "wrong sort of file",
        kinds.TOOL_EXECUTION_FAILED,
        pattern=r"\b(?:is|not) a directory\b|\bEISDIR\b|\bENOTDIR\b",
    ),
    Rule(
        "disk full",
        kinds.TOOL_UNAVAILABLE,
        pattern=r"no space left|\bENOSPC\b|disk quota exceeded|dis[kc] (?:is )?full|too many open files|\bEMFILE\b|"
        r"cannot allocate memory|\bENOMEM\b|out of memory|oomkilled|resource temporarily unavailable",
    ),
)

NETWORK = (
    # Only these prove that nothing was sent. After a connection is established the outcome is unknown.
    Rule(
        "refused connection",
        kinds.TOOL_CONNECTION_ERROR,
        pattern=r"connection (?:was )?refused|connection to .{1,80} refused|\bECONNREFUSED\b|actively refused|"
        r"couldn't connect to server|refused (?:the |to )?connect|connect call failed",
        took_effect=TookEffect.NO,
    ),
    Rule(
        "unknown host",
        kinds.TOOL_CONNECTION_ERROR,
        pattern=r"name or service not known|could(?: not|n't) resolve (?:host|proxy|the (?:host|server|domain)|"
        r"address|name|\S{1,80}\.\S)|failed to resolve|cannot resolve (?:host|\S{1,80}\.\S)|unable to resolve (?:host|"
        r"address)|nodename nor servname|getaddrinfo|\bENOTFOUND\b|\bEAI_AGAIN\b|name resolution|no such host|"
        r"unknown host|host not found|no address associated|name does not resolve|err_name_not_resolved|bad address '|"
        r"dns (?:lookup|resolution|error)",
        took_effect=TookEffect.NO,
    ),
    Rule(
        "no answer in time",
        kinds.TOOL_TIMEOUT,
        pattern=r"timed[ -]?out|timeout(?: of)? \d{1,9} ?\w{0,12} exceeded|(?:connection|read|request|connect|gateway|"
        r"socket|operation|command|query|execution|response|server|lock|statement|pool|client|handshake|task|tool|"
        r"call|navigation|page|process)[ _-]?time(?:d)?[ -]?out|time ?out (?:expired|exceeded|error|after|of|while|"
        r"waiting|reached|period)|deadline[ _]?exceeded|deadline expired|\bE(?:SOCKET)?TIMEDOUT\b|took (?:too long|"
        r"longer than)|^timeout(?:error)?\b(?!: (?:invalid|failed|unrecogni|missing|option))|did not (?:respond|"
        r"answer|complete|finish) (?:with)?in|exceeded (?:the )?(?:time ?limit|timeout|maximum (?:execution )?time)|"
        r"time limit exceeded|canceling statement due to .{0,20}timeout|TimeoutError|maximum execution time",
        unless=r"invalid (?:value|argument|timeout)|timeout must be|unexpected (?:keyword )?argument|lock wait|"
        r"invalid time interval",
    ),
    Rule(
        "connection lost",
        kinds.TOOL_CONNECTION_ERROR,
        pattern=r"connection (?:was |has been |is )?(?:reset|aborted|closed|lost|error|failed|dropped|broken|"
        r"terminated|forcibly closed|to .{1,80} (?:failed|was lost))|\bECONNRESET\b|\bEPIPE\b|\bECONNABORTED\b|"
        r"\bEHOSTUNREACH\b|\bENETUNREACH\b|broken pipe|(?:network|host) (?:is )?(?:unreachable|down)|no route to host|"
        r"remote end closed|(?:ssl|tls)[ _:][^\n]{0,80}(?:error|failed|fail|handshake|verify|wrong version|alert|eof|"
        r"problem)|certificate (?:verify failed|has expired|is not (?:valid|trusted)|problem)|"
        r"self[- ]signed certificate|unable to get local issuer|server disconnected|(?:could not|couldn't|cannot|"
        r"failed to|unable to|can't) (?:establish|connect|open a connection|reach|communicate)|"
        r"all connection attempts failed|connecterror|network error|fetch failed|socket hang up|"
        r"unexpected eof (?:while reading|from|in violation)|eof occurred|unable to open database|incompleteread|"
        r"empty reply from server|err_connection|proxyerror|tunnel connection failed|server closed the connection|"
        r"peer closed|lost connection to|the remote (?:name could not|server (?:returned|closed|refused))|gone away|"
        r"connection ?pool|closed (?:network )?connection|ssh: connect to host|no connection could be made|"
        r"unable to access 'https?:|could not read from remote",
        unless=r"is not connected to the internet\?$|connection string|docker daemon|connect to bus",
    ),
)

SERVICES = (
    Rule(
        "throttled",
        kinds.TOOL_RATE_LIMIT,
        pattern=r"rate[ _-]?limit(?!er)|too many (?:\w{1,12} )?requests|throttl|(?:api |request |daily |monthly |"
        r"usage )quota|quota (?:has been |is |was )?(?:exceeded|exhausted|reached)|exceeded (?:your |"
        r"the )?(?:\w{1,12} )?quota|slow ?down|\b429\b.{0,20}too many|requests per (?:second|minute|hour|day)|"
        r"request limit (?:exceeded|reached)|call limit|hit (?:the|your) (?:\w{1,10} )?limit|secondary limit|"
        r"calls? per (?:second|minute|day)|rate ?exceeded|over_query_limit|reduce your request rate|"
        r"(?:requests|calls|quota)[^\n]{0,30} used up",
    ),
    Rule(
        "not signed in",
        kinds.TOOL_AUTH_ERROR,
        pattern=r"(?:provide|supply|set|pass|need) (?:a |an |your )?(?:valid )?(?:api[ _-]?key|access token|"
        r"auth token|credentials)\b|unauthori[sz]ed|unauthenticated|not (?:authenticated|logged[ -]in|signed[ -]in|"
        r"authori[sz]ed to access the api)|(?:please |must |need to |have to |"
        r"required to )(?:\w{1,10} ){0,2}?(?:log[ -]?in|sign[ -]?in|authenticate|re-?authenticate)\b|"
        r"no user is (?:currently )?logged|authentication (?:failed|required|error|is required|failure|credentials|"
        r"token|unsuccessful)|requires? (?:authentication|login|an api key|a valid (?:api key|token))|(?:access|auth|"
        r"bearer|session|api|refresh|id|security|csrf|oauth|github|personal access|login)?[ _-]?(?:token|credentials?|"
        r"api[ _-]?key|session|password|jwt|secret|cookie)s?\b[^\n]{0,40}?(?:is |are |was |has |have |"
        r"been )*\b(?:invalid|expired|missing|revoked|not valid|incorrect|wrong|rejected|not provided|malformed|"
        r"required|not found|could not be verified)|(?:invalid|expired|missing|incorrect|bad|wrong|no|"
        r"unknown) (?:\w{1,12} ){0,2}(?:token|credentials?|api[ _-]?key|password|session|authorization header|"
        r"signature|authentication|login)|publickey|password authentication failed|could not read (?:username|"
        r"password)|access denied for user|login (?:failed|required)|invalid_grant|invalid_client|expired_token|"
        r"signaturedoesnotmatch|accesskeyid|authorization (?:header|required|failed)|bad credentials|logon failed|"
        r"\b(?:pin|passcode|otp)\b[^\n]{0,20}(?:incorrect|wrong|invalid|expired)|www-authenticate|ora-01017|noauth",
        unless=r"unexpected token|invalid (?:syntax|token '|token:|token <)|syntax error|token \S{1,12} (?:at|in json)|"
        r"parse|tokens? \(?\d|csrf.{0,5}ok|max(?:imum)? (?:allowed )?tokens|unrecognized token|tokenize|"
        r"keyword argument|positional argument",
    ),
    Rule(
        "not allowed",
        kinds.TOOL_PERMISSION_DENIED,
        pattern=r"\bforbidden\b|(?:insufficient|missing|lacks?|no|not have|without|requires?|"
        r"need) (?:\w{1,14} ){0,4}(?:permissions?|privileges?|scopes?|access rights)\b|"
        r"(?:lacks?|no|not have|without) (?:\w{1,14} ){0,4}access to\b|"
        r"permission (?:is )?(?:denied|required)|access (?:is |was )?(?:denied|restricted|not allowed)|"
        r"accessdenied|not (?:authori[sz]ed|permitted|allowed) to (?:perform|access|use|do|view|modify|delete|"
        r"read|write|call|execute|make|run|create|invoke)|does not have (?:\w{1,12} ){0,3}(?:access|permission|"
        r"privilege)|permission_denied|permissiondenied|blocked by (?:\w{1,10} ){0,2}(?:policy|administrator|hook|"
        r"sandbox|firewall|robots|permission)|operation is not permitted|denied by (?:\w{1,10} ){0,2}(?:policy|"
        r"rule|administrator|permission)|outside (?:of )?(?:the )?(?:allowed|workspace|working|project|permitted|"
        r"sandbox)|command denied to user|must be owner of|admin(?:istrator)? (?:access|rights|"
        r"privileges?) (?:is |are )?required|only (?:\w{1,10} ){0,3}(?:owner|admin\w{0,10}) (?:can|may)",
    ),
    Rule(
        "service down",
        kinds.TOOL_UNAVAILABLE,
        pattern=r"(?:service|server|system|api|backend|resource|site|endpoint|host)s?\b[^\n]{0,30}\b(?:un|"
        r"not )available|temporarily (?:un|down|out|disabled|overloaded)|overloaded|(?:under|for|undergoing|"
        r"scheduled) maintenance|bad gateway|service unavailable|(?:please )?(?:try|retry) again later|out of service|"
        r"shutting down|database (?:is |table is )?(?:locked|starting)|starting up|server (?:is )?(?:too )?busy|"
        r"circuit (?:breaker )?(?:is )?open|(?:is|currently|are) offline|not responding|no healthy|"
        r"cannot connect to the docker daemon|down for (?:\w{1,12} )?maintenance|too many (?:connections|clients)|"
        r"remaining connection slots|no (?:\w{1,16} )?(?:service|server|backend|provider|worker)s? (?:is |"
        r"are )?available|unavailable(?:exception|error)?\b(?! (?:tool|function|option))|upstream (?:connect )?error|"
        r"read only replica|primary is (?:down|not)|leader not available",
    ),
    Rule(
        "failed on their side",
        kinds.TOOL_API_ERROR,
        pattern=r"internal (?:server )?error|server error|unexpected (?:server )?(?:error|condition) (?:occurred|"
        r"was encountered|has occurred|happened|prevented)|api (?:error|returned (?:an )?error|request failed|"
        r"call failed)|something went wrong|method not allowed|not implemented|an unknown error occurred",
    ),
    Rule(
        "unreadable answer",
        kinds.TOOL_INVALID_RESPONSE,
        pattern=r"(?:invalid|malformed|unexpected|bad|unparsable|empty|garbled|non-json|truncated|"
        r"corrupt(?:ed)?) (?:\w{1,12} ){0,2}(?:response|reply|answer)\b|response (?:was|is|could|did|does|body|"
        r"contains|not)[^\n]{0,40}(?:not|invalid|empty|malformed|unexpected|cannot|missing|n't)|expecting value: line|"
        r"(?:failed|unable|error|could not|cannot|can't) (?:to )?(?:decod|pars|deserializ|unmarshal|"
        r"read)\w{1,4} (?:\w{1,12} ){0,3}(?:response|json|xml|body|reply|html|payload|answer)|jsondecodeerror|"
        r"unexpected token \S{1,6}.{0,40}(?:json|doctype)|unexpected end of json|is not valid json|(?:invalid|"
        r"malformed|broken|truncated) (?:json|xml)|(?:unexpected|wrong|invalid) content[- ]type|codec can't decode|"
        r"invalid character '.{1,4}' looking for beginning of value|not well-formed|can ?not decode content|"
        r"chunkedencoding|contentdecoding",
        unless=r"(?:argument|parameter|field|param)s?\b|request body|(?:invalid|bad|malformed) input",
    ),
)

SOURCES = (
    Rule(
        "out of step with git",
        kinds.ORCHESTRATION_PRECONDITION,
        pattern=r"not a git repository|your local changes to the following files would be overwritten|"
        r"please commit your changes or stash|you have unstaged changes|working tree (?:is )?(?:dirty|not clean)|"
        r"you are not currently on a branch|(?:rebase|merge|cherry-pick) (?:is )?(?:already )?in progress|"
        r"no upstream branch|has no upstream|need to specify how to reconcile|please tell me who you are|"
        r"nothing to commit|have not concluded your merge|unfinished merge|uncommitted changes|"
        r"not possible because you have unmerged",
    ),
    Rule(
        "git has both",
        kinds.TOOL_CONFLICT,
        pattern=r"\[(?:remote )?rejected\]|non-fast-forward|updates were rejected|index\.lock|"
        r"could not lock (?:ref|config)|(?:branch|tag|remote) .{1,80} already exists",
    ),
    Rule(
        "a merge stopped halfway",
        kinds.TOOL_EXECUTION_FAILED,
        pattern=r"^CONFLICT \(|merge conflict in|automatic merge failed|could not apply [0-9a-f]{6,}",
        took_effect=TookEffect.YES,
    ),
    Rule(
        "git knows nothing of it",
        kinds.TOOL_NOT_FOUND,
        pattern=r"unknown revision|bad revision|couldn't find remote ref|not a valid (?:object|ref|branch)|"
        r"repository .{0,120}not found|no such (?:remote|ref)|invalid reference|bad object|"
        r"did not match any file\(s\) known|remote ref does not exist|does not have any commits|"
        r"does not appear to be a git",
    ),
    Rule(
        "no such package",
        kinds.TOOL_NOT_FOUND,
        pattern=r"no matching (?:distribution|version|package|manifest)|could not find a version that satisfies|"
        r"unable to locate package|package .{1,80} (?:was |is )?not (?:found|available|in)|"
        r"npm err! (?:code )?e?404|\bE404\b|no available formula|could not find (?:crate|artifact|package|gem|"
        r"\W?\S{1,60} in)|pull access denied|manifest (?:unknown|for .{1,100} not found)|unable to find image|"
        r"no (?:installation )?candidate|target not found|no package .{1,60} available|no match for argument|"
        r"could not find any matches|not found in (?:the )?(?:registry|channels?|repository)",
    ),
    Rule(
        "packages clash",
        kinds.TOOL_CONFLICT,
        pattern=r"\bERESOLVE\b|conflicting (?:dependenc|peer|requirement)|resolutionimpossible|dependency (?:conflict|"
        r"resolution)|unmet dependenc|externally-managed-environment|held broken packages|could not get lock|"
        r"version (?:conflict|solving failed)",
    ),
)

DATABASES = (
    Rule(
        "the database does not know the user",
        kinds.TOOL_AUTH_ERROR,
        pattern=r"FATAL: {1,2}role .{1,80} does not exist|no pg_hba\.conf entry|password authentication failed|"
        r"access denied for user|\bNOAUTH\b|\bWRONGPASS\b",
    ),
    Rule(
        "already there",
        kinds.TOOL_CONFLICT,
        pattern=r"unique constraint|(?:foreign key|check|not[ _-]null|primary key|integrity|exclusion) (?:mismatch|"
        r"constraint)|constraint (?:failed|violat)|violat\w{1,5} (?:\w{1,12} ){0,5}constraint|duplicate (?:key|"
        r"entry|record|value|object|table|column|primary)|deadlock|could not serialize|ORA-00001|\bE11000\b|"
        r"version conflict|concurrent (?:update|modification)|lock wait timeout|conditionalcheckfailed|"
        r"integrityerror|optimistic lock|write conflict",
    ),
    Rule(
        "wrong query",
        kinds.RETRIEVAL_INVALID_QUERY,
        pattern=r"(?:sql|query|cypher|graphql|lucene|xpath|jql|promql|kql|search|filter|jsonpath|cql|"
        r"soql) (?:\w{1,10} ){0,2}?(?:syntax|parse|parsing|validation|compilation) (?:error|exception|failed)|"
        r"syntax error (?:at or near|at end of input|in (?:sql|query)|near|at line)|"
        r"errors? in the (?:\w{1,10} )?query|no (?:field|column|table|vector column) (?:named|called|with|in)\b|"
        r"where (?:operator|clause)|expecting embedding|unrecognized name: |\(line \d{1,9}, column \d{1,9} \(offset|"
        r"near \".{0,60}\": syntax error|error in your sql|no such (?:table|column|function|index|collation|module):|"
        r"(?:table|column|relation|view|schema|index|collection|field|attribute|type|function|operator|"
        r"database) [\"'`\[]?[\w.$]{1,80}[\"'`\]]?(?:\([^)]{0,60}\))? (?:does not exist|doesn't exist|not found|"
        r"is unknown|cannot be (?:found|resolved)|is not (?:indexed|a known|queryable))|unknown (?:column|table|"
        r"database|field|operator|top level operator|query)|invalid (?:column|object|identifier|query|field) name|"
        r"ORA-(?:009\d\d|00942|01722|0171\d)|invalid (?:search )?query|malformed (?:query|match|sql)|(?:query|"
        r"search) (?:is |was )?(?:malformed|invalid|not valid|not well-formed|could not be parsed)|"
        r"failed to parse (?:query|search|filter|date field)|parse_exception|parsing_exception|search_phase_execution|"
        r"query_shard_exception|ambiguous column|must appear in the group by|misuse of aggregate|incomplete input|"
        r"unrecognized token|invalid (?:regular expression|regex|xpath|selector|filter|predicate)|"
        r"unterminated (?:quoted|string|character)|unmatched [(\[{)]|cannot query field|(?:vector|embedding|"
        r"query)[^\n]{0,40}dimension|dimension(?:s|ality)?[^\n]{0,40}(?:mismatch|do(?:es)? not match|expected|got \d)|"
        r"wrong vector dimension|subquery (?:returns|must)|each \(?\"?\w{0,80}\"? ?query must have|"
        r"different number of (?:result )?columns|unclosed quotation|ORA-|SQL compilation error|PLS-\d|SQL0\d|"
        r"errors? in query|SQLSTATE\W{0,3}42|has no column named|values for \d{1,9} columns|"
        r"has \d{1,9} columns but \d{1,9} values|incorrect number of bindings|expected \d{1,9} (?:bindings|columns|"
        r"parameters)",
    ),
    Rule(
        "wrong index",
        kinds.RETRIEVAL_INVALID_QUERY,
        pattern=r"index_not_found|no such index|(?:collection|index|namespace) .{1,80}(?:not found|does not exist|"
        r"doesn't exist)",
    ),
)

BUGS = (
    Rule(
        "a mistake in its own code",
        kinds.TOOL_EXECUTION_FAILED,
        pattern=r"unsupported operand type|object (?:is not (?:iterable|subscriptable|callable)|has no attribute)|"
        r"\) ?is not a function$|\b(?:is not a (?:function|constructor)|is not iterable)\b|cannot read propert|"
        r"referenced before assignment|"
        r"^(?:NameError: |ReferenceError: )?(?:name '\w{1,80}'|\w{1,80}) is not defined|ni?ll? pointer dereference|"
        r"attempt to (?:index|call|perform arithmetic on) a nil|undefined (?:method|local variable) [`']",
        is_strong=True,
    ),
)

PROGRAMS = (
    Rule(
        "crashed",
        kinds.TOOL_EXECUTION_FAILED,
        pattern=r"segmentation fault|core dumped|^panic: |^killed\b|stack overflow|panicked at|exit(?:ed)? (?:with |"
        r"by |on )?signal|sig(?:kill|segv|abrt|term)",
    ),
    Rule(
        "it failed",
        kinds.TOOL_EXECUTION_FAILED,
        pattern=r"exit(?:ed)? (?:code|with|status)|non-?zero|execution failed|command failed|error executing|"
        r"failed with",
    ),
)


PARTICULAR_RULES: tuple[Rule, ...] = (*COMMANDS, *NETWORK[:2], *FILES, *SOURCES, *DATABASES, *NETWORK[2:])
"""Rules with words of one type of program. A refused connection precedes a missing file, since sockets are files
too."""

PROCESS_KINDS = frozenset(
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
"""Kinds that the output of a program can report about the call. Other kinds in its output are about the program
itself."""
