"""A cluster for tests: several brokers over one ``kafkalite registry``, all of them processes, without Java.

Brokers have numbers from 1 on and keep their ports, so one that was killed comes back under its address. Topics have
three replicas, of which two must be in sync; a broker that dies is noticed after SESSION_TIMEOUT_MS.

Leaders and in-sync replicas are read from the registry itself, so that no broker needs to live, or to have received a
change.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotInTime
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from spark_kafkalite.broker.authentication.first_user import ensure_user
from spark_kafkalite.errors import RegistryError
from spark_kafkalite.model import UNKNOWN_INCARNATION, BrokerEpoch, BrokerId
from spark_kafkalite.processes.child_process import ChildFailed
from spark_kafkalite.processes.client_access import ClientAccess
from spark_kafkalite.processes.cluster import START_TIMEOUT_S, STOP_TIMEOUT_S, BrokerProcess, RegistryProcess
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo
from spark_kafkalite.registry.store import NoNode, SessionState, Store
from spark_kafkalite.security.cluster_secret import new_secret
from spark_kafkalite.security.secure_directory import USER, SecureDirectory

SESSION_TIMEOUT_MS: Final = 3_000
WAIT_TIMEOUT_S: Final = 60.0
_POLL_INTERVAL_S: Final = 0.02
_ANSWER_TIMEOUT_S: Final = 20.0
_SHOWN_PARTITIONS: Final = 5

T = TypeVar("T")


class KafkaliteCluster(ClientAccess):
    """Brokers 1 to N and their registry; a context manager.

    ``registry`` is the registry's process; ``brokers`` has each broker's by its number.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        size: int = 3,
        port: int = 0,
        registry_port: int = 0,
        overrides: Mapping[str, object] | None = None,
        overrides_of: Mapping[int, Mapping[str, object]] | None = None,
        environment: Mapping[str, str] | None = None,
        command_prefix: Sequence[str] = (),
        command_prefix_of: Mapping[int, Sequence[str]] | None = None,
        registry: RegistryProcess | None = None,
        tls: bool = False,
        sasl: str | None = None,
    ) -> None:
        """Prepare a cluster; ``start()`` or ``with`` starts it.

        Broker 1 listens on ``port``, the next ones on those that follow; 0 takes free ones, which later starts keep.
        ``overrides`` are settings of all brokers in Kafka's names, ``overrides_of`` of single ones by their number, in
        place of what the cluster would choose (its ``zookeeper.connect``, for one); None leaves a setting at the
        broker's default. ``environment`` is added to this process's own. ``command_prefix`` stands before each
        broker's command, or what ``command_prefix_of`` has for its number. ``registry``, not started yet, takes the
        place of one on ``registry_port``.

        ``tls`` and ``sasl`` secure all listeners, as of a :class:`BrokerProcess`; ``client_settings`` then has what a
        client needs. The registry, unless it is given, then asks for the password in ``registry.digest_file``.
        """
        if size < 1:
            raise ValueError(f"a cluster of {size} brokers: it needs at least one")
        self.data_dir = data_dir
        self.registry = registry or RegistryProcess(data_dir / "registry", port=registry_port, environment=environment)
        self.brokers: dict[int, BrokerProcess] = {}
        self.start_seconds = 0.0
        self._size = size
        self._port = port
        self._overrides = dict(overrides or {})
        self._overrides_of = {number: dict(settings) for number, settings in (overrides_of or {}).items()}
        self._environment = environment
        self._command_prefix = tuple(command_prefix)
        self._command_prefix_of = dict(command_prefix_of or {})
        self._store: Store | None = None
        self.security = None
        # Of the registry: who can write there is any user, with any rights.
        self._digest: str | None = None
        self._broker_config: Path | None = None
        if tls or sasl is not None:
            # The logs are not encrypted.
            data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.security = SecureDirectory(data_dir / "security", tls=tls, sasl=sasl)
        if self.security is not None and registry is None:
            self._digest, self._broker_config = self.security.write_registry_files()
            self.registry.digest_file = self.security.registry_digest_file

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for ``bootstrap.servers``."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def broker(self, number: int) -> BrokerProcess:
        """Return a broker. Raises ChildFailed when there is none of this number."""
        if number not in self.brokers:
            raise ChildFailed(f"there is no broker {number}; the cluster has {', '.join(map(str, self.brokers))}")
        return self.brokers[number]

    def start(self) -> Self:
        """Start the registry, then all brokers at once; return when each knows all of them and the controller.

        ``start_seconds`` is how long it took. Raises ChildFailed, with the end of its output, when one of them does
        not start.
        """
        began = time.monotonic()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._write_secret()
        self.registry.start()
        if self.security is not None and self.security.sasl is not None:
            fits = ensure_user(self._connected(), USER, self.security.sasl, self.security.password)
            if not fits:
                raise ChildFailed(
                    f"user {USER!r} has another password than {self.security.password_file}; write its password into "
                    "that file"
                )
        for number in range(1, self._size + 1):
            self.brokers.setdefault(number, self._make_broker(number))
        # Its end waits for all, so that none is started behind the back of who handles the error of another.
        with ThreadPoolExecutor(len(self.brokers)) as starters:
            started = [starters.submit(broker.start) for broker in self.brokers.values() if not broker.running]
            try:
                for each in started:
                    each.result()
            except BaseException:
                self._kill_brokers()
                raise
        self._wait_until_all_know_all()
        self.start_seconds = time.monotonic() - began
        return self

    def add_broker(self, overrides: Mapping[str, object] | None = None) -> int:
        """Start one more broker and return its number; it gets replicas of topics that are made from now on."""
        number = max(self.brokers) + 1
        if overrides:
            self._overrides_of[number] = dict(overrides)
        self.brokers[number] = self._make_broker(number)
        self.brokers[number].start()
        return number

    def kill(self, number: int) -> None:
        """End a broker with SIGKILL, as a crash does."""
        self.broker(number).kill()

    def stop(self, number: int, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Stop a broker in order and return its exit code: it hands over what it leads first."""
        return self.broker(number).stop(timeout_s)

    def restart(self, number: int) -> BrokerProcess:
        """Stop a broker if it runs, and start it again on its port and data."""
        return self.broker(number).restart()

    def pause(self, number: int) -> None:
        """Freeze a broker: its connections stay open and nothing is answered."""
        self.broker(number).pause()

    def resume(self, number: int) -> None:
        """Let a broker go on after :meth:`pause`."""
        self.broker(number).resume()

    # What the registry says -------------------------------------------------------------------------------------------

    def controller(self) -> int | None:
        """Return the number of the controller, None while there is none."""
        found = self._read(znodes.CONTROLLER)
        return None if found is None else znodes.decode_controller(found)

    def leader_of(self, topic: str, partition: int = 0) -> int | None:
        """Return the broker that leads a partition, None when none does. It may have died, not yet noticed.

        Raises ChildFailed when there is no such partition.
        """
        state = self.state_of(topic, partition)
        return None if state.leader == znodes.NO_LEADER else state.leader

    def in_sync(self, topic: str, partition: int = 0) -> set[int]:
        """Return the replicas of a partition that are in sync. Raises ChildFailed when there is no such partition."""
        return set(self.state_of(topic, partition).isr)

    def assignment_of(self, topic: str) -> znodes.TopicAssignment:
        """Return the replicas of a topic's partitions in the registry, with those that a reassignment adds and removes.

        Raises ChildFailed when there is no such topic.
        """
        data = self._read(znodes.topic_path(topic))
        if data is None:
            raise ChildFailed(f"the registry has no topic {topic}")
        return znodes.TopicAssignment.decode(topic, data)

    def state_of(self, topic: str, partition: int = 0) -> znodes.LeaderAndIsr:
        """Return the state of a partition in the registry. Raises ChildFailed when there is no such partition."""
        data = self._read(znodes.state_path(topic, partition))
        if data is None:
            raise ChildFailed(f"the registry has no partition {topic}-{partition}")
        return znodes.LeaderAndIsr.decode(topic, partition, data)

    def wait_for_leader(
        self, topic: str, partition: int = 0, *, other_than: int | None = None, timeout_s: float = WAIT_TIMEOUT_S
    ) -> int:
        """Wait until a live broker, and not ``other_than``, leads a partition, and return its number.

        Raises ChildFailed when that takes longer than ``timeout_s``.
        """
        leaders: list[int] = []

        def missing() -> str:
            leader = self.leader_of(topic, partition)
            if leader is None or leader == other_than or leader not in self._registered():
                return f"{topic}-{partition} is led by {'none' if leader is None else leader}"
            leaders.append(leader)
            return ""

        self._wait_until_nothing(missing, timeout_s)
        return leaders[-1]

    def wait_in_sync(self, *topics: str, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        """Wait until every partition of these topics (of all topics without names) is led and has all replicas in sync.

        Only what lives counts: a member that has died, or was restarted and has not caught up, is not in sync even
        while the registry still names it. Raises ChildFailed, naming partitions, after ``timeout_s``.
        """
        self._wait_until_nothing(lambda: self._out_of_sync(topics), timeout_s)

    def _out_of_sync(self, topics: tuple[str, ...]) -> str:
        brokers = self._registered()
        problems = []
        for topic in topics or self._answer(lambda store: store.children(znodes.TOPICS)):
            data = self._read(znodes.topic_path(topic))
            if data is None:
                problems.append(f"there is no topic {topic}")
                continue
            assigned = znodes.TopicAssignment.decode(topic, data).partitions
            states = self._read_all([znodes.state_path(topic, partition) for partition in assigned])
            for (partition, replicas), found in zip(assigned.items(), states, strict=True):
                if found is None:
                    problems.append(f"{topic}-{partition} has no leader yet")
                    continue
                state = znodes.LeaderAndIsr.decode(topic, partition, found)
                live = [member for member in state.isr if _is_live_member(state, brokers.get(member), member)]
                if state.leader not in live or set(live) != set(replicas):
                    problems.append(
                        f"{topic}-{partition} is led by {state.leader}, live and in sync are {live} of {list(replicas)}"
                    )
        more = len(problems) - _SHOWN_PARTITIONS
        return "; ".join(problems[:_SHOWN_PARTITIONS]) + (f"; and {more} more" if more > 0 else "")

    def _registered(self) -> dict[int, BrokerInfo]:
        """Return the live brokers."""
        numbers = [int(name) for name in self._answer(lambda store: store.children(znodes.BROKER_IDS))]
        found = zip(numbers, self._read_all([znodes.broker_path(number) for number in numbers]), strict=True)
        return {
            number: BrokerInfo.of(znodes.BrokerRegistration.decode(number, data), BrokerEpoch(-1))
            for number, data in found
            if data is not None
        }

    def _wait_until_nothing(self, missing: Callable[[], str], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        why = "the registry does not answer"
        while True:
            # What a broken connection leaves open is asked again; a dead registry may be started again meanwhile.
            with contextlib.suppress(RegistryError, NotInTime):
                why = missing()
                if not why:
                    return
            if time.monotonic() > deadline:
                outputs = "".join(broker.tail(5) for broker in self.brokers.values())
                raise ChildFailed(f"after {timeout_s} s: {why}{outputs}")
            time.sleep(_POLL_INTERVAL_S)

    def _wait_until_all_know_all(self) -> None:
        from spark_kafkalite.client.admin.admin import Admin

        live = {number for number, broker in self.brokers.items() if broker.running}
        for number in live:
            with Admin(self.brokers[number].client_settings) as admin:

                def missing(number: int = number, admin: Admin = admin) -> str:
                    cluster = admin.describe_cluster()
                    known = {node.node_id for node in cluster.brokers}
                    if not live <= known:
                        return f"broker {number} knows of {sorted(known)} only"
                    return "" if cluster.controller_id in live else f"broker {number} knows of no live controller"

                self._wait_until_nothing(missing, START_TIMEOUT_S)

    def _read(self, path: str) -> bytes | None:
        return self._read_all([path])[0]

    def _read_all(self, paths: list[str]) -> list[bytes | None]:
        """Return the data of nodes, None for those that do not exist."""

        def answered() -> Iterator[bytes | None]:
            for future in [self._connected().get(path) for path in paths]:
                try:
                    data, _ = future.result(_ANSWER_TIMEOUT_S)
                    yield data
                except NoNode:
                    yield None

        return list(answered())

    def _answer(self, ask: Callable[[Store], Any]) -> Any:
        return ask(self._connected()).result(_ANSWER_TIMEOUT_S)

    def _connected(self) -> Store:
        """Return a session with the registry; a test may have let the last one expire."""
        from spark_kafkalite.registry.zookeeper import open_zookeeper

        if self._store is not None and self._store.state is SessionState.LOST:
            self._close_store()
        if self._store is None:
            auth = None if self._digest is None else ("digest", self._digest)
            self._store = open_zookeeper(self.registry.connect, auth=auth)
        return self._store

    def _close_store(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    # Making them ------------------------------------------------------------------------------------------------------

    def _make_broker(self, number: int) -> BrokerProcess:
        settings: dict[str, object] = {
            "broker.id": number,
            "zookeeper.connect": self.registry.connect,
            "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
            "inter.broker.secret.file": self._secret_file,
            "default.replication.factor": min(3, self._size),
            "min.insync.replicas": min(2, self._size),
            "offsets.topic.replication.factor": min(3, self._size),
            "offsets.topic.num.partitions": 10,
            **self._overrides,
            **self._overrides_of.get(number, {}),
        }
        return BrokerProcess(
            self.data_dir / f"broker-{number}",
            port=self._port + number - 1 if self._port else 0,
            overrides={name: value for name, value in settings.items() if value is not None},
            environment=self._environment,
            command_prefix=self._command_prefix_of.get(number, self._command_prefix),
            security=self.security,
            config=self._broker_config,
        )

    @property
    def _secret_file(self) -> Path:
        return self.data_dir / "cluster-secret"

    def _write_secret(self) -> None:
        if not self._secret_file.exists():
            self._secret_file.touch(mode=0o600)
            self._secret_file.write_text(new_secret() + "\n", encoding="ascii")

    def stop_all(self) -> None:
        """Stop the brokers in order, one after the other, then the registry; ``start()`` goes on with what they hold.

        Raises ChildFailed when one of them does not end in time.
        """
        self._close_store()
        for process in (*self.brokers.values(), self.registry):
            if process.running:
                process.resume()
                process.stop()

    def close(self) -> None:
        """Kill all brokers and the registry, wherever they are."""
        self._close_store()
        self._kill_brokers()
        self.registry.kill()

    def _kill_brokers(self) -> None:
        for broker in self.brokers.values():
            broker.kill()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_live_member(state: znodes.LeaderAndIsr, broker: BrokerInfo | None, member: BrokerId) -> bool:
    """Whether a member of an ISR is registered, and still has the log for which it was taken in (rules R11, R12)."""
    return broker is not None and broker.has_log_of(state.incarnations.get(member, UNKNOWN_INCARNATION))
