"""Tenants, API tokens and sign-in sessions, in key-value entries that all processes of a store share.

Only the token determines the tenant of a request. The tenant `local` always exists. A tenant without settings gets the
defaults. The store holds only hashes of tokens. A token of role read or admin is exchanged for a signed cookie. All
processes share the signing key, so no process stores sessions. A cookie is valid as long as its token is. The store
lists signed-out cookies until their expiry.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, get_args

import msgspec
from msgspec.structs import replace

from mulligan.contract import store as base
from mulligan.contract.audit import build_entry
from mulligan.contract.store import DAY, DEFAULT_TENANT, AuditNote, KeyValueStore, Retention
from mulligan.core.failure import SettingsError, StoreError
from mulligan.core.records import Record, decode, encode, new_id
from mulligan.report.alerts import AlertSettings

T = TypeVar("T")

SERVER_TENANT = ""
"""Tenant of entries that belong to the server itself."""
SERVER_ENTRY_KIND = "server"
SECRET_PREFIX = "mul_"
"""Start of every token."""
REFRESH_INTERVAL_SECONDS = 1.0
"""Time until entries are read again. A revoked token stops working within it."""
TENANT_NAME_PATTERN = re.compile(r"[\w.@:/-]{1,80}", re.ASCII)
Measure = Literal["requests", "records", "bytes"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
RETENTION_FIELDS = ("keep_failures", "keep_successes", "keep_hourly")
"""Record types with their own age limit, as in `Retention`."""
Role = Literal["ingest", "read", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
ROLE_PERMISSIONS: dict[str, frozenset[str]] = {
    "ingest": frozenset({"lookup", "ingest"}),
    "read": frozenset({"lookup", "read"}),
    "admin": frozenset({"lookup", "ingest", "read", "admin"}),
}
COOKIE_SECRET_KEY, SIGNED_OUT_KEY = "cookies", "signed-out"
COOKIE_HOURS = 12
MAX_SIGNED_OUT_COOKIES = 10_000
"""Limit of stored signed-out cookies. Above it the ones that expire first are dropped."""


def update_entry(
    key_value_store: KeyValueStore,
    tenant: str,
    key: str,
    update: Callable[[bytes | None], bytes | None],
    build_note: Callable[[], AuditNote | None] = lambda: None,
) -> bool:
    """Change an entry, again if another process was faster. Return whether it succeeded.

    `update` returns the new value, or `None` to leave the entry as it is.
    """
    for _ in range(1000):  # other processes may update it at the same time
        stored_value = key_value_store.get(tenant, SERVER_ENTRY_KIND, key)
        value = update(stored_value)
        if value is None or key_value_store.compare_and_set(
            tenant, SERVER_ENTRY_KIND, key, stored_value, value, build_note()
        ):
            return True
    return False


def load_or_create_key(key_value_store: KeyValueStore, tenant: str, kind: str, key: str) -> bytes:
    """Return a random secret of a tenant, the same for all processes."""
    secret = key_value_store.get(tenant, kind, key)
    if secret is None:
        new_secret = os.urandom(32)
        is_first = key_value_store.compare_and_set(tenant, kind, key, None, new_secret)
        secret = new_secret if is_first else key_value_store.get(tenant, kind, key) or new_secret
    return secret


class CachedRecords(Generic[T]):
    """Records in one entry of the server, cached for a second because every request needs them."""

    key: str
    type: Any
    names: tuple[str, ...]
    """Fields that identify a record."""

    def __init__(self, key_value_store: KeyValueStore) -> None:
        self._key_value_store = key_value_store
        self._read_at = float("-inf")
        self._by_name: dict[str, T] = {}

    def load_all(self) -> list[T]:
        return self._decode(self._key_value_store.get(SERVER_TENANT, SERVER_ENTRY_KIND, self.key))

    def _decode(self, stored_value: bytes | None) -> list[T]:
        return decode(stored_value, list[self.type]) if stored_value else []  # type: ignore[name-defined]

    def _change(self, update: Callable[[list[T]], list[T]], build_note: Callable[[], AuditNote]) -> None:
        def update_value(stored_value: bytes | None) -> bytes:
            return encode(update(self._decode(stored_value)))

        if not update_entry(self._key_value_store, SERVER_TENANT, self.key, update_value, build_note):
            raise SettingsError(f"The {self.key} were not changed: too many concurrent changes. Try again.")

    @property
    def is_stale(self) -> bool:
        return time.monotonic() - self._read_at > REFRESH_INTERVAL_SECONDS

    @property
    def is_loaded(self) -> bool:
        return self._read_at > float("-inf")

    def postpone_refresh(self) -> None:
        """Use the records as they are until the next refresh is due."""
        self._read_at = time.monotonic()

    def refresh(self) -> None:
        read_at = time.monotonic()
        self._by_name = {getattr(record, name): record for record in self.load_all() for name in self.names}
        self._read_at = read_at


# Tenants


class Tenant(Record, frozen=True):
    """Settings of one tenant. Unset values use the defaults."""

    name: str
    created_at: int = 0
    note: str = ""
    """Description for operators."""
    retention_days: Mapping[str, int | None] = msgspec.field(default_factory=dict)
    """Days of retention by record type: failures, successes, hourly counters. `None` means forever."""
    quotas: Mapping[Measure, int] = msgspec.field(default_factory=dict)
    """Limits per UTC day."""
    unredacted_arguments: tuple[str, ...] = ()
    """Arguments stored unredacted at level shared, in addition to the server's settings."""
    alert_command: str = ""
    alert_webhook: str = ""
    alerts: AlertSettings | None = None
    """Targets and rules of its alerts. `None` means the rules of the server's settings."""

    @property
    def retention(self) -> Retention:
        ages: dict[str, Any] = {
            name: None if days is None else days * DAY for name, days in self.retention_days.items()
        }
        return Retention(**ages)


