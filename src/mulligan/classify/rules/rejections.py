"""Rules for rejected calls: wrong arguments, wrong state, missing objects.

Their words are general. They are matched last, and only if they can refer to the call: see
`shell.PROCESS_KINDS`.
"""

from __future__ import annotations

from mulligan.classify import kinds as kinds
from mulligan.classify.rules.matching import Rule

LIMITS = (
    Rule(
        "as often as is allowed",
        kinds.ORCHESTRATION_MAX_RETRIES_EXCEEDED,
        pattern=r"max(?:imum)?(?: number of)? (?:iterations|turns|steps|retries|attempts|tool calls|"
        r"rounds)\b[^\n]{0,40}?(?:exceeded|reached|exhausted)|(?:exceeded|reached|due to|hit)(?: the|"
        r" its)? max(?:imum)?(?: number of)? (?:iterations|turns|steps|retries|attempts|tool calls|rounds)|"
        r"recursion limit of \d{1,9} reached",
        unless=r"with url|for (?:output|result) validation|connection ?pool|when calling the \w{1,60} operation",
    ),
)

FORBIDDEN = (
    Rule(
        "not for you",
        kinds.TOOL_PERMISSION_DENIED,
        pattern=r"\b(?:access\w{0,3}|fetch\w{0,3}|operations?|actions?|commands?|navigat\w{1,4}|writing|reading|"
        r"deleting|modifying|running|executing|uploads?|requests? to)\b[^\n]{0,60} (?:is|are) not (?:allowed|"
        r"permitted)|your (?:role|account|plan|subscription|user|token)\b[^\n]{0,40}(?:may not|cannot|can't|"
        r"(?:does not|doesn't) allow)|requires? (?:\w{1,12} )?approval|\bread-only mode|"
        r"only (?:\w{1,12} )?\w{2,14}s (?:can|may) (?!be\b|have\b)\w{2,}|only [A-Z]{3,12}\b[^\n]{0,30}(?:queries|"
        r"statements|requests|methods) (?:are|is) (?:allowed|permitted)|(?:must|"
        r"has to) be (?:with)?in(?:side)? (?:one of )?the (?:\w{1,12} )?(?:workspace|project|working|allowed|sandbox|"
        r"root)|\b(?:access|path|write|file)\b[^\n]{0,80} blocked\b",
    ),
)

