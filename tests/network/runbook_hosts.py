"""Hosts of a cluster as docs/operations.md has them: directories, a service manager, ZooKeeper, and a shell.

Each host is a network namespace and a directory that stands for its root. Commands of the page are run by a shell with
the page's addresses and paths replaced by those of the host. ``systemctl`` is done here: it runs the command that the
service's file names, and its signals.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from spark_kafkalite.processes.child_process import ChildProcess
from spark_kafkalite.processes.zookeeper import ZooKeeperServer
from tests.network.hosts import Network
from tests.paths import PROJECT
from tests.patience import PATIENCE_S

_DIRECTORIES: Final = ("/etc/kafkalite", "/etc/systemd/system", "/opt", "/var/lib/kafkalite")
_CLUSTER_PAGE: Final = PROJECT / "docs" / "cluster.md"
# Of the brokers in the test: a session that ends soon, and groups that may begin at once.
_MORE_SETTINGS: Final = "zookeeper.session.timeout.ms=6000\nzookeeper.connection.timeout.ms=60000\n"


def page_properties() -> str:
    """Return the broker.properties that docs/cluster.md has for several hosts."""
    section = _CLUSTER_PAGE.read_text(encoding="utf-8").split("\n## On several hosts\n")[1]
    (found,) = re.findall(r"(?ms)^```properties\n(broker\.id=1\nlisteners=.*?)^```", section)
    return str(found)


class Host:
    """One host; ``number`` is that of its broker, and of its address on the page (10.0.0.N)."""

    def __init__(self, network: Network, number: int, directory: Path) -> None:
        self.number = number
        self.name = f"host-{number}"
        self.address = network.addresses[self.name]
        self._network = network
        self._root = directory / self.name
        self._services: dict[str, ChildProcess] = {}
        self._starts = 0
        for each in _DIRECTORIES:
            self.path(each).mkdir(parents=True)
        # The working directory of the shell has what the page names without a directory.
        self._home = self._root / "home"
        (self._home / "conf").mkdir(parents=True)
        for name in ("kafkalite-broker.service", "host-1-broker-2.properties"):
            (self._home / "conf" / name).write_text(self.here((PROJECT / "conf" / name).read_text()))
        # There is no user kafkalite.
        self._add_program(self._root / "bin" / "chown", "exit 0")

    # What the page names, here ----------------------------------------------------------------------------------------

    def path(self, name: str) -> Path:
        return Path(f"{self._root}{name}")

    def here(self, text: str) -> str:
        """Return a text of the page with the addresses and paths of this host."""
        text = re.sub(r"10\.0\.0\.(\d)", lambda it: self._network.addresses[f"host-{it[1]}"], text)
        for each in _DIRECTORIES:
            text = re.sub(rf"(?<![\w/]){each}\b", str(self.path(each)), text)
        return text

    # What is done before the page's commands --------------------------------------------------------------------------

    def install(self, version: str, tree: Path) -> None:
        """Put an environment with the sources of a version where the page has it."""
        program = f'cd {tree} && exec {sys.executable} -m spark_kafkalite.cli "$@"'
        # A command of the page names files of the directory that it is called in.
        if tree == PROJECT:
            program = f'PYTHONPATH={tree} exec {sys.executable} -m spark_kafkalite.cli "$@"'
        self._add_program(self.path(f"/opt/kafkalite-{version}") / "bin" / "kafkalite", program)

    def link(self, version: str) -> None:
        link = self.path("/opt/kafkalite")
        link.symlink_to(self.path(f"/opt/kafkalite-{version}"))

    def configure(self, properties: str, **more: str) -> None:
        """Write broker.properties, and put the service in its place."""
        own = properties.replace("broker.id=1\n", f"broker.id={self.number}\n")
        own = own.replace("PLAINTEXT://10.0.0.1", f"PLAINTEXT://10.0.0.{self.number}")
        for name, value in more.items():
            name = name.replace("_", ".")
            own = re.sub(rf"(?m)^{re.escape(name)}=.*\n", "", own) + f"{name}={value}\n"
        self.path("/etc/kafkalite/broker.properties").write_text(self.here(own) + _MORE_SETTINGS)
        shutil.copy(self._home / "conf" / "kafkalite-broker.service", self.path("/etc/systemd/system"))

    def _add_program(self, path: Path, script: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    # The page's commands ----------------------------------------------------------------------------------------------

    def run(self, command: str, *, code: int = 0) -> str:
        """Run a command of the page here, and return all that it printed."""
        if command.startswith("systemctl "):
            self._systemctl(command.split()[1:])
            return ""
        if command.startswith("journalctl "):
            _, _, name, _, wanted = command.split()
            return "\n".join(
                line for line in self._services[name].stderr_path.read_text().splitlines() if wanted in line
            )
        path = f"{self._root / 'bin'}:{self.path('/opt/kafkalite')}/bin:{os.environ['PATH']}"
        done = subprocess.run(
            [*self._network.prefix(self.name), "sh", "-c", self.here(command)],
            cwd=self._home,
            env={**_environment(), "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=5 * PATIENCE_S,
            check=False,
        )
        assert done.returncode == code, f"{self.name}: {command}: {done.returncode}\n{done.stdout}\n{self._log()}"
        return done.stdout

    def _systemctl(self, words: Sequence[str]) -> None:
        match words:
            case ["daemon-reload"]:
                pass
            case ["start", name] | ["enable", "--now", name]:
                self._start(name)
            case ["stop", name] | ["disable", "--now", name]:
                self._stop(name)
            case ["restart", name]:
                self._stop(name)
                self._start(name)
            case _:
                raise AssertionError(f"systemctl {' '.join(words)} is not done here")

    def _start(self, name: str) -> None:
        program = shlex.split(self._of_service(name)["ExecStart"])
        self._starts += 1
        self._services[name] = ChildProcess(
            [*self._network.prefix(self.name), *program],
            self._root / "journal",
            f"{name}-{self._starts}",
            environment=_environment(),
        )

    def _stop(self, name: str) -> None:
        process = self._services.pop(name)
        process.signal(getattr(signal, self._of_service(name)["KillSignal"]))
        assert process.wait(PATIENCE_S) == 0, process.tail()

    def _of_service(self, name: str) -> Mapping[str, str]:
        unit = self.path("/etc/systemd/system") / f"{name}.service"
        return dict(re.findall(r"(?m)^(\w+)=(.*)$", unit.read_text()))

    def kill(self) -> None:
        """Lose the host: everything on it ends, and its disks are gone."""
        for process in self._services.values():
            process.kill()
        self._services.clear()

    def _log(self) -> str:
        return "".join(process.tail(10) for process in self._services.values())


def _environment() -> dict[str, str]:
    # The debug mode is for loops of the test's own process.
    return {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}


def zookeepers(network: Network, hosts: Sequence[Host], directory: Path) -> list[ZooKeeperServer]:
    """Prepare the ensemble of three hosts, with the ports of the page."""
    lines = [f"server.{each.number}={each.address}:2888:3888" for each in hosts]
    return [
        ZooKeeperServer(
            directory / f"zookeeper-{each.number}",
            host=each.address,
            port=2181,
            heap_mb=96,
            server_id=each.number,
            ensemble=lines,
            command_prefix=network.prefix(each.name),
        )
        for each in hosts
    ]
