"""Rejections of arguments in error texts, in contrast to the state of the world.

A rejection says that the call was wrong in itself: a word, a format, a size, an option that is not supported. Another
value then corrects it. "Nothing was found" says that the call was right: another value is another item.

The texts are untrusted; scanning is bounded and linear. The class of an exception says nothing: many programs raise
one class for everything.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from mulligan.core.failure import Failure
from mulligan.core.stated_limits import states_bound
from mulligan.redaction.regex import LazyRegex

TextVerdict = Literal["rejection", "state", "neither"]

MAX_HEAD_CHARS = 1000
MAX_TAIL_CHARS = 500
"""Characters of an error text that are read, at its beginning and at its end."""
STATE_STATUSES = frozenset({404, 408, 409, 410, 412, 423, 425, 429})
"""HTTP statuses about the state of a resource or a service."""
REJECTION_STATUSES = frozenset({400, 422})
"""HTTP statuses of a rejected request. They are used for everything, so that a text about the state counts more."""

_OPTION = (
    r"(?:argument|parameter|param|option|flag|switch|keyword|field|column|property|attribute|operator|function|format|"
    r"unit|encoding|encoder|codec|mode|type|enum|choice|layout|locale|language|time ?zone|syntax|literal|escape|"
    r"character|sort key|sort order|filter|scope|dimension|frequency|method|currency|clause|kwarg|range|length|size|"
    r"precision|width|height|prefix|suffix|command|expression|pattern|regex|isoformat string|start byte|start tag)s?\b"
)
"""Nouns for what a caller wrote, in contrast to the things that it wrote about."""
_FORM = rf"(?:{_OPTION}|(?:input|value|number|date|time|query|header)s?\b)"
_CALLER = r"(?:you\b|your\b|this (?:plan|account|caller|user|role|key|tier)\b|the (?:\w{1,10} )?(?:plan|tier|key)\b)"
_THING = (
    r"(?:ticket|voucher|coupon|card|passport|licen[cs]e|contract|permit|visa|certificate|signature|session|membership|"
    r"subscription|offer|account|device|sensor|service|server|pump|alarm|seller|drone|vehicle|truck|phone|robot)"
)
_SUPPLY = (
    r"(?:balance|budget|credit|stock|inventory|capacity|quota|supply|available|remaining|funds|fuel|seats|amount|paid)"
)

_DECISIVE_STATE = LazyRegex(
    r"\b(?:"
    r"any ?more\b|try (?:again )?later|timed out|rate limit|too many requests|service not known|consent\b|"
    r"approv(?:al|ed)|"
    r"you (?:must|need to|have to|should) (?:be|have|log|sign|pay|first)\b|"
    r"(?:must|has to|have to|needs? to) be (?:in (?:the |a )?(?:status|state|draft)|at (?:the|work|home)\b)|"
    rf"{_THING}\b(?: [^\s.]{{1,14}}){{0,2}}? (?:(?:is|are|was|were) )?(?:not |in|un|out of )(?:valid|enabled|"
    rf"accepted|range|known)|"
    r"of (?:the|this|that|his|her|their|our) [\w ]{1,30}(?:is|are) (?:unknown|not known)|"
    r"(?:bad|invalid|malformed|unexpected|empty) (?:\w{1,12} )?(?:response|reply|answer)\b|unsupported operand"
    r")"
)
"""Words about the state of the world, or about the code of a tool, that decide over those of a rejection."""

_STRONG_REJECTION = LazyRegex(
    r"\b(?:"
    rf"(?:invalid|illegal|malformed|wrong|bad|incorrect|missing|extra|improper|"
    rf"unexpected) (?:[\w'\"]{{1,20}} ){{0,2}}?{_FORM}|"
    rf"(?:un(?:known|recogni[sz]ed|supported)|ambiguous|no such) (?:\w{{1,14}} ){{0,2}}?{_OPTION}|no such table\b|"
    rf"{_OPTION}[^.\n]{{0,40}} (?:do(?:es)?(?: not|n't) exist|(?:is|are) (?:not (?:possible|allowed|valid)|"
    r"missing|required|invalid))|"
    r"(?:not|isn't|aren't) (?:\w{1,10} )?(?:supported|recogni[sz]ed|a valid|understood|well-formed|of type|"
    r"one of (?!your|our|the )|divisible|a number|numeric|among the (?:\w{1,10} )?(?:permitted|allowed|valid|"
    r"supported))\b|"
    r"(?:does|do|did)(?: not|n't) (?:support|understand|know (?:this|that|the) (?:\w{1,12} )?(?:unit|format|option|"
    r"mode|type|language)|recogni[sz]e|accept (?:['\"\d]|an? |the (?:value|option))|"
    r"match (?:the )?(?:\w{1,12} )?(?:format|pattern|schema|length|regex|type|any of|grammar)|"
    r"(?:follow|conform to|comply with) [^.\n]{1,40}?(?:scheme|format|pattern|syntax|style|convention|schema))|"
    r"unsupported\b|malformed\b|unrecogni[sz]ed\b|unparsable\b|unterminated\b|mutually exclusive\b|"
    r"(?:could not|couldn't|cannot|can't|can not|unable to|failed to) (?:be )?(?:convert|parse|decod|encod|interpret|"
    r"cast\b|coerc|deserializ)(?!\w{0,4} (?:the )?(?:response|reply|answer|body))|"
    r"(?:wrong|bad|invalid) (?:checksum|case|spelling|word)\b|check ?digit|"
    r"(?:syntax|parse|parsing) ?errors?\b|type mismatch|"
    r"does not appear to be an?\b|"
    r"expected (?:an? |one of|type |(?:int|integer|float|number|str|string|bool|boolean|list|dict|object|array)\b|"
    r"[^.\n]{1,60}?\b(?:got|but|received|instead|not) )|"
    r"(?:must|should|has to|have to|needs? to) (?:only |all |either |not )?(?:be (?:an? |one of|in |between|"
    r"at (?:least|most)|less|greater|smaller|larger|shorter|longer|positive|negative|non-?|equal|of |unique|numeric|"
    r"integer|whole|given|written|entered|specified|expressed|formatted|string|valid|english|multiple|<|>|\d|before|"
    r"after|later|earlier|upper|lower|absolute|relative|no |within|exactly|either|quoted|ascii|utf)|"
    r"match|contain|consist|start with|begin with|end with|look like|have (?:exactly|no|the form|\d)|satisfy|"
    r"come first|exceed)|"
    r"(?:may|can|could)(?: ?not|n't) be (?:empty|null|none|negative|zero|blank|in the (?:future|past)|"
    r"\w{3,8}er than|more than|before|after|combined|mixed)|(?:cannot|can't|may not) (?:contain|start with|"
    r"be used (?:for|with|in|together))|"
    r"out of range (?:for|of)|out of range:|out of bounds\b|"
    r"outside (?:the )?(?:\w{1,10} )?(?:scale|range|bounds|interval)|"
    r"choose (?:from|one of|between)|(?:allowed|accepted|permitted|valid) (?:values|options|choices)|"
    r"positional arguments?\b|required property|input should|extra inputs|field required|additional properties|"
    r"no support for|(?:cannot|can't) (?:sort|filter|group|order|aggregate|read ['\"]\w{1,20}['\"] as)\b|"
    r"requires? (?:the |a |an )?(?:\w{1,12} )?(?:plan|tier|edition)\b|codec can't|not in range\(|"
    r"provide (?:either|exactly|only|one of)|not both\b"
    r")"
)
"""Words about what the caller wrote."""

_STATE = LazyRegex(
    r"\b(?:"
    r"already\b|no longer\b|yet\b|still\b|currently\b|temporarily|until\b|while\b|because\b|since\b|"
    r"busy\b|locked?\b|taken\b|occupied\b|in use\b|in progress|sold out|out of (?:stock|order|service|paper|memory)|"
    r"insufficient|not enough|expired|lapsed|ended\b|over\.|closed?\b|deleted|removed|withdrawn|revoked|"
    r"cancell?ed|archived|suspended|frozen|halted|exhausted|used up|run out|ran out|full\b|fully\b|offline|down\b|"
    r"tim(?:ed|e) ?out|connection|network|host\b|dns\b|ssl|tls|certificate|reset\b|"
    r"too many (?:attempts|connections|open|calls|logins|failures|redirects|people|users)|throttl|"
    r"quota|rate exceeded|(?:limit|budget|maximum|allowance|capacity)s? (?:is |was |has been |have been )?"
    r"(?:exceeded|reached|spent|hit)|(?:daily|hourly|monthly|weekly|credit|usage|spending) (?:limit|quota|cap)|"
    rf"exceeds? (?:the |your |our |its )?(?:\w{{1,12}} )?{_SUPPLY}\b|balance|funds|stock\b|battery|"
    r"(?:level|temperature|pressure|demand|traffic|wind|risk|score|income|rating|voltage|water|price)s? (?:is|are) too|"
    r"try again|retry|wait\b|later\b(?! than)|pending|process(?:ing|ed)|running|overload|unavailable(?!;)|"
    r"maintenance|conflict|duplicate|exists?\b|declined|"
    r"no (?!such |more than |less than |greater |larger |longer |shorter )\w{2,}|no(?:thing|body)\b|"
    r"none (?:left|found|available|of)|zero results|not[ _](?:found|listed|registered|"
    r"published|connected|ready|released|signed|assigned|finished|started|running|installed|available(?! (?:to|for|on|"
    rf"in|with) {_CALLER})|completed?|"
    r"verified|paid|logged|authenticated|reachable|responding|empty|in (?:the |your |our )\w)|"
    r"there (?:is|are|was|were)(?: no|n't| not)|isn't any|has(?: not|n't)|have(?: not|n't)|was (?:not )?\w{2,14}ed\b|"
    r"(?:has|have) been|remain(?:s|ing)?\b|left\b|"
    r"(?:you|users?|they|visitors|guests) (?:is|are) not (?:allowed|permitted)|"
    r"(?:cancell?ation|refund|return|exchange|transfer|booking|withdrawal|payment|access|upload|entry|registration|"
    r"submission|purchase|check-?in|operation|action|trade)s?(?: [^\s.]{1,14}){0,4}? not (?:allowed|permitted|"
    r"enabled)|\w{3,12}ing (?:is|are) not (?:allowed|permitted|enabled)|"
    r"crash|died|denied|unauthori[sz]ed|forbidden|permission|protected|sealed|blocked|"
    r"deadlock|being \w{3,14}ed"
    r")"
)
"""Words about the state of the world. They decide over the weaker words of a rejection."""

_WEAK_REJECTION = LazyRegex(
    r"\b(?:"
    r"(?<!\.)invalid\b(?! (?:state|status|credentials|password|login|api|request|user|token|data))|(?:not|isn't|"
    r"aren't) valid\b|"
    r"unknown(?=\.?$|[;,])|not known\b(?! (?:when|where|who|why|if|whether|how))|"
    r"(?:not|isn't|aren't) (?:be )?(?:allowed|permitted|accepted|enabled|offered by|possible with|"
    rf"available (?:to|for|on|in|with) {_CALLER})|"
    r"(?:cannot|can't|may not) (?:exceed|be (?:used|sent|filtered|sorted|applied|written))|cannot write (?:mode|type)|"
    r"too (?:large|long|big|small|short|high|low|many|few|wide|broad|narrow|precise|specific|complex)\b|"
    r"exceed(?:s|ing)?\b|limited to \d|at most (?:\d|one\b|two\b)|up to \d|"
    r"at least \w{1,9} (?:character|digit|letter|item|value|word|byte|element|pixel|cent|question)|"
    r"(?:above|over|below|under|than) [^.\s]{0,3}\d[^.\n]{0,20} (?:is|are) (?:not|refused|rejected)|"
    r"maximum (?:is|of|allowed|length|size|\w{1,14} (?:is|length))|minimum (?:is|of|allowed|length|size)|"
    r"multiples? of|whole numbers?|(?:two|three|four|five|eight|\d{1,3})[- ](?:letters?|digits?|characters?|decimals?)|"
    r"(?:start|end|from|to|since|until|begin) precedes|beyond what\b|isn't something\b|want e\.g\.|nonsense\b|"
    r"validation errors?\b|decimals for|(?:upper|lower)[- ]?case|with(?:out)? (?:blanks|spaces)|iso \d|e\.164|yyyy|"
    r"expects?\b|accepts (?:only|\d|one of)|fraction between|"
    r"(?:ids?|codes?|references|names?|numbers?) (?:look like|are written)|is out of range|"
    r"(?:use|choose) \w{1,16}(?:, \w{1,16}){0,4},? or \w|(?:choose|use|enter|give|provide|specify|pick) an? (?:shorter|"
    r"smaller|longer|larger|valid) \w|"
    r"(?:date|time|start|end|day|arrival|departure) (?:lies|is|comes|falls) (?:before|after)|"
    r"only the (?:first|default)|(?:may|can) only (?:filter|sort|contain|use|select|be (?:one of|used|combined))|"
    r"only (?:takes?|understands?|accepts?|supports?|allows?|knows?)\b|premium\b|"
    r"(?:plan|tier|key|edition|licen[cs]e)s? (?:does not|doesn't|may not|cannot|can't|do not) \w|"
    r"please (?:use|give|write|enter|specify|pass|send) (?!another|a different|your )|"
    rf"needs? an? {_OPTION}|not an? (?:iso|isbn|iban|uuid|url|uri|email|integer|number|date|json|xml|boolean|list|"
    rf"string)\b|"
    r"must be (?!\w{2,14}(?:ed|en|id|nt|gned)\b|in |at |on |open|closed|online|empty|ready|active|home|available|"
    r"free|clean|"
    r"dry|full|back|done|live|awake|alive)\w|you (?:asked for|gave|passed|sent|entered|specified|supplied) ['\"\d]|"
    rf"(?:disabled (?:in|for|on)|off for) (?:shared\b|{_CALLER})|instead of \d"
    r")"
)
"""Words that reject a call unless the text also speaks about the state of the world."""


_CODE_BOUNDARY = LazyRegex(r"[_.:/-]|(?<=[a-z])(?=[A-Z])")
"""Ends of words in an error code: `INVALID_FORMAT`, `InvalidParameterValue`."""


def rejects_arguments(failure: Failure) -> bool:
    """Return whether the error rejects what was asked: a wrong word, format or size, or an unsupported option."""
    return judge_failure(failure) == "rejection"


def judge_failure(failure: Failure) -> TextVerdict:
    """Return whether an error rejects arguments, describes the state of the world, or does neither.

    Nothing found, taken, or used up is the state of the world.
    """
    if failure.kind.is_about_tool_name:
        return "rejection"
    status = failure.status or 0
    if failure.kind.is_about_state or status >= 500 or status in STATE_STATUSES:
        return "state"
    for text in (failure.message, _CODE_BOUNDARY.sub(" ", failure.code[:MAX_TAIL_CHARS]), failure.detail):
        verdict = judge_text(_cut_middle(text)) if text else "neither"
        if verdict != "neither":
            return verdict
    return "rejection" if status in REJECTION_STATUSES or states_bound(failure.message) else "neither"


@lru_cache(maxsize=256)
def judge_text(text: str) -> TextVerdict:
    """Return whether an error text rejects arguments, describes the state of the world, or does neither."""
    text = text.lower()
    if _DECISIVE_STATE.search(text):
        return "state"
    if _STRONG_REJECTION.search(text):
        return "rejection"
    if _STATE.search(text):
        return "state"
    return "rejection" if _WEAK_REJECTION.search(text) else "neither"


def _cut_middle(text: str) -> str:
    """Return the beginning and the end of a long text."""
    if len(text) <= MAX_HEAD_CHARS + MAX_TAIL_CHARS:
        return text
    return f"{text[:MAX_HEAD_CHARS]}\n{text[-MAX_TAIL_CHARS:]}"
