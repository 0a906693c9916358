"""Brokers that our clients are tested against: our own, and Apache Kafka."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.pool.names import own_numbers

_topic_numbers = own_numbers()
# What a test's file says where kafka-python or aiokafka runs in its process.
_OTHER_CLIENTS = re.compile(
    "kafka-python|kafka_python|KafkaPython|aiokafka|python_clients|group_clients|cluster.streams|import kafka"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let kafka-python and aiokafka leave the sockets of connections that time out, or of logins that fail, to the
    garbage collector."""
    leaves_sockets: dict[Path, bool] = {}
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        if item.path not in leaves_sockets:
            leaves_sockets[item.path] = _OTHER_CLIENTS.search(item.path.read_text(encoding="utf-8")) is not None
        if leaves_sockets[item.path]:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed (<socket|transport):ResourceWarning"))


@pytest.fixture(scope="session")
def our_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Our broker, one for the whole run: use topics of your own."""
    # Tests write records of long ago, which retention would take.
    overrides = {"log.initial.task.delay.ms": 86_400_000}
    with BrokerProcess(tmp_path_factory.mktemp("our-broker"), overrides=overrides) as running:
        yield running


@pytest.fixture(scope="session", params=["ours", pytest.param("apache", marks=pytest.mark.kafka)])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of our broker, and then of Apache Kafka."""
    fixture = "our_broker" if request.param == "ours" else "apache_kafka"
    return str(request.getfixturevalue(fixture).bootstrap)


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap_servers=bootstrap) as client:
        yield client


@pytest.fixture
def topic(admin: Admin) -> str:
    """A new topic with four partitions."""
    name = f"topic-{next(_topic_numbers)}"
    admin.create_topic(name, 4, 1)
    return name
