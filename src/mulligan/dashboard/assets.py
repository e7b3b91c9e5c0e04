"""Static files of the pages: style sheet, scripts, icon. Read once and cached by browsers under a content hash."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "static"
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
MIN_COMPRESSED_BYTES = 600
"""Smaller responses do not gain from compression."""


class Asset(NamedTuple):
    type: str
    content: bytes
    gzipped: bytes
    digest: str


def load_assets(folder: Path = FOLDER) -> dict[str, Asset]:
    assets_by_name = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in TYPES:
            data = path.read_bytes()
            digest = hashlib.sha256(data).hexdigest()[:12]
            assets_by_name[path.name] = Asset(TYPES[path.suffix], data, gzip.compress(data, 9, mtime=0), digest)
    return assets_by_name


def compress_if_accepted(data: bytes, accepted: str) -> tuple[bytes, dict[str, str]]:
    """Compress a response body if the browser accepts gzip and the body is large enough. Return it with its headers."""
    if len(data) < MIN_COMPRESSED_BYTES or "gzip" not in accepted:
        return data, {"Vary": "Accept-Encoding"}
    return gzip.compress(data, 4, mtime=0), {"Vary": "Accept-Encoding", "Content-Encoding": "gzip"}
