"""What all tests share: the seed, the rule about skips in CI, the environment, process starts, the outside parts."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from spark_kafkalite.processes import zookeeper as zookeeper_part
from tests.lab import apache_kafka as apache_kafka_part
from tests.lab import class_archives, jars, loop_threads
from tests.lab import hdfs as hdfs_part
from tests.paths import PROJECT
from tests.pool import forking, parts
from tests.sampling import left_out
from tests.seeds import SEED, SOAK

if TYPE_CHECKING:
    from spark_kafkalite.processes.zookeeper import ZooKeeperServer
    from tests.interop.support.kerberized_kafka import KerberizedKafka
    from tests.lab.apache_kafka import ApacheKafka
    from tests.lab.hdfs import MiniHdfs
    from tests.lab.secure_kafka import SecureKafka
    from tests.lab.token_endpoint import TokenEndpoint

# A shared machine may take its time over any single example; pytest-timeout bounds the whole. Without the database a
# run does not depend on the runs before it.
settings.register_profile("kafkalite", deadline=None, database=None, max_examples=200 if SOAK else 50)
settings.load_profile("kafkalite")

# A shell without job control ignores SIGINT in what it starts in the background, and every child would inherit that:
# tests that press Ctrl-C would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

IN_CI = os.environ.get("CI") == "true"

loop_threads.install()
# Tests count warnings, and asyncio's debug mode has one for each callback that the host was slow to run.
logging.getLogger("asyncio").addFilter(lambda record: not str(record.msg).startswith("Executing "))
# Spark starts `python3` from the PATH otherwise, which is not this environment.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

class_archives.install()
# The soak starts every process as a user does.
if not SOAK:
    forking.install()
    os.environ["KAFKALITE_TESTS_PYTHON"] = sys.executable
    spark_python = str(PROJECT / "tests" / "spark" / "spark_python.sh")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = spark_python


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Order and chance follow the run's one seed, unless a command names another for the order."""
    if getattr(config.option, "randomly_seed", None) == "default":
        config.option.randomly_seed = SEED
    if getattr(config.option, "hypothesis_seed", "") is None:
        config.option.hypothesis_seed = str(SEED)


def pytest_report_header() -> str:
    return f"KAFKALITE_SEED={SEED}"


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Leave out what is for the soak."""
    if SOAK:
        return
    dropped = {item for item in items if item.get_closest_marker("soak")}
    if not any("::" in argument for argument in config.args):
        dropped.update(left_out(items))
    if dropped:
        config.hook.pytest_deselected(items=list(dropped))
        items[:] = [item for item in items if item not in dropped]


def fail_if_skipped_in_ci(report: Any) -> Any:
    """Turn a skip into a failure where everything that a test may need has to be there."""
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI=true does not allow: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    return fail_if_skipped_in_ci((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    return fail_if_skipped_in_ci((yield))


def fetch_or_skip(jar_set: jars.JarSet) -> None:
    """Have the jars in the cache, or skip with Maven's reason."""
    try:
        jars.fetch(jar_set)
    except jars.JarsUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def outside_parts() -> Iterator[None]:
    """What has Apache Kafka and the others started once in a run: the runner, or else this process."""
    if parts.is_owned_elsewhere():
        yield
        return
    with parts.Parts():
        yield


@pytest.fixture(scope="session")
def apache_kafka(outside_parts: None) -> ApacheKafka:
    """Apache Kafka, one node for the whole run: use topics of your own. Mark the test ``kafka``."""
    _need_apache_kafka()
    node: ApacheKafka = parts.shared("apache_kafka")
    return node


@pytest.fixture(scope="session")
def identity_provider(outside_parts: None) -> Iterator[TokenEndpoint]:
    """Gives tokens for ALICE, which ``secure_kafka`` takes; of this process alone."""
    with parts.own_identity_provider() as running:
        yield running


@pytest.fixture(scope="session")
def kerberos() -> None:
    """Skips where the host lacks a KDC, or the libraries of Kerberos."""
    from tests.interop.support.kerberos_realm import missing_programs

    pytest.importorskip("gssapi", reason="python-gssapi is missing: make setup-kerberos", exc_type=ImportError)
    if missing := missing_programs():
        pytest.skip(f"{', '.join(missing)} missing: make setup-debian")


@pytest.fixture(scope="session")
def kerberized_kafka(outside_parts: None, kerberos: None) -> KerberizedKafka:
    """Apache Kafka with Kerberos, and its realm; add principals of your own."""
    fetch_or_skip(jars.APACHE_KAFKA)
    node: KerberizedKafka = parts.shared("kerberized_kafka")
    return node


@pytest.fixture(scope="session")
def secure_kafka(tmp_path_factory: pytest.TempPathFactory, identity_provider: TokenEndpoint) -> SecureKafka:
    """Apache Kafka with secured listeners, one node for the whole run: use topics of your own. Mark the test ``kafka``.

    Do not give BOB rights that other tests expect him not to have. The files of its certificates are this process's.
    """
    _need_apache_kafka()
    node: SecureKafka = parts.shared("secure_kafka")
    node.directory = tmp_path_factory.mktemp("secure-kafka")
    node.authority = node.authority.copy_to(node.directory / "certificates")
    node.tokens = identity_provider
    return node


@pytest.fixture(scope="session")
def java_tools(outside_parts: None) -> parts.SharedJavaTools:
    """Apache Kafka's tools in one JVM. Mark the test ``kafka``."""
    _need_apache_kafka()
    return parts.SharedJavaTools()


@pytest.fixture(scope="session")
def hdfs(outside_parts: None) -> MiniHdfs:
    """HDFS, one for the whole run: use a directory of your own. Mark the test ``hdfs``."""
    if (reason := hdfs_part.available()) is not None:
        pytest.skip(reason)
    fetch_or_skip(jars.HDFS_MINI_CLUSTER)
    cluster: MiniHdfs = parts.shared("hdfs")
    return cluster


@pytest.fixture(scope="session")
def zookeeper(outside_parts: None) -> ZooKeeperServer:
    """One ZooKeeper for the whole run: use a chroot of your own. Mark the test ``zookeeper``."""
    if (reason := zookeeper_part.available()) is not None:
        pytest.skip(reason)
    server: ZooKeeperServer = parts.shared("zookeeper")
    return server


@pytest.fixture
def real_starts() -> Iterator[None]:
    """The brokers, registries and commands of a test are processes of their own from the first instruction on."""
    with forking.real_starts():
        yield


def _need_apache_kafka() -> None:
    if (reason := apache_kafka_part.available()) is not None:
        pytest.skip(reason)
    fetch_or_skip(jars.APACHE_KAFKA)
