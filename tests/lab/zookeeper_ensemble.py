"""Runs a real ensemble of ZooKeeper, each server a process on loopback."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from spark_kafkalite.processes.child_process import ChildFailed
from spark_kafkalite.processes.free_ports import free_ports
from spark_kafkalite.processes.zookeeper import DEFAULT_TICK_MS, ZooKeeperServer


class ZooKeeperEnsemble:
    """Several servers that replicate each other; a context manager. ``servers`` may be killed one by one."""

    def __init__(self, directory: Path, size: int = 3, *, tick_ms: int = DEFAULT_TICK_MS, heap_mb: int = 96) -> None:
        ports = free_ports(3 * size)
        client_ports, peer_ports, election_ports = ports[:size], ports[size : 2 * size], ports[2 * size :]
        lines = [
            f"server.{number + 1}=127.0.0.1:{peer_ports[number]}:{election_ports[number]}" for number in range(size)
        ]
        self.servers = [
            ZooKeeperServer(
                directory / f"server-{number + 1}",
                port=client_ports[number],
                tick_ms=tick_ms,
                heap_mb=heap_mb,
                server_id=number + 1,
                ensemble=lines,
            )
            for number in range(size)
        ]

    @property
    def connect(self) -> str:
        return ",".join(server.connect for server in self.servers)

    def start(self) -> Self:
        for server in self.servers:
            server.start(wait=False)
        for server in self.servers:
            server.wait_until_serving()
        return self

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except ChildFailed:
            self.kill()
            raise

    def __exit__(self, *_: object) -> None:
        self.kill()
