"""A simulated broker: the real parts from the registry session to the log, in one simulated process.

Real are membership, watcher, controller, replicas, partitions, leaders and followers, the log manager and its logs on a
file system in memory. Not here: sockets, the decoding of requests, clients' handlers, groups, upkeep.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from spark_kafkalite.broker.replication.partition import PartitionServices
from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.broker.requests.purgatory import Purgatory
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import BrokerId
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.cluster.membership import ClusterMembership
from spark_kafkalite.registry.cluster.session import RegistrySession
from spark_kafkalite.registry.znodes import BrokerRegistration
from spark_kafkalite.slices import Slices
from spark_kafkalite.testing.manual_loop import ManualThreads
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs
from tests.simulator.registry import SimulatedRegistry, SimulatedStore
from tests.simulator.world import SimulatedClock, World

DIRECTORY = "/logs"


class SimulatedBroker:
    """One broker over its starts and ends; what it leaves on its disk is there at the next start."""

    def __init__(self, world: World, registry: SimulatedRegistry, number: int, settings: Mapping[str, object]) -> None:
        self.world = world
        self.registry = registry
        self.broker_id = BrokerId(number)
        self.fs = MemoryFs()
        self.run: Run | None = None
        self._defaults = TopicConfig.from_properties(settings)

    @property
    def is_running(self) -> bool:
        return self.run is not None

    def start(self) -> None:
        """Begin a process; it has joined the cluster some simulated time later."""
        assert self.run is None
        self.run = Run(self, self._defaults)

    def kill(self, mode: CrashMode = CrashMode.PROCESS) -> None:
        """End the process; its disk is as that leaves it."""
        assert self.run is not None
        self.run.loop.kill()
        self.fs = self.fs.crash(mode, self.world.random)
        self.run = None

    def pause(self, seconds: float) -> None:
        """Stop the process for a while, as SIGSTOP does."""
        assert self.run is not None
        self.run.loop.paused_until_s = self.world.now_s + seconds


class Run:
    """One process of a broker."""

    def __init__(self, owner: SimulatedBroker, defaults: TopicConfig) -> None:
        world = owner.world
        self.owner = owner
        self.loop = world.new_loop(f"broker {owner.broker_id}")
        self.clock = SimulatedClock(world)
        self.view = ClusterView()
        self.store: SimulatedStore | None = None
        self.failure: BaseException | None = None
        self._defaults = defaults
        self.loop.call_soon(self._start)

    def _start(self) -> None:
        self._task = self.loop.create_task(self._join())

    async def _join(self) -> None:
        try:
            await self._run()
        except Exception as error:
            self.failure = error
            raise

    async def _run(self) -> None:
        owner, slices = self.owner, Slices(self.loop)
        self.logs = LogManager(owner.fs, [DIRECTORY], self.clock, config_of=lambda _: self._defaults)
        self.logs.open()
        services = PartitionServices(
            owner.broker_id,
            self.clock,
            ManualThreads(self.loop),  # type: ignore[arg-type]
            Purgatory(self.loop),
            1 << 26,
        )
        self.replicas = Replicas(self.loop, self.logs, services, self.view, lambda _: self._defaults, slices)
        self.view.add_listener(self.replicas.cluster_changed)
        self.membership = ClusterMembership(
            self._connect,
            partial(
                RegistrySession,
                view=self.view,
                broker_id=owner.broker_id,
                clock=self.clock,
                slices=slices,
                unclean_election=lambda _: False,
            ),
            self.view,
            on_registration=self.replicas.set_registration,
            on_end=self._ended,
        )
        await self.membership.open(None)
        self.logs.claim(owner.broker_id, self.view.state.cluster_id)
        self.logs.load()
        await self.membership.join(BrokerRegistration(owner.broker_id, f"broker-{owner.broker_id}", 9092))

    def _connect(self) -> Any:
        opening = self.owner.registry.connect(self.loop)
        opening.add_done_callback(lambda done: setattr(self, "store", done.result()))
        return opening

    def _ended(self, error: BaseException) -> None:
        self.failure = error
