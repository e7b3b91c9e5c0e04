"""Which arguments a repair may touch (SAFETY S2)."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mulligan.core.privileged_arguments import is_privileged

SAFETY_NAMES = (
    "admin role scope force confirm dry_run verify auth token user_id tenant_id owner_id account_id to cc recipient "
    "iban amount path url host headers command sql env"
).split()
"""The names that SAFETY lists."""


@pytest.mark.parametrize("name", SAFETY_NAMES)
def test_what_names_identity_authority_money_destination_or_code_is_privileged(name):
    assert is_privileged(name)


@pytest.mark.parametrize(
    "name",
    "userId user-id USER_ID is_admin callback_url options.force a.b.toAddress fileName URLPath APIToken user2 userid "
    "refund_cents euros max_bid usd \uff55\uff52\uff4c".split(),
)
def test_a_name_is_known_in_every_spelling_and_at_every_depth(name):
    assert is_privileged(name)


@pytest.mark.parametrize(
    "name", "emails users accountIds ADDRESSES to_hosts amounts passwords branches directories files api_keys".split()
)
def test_many_are_as_privileged_as_one(name):
    assert is_privileged(name)


@pytest.mark.parametrize(
    "name", ["max_tokens", "tos", "top_k", "limit", "query", "days", "tokenizer", "scopeful", "customs", "units", ""]
)
def test_ordinary_arguments_are_not(name):
    assert not is_privileged(name)


def test_an_operator_declares_and_releases_by_name():
    assert is_privileged("days", declared={"days"})
    assert is_privileged("options.days", declared={"days"})
    assert not is_privileged("path", unprivileged={"path"})
    assert is_privileged("path", unprivileged={"url"})


@given(st.sampled_from(SAFETY_NAMES), st.text("abcxyz_", max_size=8))
def test_no_word_around_a_privileged_one_hides_it(name, around):
    assert is_privileged(f"{around}_{name}")
    assert is_privileged(f"{name}_{around}")


@given(st.text(max_size=300))
def test_any_text_is_a_name(name):
    assert is_privileged(name) in (True, False)


def test_a_name_too_long_to_be_one_is_left_alone():
    assert is_privileged("x" * 300)
