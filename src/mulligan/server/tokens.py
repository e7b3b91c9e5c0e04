"""API tokens and sign-in sessions: role, tenant and principal of a caller. The store holds only hashes.

A token of role read or admin is exchanged for a signed cookie. All processes of one store share the signing key, so no
process stores sessions. A cookie is valid as long as its token is. The store lists signed-out cookies until their
expiry.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Sequence
from typing import Literal, get_args

from msgspec.structs import replace

from mulligan.core.failure import SettingsError, StoreError
from mulligan.core.records import Record, decode, encode, new_id
from mulligan.server.entries import (
    SERVER_ENTRY_KIND,
    SERVER_TENANT,
    CachedRecords,
    load_or_create_key,
    update_entry,
)
from mulligan.store.audit import build_entry
from mulligan.store.base import DEFAULT_TENANT, AuditNote, KeyValueStore

Role = Literal["ingest", "read", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
ROLE_PERMISSIONS: dict[str, frozenset[str]] = {
    "ingest": frozenset({"ingest"}),
    "read": frozenset({"read"}),
    "admin": frozenset({"ingest", "read", "admin"}),
}
"""Permissions of each role."""
TOKENS_KEY = "tokens"
COOKIE_SECRET_KEY, SIGNED_OUT_KEY = "cookies", "signed-out"
COOKIE_HOURS = 12
"""Lifetime of a cookie in hours."""
MAX_SIGNED_OUT_COOKIES = 10_000
"""Limit of stored signed-out cookies. Above it the ones that expire first are dropped."""


class Token(Record, frozen=True):
    """Stored data of a token. The secret is shown once, when it is created."""

    id: str
    hash: str
    role: Role
    name: str = ""
    tenant: str = DEFAULT_TENANT
    principal: str = ""
    """Principal of the token, if it differs from the token itself.

    All tokens of one principal share one vote (SAFETY S3).
    """
    created_at: int = 0
    expires_at: int | None = None
    """UTC milliseconds."""
    revoked_at: int | None = None

    def state(self, now: int) -> Literal["active", "expired", "revoked"]:
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and now >= self.expires_at else "active"

    @property
    def writer(self) -> str:
        return self.principal or self.id


class Tokens(CachedRecords[Token]):
    """Tokens of a store."""

    def __init__(self, key_value_store: KeyValueStore) -> None:
        super().__init__(key_value_store, TOKENS_KEY, Token)
        self._tokens_by_hash: dict[str, Token] = {}
        self._tokens_by_id: dict[str, Token] = {}

    def _cache(self, records: Sequence[Token]) -> None:
        self._tokens_by_hash = {token.hash: token for token in records}
        self._tokens_by_id = {token.id: token for token in records}

    def create(
        self, role: Role, now: int, *, name: str = "", tenant: str = DEFAULT_TENANT, principal: str = "",
        expires: int | None = None,
    ) -> tuple[Token, str]:  # fmt: skip
        """Create a token. Return it with its secret, which is not stored."""
        # Random bits only: generated ids share a prefix and are visible to others.
        secret = f"mul_{role}_{base64.b32encode(os.urandom(20)).decode().lower()}"
        token = Token(
            id=f"tok_{new_id()[-8:]}", hash=hash_secret(secret), role=role, name=name, tenant=tenant,
            principal=principal, created_at=now, expires_at=expires,
        )  # fmt: skip
        detail = f"role {role}{f', {name}' if name else ''}{', expires' if expires is not None else ''}"
        note = AuditNote(tenant, build_entry("token.create", now, token.id, detail))
        self._change(lambda tokens: [*tokens, token], lambda: note)
        return token, secret

    def revoke(self, prefix: str, now: int) -> Token:
        """Revoke the token with this id or name, or with an unambiguous id prefix."""
        tokens = self.load_all()
        matches = [token for token in tokens if prefix in (token.id, token.name)] or [
            token for token in tokens if prefix and token.id.startswith(prefix)
        ]
        if len(matches) != 1:
            subject = f"{len(matches)} tokens match" if matches else "No token"
            raise SettingsError(f"{subject} {prefix!r}. List all: mulligan token list")
        (matching_token,) = matches
        if matching_token.revoked_at is not None:
            return matching_token
        revoked_token = replace(matching_token, revoked_at=now)
        entry = build_entry("token.revoke", now, matching_token.id, matching_token.name)
        self._change(
            lambda tokens: [revoked_token if token.id == matching_token.id else token for token in tokens],
            lambda: AuditNote(matching_token.tenant, entry),
        )
        return revoked_token

    def revoke_all(self, tenant: str, now: int) -> list[Token]:
        """Revoke all tokens of a tenant. Return those that were not revoked before."""
        revoked_tokens: list[Token] = []

        def revoke_active(tokens: list[Token]) -> list[Token]:
            revoked_tokens[:] = [token for token in tokens if token.tenant == tenant and token.revoked_at is None]
            return [replace(token, revoked_at=now) if token in revoked_tokens else token for token in tokens]

        note = AuditNote(tenant, build_entry("token.revoke", now, detail="all tokens of the tenant"))
        self._change(revoke_active, lambda: note)
        return revoked_tokens

    def find_by_secret(self, secret: str) -> Token | None:
        """Return the token with this secret as of the last refresh, even if it is expired or revoked."""
        return self._tokens_by_hash.get(hash_secret(secret))

    def find_by_id(self, id: str) -> Token | None:
        """Return the token with this id as of the last refresh, even if it is expired or revoked."""
        return self._tokens_by_id.get(id)


def hash_secret(secret: str) -> str:
    # 160 random bits cannot be guessed, so a fast hash is sufficient.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class SignInSessions:
    """Signed cookies of one store."""

    def __init__(self, key_value_store: KeyValueStore, tokens: Tokens) -> None:
        self._key_value_store = key_value_store
        self._tokens = tokens
        self._key = b""
        self.signed_out: dict[str, int] = {}
        """Hashes of signed-out cookies with their expiry times."""

    def load(self) -> None:
        """Load the signed-out cookies and the signing key from the store. Create the key if there is none."""
        stored_value = self._key_value_store.get(SERVER_TENANT, SERVER_ENTRY_KIND, SIGNED_OUT_KEY)
        self.signed_out = _decode_signed_out(stored_value)
        self._key = self._key or load_or_create_key(
            self._key_value_store, SERVER_TENANT, SERVER_ENTRY_KIND, COOKIE_SECRET_KEY
        )

    @property
    def cookie_name(self) -> str:
        """Cookie name: the same for all processes of a store, different for other stores on the host."""
        return f"mulligan_{hashlib.blake2b(self._key, digest_size=4, person=b'cookie name').hexdigest()}"

    def create_cookie(self, token: Token, now: int) -> str:
        until = now + COOKIE_HOURS * 3_600_000
        return f"{token.id}.{until}.{self._sign(token, until)}"

    def find_token(self, cookie: str, now: int) -> Token | None:
        """Return the token of a cookie if signature, age and token are valid."""
        id, _, remainder = cookie.partition(".")
        until, _, signature = remainder.partition(".")
        token = self._tokens.find_by_id(id) if self._key else None
        if token is None or not (until.isascii() and until.isdecimal() and len(until) < 16):
            return None
        is_signature_valid = hmac.compare_digest(
            signature.encode("utf-8", "replace"), self._sign(token, int(until)).encode()
        )
        if not is_signature_valid or now >= int(until) or hash_secret(signature) in self.signed_out:
            return None
        return token if token.state(now) == "active" else None

    def sign_out(self, cookie: str, now: int) -> None:
        """Invalidate a cookie, here at once and in other processes within a second."""
        if self.find_token(cookie, now) is None:
            return
        _, until, signature = cookie.split(".")

        def add_cookie(stored_value: bytes | None) -> bytes:
            signed_out = {mark: end for mark, end in _decode_signed_out(stored_value).items() if end > now}
            signed_out[hash_secret(signature)] = int(until)
            if len(signed_out) > MAX_SIGNED_OUT_COOKIES:
                del signed_out[min(signed_out, key=signed_out.__getitem__)]
            self.signed_out = signed_out
            return encode(signed_out)

        if not update_entry(self._key_value_store, SERVER_TENANT, SIGNED_OUT_KEY, add_cookie):
            raise StoreError("Sign-out failed: too many concurrent sign-outs. Try again.")

    def _sign(self, token: Token, until: int) -> str:
        return hmac.digest(self._key, f"{token.id}.{until}.{token.hash}".encode(), "sha256").hex()


def _decode_signed_out(stored_value: bytes | None) -> dict[str, int]:
    return decode(stored_value, dict[str, int]) if stored_value else {}