class Tenants(CachedRecords[Tenant]):
    """Tenants of a store. `local` always exists."""

    key, type, names = "tenants", Tenant, ("name",)

    def settings_for(self, name: str) -> Tenant:
        """Return the settings of a tenant as of the last refresh."""
        return self._by_name.get(name) or Tenant(name)

    def load_all_with_default(self) -> list[Tenant]:
        """Return all tenants, including `local`."""
        tenants = {tenant.name: tenant for tenant in (Tenant(DEFAULT_TENANT), *self.load_all())}
        return _sort_by_name(tenants.values())

    def find(self, name: str) -> Tenant | None:
        return _find_tenant(self.load_all(), name)

    def create(self, tenant: Tenant) -> None:
        self._replace("tenant.create", tenant.name, lambda current: tenant, is_new=True)

    def set(self, name: str, change: Callable[[Tenant], Tenant]) -> Tenant:
        return self._replace("tenant.set", name, change, is_new=False)

    def _replace(self, action: str, name: str, change: Callable[[Tenant], Tenant], *, is_new: bool) -> Tenant:
        result: list[Tenant] = []

        def replace_tenant(tenants: list[Tenant]) -> list[Tenant]:
            current_tenant = _find_tenant(tenants, name)
            if is_new and current_tenant is not None:
                raise SettingsError(f"Tenant {name!r} already exists. Change it: mulligan tenant set {name}")
            if not is_new and current_tenant is None:
                raise unknown_tenant(name)
            before = current_tenant or Tenant(name)
            result[:] = [before, change(before)]
            return _sort_by_name([*(tenant for tenant in tenants if tenant.name != name), result[1]])

        self._change(replace_tenant, lambda: _build_audit_note(action, *result))
        return result[1]

    def remove(self, name: str) -> Tenant:
        """Remove the settings of a tenant. Its records stay in the store."""
        removed: list[Tenant] = []

        def drop_tenant(tenants: list[Tenant]) -> list[Tenant]:
            removed[:] = [tenant for tenant in tenants if tenant.name == name]
            if not removed:
                raise unknown_tenant(name)
            return [tenant for tenant in tenants if tenant.name != name]

        self._change(drop_tenant, lambda: _build_audit_note("tenant.remove", removed[0], removed[0]))
        return removed[0]


