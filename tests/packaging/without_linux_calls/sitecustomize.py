"""Hides what macOS lacks from a process and all its children; Python imports this at start, where PYTHONPATH has it.

The names are those that CPython does not have there. Files of /proc cannot be opened from Python or listed. What stays
is what differs behind one name: locks that exclude each other, a loop on kqueue, the rules of sendfile.
"""

import builtins
import io
import os
from importlib import import_module

# Selectors, which come with sockets, take what they find in the first module.
MISSING = {
    "select": ("epoll", "EPOLL"),
    "os": (
        "EFD_", "RWF_", "SCHED_", "SPLICE_", "POSIX_FADV_", "MFD_", "GRND_", "O_DIRECT", "O_TMPFILE", "O_PATH",
        "O_NOATIME", "copy_file_range", "eventfd", "fdatasync", "getrandom", "memfd_create", "pidfd_open", "pipe2",
        "posix_fadvise", "posix_fallocate", "sched_getaffinity", "sched_setaffinity", "splice", "getxattr", "setxattr",
        "sendfile",
    ),
    "fcntl": ("F_SETPIPE_SZ", "F_GETPIPE_SZ", "F_ADD_SEALS", "F_OFD_"),
    "mmap": ("MADV_HUGEPAGE", "MADV_NOHUGEPAGE", "MAP_POPULATE", "MAP_HUGETLB"),
    "signal": ("sigtimedwait", "sigwaitinfo", "SIGRTMIN", "SIGPWR"),
    "socket": (
        "SOCK_NONBLOCK", "SOCK_CLOEXEC", "MSG_MORE", "MSG_NOSIGNAL",
        "SO_INCOMING_CPU", "TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_QUICKACK",
    ),
}  # fmt: skip
KEPT = {"O_DIRECTORY"}


def _hide() -> None:
    for module_name, beginnings in MISSING.items():
        module = import_module(module_name)
        for name in list(vars(module)):
            if name.startswith(beginnings) and name not in KEPT:
                delattr(module, name)


def _is_of_proc(path: object) -> bool:
    return isinstance(path, str | os.PathLike) and str(os.fspath(path)).startswith("/proc/")


_open, _listdir = io.open, os.listdir


def _open_file(file, *arguments, **named):
    if _is_of_proc(file):
        raise FileNotFoundError(2, "No such file or directory", os.fspath(file))
    return _open(file, *arguments, **named)


def _list_directory(path="."):
    if _is_of_proc(path):
        raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
    return _listdir(path)


_hide()
io.open = _open_file
builtins.open = _open_file
os.listdir = _list_directory
