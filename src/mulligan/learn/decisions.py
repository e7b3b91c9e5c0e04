"""Decisions of people: learned changes and prerequisites that models do not read and memory does not execute.

A person decides whether a check is skipped, who may see something, and what is paid, removed or undone. That earlier
users decided so says nothing about this one. A wrong alarm only silences a fix, so doubt counts as a decision.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache

from mulligan.core.privileged_arguments import split_words
from mulligan.core.quantity_arguments import is_number
from mulligan.core.records import HIDDEN_VALUE, RUN_SPECIFIC, Change, Effects
from mulligan.redaction.regex import LazyRegex

CHECK_OFF = "switches a check off"
CONSENT_ON = "switches consent on"
WIDER_ACCESS = "widens access or an audience"
MORE_MONEY = "spends money"
UNKNOWN_SWITCH = "switches something on or off in a tool that acts"
DECISIVE_PREREQUISITE = "needs a call that undoes, grants, removes, pays or restores: {}"

MAX_READ_CHARS = 200
"""Characters of a name or value that are read."""
CACHED_NAMES = 256
MAX_TEXT_CHARS = 1000
"""Characters of a description that are read."""

FORM_OPERATIONS = frozenset({"cast", "rename", "parse", "wrap", "trim"})
"""Operations that keep the value."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_READING_VERBS = _words(
    "get list read fetch search find query show describe view lookup look count check compare convert translate "
    "summarize render calculate compute estimate preview parse load scan track geocode resolve browse download export "
    "inspect analyze explain complete plan recommend suggest forecast detect extract lint format head tail cat ls grep "
    "glob display poll wait validate monitor resize embed ask transcode encode decode "
    "draw plot crop"
)
"""Verbs of tools that change nothing for others, or only what they return."""
_NEGATIONS = _words(
    "skip ignore no not bypass disable disabled without omit suppress waive override exclude exempt drop allow"
)
"""Words before the name of a check: the check is off if the switch is on."""
_CONSENTS = _words(
    "force forced confirm confirmed confirmation accept accepted acknowledge acknowledged agree agreed agreement allow "
    "allowed approve approved approval authorize authorized consent consented opt optin overwrite replace clobber "
    "override bypass skip ignore waive unsafe insecure dangerous dangerously trust trusted privileged sudo admin root "
    "elevated escalate purge permanent permanently irreversible hard destroy delete remove prune cascade exist exists "
    "disable disabled permit grant unlock unrestricted unlimited public publicly everyone anonymous external share "
    "shared "
    "notify auto autoapprove autoconfirm yes proceed anyway final finalize immediate immediately waiver surcharge pay "
    "charge purchase upgrade premium paid offlabel outside break emergency ok "
    "untrusted reveal expose"
)
"""Words of switches that consent to something when on."""
_CHECKS = _words(
    "verify verified verification check checks checked validate validation validated safe safety strict dry dryrun "
    "require required requires sandbox sandboxed tls ssl https secure security encrypt encrypted encryption protect "
    "protected protection redact redacted anonymize anonymized anonymous pseudonymize mask masked scan review reviewed "
    "approval approve confirm confirmation canary paper simulate simulation simulated test preview readonly respect "
    "enforce enforced guard guardrail guardrails moderation moderate filter lock locked audit audited signature "
    "signed notify warn warning warnings consent limit limited restrict restricted private internal double "
    "screening inspect inspection quarantine cooldown reversible refundable insurance insured hold escrow ask prompt "
    "interactive authenticate authenticated authentication auth mfa block blocked prevent "
    "deny expected etag match precondition"
)
"""Words of switches that protect something when on."""
_SWITCH_WORDS = _CONSENTS | _CHECKS
_SENSITIVE = _words(
    "identifier identifiers private personal pii sensitive hidden confidential secret secrets deleted names salary "
    "salaries internal identity raw unredacted restricted drafts"
)
"""Contents that `include_*` of a tool that reads must not reveal."""
_PREPARING_VERBS = _words(
    "create add insert login log authenticate connect open start init initialize select use set switch focus navigate "
    "goto go scroll click type prepare mkdir make register upload save write append begin enter join fill hover press "
    "refresh reload sync build compile install configure mount attach wake warm checkout cd import call signin setup "
    "run define declare collect mark update edit put post fix activate enable index stage commit pull clone verify"
)
"""Verbs of prerequisites that prepare a call."""
_INCLUSIONS = _words("include with show reveal return")
_PLAIN_WORDS = _words(
    "pretty header headers fresh cache cached refresh reload stream streaming verbose compact async background case "
    "whitespace blank blanks spaces regex fuzzy json html markdown utc debug quiet color colour colors sorted sort "
    "reverse ascending descending metric imperial inline transparent thumbnail thumbnails grayscale landscape portrait "
    "duplex multiline gzip compress compressed redirect redirects null nulls nan na accents punctuation timestamps "
    "timestamp newline newlines bom ocr js labels captions subtitles lowercase uppercase index exact rounded comments "
    "language download"
)
"""Words of switches that concern only form or speed."""
_PLAIN_NAMES = _PLAIN_WORDS | _words(
    "use with force ignore skip no enable allow include show is as the follow keep add"
)
"""Words of which a name consists that concerns only form or speed: `ignore_case`, `skip_header`."""
_ACCESS_NOUNS = _words(
    "environment env branch audience visibility access role roles permission permissions scope scopes acl cidr "
    "recipient recipients segment privilege privileges sharing share stage exposure grant grants seat "
    "origin origins allowlist whitelist reach privacy firewall ingress viewers readers members everyone visible "
    "viewable readable editable distribution principal license licence"
)
"""Nouns of arguments that say who may see or do something, or where something takes effect."""
_MONEY_NOUNS = _words(
    "price fare cost costs budget amount fee fees surcharge tip bid bids spend spending payment pay deposit bonus "
    "donation credit discount refund salary stake premium compensation"
)
_NUMERIC_CHECKS = _CHECKS - {"limit", "limited", "test", "match", "filter", "preview"}
_SIZE_WORDS = _words(
    "result results token tokens word words length char chars characters width height size row rows item items page "
    "pages retry retries attempts offset index depth zoom margin padding decimals digits quality level"
)
"""Words of numbers that limit only the form or the length of something."""
_LOWER_BOUNDS = _words("min minimum")
_UPPER_BOUNDS = _words("max maximum limit cap ceiling ratio threshold tolerance fuzz")
_GUARDED_NOUNS = _words(
    "access role roles permission permissions privilege privileges acl policy policies quota limit limits budget "
    "payment "
    "consent firewall protection"
)
"""Nouns of prerequisites that change who may do how much."""
_OFF_VALUES = _words("off none no false disabled disable never skip skipped 0 optional permissive unsafe warn ignore")
_ON_VALUES = _words("on yes true enabled force forced always y accept accepted agree agreed confirmed")
_LADDERS: tuple[Mapping[str, int], ...] = tuple(
    {word: level for level, words in enumerate(levels) for word in words.split()}
    for levels in (
        (
            "private self me myself personal test beta pilot draft secret",
            "team group internal department shared members family friends project",
            "organization organisation org company workspace domain tenant customers users subscribers",
            "public everyone everybody anyone anybody all world global external internet any open",
        ),
        (
            "none guest",
            "read reader viewer view ro readonly observer visitor student basic",
            "comment commenter triage reply",
            "write writer edit editor contributor member rw readwrite modify standard author collaborator",
            "maintain maintainer manager manage moderator power operator",
            "admin administrator owner root superuser full superadmin master god all",
        ),
        (
            "dev development local sandbox test testing demo mock simulator paper simulation",
            "staging stage qa preprod uat preview canary",
            "prod production live real main master",
        ),
        (
            "draft preview simulate dry proposal tentative quote",
            "pending review submitted hold reserved",
            "final published publish release released approved signed live confirmed public binding firm",
        ),
        (
            "strict always required enforce enforced block reject deny fail error raise abort ask",
            "moderate warn",
            "lenient relaxed loose permissive",
            "off none disabled never skip ignore allow optional replace overwrite force truncate",
        ),
    )
)
"""Words for audiences, roles, environments, finality and strictness, from the careful to the far-reaching."""
_STRICTNESS = _LADDERS[-1]
DECISIVE_VERBS = _words(
    "delete remove drop cancel revoke undo reset rollback revert restore grant allow approve authorize pay charge "
    "purchase buy refund transfer unlock unprotect unblock unban disable deactivate kill terminate purge wipe clear "
    "erase destroy truncate uninstall overwrite force override bypass skip sign accept agree confirm consent waive "
    "share invite promote elevate escalate sudo publish unpublish subscribe unsubscribe upgrade withdraw order hire "
    "fire dismiss discard release reopen evict eject detach archive close abort stop shutdown merge donate tip topup "
    "recharge deposit impersonate assume whitelist allowlist empty free prune suspend "
    "trash unlink rm rmdir forget forgive downgrade reinstate recover resurrect rescind void annul replace decline "
    "reject increase raise extend lift relax lower reduce"
)
"""Verbs of prerequisites that a person decides on."""
_DECISIVE_WORDS = DECISIVE_VERBS | _GUARDED_NOUNS | _MONEY_NOUNS

