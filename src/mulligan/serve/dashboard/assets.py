"""What pages load from us: a style sheet, two scripts, an icon. Read once, named by their content, kept by browsers."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "static"
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
SMALL = 600
"""Bytes below which packing gains nothing."""


class Asset(NamedTuple):
    type: str
    plain: bytes
    packed: bytes
    digest: str


def load(folder: Path = FOLDER) -> dict[str, Asset]:
    found = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in TYPES:
            data = path.read_bytes()
            digest = hashlib.sha256(data).hexdigest()[:12]
            found[path.name] = Asset(TYPES[path.suffix], data, gzip.compress(data, 9, mtime=0), digest)
    return found


def packed(data: bytes, accepted: str) -> tuple[bytes, dict[str, str]]:
    """An answer as it is sent: packed where the browser takes that and it is worth it."""
    if len(data) < SMALL or "gzip" not in accepted:
        return data, {"Vary": "Accept-Encoding"}
    return gzip.compress(data, 4, mtime=0), {"Vary": "Accept-Encoding", "Content-Encoding": "gzip"}
