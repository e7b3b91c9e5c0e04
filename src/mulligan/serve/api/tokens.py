"""API tokens: role, tenant and principal of a caller. The store holds only their hashes."""

from __future__ import annotations

import base64
import hashlib
import os
import time
from collections.abc import Callable
from typing import Literal, get_args

from msgspec.structs import replace

from mulligan.failure import SettingsError
from mulligan.records import Record, decode, encode, new_id
from mulligan.remember.audit import entry
from mulligan.remember.store import LOCAL, Noted, Shelf

Role = Literal["ingest", "read", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
MAY: dict[str, frozenset[str]] = {
    "ingest": frozenset({"ingest"}),
    "read": frozenset({"read"}),
    "admin": frozenset({"ingest", "read", "admin"}),
}
"""Permissions of each role."""
OF_THE_SERVER = ""
"""Tenant of entries that belong to the server itself."""
KIND, KEY = "server", "tokens"
FRESH = 1.0
"""Time until tokens are read again. A revoked token stops working within it."""


class Token(Record, frozen=True):
    """Stored data of a token. The secret is shown once, when it is created."""

    id: str
    hash: str
    role: Role
    name: str = ""
    tenant: str = LOCAL
    principal: str = ""
    """Principal of the token, if it differs from the token itself.

    All tokens of one principal share one vote (SAFETY S3).
    """
    created: int = 0
    expires: int | None = None
    """UTC milliseconds."""
    revoked: int | None = None

    def state(self, now: int) -> Literal["active", "expired", "revoked"]:
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and now >= self.expires else "active"

    @property
    def writer(self) -> str:
        return self.principal or self.id


class Tokens:
    """Tokens of a store, cached for a second because every request needs them."""

    def __init__(self, shelf: Shelf, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._shelf = shelf
        self._monotonic = monotonic
        self._known: dict[str, Token] = {}
        self._ids: dict[str, Token] = {}
        self._read_at = float("-inf")

    def all(self) -> list[Token]:
        kept = self._shelf.get(OF_THE_SERVER, KIND, KEY)
        return decode(kept, list[Token]) if kept else []

    def create(
        self, role: Role, now: int, *, name: str = "", tenant: str = LOCAL, principal: str = "",
        expires: int | None = None,
    ) -> tuple[Token, str]:  # fmt: skip
        """Create a token. Return it with its secret, which is not stored."""
        # Random bits only: generated ids share a prefix and are visible to others.
        secret = f"mul_{role}_{base64.b32encode(os.urandom(20)).decode().lower()}"
        token = Token(
            id=f"tok_{new_id()[-8:]}", hash=hashed(secret), role=role, name=name, tenant=tenant, principal=principal,
            created=now, expires=expires,
        )  # fmt: skip
        told = f"role {role}{f', {name}' if name else ''}{', expires' if expires is not None else ''}"
        self._change(lambda known: [*known, token], Noted(tenant, entry("token.create", now, token.id, told)))
        return token, secret

    def revoke(self, beginning: str, now: int) -> Token:
        """Revoke the token with this id or name, or with an unambiguous id prefix."""
        known = self.all()
        found = [each for each in known if beginning in (each.id, each.name)] or [
            each for each in known if beginning and each.id.startswith(beginning)
        ]
        if len(found) != 1:
            many = f"{len(found)} tokens are" if found else "there is no token"
            raise SettingsError(f"{many} {beginning!r}. See them: mulligan token list")
        (one,) = found
        if one.revoked is not None:
            return one
        gone = replace(one, revoked=now)
        noted = Noted(one.tenant, entry("token.revoke", now, one.id, one.name))
        self._change(lambda known: [gone if each.id == one.id else each for each in known], noted)
        return gone

    def revoke_all(self, tenant: str, now: int) -> list[Token]:
        """Revoke all tokens of a tenant. Return those that were not revoked before."""
        gone: list[Token] = []

        def changed(known: list[Token]) -> list[Token]:
            gone[:] = [each for each in known if each.tenant == tenant and each.revoked is None]
            return [replace(each, revoked=now) if each in gone else each for each in known]

        self._change(changed, Noted(tenant, entry("token.revoke", now, told="every token of the tenant")))
        return gone

    def _change(self, changed: Callable[[list[Token]], list[Token]], noted: Noted) -> None:
        for _ in range(100):
            known = self._shelf.get(OF_THE_SERVER, KIND, KEY)
            now = changed(decode(known, list[Token]) if known else [])
            if self._shelf.swap(OF_THE_SERVER, KIND, KEY, known, encode(now), noted):
                return
        raise SettingsError("the tokens are being changed by somebody else all the time. Try again.")

    @property
    def is_stale(self) -> bool:
        return self._monotonic() - self._read_at > FRESH

    def refresh(self) -> None:
        read_at = self._monotonic()
        every = self.all()
        self._known, self._ids = {each.hash: each for each in every}, {each.id: each for each in every}
        self._read_at = read_at

    def find(self, secret: str) -> Token | None:
        """Return the token with this secret as of the last refresh, even if it is expired or revoked."""
        return self._known.get(hashed(secret))

    def named(self, id: str) -> Token | None:
        """Return the token with this id as of the last refresh, even if it is expired or revoked."""
        return self._ids.get(id)


def hashed(secret: str) -> str:
    # 160 random bits cannot be guessed, so a fast hash is sufficient.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
