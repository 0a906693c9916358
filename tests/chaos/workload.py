"""A workload: all clients that work on one topic of a cluster, from their start to the time when everything is read."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from spark_kafkalite import Admin, Consumer
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.log.files.small_files import topic_id_text
from spark_kafkalite.wire.messages.api_versions import ApiVersionsRequest
from tests.chaos.clients.client import HARD_END_S, ChaosClient, Place
from tests.chaos.clients.observers import BrokerObserver, OffsetObserver, TopicMaker
from tests.chaos.clients.producers import ChaosProducer, ConfluentProducer, JavaProducer, OurProducer
from tests.chaos.clients.readers import (
    ChaosPoller,
    ChaosReader,
    ConfluentMember,
    ConfluentPoller,
    NewerConfluentMember,
    OurMember,
    OurPoller,
)
from tests.chaos.clients.registry_readers import RegistryOffsetObserver, StreamReader
from tests.chaos.clients.spark_stream import SparkStream
from tests.chaos.history import HistoryWriter, Topic
from tests.interop.support.raw_client import RawClient
from tests.seeds import SOAK

PARTITIONS: Final = 6
# Records a second of each producer. All clients are one process: a slow machine has to keep up with it. A dozen readers
# fetch each record by itself.
_RATE: Final = 60.0 if SOAK else 10.0
# A JVM may take longer than what is waited for otherwise; if it has ended, nobody waits.
_START_S: Final = max(120.0, HARD_END_S)
_POLL_S: Final = 0.05
# ConsumerGroupHeartbeat.
_NEWER_GROUPS_KEY: Final = 68


class RunFailed(Exception):
    """The run itself went wrong: no history to be judged came of it."""


def make_topic(
    bootstrap: str,
    brokers: Mapping[int, str],
    name: str,
    history: HistoryWriter,
    *,
    replicas: int,
    seed: int = 0,
    configs: Mapping[str, str] | None = None,
) -> Place:
    """Make the topic that a workload works on, and note it."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name, PARTITIONS, replicas, dict(configs or {}))])
        deadline = time.monotonic() + HARD_END_S
        while True:
            # Whichever broker is asked may not have heard of it yet.
            try:
                made = admin.describe_topics([name])[name]
                if len(made.partitions) == PARTITIONS and all(each.leader >= 0 for each in made.partitions):
                    break
            except KafkaliteError as error:
                if time.monotonic() > deadline:
                    raise RunFailed(f"topic {name} cannot be described: {error}") from error
            time.sleep(_POLL_S)
        registry = admin.describe_configs(broker_id=min(brokers)).get("zookeeper.connect")
    topic_id = topic_id_text(made.topic_id)
    history.note(Topic(topic=topic_id, name=name, partitions=PARTITIONS, replicas=replicas))
    return Place(
        bootstrap, dict(brokers), name, topic_id, PARTITIONS, history, seed,
        registry=(registry.value if registry is not None else None) or "",
        serves_newer_groups=_serves(brokers[min(brokers)], _NEWER_GROUPS_KEY),
    )  # fmt: skip


def _serves(address: str, api_key: int) -> bool:
    with RawClient(address) as client:
        return api_key in {each.api_key for each in client.call(ApiVersionsRequest(), 2).api_keys}