ARGUMENTS = (
    Rule(
        "no such tool",
        kinds.TOOL_UNKNOWN_TOOL,
        pattern=r"(?:unknown|no such|unrecognized|nonexistent|undefined|unsupported) (?:tool|function|"
        r"action)(?: name)?\b(?! (?:argument|parameter|option|call id))|(?:tool|function|action) (?:named |with name |"
        r"name )?[\"'`\[]?[\w.:/-]{0,80}[\"'`\]]? ?(?:is |was |does |could )?(?:not (?:found|exist|available|"
        r"registered|recognized|defined|be found|a (?:known|valid|recognized))|unknown|doesn't exist|not in)|"
        r"no (?:tool|function) (?:named|called|with (?:the )?name|found)|(?<!payment )(?<!shipping )(?<!delivery "
        r")method not found|is not a (?:valid|known|registered|recognized|available) (?:tool|function)|"
        r"model tried to call unavailable tool|available tools:|^unsupported call: \S{1,80}$|no such tool",
        unless=r"undefined function \w{1,40}\(|function .{1,80}\(.{0,80}\) does not exist|no such function:",
    ),
    Rule(
        "arguments do not fit",
        kinds.TOOL_INVALID_ARGUMENTS,
        pattern=r"^(?:error:? )?(?:invalid|unsupported|missing) [\w ]{2,40}\.?$|must be (?:absolute|relative|"
        r"lowercase|uppercase|different|distinct|identical|later|earlier)\b|not an absolute|strict mode violation|"
        r"resolved to \d{1,9} elements|unknown command|without value for|\bno \w{2,20} (?:was |were )?(?:provided|"
        r"given|specified|supplied|passed)\b|^empty \w{2,20}\.?$|unterminated subpattern|nothing to repeat|"
        r"^'?\w{1,40}'? (?:is |comes |date |time )?(?:before|after) '?\w{1,40}'?\.?$|time data .{1,80} does not match|"
        r"not in range\(|(?:unexpected|invalid|missing|unknown|unrecognized|bad|wrong|illegal|extra|unsupported|"
        r"incorrect|required|duplicate|empty|too (?:many|few)|not enough)(?: \d{1,9})? (?:\w{1,16} ){0,3}?(?:argument|"
        r"parameter|param|input|option|flag|field|property|key(?:word)?|value|operand|switch|format|type|enum|date|"
        r"character|path|mode|unit|number|choice)s?\b|(?:argument|parameter|param|field|property|input|option|key|"
        r"value|attribute)s?\b[^\n]{0,100}?(?:is|are|was|were)? ?(?:required|missing|not (?:valid|allowed|supported|"
        r"recognized|permitted|expected|accepted|a valid|specified|provided|defined|known)|invalid|unexpected|must\b|"
        r"should (?:be|have|match)|cannot be|can't be|expects?|out of range|unknown)|\bmissing \d{1,9} required|"
        r"takes \d{1,9} (?:positional|to|from)|required (?:positional|keyword|property|field|argument|parameter)|"
        r"(?:validation|argument) (?:error|failed|errors)|input ?validation ?error|\bis a required property|"
        r"is not of type|is not one of|is not valid under any|additional properties|"
        r"do(?:es)? not match (?:the )?(?:\w{1,10} )?(?:pattern|format|schema|any of|regex)|field required|"
        r"input should be|extra inputs are not permitted|value is not a valid|(?:must|should|has to|"
        r"needs to) be (?:a |an |one of|in|between|at (?:least|most)|less|greater|positive|non-?negative|non-?empty|"
        r"equal|either|of type|unique|specified|provided|numeric|string|valid|set|>|<|\d|the|formatted|within|"
        r"no (?:more|less)|<=|>=)|must (?:not|match|contain|have|start|end|only|specify|provide|include)|"
        r"expected (?:a |an |one of |type |value |\w{1,20},? (?:but )?(?:got|found|received))|could not convert|"
        r"cannot (?:convert|parse|interpret|cast|be (?:empty|null|blank|negative|none|zero|parsed|converted|"
        r"interpreted))|can't (?:convert|parse)|invalid literal|unable to (?:parse|convert|interpret)|out of (?:range|"
        r"bounds)|(?:exceeds|above|below|outside) (?:the )?(?:max|min|allowed|valid|limit|range|bound)|too (?:long|"
        r"short|small|large|big|high|low)\b|unsupported (?:operand|format|value|type|path|unit|currency|language|"
        r"option)|(?:is|are) not (?:supported|allowed|permitted|recognized|accepted)\b|not a valid\b|"
        r"unknown (?:option|flag|switch|argument|parameter|predicate|primary)|unrecognized (?:option|argument|flag)|"
        r"(?:illegal|invalid) (?:option|character|flag|choice|date|time|format|mode|number|value|request)|^usage: |"
        r"bad request|malformed|no such option|ambiguous (?:option|argument)|requires an? (?:argument|value|"
        r"parameter)|non-uuid|not a uuid|not found\. available \w{1,20}:|unknown skill|only (?:one|"
        r"\w{1,10}) (?:\w{1,12} ){0,6}(?:supported|allowed|accepted)|allowed values|valid (?:values|options|"
        r"choices) (?:are|include)|choose from|wrong number of arguments|provide (?:only|either|a valid|exactly)|"
        r"-32602|invalid params|unprocessable|unable to read .{0,30}argument|is not defined in (?:the )?schema|"
        r"wrong type|type mismatch|nullable|is not a number|not a number|parsing .{1,60}: invalid syntax|"
        r"invalid syntax for|invalid value|hallucinated|no value provided",
    ),
)

