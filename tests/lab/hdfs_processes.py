"""An HDFS of several processes, for tests that break it: its name node can be restarted, data nodes can be killed.

It checks permissions, as a real one does; its superuser is the user that starts it. For everything else
:mod:`tests.lab.hdfs` has one in a single process, and knows whether HDFS can run here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

from spark_kafkalite.processes.child_process import ChildProcess
from spark_kafkalite.processes.free_ports import free_ports
from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS, java_arguments
from tests.lab import jars
from tests.lab.hdfs import class_path, is_serving, write_hadoop_settings
from tests.lab.java import run_java

_NAME_NODE: Final = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATA_NODE: Final = "org.apache.hadoop.hdfs.server.datanode.DataNode"
_START_TIMEOUT_S: Final = 180
_HEAP_MB: Final = 256


class HdfsProcesses:
    """A running HDFS; a context manager. ``uri`` is its root; ``dfs.replication`` of clients should be ``nodes``."""

    def __init__(self, directory: Path, nodes: int = 2) -> None:
        self.directory = directory
        self.nodes = nodes
        self._name_node: ChildProcess | None = None
        self._data_nodes: list[ChildProcess] = []
        self._port, self._http_port = free_ports(2)
        self._starts = 0

    @property
    def uri(self) -> str:
        return f"hdfs://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        jars.fetch(jars.HDFS_MINI_CLUSTER)
        self._configure("name-node")
        run_java(
            class_path(str(self.directory / "name-node")), _NAME_NODE, "-format", "-nonInteractive",
            timeout_s=_START_TIMEOUT_S,
        )  # fmt: skip
        self.start_name_node(wait=False)
        for number in range(self.nodes):
            self._configure(f"data-node-{number}")
            self._data_nodes.append(self._start(f"data-node-{number}", _DATA_NODE))
        self.wait_until_serving(self.nodes)
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self._data_nodes, self._name_node):
            if process is not None:
                process.kill()

    def kill_data_node(self, number: int) -> None:
        """Kill a data node with -9."""
        self._data_nodes[number].kill()

    def stop_name_node(self) -> None:
        """Kill the name node with -9; its edits are on disk."""
        assert self._name_node is not None
        self._name_node.kill()

    def start_name_node(self, *, wait: bool = True) -> None:
        """Start the name node, at the address that it has had before."""
        self._name_node = self._start("name-node", _NAME_NODE)
        if wait:
            self.wait_until_serving(sum(process.running for process in self._data_nodes))

    def wait_until_serving(self, live_nodes: int) -> None:
        """Return when the name node takes files and has that many data nodes."""
        assert self._name_node is not None
        self._name_node.wait_until(
            lambda: is_serving(self._http_port, live_nodes), _START_TIMEOUT_S, f"serving with {live_nodes} data nodes"
        )

    def _start(self, name: str, main_class: str) -> ChildProcess:
        self._starts += 1
        options = (f"-Xmx{_HEAP_MB}m", *SHORT_LIVED_OPTIONS)
        command = java_arguments(class_path(str(self.directory / name)), main_class, jvm_options=options)
        return ChildProcess(command, self.directory, f"{name}-{self._starts}", working_directory=self.directory)

    def _configure(self, name: str) -> None:
        directory = self.directory / name
        directory.mkdir()
        loopback = "127.0.0.1:0"
        settings = {
            "fs.defaultFS": self.uri,
            "hadoop.tmp.dir": directory / "tmp",
            "dfs.namenode.name.dir": directory / "names",
            "dfs.namenode.http-address": f"127.0.0.1:{self._http_port}",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.safemode.extension": 0,
            "dfs.namenode.heartbeat.recheck-interval": 1000,
            "dfs.heartbeat.interval": 1,
            "dfs.replication": self.nodes,
            "dfs.datanode.data.dir": directory / "blocks",
            "dfs.datanode.address": loopback,
            "dfs.datanode.http.address": loopback,
            "dfs.datanode.ipc.address": loopback,
        }
        write_hadoop_settings(directory, settings)
