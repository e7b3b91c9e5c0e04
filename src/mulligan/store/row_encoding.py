"""Encoding of records as database rows: JSON, with long and old bodies compressed."""

from __future__ import annotations

import zlib
from typing import Any, TypeVar

import msgspec

from mulligan.core.records import Effects, Link, Recovery, RecoveryStop, Step, StepType, decode, decoder

T = TypeVar("T")

MIN_COMPRESSED_BYTES = 200
"""Shorter bodies are not compressed."""

# Compression dictionary of frequent JSON fragments, so that short bodies shrink too. Never edit it: stored bodies are
# decompressed with it.
DICTIONARY_1 = (
    b'"metadata":{"model":"description":"message":"content":"status":"error":"type":"text","id":"null,false,true,"value"'
    b'"items":[{"name":"query":"path":"url":"http://https://","title":"data":{"results":[{"}]},"tokens":{"input":"output"'
    b'"evidence":["fingerprint":"1:"confidence":0."remedy":"took_effect":"hint":"detail":'
    b'"kind":"tool/","failure":{"kind":"tool/'
    b'"recovery":{"remedy":"repair","changes":[{"path":"operation":"substitute","before":"after":"source":"call"}],"source":"schema"'
    b',"outcome":"failure","attempt":2,"parent":1,"type":"model","server":"arguments":{"result":{"started_at":17,"duration_seconds":0.0'
    b'{"run":"run_","seq":1,"call":1,"name":"'
)
_COMPRESSED_PREFIX_1 = b"\x01"
"""First byte of a body compressed with dictionary 1. JSON never starts with this byte."""


# Share the default objects of Step: omit_defaults compares by identity, so an equal number that is another object
# would be encoded.
_DEFAULTS = dict(zip(reversed(Step.__struct_fields__), reversed(Step.__struct_defaults__), strict=False))


class CompactStep(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Body of a call that succeeded at its first attempt: the Step fields that its row has no columns for.

    Hot path: thousands are built per batch.
    """

    arguments: Any = None
    result: Any = None
    duration_seconds: float = _DEFAULTS["duration_seconds"]
    parent: int | None = None
    type: StepType = "tool"
    server: str | None = None
    tokens: dict[str, int] | None = None
    metadata: dict[str, Any] | None = None
    recovery: Recovery | None = None
    stop: RecoveryStop | None = None
    sample_rate: float = _DEFAULTS["sample_rate"]
    effects: Effects | None = None
    key: str | None = None
    links: tuple[Link, ...] = ()


_decode_compact_step = decoder(CompactStep)
SuccessRow = tuple[str, int, str, int, CompactStep]
"""Row of a call that succeeded at its first attempt: run, seq, name, start time and body."""
FULL_STEP_PREFIX = b'{"run":'
"""Prefix of a body that contains the full step."""


def compress(body: bytes) -> bytes:
    """Return the body compressed, or unchanged if compression saves less than 10%."""
    if len(body) < MIN_COMPRESSED_BYTES or body.startswith(_COMPRESSED_PREFIX_1):
        return body
    compressor = zlib.compressobj(6, zlib.DEFLATED, -15, 8, zlib.Z_DEFAULT_STRATEGY, DICTIONARY_1)
    compressed = _COMPRESSED_PREFIX_1 + compressor.compress(body) + compressor.flush()
    return compressed if len(compressed) < 0.9 * len(body) else body


def decompress(body: bytes) -> bytes:
    """Return the JSON of a body, compressed or not."""
    if not body.startswith(_COMPRESSED_PREFIX_1):
        return body
    decompressor = zlib.decompressobj(-15, DICTIONARY_1)
    return decompressor.decompress(body[1:]) + decompressor.flush()


def decode_body(body: bytes, type: type[T]) -> T:
    """Decode a stored body as a record of this type."""
    return decode(decompress(body), type)


def decode_step(run: str, seq: int, name: str, started_at: int, body: bytes) -> Step:
    """Decode a step from its row. The body is a full step, or a `CompactStep` that the columns complete."""
    body = decompress(body)
    if body.startswith(FULL_STEP_PREFIX):
        return decode(body, Step)
    compact = _decode_compact_step(body)
    # Positional arguments: keywords are slower, and a run may have thousands of steps.
    return Step(
        run, seq, seq, 1, compact.parent, compact.type, name, compact.server, compact.arguments, "success",
        compact.result, started_at, compact.duration_seconds, None, compact.recovery, compact.stop, compact.tokens,
        compact.metadata, compact.sample_rate, compact.effects, compact.key, compact.links,
    )  # fmt: skip
