"""Context overflow: how each provider reports it, and the sizes it names.

Similar errors need other remedies: throttling by tokens (retry), an answer limit set too high or an image that is too
large (repair). Only this module tells them apart.
"""

from __future__ import annotations

import re
from functools import cache

import msgspec

from mulligan.redaction import lazy_regex


class Overflow(msgspec.Struct, frozen=True):
    """Sizes of an overflow, in tokens unless the provider counts otherwise. None if not reported."""

    window: int | None
    requested: int | None
    answer: int = 0
    """Tokens of both sizes that are reserved for the answer, if reported."""


@cache
def _re(pattern: str) -> re.Pattern[str]:
    return lazy_regex.compile_regex(pattern, re.IGNORECASE)


# Every overflow text contains one of these. Other texts skip the patterns below.
_TRIGGER_WORDS = (
    "too long",
    "too large",
    "too many",
    "context",
    "token",
    "maximum",
    "longer than",
    "max length",
    "max_model_len",
    "maxlength",
    "length of the",
    "input length",
    "reduce the",
    "payload size",
    "request size",
)

_PHRASES = (
    # Names the context window.
    r"context[_ -]?(?:length|window|size|limit)s? (?:\w{1,12} ){0,2}?exceed",
    r"exceed\w{0,3} (?:\W?\w{1,14}\W{1,2}){0,6}?context[_ -]?(?:length|window|size|limit)",
    r"maximum (?:\w{1,12} ){0,2}context (?:length|window|size|limit)",
    r"(?:max(?:imum)?|total) (?:model|sequence|prompt|input) (?:len|length)\b(?: \w{1,8}){0,3} \(?\d",
    r"(?:longer|larger|greater|bigger) than (?:\W?\w{1,12}\W{1,2}){0,4}?(?:context|(?:max(?:imum)?|"
    r"model(?:'s)?) \w{0,10} ?(?:length|size|context))",
    r"context_length_exceeded|context_window_exceeded|exceed_context_size|contextwindowexceeded|"
    r"model_max_prompt_tokens_exceeded",
    r"context (?:is )?(?:too long|overflow\w{0,3})",
    r"too (?:large|long|big) for (?:\w{1,20} ){0,6}(?:context|maximum context)",
    r"(?:fit|fits) (?:\w{1,12} ){0,3}context (?:window|length|size)",
    # Names the input.
    r"(?:prompt|input|inputs|messages?|conversation|query|"
    r"request)(?: \([^)]{1,40}\))? (?:\w{1,10} ){0,2}?(?:is|are|was) too (?:long|large|big)\b(?! to (?:render|"
    r"display))",
    r"(?:prompt|input) (?:is )?too long",
    r"input (?:is|was) too (?:long|large) for (?:the )?(?:requested |this )?model",
    r"input[ _]tokens?[ _]exceeded|input tokens exceed",
    r"(?:input|prompt|request(?:ed)?)[ _]?token(?:s)?(?: count)?(?: of)?(?: is)?(?: \(?[\d,]{1,12}\)?)?,? "
    r"(?:but model only supports|exceeds?|exceeded)",
    r"(?:number of |count of )?(?:input|prompt) tokens (?:\(?[\d,]{1,12}\)? )?(?:\w{1,8} ){0,2}?(?:exceeds?|"
    r"exceeded|cannot exceed|must be (?:less|at most|<))",
    r"too many (?:input |prompt )?tokens(?! ?,? ?(?:please )?(?:wait|per|try))(?:\W{1,3}(?:max|size|limit|"
    r"request|\d)| in (?:the )?(?:prompt|input|request))",
    r"tokens in (?:the|your) (?:prompt|input|messages?|request) (?:cannot|can not|must not|may not|should not) exceed",
    r"prompt has too many tokens|prompt exceeds max|exceeded model token limit|request(?:ed)? (?:exceeds|"
    r"exceeded) (?:the )?(?:model|maximum) (?:token|size|context)",
    r"(?:please )?(?:reduce|shorten) (?:the )?(?:length|size) of (?:the |your )?(?:messages?|prompts?|inputs?|"
    r"conversation)",
    r"maximum (?:prompt|input) length (?:is|of)|maximum input length|range of input length should be",
    r"`?inputs`? must have less than|`?inputs`? tokens \+ `?max_new_tokens`? must be",
    r"input length and `?max_tokens`? exceed|prompt tokens? .{0,40}max_?tokens .{0,30}exceed",
    r"expected maxlength: \d{4,}",
    r"string too long|string_above_max_length",
    # Names the request size.
    r"request too large for|request_too_large|request exceeds the maximum (?:allowed )?(?:size|number of bytes)",
    r"request (?:payload|body)? ?size exceeds the limit|tokens must be reduced in order to run",
    r"token count (?:\w{1,8} ){0,2}exceeds|tokens? (?:\w{1,10} ){0,3}exceeds? the (?:model|maximum|available|context)",
    r"greater than the context length|(?:tokens|prompt|input) (?:\w{1,10} ){0,4}when context overflows",
    r"sequence length is longer than|decoder prompt|exceeds? max(?:imum)? (?:model |sequence )?len",
)