STATE = (
    Rule(
        "it is there already",
        kinds.TOOL_CONFLICT,
        pattern=r"\b(?:is|are|was|were|has|have) already\b|\bis taken\b|already (?:exists|exist|in use|taken|"
        r"registered|been|present|a member|running|open|closed|started|bound|assigned|used|has|defined|at|the|"
        r"completed|cancell?ed|processed|on|off|exist)|\bfile exists\b|\bEEXIST\b|\bENOTEMPTY\b|not empty|"
        r"\bconflict(?:s|ing)?\b|address (?:already )?in use|(?:is|are) (?:currently )?(?:in use|being used|locked)|"
        r"locked by|etag|precondition failed|\bduplicate\b",
    ),
    Rule(
        "something must come first",
        kinds.ORCHESTRATION_PRECONDITION,
        pattern=r"\bis (?:currently |already )?(?:suspended|locked|disabled|inactive|deactivated|frozen|on hold|"
        r"switched off|turned off)\b|\bit first\b|\b(?:use|call|run|open|close|create|start|select|log|read|load|"
        r"connect|stop) [^\n.]{1,80} first\b|must be \w{3,16} (?:to|before|in order|for) \w|\bnot_in_\w{1,20}\b|"
        r"^no open \w|is not installed (?:on|in|for) |(?:do|does) not have an? (?:\w{1,14} ){0,2}(?:request|session|"
        r"payment|booking|reservation|subscription|plan)\b|is incomplete\b|(?:balance|credit|stock|quantity|"
        r"funds) (?:is|are) (?:not enough|insufficient|too low)|cannot be used|(?:must|need(?:s|ed)? to|have to|"
        r"has to|should|please) (?:first )?(?:\w{1,16} ){1,8}(?:before|prior to|first\b|when )|"
        r"\bbefore (?:\w{1,16} ){0,3}?\w{1,16}ing\b|\b(?:is|are|was|were|has|have|been|"
        r"be)? ?not (?:yet )?(?:been )?(?:initiali[sz]ed|started|running|connected|ready|loaded|open(?:ed)?|"
        r"configured|enabled|set up|active|activated|verified|confirmed|attached|mounted|selected|paired|installed|"
        r"eligible|refundable)\b|(?:insufficient|not enough|inadequate) (?:\w{1,14} ){0,2}(?:balance|funds|credit|"
        r"stock|inventory|seats?|space|fuel|quantity|points|memory|budget|capacity|material|supply|battery)|"
        r"no active \w{1,20}|call \S{1,40} first|run \S{1,60} first|first (?:call|run|create|start|open|connect|"
        r"select|log)|prerequisite|precondition|failed_precondition|requires? (?:\w{1,16} ){1,5}to be |depends on|"
        r"(?:cannot|can't|can not|unable to) (?:be )?(?:\w{1,16} ){1,6}(?:while|until|unless|because|when|"
        r"with(?:out)?|in (?:its|the|this) (?:current )?(?:state|status)|above|beyond|more than|after|if|as it|since)|"
        r"(?:is|are) (?:less|lower|greater|more|higher) than (?:the )?(?:budget|limit|balance|available|minimum|"
        r"maximum|required|price|cost|total)|until (?:\w{1,16} ){1,5}(?:is|are|has|have)|"
        r"window (?:of [^\n]{1,20} )?has (?:passed|closed|expired)|only (?:\w{1,12} ){1,4}(?:can|"
        r"may) be (?:\w{1,16} ?)|with status|non-\w{1,12} (?:order|item|reservation|booking|account)\w{0,2}\b|"
        r"cannot be (?:cancell?ed|modified|exchanged|returned|changed|refunded|updated|deleted|removed|processed)|"
        r"(?:not|no longer) (?:pending|delivered|active|cancellable|modifiable|available (?:for|to))",
    ),
    Rule(
        "a rule forbids it",
        kinds.ORCHESTRATION_CONSTRAINT_VIOLATION,
        pattern=r"(?:policy|rule|constraint|business rule|guardrail|limit)s?\b[^\n]{0,60}(?:violat|forbid|prohibit|"
        r"prevent|not allow|exceed|reach)|violat\w{1,5}|(?:exceed(?:s|ed)?|over|"
        r"beyond) (?:the )?(?:\w{1,14} ){0,3}(?:limit|budget|maximum|quota|allowance|capacity)|(?:limit|budget|"
        r"maximum|capacity|allowance)(?: of [\w.,$]{1,20})? (?:has been |is |was )?(?:exceeded|reached)|prohibited|"
        r"restricted|(?:do|does) not (?:match(?! the (?:\w{1,10} )?schema)|add up|agree|equal)|should (?:be the same|"
        r"be different|match)|not allowed|mutually exclusive|^(?:error: )?(?:max(?:imum)?|at most|no more than|up to|"
        r"limit(?:ed to)?)(?: of)? \d{1,9}\b|(?:cannot|can't|can not|may not) be (?!found|parsed|read|null|empty|"
        r"converted|located|reached|resolved|opened|loaded|determined|interpreted|used\b)\w{3,14}(?:ed|en|t|ld)\b|"
        r"declined",
    ),
    Rule(
        "wrong state",
        kinds.ORCHESTRATION_INVALID_STATE,
        pattern=r"(?:invalid|illegal|wrong|unexpected|bad|inconsistent) (?:\w{1,12} )?(?:state|status)\b|(?:in|"
        r"from) (?:state|status) |state (?:transition|machine)|illegalstate|invalidstate",
    ),
)

