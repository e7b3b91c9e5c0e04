"""Around a fork nobody holds what the child will need, and nobody lets go of what another holds."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

PREAMBLE = """
    import faulthandler, os, sys, threading
    from mulligan.core import fork_safety as forks

    faulthandler.dump_traceback_later(50, exit=True)

    def child(check):
        pid = os.fork()
        if pid == 0:
            try:
                os._exit(0 if check() else 1)
            except BaseException:
                os._exit(2)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def is_free(lock):
        return lock.acquire(timeout=0) and not lock.release()
"""


def said(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PREAMBLE) + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_child_can_take_a_lock_that_another_thread_held_all_the_time():
    assert said("""
        lock = threading.Lock()
        forks.hold_locks(lambda: [lock])
        is_over, is_begun = threading.Event(), threading.Event()

        def busy():
            while not is_over.is_set():
                with lock:
                    is_begun.set()

        thread = threading.Thread(target=busy)
        thread.start()
        is_begun.wait()
        print([child(lambda: is_free(lock)) for _ in range(30)] == [0] * 30)
        is_over.set()
        thread.join()
        print(is_free(lock))
    """).split() == ["True", "True"]


def test_threads_that_fork_at_once_let_go_of_their_own_only():
    assert said("""
        locks = [threading.Lock() for _ in range(3)]
        forks.hold_locks(lambda: locks)
        ends = []
        threads = [
            threading.Thread(
                target=lambda: ends.extend(child(lambda: all(map(is_free, locks))) for _ in range(10))
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(ends == [0] * 40, all(map(is_free, locks)))
    """).split() == ["True", "True"]


def test_what_cannot_be_held_in_time_is_renewed_in_the_child_and_the_parent_goes_on():
    assert said("""
        forks.LOCK_TIMEOUT_SECONDS = 0.01
        held = [threading.Lock()]
        held[0].acquire()
        forks.hold_locks(lambda: held)
        forks.run_in_child(lambda: held.__setitem__(0, threading.Lock()))
        print(child(lambda: is_free(held[0])), is_free(held[0]))
    """).split() == ["0", "False"]


def test_what_is_to_be_done_before_and_after_is_done_in_this_order_and_only_once():
    assert said("""
        told = []
        forks.register(lambda: told.append("before") or (lambda: told.append("after")))
        forks.run_in_child(lambda: told.append("child"))
        print(child(lambda: told == ["before", "after", "child"]), *told)
        print(child(lambda: told[2:] == ["before", "after", "child"]))
    """).split() == ["0", "before", "after", "0"]


def test_what_is_arranged_while_a_fork_waits_is_done_for_that_fork_too():
    """A module that another thread imports meanwhile may have opened what no child must inherit."""
    assert (
        said("""
        told = []

        def late():
            told.append("late")
            return lambda: told.append("after late")

        def waiting():
            thread = threading.Thread(target=forks.register, args=(late,))
            thread.start()
            thread.join()
            return lambda: None

        forks.register(waiting)
        print(child(lambda: told == ["late", "after late"]), told)
    """)
        == "0 ['late', 'after late']\n"
    )


@pytest.mark.parametrize(
    ("module", "use"),
    [
        ("mulligan.recover.repair", "fail()"),
        ("mulligan.learn.session", "m.session().close()"),
        ("mulligan.learn.session", "m.run(session=m)"),
        ("mulligan.capture.loop", "m.turns()"),
        ("mulligan.capture.loop", "m.loop(lambda messages: 'done', [], [])"),
        ("mulligan.capture.trace_context", "m.run().headers"),
        ("mulligan.capture.trace_context", "m.run(traceparent={})"),
        ("mulligan.capture.suggestions", "m.suggest('search', {}, 'not found')"),
        ("mulligan.learn.lesson_rendering", "m.render_lessons()"),
    ],
)
def test_a_child_can_import_what_another_thread_was_importing(module, use):
    """The lock of a module that is being imported would be taken in the child forever."""
    assert said(f"""
        import contextlib, signal, time
        import mulligan

        m = mulligan.Mulligan(store="memory:")
        with m.run():
            pass

        @m.tool
        def search(k: int):
            raise mulligan.AgentError("k must be 10 or less", code="invalid_arguments")

        def fail():
            with contextlib.suppress(mulligan.AgentError):
                search(50)

        class SlowFinder:
            def find_spec(self, name, path, target=None):
                if name == {module!r}:
                    is_importing.set()
                    time.sleep(0.3)

        def use():
            with contextlib.suppress(mulligan.api.SettingsError):
                {use}
            return True

        def use_in_child():
            signal.alarm(10)
            return use()

        is_importing = threading.Event()
        sys.meta_path.insert(0, SlowFinder())
        thread = threading.Thread(target=use)
        thread.start()
        print(is_importing.wait(10), child(use_in_child))
        thread.join()
    """).split() == ["True", "0"]


@pytest.mark.parametrize("arguments", ["limit=3", "limt=3", "limit=0"], ids=["success", "repair", "retry"])
def test_the_first_call_of_a_thread_imports_nothing_without_the_lock(arguments):
    """A fork does not wait for such an import, not even for that of a codec: the child would never get the module."""
    assert (
        said(f"""
        import mulligan

        outages = [ConnectionError("reset")]

        @mulligan.tool(effects="none")
        def search(limit: int = 10):
            if limit == 0 and outages:
                raise outages.pop()
            return "answer"

        with mulligan.run():
            pass  # reads the settings, under a lock of their own

        class Finder:
            def find_spec(self, name, path, target=None):
                if threading.current_thread() is caller:
                    thread = threading.Thread(target=lambda: is_free(forks.import_lock) and print(name))
                    thread.start()
                    thread.join()

        caller = threading.Thread(target=lambda: print(search({arguments})))
        sys.meta_path.insert(0, Finder())
        caller.start()
        caller.join()
    """)
        == "answer\n"
    )


def test_a_child_can_compute_a_lazy_property_that_another_thread_was_computing():
    assert said("""
        import signal, time
        from mulligan.redaction.lazy_property import lazy_property

        class Table:
            @lazy_property
            def index(self):
                is_computing.set()
                time.sleep(0.3)
                return {}

        def compute_in_child():
            signal.alarm(10)
            return Table().index == {}

        is_computing = threading.Event()
        thread = threading.Thread(target=lambda: Table().index)
        thread.start()
        print(is_computing.wait(10), child(compute_in_child))
        thread.join()
    """).split() == ["True", "0"]
