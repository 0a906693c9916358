"""One Spark session and one broker for all tests of format("kafkalite"); every test uses topics of its own."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyspark
from pyspark.sql import SparkSession

from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.spark.pyspark_versions import PROGRESS_HAS_LOG_ENDS
from tests.lab import jars
from tests.lab.token_endpoint import TokenEndpoint
from tests.patience import PATIENCE_S
from tests.pool.names import own_numbers
from tests.seeds import SOAK

from .class_archive import archive_options, connector_class_path, session_settings
from .python_server import serving
from .spark_python import ADDRESS
from .topics import Topics

_COUNTER = own_numbers()

HAS_JVM_CONNECTOR = pyspark.__version__ == jars.SPARK_CONNECTOR_VERSION
# Not skipped: on another PySpark there is nothing to compare with, and nothing that an installation could change.
collect_ignore = [] if HAS_JVM_CONNECTOR else ["test_jvm_connector.py", "test_jvm_security.py", "test_delta_spark.py"]
if PROGRESS_HAS_LOG_ENDS:
    collect_ignore.append("test_old_pyspark.py")


# The first test of a worker starts Spark and loads its classes. A timeout would also break the connection to the JVM,
# and with it all tests after.
_TIMEOUT_S = 10 * PATIENCE_S


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests here more time than others before they count as hanging; the soak's command gives an hour."""
    for item in items:
        if not PROGRESS_HAS_LOG_ENDS and item.path.parent == Path(__file__).parent:
            # The driver of PySpark 4.0 and 4.1 leaves sockets to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
        if not SOAK and item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_TIMEOUT_S))


@pytest.fixture(scope="session")
def python_server() -> Iterator[None]:
    """Forks the Python processes of Spark, of this session and of the applications that tests start. The soak starts
    them as users do."""
    if SOAK:
        yield
        return
    # The path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="kafkalite-python-") as directory:
        address = Path(directory, "server")
        with serving(address):
            os.environ[ADDRESS] = str(address)
            yield
            del os.environ[ADDRESS]


@pytest.fixture(scope="session")
def spark(
    tmp_path_factory: pytest.TempPathFactory,
    identity_provider: TokenEndpoint,
    driver_stderr: Path,
    python_server: None,
) -> Iterator[SparkSession]:
    """A small session; PYSPARK_PYTHON is set by the top conftest."""
    # Python workers have the environment that the JVM was started with.
    os.environ["KAFKALITE_OAUTHBEARER_ALLOWED_URLS"] = identity_provider.url
    builder = SparkSession.builder.master("local[2]").appName("kafkalite tests")
    settings = session_settings(*archive_options(connector_class_path()))
    settings["spark.sql.streaming.stopTimeout"] = f"{PATIENCE_S:.0f}s"
    settings["spark.sql.warehouse.dir"] = str(tmp_path_factory.mktemp("warehouse"))
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    jvm = session._jvm
    # Before it starts a Python process, whose standard error it copies to what its own is then.
    copy = jvm.java.io.FileOutputStream(str(driver_stderr))
    both = jvm.org.apache.commons.io.output.TeeOutputStream(jvm.java.lang.System.err, copy)
    jvm.java.lang.System.setErr(jvm.java.io.PrintStream(both, True))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def driver_stderr(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the session's JVM and its Python processes write to standard error."""
    return tmp_path_factory.mktemp("driver") / "stderr"


@pytest.fixture
def warned(driver_stderr: Path, spark: SparkSession) -> Callable[[str], list[str]]:
    """The lines since the test began that have a text in them."""
    before = driver_stderr.stat().st_size

    def lines(text: str) -> list[str]:
        with driver_stderr.open("rb") as file:
            file.seek(before)
            said = file.read().decode().splitlines()
        return [line for line in said if text in line]

    return lines


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Our broker, for tests that do not break it."""
    # Tests write records of long ago, which retention would take: also soon after records were deleted.
    overrides = {"log.initial.task.delay.ms": 86_400_000, "log.retention.ms": -1}
    with BrokerProcess(tmp_path_factory.mktemp("broker"), overrides=overrides) as running:
        yield running


@pytest.fixture
def topics(broker: BrokerProcess, spark: SparkSession) -> Iterator[Topics]:
    """Topics on our broker, named after nothing else."""
    with Topics(broker.bootstrap, spark, f"t{next(_COUNTER)}") as made:
        yield made


@pytest.fixture(params=["kafkalite", pytest.param("apache", marks=pytest.mark.kafka)])
def topics_anywhere(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[Topics]:
    """Topics on our broker, and then on Apache Kafka."""
    server = request.getfixturevalue("broker" if request.param == "kafkalite" else "apache_kafka")
    with Topics(server.bootstrap, spark, f"t{next(_COUNTER)}") as made:
        yield made


@pytest.fixture(params=["broker", pytest.param("apache_kafka", marks=[pytest.mark.kafka, pytest.mark.soak])])
def topics_and_in_soak_anywhere(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[Topics]:
    """Topics on our broker, and in the soak on Apache Kafka, for what other tests do there too."""
    with Topics(request.getfixturevalue(request.param).bootstrap, spark, f"t{next(_COUNTER)}") as made:
        yield made


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


@pytest.fixture(autouse=True)
def no_query_is_left(spark: SparkSession) -> Iterator[None]:
    yield
    for query in spark.streams.active:
        query.stop()


@pytest.fixture
def unused_address() -> Iterator[str]:
    """An address where nothing listens, for as long as the test runs."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"
