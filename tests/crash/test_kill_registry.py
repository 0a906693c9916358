"""``kafkalite registry`` is killed with SIGKILL at random moments; what it has shown to anybody is never taken back.

Workers create, change and delete nodes with many requests in flight, and a reader watches what they do. After each kill
the registry starts again on its directory, and then: every acknowledged node is there, with the data and at least the
version that was acknowledged, and what was deleted is not; no zxid, no version and no sequence number goes back, as
seen in answers to writes and reads alike; session numbers have never been given before; sessions live on with their
ephemeral nodes, until their clients come back and end them.

Each failure names its seed; ``KAFKALITE_SEED`` repeats the moments of a run (not the kernel's scheduling). The soak
kills 300 times.
"""

from __future__ import annotations

import contextlib
import random
import struct
import threading
import time
from collections import deque
from pathlib import Path

import pytest

from spark_kafkalite.processes.cluster import RegistryProcess
from spark_kafkalite.registry.served.jute import RequestReader, write_buffer, write_int, write_string
from tests.contract.protocol_client import Answer, ProtocolClient
from tests.contract.test_tree_protocol import CHILDREN, CREATE, DELETE, EXISTS, GET, SET, create
from tests.patience import PATIENCE_S, wait_until
from tests.seeds import SEED, SOAK

ROUNDS = 300 if SOAK else 4
WORKERS = 3
COUNTERS = 4
IN_FLIGHT = 40
NO_NODE, NODE_EXISTS = -101, -110
CLOSE = -11
SEQUENTIAL, EPHEMERAL = 2, 1


def stat_of(raw: bytes) -> tuple[int, int]:
    """Return version and mzxid of a stat."""
    fields = struct.unpack("!qqqqiiiqiiq", raw[:68])
    return fields[4], fields[1]


class Seen:
    """The latest of what anybody was shown, over all rounds."""

    def __init__(self) -> None:
        self.sessions: set[int] = set()
        self.zxid = 0
        self.versions: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def session(self, number: int) -> None:
        with self._lock:
            assert number not in self.sessions, f"session {number} was given twice; seed {SEED}"
            assert not self.sessions or number > max(self.sessions), f"session numbers went back; seed {SEED}"
            self.sessions.add(number)

    def answer(self, answer: Answer) -> None:
        with self._lock:
            self.zxid = max(self.zxid, answer.zxid)

    def version(self, path: str, shown: tuple[int, int]) -> None:
        with self._lock:
            self.versions[path] = max(self.versions.get(path, (-1, 0)), shown)


class Worker:
    """Owns ``/wN``: counters that it sets, and a queue of sequential nodes that it fills and empties."""

    def __init__(self, number: int, seen: Seen) -> None:
        self.root = f"/w{number}"
        self._seen = seen
        self._chosen = random.Random(f"{SEED}-{number}")
        self._step = 0
        self.counters: dict[str, tuple[int, bytes]] = {}
        self.queued: dict[str, bytes] = {}
        self.deleting: set[str] = set()
        self.deleted: set[str] = set()
        self.last_number = -1
        self.acknowledged = 0
        self.session = (0, b"")
        self.has_ephemeral = False

    def run(self, client: ProtocolClient) -> None:
        """Work until the connection breaks."""
        pending: deque[tuple[int, str, bytes]] = deque()
        self.session, self.has_ephemeral = (client.session_id, client.password), False
        for path in (self.root, *(f"{self.root}/{number}" for number in range(COUNTERS)), f"{self.root}/e"):
            answer = client.ask(CREATE, create(path, flags=EPHEMERAL if path.endswith("e") else 0))
            assert answer.error in (0, NODE_EXISTS), answer
            self._seen.answer(answer)
        self.has_ephemeral = True
        while True:
            while len(pending) < IN_FLIGHT:
                pending.append(self._send(client))
            self._take(client.receive(), *pending.popleft())

    def _send(self, client: ProtocolClient) -> tuple[int, str, bytes]:
        self._step += 1
        data = str(self._step).encode()
        action = self._chosen.random()
        known = [path for path in self.queued if path not in self.deleting] if action > 0.9 else []
        if known:
            path = self._chosen.choice(known)
            self.deleting.add(path)
            client.send(DELETE, write_string(path) + write_int(-1))
            return DELETE, path, b""
        if action > 0.5:
            client.send(CREATE, create(f"{self.root}/q-", data, SEQUENTIAL))
            return CREATE, "", data
        path = f"{self.root}/{self._chosen.randrange(COUNTERS)}"
        client.send(SET, write_string(path) + write_buffer(data) + write_int(-1))
        return SET, path, data

    def _take(self, answer: Answer, kind: int, path: str, data: bytes) -> None:
        assert answer.error == 0, (answer, kind, path)
        self.acknowledged += 1
        self._seen.answer(answer)
        if kind == CREATE:
            created = RequestReader(answer.body).string()
            number = int(created[-10:])
            assert number > self.last_number, f"{created} after number {self.last_number}; seed {SEED}"
            self.last_number = number
            self.queued[created] = data
        elif kind == DELETE:
            self.deleted.add(path)
        else:
            shown = stat_of(answer.body)
            self.counters[path] = (shown[0], data)
            self._seen.version(path, shown)

    def check(self, client: ProtocolClient, address: str) -> None:
        """Find everything that was acknowledged."""
        asked = write_string(f"{self.root}/e") + b"\0"
        found = client.ask(EXISTS, asked)
        if self.has_ephemeral:
            owner = struct.unpack_from("!q", found.body, 44)[0]
            assert (found.error, owner) == (0, self.session[0]), f"an ephemeral node is gone; seed {SEED}"
        with ProtocolClient(address, session=self.session) as again:
            assert again.session_id == self.session[0], f"a session is gone; seed {SEED}"
            assert again.ask(CLOSE).error == 0
        assert client.ask(EXISTS, asked).error == NO_NODE, f"an ephemeral node is left; seed {SEED}"
        names = set(
            RequestReader(client.ask(CHILDREN, write_string(self.root) + b"\0").body).vector(RequestReader.string)
        )
        for path, data in self.queued.items():
            there = path.rpartition("/")[2] in names
            if path in self.deleted:
                assert not there, f"{path} was deleted and is back; seed {SEED}"
            elif path not in self.deleting:
                assert there, f"{path} was acknowledged and is gone; seed {SEED}"
                if self._chosen.random() < 0.05:
                    assert RequestReader(client.ask(GET, write_string(path) + b"\0").body).buffer() == data, path
        for path, (version, data) in self.counters.items():
            reader = RequestReader(client.ask(GET, write_string(path) + b"\0").body)
            found = reader.buffer()
            found_version, _ = stat_of(reader._take(68))
            assert found_version >= version, f"{path}: version {found_version} after {version}; seed {SEED}"
            assert found_version > version or found == data, f"{path}: other data at version {version}; seed {SEED}"
        # What was under way when it was killed has happened or not: either is known now.
        self.queued = {path: data for path, data in self.queued.items() if path.rpartition("/")[2] in names}
        self.deleting = set()


