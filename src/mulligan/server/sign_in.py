"""Sign-in sessions: a token of role read or admin is exchanged for a signed cookie.

All processes of one store share the signing key, so no process stores sessions. A cookie is valid as long as its token
is. The store lists signed-out cookies until their expiry.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable

from mulligan.core.failure import StoreError
from mulligan.core.records import decode, encode
from mulligan.server.errors import ApiError
from mulligan.server.tokens import SERVER_ENTRY_KIND, SERVER_TENANT, Token, Tokens, hash_secret
from mulligan.store.base import KeyValueStore

COOKIE_SECRET_KEY, SIGNED_OUT_KEY = "cookies", "signed-out"
COOKIE_HOURS = 12
"""Lifetime of a cookie in hours."""
MAX_ADDRESS_FAILURES, MAX_TOTAL_FAILURES = 10, 100
"""Limits of failed sign-ins per minute: from one address, and in total."""
FAILURE_WINDOW_SECONDS = 60.0
MAX_TRACKED_ADDRESSES = 10_000
MAX_SIGNED_OUT_COOKIES = 10_000
"""Limit of stored signed-out cookies. Above it the ones that expire first are dropped."""


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
        self.signed_out = _decode_signed_out(
            self._key_value_store.get(SERVER_TENANT, SERVER_ENTRY_KIND, SIGNED_OUT_KEY)
        )
        if self._key:
            return
        key = self._key_value_store.get(SERVER_TENANT, SERVER_ENTRY_KIND, COOKIE_SECRET_KEY)
        if key is None:
            new_key = os.urandom(32)
            is_first = self._key_value_store.compare_and_set(
                SERVER_TENANT, SERVER_ENTRY_KIND, COOKIE_SECRET_KEY, None, new_key
            )
            key = (
                new_key
                if is_first
                else self._key_value_store.get(SERVER_TENANT, SERVER_ENTRY_KIND, COOKIE_SECRET_KEY) or new_key
            )
        self._key = key

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
        for _ in range(100):
            stored_value = self._key_value_store.get(SERVER_TENANT, SERVER_ENTRY_KIND, SIGNED_OUT_KEY)
            signed_out = {mark: end for mark, end in _decode_signed_out(stored_value).items() if end > now} | {
                hash_secret(signature): int(until)
            }
            if len(signed_out) > MAX_SIGNED_OUT_COOKIES:
                del signed_out[min(signed_out, key=signed_out.__getitem__)]
            if self._key_value_store.compare_and_set(
                SERVER_TENANT, SERVER_ENTRY_KIND, SIGNED_OUT_KEY, stored_value, encode(signed_out)
            ):
                self.signed_out = signed_out
                return
        raise StoreError("Sign-out failed: too many concurrent sign-outs. Try again.")

    def _sign(self, token: Token, until: int) -> str:
        return hmac.digest(self._key, f"{token.id}.{until}.{token.hash}".encode(), "sha256").hex()


def _decode_signed_out(stored_value: bytes | None) -> dict[str, int]:
    return decode(stored_value, dict[str, int]) if stored_value else {}


class SignInLimiter:
    """Rate limit for failed sign-ins, counted per process.

    A shared count is not needed: tokens have 160 random bits.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._failures: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, address: str) -> None:
        """Raise `ApiError` with Retry-After if there were too many failures."""
        for source, limit in ((address, MAX_ADDRESS_FAILURES), ("", MAX_TOTAL_FAILURES)):
            count, _ = self._current_count(source, limit)
            if count > limit - 1:
                wait = math.ceil((count - limit + 1) * FAILURE_WINDOW_SECONDS / limit)
                message = "Too many failed sign-ins. Wait a minute and try again."
                raise ApiError(429, "busy", message, headers={"Retry-After": str(max(1, wait))})

    def record_failure(self, address: str) -> None:
        for source, limit in ((address, MAX_ADDRESS_FAILURES), ("", MAX_TOTAL_FAILURES)):
            count, at = self._current_count(source, limit)
            self._failures[source] = (count + 1, at)
            self._failures.move_to_end(source)
        while len(self._failures) > MAX_TRACKED_ADDRESSES:
            self._failures.popitem(last=False)

    def _current_count(self, source: str, limit: int) -> tuple[float, float]:
        now = self._monotonic()
        count, at = self._failures.get(source, (0.0, now))
        return max(0.0, count - (now - at) * limit / FAILURE_WINDOW_SECONDS), now
