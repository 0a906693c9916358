"""An operator who has the registry of a simulated cluster made again, as ``kafkalite cluster recover-registry`` does.

Brokers that run are asked, one after the other, while they cannot reach the registry and so lead on. Of the others the
files are read. Then a copy of earlier is completed by the command's own code, and the registry is there for everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from spark_kafkalite.broker.standalone.host_logs import read_host_logs
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.registry.recovery import evidence_node
from spark_kafkalite.registry.recovery.host_logs import HostLogs
from spark_kafkalite.registry.recovery.plan import plan_recovery
from spark_kafkalite.registry.recovery.registry_nodes import read_nodes, write_nodes
from spark_kafkalite.registry.store import Request
from tests.simulator.broker import DIRECTORY, Run, SimulatedBroker
from tests.simulator.disasters import RegistryCopy
from tests.simulator.registry import SimulatedRegistry, SimulatedStore
from tests.simulator.world import World


class RegistryRecovery:
    """See the module's text."""

    def __init__(
        self, world: World, registry: SimulatedRegistry, brokers: Mapping[int, SimulatedBroker], copy: RegistryCopy
    ) -> None:
        self._world = world
        self._registry = registry
        self._brokers = brokers
        self._copy = copy
        self._hosts: dict[int, HostLogs] = {}
        # By broker, whether it was asked or read.
        self.sources: dict[int, str] = {}
        self._asked: Run | None = None

    def begin(self, written: Callable[[], None]) -> None:
        """Ask or read all brokers, and write the registry; call ``written`` then."""
        number = next((each for each in self._brokers if each not in self._hosts), None)
        if number is None:
            self._write()
            written()
            return
        self._look_at(number)
        self._world.later(self._world.random.uniform(0.05, 0.4), lambda: self.begin(written))

    def _look_at(self, number: int) -> None:
        broker = self._brokers[number]
        run = broker.run
        if run is None:
            self._read(number)
        elif run.is_stopping or run is self._asked:
            pass  # it ends, or answers, after a while
        elif run.recovery_answer is None:
            # It waits for the registry, at its start.
            broker.kill()
            self._read(number)
        else:
            self._ask(number, run)

    def _ask(self, number: int, run: Run) -> None:
        answer, self._asked = run.recovery_answer, run
        assert answer is not None

        async def ask() -> None:
            try:
                host = HostLogs.decode("the answer", await answer.encoded(stands_still=True))
            except KafkaliteError:
                # It has not heard yet that the registry is away, or a disk fails.
                self._asked = None
                return
            self._take(number, host, "an answer")

        run.loop.call_soon(lambda: setattr(self, "_task", run.loop.create_task(ask())))

    def _read(self, number: int) -> None:
        self._take(number, read_host_logs(self._brokers[number].fs, [DIRECTORY], number), "files")

    def _take(self, number: int, host: HostLogs, source: str) -> None:
        self._hosts[number], self.sources[number], self._asked = host, source, None

    def _write(self) -> None:
        self._copy.restore(self._registry)
        store = _CommandStore(self._registry, self._world.new_loop("recover-registry"))
        nodes = read_nodes(store)
        hosts = list(self._hosts.values())
        plan = plan_recovery(hosts, nodes, offsets_config={})
        assert not plan.unread, plan.unread
        plan.nodes[evidence_node.PATH] = evidence_node.encode({host.broker_id: host.zxid for host in hosts})
        write_nodes(store, plan.nodes, nodes)
        self._registry.come_up()


class _CommandStore(SimulatedStore):
    """The session of a command, which nothing cuts and which waits for nothing."""

    def ask(self, request: Request) -> Future[Any]:
        future: Future[Any] = Future()
        result, error = self._done(request)
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
        return future
