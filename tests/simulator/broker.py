"""A simulated broker: the real one, from the registry session to the log, in one simulated process.

``broker.start.BrokerStart`` assembles it. Not here: sockets (``connection``, ``peers``), threads, the proof between
brokers, and what works by the clock beside replication (retention, cleaning, checks of disks). Its disk is a file
system in memory, which outlives its processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.recovery_answer import RecoveryAnswer
from spark_kafkalite.broker.registry_notes import RegistryNotes
from spark_kafkalite.broker.replication.comparison import Comparison
from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.broker.replication.rules.lease import RegistryLease
from spark_kafkalite.broker.requests.dispatch import Dispatcher
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.broker.start import BrokerStart
from spark_kafkalite.broker.upkeep.timers import Upkeep
from spark_kafkalite.log.files.disk_calls import DiskCall, DiskCalls
from spark_kafkalite.model import BrokerId, Incarnation
from spark_kafkalite.net.io_threads import Lane
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.cluster.membership import ClusterMembership
from spark_kafkalite.slices import Slices
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs
from tests.simulator.connection import ServedConnection
from tests.simulator.disk import Disk
from tests.simulator.network import Network, Wire
from tests.simulator.peers import SimulatedPeers
from tests.simulator.registry import SimulatedRegistry, SimulatedStore
from tests.simulator.world import ProcessLoop, SimulatedClock, World

DIRECTORY = "/logs"
_FIRST_PORT = 9092
_LONGEST_WORK_S = 0.003


class SimulatedBroker:
    """One broker over its starts and ends; what it leaves on its disk is there at the next start."""

    def __init__(
        self,
        world: World,
        registry: SimulatedRegistry,
        network: Network,
        number: int,
        settings: Mapping[str, object],
    ) -> None:
        self.world = world
        self.registry = registry
        self.network = network
        self.broker_id = BrokerId(number)
        self.fs = MemoryFs()
        # Whether the present hang has met a write.
        self.has_hung = False
        # Until when writes to its disk hang, and which one does of the work that is under way in a thread.
        self.hangs_until_s = 0.0
        # Which call hangs; "" for all that write.
        self.hanging_call = ""
        self.is_in_thread = False
        self.hung_call: DiskCall | None = None
        # Whether it writes checkpoints and flushes by the clock.
        self.has_upkeep = False
        # Whether it looks, by the clock, which calls of its disk have not returned.
        self.watches_disk = False
        self.boots = 1
        # How often it has lost what was not synced.
        self.losses = 0
        self.run: Run | None = None
        self.config = BrokerConfig.from_properties(
            {
                "broker.id": str(number),
                "log.dirs": DIRECTORY,
                "listeners": f"PLAINTEXT://127.0.0.1:{_FIRST_PORT + number}",
                "zookeeper.connect": "registry:2181",
                "log.dir.reserve.bytes": "0",
                "log.dir.min.free.bytes": "0",
                "replica.compare.max.bytes.per.second": "0",
                "zookeeper.session.timeout.ms": str(round(registry.session_timeout_s * 1000)),
                **settings,
            }
        )

    @property
    def disk(self) -> Disk:
        """Its disk, where that is one of ``disk``."""
        assert isinstance(self.fs, Disk)
        return self.fs

    @disk.setter
    def disk(self, disk: Disk) -> None:
        self._take_up(disk)
        self.fs = disk

    def _take_up(self, disk: Disk) -> None:
        disk.on_write, disk.calls = self.written, SimulatedCalls()

    def start(self) -> None:
        """Begin a process; it has joined the cluster some simulated time later."""
        assert self.run is None
        self.run = Run(self)

    def kill(self, mode: CrashMode = CrashMode.PROCESS) -> None:
        """End the process; its disk is as that leaves it."""
        assert self.run is not None
        self.run.die()
        self.fs = self.fs.crash(mode, self.world.random)
        if isinstance(self.fs, Disk):
            self._take_up(self.fs)
        if mode is not CrashMode.PROCESS:
            self.boots += 1
        self.run = None

    def stop(self) -> None:
        """Stop the process in order; it is gone some simulated time later."""
        assert self.run is not None
        self.run.stop()

    def written(self, name: str, path: str) -> None:
        """Hear that something is written to its disk: where that hangs, the thread stands still that does it."""
        if self.run is None or self.world.now_s >= self.hangs_until_s or self.hanging_call not in ("", name):
            return
        self.has_hung = True
        if self.is_in_thread:
            self.hung_call = DiskCall(0, name, path, self.world.now_s)
        elif self.run.loop.hung_until_s < self.hangs_until_s:
            self.run.loop.hung_until_s = self.hangs_until_s
            self.run.watch_loop()

    def pause(self, seconds: float) -> None:
        """Stop the process for a while, as SIGSTOP does."""
        assert self.run is not None
        loop = self.run.loop
        loop.paused_until_s = max(loop.paused_until_s, self.world.now_s + seconds)


class Run:
    """One process of a broker."""

    def __init__(self, owner: SimulatedBroker) -> None:
        world = owner.world
        self.owner = owner
        self.loop = world.new_loop(f"broker {owner.broker_id}")
        self.clock = SimulatedClock(world)
        self.store: SimulatedStore | None = None
        self.failure: BaseException | None = None
        self.is_stopping = False
        self._undo = contextlib.AsyncExitStack()
        self._is_cut = False
        self._start = _Start(
            owner.config,
            self.clock,
            owner.fs,
            self._connect,
            self._undo,
            on_registry_lost=self._failed,
            on_disks_lost=self._failed,
        )
        self._start.owner = self
        self.loop.call_soon(self._begin)

    @property
    def has_begun(self) -> bool:
        """Whether there are parts to be looked at."""
        return hasattr(self._start, "membership")

    @property
    def view(self) -> ClusterView:
        return self._start.view

    @property
    def incarnation(self) -> Incarnation:
        return self._start.incarnation

    @property
    def replicas(self) -> Replicas:
        return self._start.replicas

    @property
    def lease(self) -> RegistryLease:
        return self._start.lease

    @property
    def membership(self) -> ClusterMembership:
        return self._start.membership

    @property
    def recovery_answer(self) -> RecoveryAnswer | None:
        return self._start.recovery_answer

    @property
    def comparison(self) -> Comparison | None:
        """What compares its logs with their leaders', once it serves."""
        context = self._start.context
        return None if context is None else context.comparison

    def watch_loop(self) -> None:
        """Give the session up, as ``LoopWatch`` does, if the loop hangs for as long as one lasts."""

        def look() -> None:
            if self.loop.is_alive and self.loop.hung_until_s > self.owner.world.now_s and self.has_begun:
                self.membership.abandon_session()

        self.owner.world.later(self.owner.registry.session_timeout_s, look)

    def _begin(self) -> None:
        self._task = self.loop.create_task(self._start.run(self.loop))
        self._task.add_done_callback(self._began)

    def _began(self, task: Any) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._failed(task.exception())

    def _failed(self, error: BaseException) -> None:
        self.failure = error

    def die(self) -> None:
        """End between two passes of the loop."""
        self._gone()
        self.loop.kill()
        self.owner.network.end(self.owner.broker_id)

    def stop(self) -> None:
        """Stop in order."""
        self.is_stopping = True

        async def undo() -> None:
            self._task.cancel()
            await self._undo.aclose()

        def ended(_: Any) -> None:
            if self.loop.is_alive:
                self.die()
                self.owner.run = None

        def begin() -> None:
            self._stopping = self.loop.create_task(undo())
            self._stopping.add_done_callback(ended)

        self.loop.call_soon(begin)

    def _gone(self) -> None:
        if self.owner.network.servers.get(self.owner.broker_id, (None,))[0] is self.loop:
            del self.owner.network.servers[self.owner.broker_id]

    # The registry ---------------------------------------------------------------------------------------------------

    def _connect(self) -> Any:
        opening = self.owner.registry.connect(self.loop)
        self.store = self.owner.registry.stores[-1]
        self.store.is_cut = self._is_cut
        return opening

    def cut_from_registry(self, seconds: float) -> None:
        """Cut this process off from the registry for a while, in all its sessions."""
        self._is_cut = True
        if self.store is not None:
            self.store.cut()
        self.owner.world.later(seconds, self.mend_registry)

    def mend_registry(self) -> None:
        """Let it reach the registry again."""
        self._is_cut = False
        if self.store is not None:
            self.store.mend()


