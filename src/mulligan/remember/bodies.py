"""Records as they stand in a database: JSON, and what is long and cold compressed."""

from __future__ import annotations

import zlib
from typing import TypeVar

from mulligan.records import decode

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
