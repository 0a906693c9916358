"""Archives of the classes of Apache Kafka, HDFS and ZooKeeper, which JVMs of tests map into memory instead of loading
and checking each class.

With its archive Kafka starts with a third less of the processor, and a tool of Kafka with half. ``python -m
tests.lab.class_archives`` makes the archives that are missing, once, and keeps them next to the cache of jars.
:func:`install` has all Java commands use them. Java checks that an archive fits the class path and itself, and does
without it otherwise. Spark has archives of its own (``tests.spark.class_archive``).
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from spark_kafkalite.processes import java_process, zookeeper
from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS, java_command
from tests.lab import apache_kafka, hdfs, jars
from tests.patience import PATIENCE_S, wait_until
from tests.seeds import SOAK

# An archive that does not fit is no matter for the output of a test.
QUIET: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def _kafka_class_path() -> str:
    return jars.class_path(jars.APACHE_KAFKA.directory)


def _run_kafka(directory: Path, options: Sequence[str]) -> None:
    """A node writes and reads a topic of its own, and ends in order."""
    # Only for this: all processes of tests import this module.
    from spark_kafkalite import Consumer, Producer, TopicPartition

    node = apache_kafka.ApacheKafka(directory, jvm_options=(*SHORT_LIVED_OPTIONS, *options)).start()
    try:
        with Producer(bootstrap_servers=node.bootstrap) as producer:
            producer.send("archived", b"value").result(PATIENCE_S)
        with Consumer(bootstrap_servers=node.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("archived", 0)])
            wait_until(lambda: consumer.poll(100), "a record read")
    finally:
        # It writes the archive before it ends.
        node.stop(5 * PATIENCE_S)


def _run_hdfs(directory: Path, options: Sequence[str]) -> None:
    """A cluster starts, and ends in order."""
    hdfs.MiniHdfs(directory, jvm_options=options).start().stop(5 * PATIENCE_S)


def _run_zookeeper(directory: Path, options: Sequence[str]) -> None:
    """A server is the registry of a broker, and ends in order."""
    from spark_kafkalite.processes.cluster import BrokerProcess

    with zookeeper.ZooKeeperServer(directory / "server", jvm_options=options) as server:
        with BrokerProcess(directory / "broker", overrides={"zookeeper.connect": server.connect}):
            pass
        os.kill(server.pid, signal.SIGTERM)
        server.wait(5 * PATIENCE_S)


# What starts the class path of a JVM, and what runs there for the archive.
_ARCHIVED: Final[
    dict[str, tuple[Callable[[], str | None], Callable[[], str], Callable[[Path, Sequence[str]], None]]]
] = {
    "apache-kafka": (apache_kafka.available, _kafka_class_path, _run_kafka),
    "hdfs": (hdfs.available, hdfs.class_path, _run_hdfs),
    "zookeeper": (zookeeper.available, zookeeper.class_path, _run_zookeeper),
}


def options_for(class_path: str) -> tuple[str, ...]:
    """Return the Java options that use the archive of what a class path begins with, if there is one."""
    for archived, path in _made().items():
        if class_path == archived or class_path.startswith(f"{archived}{os.pathsep}"):
            return (f"-XX:SharedArchiveFile={path}", *QUIET)
    return ()


def install() -> None:
    """Have the Java commands of this process use the archives from now on. The soak starts Java as users do."""
    if not SOAK:
        java_process.set_more_options(options_for)


@cache
def _made() -> dict[str, Path]:
    """Return the archives that exist by the class paths that they are of."""
    found = {class_path(): _path(name, class_path()) for name, (_, class_path, _) in _ARCHIVED.items()}
    return {class_path: path for class_path, path in found.items() if path.exists()}


def _path(name: str, class_path: str) -> Path:
    """Return where an archive lies: what has to fit is in its name."""
    java = Path(java_command() or "java").resolve()
    digest = hashlib.blake2b(f"{java}\n{class_path}".encode(), digest_size=6).hexdigest()
    return jars.cache_directory().parent / "class-archives" / f"{name}-{digest}.jsa"


def main() -> int:
    """Make the archives that are missing, of what can run here."""
    for name, (missing, class_path, run) in _ARCHIVED.items():
        if missing() is not None or (path := _path(name, class_path())).exists():
            continue
        print(f"Making an archive of the classes of {name} for tests; that takes some seconds", flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            made = Path(scratch) / "made.jsa"
            run(Path(scratch) / "run", (f"-XX:ArchiveClassesAtExit={made}", *QUIET))
            made.rename(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
