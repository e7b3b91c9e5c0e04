"""Reading advice: a sentence for a model or a person becomes claims that can be held against the truth."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from learning.truth import FORBIDDEN_RULES, Arguments, Cure, is_match, list_values

ClaimKind = Literal["value", "rename", "drop", "first", "tool", "form", "vague"]
Verdict = Literal["right", "wrong", "neutral", "unread"]

LEAST_CONFIDENCE = 0.5
"""Advice that is less sure counts neither as told nor as wrong."""


@dataclass(frozen=True)
class Claim:
    """One thing that a sentence says would help."""

    kind: ClaimKind
    path: str = ""
    """The argument, or of `first` and `tool` the name of a tool."""
    value: Any = None
    """What it should be: a text as it was shown, or the value itself; of a rename the new name."""


@dataclass(frozen=True)
class Sentence:
    """A piece of advice as it was told."""

    text: str
    claims: tuple[Claim, ...]
    is_understood: bool = True
    is_remembered: bool = True
    """Whether it rests on earlier runs. What the failure itself says may be told where memory may not speak."""
    confidence: float = 1.0


_NEUTRAL = re.compile(
    r"^\S+/\S+ (?:before any attempt|after \d+ attempts?)\b"  # the note on an exception
    r"|the original arguments (?:were rejected|did not fit its schema)|no tool has the original name"  # repairs
    r"|was retried after its missing|a check confirmed that"
    r"|^Retry the same call later|^In earlier runs a later retry of the same call succeeded"
    r"|similar calls failed for the same reason|the same call failed|may have ignored|was not called: it failed"
    r"|keeps failing"
    r"|failed the same way \d+ times"
    r"|^In \d+ successful calls\b|^Did you mean\b|same arguments .* before in this run"
)
_SUGGESTED = re.compile(
    r"^(?:Change \S+ from |Rename the argument |Omit |Pass |Set \S+=|Call \S+ instead of |Use a different )"
)
_LEAD = re.compile(r"^(?:In earlier runs this recovered the call|Based on successful calls of this tool): (.*)$")
_COUNT = re.compile(r" \((?:\d+ of \d+ runs|1 run)(?:, for a similar failure)?\)\.?$")
_CONFIDENCE = re.compile(r"\((\d+)% sure\)")
_PARTS: tuple[tuple[ClaimKind, str], ...] = (
    ("tool", r"call (?P<path>[\w.-]+) instead(?: of \S+)?"),
    ("rename", r"rename the argument `(?P<path>[\w.-]+)` to `(?P<value>[\w.-]+)`"),
    ("rename", r"rename (?P<path>[\w.-]+) to (?P<value>[\w.-]+)"),
    ("drop", r"omit (?P<path>[\w.-]+)"),
    ("form", r"(?P<path>[\w.-]+) (?:trimmed|stripped|parsed|wrapped|quoted|in (?:lower|upper) case)\b.*"),
    ("form", r"(?P<path>[\w.-]+) (?:as|without) (?:a|an)? ?(?:list|JSON|object|string|spaces|blanks|whitespace)\b.*"),
    ("form", r"(?P<path>[\w.-]+) as (?:an integer|a number|a boolean)"),
    ("form", r"(?P<path>[\w.-]+) (?:without surrounding spaces|with other quotes or escapes)"),
    ("form", r"only the last part of (?P<path>[\w.-]+)"),
    ("value", r"(?:set )?(?P<path>[\w.-]+)=(?P<value>.*)"),
    ("value", r"pass (?P<path>[\w.-]+) as (?:the number|the string|the boolean|another type) (?P<value>.*)"),
    ("value", r"change (?P<path>[\w.-]+) from .*? to (?P<value>.*)"),
    ("vague", r"(?:use )?a different (?P<path>[\w.-]+)"),
    ("vague", r"different arguments"),
)
_FIRST = re.compile(r"\b(?:after|first|before|then)\b", re.IGNORECASE)


def read_sentence(text: str, tool: str, names: Collection[str], tools: Collection[str]) -> Sentence:
    """Read one sentence about a failed call of `tool`; `names` are its arguments, `tools` all that the program has."""
    words = text.removeprefix("mulligan:").strip()
    share = _CONFIDENCE.search(words)
    confidence = int(share[1]) / 100 if share else 1.0
    if not words or _NEUTRAL.search(words):
        return Sentence(words, (), confidence=confidence)
    is_remembered = _SUGGESTED.match(words) is None
    tool_names = [name for name in tools if re.search(rf"\b{re.escape(name)}\b", words)]
    lead = _LEAD.match(words)
    parts = re.sub(r" \(from the error text\)", "", _COUNT.sub("", lead[1] if lead else words))
    if not is_remembered:
        parts = f"{parts[:1].lower()}{parts[1:]}"
    is_order = bool(tool_names) and _FIRST.search(parts) is not None
    claims = [] if is_order else list(_read_parts(parts, names))
    if is_order:  # calls that come first; the tool itself only where no other is named
        claims = [Claim("first", name) for name in tool_names if name != tool or len(tool_names) == 1]
    return Sentence(words, tuple(claims), bool(claims), is_remembered, confidence)


def _read_parts(words: str, names: Collection[str]) -> Iterator[Claim]:
    pieces = re.split(r"(; |, )", words.rstrip(".").strip())
    part = pieces[0]
    for place in range(1, len(pieces), 2):
        # A separator inside a value is no border: what comes next must itself be a part.
        if _read_claim(pieces[place + 1], names) is None:
            part += pieces[place] + pieces[place + 1]
            continue
        if (claim := _read_claim(part, names)) is not None:
            yield claim
        part = pieces[place + 1]
    if (claim := _read_claim(part, names)) is not None:
        yield claim
    elif match := re.search(rf"\b({'|'.join(map(re.escape, names)) or '(?!)'})(?:=| to |: )(\S+)", part):
        yield Claim("value", match[1], match[2].rstrip(".,;"))


def _read_claim(part: str, names: Collection[str]) -> Claim | None:
    for kind, pattern in _PARTS:
        if match := re.fullmatch(pattern, part.strip()):
            facts = match.groupdict()
            return Claim(kind, facts.get("path") or facts.get("other") or "", facts.get("value"))
    return None


def list_claims(changes: Iterable[Any], first: Iterable[Any], arguments: Arguments | None = None) -> list[Claim]:
    """List the claims of changes and calls as mulligan's records have them; `arguments` are those of the new call."""
    claims = [Claim("first", call.tool) for call in first]
    for change in changes:
        path = change.path.partition(".")[0]
        if change.operation == "rename":
            claims.append(Claim("tool" if change.path == "(tool)" else "rename", change.path, change.after))
        elif change.operation == "drop":
            claims.append(Claim("drop", change.path))
        elif arguments is None and change.operation in ("cast", "trim", "parse", "wrap"):  # as it is learned: no value
            claims.append(Claim("form", path))
        elif isinstance(change.after, str) and change.after.startswith("("):  # a value that is left open
            claims.append(Claim("vague", path))
        else:
            claims.append(Claim("value", path, (arguments or {}).get(path, change.after)))
    return claims


