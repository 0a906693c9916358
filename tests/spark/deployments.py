"""Where the recipes of docs/spark.md run: Spark's standalone cluster, YARN and Spark Connect, real and on loopback.

All are of the PySpark that the tests have: its jars hold master, worker and Connect server, and YARN's client; YARN
itself is Hadoop's, from the jars of the mini cluster that HDFS comes from.
"""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from spark_kafkalite.processes.child_process import ChildProcess
from spark_kafkalite.processes.free_ports import free_ports
from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS, java_arguments, java_command
from tests.lab import hdfs, jars
from tests.lab.hdfs import hadoop_xml

from .recipes import plain_environment

# On a machine that does much else.
_START_TIMEOUT_S = 400
_JAVA = " ".join(SHORT_LIVED_OPTIONS)
HOME = Path(pyspark.__file__).parent
# What an application of these tests is given beside what the recipe says.
SMALL = {
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": _JAVA,
    "spark.executor.extraJavaOptions": _JAVA,
}


def spark_submit(**more: str) -> str:
    """Return the command that stands for ``spark-submit``, with settings for small machines."""
    settings = {**SMALL, **{name.replace("_", "."): value for name, value in more.items()}}
    return " ".join([f"{HOME}/bin/spark-submit", *(f"--conf '{name}={value}'" for name, value in settings.items())])


@contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """A master with two workers of one core, as processes; yields its URL. Executors run below ``directory``."""
    port, *ui_ports = free_ports(4)
    url = f"spark://127.0.0.1:{port}"
    start = [str(HOME / "bin" / "spark-class"), "org.apache.spark.deploy."]
    environment = {**plain_environment(), "SPARK_HOME": str(HOME), "SPARK_DAEMON_JAVA_OPTS": _JAVA}
    roles = [("master", ["master.Master", "--host", "127.0.0.1", "--port", str(port)])]
    for number in (1, 2):
        work = str(directory / f"worker{number}")
        worker = ["worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "700m", "--work-dir", work, url]
        roles.append((f"worker{number}", worker))
    with contextlib.ExitStack() as running:
        children = []
        for (name, (role, *arguments)), ui_port in zip(roles, ui_ports, strict=True):
            command = [start[0], start[1] + role, "--webui-port", str(ui_port), *arguments]
            child = ChildProcess(command, directory, name, environment=environment, working_directory=directory)
            running.callback(child.kill)
            children.append(child)
        for worker in children[1:]:
            _wait_for_line(worker, "Successfully registered with master")
        yield url


@contextmanager
def connect_server(directory: Path, command: str) -> Iterator[str]:
    """A Spark Connect server that a shell command starts and stays with; yields its address for clients."""
    [port] = free_ports(1)
    settings = {**SMALL, "spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": port}
    command += "".join(f" --conf '{name}={value}'" for name, value in settings.items())
    environment = plain_environment() | {"SPARK_LOG_DIR": str(directory), "SPARK_PID_DIR": str(directory)}
    server = ChildProcess(
        ["bash", "-c", command], directory, "connect", environment=environment, working_directory=directory
    )
    try:
        server.wait_until(lambda: _listens(port), _START_TIMEOUT_S, f"listening on port {port}")
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.kill()


@contextmanager
def yarn(directory: Path) -> Iterator[Path]:
    """A resource manager and a node manager; yields the directory for HADOOP_CONF_DIR."""
    names = ("resource-tracker", "scheduler", "admin", "webapp", "", "node", "localizer", "node-webapp")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    manager, node = "yarn.resourcemanager", "yarn.nodemanager"
    settings = {
        **{
            f"{manager}.{name}.address".replace("..", "."): f"127.0.0.1:{port}"
            for name, port in list(ports.items())[:5]
        },
        f"{manager}.scheduler.class": "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler",
        "yarn.scheduler.minimum-allocation-mb": "128",
        f"{node}.hostname": "127.0.0.1",
        f"{node}.address": f"127.0.0.1:{ports['node']}",
        f"{node}.localizer.address": f"127.0.0.1:{ports['localizer']}",
        f"{node}.webapp.address": f"127.0.0.1:{ports['node-webapp']}",
        f"{node}.local-dirs": str(directory / "local"),
        f"{node}.log-dirs": str(directory / "logs"),
        f"{node}.resource.memory-mb": "4096",
        f"{node}.resource.cpu-vcores": "4",
        # The machine's memory and disks are not what is looked at here.
        f"{node}.pmem-check-enabled": "false",
        f"{node}.vmem-check-enabled": "false",
        f"{node}.disk-health-checker.enable": "false",
    }
    conf = directory / "conf"
    conf.mkdir(parents=True)
    (conf / "yarn-site.xml").write_text(hadoop_xml(settings))
    core = {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(directory / "tmp")}
    (conf / "core-site.xml").write_text(hadoop_xml(core))
    java = java_command()
    assert java is not None
    # Containers are started with it.
    environment = plain_environment() | {"JAVA_HOME": str(Path(java).resolve().parents[1])}
    jars.fetch(jars.HDFS_MINI_CLUSTER)
    class_path = hdfs.class_path(jars.class_path(jars.fetch(jars.YARN_ADDITIONS)), str(conf))
    with contextlib.ExitStack() as running:
        for role in ("resourcemanager.ResourceManager", "nodemanager.NodeManager"):
            name = role.partition(".")[0]
            command = java_arguments(
                class_path, f"org.apache.hadoop.yarn.server.{role}", jvm_options=("-Xmx512m", *SHORT_LIVED_OPTIONS)
            )
            child = ChildProcess(command, directory, name, environment=environment, working_directory=directory)
            # Containers are no children of its process group: it ends them when it is asked to stop.
            running.callback(_stop, child)
        child.wait_until(lambda: _nodes(ports["webapp"]) == 1, _START_TIMEOUT_S, "registered with the resource manager")
        yield conf


def _wait_for_line(child: ChildProcess, text: str) -> None:
    child.wait_until(
        lambda: text in child.stderr_path.read_text(errors="replace"), _START_TIMEOUT_S, f"saying {text!r}"
    )


def output_of_yarn(conf: Path) -> str:
    """Return what the newest application has printed in its containers."""
    newest = max((conf.parent / "logs").iterdir(), key=lambda directory: directory.name)
    return "".join(path.read_text() for path in newest.glob("container_*/stdout"))


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _nodes(port: int) -> int:
    """How many nodes the resource manager has, by its own figures."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ws/v1/cluster/metrics", timeout=5) as answer:
            found = re.search(rb'"activeNodes":(\d+)', answer.read(100_000))
    except (OSError, ValueError):
        return 0
    return int(found.group(1)) if found else 0


def _stop(child: ChildProcess) -> None:
    child.signal(signal.SIGTERM)
    try:
        child.wait(60)
    finally:
        child.kill()
