"""Detection of network file systems, where file locks may not work and a SQLite database can be corrupted silently."""

from __future__ import annotations

import os
import re
from pathlib import Path

MOUNT_TABLE_PATH = Path("/proc/self/mountinfo")
"""The mount table of Linux. On other systems the file does not exist, and every path counts as local."""
NETWORK_FILESYSTEMS = frozenset(
    "afs beegfs ceph cifs coda fuse.ceph fuse.glusterfs fuse.rclone fuse.s3fs fuse.sshfs glusterfs gpfs lustre "
    "ncpfs nfs nfs4 orangefs smb2 smb3 smbfs".split()
)


def detect_network_filesystem(path: Path) -> str:
    """Return the type of network file system that holds a path, or would hold it; empty if it is local or unknown."""
    try:
        lines = MOUNT_TABLE_PATH.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    real_path = os.path.realpath(path)
    best_mount_point, filesystem_type = "", ""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        mount_point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4])
        is_inside_mount = real_path == mount_point or real_path.startswith(mount_point.rstrip("/") + "/")
        if is_inside_mount and len(mount_point) >= len(
            best_mount_point
        ):  # a later mount at the same point hides the earlier one
            best_mount_point, filesystem_type = mount_point, after.split(" ")[0]
    return filesystem_type if filesystem_type in NETWORK_FILESYSTEMS else ""