# About throttling, the length of the answer or an image. A match means that it is not an overflow ...
_EXCLUSIONS = (
    r"too many tokens,? please wait|tokens per (?:min|day|hour|second)(?![\s\S]{0,200}must be reduced)(?<!large)",
    r"max_?(?:completion_|output_|new_)?tokens\W{0,3}(?:is too large|: ?\d+ > \d+|must be (?:less|at most|<|"
    r"positive|at least|greater)|cannot|value|should be|is not supported|exceeds)",
    r"maxoutputtokens|maximum tokens you requested exceeds|max_tokens: \d+ ?>|"
    r"supports at most \d+ (?:completion|output) tokens",
    r"(?:image|picture|photo|audio|video|pdf|document|file|attachment|base64)s?\b[^.\n]{0,60}?(?:exceeds?|"
    r"exceeded|too (?:large|big|many)|dimensions|larger than)",
    r"too many (?:images|requests|tools|functions)|array too long|pixels",
)

# ... unless one of these matches, which only overflows contain.
_EXCLUSION_OVERRIDES = (
    r"input length and `?max_tokens`? exceed|exceed context limit|maximum context length|context window|"
    r"request too large for"
    r"|prompt is too long|tokens \+ `?max_new_tokens`?|context_length_exceeded|contextwindowexceeded"
)

_NUMBER_PATTERN = r"\(?`?(\d[\d,_]{0,14}\d|\d)"
_WINDOWS = (
    rf"(?:context|prompt|input|model|sequence) (?:length|window|size|limit|len)(?: allowed)?(?: is| of|:| was|"
    rf"=)? {_NUMBER_PATTERN}(?! ?\+)",
    rf"(?:maximum|max)(?: allowed)?(?: number of)?(?: input)? tokens(?: allowed)?(?: is| of|:)? ?{_NUMBER_PATTERN}",
    rf"available context size {_NUMBER_PATTERN}",
    rf"only supports up to {_NUMBER_PATTERN}|token limit(?: is| of|:)? ?{_NUMBER_PATTERN}"
    rf"|limit for this model is {_NUMBER_PATTERN}|tokens limit {_NUMBER_PATTERN}",
    rf"(?:> ?|must be <= |cannot exceed |less than ){_NUMBER_PATTERN}",
    rf"(?:limit(?: is| of)?:? |configured limit of |limit of ){_NUMBER_PATTERN}",
    rf"with {_NUMBER_PATTERN} maximum context|maxlength: {_NUMBER_PATTERN}|should be \[1, {_NUMBER_PATTERN}"
    rf"|context limit(?: of)? {_NUMBER_PATTERN}",
    rf"context length {_NUMBER_PATTERN}|maximum size of {_NUMBER_PATTERN}|model'?s context length \({_NUMBER_PATTERN}",
)
_REQUESTS = (
    r"(?:resulted in|you requested|requested(?: a total of)?(?: about)?|request contains|requested tokens) "
    rf"{_NUMBER_PATTERN}",
    r"(?:requested|request input token count|given|actual|current length is|requested token count):? ?"
    rf"{_NUMBER_PATTERN}",
    rf"(?:token count|prompt|input|request)(?: of| is| contains)? {_NUMBER_PATTERN} ?(?:tokens)?",
    rf"too long: {_NUMBER_PATTERN}|exceed context limit: {_NUMBER_PATTERN} \+ {_NUMBER_PATTERN}"
    rf"|length {_NUMBER_PATTERN}\)? is longer",
    rf"number of input tokens {_NUMBER_PATTERN}",
)


def parse_overflow(text: str) -> Overflow | None:
    """Return the sizes of an overflow, or None if the text does not report one."""
    lower = text.lower()
    if not any(word in lower for word in _TRIGGER_WORDS):
        return None
    if not any(_re(pattern).search(text) for pattern in _PHRASES):
        return None
    if any(_re(pattern).search(text) for pattern in _EXCLUSIONS) and not _re(_EXCLUSION_OVERRIDES).search(text):
        return None
    window = _find_size(_WINDOWS, text)
    requested = _find_size(_REQUESTS, text)
    answer = 0
    split_match = _re(r"exceed context limit: (\d+) \+ (\d+) > (\d+)").search(text)
    if split_match:
        answer = int(split_match.group(2))
        requested, window = int(split_match.group(1)) + answer, int(split_match.group(3))
    answer_match = _re(r"(\d{1,9}) (?:in|for) the (?:completion|output)|(\d{1,9}) (?:completion|output) tokens").search(
        text
    )
    if answer_match and requested is not None:
        answer = int(answer_match.group(1) or answer_match.group(2))
        answer = answer if answer < requested else 0
    if window is not None and requested is not None and requested < window:
        requested = None  # only a part, such as the length of the answer
    return Overflow(window, requested, answer if requested is not None else 0)


def _find_size(patterns: tuple[str, ...], text: str) -> int | None:
    for pattern in patterns:
        for match in _re(pattern).finditer(text):
            number = next((int(re.sub(r"\D", "", group)) for group in match.groups() if group), 0)
            if number >= 100:  # a smaller number is an index or a count, not a window
                return number
    return None
