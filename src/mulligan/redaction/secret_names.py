"""Names that indicate a secret: of an argument, a header, a variable, a field."""

from __future__ import annotations

import functools

from mulligan.redaction.lazy_regex import LazyRegex

_WORD_REGEX = LazyRegex(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())


# A name that ends in one of these holds a secret, whatever precedes it.
_SECRET_WORDS = word_set(
    """password passwd passwort passphrase passcode pwd pass pw secret secrets credential credentials creds
    authorization bearer cookie cookies jwt otp totp pin cvv cvc ssn iban mnemonic apikey apitoken authtoken accesstoken
    accesskey secretkey privatekey clientsecret connectionstring kennwort contrasena motdepasse"""
)
# Pairs of words that indicate a secret only together.
_SECRET_WORD_PAIRS = word_set(
    """api_key app_key access_key secret_key private_key encryption_key signing_key account_key master_key auth_key
    service_key shared_key storage_key license_key licence_key ssh_key deploy_key consumer_key session_key
    subscription_key integration_key ingest_key write_key admin_key server_key root_key user_key hmac_key aes_key
    connection_string card_number security_code account_number routing_number tax_id social_security
    national_id passport_number recovery_code backup_code seed_phrase access_code verification_code basic_auth
    proxy_auth http_auth x_auth"""
)
# Words before "token" that make it a list cursor or a text token.
_CURSORS = word_set(
    """next page previous prev continuation cursor sync start resume pagination scroll skip stop pad eos bos mask unk
    end begin max min num per total first last special image new old each one"""
)
VALUE_FORM_WORDS = word_set("base value val str string text raw plain plaintext env header base64 b64 hash")
"""Words after a secret's name that do not change its meaning."""

CURSORS = tuple(_CURSORS)
"""The same words as a tuple, for `str.endswith`."""
NUMERIC_KINDS = word_set(
    """pin otp totp cvv cvc ssn passcode password passwd pwd pass card_number account_number routing_number tax_id
    national_id social_security security_code verification_code access_code recovery_code backup_code"""
)
"""Kinds whose values may be numbers. A number under any other name is a count."""
SECRET_NAME_ENDINGS = frozenset((*_SECRET_WORDS, *_SECRET_WORD_PAIRS, "token"))
"""Endings of names that indicate a secret, optionally followed by a word of `VALUE_FORM_WORDS`."""


def split_name(name: str) -> list[str]:
    """Return the words of a name in lower case. `userPassword2`, `user-password` and `USER_PASSWORD` are equal."""
    parts = [word[0].lower() for word in _WORD_REGEX.finditer(name[-80:])]
    while parts and parts[-1].isdigit():
        parts.pop()
    return parts


@functools.lru_cache(maxsize=4096)  # the same few names occur in every call
def secret_kind(name: str) -> str:
    """Return the kind of secret that a name indicates, such as `api_key`, or an empty string.

    `access_token` indicates one. `max_tokens`, `token_count`, `next_page_token` and `password_policy` do not.
    """
    parts = split_name(name)
    if not parts:
        return ""
    last, pair = parts[-1], "_".join(parts[-2:])
    if last in _SECRET_WORDS:
        return last
    if last == "token":
        return "" if parts[-2:-1] and parts[-2] in _CURSORS else "token"
    if last in VALUE_FORM_WORDS:
        return secret_kind("_".join(parts[:-1]))
    if pair in _SECRET_WORD_PAIRS:
        return pair
    if pair.replace("_", "") in _SECRET_WORDS:
        return pair.replace("_", "")
    return "auth" if parts == ["auth"] else ""
