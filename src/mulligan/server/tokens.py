"""API tokens: role, tenant and principal of a caller. The store holds only their hashes."""

from __future__ import annotations

import base64
import hashlib
import os
import time
from collections.abc import Callable
from typing import Literal, get_args

from msgspec.structs import replace

from mulligan.core.failure import SettingsError
from mulligan.core.records import Record, decode, encode, new_id
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
SERVER_TENANT = ""
"""Tenant of entries that belong to the server itself."""
SERVER_ENTRY_KIND, TOKENS_KEY = "server", "tokens"
REFRESH_INTERVAL_SECONDS = 1.0
"""Time until tokens are read again. A revoked token stops working within it."""


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


class Tokens:
    """Tokens of a store, cached for a second because every request needs them."""

    def __init__(self, key_value_store: KeyValueStore, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._key_value_store = key_value_store
        self._monotonic = monotonic
        self._tokens_by_hash: dict[str, Token] = {}
        self._tokens_by_id: dict[str, Token] = {}
        self._read_at = float("-inf")

    def load_all(self) -> list[Token]:
        stored_value = self._key_value_store.get(SERVER_TENANT, SERVER_ENTRY_KIND, TOKENS_KEY)
        return decode(stored_value, list[Token]) if stored_value else []

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
        self._change(
            lambda tokens: [*tokens, token], AuditNote(tenant, build_entry("token.create", now, token.id, detail))
        )
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
        note = AuditNote(
            matching_token.tenant, build_entry("token.revoke", now, matching_token.id, matching_token.name)
        )
        self._change(
            lambda current_tokens: [
                revoked_token if token.id == matching_token.id else token for token in current_tokens
            ],
            note,
        )
        return revoked_token

    def revoke_all(self, tenant: str, now: int) -> list[Token]:
        """Revoke all tokens of a tenant. Return those that were not revoked before."""
        revoked_tokens: list[Token] = []

        def revoke_active(tokens: list[Token]) -> list[Token]:
            revoked_tokens[:] = [token for token in tokens if token.tenant == tenant and token.revoked_at is None]
            return [replace(token, revoked_at=now) if token in revoked_tokens else token for token in tokens]

        self._change(
            revoke_active, AuditNote(tenant, build_entry("token.revoke", now, detail="all tokens of the tenant"))
        )
        return revoked_tokens

    def _change(self, update: Callable[[list[Token]], list[Token]], note: AuditNote) -> None:
        for _ in range(100):
            stored_value = self._key_value_store.get(SERVER_TENANT, SERVER_ENTRY_KIND, TOKENS_KEY)
            updated = update(decode(stored_value, list[Token]) if stored_value else [])
            if self._key_value_store.compare_and_set(
                SERVER_TENANT, SERVER_ENTRY_KIND, TOKENS_KEY, stored_value, encode(updated), note
            ):
                return
        raise SettingsError("The tokens were not changed: too many concurrent changes. Try again.")

    @property
    def is_stale(self) -> bool:
        return self._monotonic() - self._read_at > REFRESH_INTERVAL_SECONDS

    def refresh(self) -> None:
        read_at = self._monotonic()
        tokens = self.load_all()
        self._tokens_by_hash, self._tokens_by_id = (
            {token.hash: token for token in tokens},
            {token.id: token for token in tokens},
        )
        self._read_at = read_at

    def find_by_secret(self, secret: str) -> Token | None:
        """Return the token with this secret as of the last refresh, even if it is expired or revoked."""
        return self._tokens_by_hash.get(hash_secret(secret))

    def find_by_id(self, id: str) -> Token | None:
        """Return the token with this id as of the last refresh, even if it is expired or revoked."""
        return self._tokens_by_id.get(id)


def hash_secret(secret: str) -> str:
    # 160 random bits cannot be guessed, so a fast hash is sufficient.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