MISSING = (
    Rule(
        "nothing matched",
        kinds.RETRIEVAL_NO_RESULTS,
        pattern=r"\bno (?:\w{1,14} ){0,2}?(?:results?|match(?:es|ing)?|documents?|records?|rows?|hits|items|entries|"
        r"data|articles|pages|passages|files|papers|emails|messages|events|answers?)\b(?: \w{1,14}){0,3}?(?: (?:found|"
        r"matched|match|returned|available|for|in|exist)|\.?$)|\b(?:0|zero) (?:\w{1,10} )?(?:results?|match(?:es)?|"
        r"hits|documents?|rows?)\b|nothing (?:was )?found|empty result|returned no\b(?!-)|no data\b(?! for|\.\w)|"
        r"no \w{1,20} match(?:es|ed)? (?:your|the)\b|did not (?:return|match) any",
    ),
    Rule(
        "not there, or not for sale",
        kinds.TOOL_NOT_FOUND,
        pattern=r"is not available|\bno available|there (?:is|are) no\b|not available",
        is_vague=True,
    ),
    Rule(
        "no such thing",
        kinds.TOOL_NOT_FOUND,
        pattern=r"not[ _-]?found|\bno such\b|(?:does|do|did) ?(?:not|n't) (?:currently )?exist|doesn't exist|"
        r"(?:could not|couldn't|cannot|can't|unable to|failed to|can not) (?:be )?(?:find|found|locate|look up|"
        r"identify)|no longer exists?|unknown (?:\w{1,14} ){0,2}(?:id|user|name|account|order|customer|product|item|"
        r"resource|host|entity|symbol|city|location|airport|station|object|reservation|flight|agent|skill|task|"
        r"session|channel|project)\b|invalid (?:\w{1,14} ){0,3}(?:airport|currency|country|city|station|zip|postal|"
        r"language|region|stock|product|item|order|user|account|reservation|flight|booking|customer|ticket) ?(?:code|"
        r"id|symbol|name|number)?\b|\bno (?:\w{1,14} ){1,3}(?:with|for|named|called|matching|match(?:es)?|found|"
        r"exists?)\b|nosuch(?:key|bucket|entity)|is not (?:a (?:known|registered|listed)|listed|registered)|"
        r"has no (?:\w{1,14} )?(?:named|called|with)|not in (?:the |your )?(?:list|database|cart|order|system|catalog|"
        r"workspace|watchlist)|is not in (?:the|your|this|our) \w{1,20}\b(?! of)|^no data for\b|^unknown \w{1,20}: \S",
    ),
)

