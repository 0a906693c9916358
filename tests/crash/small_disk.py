"""Disks that are easily filled (tmpfs of a few megabytes), and system calls of a live broker that are made to fail."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from spark_kafkalite.processes.cluster import BrokerProcess
from tests.crash.traced import traced


def why_not() -> str | None:
    """Return why this host cannot do it, None when it can."""
    if os.geteuid() != 0:
        return "mounts and strace on a running broker need root"
    missing = [name for name in ("mount", "umount", "strace", "prlimit") if shutil.which(name) is None]
    return f"{', '.join(missing)} not installed (make setup-debian)" if missing else None


class SmallDisk:
    """A mounted tmpfs; it goes at the latest when this process ends."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        path.mkdir(parents=True)
        options = f"size={size_bytes},mode=0755"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "kafkalite-test", str(path)], check=True)
        atexit.register(self.unmount)

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self, name: str = "filler") -> None:
        """Let somebody else take all that is free."""
        with contextlib.suppress(OSError), (self.path / name).open("ab", buffering=0) as file:
            while True:
                file.write(bytes(min(max(self.free_bytes, 1), 1 << 20)))

    def unmount(self) -> None:
        atexit.unregister(self.unmount)
        if os.path.ismount(self.path):
            subprocess.run(["umount", "--lazy", str(self.path)], check=True)


@contextlib.contextmanager
def failing(broker: BrokerProcess, call: str, error: str, *paths: Path) -> Iterator[None]:
    """Let a system call of the running broker fail, on these files only."""
    only = [part for path in paths for part in ("-P", str(path))]
    inject = ["-e", f"trace={call}", "-e", f"inject={call}:error={error}"]
    with traced(broker.pid, *only, *inject):
        yield


def limit(broker: BrokerProcess, name: str, value: int | str) -> None:
    """Set a soft limit of the running broker: ``nofile``, ``as``."""
    subprocess.run(["prlimit", f"--{name}={value}:", "--pid", str(broker.pid)], check=True)


def open_descriptors(broker: BrokerProcess) -> int:
    return len(os.listdir(f"/proc/{broker.pid}/fd"))
