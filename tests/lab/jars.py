"""Jars for tests and benches: fetched with Maven once, then kept in a cache that all checkouts share.

A :class:`JarSet` is a list of Maven coordinates; :func:`fetch` returns the directory that holds its jars. The cache is
``$KAFKALITE_JAR_CACHE``, else ``~/.cache/spark-kafkalite/jars``; a set's directory carries a digest of its coordinates,
so another version is another directory. Maven resolves a set into a temporary directory next to it, which is then
renamed. So a directory that exists is complete, and later calls neither start Maven nor touch the network. A lock file
keeps two processes from fetching the same set at once.

Maven's own configuration (``settings.xml``) sets where the jars come from; this module has no address.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

APACHE_KAFKA_VERSION: Final = "4.3.0"
HADOOP_VERSION: Final = "3.5.0"  # of PySpark 4.3's own jars; the mini cluster must match them
SPARK_CONNECTOR_VERSION: Final = "4.2.0"
DELTA_VERSION: Final = "4.4.0"

_DEPENDENCY_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
# A first fetch of the largest set takes about a minute; a registry that answers slowly must not hang a test run.
_FETCH_TIMEOUT_S: Final = 600


class JarsUnavailable(Exception):
    """The jars are not in the cache and cannot be fetched; the message names what is missing."""


@dataclass(frozen=True, slots=True)
class JarSet:
    """Maven coordinates (``group:artifact:version``) that are used together.

    ``transitive`` adds what they need at run time; without it the set is exactly what is listed.
    """

    name: str
    coordinates: tuple[str, ...]
    transitive: bool

    @property
    def directory(self) -> Path:
        """Where the jars of this set lie in the cache, fetched or not."""
        digest = hashlib.sha256("\n".join((*self.coordinates, str(self.transitive))).encode()).hexdigest()
        return cache_directory() / f"{self.name}-{digest[:12]}"

    @property
    def cached(self) -> bool:
        """Whether the jars are in the cache."""
        return self.directory.is_dir()


APACHE_KAFKA: Final = JarSet(
    f"apache-kafka-{APACHE_KAFKA_VERSION}",
    (
        f"org.apache.kafka:kafka_2.13:{APACHE_KAFKA_VERSION}",
        f"org.apache.kafka:kafka-tools:{APACHE_KAFKA_VERSION}",
        "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",  # what Kafka's own release adds to show its logs
    ),
    transitive=True,
)

# Programs on top of it: Kafka Streams, and Connect's file source and sink (its runtime comes with the tools).
APACHE_KAFKA_PROGRAMS: Final = JarSet(
    f"apache-kafka-programs-{APACHE_KAFKA_VERSION}",
    (
        f"org.apache.kafka:kafka-streams:{APACHE_KAFKA_VERSION}",
        f"org.apache.kafka:connect-file:{APACHE_KAFKA_VERSION}",
    ),
    transitive=True,
)

# The last line that has consumers which coordinate through ZooKeeper (they went in 2.0), and brokers of their time.
APACHE_KAFKA_1: Final = JarSet(
    "apache-kafka-1.1.1",
    ("org.apache.kafka:kafka_2.12:1.1.1", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"),
    transitive=True,
)

# The last line without persistent recursive watches. The other jars that it needs are those of a newer ZooKeeper.
ZOOKEEPER_3_5: Final = JarSet(
    "zookeeper-3.5.10",
    ("org.apache.zookeeper:zookeeper:3.5.10", "org.apache.zookeeper:zookeeper-jute:3.5.10"),
    transitive=False,
)

# Spark 4.2.0's connector; its token provider of 4.0.0 and this client were run together and gave right results.
SPARK_KAFKA_CONNECTOR: Final = JarSet(
    f"spark-kafka-connector-{SPARK_CONNECTOR_VERSION}",
    (
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_CONNECTOR_VERSION}",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.2",
        "org.apache.commons:commons-pool2:2.12.0",
    ),
    transitive=False,
)

# Of the same Spark: from_avro and to_avro.
SPARK_AVRO: Final = JarSet(
    f"spark-avro-{SPARK_CONNECTOR_VERSION}",
    (f"org.apache.spark:spark-avro_2.13:{SPARK_CONNECTOR_VERSION}",),
    transitive=False,
)

# Delta Lake for Spark 4.2. There is none for 4.3, and this one fails there.
DELTA_SPARK: Final = JarSet(
    f"delta-spark-{DELTA_VERSION}",
    (
        f"io.delta:delta-spark_4.2_2.13:{DELTA_VERSION}",
        f"io.delta:delta-storage:{DELTA_VERSION}",
        f"io.delta:delta-kernel-api:{DELTA_VERSION}",
        f"io.delta:delta-kernel-defaults:{DELTA_VERSION}",
        f"io.delta:delta-kernel-unitycatalog:{DELTA_VERSION}",
        "io.unitycatalog:unitycatalog-client:0.6.0",
    ),
    transitive=False,
)

# The shaded mini cluster refers to JUnit and Mockito without bringing them.
HDFS_MINI_CLUSTER: Final = JarSet(
    f"hdfs-mini-cluster-{HADOOP_VERSION}",
    (
        f"org.apache.hadoop:hadoop-client-minicluster:{HADOOP_VERSION}",
        "org.junit.jupiter:junit-jupiter-api:5.11.4",
        "org.opentest4j:opentest4j:1.3.0",
        "org.junit.platform:junit-platform-commons:1.11.4",
        "org.mockito:mockito-core:4.11.0",
    ),
    transitive=False,
)

# Its resource manager refers to Bouncy Castle without bringing it.
YARN_ADDITIONS: Final = JarSet(
    f"yarn-additions-{HADOOP_VERSION}",
    (
        "org.bouncycastle:bcprov-jdk18on:1.80",
        "org.bouncycastle:bcpkix-jdk18on:1.80",
        "org.bouncycastle:bcutil-jdk18on:1.80",
    ),
    transitive=False,
)

ALL_SETS: Final = (
    APACHE_KAFKA,
    APACHE_KAFKA_PROGRAMS,
    APACHE_KAFKA_1,
    ZOOKEEPER_3_5,
    SPARK_KAFKA_CONNECTOR,
    SPARK_AVRO,
    DELTA_SPARK,
    HDFS_MINI_CLUSTER,
    YARN_ADDITIONS,
)


def cache_directory() -> Path:
    """Return the cache's directory; it need not exist."""
    chosen = os.environ.get("KAFKALITE_JAR_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "spark-kafkalite" / "jars"


def available(jar_set: JarSet) -> str | None:
    """Return why the jars are not available here, or None when they are cached or Maven can fetch them."""
    if jar_set.cached:
        return None
    if shutil.which("mvn") is None:
        return f"the jars {jar_set.name} are not in {cache_directory()} and Maven (mvn) is not installed"
    return None


def fetch(jar_set: JarSet) -> Path:
    """Return the directory that holds the set's jars, fetching them first when they are not in the cache.

    Raises JarsUnavailable when Maven is missing or fails.
    """
    target = jar_set.directory
    if target.is_dir():
        return target
    if (reason := available(jar_set)) is not None:
        raise JarsUnavailable(reason)
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():  # another process may have fetched it while this one waited
            _fetch_into(target, jar_set)
    return target


def jars_in(directory: Path) -> list[Path]:
    """Return the jars of a directory, in name order."""
    return sorted(directory.glob("*.jar"))


def class_path(*directories: Path) -> str:
    """Return a Java class path of all jars in the directories (Java itself expands the ``*``)."""
    return os.pathsep.join(str(directory / "*") for directory in directories)


def _fetch_into(target: Path, jar_set: JarSet) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        project = Path(scratch)
        jars = project / "jars"
        (project / "pom.xml").write_text(_project_model(jar_set), encoding="utf-8")
        command = [
            "mvn", "-q", "-B", "-f", str(project / "pom.xml"),
            f"{_DEPENDENCY_PLUGIN}:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}",
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            raise JarsUnavailable(f"Maven did not fetch {jar_set.name} within {_FETCH_TIMEOUT_S} s") from None
        if done.returncode != 0 or not jars_in(jars):
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
            raise JarsUnavailable(f"Maven could not fetch {jar_set.name} (exit code {done.returncode}):\n{tail}")
        jars.rename(target)


def _project_model(jar_set: JarSet) -> str:
    nothing_else = "" if jar_set.transitive else (
        "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    )  # fmt: skip
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version>{nothing_else}</dependency>"
        for group, artifact, version in (escape(coordinate).split(":") for coordinate in jar_set.coordinates)
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>spark.kafkalite</groupId><artifactId>jars</artifactId>"
        f"<version>1</version><packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>\n"
    )


def main(names: Sequence[str]) -> int:
    """Fetch the sets whose names begin with one of ``names`` (without names all), so that later runs need no network.

    Returns 1 if one cannot be fetched, and prints the reason.
    """
    missing = False
    for jar_set in ALL_SETS:
        if names and not jar_set.name.startswith(tuple(names)):
            continue
        if not jar_set.cached:
            print(f"fetching {jar_set.name} with Maven", flush=True)
        try:
            fetch(jar_set)
        except JarsUnavailable as reason:
            print(reason, file=sys.stderr)
            missing = True
    return 1 if missing else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