GUESSES = (
    Rule(
        "an argument by its name",
        kinds.TOOL_INVALID_ARGUMENTS,
        pattern=r"\A\s{0,10}(?:error: )?(?:['\"`]\w{1,40}['\"`]|[a-z][a-z0-9]{0,30}(?:_[a-z0-9]{1,30}){1,5}) ?:? "
        r"(?:is|are|was|must|should|cannot|has to|needs|may not|expected|too|requires?)\b|\b(?:must|should|has to|"
        r"needs? to) (?:be|have)\b|,? (?:but )?got ['\"\d]|in the (?:past|future)\b|\bexpected\b[^\n]{1,60}\b(?:got|"
        r"received|found)\b|regex parse error|\b(?:is|are) required\b|\bnon-?empty\b|\b(?:requires?|"
        r"needs?) (?:an? (?!second|third)|at least |exactly |either |one of |something )|"
        r"\A\s{0,10}(?:error: )?(?:please )?(?:provide|specify|pass|supply|choose|give|enter|pick) \w|"
        r"\b(?:at (?:least|most)|no more than|up to|between) \d|(?<!file )\bis not (?:an? |one of )\w|\b(?:wrong|"
        r"incorrect|invalid)\b",
    ),
    Rule(
        "so already",
        kinds.TOOL_CONFLICT,
        pattern=r"\balready\b|\b(?:is|was|are|been) (?:reserved|locked|claimed|held|owned|used|occupied|taken|booked|"
        r"assigned) by\b|\bsomeone else\b|\bin the meantime\b|\bmeanwhile\b",
    ),
    Rule(
        "your own only",
        kinds.TOOL_PERMISSION_DENIED,
        pattern=r"\bescapes? the\b|\A\s{0,10}(?:error: )?blocked\b|\bhook error\b|\bonly (?:\w{1,12} )?your own\b|"
        r"\bmay (?:\w{1,12} )?only\b|\bnot allow(?:ed)?\b|\bdoes not belong to\b|\bis not yours\b",
    ),
    Rule(
        "not yet",
        kinds.ORCHESTRATION_PRECONDITION,
        pattern=r"\bhas not (?:yet )?been \w{3,16}\b|\byet\b|\bfirst\b|\bnot ready\b|\bnot configured\b|\bdisabled\b|"
        r"\b(?:has|have|had) no (?:\w{1,14} ){0,3}\w{2,16}\b|\bneeds? (?:another |more |an? )\w{2,16}|\b(?:is|"
        r"are) (?:currently |still )?in (?:\w{1,16} )?mode\b|\bonly (?:available|possible|valid) (?:after|when|while|"
        r"if|once)|\bcan only \w{2,16}\b[^\n]{1,60}\b(?:while|when|if|after|once)\b|\b(?:until|unless|once|"
        r"while) (?:it|the|you|an?|this)\b|\bstill \w{2,16}|\bno (?:active|open|current|selected|running) \w{2,16}|"
        r"\bno (?:\w{1,16} ){1,3}(?:configured|connected|set up|enabled)\b|\band then (?:use|call|run|try)\b",
    ),
    Rule(
        "more than is allowed",
        kinds.ORCHESTRATION_CONSTRAINT_VIOLATION,
        pattern=r"\bexceed(?:s|ed|ing)?\b|\b(?:above|over|below|under|more than|less than|fewer than) [$]?\d|"
        r"\bonly \d{1,9}\b|\w{2,16}-only\b|\b(?:not|never|no longer) (?:eligible|possible|valid|accepted)\b|"
        r"\b(?:cannot|may not|must not) \w{2,16}\b",
    ),
    Rule(
        "nothing of that name",
        kinds.TOOL_NOT_FOUND,
        pattern=r"\bnot recognized\b|\bunrecognized\b|\bunknown\b|\bmissing\b|\bno (?:\w{1,16} ){1,3}match(?:es|ed)?\b|"
        r"\bis not (?:there|here|part of|among|known)\b|\bnowhere\b|\bno longer (?:here|there|available)\b",
    ),
)
"""Sentence shapes rather than words: matched only if no other rule decided, and with low confidence."""