def judge_sentence(sentence: Sentence, arguments: Arguments, cure: Cure | None) -> Verdict:
    """Hold a piece of advice against the truth. One right claim does not make up for a wrong one."""
    if not sentence.is_understood:
        return "unread"
    if not sentence.claims:
        return "neutral"
    if cure is None:
        return "wrong"
    verdicts = [_judge_claim(claim, arguments, cure) for claim in sentence.claims]
    if "wrong" in verdicts:
        return "wrong"
    if "right" not in verdicts:
        return "neutral"
    is_forbidden = sentence.is_remembered and cure.rule in FORBIDDEN_RULES
    return "wrong" if is_forbidden else "right"


def _judge_claim(claim: Claim, arguments: Arguments, cure: Cure) -> Verdict:
    path = claim.path.partition(".")[0]
    match claim.kind:
        case "first":
            return "right" if claim.path in cure.first else "wrong"
        case "rename":
            return "right" if cure.renames.get(path) == claim.value else "wrong"
        case "drop":
            return "right" if path in cure.drops else "wrong"
        case "form":
            return "right" if path in cure.changes and cure.rule == "form" else "wrong"
        case "vague":  # it names the right argument and says nothing, which helps nobody and misleads nobody
            return "neutral" if path in {*cure.changes, *cure.renames, *cure.drops} else "wrong"
        case "value":
            values = list_values(claim.value) if isinstance(claim.value, str) else [claim.value]
            renames = {after: arguments[before] for before, after in cure.renames.items() if before in arguments}
            right = {**renames, **cure.changes}
            if path in right:
                return "right" if any(is_match(right[path], value) for value in values) else "wrong"
            return "neutral" if path in arguments and arguments[path] in values else "wrong"
    return "wrong"


def is_complete(sentence: Sentence, arguments: Arguments, cure: Cure) -> bool:
    """Say whether a piece of advice is right, sure enough to be told, and names all that has to be done."""
    if sentence.confidence < LEAST_CONFIDENCE or judge_sentence(sentence, arguments, cure) != "right":
        return False
    paths = {claim.path.partition(".")[0] for claim in sentence.claims if claim.kind != "vague"}
    names_needed = [{name} for name in (*cure.drops, *cure.first, *(() if cure.is_open else cure.changes))]
    names_needed += [{before, after} for before, after in cure.renames.items()]
    return all(names & paths for names in names_needed)
