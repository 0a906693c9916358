"""What do 5,000 connected producers and 2,000 group members cost a cluster of three brokers?

One process drives all connections with ready-made requests, so that the brokers are measured and no client library. The
producers send one record of 100 B each in turn, 1,000 requests a second in all, with acks=all to three replicas. The
members, in groups of 100, join and send a heartbeat every three seconds. All of it runs at the same time, on cores that
clients and brokers share: compare the two columns, and no figure with those of other benches.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from bench.measurement import Row, Usage, percentile, resident_bytes
from bench.raw_load import batch_of, check_produced, produce_request
from spark_kafkalite import Admin
from spark_kafkalite.client.group.consumer_protocol import Assignment, Subscription
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.net.descriptors import raise_limit
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.wire import codec
from spark_kafkalite.wire.frame import FrameBuffer, framed
from spark_kafkalite.wire.message import ApiMessage
from spark_kafkalite.wire.messages.find_coordinator import FindCoordinatorRequest
from spark_kafkalite.wire.messages.heartbeat import HeartbeatRequest
from spark_kafkalite.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from spark_kafkalite.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.lab.apache_kafka_cluster import ApacheKafkaCluster

TOPIC: Final = "shared"
PARTITIONS: Final = 60
GROUP_SIZE: Final = 100
_PER_SECOND: Final = 1000
_HEARTBEAT_S: Final = 3.0
_SESSION_MS: Final = 45_000
_REBALANCE_MS: Final = 300_000
_SETTLED_WITHIN_S: Final = 300.0
# How many connections are opened at a time.
_OPENING: Final = 50
# Apache Kafka reads both of a consumer's group: bytes that are none leave the group without an answer for ever.
_SUBSCRIPTION: Final = Subscription((TOPIC,)).encode()
_ASSIGNMENT: Final = Assignment((TopicPartition(TOPIC, 0),)).encode()
_PEER: Final = "Apache Kafka 4.3.0"
# Kafka's default: all members of a group join its first generation.
_OVERRIDES: Final = {"group.initial.rebalance.delay.ms": "3000"}


class Connection(asyncio.Protocol):
    """One connection. Its answers come in the order of its requests."""

    def __init__(self) -> None:
        self._received = FrameBuffer(1 << 24)
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, host: str, port: int) -> Self:
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, port)
        return connection

    async def call(self, frame: bytes) -> bytes:
        """Send a frame with its length, and return the answer."""
        assert self._transport is not None
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._transport.write(frame)
        return await answer

    async def ask(self, request: ApiMessage, version: int) -> Any:
        """Send a request and return the decoded answer."""
        answer = await self.call(framed(codec.encode_request(request, version, 1, "bench")))
        return codec.decode_response(request.API_KEY, version, answer)[1]

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received.feed(data)
        while (frame := self._received.next_frame()) is not None:
            answer = self._waiting.popleft()
            if not answer.done():  # cancelled
                answer.set_result(bytes(frame))

    def connection_lost(self, error: Exception | None) -> None:
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(error or ConnectionError("closed by the broker"))


@dataclass
class Found:
    """What one cluster was measured to do; times in seconds."""

    formed_s: float = 0.0
    produced: list[float] = field(default_factory=list)
    heartbeats: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    resident_bytes: int = 0


class Members:
    """Members of many groups: they join, and send heartbeats until they are cancelled."""

    def __init__(self, addresses: dict[int, tuple[str, int]], groups: int, found: Found) -> None:
        self._addresses = addresses
        self._found = found
        self._settled = 0
        self._count = groups * GROUP_SIZE
        self.all_are_settled = asyncio.Event()
        # A peer with a short queue of new connections answers a burst of them only after seconds.
        self._opening = asyncio.Semaphore(_OPENING)
        self.tasks = [
            asyncio.create_task(self._run(f"group-{group}", number))
            for group in range(groups)
            for number in range(GROUP_SIZE)
        ]

    async def _run(self, group: str, number: int) -> None:
        connection = await self._coordinator(group)
        member_id = ""
        try:
            while True:
                joined = await connection.ask(
                    JoinGroupRequest(
                        group_id=group,
                        session_timeout_ms=_SESSION_MS,
                        rebalance_timeout_ms=_REBALANCE_MS,
                        member_id=member_id,
                        protocol_type="consumer",
                        protocols=[JoinGroupRequestProtocol(name="range", metadata=_SUBSCRIPTION)],
                    ),
                    3,
                )
                if joined.error_code:
                    await asyncio.sleep(0.1)
                    continue
                member_id = joined.member_id
                assignments = (
                    [
                        SyncGroupRequestAssignment(member_id=each.member_id, assignment=_ASSIGNMENT)
                        for each in joined.members
                    ]
                    if joined.leader == member_id
                    else []
                )
                synced = await connection.ask(
                    SyncGroupRequest(
                        group_id=group,
                        generation_id=joined.generation_id,
                        member_id=member_id,
                        assignments=assignments,
                    ),
                    2,
                )
                if synced.error_code == 0:
                    self._note_settled(1)
                    await self._beat(connection, group, joined.generation_id, member_id, number)
                    self._note_settled(-1)
        finally:
            connection.close()

    def _note_settled(self, change: int) -> None:
        self._settled += change
        if self._settled == self._count:
            self.all_are_settled.set()

    async def _beat(self, connection: Connection, group: str, generation: int, member_id: str, number: int) -> None:
        """Send heartbeats until the group rebalances."""
        request = HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id)
        await asyncio.sleep(_HEARTBEAT_S * number / GROUP_SIZE)
        while True:
            began_s = time.perf_counter()
            answer = await connection.ask(request, 2)
            self._found.heartbeats.append(time.perf_counter() - began_s)
            if answer.error_code:
                return
            await asyncio.sleep(_HEARTBEAT_S)

    async def _coordinator(self, group: str) -> Connection:
        """Connect to the coordinator of a group, once there is one."""
        async with self._opening:
            asking = await Connection.open(*next(iter(self._addresses.values())))
            try:
                while (answer := await asking.ask(FindCoordinatorRequest(key=group, key_type=0), 2)).error_code:
                    await asyncio.sleep(0.5)
            finally:
                asking.close()
            return await Connection.open(*self._addresses[answer.node_id])


class Cluster:
    """Three brokers of either kind."""

    def __init__(self, bootstrap: str, pids: list[int]) -> None:
        self._pids = pids
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic(TOPIC, PARTITIONS, 3, configs={"min.insync.replicas": "2"})
            topic = admin.describe_topics([TOPIC])[TOPIC]
            self._addresses = {node.node_id: (node.host, node.port) for node in admin.describe_cluster().brokers}
        self._leaders = {each.partition: each.leader for each in topic.partitions}

    def measure(self, producers: int, groups: int, seconds: float) -> Found:
        return asyncio.run(self._measure(producers, groups, seconds))

    async def _measure(self, producers: int, groups: int, seconds: float) -> Found:
        found = Found()
        connections = await self._connect(producers)
        began_s = time.perf_counter()
        members = Members(self._addresses, groups, found)
        async with asyncio.timeout(_SETTLED_WITHIN_S):
            await members.all_are_settled.wait()
        found.formed_s = time.perf_counter() - began_s
        await self._produce(connections, 5.0, found)  # warms up
        found.produced.clear()
        found.heartbeats.clear()
        usages = [Usage(pid) for pid in self._pids]
        await self._produce(connections, seconds, found)
        found.cpu_s = sum(usage.cpu_s for usage in usages)
        found.resident_bytes = sum(map(resident_bytes, self._pids))
        for task in members.tasks:
            task.cancel()
        ended = await asyncio.gather(*members.tasks, return_exceptions=True)
        for each in ended:
            if isinstance(each, Exception):
                raise each
        for connection, _ in connections:
            connection.close()
        return found

    async def _connect(self, producers: int) -> list[tuple[Connection, bytes]]:
        """Return a connection to the leader of a partition for each producer, with its request."""
        batch = batch_of(1)
        requests = [produce_request(TOPIC, [partition], batch) for partition in range(PARTITIONS)]
        connections = []
        for first in range(0, producers, _OPENING):
            partitions = [number % PARTITIONS for number in range(first, min(first + _OPENING, producers))]
            opened = await asyncio.gather(
                *(Connection.open(*self._addresses[self._leaders[partition]]) for partition in partitions)
            )
            connections += [(each, requests[partition]) for each, partition in zip(opened, partitions, strict=True)]
        return connections

    async def _produce(self, connections: list[tuple[Connection, bytes]], seconds: float, found: Found) -> None:
        """Have one producer after the other send, at a steady rate whether or not the broker keeps up."""

        async def send(connection: Connection, request: bytes) -> None:
            began_s = time.perf_counter()
            answer = await connection.call(request)
            found.produced.append(time.perf_counter() - began_s)
            check_produced(answer)

        began_s = time.perf_counter()
        async with asyncio.TaskGroup() as sends:
            for number in range(int(seconds * _PER_SECOND)):
                due_s = began_s + number / _PER_SECOND
                if (wait_s := due_s - time.perf_counter()) > 0:
                    await asyncio.sleep(wait_s)
                sends.create_task(send(*connections[number % len(connections)]))


def rows(quick: bool) -> Iterator[Row]:
    """Measure both clusters in turn and yield a row for each figure."""
    producers, groups, seconds, rounds = (500, 2, 10.0, 1) if quick else (5000, 20, 30.0, 3)
    # Brokers, which raise their own limit, and clients take a descriptor each for a connection.
    raise_limit()
    ours: list[Found] = []
    peers: list[Found] = []
    for _ in range(rounds):
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kafkalite-bench-")))
            cluster = stack.enter_context(KafkaliteCluster(directory, overrides=_OVERRIDES))
            cluster.wait_in_sync()
            pids = [broker.pid for broker in cluster.brokers.values()]
            ours.append(Cluster(cluster.bootstrap, pids).measure(producers, groups, seconds))
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kafkalite-bench-")))
            options = ("-XX:+UseG1GC",)
            nodes = stack.enter_context(
                ApacheKafkaCluster(directory, heap_mb=1024, jvm_options=options, overrides=_OVERRIDES)
            )
            pids = [node.pid for node in nodes.nodes.values()]
            peers.append(Cluster(nodes.bootstrap, pids).measure(producers, groups, seconds))
    what = f"{producers:,} producers, {groups * GROUP_SIZE:,} members"
    for name, unit, of in (
        (f"{groups * GROUP_SIZE:,} members, until all groups are formed", "s", lambda each: each.formed_s),
        (f"{what}: produce, p50", "ms", lambda each: percentile(each.produced, 0.5) * 1000),
        (f"{what}: produce, p99", "ms", lambda each: percentile(each.produced, 0.99) * 1000),
        (f"{what}: heartbeat, p50", "ms", lambda each: percentile(each.heartbeats, 0.5) * 1000),
        (f"{what}: heartbeat, p99", "ms", lambda each: percentile(each.heartbeats, 0.99) * 1000),
        (f"{what}: memory of three brokers", "MB", lambda each: each.resident_bytes / 1e6),
        (f"{what}: CPU of three brokers", "CPU s", lambda each: each.cpu_s),
    ):
        yield Row(
            name, unit, [of(each) for each in ours], [of(each) for each in peers], _PEER,
            higher_is_better=False, target=1.0,
        )  # fmt: skip
