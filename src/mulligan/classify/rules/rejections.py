"""Rules with general words: services that fail, rejected arguments, wrong state, missing objects.

They are matched after the rules of `shell.py`, and only if they can refer to the call: see `Kind.can_occur_in_output`.
"""

from __future__ import annotations

from mulligan.classify.rules import RuleTable, read_rules

GENERAL_RULES = read_rules(r"""
tool/execution_failed: error in the code of the tool [strong]
    unsupported operand type|object (?:is not (?:iterable|subscriptable|callable)|has no attribute)|
    code execution failed at line|\bname '\w{1,80}' is not defined|\) ?is not a function$|\b(?:is not a (?:function|
    constructor)|is not iterable)\b|cannot read propert|referenced before assignment|^(?:NameError: |
    ReferenceError: )?(?:name '\w{1,80}'|\w{1,80}) is not defined|ni?ll? pointer dereference|attempt to (?:index|call|
    perform arithmetic on) a nil|undefined (?:method|local variable) [`']
tool/execution_failed: missing module or index in the code of the tool
    ^(?:ModuleNotFoundError: )?no module named '|^(?:IndexError: )?(?:list|tuple|string|deque|
    array) (?:assignment )?index out of range$
tool/unknown_tool: no such tool
    (?:unknown|no such|unrecognized|nonexistent|undefined|unsupported) (?:tool|function|
    action)(?:[ _]name)?\b(?! (?:argument|parameter|option|call id))|(?:tool|function|action) (?:named |with name |
    name )?[\"'`\[]?[\w.:/-]{0,80}[\"'`\]]? ?(?:is |was |does |could )?(?:not (?:found|exist|available|registered|
    recognized|defined|be found|a (?:known|valid|recognized))|unknown|do(?:es)?(?: not|n't) exist|not in)|no (?:tool|
    function) (?:named|called|with (?:the )?name|found)|(?<!payment )(?<!shipping )(?<!delivery )method not found|
    is not a (?:valid|known|registered|recognized|available) (?:tool|function)|model tried to call unavailable tool|
    available tools:|only available (?:actions|tools|functions)\b|is not available in [^\n.]{1,30}\. available:|
    ^unsupported call: \S{1,80}$|no such tool|no (?:tool|function) (?:\w{1,12} )?registered|
    there is no (?:\w{1,12} or )?(?:tool|function)\b|tool that (?:was|is) (?:never|not) (?:declared|defined|registered)|
    invalid (?:tool|function) name|\btool \S{1,80} is not part of
    unless: undefined function \w{1,40}\(|function .{1,80}\(.{0,80}\) does not exist|no such function:
orchestration/constraint_violation: rule of the host
    rule violated|\bneeds? (?:a |the )?(?:manager|supervisor)|(?:above|over|below) [$€]?\d[\w,. ]{0,12} (?:need|
    require)s?\b|\b(?:rule|policy)\b[^\n]{0,60}\bforbids\b|polic(?:y|ies) violation|can only edit files matching|
    plan mode is (?:still )?active|\b(?:is|are) not (?:allowed|permitted|possible) (?:after|before|above|below|over|
    under|beyond|within|for this) \w|\b(?:transfers?|refunds?|cancell?ations?|exchanges|bookings?|withdrawals?|
    payments?|trades|purchases)\b[^\n]{0,50} (?:is|are) not (?:allowed|permitted|possible)
    unless: argument|parameter|\bfield
tool/permission_denied: operation not permitted
    \b(?:access\w{0,3}|fetch\w{0,3}|operations?|actions?|commands?|navigat\w{1,4}|writing|reading|deleting|modifying|
    running|executing|uploads?|requests? to)\b[^\n]{0,60} (?:is|are) not (?:allowed|permitted)|your (?:role|account|
    plan|subscription|user|token)\b[^\n]{0,40}(?:may not|cannot|can't|(?:does not|doesn't) allow)|(?:requires?|
    needs?) (?:\w{1,12} )?(?:approval|confirmation)\b|\bread-only mode|approval (?:policy|settings)\b|
    permission check failed|was blocked\. for security|it is not (?:permitted|allowed) to \w|disallowed (?:commands?|
    paths?|tools?|domains?)\b|(?:is|are|was|were) (?:blacklisted|denylisted|blocklisted|disallowed|not (?:white|
    allow)listed)|by the (?:allow|deny|block|black|white)-?list|(?:blocked|ignored|prohibited|excluded|denied|
    hidden) by (?:the |your )?(?:\w{1,12} )?(?:\.\w{2,16}|)ignore\b|(?:tool|action|command)\b[^\n]{0,80} (?:is|
    are) not (?:allowed|permitted) in (?:\w{1,16} ){0,2}mode\b|\bimport (?:of|from) \S{1,60} is not allowed|(?:path|url|
    host|domain|directory) (?:is )?not allowed(?=:|\.?$)|\bnon-allowed\b|disabled by (?:the |your )?(?:user|admin|
    organi|polic|settings)|only (?:\w{1,12} )?\w{2,14}s (?:can|may) (?!be\b|have\b)\w{2,}|
    only [A-Z]{3,12}\b[^\n]{0,30}(?:queries|statements|requests|methods) (?:are|is) (?:allowed|permitted)|(?:must|
    has to) be (?:with)?in(?:side)? (?:one of )?(?:the|these|your) (?:\w{1,12} )?(?:workspace|project|working|allowed|
    sandbox|root|directories|folders)|\b(?:access|path|write|file)\b[^\n]{0,80} blocked\b|requested permissions? to|
    (?:have|has|was|were) not (?:been )?granted|not (?:in|on) (?:the |its |your |an )?(?:list of )?(?:allow|
    white)(?:-? ?list|ed[- ](?:commands?|tools?|domains?|hosts?|paths?|director\w{1,4}|folders?|urls?|origins?|
    patterns?|imports?|modules?|users?|channels?|list)\b)|sandbox (?:denied|blocks|blocked|rejected|prevents)|
    prevents? (?:the use of|you from)|(?:is|are) disabled in (?:\w{1,12} ){0,2}(?:mode|sandbox)|may not be (?:read|
    written|edited|accessed|opened|modified)|(?:network|internet|file|write) access is (?:disabled|blocked|(?:turned |
    switched )?off)|not within the (?:\w{1,10} )?(?:workspace|project)\b|refus(?:ing|ed) to (?:write|edit|read|delete|
    run|modify|fetch|access|execute|open)|not a public address|protected (?:path|file|folder)|(?:is|are) restricted by|
    off[- ]limits|(?:no|not have|lack) (?:\w{1,10} )?rights?\b|\brole \W?\w{1,20}\W? (?:cannot|may not|is not)|
    \bdisallowed in\b|dangerous command\b|hook \S{1,60} denied|sandbox\b[^\n]{0,60} denied
tool/rate_limit: rate limit
    rate[ _-]?limit(?!er)|too many (?:\w{1,12} )?requests|throttl|(?:api |request |daily |monthly |usage )quota|
    quota (?:has been |is |was )?(?:exceeded|exhausted|reached)|exceeded (?:your |the )?(?:\w{1,12} )?quota|slow ?down|
    \b429\b.{0,20}too many|requests per (?:second|minute|hour|day)|request limit (?:exceeded|reached)|call limit|
    hit (?:the|your) (?:\w{1,10} )?limit|secondary limit|calls? per (?:second|minute|day)|rate ?exceeded|
    over_query_limit|request_?limit_?exceeded|throughput\b[^\n]{0,60}exceeded|too many (?:\w{1,12} )?(?:attempts|calls|
    queries)\b[^\n]{0,30}(?:wait|try|later|second|minute)|reduce your request rate|(?:requests|calls|
    quota)[^\n]{0,30} (?:used up|exhausted)|(?:calls|requests) an? (?:second|minute|hour|day)\b|(?:plan|usage|request|
    search|query|call)s?(?:'s)? (?:\w{1,10} )?usage limit|(?:lookups|queries|searches|requests|calls|
    downloads) (?:\w{1,10} ){0,2}(?:per|an?|each|every) (?:second|minute|hour|day|month)\b|(?:run|
    ran) out of (?:searches|requests|calls|queries|lookups)\b|limit of [\d,]{1,9} (?:requests|calls|queries|searches|
    lookups)\b|quota for (?:today|this \w{2,8})\b
tool/auth_error: missing or invalid credentials
    (?:provide|supply|set|pass|need) (?:a |an |your )?(?:valid )?(?:api[ _-]?key|access token|auth token|credentials)\b|
    unauthori[sz]ed|unauthenticated|not (?:authenticated|logged[ -]in|signed[ -]in|authori[sz]ed to access the api)|
    (?:please |must |need to |have to |required to )(?:\w{1,10} ){0,2}?(?:log[ -]?in|sign[ -]?in|authenticate|
    re-?authenticate)\b|no user is (?:currently )?logged|authentication (?:failed|required|error|is required|failure|
    credentials|token|unsuccessful)|requires? (?:authentication|login|an api key|a valid (?:api key|token))|(?:token|
    credentials?|api[ _-]?key|session|password|jwt|secret|cookie)s?\b[^\n]{0,40}?(?:is |are |was |has |have |
    been )*\b(?:invalid|expired|missing|revoked|not valid|incorrect|wrong|rejected|refused|not provided|malformed|
    required|not found|not accepted|could not be verified)|\bsignature does not match\.?$|\b(?:invalid|expired|missing|
    incorrect|bad|wrong|no|unknown) (?:\w{1,12} ){0,2}(?:token|credentials?|api[ _-]?key|password|session|
    authorization header|signature|authentication|login)|publickey|password authentication failed|(?:username|password|
    login)\b[^\n]{0,30} not accepted|could not read (?:username|password)|access denied for user|login (?:failed|
    required)|invalid_grant|invalid_client|expired_token|signaturedoesnotmatch|accesskeyid|authorization (?:header|
    required|failed)|bad credentials|logon failed|\b(?:pin|passcode|otp)\b[^\n]{0,20}(?:incorrect|wrong|invalid|
    expired)|www-authenticate|ora-01017|noauth|session (?:has |is )?(?:timed out|expired|ended|over)|(?:sign|
    log)[ -]?in again\b|access has expired|(?:2fa|mfa|two-factor)\b[^\n]{0,30}(?:required|missing|needed)
    unless: unexpected token|invalid (?:syntax|token '|token:|token <)|syntax error|token \S{1,12} (?:at|in json)|parse|
    tokens? \(?\d|csrf.{0,5}ok|\bcall \w{1,20} (?:before|first)|max(?:imum)? (?:allowed )?tokens|unrecognized token|
    tokenize|keyword argument|positional argument
tool/permission_denied: missing permission
    \bforbidden\b|(?:insufficient|missing|lacks?|no|not have|without|requires?|need) (?:\w{1,14} ){0,4}(?:permissions?|
    privileges?|scopes?|access rights)\b|(?:lacks?|no|not have|without) (?:\w{1,14} ){0,4}access to\b|
    permission (?:is )?(?:denied|required)|access (?:is |was )?(?:denied|restricted|not allowed)|accessdenied|
    not (?:authori[sz]ed|permitted|allowed) (?:on \S{1,40} )?to (?:perform|access|use|do|view|modify|delete|read|write|
    call|execute|make|run|create|invoke)|does not have (?:\w{1,12} ){0,3}(?:access|permission|privilege)|
    permission_denied|permissiondenied|blocked by (?:\w{1,10} ){0,2}(?:policy|administrator|hook|sandbox|firewall|
    robots|permission)|operation is not permitted|denied by (?:\w{1,10} ){0,2}(?:policy|rule|administrator|permission)|
    outside (?:of )?(?:the )?(?:allowed|workspace|working|project|permitted|sandbox)|command denied to user|
    must be owner of|not accessible by|need the (?:role|permission)|may not (?:delete|edit|view|write|create|modify|
    update|access|change|merge|push)\b|admin(?:istrator)? (?:access|rights|privileges?) (?:is |are )?required|
    only (?:\w{1,10} ){0,3}(?:owner|admin\w{0,10}) (?:can|may)|\bpolicy forbids\b|approval required by policy
    unless: (?:not exist|not found|no such \w{1,20}) or (?:you|your|the|it)\b
tool/unavailable: service unavailable
    (?:service|server|system|api|backend|resource|site|endpoint|host)s?\b[^\n]{0,30}\b(?:un|not )available|
    temporarily (?:un|down|out|disabled|overloaded)|overloaded|(?:under|for|undergoing|scheduled) maintenance|
    bad gateway|service unavailable|(?:please )?(?:try|retry) again later|out of service|shutting down|database (?:is |
    table is )?(?:locked|starting)|starting up|server (?:is )?(?:too )?busy|circuit (?:breaker )?(?:is )?open|(?:is|
    currently|are) offline|not responding|no healthy|cannot connect to the docker daemon|
    down for (?:\w{1,12} )?maintenance|
    no (?:\w{1,16} )?(?:service|server|backend|provider|worker)s? (?:is |are )?available|unavailable(?:exception|
    error)?\b(?! (?:tool|function|option))|upstream (?:connect )?error|read only replica|primary is (?:down|not)|
    leader not available|has no primary|is down (?:for|until|at)\b|\bplanned work
tool/api_error: internal error of the service
    internal (?:server )?error|server error|unexpected (?:server )?(?:error|condition) (?:occurred|was encountered|
    has occurred|happened|prevented)|
    api (?:error(?!\W{1,3}(?:not found|could not find))|returned (?:an )?error|request failed|call failed)|
    something went wrong|method not allowed|not implemented|an unknown error occurred
    unless: (?:missing|invalid|unexpected|unknown) (?:required )?(?:\w{1,12} )?(?:argument|parameter|param|field|
    property|input)s?\b|validation (?:error|failed)|required (?:argument|parameter|param|field|property)
tool/invalid_response: unreadable answer
    (?:invalid|malformed|unexpected|bad|unparsable|empty|garbled|non-json|truncated|
    corrupt(?:ed)?) (?:\w{1,12} ){0,2}(?:response|reply|answer)\b|response (?:that )?(?:was|is|could|did|does|body|
    contains|not)[^\n]{0,40}(?:not|invalid|empty|malformed|unexpected|cannot|missing|n't)|expecting value: line|
    (?:failed|unable|error|could not|cannot|can't) (?:to )?(?:decod|pars|deserializ|unmarshal|
    read)\w{1,4} (?:\w{1,12} ){0,3}(?:response|json|xml|body|reply|html|payload|answer)|jsondecodeerror|
    unexpected token \S{1,6}.{0,40}(?:json|doctype)|unexpected end of json|is not valid json|(?:invalid|malformed|
    broken|truncated) (?:json|xml)|(?:unexpected|wrong|invalid) content[- ]type|codec can't decode|(?:stream|file|data|
    input) (?:has )?ended (?:unexpectedly|prematurely)|unexpected end of (?:file|stream|data|input)|magic bytes|
    bad magic|not an? (?:valid )?(?:zip|pdf|parquet|png|image|gzip|sqlite|database)(?: file)?\b|
    invalid character '.{1,4}' looking for beginning of value|not well-formed|can ?not decode content|
    instead of (?:json|xml)\b|returned (?:html|an html|a login page)|chunkedencoding|contentdecoding
    unless: (?:argument|parameter|(?<!missing )field|param)s?\b|request body|(?:invalid|bad|malformed) input
tool/invalid_arguments: invalid arguments
    ^(?:error:? )?(?:invalid|unsupported|missing) [\w ]{2,40}\.?$|must be (?:absolute|relative|lowercase|uppercase|
    different|distinct|identical|later|earlier|before|after)\b|not an absolute|strict mode violation|
    resolved to \d{1,9} elements|unknown command|without value for|(?:beyond|past|after) the (?:end|
    last) (?:line )?of the (?:file|list)|cannot (?:specify|use|combine|set|pass|provide) both|\bno (?!reason|detail|
    explanation)\w{2,20} (?:was |were )?(?:provided|given|specified|supplied|passed)\b|^empty \w{2,20}\.?$|
    unterminated subpattern|nothing to repeat|cannot reshape|invalid base64|^'?\w{1,40}'? (?:is |comes |date |
    time )?(?:before|after) '?\w{1,40}'?\.?$|time data .{1,80} does not match|not in range\(|(?:unexpected|invalid|
    missing|unknown|unrecognized|bad|wrong|illegal|extra|unsupported|incorrect|required|duplicate|empty|too (?:many|
    few)|not enough)(?: \d{1,9})? (?:\w{1,16} ){0,3}?(?:argument|parameter|param|input|option|flag|field|property|
    key(?:word)?|value|operand|switch|format|type|enum|date|character|path|mode|unit|number|choice)s?\b|(?:argument|
    parameter|param|field|property|input|option|key|value|attribute)s?\b[^\n]{0,100}?(?:is|are|was|were)? ?(?:required|
    missing|not (?:valid|allowed|supported|recognized|permitted|expected|accepted|a valid|specified|provided|defined|
    known)|invalid|unexpected|must\b|should (?:be|have|match)|cannot be|can't be|expects?|out of range|unknown)|
    \bmissing \d{1,9} required|takes \d{1,9} (?:positional|to|from)|required (?:positional|keyword|property|field|
    argument|parameter)|(?:validation|argument) (?:error|failed|errors)|input ?validation ?error|
    \bis a required property|is not of type|is not one of|is not valid under any|additional properties|
    do(?:es)? not match (?:the )?(?:\w{1,10} )?(?:pattern|format|schema|any of|regex)|field required|input should be|
    extra inputs are not permitted|value is not a valid|(?:must|should|has to|needs to) be (?:a |an |one of|in|between|
    at (?:least|most)|less|greater|positive|non-?negative|non-?empty|equal|either|of type|unique|specified|provided|
    numeric|string|valid|set|>|<|\d|the|formatted|within|no (?:more|less)|<=|>=)|must (?:not|match|contain|have|start|
    end|only|specify|provide|include)|expected [\w,. ]{1,60}, not \w|expected (?:a |an |one of |type |value |
    \w{1,20},? (?:but )?(?:got|found|received))|could not convert|cannot (?:convert|parse|interpret|cast|be (?:empty|
    null|blank|negative|none|zero|parsed|converted|interpreted))|can't (?:convert|parse)|invalid literal|
    unable to (?:parse|convert|interpret)|out of (?:range|bounds)|(?:exceeds|above|below|outside) (?:the )?(?:max|min|
    allowed|valid|limit|range|bound)|too (?:long|short|small|large|big|high|low)\b|unsupported (?:operand|format|value|
    type|path|unit|currency|language|option)|(?:is|are) not (?:supported|allowed|permitted|recognized|accepted)\b|
    not a valid\b|unknown (?:option|flag|switch|argument|parameter|predicate|primary)|unrecognized (?:option|argument|
    flag)|(?:illegal|invalid) (?:option|character|flag|choice|date|time|format|mode|number|value|request)|^usage: |
    bad request|malformed|no such option|ambiguous (?:option|argument)|requires an? (?:argument|value|parameter)|
    non-uuid|not a uuid|(?:cannot|can't|unable to) (?:read|open|display|edit|parse) (?:a )?binary|
    appears to be (?:a )?binary|not found\. available \w{1,20}:|unknown skill|only (?:one|
    \w{1,10}) (?:\w{1,12} ){0,6}(?:supported|allowed|accepted)|allowed values|valid (?:values|options|choices) (?:are|
    include)|choose from|wrong number of arguments|provide (?:only|either|a valid|exactly)|-32602|invalid params|
    unprocessable|unable to read .{0,30}argument|is not defined in (?:the )?schema|wrong type|type mismatch|nullable|
    is not a number|not a number|parsing .{1,60}: invalid syntax|invalid syntax for|invalid value|hallucinated|
    no value provided
orchestration/invalid_state: run in another state
    \b(?:run|thread|workflow|graph|conversation|agent)\b (?:\w{1,10} )?(?:is |has |was |
    that is )?(?:already (?:been )?(?:has an|finished|completed|running|ended|compiled|started|closed)|not (?:paused|
    running|interrupted))|\bno pending interrupt|cannot resume\b|(?:finished|completed|terminated) (?:run|thread|
    workflow|conversation)\b
tool/conflict: already exists or in use
    \b(?:is|are|was|were|has|have) already\b|\bis taken\b|already (?:exists|exist|in use|taken|registered|been|present|
    a member|running|open|closed|started|bound|assigned|used|has|defined|at|the|completed|cancell?ed|processed|on|off|
    exist)|\bfile exists\b|\bEEXIST\b|\bENOTEMPTY\b|not empty|\bconflict(?:s|ing)?\b|address (?:already )?in use|(?:is|
    are) (?:currently )?(?:in use|being used|locked)|locked by|etag|(?:version|revision|generation) mismatch|
    refusing to overwrite|precondition failed|\bduplicate\b
orchestration/precondition: missing prerequisite
    \bis (?:currently |already )?(?:suspended|locked|disabled|inactive|deactivated|frozen|on hold|switched off|
    turned off)\b|\bit first\b|\b(?:use|call|run|open|close|create|start|select|log|read|load|connect|
    stop) [^\n.]{1,80} first\b|must be \w{3,16} (?:to|before|in order|for) \w|\bnot_in_\w{1,20}\b|^no open \w|
    is not installed (?:on|in|for) |has a status of\b|stdin is closed|\bmodal (?:state|dialog)|(?:do|
    does) not have an? (?:\w{1,14} ){0,2}(?:request|session|payment|booking|reservation|subscription|plan)\b|
    is incomplete\b|must be called (?:from|after|before|within|in)\b|\bno \w{2,20} (?:found|available)\. (?:use|call|
    run|take|capture) \S|(?:balance|credit|stock|quantity|funds) (?:is|are) (?:not enough|insufficient|too low)|
    cannot be used|(?:must|need(?:s|ed)? to|have to|has to|should|please) (?:first )?(?:\w{1,16} ){1,8}(?:before|
    prior to|first\b|when )|\bbefore (?:\w{1,16} ){0,3}?\w{1,16}ing\b|\b(?:is|are|was|were|has|have|been|
    be)? ?not (?:yet )?(?:been )?(?:initiali[sz]ed|started|running|connected|ready|loaded|open(?:ed)?|configured|
    enabled|set up|active|activated|verified|confirmed|attached|mounted|selected|paired|installed|eligible|
    refundable)\b|(?:insufficient|not enough|inadequate) (?:\w{1,14} ){0,2}(?:balance|funds|credit|stock|inventory|
    seats?|space|fuel|quantity|points|memory|budget|capacity|material|supply|battery)|no active \w{1,20}|
    call \S{1,40} first|run \S{1,60} first|first (?:call|run|create|start|open|connect|select|log)|prerequisite|
    precondition|failed_precondition|requires? (?:\w{1,16} ){1,5}to be |depends on|(?:cannot|can't|can not|
    unable to) (?:be )?(?:\w{1,16} ){1,6}(?:while|until|unless|because|when|with(?:out)?|in (?:its|the|
    this) (?:current )?(?:state|status)|above|beyond|more than|after|if|as it|since)|(?:is|are) (?:less|lower|greater|
    more|higher) than (?:the )?(?:budget|limit|balance|available|minimum|maximum|required|price|cost|total)|
    until (?:\w{1,16} ){1,5}(?:is|are|has|have)|window (?:of [^\n]{1,20} )?has (?:passed|closed|expired)|
    only (?:\w{1,12} ){1,4}(?:can|may) be (?:\w{1,16} ?)|with status (?!fail|error)|non-\w{1,12} (?:order|item|
    reservation|booking|account)\w{0,2}\b|cannot be (?:cancell?ed|modified|exchanged|returned|changed|refunded|updated|
    deleted|removed|processed)|(?:not|no longer) (?:pending|delivered|active|cancellable|modifiable|available (?:for|
    to))|\bout of stock\b|\bsold out\b
orchestration/constraint_violation: rule or limit violated
    (?:policy|rule|constraint|business rule|guardrail|limit)s?\b[^\n]{0,60}(?:violat|forbid|prohibit|prevent|not allow|
    exceed|reach|trigger|tripp)|violat\w{1,5}|(?:exceed(?:s|ed)?|over|beyond) (?:the )?(?:\w{1,14} ){0,3}(?:limit|
    budget|maximum|quota|allowance|capacity)|(?:limit|budget|maximum|capacity|
    allowance)(?: of [\w.,$]{1,20})?(?: for this \w{1,12})? (?:has been |is |was )?(?:exceeded|reached|used up|spent)|
    prohibited|restricted|(?:do|does) not (?:match(?! the (?:\w{1,10} )?schema| any \w)|add up|agree|equal)|
    should (?:be the same|be different|match)|not allowed|mutually exclusive|^(?:error: )?(?:max(?:imum)?|at most|
    no more than|up to|limit(?:ed to)?)(?: of)? \d{1,9}\b|(?:cannot|can't|can not|may not) be (?!found|parsed|read|null|
    empty|converted|located|reached|resolved|opened|loaded|determined|interpreted|used\b)\w{3,14}(?:ed|en|t|ld)\b|
    declined
orchestration/invalid_state: invalid state
    (?:invalid|illegal|wrong|unexpected|bad|inconsistent) (?:\w{1,12} )?(?:state|status)\b|(?:in|from) (?:state|
    status) |state (?:transition|machine)|illegalstate|invalidstate
retrieval/no_results: no results
    \bno (?:\w{1,14} ){0,2}?(?:results?|match(?:es|ing)?|documents?|records?|rows?|hits|items|entries|data|articles|
    pages|passages|files|papers|emails|messages|events|answers?)\b(?: \w{1,14}){0,3}?(?: (?:found|matched|match|
    returned|available|for|in|exist)|\.?$)|\b(?:0|zero) (?:\w{1,10} )?(?:results?|match(?:es)?|hits|documents?|rows?|
    chunks?|passages?|nodes|records|items|entries)\b|nothing (?:was )?found|has nothing (?:on|about|for)|(?:returned|
    got) an empty(?! (?:body|response|reply|page|string))|empty result|returned no\b(?!-)|no data\b(?! for|\.\w)|
    no \w{1,20} match(?:es|ed)? (?:your|the)\b|(?:did|has|have|does) not (?:return(?:ed)?|match(?:ed)?|find|found|
    yield(?:ed)?) any|(?:cannot|could not|unable to) find any(?:thing| results| matches| documents| information)\b|
    (?:came|comes) (?:back|up) (?:empty|with nothing)|\bno (?:good|relevant|useful|
    suitable) (?:[\w-]{1,20} ){0,4}(?:results?|documents?|matches|information|articles|passages|pages)\b|
    nothing in the (?:\w{1,12} ){1,2}(?:talks|mentions|says|covers)|nothing (?:\w{1,10} ){1,4}match(?:es|ed)\b
tool/not_found: not available [vague]
    is not available|\bno available|there (?:is|are) no\b|not available
    unless: \b(?:range|option|format|size|value|date|time)s? (?:is |are )?not available
tool/not_found: not found
    not[ _-]?found|\bno such\b|(?:does|do|did) ?(?:not|n't) (?:currently )?exist|doesn't exist|(?:could not|couldn't|
    cannot|can't|unable to|failed to|can not) (?:be )?(?:find|found|locate|look up|identify)|no longer exists?|
    \b(?:page|resource|item|record|link|url)\b[^\n]{0,30} is gone|unknown (?:\w{1,14} ){0,2}(?:id|user|name|account|
    order|customer|product|item|resource|host|entity|symbol|city|location|airport|station|object|reservation|flight|
    agent|skill|task|session|channel|project)\b|invalid (?:\w{1,14} ){0,3}(?:airport|currency|country|city|station|zip|
    postal|language|region|stock|product|item|order|user|account|reservation|flight|booking|customer|ticket) ?(?:code|
    id|symbol|name|number)?\b|\bno (?:\w{1,14} ){1,3}(?:with|for|named|called|matching|match(?:es)?|found|exists?)\b|
    nosuch(?:key|bucket|entity)|is not (?:a (?:known|registered|listed)|listed|registered)|
    has no (?:\w{1,14} )?(?:named|called|with)|not in (?:the |your )?(?:list|address book|inventory|database|cart|order|
    system|catalog|workspace|watchlist)|is not in (?:the|your|this|our) \w{1,20}\b(?! of)|
    \bno (?:\w{1,14} ){1,3}has (?:the|this|that) (?:number|id|name|code)\b|\bcannot (?:get|head|post|put|patch|
    delete) /\S{0,200}(?:\s|<|$)|^no data for\b|^unknown \w{1,20}: \S
""")

