"""What a row of the matrix is, what it plays on, and the bounds that rows share.

Bounds are in terms of the registry session, SESSION_S; where clients have to find out by themselves that their leader
does not answer, their request timeout comes on top.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from spark_kafkalite import Admin
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.errors import InvalidReplicationFactor, KafkaliteError, RegistryError
from spark_kafkalite.log.files.small_files import topic_id_text
from spark_kafkalite.processes.child_process import ChildFailed
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.chaos.clients.client import HARD_END_S, REQUEST_TIMEOUT_MS, Place
from tests.chaos.history import FAIL, OK, UNKNOWN, Client, Fault, Measure, Send, Topic
from tests.chaos.our_cluster import LAG_TIME_S, SESSION_S, SIZE, ChaosCluster, DisksOfBroker
from tests.chaos.values import payload_of
from tests.chaos.workload import RunFailed, Workload
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import make_batch
from tests.patience import wait_until
from tests.seeds import SOAK

REQUEST_TIMEOUT_S: Final = REQUEST_TIMEOUT_MS / 1000
# Three brokers, a registry, a JVM and a dozen clients share the processor: this much is not the cluster's doing.
SLACK_S: Final = 1.0
# A broker that dies is missed after its session; then another one is elected and found.
FAILOVER_S: Final = SESSION_S + 2 + SLACK_S
ISR_WITHIN_S: Final = 15.0
# Lags are looked at every half of the time that they may last.
LAGGARD_OUT_S: Final = LAG_TIME_S * 1.5
# Producers go on when each has so many acknowledgements more.
GOES_ON: Final = 100 if SOAK else 15
_BETWEEN_S: Final = 1.0
_POLL_S: Final = 0.01
_PROBER: Final = "prober"
NOT_ENOUGH_REPLICAS: Final = 19
# Others leave open whether the record is in the log.
_OUTCOMES: Final = {0: OK, NOT_ENOUGH_REPLICAS: FAIL}


@dataclass
class Stage:
    """What a row plays on; ``chance`` is seeded. ``mixed_s`` is how long a row lasts whose length is free; ``topics``
    are those that a row has made beside the workload's and that are there in the end, their names by their ids."""

    cluster: ChaosCluster
    place: Place
    chance: random.Random
    mixed_s: float = 60.0
    topics: dict[str, str] = field(default_factory=dict)
    workload: Workload | None = None
    _probes: int = 0

    @contextlib.contextmanager
    def fault(self, name: str, target: int | str = "", **asked: Any) -> Iterator[Fault]:
        """Note a fault that lasts as long as the block; it counts until every ISR is full again, or too long for it.
        The block may ask for more, of what it gets, until its end."""
        # What the last one has left behind is not this one's doing.
        time.sleep(_BETWEEN_S)
        fault = Fault(name=name, target=str(target), begun=time.monotonic(), **asked)
        yield fault
        fault.ended = time.monotonic()
        # That they do not come back is for the judge to say.
        with contextlib.suppress(ChildFailed):
            self.cluster.wait_in_sync(self.place)
        fault.settle_s = time.monotonic() - fault.ended
        self.place.history.note(fault)

    @property
    def leader(self) -> int:
        return self.cluster.leader_of(self.place)

    @property
    def follower(self) -> int:
        return self.cluster.follower_of(self.place)

    @property
    def brokers(self) -> dict[int, BrokerProcess]:
        return self.cluster.brokers

    @property
    def partitions(self) -> range:
        """All partitions of the workload's topic."""
        return range(self.place.partitions)

    def wait_for_controller(self, *, other_than: int | None = None) -> int:
        """Return the controller's number as soon as there is one, and not ``other_than``."""
        found: list[int] = []

        def is_there() -> bool:
            controller = self.cluster.cluster.controller()
            if controller is not None and controller != other_than:
                found.append(controller)
            return bool(found)

        self.wait_until("a controller", is_there)
        return found[0]

    def led_by(self, broker: int) -> tuple[int, ...]:
        """Return the partitions that a broker leads."""
        return tuple(each for each in self.partitions if self.cluster.leader_of(self.place, each) == broker)

    def note_fault(self, begun: float, ended: float, name: str, target: int | str = "", **asked: Any) -> None:
        """Note one that is part of another: it has neither time to settle nor elections of its own."""
        self.place.history.note(Fault(name=name, target=str(target), begun=begun, ended=ended, elections=0, **asked))

    def note_measure(self, name: str, begun: float, within_s: float) -> None:
        """Note that something took from then until now."""
        self.place.history.note(Measure(name=name, begun=begun, ended=time.monotonic(), within_s=within_s))

    def wait_until(self, what: str, condition: Callable[[], object]) -> None:
        """Wait for something that a row needs to go on. Raises RunFailed, at once when a client has died."""

        def has_come() -> object:
            if self.workload is not None:
                self.workload.check()
            # What the registry does not answer on a busy host is asked again.
            with contextlib.suppress(RegistryError, NotInTime):
                return condition()
            return False

        try:
            wait_until(has_come, what, poll_s=_POLL_S, patience_s=HARD_END_S)
        except AssertionError as error:
            raise RunFailed(str(error)) from error

    def wait_for_more(self, count: int) -> None:
        """Wait until each producer of the workload has so many acknowledgements more."""
        assert self.workload is not None
        self.workload.wait_for_more(count)

    def wait_for_isr(self, members: Iterable[int], topic: str | None = None, partitions: int | None = None) -> None:
        """Wait until every partition of the workload's topic, or of another, has these and no others in its ISR."""
        wanted, name = set(members), topic or self.place.topic
        asked = range(self.place.partitions if partitions is None else partitions)
        self.wait_until(
            f"only {sorted(wanted)} in sync in {name}",
            lambda: all(self.cluster.cluster.in_sync(name, each) == wanted for each in asked),
        )

    # Topics beside the workload's, and single records -----------------------------------------------------------------

    def make_topic(
        self, name: str, partitions: int, configs: Mapping[str, str] | None = None, *,
        assignments: Mapping[int, list[int]] | None = None, bootstrap: str | None = None,
        away: BrokerProcess | None = None,
    ) -> str:  # fmt: skip
        """Make a topic that gets single records only, and return its id once a broker tells it. It has to be noted
        (:meth:`note_topic`) when it is known whether it stays. ``away`` is started if there are too few brokers."""
        with Admin(bootstrap_servers=bootstrap or self.cluster.bootstrap) as admin:
            spread = {} if assignments else {"num_partitions": partitions, "replication_factor": 3}
            wanted = NewTopic(name, configs=dict(configs or {}), assignments=assignments or {}, **spread)
            found: list[str] = []

            def is_made() -> bool:
                try:
                    admin.create_topics([wanted])
                except InvalidReplicationFactor:
                    # Or the controller has not heard yet of a broker that has just come back.
                    if away is not None and not away.running:
                        away.start()
                    return False
                return True

            def is_led() -> bool:
                with contextlib.suppress(KafkaliteError):
                    made = admin.describe_topics([name])[name]
                    if len(made.partitions) == partitions and all(each.leader >= 0 for each in made.partitions):
                        found.append(topic_id_text(made.topic_id))
                return bool(found)

            self.wait_until(f"topic {name} made", is_made)
            self.wait_until(f"topic {name} led", is_led)
        return found[0]

    def topic_id_at(self, topic: str, broker: int) -> str:
        """Return the id that a broker has for a topic, "" while it knows none."""
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        with RawClient(self.brokers[broker].bootstrap) as client:
            (found,) = client.call(asked, 12).topics
        return "" if found.error_code else topic_id_text(found.topic_id)

    def note_topic(self, topic_id: str, name: str, partitions: int, *, replicas: int = 3, is_kept: bool) -> None:
        self.place.history.note(
            Topic(
                topic=topic_id, name=name, partitions=partitions, replicas=replicas, is_kept=is_kept, is_busy=False
            )
        )  # fmt: skip
        if is_kept:
            self.topics[topic_id] = name

    def send_one(self, topic: str, topic_id: str, partition: int, broker: int, timeout_ms: int = 5000) -> int:
        """Send a record of the prober to a broker, with acks=all; note its outcome and return the error code, -1 when
        there was no answer."""
        if not self._probes:
            self.place.history.note(Client(who=_PROBER, kind="prober"))
        value = f"{_PROBER}-{self._probes}"
        batch = make_batch([payload_of(value)], timestamp_ms=time.time_ns() // 1_000_000)
        begun = time.monotonic()
        code, offset = -1, -1
        with contextlib.suppress(OSError), RawClient(self.brokers[broker].bootstrap, timeout_ms / 1000 + 5) as client:
            told = client.produce(topic, batch, partition, timeout_ms=timeout_ms)
            code, offset = told.error_code, told.base_offset
        self.place.history.note(
            Send(
                who=_PROBER, begun=begun, ended=time.monotonic(), topic=topic_id, partition=partition, value=value,
                number=self._probes, outcome=_OUTCOMES.get(code, UNKNOWN), offset=offset if code == 0 else -1,
                error=str(code) if code else "",
            )
        )  # fmt: skip
        self._probes += 1
        return code


@dataclass(frozen=True)
class Row:
    """One row of the matrix, or a part of one. ``configs`` and ``replicas`` are its topic's, ``overrides`` its
    brokers', of which there are ``brokers``, and ``disks`` what their log directories lie on. ``foreseen``: what
    brokers may complain of in it."""

    label: str
    play: Callable[[Stage], None]
    configs: Mapping[str, str] = field(default_factory=dict)
    overrides: Mapping[str, object] = field(default_factory=dict)
    replicas: int = 3
    brokers: int = SIZE
    disks: DisksOfBroker = DisksOfBroker.ONE
    foreseen: tuple[str, ...] = ()
    # Whether it needs a cluster for itself: it costs other rows their records, or their topics disturb it.
    is_alone: bool = False
    # Whether what was acknowledged may go, by unclean elections.
    loses_records: bool = False
    # Whether the registry is a real ZooKeeper.
    on_zookeeper: bool = False
    # Whether it is for hosts of their own (``lines.HostLines``), or for connections that can be ended
    # (``lines.ForwardedLines``).
    needs_hosts: bool = False
    ends_connections: bool = False

    @property
    def needs_loopback(self) -> bool:
        return self.ends_connections or self.on_zookeeper

    @property
    def name(self) -> str:
        return self.play.__name__.replace("_", " ")


def empty(log_directory: Path) -> None:
    """Remove everything in a log directory of a broker that does not run."""
    for path in log_directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