def read_along(client: ProtocolClient, seen: Seen) -> None:
    """Read all counters with watches, again and again, until the connection breaks."""
    while True:
        for worker in range(WORKERS):
            for number in range(COUNTERS):
                path = f"/w{worker}/{number}"
                answer = client.ask(GET, write_string(path) + b"\1")
                if answer.error == 0:
                    seen.answer(answer)
                    reader = RequestReader(answer.body)
                    reader.buffer()
                    seen.version(path, stat_of(reader._take(68)))


@pytest.mark.timeout(3600 if SOAK else 600)
def test_what_was_shown_is_never_taken_back(tmp_path: Path) -> None:
    chosen, seen = random.Random(SEED), Seen()
    workers = [Worker(number, seen) for number in range(WORKERS)]
    failures: list[BaseException] = []

    def until_killed(run: object, *arguments: object) -> None:
        try:
            with contextlib.suppress(OSError):
                assert callable(run)
                run(*arguments)
        except BaseException as error:
            failures.append(error)

    registry = RegistryProcess(tmp_path / "registry")
    with registry:
        for _ in range(ROUNDS):
            clients = []
            for _ in range(WORKERS + 1):
                clients.append(ProtocolClient(registry.connect, timeout_ms=30_000))
                seen.session(clients[-1].session_id)
            before = sum(worker.acknowledged for worker in workers)
            threads = [
                threading.Thread(target=until_killed, args=(worker.run, client), daemon=True)
                for worker, client in zip(workers, clients, strict=False)
            ]
            threads.append(threading.Thread(target=until_killed, args=(read_along, clients[-1], seen), daemon=True))
            for thread in threads:
                thread.start()
            goal = before + chosen.randrange(1, 800)
            wait_until(
                lambda goal=goal: failures or sum(worker.acknowledged for worker in workers) >= goal,  # type: ignore[misc]
                f"{goal} acknowledgements; seed {SEED}",
                poll_s=0.0005,
            )
            time.sleep(chosen.random() * 0.02)
            registry.kill()
            for thread in threads:
                thread.join(PATIENCE_S)
                assert not thread.is_alive()
            for client in clients:
                client.close()
            assert not failures, failures
            registry.start()
            with ProtocolClient(registry.connect) as client:
                seen.session(client.session_id)
                answer = client.ask(EXISTS, write_string("/") + b"\0")
                assert answer.zxid > seen.zxid, f"zxid {answer.zxid} after {seen.zxid}; seed {SEED}"
                seen.answer(answer)
                for path, shown in seen.versions.items():
                    found = stat_of(client.ask(EXISTS, write_string(path) + b"\0").body)
                    assert found >= shown, f"{path}: {found} after {shown} was shown; seed {SEED}"
                for worker in workers:
                    worker.check(client, registry.connect)
