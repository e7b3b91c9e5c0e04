"""Fork safety: locks to hold during a fork, and callbacks for the child process.

A child has only the forking thread but inherits the state of all locks. A lock held by another thread would stay locked
in the child forever.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable

PATIENCE = 2.0
"""Maximum wait for a lock before a fork. The child must reset a lock that is still taken then."""

_around: list[Callable[[], Callable[[], None]]] = []
_in_child: list[Callable[[], object]] = []
_one_fork = threading.RLock()
"""Serializes forks: two concurrent forks would otherwise release each other's locks."""
_afterwards: list[Callable[[], None]] = []
_is_forking = False


def around(before: Callable[[], Callable[[], None]]) -> None:
    """Call `before` before every fork, and the function it returns after it, in parent and child."""
    _around.append(before)


def hold(locks: Callable[[], Iterable[threading.Lock]]) -> None:
    """Hold these locks during every fork. The function is called at fork time."""

    def before() -> Callable[[], None]:
        held = [lock for lock in tuple(locks()) if lock.acquire(timeout=PATIENCE)]

        def let_go() -> None:
            for lock in held:
                lock.release()

        return let_go

    around(before)


def renew(callback: Callable[[], object]) -> None:
    """Call this in every forked child, after the held locks are released."""
    _in_child.append(callback)


def _before() -> None:
    global _is_forking
    _one_fork.acquire()
    _is_forking = True
    _afterwards.clear()
    # Iterate over the live list: a callback may block on a lock whose holder is importing a module that registers
    # another callback for this fork.
    for before in _around:
        _afterwards.append(before())  # noqa: PERF401 - if one raises, the earlier ones must still be released


def _after() -> None:
    global _is_forking
    if not _is_forking:
        return  # this module was imported by one thread during a fork by another
    for after in _afterwards:
        after()
    _afterwards.clear()
    _is_forking = False
    _one_fork.release()


def _child() -> None:
    _after()
    for callback in tuple(_in_child):
        callback()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_child)