class Workload:
    """Producers of three projects (Java's where it is compiled), two pollers, a group of three, and who asks. Where
    there is a registry, also a group of registry consumers; where brokers know them, one of the newer groups; and
    in the soak a Spark stream."""

    def __init__(
        self,
        place: Place,
        directory: Path,
        java_class_path: str | None = None,
        rate: float = _RATE,
        *,
        loses_records: bool = False,
    ) -> None:
        """``loses_records``: what was acknowledged may go, and who would end by that goes on."""
        self.place = place
        group, streams, newer = (f"{place.topic}-{kind}" for kind in ("group", "streams", "newer"))
        self.producers: list[ChaosProducer] = [
            OurProducer("ours", place, rate),
            ConfluentProducer("confluent", place, rate),
            OurProducer("plain", place, rate / 3, idempotent=False),
            OurProducer("loose", place, rate / 3, idempotent=False, acks="1"),
        ]
        if java_class_path is not None:
            self.producers.append(
                JavaProducer("java", place, rate, java_class_path, directory / f"{place.topic}-java.err")
            )
        self.readers: list[ChaosReader] = [
            OurPoller("poller", place),
            ConfluentPoller("confluent-poller", place),
            OurMember("member-1", place, group),
            OurMember("member-2", place, group),
            ConfluentMember("confluent-member", place, group),
        ]
        self._observers = {broker: BrokerObserver(place, broker) for broker in place.brokers}
        self.others: list[ChaosClient] = [
            *self._observers.values(),
            OffsetObserver("asker", place, group),
            TopicMaker("maker", place),
        ]
        if place.registry:
            self.readers += [StreamReader(f"stream-{number}", place, streams) for number in (1, 2)]
            self.others.append(RegistryOffsetObserver("stream-asker", place, streams))
        if place.serves_newer_groups:
            self.readers += [NewerConfluentMember(f"newer-{number}", place, newer) for number in (1, 2)]
            self.others.append(OffsetObserver("newer-asker", place, newer))
        if SOAK:
            spark = f"{place.topic}-spark"
            self.readers.append(SparkStream("spark", place, spark, directory, fails_on_loss=not loses_records))
            self.others.append(OffsetObserver("spark-asker", place, spark))

    @property
    def clients(self) -> list[ChaosClient]:
        return [*self.producers, *self.readers, *self.others]

    def start(self) -> None:
        """Start all clients, and return when each producer has acknowledgements and each poller records."""
        for client in self.clients:
            client.start()
        self._wait(_START_S, self._not_at_work, "at work")

    def wait_for_more(self, count: int) -> None:
        """Wait until each producer has so many acknowledgements more than now."""
        wanted = {producer: producer.acknowledged + count for producer in self.producers}
        self._wait_for_acknowledgements(lambda: {each.who: left - each.acknowledged for each, left in wanted.items()})

    def wait_for_more_in(self, partition: int, count: int, *, acks: str) -> None:
        """Wait until producers with these acks have so many acknowledgements of a partition more than now."""
        wanted = {
            producer: producer.acknowledged_in[partition] + count
            for producer in self.producers
            if producer.acks == acks
        }
        self._wait_for_acknowledgements(
            lambda: {each.who: left - each.acknowledged_in[partition] for each, left in wanted.items()}
        )

    def in_sync_by(self, broker: int, partition: int) -> set[int]:
        """Return the ISR that a broker has named last, none when it did not call itself the leader."""
        said = self._observers[broker].latest.get(partition)
        return set(said.isr) if said is not None and said.leader == broker else set()

    def _wait_for_acknowledgements(self, missing: Callable[[], dict[str, int]]) -> None:
        def lacking() -> list[str]:
            self.check()
            return [f"{who} lacks {count}" for who, count in missing().items() if count > 0]

        self._wait(HARD_END_S, lacking, "acknowledged")

    def finish(self) -> None:
        """Stop the producers, let the readers read to the end, and stop everybody. Raises RunFailed."""
        for producer in self.producers:
            producer.stop()
        for producer in self.producers:
            producer.join()
        ends = self._ends()
        pollers = [reader for reader in self.readers if isinstance(reader, ChaosPoller)]
        for poller in pollers:
            poller.may_end_at(ends)
        for poller in pollers:
            poller.join()
        # That one of them does not is for the judge to say.
        with contextlib.suppress(RunFailed):
            self._wait(HARD_END_S, lambda: self._groups_not_at(ends), "at the end")
        for client in (*self.readers, *self.others):
            client.stop()
        for client in (*self.readers, *self.others):
            client.join()
        self.check()

    def stop(self) -> None:
        """Stop all clients that still run, whatever came of them."""
        for client in self.clients:
            client.stop()
        for client in self.clients:
            client.join()

    def check(self) -> None:
        """Raise RunFailed when a client has ended by an error that nobody expected."""
        if problems := [client.problem for client in self.clients if client.problem]:
            raise RunFailed("\n".join(problems))

    def _not_at_work(self) -> list[str]:
        self.check()
        idle = [producer.who for producer in self.producers if not producer.acknowledged]
        return idle + [reader.who for reader in self.readers if not any(reader.positions.values())]

    def _groups_not_at(self, ends: Mapping[int, int]) -> list[str]:
        """Return the groups that have not been shown what lies before these offsets; no member has all partitions."""
        groups: dict[str, list[ChaosReader]] = defaultdict(list)
        for reader in self.readers:
            if group := reader.description().group:
                groups[group].append(reader)
        return [
            group
            for group, members in groups.items()
            if any(max(each.positions[partition] for each in members) < end for partition, end in ends.items())
        ]

    def _ends(self) -> dict[int, int]:
        partitions = [(self.place.topic, partition) for partition in range(self.place.partitions)]
        deadline = time.monotonic() + HARD_END_S
        with Consumer(bootstrap_servers=self.place.bootstrap) as consumer:
            while True:
                try:
                    found = consumer.end_offsets(partitions, timeout_ms=5000)
                    return {at.partition: offset for at, offset in found.items()}
                except KafkaliteError as error:
                    if time.monotonic() > deadline:
                        raise RunFailed(f"nobody says where {self.place.topic} ends: {error}") from error

    def _wait(self, timeout_s: float, missing: Callable[[], list[str]], what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while names := missing():
            if time.monotonic() > deadline:
                raise RunFailed(f"not {what} after {timeout_s} s: {', '.join(names)}")
            time.sleep(_POLL_S)
