"""Which values are another form of a value, and which are another value."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.form_functions import MAX_TEXT_CHARS
from mulligan.core.transformations import (
    apply_transformation,
    describe_transformation,
    find_transformations,
    keeps_identity,
)

FORM_PAIRS = [
    # identifiers
    ("us", "US"),
    (" AAPL ", "AAPL"),
    ("DE89 3704 0044 0532 0130 00", "DE89370400440532013000"),
    ("978-3-16-148410-0", "9783161484100"),
    ("123.456.789-09", "12345678909"),
    ("#1042", "1042"),
    ("#1042", 1042),
    ("1042", "INV-1042"),
    (1042, "INV-1042"),
    ("INV-1042", "1042"),
    ("INV-7", "INV-0007"),
    ("PROJ123", "PROJ-123"),
    ("42", "000042"),
    ("0042", "42"),
    ("CVE 2024 1234", "CVE-2024-1234"),
    ("{8c1f3b1e-58a2-4f0e-9f57-0d3d6e3a2b11}", "8c1f3b1e-58a2-4f0e-9f57-0d3d6e3a2b11"),
    ("8c1f3b1e-58a2-4f0e-9f57-0d3d6e3a2b11", "8c1f3b1e58a24f0e9f570d3d6e3a2b11"),
    ("00:1A:2B:3C:4D:5E", "00-1a-2b-3c-4d-5e"),
    ("EUR/USD", "EURUSD"),
    ("BTCUSDT", "BTC-USDT"),
    ("+1 (415) 555-2671", "+14155552671"),
    ("4155552671", "+14155552671"),
    ("4155552671", "415-555-2671"),
    ("arn:aws:s3:::my-bucket", "my-bucket"),
    ("sha256:9f86d081", "9f86d081"),
    ("v1.2.3", "1.2.3"),
    ("ff5733", "#FF5733"),
    # names and words
    ("@octocat", "octocat"),
    ("general", "#general"),
    ("customerName", "customer_name"),
    ("created_at", "createdAt"),
    ("due date", "due_date"),
    ("In Progress", "IN_PROGRESS"),
    ("in-progress", "in_progress"),
    ("São Paulo", "Sao Paulo"),
    ("How to Cook Rice", "how-to-cook-rice"),
    ('"quarterly report"', "quarterly report"),
    ("en_US", "en-US"),
    ("en-us", "en-US"),
    ("en-US", "en"),
    ("main", "refs/heads/main"),
    ("origin/main", "main"),
    # addresses and files
    ("https://github.com/psf/requests", "psf/requests"),
    ("https://example.com/about", "example.com"),
    ("https://www.youtube.com/watch?v=dQw4w9WgXcQ", "dQw4w9WgXcQ"),
    ("https://docs.google.com/document/d/1AbC/edit", "1AbC"),
    ("example.com", "https://example.com"),
    ("customers/123", "123"),
    ("/api/v1/users/", "/api/v1/users"),
    ("s3://my-bucket/key.txt", "key.txt"),
    ("photo.jpg", "photo"),
    ("report", "report.pdf"),
    # dates, times and durations
    ("03/05/2026", "2026-03-05"),
    ("March 5, 2026", "2026-03-05"),
    ("5 Mar 2026", "2026-03-05"),
    ("2026-3-5", "2026-03-05"),
    ("2026-03-05", "20260305"),
    ("2026-03-05", "2026-03-05T00:00:00Z"),
    ("2026-03-05 14:30", "2026-03-05T14:30:00Z"),
    ("2026-03-05T14:30:00Z", "2026-03-05"),
    (1772720000, "2026-03-05T14:13:20Z"),
    ("2026-03-05T14:13:20Z", 1772720000),
    ("Mar 2026", "2026-03"),
    ("2:30 PM", "14:30"),
    ("14:30", "14:30:00"),
    ("90 min", "PT90M"),
    (90, "PT90M"),
    ("1h30", "01:30"),
    ("1 hour 30 minutes", "PT1H30M"),
    ("1:30:00", 5400),
    ("5 minutes", "5m"),
    # numbers
    ("1,234.50", 1234.5),
    ("1.234,50", 1234.5),
    ("49,99", "49.99"),
    ("$49.99", 49.99),
    (49.99, 4999),
    ("49.99", 4999),
    (10, "10.00"),
    ("12%", 0.12),
    ("12%", 12),
    ("512MB", 512),
    (1772720000, 1772720000000),
    (5.0, 5),
    ("C:\\a\\b", "C:/a/b"),
    ("5th March 2026", "2026-03-05"),
    ("March 5 2026", "2026-03-05"),
    ("2 days", "P2D"),
    ("9am", "09:00"),
    ("<@U123>", "U123"),
    ("AB12CD34", "ab12-cd34"),
]
"""Old and new values of real interfaces where only the form differs."""

VALUE_PAIRS = [
    ("north", "south"),
    ("a1", "b1"),
    (90, 11),
    ("red", "blue"),
    ("main", "master"),
    (365, 7),
    (1000, 100),
    (1000, 10),
    (100, 10),
    (5000, 5),
    (120, 2),
    (50, 25),
    (42, 24),
    (0, 1),
    (-5, 5),
    ("-5", "5"),
    ("1.5", "15"),
    ("1,5", "15"),
    ("1/2", "12"),
    ("3.10", "3.1"),
    ("10.0.0.1", "10.0.0.2"),
    ("2026-03-05", "2026-03-06"),
    ("2026-02-30", "2026-02-28"),
    ("2026-03", "2026-03-31"),
    ("14:30", "15:30"),
    ("PT90M", "PT60M"),
    ("New York City", "New York"),
    ("John Smith", "Smith"),
    ("acme-staging", "acme"),
    ("db", "prod-db"),
    ("gpt-4", "gpt-4o"),
    ("gpt-4", "gpt-4-turbo"),
    ("report", "report-final"),
    ("ord_1", "ord_2"),
    ("INV-1042", "INV-1043"),
    ("user_12", "user_13"),
    ("asc", "desc"),
    ("USD", "EUR"),
    ("en", "de"),
    ("en-US", "en-GB"),
    ("en", "en-US"),
    ("Germany", "DE"),
    ("config.yaml", "config.json"),
    ("src/app.py", "lib/app.py"),
    ("src", "../src"),
    ("Berlin", "Munich"),
    ("cat", "category"),
    ("note", "notes"),
    ("alice@corp.com", "bob@corp.com"),
    ("C++", "C"),
    ("C#", "C"),
    (">5", "5"),
    ("!archived", "archived"),
    ("john.doe", "john"),
    ("https://a.com/x", "https://b.com/x"),
    ("000042", "43"),
    (True, False),
    (True, 1),
    (None, "x"),
    ("1 hour", 60000),
    (86400, 3600),
    (3600, 60),
    (1, 60),
    ("us-east-1", "east-1"),
    ("12", "1200"),
    ("5m", "5h"),
    ("12-15", "15-12"),
    ("team-a", "a"),
    ("tmp/a", "a/tmp"),
    ("2026-03-05", "2026-05-03"),
]
"""Old and new values of real interfaces where the new one is another value."""

TEXTS = st.text(max_size=30) | st.text("aB1é -_./:,#+$%()@", max_size=12)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.text(st.characters(categories=["Cs", "Ll"]))
)
JSON_VALUES = st.recursive(SCALARS, lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXTS, values))
WRITTEN_TIMES = st.datetimes().map(lambda moment: moment.strftime("%Y-%m-%d %H:%M")) | st.dates().map(str)
FORM_VALUES = st.sampled_from([value for pair in FORM_PAIRS for value in pair]) | TEXTS | WRITTEN_TIMES
NAMES = sorted({name for old, new in FORM_PAIRS for name in find_transformations(old, new)})


def is_same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and left == right


@pytest.mark.parametrize(("old", "new"), FORM_PAIRS)
def test_value_in_another_form_has_a_transformation_that_gives_it(old, new):
    names = find_transformations(old, new)

    assert names
    assert all(is_same(apply_transformation(name, old), new) for name in names)


@pytest.mark.parametrize(("old", "new"), VALUE_PAIRS)
def test_other_value_has_no_transformation(old, new):
    assert find_transformations(old, new) == ()


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        (" New York ", "New York", "trim"),
        ("New York\n", "New York", "trim"),
        ("us", "US", "upper"),
        ("978-3-16", "978316", "without:-"),
        ("due date", "due_date", "swap: >_"),
        ("ff5733", "#FF5733", "upper+prefix:#"),
        ("00:1A:2B", "00-1a-2b", "lower+swap::>-"),
        ("4155552671", "+14155552671", "prefix:%2B1"),
        ("+49 170 123", "49170123", "without: +cut-prefix:%2B"),
        ("+4720304050", "004720304050", "dialing:00"),
        ("0047 20 30 40 50", "+4720304050", "without: +dialing:%2B"),
    ],
)
def test_simplest_transformation_is_first(old, new, name):
    assert find_transformations(old, new)[0] == name


@pytest.mark.parametrize(
    ("name", "value", "result"),
    [
        ("without: ", "GB82 WEST", "GB82WEST"),
        ("prefix:INV-", "77", "INV-77"),
        ("pad:6", 7, "000007"),
        ("date:DD.MM.YYYY>YYYY-MM-DD", "31.12.2026", "2026-12-31"),
        ("date:epoch-ms>YYYY-MM-DD", 1772720000000, "2026-03-05"),
        ("duration:worded>iso", "2h 5min", "PT2H5M"),
        ("scale:100", 19.99, 1999),
        ("scale:/1000", 1500, 1.5),
        ("last", "https://example.com/orders/77?tab=1", "77"),
        ("upper+without: ", "AB", None),
        ("upper+without: ", "ab", "AB"),
        ("prefix:INV-", "INV-77", None),
        ("dialing:00", "+49 30 1234567", "0049 30 1234567"),
        ("dialing:00", "+49", None),
        ("dialing:00", "20304050", None),
        ("date:DD.MM.YYYY>YYYY-MM-DD", "31.02.2026", None),
        ("date:YYYY-MM>YYYY-MM-DD", "2026-03", None),
        ("upper", "US", None),
        ("upper", None, None),
        ("upper", True, None),
        ("upper", ["us"], None),
        ("from-a-newer-version:1", "us", None),
        ("pad:many", "7", None),
        ("scale:7", 7, None),
        ("", "us", None),
    ],
)
def test_transformation_applies_to_other_values_of_that_form_alone(name, value, result):
    assert is_same(apply_transformation(name, value), result)


@pytest.mark.parametrize(
    ("name", "phrase"),
    [
        ("without: ", "without blanks"),
        ("without: ()-", "without blanks, parentheses and dashes"),
        ("upper", "in upper case"),
        ("swap:_>-", "with dashes instead of underscores"),
        ("date:MM/DD/YYYY>YYYY-MM-DD", "as YYYY-MM-DD"),
        ("date:YYYY-MM-DD>epoch", "as seconds since 1970"),
        ("pad:6", "with leading zeros, 6 digits"),
        ("duration:unit-min>iso-M", "as an ISO 8601 duration in minutes (PT90M)"),
        ("scale:1000", "in a smaller unit (times 1000)"),
        ("scale:/100", "in a larger unit (divided by 100)"),
        ("prefix:%2B1", "beginning with +1"),
        ("dialing:00", "with 00 before the country code"),
        ("upper+without:-", "in upper case, without dashes"),
        ("from-a-newer-version", "in another form"),
    ],
)
def test_transformation_is_described_by_a_phrase(name, phrase):
    assert describe_transformation(name) == phrase


@pytest.mark.parametrize(
    "name",
    "upper without:- swap:_>- pad:6 unpad accents slug unwrap trim mask:xxx-xxx prefix:# cut-prefix:%2B number "
    "locale:- dialing:00 date:MM/DD/YYYY>YYYY-MM-DD date:YYYY-MM-DD>YYYY-MM-DDThh:mm:ssZ "
    "duration:worded>iso upper+without:-".split(),
)
def test_form_of_the_same_thing_keeps_identity(name):
    assert keeps_identity(name)


@pytest.mark.parametrize(
    "name",
    "scale:1000 host last segment:2 query:v stem language prefix:INV- cut-prefix:v suffix:.pdf lower+host "
    "date:YYYY-MM-DDThh:mm:ssZ>YYYY-MM-DD date:YYYY-MM-DD>YYYY-MM duration:unit-min>iso-M newer-version".split(),
)
def test_part_unit_or_label_does_not_keep_identity_surely(name):
    assert not keeps_identity(name)


def test_both_orders_of_day_and_month_are_found():
    month_first, day_first = "date:MM/DD/YYYY>YYYY-MM-DD", "date:DD/MM/YYYY>YYYY-MM-DD"
    ambiguous = ("05/05/2026", "2026-05-05")

    assert find_transformations(*ambiguous) == (month_first, day_first)


def test_long_texts_have_no_transformation():
    assert find_transformations("a" * MAX_TEXT_CHARS, "A" * MAX_TEXT_CHARS)
    assert not find_transformations("a" * (MAX_TEXT_CHARS + 1), "A" * (MAX_TEXT_CHARS + 1))


@given(JSON_VALUES, JSON_VALUES)
def test_any_json_values_are_compared_without_an_error(old, new):
    for name in find_transformations(old, new):
        assert is_same(apply_transformation(name, old), new)
    assert find_transformations(old, old) == ()


@given(FORM_VALUES, FORM_VALUES)
def test_names_that_are_found_give_the_new_value_and_can_be_stored_and_described(old, new):
    for name in find_transformations(old, new):
        assert is_same(apply_transformation(name, old), new)
        assert json.loads(json.dumps(name)) == name
        assert describe_transformation(name).strip()


@given(st.sampled_from(NAMES), st.sampled_from(NAMES), FORM_VALUES)
def test_result_of_a_transformation_is_recognized_or_left_alone(first, second, value):
    for name in (first, f"{first}+{second}"):
        result = apply_transformation(name, value)
        assert result is None or all(
            is_same(apply_transformation(step, value), result) for step in find_transformations(value, result)
        )


@given(TEXTS, JSON_VALUES)
def test_any_name_applies_or_not_without_an_error(name, value):
    for kind in ("", "wrap:", "mask:", "swap:", "pad:", "decimals:", "segment:", "date:", "duration:", "scale:"):
        apply_transformation(kind + name, value)
        keeps_identity(kind + name)
        assert describe_transformation(kind + name).strip()
