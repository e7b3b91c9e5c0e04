"""Encoding of records as database rows: JSON, with long and old bodies compressed."""

from __future__ import annotations

import zlib
from typing import Any, TypeVar

import msgspec

from mulligan.records import Effects, Ending, Link, Recovery, Step, StepType, decode, decoder

T = TypeVar("T")

WORTH = 200
"""Shorter bodies are not compressed."""

# Compression dictionary of frequent JSON fragments, so that short bodies shrink too. Never edit it: stored bodies are
# decompressed with it.
_WORDS_1 = (
    b'"metadata":{"model":"description":"message":"content":"status":"error":"type":"text","id":"null,false,true,"value"'
    b'"items":[{"name":"query":"path":"url":"http://https://","title":"data":{"results":[{"}]},"tokens":{"input":"output"'
    b'"evidence":["fingerprint":"1:"confidence":0."remedy":"ran":"hint":"detail":"kind":"tool/","failure":{"kind":"tool/'
    b'"after":{"remedy":"repair","changes":[{"path":"how":"substitute","before":"after":"from":"call"}],"source":"schema"'
    b',"outcome":"failure","attempt":2,"parent":1,"type":"model","server":"arguments":{"result":{"started":17,"seconds":0.0'
    b'{"run":"run_","seq":1,"call":1,"name":"'
)
_PACKED_1 = b"\x01"
"""First byte of a body compressed with dictionary 1. JSON never starts with this byte."""


# Share the default objects of Step: omit_defaults compares by identity, so an equal number that is another object
# would be encoded.
_DEFAULTS = dict(zip(reversed(Step.__struct_fields__), reversed(Step.__struct_defaults__), strict=False))


class Rest(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Body of a call that succeeded at its first attempt: the Step fields that its row has no columns for.

    Hot path: thousands are built per batch.
    """

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
"""Row of a call that succeeded at its first attempt: run, seq, name, start time and body."""
_WHOLE = b'{"run":'
"""Prefix of a body that contains the full step."""


def packed(body: bytes) -> bytes:
    """Return the body compressed, or unchanged if compression saves less than 10%."""
    if len(body) < WORTH or body.startswith(_PACKED_1):
        return body
    packer = zlib.compressobj(6, zlib.DEFLATED, -15, 8, zlib.Z_DEFAULT_STRATEGY, _WORDS_1)
    small = _PACKED_1 + packer.compress(body) + packer.flush()
    return small if len(small) < 0.9 * len(body) else body


def plain(body: bytes) -> bytes:
    """Return the JSON of a body, compressed or not."""
    if not body.startswith(_PACKED_1):
        return body
    unpacker = zlib.decompressobj(-15, _WORDS_1)
    return unpacker.decompress(body[1:]) + unpacker.flush()


def read(body: bytes, type: type[T]) -> T:
    """Decode a stored body as a record of this type."""
    return decode(plain(body), type)


def step(run: str, seq: int, name: str, started: int, body: bytes) -> Step:
    """Decode a step from its row. The body is a full step, or a `CompactStep` that the columns complete."""
    body = plain(body)
    if body.startswith(_WHOLE):
        return decode(body, Step)
    rest = _rest(body)
    # Positional arguments: keywords are slower, and a run may have thousands of steps.
    return Step(
        run, seq, seq, 1, rest.parent, rest.type, name, rest.server, rest.arguments, "success", rest.result,
        started, rest.seconds, None, rest.after, rest.ending, rest.tokens, rest.metadata, rest.sampled, rest.effects,
        rest.key, rest.links,
    )  # fmt: skip