def _find_tenant(tenants: Sequence[Tenant], name: str) -> Tenant | None:
    default = Tenant(name) if name == DEFAULT_TENANT else None
    return next((tenant for tenant in tenants if tenant.name == name), default)


def _sort_by_name(tenants: Iterable[Tenant]) -> list[Tenant]:
    return sorted(tenants, key=lambda tenant: tenant.name)


def _build_audit_note(do: str, before: Tenant, after: Tenant) -> AuditNote:
    """Build the audit note for a change. Alert targets are named without values, because they may contain secrets."""
    value_fields = ("note", "retention_days", "quotas", "unredacted_arguments")
    changes = [
        f"{name} {encode(value).decode()}" if name in value_fields else name
        for name in after.__struct_fields__
        if (value := getattr(after, name)) != getattr(before, name) and name != "created_at"
    ]
    return AuditNote(after.name, build_entry(do, base.now(), after.name, ", ".join(changes)))


def unknown_tenant(name: str) -> SettingsError:
    return SettingsError(f"No tenant {name!r}. List all: mulligan tenant list")


def with_quotas(tenant: Tenant, changes: Mapping[Measure, int | None]) -> Tenant:
    """Return the tenant with changed quotas. `None` removes a quota."""
    quotas = {measure: limit for measure, limit in {**tenant.quotas, **changes}.items() if limit is not None}
    return replace(tenant, quotas=quotas)


def with_retention_days(tenant: Tenant, changes: Mapping[str, int | None], reset_fields: Sequence[str] = ()) -> Tenant:
    """Return the tenant with changed retention. Fields in `reset_fields` return to the default."""
    retention_days = {
        name: days for name, days in {**tenant.retention_days, **changes}.items() if name not in reset_fields
    }
    return replace(tenant, retention_days=retention_days)


# Tokens


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
    key, type, names = "tokens", Token, ("hash", "id")

    def create(
        self, role: Role, now: int, *, name: str = "", tenant: str = DEFAULT_TENANT, principal: str = "",
        expires: int | None = None,
    ) -> tuple[Token, str]:  # fmt: skip
        """Create a token. Return it with its secret, which is not stored."""
        # Random bits only: generated ids share a prefix and are visible to others.
        secret = f"{SECRET_PREFIX}{role}_{base64.b32encode(os.urandom(20)).decode().lower()}"
        token = Token(
            id=f"tok_{new_id()[-8:]}", hash=hash_secret(secret), role=role, name=name, tenant=tenant,
            principal=principal, created_at=now, expires_at=expires,
        )  # fmt: skip
        expiry = f", expires {time.strftime('%Y-%m-%d', time.gmtime(expires // 1000))}" if expires is not None else ""
        detail = f"role {role}{f', {name}' if name else ''}{expiry}"
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
        token = matches[0]
        if token.revoked_at is None:
            note = AuditNote(token.tenant, build_entry("token.revoke", now, token.id, token.name))
            self._revoke(lambda other: other.id == token.id, now, note)
        return replace(token, revoked_at=now if token.revoked_at is None else token.revoked_at)

    def revoke_all(self, tenant: str, now: int) -> list[Token]:
        """Revoke all tokens of a tenant. Return those that were not revoked before."""
        note = AuditNote(tenant, build_entry("token.revoke", now, detail="all tokens of the tenant"))
        return self._revoke(lambda token: token.tenant == tenant and token.revoked_at is None, now, note)

    def _revoke(self, is_revoked: Callable[[Token], bool], now: int, note: AuditNote) -> list[Token]:
        revoked_tokens: list[Token] = []

        def revoke_matching(tokens: list[Token]) -> list[Token]:
            revoked_tokens[:] = filter(is_revoked, tokens)
            return [replace(token, revoked_at=now) if is_revoked(token) else token for token in tokens]

        self._change(revoke_matching, lambda: note)
        return revoked_tokens

    def find_by_secret(self, secret: str) -> Token | None:
        """Return the token with this secret as of the last refresh, even if it is expired or revoked."""
        return self._by_name.get(hash_secret(secret))

    def find_by_id(self, id: str) -> Token | None:
        """Return the token with this id as of the last refresh, even if it is expired or revoked."""
        return self._by_name.get(id)


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