_CONSENT_TEXT = LazyRegex(
    r"\b(?:forc(?:e|es|ed|ing)\b|skip|ignor|overrid|overwrit|bypass|without (?:\w{1,12} )?(?:check|approv|ask|confirm|"
    r"review|valid|verif|warn)|even (?:if|though|when)|consent|confirm|agree|accept|acknowledg|approv|irrevers|"
    r"permanent|cannot be undone|charge|fee\b|fees\b|surcharge|delet|remov|eras|replac|public|everyone|third part|"
    r"dangerous|unsafe|despite|regardless|anyway|waive|on (?:his|her|their|your|the user's) (?:own )?(?:risk|behalf))"
)
_CHECK_TEXT = LazyRegex(
    r"\b(?:verif|check|validat|protect|safe|requir|review|approv|confirm|encrypt|secur|redact|anonym|dry run|simulat|"
    r"sandbox|guard|warn|ask)"
)
_ACCESS_TEXT = LazyRegex(
    r"\b(?:who (?:can|may|will|is|has)|visib|audience|permission|access|privilege|shared? with|role|recipient|"
    r"environment)"
)
_WORLD_RANGE = LazyRegex(r"(?:0\.0\.0\.0/0|::/0|\*|0?[67][67][67]|a?\+?rwx)\Z")
"""Values that stand for every address, everything, or rights for all."""


