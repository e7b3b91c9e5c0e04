"""Names that say secret: of an argument, a header, a variable, a field."""

from __future__ import annotations

import functools

from mulligan.redaction.expressions import Expression

_WORDS = Expression(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def words(text: str) -> frozenset[str]:
    """A table of words, written as a sentence is."""
    return frozenset(text.split())


# A name that ends in one of these holds a secret, whatever stands before it.
_ENDS = words(
    """password passwd passwort passphrase passcode pwd pass pw secret secrets credential credentials creds
    authorization bearer cookie cookies jwt otp totp pin cvv cvc ssn iban mnemonic apikey apitoken authtoken accesstoken
    accesskey secretkey privatekey clientsecret connectionstring kennwort contrasena motdepasse"""
)
# Two words that do, where neither would alone.
_PAIRS = words(
    """api_key app_key access_key secret_key private_key encryption_key signing_key account_key master_key auth_key
    service_key shared_key storage_key license_key licence_key ssh_key deploy_key consumer_key session_key
    subscription_key integration_key ingest_key write_key admin_key server_key root_key user_key hmac_key aes_key
    connection_string card_number security_code account_number routing_number tax_id social_security
    national_id passport_number recovery_code backup_code seed_phrase access_code verification_code basic_auth
    proxy_auth http_auth x_auth"""
)
# Words before "token" that make it a place in a list, or a piece of text.
_CURSORS = words(
    """next page previous prev continuation cursor sync start resume pagination scroll skip stop pad eos bos mask unk
    end begin max min num per total first last special image new old each one"""
)
FORMS = words("base value val str string text raw plain plaintext env header base64 b64 hash")
"""Words after a secret's name that leave it one."""

CURSORS = tuple(_CURSORS)
"""The same, for whoever has no whole name."""
NUMBERS = words(
    """pin otp totp cvv cvc ssn passcode password passwd pwd pass card_number account_number routing_number tax_id
    national_id social_security security_code verification_code access_code recovery_code backup_code"""
)
"""Kinds whose values may be numbers; a number under any other name is a count."""
SAID = frozenset((*_ENDS, *_PAIRS, "token"))
"""What a name that says secret ends in, unless a word of `FORMS` follows."""


def split(name: str) -> list[str]:
    """The words of a name, small: `userPassword2`, `user-password` and `USER_PASSWORD` are the same two."""
    parts = [word[0].lower() for word in _WORDS.finditer(name[-80:])]
    while parts and parts[-1].isdigit():
        parts.pop()
    return parts


@functools.lru_cache(maxsize=4096)  # the same few names come with every call
def secret(name: str) -> str:
    """What kind of secret a value of this name is, such as `api_key`; empty when the name says nothing.

    `access_token` says so; `max_tokens`, `token_count` and `next_page_token` do not, nor does `password_policy`.
    """
    parts = split(name)
    if not parts:
        return ""
    last, pair = parts[-1], "_".join(parts[-2:])
    if last in _ENDS:
        return last
    if last == "token":
        return "" if parts[-2:-1] and parts[-2] in _CURSORS else "token"
    if last in FORMS:
        return secret("_".join(parts[:-1]))
    if pair in _PAIRS:
        return pair
    if pair.replace("_", "") in _ENDS:
        return pair.replace("_", "")
    return "auth" if parts == ["auth"] else ""
