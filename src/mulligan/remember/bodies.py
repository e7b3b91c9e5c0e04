"""Records as they stand in a database: JSON, and what is long and cold compressed."""

from __future__ import annotations

import zlib
from typing import Any, TypeVar

import msgspec

from mulligan.records import Effects, Ending, Link, Recovery, Step, StepType, decode, decoder

T = TypeVar("T")

WORTH = 200
"""Bytes. A shorter record is left as it is."""

# Words that records are full of, so that a short one shrinks too. Never edited: what was compressed needs them.
_WORDS_1 = (
    b'"metadata":{"model":"description":"message":"content":"status":"error":"type":"text","id":"null,false,true,"value"'
    b'"items":[{"name":"query":"path":"url":"http://https://","title":"data":{"results":[{"}]},"tokens":{"input":"output"'
    b'"evidence":["fingerprint":"1:"confidence":0."remedy":"ran":"hint":"detail":"kind":"tool/","failure":{"kind":"tool/'
    b'"after":{"remedy":"repair","changes":[{"path":"how":"substitute","before":"after":"from":"call"}],"source":"schema"'
    b',"outcome":"failure","attempt":2,"parent":1,"type":"model","server":"arguments":{"result":{"started":17,"seconds":0.0'
    b'{"run":"run_","seq":1,"call":1,"name":"'
)
_PACKED_1 = b"\x01"
"""Begins a body that is compressed with the first set of words. JSON never begins so."""


# The very same objects: a number that equals the one by default, and is not that one, is written down.
_DEFAULTS = dict(zip(reversed(Step.__struct_fields__), reversed(Step.__struct_defaults__), strict=False))


class Rest(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """All of a call that worked at once that the columns of its row do not say. Made by the thousand."""

    arguments: Any = None
    result: Any = None
    seconds: float = _DEFAULTS["seconds"]
    parent: int | None = None
    type: StepType = "tool"
    server: str | None = None
    tokens: dict[str, int] | None = None
    metadata: dict[str, Any] | None = None
    after: Recovery | None = None
    ending: Ending | None = None
    sampled: float = _DEFAULTS["sampled"]
    effects: Effects | None = None
    key: str | None = None
    links: tuple[Link, ...] = ()


_rest = decoder(Rest)
PlainRow = tuple[str, int, str, int, Rest]
"""The run, number, name and beginning of a call that worked at once, and the rest of it."""
_WHOLE = b'{"run":'
"""Begins the body of a step that holds all of it."""


def packed(body: bytes) -> bytes:
    """The same in fewer bytes, or as it was if that saves nothing."""
    if len(body) < WORTH or body.startswith(_PACKED_1):
        return body
    packer = zlib.compressobj(6, zlib.DEFLATED, -15, 8, zlib.Z_DEFAULT_STRATEGY, _WORDS_1)
    small = _PACKED_1 + packer.compress(body) + packer.flush()
    return small if len(small) < 0.9 * len(body) else body


def plain(body: bytes) -> bytes:
    if not body.startswith(_PACKED_1):
        return body
    unpacker = zlib.decompressobj(-15, _WORDS_1)
    return unpacker.decompress(body[1:]) + unpacker.flush()


def read(body: bytes, type: type[T]) -> T:
    return decode(plain(body), type)


def step(run: str, seq: int, name: str, started: int, body: bytes) -> Step:
    """A step from its row. Of a call that worked at once, the body has only what the columns do not say."""
    body = plain(body)
    if body.startswith(_WHOLE):
        return decode(body, Step)
    rest = _rest(body)
    # By place, and not by name, which takes longer: a run may have thousands of them.
    return Step(
        run, seq, seq, 1, rest.parent, rest.type, name, rest.server, rest.arguments, "success", rest.result,
        started, rest.seconds, None, rest.after, rest.ending, rest.tokens, rest.metadata, rest.sampled, rest.effects,
        rest.key, rest.links,
    )  # fmt: skip