def find_decision(
    tool: str,
    changes: Sequence[Change] = (),
    prerequisites: Mapping[str, Effects | None] | None = None,
    *,
    description: str = "",
    argument_texts: Mapping[str, str] | None = None,
    destructive_tools: Collection[str] = (),
) -> str:
    """Return why a learned change or prerequisite is a decision of a person, or an empty text.

    `prerequisites` are the names of the tools with their declared effects, `argument_texts` the descriptions in the
    schema by path, `destructive_tools` the names that carry the annotation `destructiveHint`.
    """
    for name, effects in (prerequisites or {}).items():
        if name in destructive_tools or _is_decisive(name, effects):
            return DECISIVE_PREREQUISITE.format(name[:MAX_READ_CHARS])
    acts = tool in destructive_tools or not _is_reading(tool, description)
    texts = argument_texts or {}
    for change in changes:
        if change.operation not in FORM_OPERATIONS:
            text = texts.get(change.path, "")[:MAX_TEXT_CHARS].lower()
            reason = _judge_change(change, acts, text, is_looked_up=bool(prerequisites))
            if reason:
                return reason
    return ""


def _judge_change(change: Change, acts: bool, text: str, *, is_looked_up: bool) -> str:
    """Return why one change is a decision, or an empty text. A value is looked up if another tool returned it."""
    words = _split_path(change.path[-MAX_READ_CHARS:])
    before, after = change.before, change.after
    if isinstance(after, str) and after in (HIDDEN_VALUE, RUN_SPECIFIC):
        # What a tool returned is information, such as the current etag: no check is switched off with it.
        switch_words = _CONSENTS if is_looked_up else _SWITCH_WORDS
        is_switch = not words.isdisjoint(switch_words) and words.isdisjoint(_PLAIN_WORDS)
        return UNKNOWN_SWITCH if is_switch and acts else ""
    if after is None:
        if before is None or _read_switch(before, words) is None:
            return CHECK_OFF if acts and not words.isdisjoint(_CHECKS) else ""
        after = False
    switch = _read_switch(after, words)
    if switch is not None and _read_switch(before, words) is not switch:
        return _judge_switch(words, switch, acts, text)
    if is_number(before) and is_number(after):
        return _judge_number(words, before, after, acts)
    return _judge_word(words, before, after, acts, text)


