"""Bytes as they come are lines, however they are cut."""

from __future__ import annotations

import asyncio
import itertools
import os

from hypothesis import given
from hypothesis import strategies as st

from mulligan.proxy.server import TRUNCATED_HEAD_BYTES, LineBuffer, Outlet


@given(st.binary(max_size=200).map(lambda data: data.replace(b"a", b"\n")), st.lists(st.integers(0, 200), max_size=8))
def test_lines_are_the_same_however_they_are_cut(data, cuts):
    lines, heard = LineBuffer(), []
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for begin, end in itertools.pairwise(edges):
        if data[begin:end]:
            heard += lines.feed(data[begin:end])
    assert heard == [part + b"\n" for part in data.split(b"\n")[:-1]]


def test_a_line_without_end_is_cut_and_costs_only_itself():
    lines = LineBuffer(max_bytes=5000)
    heard = []
    for _ in range(100):
        heard += lines.feed(b"x" * 1000)
        assert len(lines.partial_line) <= 6000
    heard += lines.feed(b"x\nnext\n")
    assert heard == [b"x" * TRUNCATED_HEAD_BYTES + b"\n", b"next\n"]


def test_what_a_slow_reader_does_not_take_waits_and_comes_in_order():
    out, into = os.pipe()
    said = [b"%d " % number * 20_000 for number in range(20)]

    async def written():
        outlet = Outlet(asyncio.get_running_loop(), into, lambda: None)
        for each in said:
            outlet.write(each)
        assert not outlet.is_empty
        heard = bytearray()
        while len(heard) < sum(map(len, said)):
            heard += await asyncio.to_thread(os.read, out, 65536)
        assert outlet.is_empty
        outlet.release()
        return bytes(heard)

    assert asyncio.run(written()) == b"".join(said)
    assert os.get_blocking(into)
    os.close(out)
    os.close(into)


def test_a_reader_that_is_gone_is_told_once():
    out, into = os.pipe()
    os.close(out)
    told = []

    async def written():
        outlet = Outlet(asyncio.get_running_loop(), into, lambda: told.append(1))
        outlet.write(b"x\n")
        outlet.write(b"y\n")

    asyncio.run(written())
    os.close(into)
    assert told == [1]