class _Start(BrokerStart):
    """A start without sockets and threads."""

    owner: Run
    incarnation: Incarnation
    view: ClusterView
    lease: RegistryLease
    replicas: Replicas
    membership: ClusterMembership
    # Where it writes by the clock, once it serves.
    recovery_answer: RecoveryAnswer | None = None
    context: BrokerContext | None = None
    follows_users_and_acls = False

    def make_io(self, loop: Any, count: int) -> Any:  # type: ignore[override]
        return _Threads(self.owner.owner, loop)

    def make_slices(self, loop: Any) -> Slices:  # type: ignore[override]
        return Slices(loop, self.owner.owner.world.turn_s)

    def make_peers(self, loop: Any, *_: Any) -> Any:  # type: ignore[override]
        owner = self.owner.owner
        return SimulatedPeers(owner.network, loop, owner.broker_id)

    def read_boot_id(self) -> str:  # type: ignore[override]
        return f"boot-{self.owner.owner.boots}"

    def _prepare(self, loop: Any) -> Any:
        ground = super()._prepare(loop)
        self.view, self.lease, self.incarnation = ground.view, ground.lease, ground.incarnation
        return ground

    def _lock_log_dirs(self, ground: Any) -> Any:
        storage = super()._lock_log_dirs(ground)
        self.replicas = storage.replicas
        return storage

    async def _open_registry(self, ground: Any, storage: Any) -> Any:
        registry = await super()._open_registry(ground, storage)
        self.membership = registry.membership
        return registry

    async def _get_secret(self, *_: Any) -> None: ...

    def _hang_limit_s(self) -> float:
        # Shorter than at a real broker, as all times here.
        return self.owner.owner.registry.session_timeout_s

    def _watch_disks(self, ground: Any, storage: Any) -> None:
        if self.owner.owner.watches_disk:
            super()._watch_disks(ground, storage)

    def _bind(self, ground: Any, storage: Any) -> Any:
        listener = self.config.listeners[0].bound(self.config.listeners[0].port)
        return _Acceptor(self.owner, listener), {listener.name: listener}

    async def _start_upkeep(self, ground: Any, storage: Any, registry: Any, groups: Any, context: Any) -> None:
        self.context = context
        if self.owner.owner.has_upkeep:
            notes = RegistryNotes(storage.logs, storage.evidence, lambda: registry.membership.seen_zxid)
            config, replicas = self.config, storage.replicas
            upkeep = Upkeep(ground.loop, ground.slices, config, storage.io, storage.logs, replicas, notes)
            upkeep.start()
            self._undo.callback(upkeep.stop)
            self.recovery_answer = RecoveryAnswer(
                config.broker_id,
                ground.incarnation,
                ground.slices,
                ground.view,
                storage.logs,
                replicas,
                registry.membership,
                notes,
                storage.io,
            )


