"""What may be written down. Every secret here is made up and put together from pieces."""

from __future__ import annotations

import itertools
import json
import re
import string

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mulligan.core.privileged_arguments import is_privileged
from mulligan.redaction import Redactor, personal_data
from mulligan.redaction.redactor import MAX_QUANTITY, QUANTITY_NAMES, find_in_texts, find_sensitive

LETTERS = "q7RtZp2LmXv9KsWc4HnJd8FgYb3TxQe6"


def made(length: int, alphabet: str = LETTERS) -> str:
    """Something that looks drawn by a machine, and is not."""
    return "".join(alphabet[(7 * n + n * n // 5) % len(alphabet)] for n in range(length))


GITHUB = "gh" + "p_" + made(36)
OPENAI = "sk" + "-proj-" + made(48)
PEM = (
    "-----BEGIN RSA PRIVATE "
    + "KEY-----\n"
    + "\n".join(made(64) for _ in range(6))
    + "\n-----END RSA PRIVATE "
    + "KEY-----"
)
JWT = ".".join(("ey" + "JhbGciOiJIUzI1NiJ9", "ey" + "J" + made(30), made(43)))

SECRETS = {
    "a provider's key": (f"Incorrect API key provided: {OPENAI}. See the docs.", OPENAI),
    "a key in an address": (f"fatal: https://x-access-token:{GITHUB}@github.com/acme/app.git", GITHUB),
    "a password in an address": ("postgres://app:tru@d4Dumm#y@db:5432/prod", "tru@d4Dumm#y"),
    "a signed token": (f"401: Authorization: Bearer {JWT}", JWT),
    "a private key": (f"rejected:\n{PEM}\nbye", made(64)),
    "the head of a private key": (PEM.split("-----END")[0], made(64)),
    "the tail of a private key": (PEM.split("KEY-----", 1)[1].lstrip(), made(64)),
    "a header": ("curl -H 'X-Api-Key: " + made(24) + "' https://weather.example.com", made(24)),
    "an assignment": ("export DB_PASSWORD=correcthorse7", "correcthorse7"),
    "a field of JSON": (json.dumps({"user": "ann", "password": "tr0ub4dor"}), "tr0ub4dor"),
    "a field of JSON in JSON": (json.dumps(json.dumps({"client_secret": made(32)})), made(32)),
    "a named value": (json.dumps({"name": "DB_PASSWORD", "value": "s3cretive"}), "s3cretive"),
    "an element": ("<config><password>tr0ub4dor</password></config>", "tr0ub4dor"),
    "a flag": ("deploy --token " + made(30) + " --force", made(30)),
    "a short flag": ("sshpass -p 'tr0ub4dor' ssh web1", "tr0ub4dor"),
    "a code sent to a telephone": ("verification code is 493817", "493817"),
    "a passport": ("passport number X12345678 has expired", "X12345678"),
    "a user of curl": ("curl -u admin:tr0ub4dor https://example.com", "tr0ub4dor"),
    "a query parameter": ("GET /v1?user=1&access_token=" + made(24) + "&page=2", made(24)),
    "a connection string": ("Server=db;Database=x;User Id=sa;Password=tr0ub4dor;", "tr0ub4dor"),
    "a storage key": ("AccountName=x;AccountKey=" + made(80) + "==;EndpointSuffix=y", made(80)),
    "a cookie": ("Set-Cookie: sid=" + made(26) + "; HttpOnly; Path=/", made(26)),
    "a sentence": ("the password for root is tr0ub4dor!9, change it", "tr0ub4dor!9"),
    "basic authentication": ("authorization: Basic YWRtaW46aHVudGVyMjI=", "YWRtaW46aHVudGVyMjI="),
    "a webhook": ("POST https://hooks.slack.com/services/T0" + made(8) + "/B0" + made(8) + "/" + made(24), made(24)),
    "an e-mail address": ("no such user: ann.lee@mail.example.org", "ann.lee@mail.example.org"),
    "a card": ("card 4111 1111 1111 1111 declined", "4111 1111 1111 1111"),
    "an account": ("transfer to DE89 3704 0044 0532 0130 00 failed", "DE89 3704 0044 0532 0130 00"),
    "a telephone number": ("call +44 20 7946 0958 now", "+44 20 7946 0958"),
    "an American telephone number": ("call (415) 555-0132 now", "(415) 555-0132"),
    "a social security number": ("SSN 219-09-4321 not found", "219-09-4321"),
    "a Spanish id": ("DNI 12345678Z", "12345678Z"),
    "an Indian id": ("aadhaar 2345 6789 0124", "2345 6789 0124"),
}  # fmt: skip

EVIDENCE = [
    "This request exceeds the 128k token limit: 130422 tokens > 128000",
    "max_tokens=4096 is more than the model allows",
    "too many tokens: asked for 31000 tokens, room for 16000",
    "parse error: did not expect token ')' in row 12",
    "Incorrect API key provided.",
    "password must be at least 8 characters long",
    "client = Client(api_key=os.environ['WEATHER_API_KEY'])",
    "retrying with password=****** as app",
    "export TOKEN=${GITHUB_TOKEN}",
    "Authorization: Bearer <token>",
    '{"api_key": "your_api_key_here"}',
    '{"type": "string", "format": "password"}',
    "reverted " + "0a1b2c3d4e" * 4 + " on main",
    '{"trace": "00112233-4455-4667-8899-aabbccddeeff"}',
    '{"id": "call_' + made(24) + '", "tool": "weather"}',
    "sha256:" + "9f86d081884c7d65" * 4,
    "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "model claude-sonnet-4-5-20250929 not found",
    "gpt-4.1-mini-2025-04-14 is overloaded",
    "/srv/app/node_modules/.pnpm/left-pad@1.3.0/index.js",
    "example.com/some/module v1.2.3 h1:" + made(43) + "=",
    "at 1712345678901 invoice 3141592653 took 30000 ms",
    "2024-05-01 12:34:56,789 ERROR worker-3 timed out",
    "next_page_token=CAUQAA",
    "arn:aws:iam::210987654321:role/deploy",
    "connect ECONNREFUSED 10.0.0.1:5432",
    "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7",
    "git@github.com:acme/app.git",
    "KeyError: 'primary_key'",
    "s3 key: logs/2024/05/01/a1b2c3.gz",
    "completion_tokens=123 prompt_tokens=456",
    "passed 12 tests, 3 failed in 4.2 s",
    "npm WARN deprecated har-validator@5.1.5",
    "ISBN 978-3-16-148410-0, lat 40.712776",
    "password authentication failed for user \"postgres2\"",
    "tool call toolu_01A09q90qw90lq917835lq9 of msg_01XFDUDYJgAACzvnptvVoYEL",
    "user_id 4111111111111111",
    "my credit card number is 4111-1111-1111-1112",
    "X-Signature: " + made(40),
    "sgp" + "_" + "ab1" * 12 + "cd" * 2,
    "shipping 12345678 items, order 4155552671",
    "foreign key constraint failed: orders_user_id_fkey",
]  # fmt: skip


@pytest.mark.parametrize("told", SECRETS)
def test_a_secret_is_taken_out_of_a_text(told):
    text, secret = SECRETS[told]

    redacted = Redactor().text(text)

    assert secret not in redacted
    assert "[redacted " in redacted


@pytest.mark.parametrize("text", EVIDENCE)
def test_evidence_survives(text):
    assert Redactor().text(text) == text


@pytest.mark.parametrize(
    "key",
    [
        "gh" + "p_" + string.ascii_lowercase + string.digits,
        "sk" + "-proj-" + string.ascii_letters,
        "np" + "m_" + string.digits + string.ascii_lowercase,
        "glp" + "at-" + string.ascii_lowercase,
    ],
)
def test_a_key_made_up_by_counting_is_hidden_where_it_has_all_of_its_form(key):
    assert key[10:] not in Redactor().text(f"use {key} for now")
    assert Redactor().text(f"use {key[:16]} for now") == f"use {key[:16]} for now"


def test_the_words_around_a_secret_survive():
    text = Redactor().text(f"stripe.error: Invalid API Key provided: {GITHUB} (request req_81)")

    assert text == "stripe.error: Invalid API Key provided: [redacted github] (request req_81)"


def test_a_value_whose_name_says_secret_is_hidden_and_the_others_are_kept():
    arguments = {"query": "shoes", "api_key": "abc", "headers": {"Authorization": "Token x1", "Accept": "*/*"}}

    assert Redactor().value(arguments) == {
        "query": "shoes",
        "api_key": "[redacted api_key]",
        "headers": {"Authorization": "[redacted authorization]", "Accept": "*/*"},
    }


def test_everything_inside_a_value_whose_name_says_secret_is_hidden():
    assert Redactor().value({"credentials": ["ab", {"user": "cd"}]}) == {
        "credentials": ["[redacted credentials]", {"user": "[redacted credentials]"}]
    }


def test_a_count_of_tokens_is_not_a_token():
    arguments = {"max_tokens": 4096, "token": 17, "token_count": 5, "next_page_token": "CAUQAA", "tokens": ["a"]}

    assert Redactor().value(arguments) == arguments


def test_a_pin_is_hidden_though_it_is_a_number():
    assert Redactor().record({"pin": 493817}, "wrong pin 493817") == (
        {"pin": "[redacted pin]"},
        "wrong pin [redacted pin]",
    )


def test_a_secret_found_in_one_part_of_a_record_is_removed_from_all():
    arguments, result, message = Redactor().record(
        {"password": "opensesame", "note": "opensesame!"}, ["opensesame"], "login of ann with opensesame failed"
    )

    assert arguments == {"password": "[redacted password]", "note": "[redacted password]!"}
    assert result == ["[redacted password]"]
    assert message == "login of ann with [redacted password] failed"


def test_a_piece_of_a_secret_that_stands_alone_is_removed_too():
    arguments, _ = Redactor().record(
        {"text": "Harbor199", "user": "Harbor", "line": "Harbor199 Street"}, 'password="Harbor199?kx"'
    )

    assert arguments == {"text": "[redacted password]", "user": "Harbor", "line": "Harbor199 Street"}


def test_a_secret_is_also_removed_as_json_and_as_a_url_would_spell_it():
    _, message = Redactor().record({"password": 'a"b c&d'}, r'{"p": "a\"b c&d"} GET /?p=a%22b%20c%26d')

    assert message == '{"p": "[redacted password]"} GET /?p=[redacted password]'


def test_a_word_that_is_also_a_password_stays_the_name_of_an_argument():
    redacted, _ = Redactor().record({"password": "query", "query": "shoes"}, "x")

    assert redacted == {"password": "[redacted password]", "query": "shoes"}


def test_a_secret_that_is_a_key_is_hidden_and_no_value_is_lost():
    redacted = Redactor().value({"ann@example.org": 1, "bob@example.org": 2})

    assert list(redacted.values()) == [1, 2]
    assert not any("@" in key for key in redacted)


def test_on_a_shared_store_an_argument_that_is_not_on_the_allowlist_is_kept_as_type_length_and_hash():
    redactor = Redactor(level="shared", unredacted_arguments=["query"], key=b"tenant")

    redacted = redactor.value({"query": "shoes", "city": "Bern", "limit": 5, "all": True, "none": None})

    assert redacted["query"] == "shoes"
    assert redacted["city"].startswith("[str 4 chars #")
    assert redacted["limit"].startswith("[int #")
    assert (redacted["all"], redacted["none"]) == (True, None)


NUMBERS = st.integers() | st.floats() | st.booleans()


@given(st.sampled_from(["per_page", "pageSize", "limit", "top-k", "timeout"]), NUMBERS | st.text())
def test_a_store_of_several_users_keeps_of_a_quantity_a_small_number_and_nothing_else(name, value):
    redacted = Redactor(level="shared", keeps_quantities=True).value({name: value})[name]

    if isinstance(value, bool) or (not isinstance(value, str) and 0 <= value <= MAX_QUANTITY):
        assert redacted == value
    else:
        assert re.fullmatch(r"\[(str \d+ chars|int|float)\]", redacted)


@given(
    st.text(min_size=1).filter(lambda name: name.casefold().replace("_", "").replace("-", "") not in QUANTITY_NAMES),
    NUMBERS,
)
def test_a_number_under_any_other_name_is_hidden_also_where_quantities_are_kept(name, number):
    redactor = Redactor(level="shared", keeps_quantities=True)

    for arguments in ({name: number}, {"account": {"limit": number}}, {"limit": [number]}, {"limit": {name: number}}):
        assert redactor.value(arguments) == Redactor(level="shared").value(arguments)


def test_no_name_of_a_quantity_is_privileged_or_means_a_secret():
    names = "limit per_page page_size batch_size chunk_size top_k top_n max_results num_results max_items max_tokens"
    names += " max_retries max_depth timeout timeout_seconds timeout_ms"

    assert {name.replace("_", "") for name in names.split()} == QUANTITY_NAMES
    assert not any(is_privileged(name) or Redactor().secret_kind_of_name(name) for name in names.split())


@pytest.mark.parametrize("level", ["local", "shared"])
def test_a_quantity_that_is_declared_secret_stays_secret(level):
    redactor = Redactor(level=level, keeps_quantities=True, names=["limit"])

    assert "5000" not in str(redactor.record({"limit": 5000}, "the limit is limit: 5000"))


def test_equal_hidden_values_of_one_tenant_can_be_compared_and_those_of_two_cannot():
    one, other = Redactor(level="shared", key=b"one"), Redactor(level="shared", key=b"other")

    assert one.value({"a": "Bern"})["a"] == one.value({"b": "Bern"})["b"]
    assert one.value({"a": "Bern"}) != other.value({"a": "Bern"})


def test_without_a_key_a_hidden_value_leaves_no_hash():
    assert Redactor(level="shared").value({"city": "Bern"}) == {"city": "[str 4 chars]"}


def test_detection_goes_on_inside_a_listed_value():
    redactor = Redactor(level="shared", unredacted_arguments=["query"])

    assert redactor.value({"query": f"use {GITHUB}"}) == {"query": "use [redacted github]"}


def test_free_text_goes_by_detection_on_a_shared_store_too():
    assert Redactor(level="shared").text("exceeds the 128k token limit") == "exceeds the 128k token limit"


def test_users_add_names():
    redactor = Redactor(names=["Parking Spot"])

    assert redactor.value({"parking_spot": "B12", "parkingSpot": "ok"})["parking_spot"] == "[redacted parking_spot]"
    assert redactor.text("parking-spot: B12") == "parking-spot: [redacted parking_spot]"


def test_users_add_patterns_and_the_first_group_is_what_goes():
    assert Redactor(patterns=[r"EMP-\d{6}"]).text("see EMP-123456") == "see [redacted pattern]"
    assert Redactor(patterns=[r"badge (\d{6})"]).text("badge 123456") == "badge [redacted pattern]"


def test_users_allow_what_is_no_secret_of_theirs():
    redactor = Redactor(allowed=[r".*@example\.org", "dev-key"])

    assert redactor.text("ann@example.org, bob@example.com") == "ann@example.org, [redacted email]"
    assert redactor.value({"api_key": "dev-key"}) == {"api_key": "dev-key"}


@pytest.mark.parametrize("pattern", ["(", "(a+)+$", "(?:a*b*)*c", "(a|b+)*", "x" * 2001])
def test_a_pattern_that_cannot_be_used_on_strangers_text_is_refused_with_a_sentence(pattern):
    with pytest.raises(ValueError, match=r"\.$"):
        Redactor(patterns=[pattern])


@pytest.mark.parametrize(
    ("pattern", "found"),
    [(r"(a{1,20})+", "aaa"), (r"(?:a++)+", "aaa"), (r"(?>a+)+", "aaa"), (r"\d+-\d+", "12-34"), (r"(?:ab|c)*", "abc")],
)
def test_a_pattern_that_cannot_run_away_is_taken(pattern, found):
    assert Redactor(patterns=[pattern]).text(f"so {found} it is") == "so [redacted pattern] it is"


def test_a_level_that_is_none_is_refused():
    with pytest.raises(ValueError, match="local"):
        Redactor(level="public")  # type: ignore[arg-type]


def test_a_redactor_does_not_change():
    with pytest.raises(AttributeError):
        Redactor().level = "shared"  # type: ignore[misc]


def test_of_a_long_text_the_ends_are_kept_and_the_cut_is_said():
    redacted = Redactor().text("head " + "word " * 100_000 + f"{GITHUB} tail")

    assert redacted.startswith("head word")
    assert redacted.endswith("[redacted github] tail")
    assert "characters cut" in redacted
    assert len(redacted) <= 10_240


@pytest.mark.parametrize("before", range(8000, 8200, 7))
def test_a_secret_that_lies_across_the_cut_leaves_no_piece(before):
    redacted = Redactor().text("w " * (before // 2) + GITHUB + " w" * 50_000)

    assert not any(GITHUB[place : place + 8] in redacted for place in range(len(GITHUB) - 8))


def test_findings_say_what_and_where_and_never_overlap():
    text = f"Authorization: Bearer {JWT} and ann@example.org"

    found = Redactor().findings(text)

    assert all(end <= start for (_, _, end), (_, start, _) in itertools.pairwise(found))
    kind, start, end = found[-1]
    assert (kind, text[start:end]) == ("email", "ann@example.org")


# Properties. Texts are drawn from pieces that matter, because random characters never make a secret.
PIECES = st.sampled_from(
    [
        *(text for text, _ in SECRETS.values()),
        *EVIDENCE,
        *(
            "password=",
            '"token": "',
            "Bearer ",
            "://a:b@",
            "[redacted email]",
            "\n",
            " ",
            '"',
            "\\n",
            "@",
            "é",
            "\ud800",
            "=",
        ),
    ]
)
TEXTS = st.lists(st.one_of(PIECES, st.text(max_size=12)), max_size=8).map("".join)
PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(st.sampled_from(["password", "query", "token"]), st.text(max_size=8)), inner, max_size=4
        ),
    ),
    max_leaves=12,
)


@given(TEXTS, st.sampled_from(["local", "shared"]))
@example(f"verification code is 493817{PEM}", "local")
@example(f"no such user: ann.lee@mail.example.org{PEM}", "shared")
@example("export DB_PASSWORD=correcthorse7user_id 4111111111111111", "local")
def test_redacting_twice_is_redacting_once(text, level):
    redactor = Redactor(level=level)
    once = redactor.text(text)

    assert redactor.text(once) == once


@given(PLAIN, st.sampled_from(["local", "shared"]))
def test_structure_is_kept(value, level):
    assert _shape(Redactor(level=level).value(value)) == _shape(value)


@given(PLAIN)
def test_any_plain_value_can_be_redacted_and_encoded(value):
    msgspec.json.encode(Redactor().value(value))


@given(st.text(string.ascii_letters + string.digits + "!#$-_", min_size=8, max_size=30), TEXTS, TEXTS)
def test_a_found_value_is_gone_from_the_whole_record(secret, before, after):
    secret = "Zq" + secret
    parts = Redactor().record(
        {"password": secret, "note": before + secret + after}, [secret], f"{before} {secret} {after}"
    )

    assert secret not in json.dumps(parts)


def _shape(value: object) -> object:
    if isinstance(value, dict):
        return [_shape(inner) for inner in value.values()]
    if isinstance(value, list):
        return tuple(_shape(inner) for inner in value)
    return None


# Most texts hold nothing, and are let go after a few looks: here every finder is asked, whatever the text holds.


class Open(str):
    """A text that says yes to every look, so that no finder is left out."""

    __slots__ = ()

    def __contains__(self, part: object) -> bool:
        return True

    def lower(self) -> Open:
        return Open(super().lower())


def found_by_all(text: str) -> set[tuple[str, int, int]]:
    found = find_sensitive(Open(text))
    raw = text.encode("ascii", "replace")
    personal_data.find_numbers(text, " " + raw.translate(personal_data.NUMBER_MARKS).decode(), found)
    personal_data.find_lettered(text, raw, found)
    return set(found)


HINTS = """password= pwd: secret token key api_key= Bearer basic -u -p --token mysql docker otp pin code verification
variable "x_key" {default=" BUNDLE_A: :5432:a:b: :*: :thin: </a> > ghp_ sk- Q~ -us12 _mmk .atlasv1. hooks.slack.com/
https:// @ @x.org # -----BEGIN 555-123-4567 078-05-1120 X1234567L GB82 WEST DE89 AB12 +44 20 passcode identified by
credentials: accesskey= tokens= is was""".split()
PIECE = (
    st.sampled_from(HINTS)
    | st.text(string.ascii_letters + string.digits + "-_.~", min_size=1, max_size=45)
    | st.from_regex(r"[A-Z]{2}[0-9]{6}[A-Z]?|[0-9]{3}[- .][0-9]{2,3}[- .][0-9]{4}", fullmatch=True)
    | st.text(max_size=4)
)
TEXTS = st.lists(st.tuples(PIECE, st.sampled_from(["", " ", "=", ": ", "\t", "\n", '"'])), max_size=8).map(
    lambda pieces: "".join(piece + between for piece, between in pieces)[:158]
)


@settings(max_examples=400)
@given(TEXTS)
def test_a_quick_look_leaves_out_no_finder_that_would_find_something(text: str) -> None:
    assert set(find_sensitive(text)) == found_by_all(text)


@settings(max_examples=300)
@given(st.lists(TEXTS, max_size=6))
def test_texts_searched_together_have_the_findings_of_each(texts: list[str]) -> None:
    assert find_in_texts(texts) == {text: found for text in texts if (found := find_sensitive(text))}


@pytest.mark.parametrize(
    "texts",
    [
        ["my card", "tax id 123456789012"],
        ["see https://x", ":ann@corp.org"],
        ['variable "x_token" {', "db:5432:shop:ann:Open5esame", 'default = "aaaa"'],
        ["-----BEGIN PRIVATE KEY-----" + "a" * 41, "-----END PRIVATE KEY-----"],
        ["order", "4111111111111111"],
        ["next_page_", "token is Zk39sLq02mXv81Tb"],
        ["Cookie: a=b", "sid=Zk39sLq02mXv81Tb; token=Zk39sLq02mXv81Tb"],
        ["password:", "Open5esame"],
    ],
)
def test_a_text_does_not_change_the_findings_of_its_neighbors(texts: list[str]) -> None:
    for order in (texts, texts[::-1]):
        assert find_in_texts(order) == {text: found for text in order if (found := find_sensitive(text))}


def test_many_texts_are_searched_in_groups() -> None:
    texts = [f"text {number} " + "word " * 300 for number in range(40)] + ["a bearer\tZk39sLq02mXv81Tb"]
    assert list(find_in_texts(texts)) == texts[-1:]
    assert find_in_texts([]) == {}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("tokens=Zk39sLq02mXv81Tb", "token"),
        ("mysql\t-pOpen5esame", "password"),
        ("db.example.org:5432:shop:ann:Open5esame", "password"),
        ("db.example.org:*:shop:ann:Open5esame", "password"),
        ("jdbc:oracle:thin:scott/Tiger7x@db", "password"),
        ('variable "db_password" {default = "Open5esame"}', "password"),
        ("<password>Open5esame</password>", "password"),
        ("pin#4711", "pin"),
        ("pwd Open5esame", "pwd"),
        ("--user=ann:Open5esame", "password"),
        ("identified by Open5esame", "password"),
        ("bearer\tZk39sLq02mXv81Tb", "bearer"),
        ("BUNDLE_GEMS__EXAMPLE=ann:Open5esame", "password"),
        ("the verification code 471199", "code"),
        ("https://ann:Open5esame@db.example.org", "url_credential"),
        ("\u00e9 call +44 20 7946 0958", "phone"),
        ("XYABC1234D ABCPE1234F", "national_id"),
    ],
)
def test_what_one_look_alone_lets_through_is_found(text: str, kind: str) -> None:
    assert kind in {found for found, _, _ in find_sensitive(text)}
