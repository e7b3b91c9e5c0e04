"""Fork safety: locks to hold during a fork, and callbacks for the child process.

A child has only the forking thread but inherits the state of all locks. A lock held by another thread would stay locked
in the child forever.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

LOCK_TIMEOUT_SECONDS = 2.0
"""Maximum wait for a lock before a fork. The child must reset a lock that is still taken then."""

_before_callbacks: list[Callable[[], Callable[[], None]]] = []
_child_callbacks: list[Callable[[], object]] = []
_fork_lock = threading.RLock()
"""Serializes forks: two concurrent forks would otherwise release each other's locks."""
_after_callbacks: list[Callable[[], None]] = []
_is_forking = False
import_lock = threading.RLock()
"""Held while a module is imported at its first use in a call: a child forked meanwhile would wait for it forever."""


def register(before: Callable[[], Callable[[], None]]) -> None:
    """Call `before` before every fork, and the function it returns after it, in parent and child."""
    _before_callbacks.append(before)


def hold_locks(locks: Callable[[], Iterable[Any]]) -> None:
    """Hold these locks during every fork. The function is called at fork time."""

    def before() -> Callable[[], None]:
        acquired_locks = [lock for lock in tuple(locks()) if lock.acquire(timeout=LOCK_TIMEOUT_SECONDS)]

        def release_locks() -> None:
            for lock in acquired_locks:
                lock.release()

        return release_locks

    register(before)


hold_locks(lambda: (import_lock,))


def run_in_child(callback: Callable[[], object]) -> None:
    """Call this in every forked child, after the held locks are released."""
    _child_callbacks.append(callback)


def _before() -> None:
    global _is_forking
    _fork_lock.acquire()
    _is_forking = True
    _after_callbacks.clear()
    # Iterate over the live list: a callback may block on a lock whose holder is importing a module that registers
    # another callback for this fork.
    for before in _before_callbacks:
        _after_callbacks.append(before())  # noqa: PERF401 - if one raises, the earlier ones must still be released


def _after() -> None:
    global _is_forking
    if not _is_forking:
        return  # this module was imported by one thread during a fork by another
    for after in _after_callbacks:
        after()
    _after_callbacks.clear()
    _is_forking = False
    _fork_lock.release()


def _child() -> None:
    _after()
    for callback in tuple(_child_callbacks):
        callback()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_child)
