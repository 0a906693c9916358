"""The fixture that comes with the package: a real broker for one test.

pytest finds this module through the entry point ``pytest11``, so installing spark-kafkalite is all it takes::

    def test_orders_arrive(kafkalite_broker):
        producer = Producer(bootstrap_servers=kafkalite_broker.bootstrap)

Each test has a broker of its own, on a free loopback port and in the test's temporary directory, so tests may run in
parallel. It is a process: ``kill()`` it, ``restart()`` it on the same port, ``stop()`` it. It is gone when the test
ends.

pytest imports this module in every run of every project, so it imports nothing but pytest until a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from spark_kafkalite.testing.cluster import BrokerProcess


@pytest.fixture
def kafkalite_broker_settings() -> Mapping[str, object]:
    """Broker settings for ``kafkalite_broker``, in Kafka's names; define this fixture again to give your own."""
    return {}


@pytest.fixture
def kafkalite_broker(tmp_path: Path, kafkalite_broker_settings: Mapping[str, object]) -> Iterator[BrokerProcess]:
    """A running broker; ``kafkalite_broker.bootstrap`` is its address."""
    from spark_kafkalite.testing.cluster import BrokerProcess

    with BrokerProcess(tmp_path / "kafkalite-broker", overrides=kafkalite_broker_settings) as broker:
        yield broker
