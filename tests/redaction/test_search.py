"""Most texts hold nothing, and are let go after a few looks: here every finder is asked, whatever the text holds."""

from __future__ import annotations

import string

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from mulligan.redaction import personal_data
from mulligan.redaction.search import find_in_texts, find_sensitive


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
