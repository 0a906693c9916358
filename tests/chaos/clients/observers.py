"""Those who ask: each broker for its view, and, as users do, for offsets, commits and topics."""

from __future__ import annotations

import itertools
import time

from spark_kafkalite import Admin, Consumer
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from spark_kafkalite.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafkalite.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.chaos.clients.client import REQUEST_TIMEOUT_MS, ChaosClient, Place
from tests.chaos.history import Bound, Client, Committed, Sample
from tests.interop.support.raw_client import RawClient

_PAUSE_S = 0.5
_ASK_TIMEOUT_S = 2.0
_CALL_TIMEOUT_MS = 10_000
_LATEST = -1


class BrokerObserver(ChaosClient):
    """Asks one broker for the topic's leaders, and of those it leads for high watermark and log end."""

    def __init__(self, place: Place, broker: int) -> None:
        super().__init__(f"observer-{broker}", place)
        self.broker = broker
        # What the broker has said last of each partition.
        self.latest: dict[int, Sample] = {}

    def description(self) -> Client:
        return Client(who=self.who, kind="observer")

    def run(self) -> None:
        while not self.stopping.is_set():
            # A broker that is gone, or does not answer, says nothing.
            try:
                with RawClient(self.place.brokers[self.broker], _ASK_TIMEOUT_S) as client:
                    while not self.stopping.wait(_PAUSE_S):
                        self._ask(client)
            except OSError:
                self.stopping.wait(_PAUSE_S)

    def _ask(self, client: RawClient) -> None:
        begun = time.monotonic()
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=self.place.topic)], allow_auto_topic_creation=False)
        topic = client.call(asked, 9).topics[0]
        led = {each.partition_index: each for each in topic.partitions if each.leader_id == self.broker}
        high_watermarks = self._high_watermarks(client, list(led))
        log_ends = self._log_ends(client, {partition: each.leader_epoch for partition, each in led.items()})
        ended = time.monotonic()
        self.latest = {
            each.partition_index: Sample(
                who=self.who, begun=begun, ended=ended, topic=self.place.topic_id, partition=each.partition_index,
                broker=self.broker, leader=each.leader_id, epoch=each.leader_epoch, isr=list(each.isr_nodes),
                high_watermark=high_watermarks.get(each.partition_index, -1),
                log_end=log_ends.get(each.partition_index, -1),
            )
            for each in topic.partitions
        }  # fmt: skip
        self.place.history.note(*self.latest.values())

    def _high_watermarks(self, client: RawClient, partitions: list[int]) -> dict[int, int]:
        if not partitions:
            return {}
        asked = [
            ListOffsetsPartition(partition_index=each, current_leader_epoch=-1, timestamp=_LATEST)
            for each in partitions
        ]
        request = ListOffsetsRequest(
            replica_id=-1, isolation_level=0, topics=[ListOffsetsTopic(name=self.place.topic, partitions=asked)]
        )
        found = client.call(request, 6).topics[0].partitions
        return {each.partition_index: each.offset for each in found if each.error_code == 0}

    def _log_ends(self, client: RawClient, epochs: dict[int, int]) -> dict[int, int]:
        if not epochs:
            return {}
        # The epoch is sent twice, so that an answer is of this epoch or an error.
        asked = [
            OffsetForLeaderPartition(partition=partition, current_leader_epoch=epoch, leader_epoch=epoch)
            for partition, epoch in epochs.items()
        ]
        request = OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[OffsetForLeaderTopic(topic=self.place.topic, partitions=asked)]
        )
        found = client.call(request, 3).topics[0].partitions
        return {each.partition: each.end_offset for each in found if each.error_code == 0}


class OffsetObserver(ChaosClient):
    """Asks, as any user may, for the earliest and latest offsets, and for what a group has committed."""

    def __init__(self, who: str, place: Place, group: str) -> None:
        super().__init__(who, place)
        self.group = group

    def description(self) -> Client:
        return Client(who=self.who, kind="observer")

    def run(self) -> None:
        partitions = [TopicPartition(self.place.topic, partition) for partition in range(self.place.partitions)]
        with Consumer(
            bootstrap_servers=self.place.bootstrap,
            group_id=self.group,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            default_api_timeout_ms=_CALL_TIMEOUT_MS,
            reconnect_backoff_max_ms=200,
        ) as consumer:
            while not self.stopping.wait(_PAUSE_S):
                begun = time.monotonic()
                try:
                    self._note_bounds(begun, "earliest", consumer.beginning_offsets(partitions))
                    begun = time.monotonic()
                    self._note_bounds(begun, "latest", consumer.end_offsets(partitions))
                    begun = time.monotonic()
                    found = consumer.committed(partitions, _CALL_TIMEOUT_MS)
                except KafkaliteError as error:
                    self.note_failure(begun, error)
                    continue
                ended = time.monotonic()
                self.place.history.note(
                    *(
                        Committed(
                            who=self.who, begun=begun, ended=ended, topic=self.place.topic_id,
                            partition=at.partition, group=self.group, offset=-1 if told is None else told.offset,
                        )
                        for at, told in found.items()
                    )
                )  # fmt: skip

    def _note_bounds(self, begun: float, bound: str, offsets: dict[TopicPartition, int]) -> None:
        ended = time.monotonic()
        self.place.history.note(
            *(
                Bound(
                    who=self.who, begun=begun, ended=ended, topic=self.place.topic_id, partition=at.partition,
                    bound=bound, offset=offset,
                )
                for at, offset in offsets.items()
            )
        )  # fmt: skip


class TopicMaker(ChaosClient):
    """Makes topics and removes them again, under few names, so that they are made again and again."""

    def description(self) -> Client:
        return Client(who=self.who, kind="observer")

    def run(self) -> None:
        there: set[str] = set()
        settings = {"request_timeout_ms": REQUEST_TIMEOUT_MS, "default_api_timeout_ms": _CALL_TIMEOUT_MS}
        with Admin(bootstrap_servers=self.place.bootstrap, reconnect_backoff_max_ms=200, **settings) as admin:
            for number in itertools.cycle(range(2)):
                if self.stopping.wait(self.chance.uniform(0.3, 1.0)):
                    return
                name = f"{self.place.topic}-passing-{number}"
                begun = time.monotonic()
                try:
                    if name in there:
                        admin.delete_topics([name])
                    else:
                        admin.create_topic(name, 2, -1)
                    there ^= {name}
                except KafkaliteError as error:
                    self.note_failure(begun, error)
                    # What was not answered may have been done, and what was done twice is refused.
                    there ^= {name}