def _judge_switch(words: frozenset[str], is_on: bool, acts: bool, text: str) -> str:
    """Return why switching an argument on or off is a decision, or an empty text."""
    concerns_form = words <= _PLAIN_NAMES if acts else words.isdisjoint(_ACCESS_NOUNS)
    if concerns_form and not words.isdisjoint(_PLAIN_WORDS):
        return ""
    is_negated = not words.isdisjoint(_NEGATIONS)
    is_check = not words.isdisjoint(_CHECKS)
    if is_on:
        if is_negated and is_check:
            return CHECK_OFF
        if not words.isdisjoint(_CONSENTS if acts else _CONSENTS - _CHECKS):
            return CONSENT_ON
        if not words.isdisjoint(_MONEY_NOUNS):
            return MORE_MONEY
        if not words.isdisjoint(_INCLUSIONS) and not words.isdisjoint(_SENSITIVE):
            return WIDER_ACCESS
        if not words.isdisjoint(_GUARDED_NOUNS) and not is_check:
            return WIDER_ACCESS
        if _CONSENT_TEXT.search(text):
            return CONSENT_ON
        return UNKNOWN_SWITCH if acts and not is_check else ""
    if is_negated and "notify" not in words:
        return ""
    if is_check or {"read", "only"} <= words or _CHECK_TEXT.search(text):
        return CHECK_OFF
    return UNKNOWN_SWITCH if acts and words.isdisjoint(_CONSENTS) else ""


def _judge_number(words: frozenset[str], before: float, after: float, acts: bool) -> str:
    """Return why another number is a decision, or an empty text."""
    if acts and after > before and not words.isdisjoint(_MONEY_NOUNS):
        return MORE_MONEY
    if after < before and not words.isdisjoint(_NUMERIC_CHECKS):
        return CHECK_OFF
    if not acts or not words.isdisjoint(_SIZE_WORDS):
        return ""
    is_lower_bound, is_upper_bound = not words.isdisjoint(_LOWER_BOUNDS), not words.isdisjoint(_UPPER_BOUNDS)
    is_relaxed = (after < before and is_lower_bound) or (after > before and is_upper_bound) or after == 0 < before
    return CHECK_OFF if is_relaxed else ""


