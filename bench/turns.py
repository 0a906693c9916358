"""How long is a broker's event loop held by the worst that clients can ask of it?

The longest turn of the loop, in processor time of its thread, for every worst request that
``tests/interop/hostile/worst_requests.py`` has, and the longest garbage collection. The least of three maxima: a turn
that is too long is too long each time, and noise is not. The control is a piece of plain Python work in this process,
which says how fast the processor is.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.measurement import Row
from spark_kafkalite import Admin, Consumer, TopicPartition
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.wire.messages.metadata import MetadataRequest
from tests import processor
from tests.interop.broker import collected_broker
from tests.interop.hostile import worst_requests
from tests.interop.hostile.worst_requests import MEBIBYTE, WIDE, Worst
from tests.interop.support.metered_broker import MeteredBroker
from tests.interop.support.raw_client import RawClient

_PEER = "a piece of plain Python"
# 100 ms and 40 ms where the piece takes 5.3 ms.
_LONGEST_TURN, _LONGEST_COLLECTION = 19.0, 7.5
_EACH_QUICK = 12
_CONNECTIONS, _PARTITIONS = 800, 3_000


def rows(quick: bool) -> Iterator[Row]:
    """Measure, and yield a row for each API's longest turn, and one for collections."""
    with tempfile.TemporaryDirectory(prefix="kafkalite-bench-") as directory:
        yield from _turns(Path(directory) / "turns", worst_requests.ALL[:: _EACH_QUICK if quick else 1])
        yield from _collections(Path(directory) / "collections")


def _piece_ms() -> float:
    return statistics.median(processor.piece_ms() for _ in range(5))


def _turns(directory: Path, requests: list[Worst]) -> Iterator[Row]:
    settings = {"max.decompressed.batch.bytes": str(100 * MEBIBYTE), "log.retention.ms": "-1"}
    with MeteredBroker(directory / "data", overrides=settings) as broker:
        with Admin(bootstrap_servers=broker.bootstrap, request_timeout_ms=60_000) as admin:
            large = {"max.message.bytes": str(100 * MEBIBYTE)}
            admin.create_topics([NewTopic("wide", WIDE, 1), NewTopic("large", 1, 1, large)])
            admin.create_topic("stamped", 1, 1, large | {"message.timestamp.type": "LogAppendTime"})
            names = worst_requests.names("names-", worst_requests.MANY_TOPICS)
            admin.create_topics([NewTopic(name, 1, 1) for name in names])
        with Consumer(bootstrap_servers=broker.bootstrap, group_id="g") as consumer:
            consumer.commit({TopicPartition("wide", number): 0 for number in range(WIDE)})
        for worst in requests:
            frame = worst.make()

            def play(worst: Worst = worst, frame: bytes = frame) -> None:
                with RawClient(broker.bootstrap, 100.0) as client:
                    client.send_frame(frame)
                    client.is_closed() if worst.refused else client.receive_frame()

            yield Row(
                f"longest turn: {worst.name}", "ms", [broker.least_longest_ms(play)], [_piece_ms()], _PEER,
                higher_is_better=False, target=_LONGEST_TURN,
            )  # fmt: skip


def _collections(directory: Path) -> Iterator[Row]:
    directory.mkdir()
    prefix = collected_broker.command_prefix(directory)
    longest_ms = []
    with BrokerProcess(directory / "data", command_prefix=prefix) as broker:
        with Admin(bootstrap_servers=broker.bootstrap, request_timeout_ms=60_000) as admin:
            admin.create_topic("t", _PARTITIONS, 1)
        for _ in range(3):
            began = collected_broker.collections_so_far(directory)
            with ExitStack() as clients:
                crowd = [clients.enter_context(RawClient(broker.bootstrap, 60.0)) for _ in range(_CONNECTIONS)]
                for one in crowd:
                    one.call(MetadataRequest(topics=[]), 9)
            longest_ms.append(collected_broker.longest_ms(directory, began))
    yield Row(
        f"longest collection with {_CONNECTIONS} connections and {_PARTITIONS:,} partitions", "ms", [min(longest_ms)],
        [_piece_ms()], _PEER, higher_is_better=False, target=_LONGEST_COLLECTION,
    )  # fmt: skip
