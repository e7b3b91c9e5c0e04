"""Detection of network file systems, where file locks may not work and a SQLite database can be corrupted silently."""

from __future__ import annotations

import os
import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
"""The mount table of Linux. On other systems the file does not exist, and every path counts as local."""
REMOTE = frozenset(
    "afs beegfs ceph cifs coda fuse.ceph fuse.glusterfs fuse.rclone fuse.s3fs fuse.sshfs glusterfs gpfs lustre "
    "ncpfs nfs nfs4 orangefs smb2 smb3 smbfs".split()
)


def remote(path: Path) -> str:
    """Return the type of network file system that holds a path, or would hold it; empty if it is local or unknown."""
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
        if is_above and len(point) >= len(best):  # a later mount at the same point hides the earlier one
            best, sort = point, after.split(" ")[0]
    return sort if sort in REMOTE else ""
