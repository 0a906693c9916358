"""Whether a name in a log directory is the file or directory that is expected, and the error when it is not.

Such an error is no fault of the disk (``disk.FailureKind.REFUSED``): a person or program has put a directory, a pipe or
a link there, or restored too little. Its text names the file and what to do, so that callers need not.
"""

from __future__ import annotations

import errno
import stat
from enum import Enum
from typing import Final


class Kind(Enum):
    """What stands under a name; links are not followed."""

    FILE = "file"
    DIRECTORY = "directory"
    LINK = "symbolic link"
    PIPE = "named pipe"
    SOCKET = "socket"
    DEVICE = "device"


# The error of what should be a file and is of this kind.
_ERRNO_OF_KIND: Final = {Kind.DIRECTORY: errno.EISDIR, Kind.LINK: errno.ELOOP}


def kind_of_mode(mode: int) -> Kind:
    """Return the kind of what has this ``st_mode``."""
    if stat.S_ISREG(mode):
        return Kind.FILE
    if stat.S_ISDIR(mode):
        return Kind.DIRECTORY
    if stat.S_ISLNK(mode):
        return Kind.LINK
    if stat.S_ISFIFO(mode):
        return Kind.PIPE
    return Kind.SOCKET if stat.S_ISSOCK(mode) else Kind.DEVICE


def misplaced(path: str, kind: Kind, wanted: Kind = Kind.FILE) -> OSError:
    """Return the error for a name under which there is something of another kind, with what to do in its text."""
    remedy = f"put the {wanted.value} in its place"
    if kind is Kind.LINK:
        text = f"{path} is a symbolic link, and those in a log directory are not followed: {remedy}"
    else:
        text = f"{path} is a {kind.value} where a {wanted.value} should be: move it away, or {remedy}"
    code = _ERRNO_OF_KIND.get(kind, errno.ESPIPE) if wanted is Kind.FILE else errno.EEXIST
    return OSError(code, text, path)