ARGUMENTS = RuleTable(rule for rule in GENERAL_RULES if rule.kind.is_about_tool_name or rule.kind.rejects_arguments)

GUESSES = read_rules(r"""
orchestration/constraint_violation: at most as many
    \byou (?:can|may) (?:only )?\w{2,14} (?:at most|up to|no more than) \d|\b(?:above|over|beyond) (?:your|the|
    its) (?:\w{1,14} )?(?:limit|budget|maximum|allowance|cap)\b|^only (?:one|two|\d{1,4}) \w{2,20} per\b
tool/rate_limit: too often
    \btry again in \d{1,5} ?(?:s|sec\w{0,4}|min\w{0,4}|hours?)\b|\bback off\b|\bcredits? (?:are |is |
    have been )?(?:exhausted|used up|spent)\b|\bdoing that too (?:much|often)
tool/timeout: waited too long
    \bno (?:reply|answer|response|signal)\b[^\n]{0,30} after \d|\bwaited \d{1,6} ?(?:s|sec\w{0,4}|min\w{0,4})\b|
    \bdeadline\b[^\n]{0,20} passed|\bran out of time\b|\bgave up waiting\b
tool/connection_error: no connection
    \blost contact\b|\b(?:web)?socket\b[^\n]{0,20} (?:closed|disconnected)|\bnetwork (?:seems|appears|
    is)\b[^\n]{0,12} down\b|\bnot accept the connection|\b(?:i am|we are) offline\b|\bfailed to dial\b
tool/unavailable: not in service
    \b(?:very|too) busy\b|\bcome back (?:later|in|at)\b|\bout of order\b|\b(?:is|are) halted\b|\bnot reachable\b|
    \btemporarily \w{3,12}|\bno (?:\w{1,12} ){0,2}(?:workers?|shards?|servers?|nodes?|instances?) (?:is |are )?(?:free|
    available)\b|\brecovery mode\b
tool/api_error: problem of the service
    \bhit a snag\b|\bran into an? (?:problem|issue|error)\b|\bon our (?:side|end)\b|\bwent wrong\b
tool/auth_error: no valid login
    \bvalid credentials\b|\blog-?in is no longer valid\b|\bconsent was revoked\b|\bsignature does not match\.?$|
    \b(?:key|token|password|credentials?)\b[^\n]{0,30} not accepted\b|\bconnect your \w{2,20} account\b
tool/invalid_response: senseless response
    \bgarbled\b|\bwhere (?:json|xml) was expected\b|\bmake sense of\b|\bempty body\b
tool/output_too_large: more than can be returned
    \bmore than (?:the )?[\d,]{3,9} (?:that|which) (?:i|we|can)\b|\bask for (?:a range|fewer|less|a part)\b|
    \bnarrow (?:your|the)\b|\bcan be (?:shown|displayed)\b
retrieval/no_results: nothing there
    \b(?:found|find) nothing\b|\bnothing \w{1,14} (?:turned|came|showed) up\b|\bfound 0\b|\bhas no entr(?:y|ies)\b|
    ^no (?:documents?|passages?|results?|chunks?)\b
orchestration/invalid_state: over
    \b(?:game|match|session|meeting|auction|stream|round) (?:is over|has ended|is finished)\b|\btransition from\b
tool/invalid_arguments: named argument is invalid
    \A\s{0,10}(?:error: )?(?:['\"`]\w{1,40}['\"`]|[a-z][a-z0-9]{0,30}(?:_[a-z0-9]{1,30}){1,5}) ?:? (?:is|are|was|must|
    should|cannot|has to|needs|may not|expected|too|requires?)\b|\b(?:must|should|has to|needs? to) (?:be|have)\b|
    ,? (?:but )?got ['\"\d]|in the (?:past|future)\b|\bexpected\b[^\n]{1,60}\b(?:got|received|found)\b|
    regex parse error|\b(?:is|are) required\b|\bnon-?empty\b|\b(?:requires?|needs?) (?:an? (?!second|third)|at least |
    exactly |either |one of |something )|\A\s{0,10}(?:error: )?(?:please )?(?:provide|specify|pass|supply|choose|give|
    enter|pick) \w|\b(?:at (?:least|most)|no more than|up to|between) \d|(?<!file )\bis not (?:an? |one of )\w|
    \b(?:wrong|incorrect|invalid)\b|\bis nonsense\b|\bmakes no sense\b|\bcannot be (?:less|more|greater|lower|
    higher) than\b|\bnot one i know\b|\bcomes? (?:before|after) the\b|\btoo (?:many|few) \w{2,20}: \d|
    \byou must (?:enter|give|pass|supply|choose|select|set|name)\b|\bis not able to be\b|
    _\w{1,20}\b[^\n]{0,12} is (?:greater|larger|less|smaller|lower|higher) than \w
tool/conflict: already in this state
    \balready\b|\b(?:is|was|are|been) (?:reserved|locked|claimed|held|owned|used|occupied|taken|booked|assigned) by\b|
    \bsomeone else\b|\bin the meantime\b|\bmeanwhile\b|\bthere is another\b|\bnot free\b|\bjust been\b|\boverlaps?\b|
    \bis blocked because\b|\bwas (?:paid|cancelled|closed|shipped|sold) (?:on|at|by)\b
tool/permission_denied: outside the allowed scope
    \bescapes? the\b|\A\s{0,10}(?:error: )?blocked\b|\bhook error\b|\bonly (?:\w{1,12} )?your own\b|
    \bmay (?:\w{1,12} )?only\b|\bnot allow(?:ed)?\b|\bdoes not belong to\b|\bis not yours\b|
    \bis not within the (?:\w{1,10} )?(?:workspace|project|folder)\b|\btool has been disabled\b|\baccess is (?:turned|
    switched) off\b|\bis outside (?:of )?(?:your|the|my)\b|\bonly (?:files|folders|paths|tables|members|admins|
    owners)\b[^\n]{0,40} (?:can|may) be\b|\bnot a member of\b|\bplan does not (?:include|cover)\b|\bonly available to\b|
    \bnot been (?:given|granted) access\b
orchestration/precondition: state not reached yet
    \bhas not (?:yet )?been \w{3,16}\b|\byet\b|\bfirst\b|\bnot ready\b|\bnot configured\b|\bdisabled\b|\b(?:has|have|
    had) no (?:\w{1,14} ){0,3}\w{2,16}\b|\bneeds? (?:another |more |an? )\w{2,16}|\b(?:is|are) (?:currently |
    still )?in (?:\w{1,16} )?mode\b|\bonly (?:available|possible|valid) (?:after|when|while|if|once)|
    \bcan only \w{2,16}\b[^\n]{1,60}\b(?:while|when|if|after|once)\b|\b(?:until|unless|once|while) (?:it|the|you|an?|
    this)\b|\bstill \w{2,16}|\bno (?:active|open|current|selected|running) \w{2,16}|
    \bno (?:\w{1,16} ){1,3}(?:configured|connected|set up|enabled)\b|\band then (?:use|call|run|try)\b|\bno (?:database|
    project|workspace|file|document|page|tab|table) (?:is )?(?:selected|loaded)\b|\b(?:cart|basket|queue|stack|
    buffer) is empty\b|\b(?:select|choose|open|create|save|load|add) (?:an? |the |your )?\w{2,16} before (?:you|
    \w{2,14}ing)\b
orchestration/constraint_violation: limit exceeded
    \bexceed(?:s|ed|ing)?\b|\b(?:above|over|below|under|more than|less than|fewer than) [$]?\d|\bonly \d{1,9}\b|
    \w{2,16}-only\b|\b(?:not|never|no longer) (?:eligible|possible|valid|accepted)\b|\b(?:cannot|may not|
    must not) \w{2,16}\b
tool/not_found: unknown name
    \bnot recognized\b|\bunrecognized\b|\bunknown\b|\bmissing\b|\bno (?:\w{1,16} ){1,3}match(?:es|ed)?\b|
    \bis not (?:there|here|part of|among|known)\b|\bnowhere\b|\bno longer (?:here|there|available)\b|\b(?:was|were|
    has been) (?:deleted|removed|withdrawn)\b|\bnobody (?:called|named|with)\b|\bis gone\b|\bis not on this\b|
    \bnothing is (?:stored|registered|known)\b|\bno \w{2,16} (?:go(?:es)?|runs?|leaves?|fl(?:y|ies)) (?:from|to|
    between)\b|\bis not one of your\b|\bthere is nothing (?:at|in|under)\b|\bno longer (?:listed|offered|sold)\b
""")
"""Sentence shapes rather than words: matched only if no other rule decided, and with low confidence."""
