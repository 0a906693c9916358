"""Hosts on one network, made of network namespaces: each with an address of its own, joined by a bridge.

The bridge lives in a namespace too, so that nothing outside changes, and names carry this process's number. Needs root
and iproute2.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_PROJECT = Path(__file__).parents[2]
_numbers = itertools.count()


def problem() -> str | None:
    """Say why namespaces cannot be made here, or return None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "ip is not installed (make setup-debian)"
    name = f"kafkalite-{os.getpid()}-try"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        return f"network namespaces cannot be made here: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


class Network:
    """Some hosts; a context manager that leaves nothing behind. ``addresses`` holds each host's address."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._prefix = f"kafkalite-{os.getpid()}-{next(_numbers)}"
        self._hosts = list(hosts)
        third = os.getpid() % 250 + 1
        self.addresses = {host: f"10.77.{third}.{number}" for number, host in enumerate(hosts, 1)}

    def __enter__(self) -> Self:
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

    def python(self, host: str, script: str, *arguments: str, timeout_s: float = 60) -> str:
        """Run a Python script on a host and return what it printed. AssertionError with its output when it fails."""
        environment = {**os.environ, "SPARK_LOCAL_IP": self.addresses[host]}
        done = subprocess.run(
            [*self.prefix(host), sys.executable, "-c", script, *arguments],
            cwd=_PROJECT, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _namespace(self, host: str) -> str:
        return f"{self._prefix}-{host}"

    def _remove(self) -> None:
        for host in (*self._hosts, "switch"):
            subprocess.run(["ip", "netns", "del", self._namespace(host)], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