class _Acceptor:
    """What the other parts ask of the sockets."""

    has_work = False

    def __init__(self, owner: Run, listener: Any) -> None:
        self._owner = owner
        self._listener = listener

    def __len__(self) -> int:
        return 0

    def start(self, serve: Callable[..., None]) -> None:
        owner = self._owner
        dispatcher: Dispatcher = serve.__self__  # type: ignore[attr-defined]

        def accept(wire: Wire) -> ServedConnection:
            connection = ServedConnection(owner.loop, wire, dispatcher, self._listener)
            if wire.from_:
                connection.session.prove_broker(wire.from_, b"simulated")
            return connection

        owner.owner.network.servers[owner.owner.broker_id] = owner.loop, accept

    def stop_accepting(self) -> None:
        self._owner._gone()

    def close(self) -> None: ...


class SimulatedCalls(DiskCalls):
    """The calls of one simulated disk that hang; all others return at once."""

    def __init__(self) -> None:
        super().__init__()
        self._hung: list[DiskCall] = []

    def hang(self, call: DiskCall) -> Callable[[], None]:
        """Have a call hang; what is returned has it return."""
        call = call._replace(thread=len(self._hung))
        self._hung.append(call)
        return lambda: self._hung.remove(call)

    def under_way(self) -> list[DiskCall]:
        return list(self._hung)


def _both(first: Callable[[], None], second: Callable[[], None]) -> None:
    first()
    second()


class _Threads:
    """As ``IoThreads``: what a thread does takes a moment, and is done in one go."""

    def __init__(self, broker: SimulatedBroker, loop: ProcessLoop) -> None:
        self._broker = broker
        self._world = broker.world
        self._loop = loop

    def submit(
        self,
        work: Callable[[], Any],
        on_done: Callable[[Any], None],
        on_error: Callable[[BaseException], None],
        lane: Lane = Lane.FILES,
    ) -> None:
        def run() -> None:
            broker = self._broker
            broker.is_in_thread, broker.hung_call = True, None
            try:
                outcome, done = work(), on_done
            except Exception as error:
                outcome, done = error, on_error
            finally:
                broker.is_in_thread = False
            if broker.hung_call is None:
                done(outcome)
            else:
                returns = broker.fs.calls.hang(broker.hung_call)
                self._loop.call_later(broker.hangs_until_s - self._world.now_s, _both, returns, partial(done, outcome))

        self._loop.call_later(self._world.random.uniform(0, _LONGEST_WORK_S), run)

    async def run(self, work: Callable[[], Any], lane: Lane = Lane.FILES) -> Any:
        done = self._loop.create_future()
        self.submit(work, done.set_result, done.set_exception, lane)
        return await done

    def resize(self, count: int) -> None: ...

    def renew(self) -> None: ...

    async def wait_until_idle(self) -> None: ...

    def close(self) -> None: ...
