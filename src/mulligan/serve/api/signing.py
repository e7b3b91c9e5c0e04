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

from mulligan.failure import StoreError
from mulligan.records import decode, encode
from mulligan.remember.store import Shelf
from mulligan.serve.api.errors import Refused
from mulligan.serve.api.tokens import KIND, OF_THE_SERVER, Token, Tokens, hashed

KEY, ENDED = "cookies", "signed-out"
HOURS = 12
"""Lifetime of a cookie in hours."""
TRIES, EVERYBODY = 10, 100
"""Limits of failed sign-ins per minute: from one address, and in total."""
MINUTE = 60.0
ADDRESSES = 10_000
MOST = 10_000
"""Limit of stored signed-out cookies. Above it the ones that expire first are dropped."""


class Sessions:
    """Signed cookies of one store."""

    def __init__(self, shelf: Shelf, tokens: Tokens) -> None:
        self._shelf = shelf
        self._tokens = tokens
        self._key = b""
        self._ended: dict[str, int] = {}
        """Hashes of signed-out cookies with their expiry times."""

    def load(self) -> None:
        """Load the signed-out cookies and the signing key from the store. Create the key if there is none."""
        self._ended = _read(self._shelf.get(OF_THE_SERVER, KIND, ENDED))
        if self._key:
            return
        key = self._shelf.get(OF_THE_SERVER, KIND, KEY)
        if key is None:
            drawn = os.urandom(32)
            is_first = self._shelf.swap(OF_THE_SERVER, KIND, KEY, None, drawn)
            key = drawn if is_first else self._shelf.get(OF_THE_SERVER, KIND, KEY) or drawn
        self._key = key

    @property
    def name(self) -> str:
        """Cookie name: the same for all processes of a store, different for other stores on the host."""
        return f"mulligan_{hashlib.blake2b(self._key, digest_size=4, person=b'cookie name').hexdigest()}"

    def make(self, token: Token, now: int) -> str:
        until = now + HOURS * 3_600_000
        return f"{token.id}.{until}.{self._signed(token, until)}"

    def find(self, cookie: str, now: int) -> Token | None:
        """Return the token of a cookie if signature, age and token are valid."""
        id, _, rest = cookie.partition(".")
        until, _, signed = rest.partition(".")
        token = self._tokens.named(id) if self._key else None
        if token is None or not (until.isascii() and until.isdecimal() and len(until) < 16):
            return None
        is_ours = hmac.compare_digest(signed.encode("utf-8", "replace"), self._signed(token, int(until)).encode())
        if not is_ours or now >= int(until) or hashed(signed) in self._ended:
            return None
        return token if token.state(now) == "active" else None

    def end(self, cookie: str, now: int) -> None:
        """Invalidate a cookie, here at once and in other processes within a second."""
        if self.find(cookie, now) is None:
            return
        _, until, signed = cookie.split(".")
        for _ in range(100):
            known = self._shelf.get(OF_THE_SERVER, KIND, ENDED)
            ended = {mark: end for mark, end in _read(known).items() if end > now} | {hashed(signed): int(until)}
            if len(ended) > MOST:
                del ended[min(ended, key=ended.__getitem__)]
            if self._shelf.swap(OF_THE_SERVER, KIND, ENDED, known, encode(ended)):
                self._ended = ended
                return
        raise StoreError("too many sign out at once. Try again.")

    def _signed(self, token: Token, until: int) -> str:
        return hmac.digest(self._key, f"{token.id}.{until}.{token.hash}".encode(), "sha256").hex()


def _read(kept: bytes | None) -> dict[str, int]:
    return decode(kept, dict[str, int]) if kept else {}


class Tries:
    """Rate limit for failed sign-ins, counted per process.

    A shared count is not needed: tokens have 160 random bits.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._wrong: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, address: str) -> None:
        """Raise `ApiError` with Retry-After if there were too many failures."""
        for who, most in ((address, TRIES), ("", EVERYBODY)):
            count, _ = self._now(who, most)
            if count > most - 1:
                wait = math.ceil((count - most + 1) * MINUTE / most)
                told = "too many tokens were tried that are none. Wait a little."
                raise Refused(429, "busy", told, headers={"Retry-After": str(max(1, wait))})

    def wrong(self, address: str) -> None:
        for who, most in ((address, TRIES), ("", EVERYBODY)):
            count, at = self._now(who, most)
            self._wrong[who] = (count + 1, at)
            self._wrong.move_to_end(who)
        while len(self._wrong) > ADDRESSES:
            self._wrong.popitem(last=False)

    def _now(self, who: str, most: int) -> tuple[float, float]:
        now = self._monotonic()
        count, at = self._wrong.get(who, (0.0, now))
        return max(0.0, count - (now - at) * most / MINUTE), now
