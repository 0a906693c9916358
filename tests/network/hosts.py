"""Hosts on one network, made of network namespaces: each with an address of its own, joined by a bridge.

The bridge lives in a namespace too, so that nothing outside changes, and names carry this process's number. Needs root
and iproute2. Packets can be lost one way between two hosts, and a host's cable can be pulled; neither needs anything of
the kernel but namespaces.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.patience import PATIENCE_S

_PROJECT = Path(__file__).parents[2]
_NAMESPACES: Final = Path("/run/netns")
_NAME: Final = re.compile(r"kafkalite-(\d+)-.+")
# No host has it: who sends to it is told nothing, and the bridge delivers to nobody.
_NOBODYS_LINK_ADDRESS: Final = "02:00:00:00:00:01"
_CLONE_NEWNET: Final = 0x40000000
_numbers = itertools.count()


def problem() -> str | None:
    """Say why namespaces cannot be made here, or return None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "ip is not installed (make setup-debian)"
    name = f"kafkalite-{os.getpid()}-try"
    try:
        tried = _run_ip("netns", "add", name)
    finally:
        _remove_namespace(name)
    return f"network namespaces cannot be made here: {tried.stderr.strip()}" if tried.returncode != 0 else None


class Network:
    """Some hosts; a context manager that leaves nothing behind. ``addresses`` holds each host's address."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._prefix = f"kafkalite-{os.getpid()}-{next(_numbers)}"
        self._hosts = list(hosts)
        third = os.getpid() % 250 + 1
        self.addresses = {host: f"10.77.{third}.{number}" for number, host in enumerate(hosts, 1)}
        self._lost_ways: set[tuple[str, str]] = set()
        self._unplugged: set[str] = set()

    def __enter__(self) -> Self:
        remove_orphans()
        with contextlib.ExitStack() as undo:
            undo.callback(self._remove)
            switch = self._namespace("switch")
            _ip("netns", "add", switch)
            _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
            _ip("-n", switch, "link", "set", "bridge", "up")
            for host, address in self.addresses.items():
                namespace = self._namespace(host)
                _ip("netns", "add", namespace)
                # Both ends are made inside namespaces: nothing appears on this host, and nothing can clash.
                _ip(
                    "-n",
                    switch,
                    "link",
                    "add",
                    f"to-{host}",
                    "type",
                    "veth",
                    "peer",
                    "name",
                    "eth0",
                    "netns",
                    namespace,
                )
                _ip("-n", switch, "link", "set", f"to-{host}", "master", "bridge", "up")
                _ip("-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
                _ip("-n", namespace, "link", "set", "lo", "up")
                _ip("-n", namespace, "link", "set", "eth0", "up")
            undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def prefix(self, host: str) -> tuple[str, ...]:
        """What stands before a command to run it on a host."""
        return ("ip", "netns", "exec", self._namespace(host))

    def python(
        self,
        host: str,
        script: str,
        *arguments: str,
        variables: Mapping[str, str] | None = None,
        timeout_s: float = PATIENCE_S,
    ) -> str:
        """Run a Python script on a host and return what it printed. AssertionError with its output when it fails.

        ``variables`` are environment variables that it gets besides those of this process.
        """
        environment = {**os.environ, "SPARK_LOCAL_IP": self.addresses[host], **(variables or {})}
        done = subprocess.run(
            [*self.prefix(host), sys.executable, "-c", script, *arguments],
            cwd=_PROJECT, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @contextlib.contextmanager
    def joined(self, host: str) -> Iterator[None]:
        """Have the calling thread, and the threads and processes that it starts, work on a host for a while.

        Only in a program of its own: a thread that is started meanwhile and stays never comes back.
        """
        with Path("/proc/thread-self/ns/net").open("rb") as before:
            with (_NAMESPACES / self._namespace(host)).open("rb") as namespace:
                _enter(namespace.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())

    def lose(self, sender: str, receiver: str) -> None:
        """Lose every packet from one host to another from now on; nobody is told."""
        self._lost_ways.add((sender, receiver))
        address = (self.addresses[receiver], "lladdr", _NOBODYS_LINK_ADDRESS)
        _ip("-n", self._namespace(sender), "neigh", "replace", *address, "dev", "eth0", "nud", "permanent")

    def unplug(self, host: str) -> None:
        """Pull a host's cable: it keeps its address and reaches nobody."""
        self._unplugged.add(host)
        _ip("-n", self._namespace("switch"), "link", "set", f"to-{host}", "down")

    def heal(self) -> None:
        """Plug everybody in, and lose nothing."""
        for host in self._unplugged:
            _ip("-n", self._namespace("switch"), "link", "set", f"to-{host}", "up")
        for sender, receiver in self._lost_ways:
            _ip("-n", self._namespace(sender), "neigh", "del", self.addresses[receiver], "dev", "eth0")
        self._unplugged.clear()
        self._lost_ways.clear()

    def _namespace(self, host: str) -> str:
        return f"{self._prefix}-{host}"

    def _remove(self) -> None:
        for host in (*self._hosts, "switch"):
            _remove_namespace(self._namespace(host))


def namespaces_of(pid: int) -> list[str]:
    """Return the names of the namespaces that a process has made."""
    found = _NAMESPACES.iterdir() if _NAMESPACES.exists() else ()
    return sorted(path.name for path in found if path.name.startswith(f"kafkalite-{pid}-"))


def remove_orphans() -> None:
    """Remove what processes have left that were killed before they could."""
    for path in _NAMESPACES.iterdir() if _NAMESPACES.exists() else ():
        named = _NAME.fullmatch(path.name)
        if named is not None and not Path(f"/proc/{named.group(1)}").exists():
            _remove_namespace(path.name)


def _remove_namespace(name: str) -> None:
    _run_ip("netns", "del", name)


def _enter(namespace: int) -> None:
    # os.setns came with Python 3.12.
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def _ip(*arguments: str) -> None:
    done = _run_ip(*arguments)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _run_ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ip to its end, whatever interrupts this process: ``subprocess.run`` would kill it, and what it has half done,
    or half removed, would be left behind."""
    command = ["ip", *arguments]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = running.communicate()
    except BaseException:
        running.wait()
        raise
    return subprocess.CompletedProcess(command, running.returncode, out, err)
