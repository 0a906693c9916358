"""A real HDFS for tests: Hadoop's mini cluster, one name node and one data node on loopback, in one Java process.

The mini cluster comes from :mod:`tests.lab.jars`, the rest of Hadoop from PySpark's own jars, so that
the server and Spark's client are of one version.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self
from xml.sax.saxutils import escape

from spark_kafkalite.processes.child_process import ChildFailed, ChildProcess
from spark_kafkalite.processes.free_ports import free_ports
from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS, java_arguments, java_problem
from tests.lab import jars

_MAIN_CLASS: Final = "org.apache.hadoop.test.MiniDFSClusterManager"
_START_TIMEOUT_S: Final = 180
_STOP_TIMEOUT_S: Final = 30
# Of PySpark's jars: Hadoop's client, shaded, and the logging that it expects. All of them would bring a second Netty
# and Jersey.
_PYSPARK_JARS: Final = ("hadoop-client-api-", "hadoop-client-runtime-", "slf4j-api-", "jcl-over-slf4j-", "log4j-")
_SAFE_MODE_OFF: Final = b'"FSState" : "Operational"'


def available() -> str | None:
    """Return why HDFS cannot run here, or None."""
    if (problem := java_problem()) is not None:
        return problem
    pyspark_jars = hadoop_client_jars()
    if pyspark_jars is None:
        return "PySpark is not installed; its jars hold the Hadoop client that HDFS needs"
    hadoop = next((jar.name for jar in pyspark_jars if jar.name.startswith("hadoop-client-api-")), "none")
    if hadoop != f"hadoop-client-api-{jars.HADOOP_VERSION}.jar":
        return f"PySpark's Hadoop ({hadoop}) is not the mini cluster's version {jars.HADOOP_VERSION}"
    return jars.available(jars.HDFS_MINI_CLUSTER)


class MiniHdfs:
    """A running HDFS; a context manager. ``uri`` is its root (``hdfs://127.0.0.1:PORT``), ``pid`` its process."""

    def __init__(
        self,
        directory: Path,
        *,
        heap_mb: int = 512,
        settings: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = (),
    ) -> None:
        """Prepare a cluster that keeps its blocks and output in ``directory``; ``start()`` or ``with`` starts it.

        ``settings`` are Hadoop's, written into :attr:`conf_directory`, where they also serve a client.
        """
        self.directory = directory
        self._heap_mb = heap_mb
        self._settings = dict(settings or {})
        self._jvm_options = tuple(jvm_options)
        self._process: ChildProcess | None = None
        self._port = 0

    @property
    def uri(self) -> str:
        return f"hdfs://127.0.0.1:{self._port}"

    @property
    def conf_directory(self) -> Path:
        """What HADOOP_CONF_DIR of a client is."""
        return self.directory / "conf"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ChildFailed("HDFS is not running: call start() first")
        return self._process.pid

    def start(self) -> Self:
        """Start an empty file system and return when it takes files."""
        jars.fetch(jars.HDFS_MINI_CLUSTER)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._port, http_port = free_ports(2)
        self.conf_directory.mkdir(exist_ok=True)
        write_hadoop_settings(self.conf_directory, self._settings)
        command = java_arguments(
            class_path(str(self.conf_directory)), _MAIN_CLASS,
            "-format", "-datanodes", "1", "-nnport", str(self._port), "-httpport", str(http_port),
            "-D", "dfs.permissions.enabled=false", "-D", "dfs.replication=1",
            # A failed write must not wait for other data nodes that do not exist.
            "-D", "dfs.client.block.write.replace-datanode-on-failure.policy=NEVER",
            # The thread that deletes blocks wakes after so long, a hundred times a second otherwise.
            "-D", "dfs.namenode.block.deletion.unlock.interval.ms=1000",
            jvm_options=(
                f"-Xmx{self._heap_mb}m", *SHORT_LIVED_OPTIONS, *self._jvm_options,
                f"-Dtest.build.data={self.directory / 'data'}", f"-Djava.io.tmpdir={self.directory}",
            ),
        )  # fmt: skip
        self._process = ChildProcess(command, self.directory, "hdfs", working_directory=self.directory)
        try:
            self._process.wait_until(
                lambda: is_serving(http_port), _START_TIMEOUT_S, f"serving on {self.uri} with a data node"
            )
        except ChildFailed:
            self._process.kill()
            self._process = None
            raise
        return self

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Stop the cluster. Nothing happens when it is not running."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.signal(signal.SIGTERM)
        try:
            process.wait(timeout_s)
        finally:
            process.kill()

    def kill(self) -> None:
        """End the cluster with SIGKILL. Nothing happens when it is not running."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def __getstate__(self) -> dict[str, object]:
        """A copy in another process has the address, and does not own the cluster's process."""
        return {**self.__dict__, "_process": None}

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def write_hadoop_settings(directory: Path, settings: Mapping[str, object]) -> None:
    """Write the settings of Hadoop and HDFS into a directory that HADOOP_CONF_DIR or a class path names."""
    # Defaults of HDFS are read after core-site.xml, and defaults of Hadoop before it.
    for name in ("core-site.xml", "hdfs-site.xml"):
        (directory / name).write_text(hadoop_xml(settings), encoding="utf-8")


def hadoop_xml(settings: Mapping[str, object]) -> str:
    """Return the content of a file of Hadoop's settings."""
    lines = "".join(
        f"<property><name>{name}</name><value>{escape(str(value))}</value></property>\n"
        for name, value in settings.items()
    )
    return f"<configuration>\n{lines}</configuration>\n"


def class_path(*more: str) -> str:
    """Return the class path of HDFS and YARN, whose jars have been fetched, and ``more`` after it."""
    mini_cluster = jars.class_path(jars.HDFS_MINI_CLUSTER.directory)
    return os.pathsep.join([mini_cluster, *(str(jar) for jar in hadoop_client_jars() or []), *more])


def hadoop_client_jars() -> list[Path] | None:
    """Return those of PySpark's jars that the mini cluster needs, or None without PySpark (which is not imported)."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    return [jar for jar in jars.jars_in(Path(spec.origin).parent / "jars") if jar.name.startswith(_PYSPARK_JARS)]


def is_serving(http_port: int, data_nodes: int = 1) -> bool:
    """Whether a name node has that many data nodes and has left safe mode, by its own metrics."""
    state = f"http://127.0.0.1:{http_port}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
    try:
        with urllib.request.urlopen(state, timeout=2) as answer:
            text = answer.read(1_000_000)
    except (OSError, ValueError):
        return False
    return b'"NumLiveDataNodes" : %d,' % data_nodes in text and _SAFE_MODE_OFF in text