def _judge_word(words: frozenset[str], before: object, after: object, acts: bool, text: str) -> str:
    """Return why another word, or another list of words, is a decision, or an empty text."""
    old, new = _read_values(before), _read_values(after)
    if not new or _is_same_form(old, new):
        return ""
    is_access = not words.isdisjoint(_ACCESS_NOUNS) or bool(_ACCESS_TEXT.search(text))
    if not (acts or is_access):
        return CHECK_OFF if not words.isdisjoint(_CHECKS) and not _join_words(new).isdisjoint(_OFF_VALUES) else ""
    if any(_WORLD_RANGE.match(value) for value in new):
        return WIDER_ACCESS
    old_words, new_words = _join_words(old), _join_words(new)
    is_narrower = False
    for ladder in _LADDERS:
        old_level = max((ladder[word] for word in old_words if word in ladder), default=None)
        new_level = max((ladder[word] for word in new_words if word in ladder), default=None)
        if new_level is None or (old_level is None and old):
            continue
        if new_level > (0 if old_level is None else old_level):
            return CHECK_OFF if ladder is _STRICTNESS else WIDER_ACCESS
        is_narrower = True
    if is_narrower:
        return ""
    if not words.isdisjoint(_MONEY_NOUNS) and old:
        return MORE_MONEY
    is_careful = any(ladder.get(word) == 0 for ladder in _LADDERS[:-1] for word in old_words)
    return WIDER_ACCESS if acts and (is_access or is_careful) and old else ""


def _is_decisive(name: str, effects: Effects | None) -> bool:
    """Return whether a tool undoes, grants, removes, pays or restores.

    Declared effects do not excuse such a word. Without them, a verb that is not known to be harmless is decisive.
    """
    words = _split_name(name[:MAX_READ_CHARS])
    if _READING_VERBS.isdisjoint(words[:1]) and words[:2] != ("sign", "in"):
        is_harmless = effects in ("none", "idempotent") or not _PREPARING_VERBS.isdisjoint(words)
        return not is_harmless or not _DECISIVE_WORDS.isdisjoint(words)
    return False


def _is_reading(tool: str, description: str) -> bool:
    """Return whether a tool only reads or computes: by a verb of its name, else by the start of its description."""
    words = _split_name(tool[:MAX_READ_CHARS])
    if not words or not DECISIVE_VERBS.isdisjoint(words[:1]):
        return False
    if words[0] in _READING_VERBS or words[-1] in _READING_VERBS:
        return True
    verb = description[:MAX_READ_CHARS].strip().partition(" ")[0].lower()
    return (
        verb in _READING_VERBS or verb.removesuffix("s") in _READING_VERBS or verb in ("returns", "return", "searches")
    )


@lru_cache(maxsize=CACHED_NAMES)
def _split_name(name: str) -> tuple[str, ...]:
    return tuple(word.casefold() for word in split_words(name))


@lru_cache(maxsize=CACHED_NAMES)
def _split_path(path: str) -> frozenset[str]:
    """Return the words of a path. `unmask` and `insecure` are the negation of a check."""
    words = set(_split_name(path))
    for word in tuple(words):
        if word[:2] in ("un", "in") and word[2:] in _CHECKS:
            words |= {"no", word[2:]}
    return frozenset(words)


def _read_switch(value: object, words: frozenset[str]) -> bool | None:
    """Return a value as on or off, or None if it is neither. Words count for arguments that are named as switches."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and not words.isdisjoint(_SWITCH_WORDS) and len(value) <= MAX_READ_CHARS:
        word = value.strip().casefold()
        return False if word in _OFF_VALUES else True if word in _ON_VALUES else None
    return None


def _read_values(value: object) -> frozenset[str]:
    """Return a word, or the words of a list. Empty for other values and for long texts."""
    values = value[:20] if isinstance(value, list | tuple) else (value,)
    return frozenset(
        item.strip()
        for item in values
        if isinstance(item, str) and len(item) <= MAX_READ_CHARS and item.count(" ") <= 3
    )


def _join_words(values: Iterable[str]) -> frozenset[str]:
    return frozenset(word.casefold() for value in values for word in (value, *split_words(value)))


def _is_same_form(old: frozenset[str], new: frozenset[str]) -> bool:
    """Return whether one word is the other in another form, or an abbreviation of it."""
    if len(old) != 1 or len(new) != 1:
        return old == new
    short, long = sorted((_strip(*old), _strip(*new)), key=len)
    if not short:
        return False
    letters = iter(long)
    return short[0] == long[0] and all(letter in letters for letter in short)


def _strip(value: str) -> str:
    return "".join(letter for letter in value.casefold() if letter.isalnum())
