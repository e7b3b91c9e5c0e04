"""Whether a folder is on another machine: there locks may not hold, and a database is damaged without a word."""

from __future__ import annotations

import os
import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
"""Where Linux says what is mounted. Elsewhere nobody is asked."""
REMOTE = frozenset(
    "afs beegfs ceph cifs coda fuse.ceph fuse.glusterfs fuse.rclone fuse.s3fs fuse.sshfs glusterfs gpfs lustre "
    "ncpfs nfs nfs4 orangefs smb2 smb3 smbfs".split()
)


def remote(path: Path) -> str:
    """The sort of network file system a file is on, or would be; empty if it is on none, or nobody can say."""
    try:
        lines = MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    place = os.path.realpath(path)
    best, sort = "", ""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4])
        is_above = place == point or place.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= len(best):  # the later of two at one place hides the earlier
            best, sort = point, after.split(" ")[0]
    return sort if sort in REMOTE else ""
