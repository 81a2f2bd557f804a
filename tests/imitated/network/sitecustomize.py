"""A file system of a network, as far as a process can be made to meet it. Python imports this file when it starts.

No file and no folder can be locked, and the list of a folder's names cannot be synced: what Linux says of a share of
Windows (SMB), of some FUSE, and of NFS without its lock daemon.
"""

import errno
import fcntl
import os
import stat
from typing import Any

plain = os.fsync


def no_locks(*_: Any) -> None:
    """`fcntl.flock`, `fcntl.lockf`."""
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def fsync(descriptor: int) -> None:
    """`os.fsync`, of files alone."""
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    plain(descriptor)


fcntl.flock, fcntl.lockf, os.fsync = no_locks, no_locks, fsync
