"""What is done around a fork: locks that nobody may hold meanwhile, and what a child needs anew.

A child has the one thread that forked, and every lock as it was: one that another thread held is held for ever.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable

PATIENCE = 2.0
"""Seconds that a fork waits for a lock. One that is still held then is for the child to renew."""

_around: list[Callable[[], Callable[[], None]]] = []
_in_child: list[Callable[[], object]] = []
_one_fork = threading.RLock()
"""Two threads that fork at once would otherwise let go of what the other holds."""
_afterwards: list[Callable[[], None]] = []
_is_forking = False


def around(before: Callable[[], Callable[[], None]]) -> None:
    """Calls `before` ahead of every fork, and what it answers with afterwards, in the parent and in the child."""
    _around.append(before)


def hold(locks: Callable[[], Iterable[threading.Lock]]) -> None:
    """Has these locks held by the thread that forks, as they are at that moment."""

    def before() -> Callable[[], None]:
        held = [lock for lock in tuple(locks()) if lock.acquire(timeout=PATIENCE)]

        def let_go() -> None:
            for lock in held:
                lock.release()

        return let_go

    around(before)


def renew(callback: Callable[[], object]) -> None:
    """Calls this in every forked child, after everything that was held is let go."""
    _in_child.append(callback)


def _before() -> None:
    global _is_forking
    _one_fork.acquire()
    _is_forking = True
    _afterwards.clear()
    # The list itself, and no copy of it: while one of them waits for a lock, whoever holds it may import a module that
    # has something to arrange for this fork already, such as what has a file open.
    for before in _around:
        _afterwards.append(before())  # noqa: PERF401 - one by one: where one raises, those before it are let go


def _after() -> None:
    global _is_forking
    if not _is_forking:
        return  # this file was imported by one thread while another was in the middle of a fork
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
