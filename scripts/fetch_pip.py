"""Downloads the wheel of pip from the index that PIP_INDEX_URL names, checks its hash, and prints the path."""

import hashlib
import os
import re
import sys
import urllib.parse
import urllib.request
from pathlib import Path

# Stable releases only: a pre-release has letters in its version.
WHEEL = re.compile(r'href="([^"]*/(pip-([0-9.]+)-py3-none-any\.whl))#sha256=([0-9a-f]{64})"')


def fetch(url: str) -> bytes:
    if not url.startswith("https://"):
        sys.exit(f"error: {url} is not https; pip is not taken from there.")
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            body: bytes = answer.read()
    except OSError as error:
        sys.exit(f"error: {url} did not answer: {error}")
    return body


def main(folder: str) -> None:
    named = os.environ.get("PIP_INDEX_URL", "")
    if not named:
        sys.exit("error: which package index? Name it: make PIP_INDEX_URL=https://...")
    index = named.rstrip("/") + "/pip/"
    wheels = WHEEL.findall(fetch(index).decode())
    if not wheels:
        sys.exit(f"error: {index} lists no wheel of pip.")
    address, name, _, sha256 = max(wheels, key=lambda wheel: [int(n) for n in wheel[2].split(".")])
    body = fetch(urllib.parse.urljoin(index, address))
    if hashlib.sha256(body).hexdigest() != sha256:
        sys.exit(f"error: {name} does not have the hash that {index} gives for it.")
    path = Path(folder) / name
    path.write_bytes(body)
    print(path)


if __name__ == "__main__":
    main(sys.argv[1])
