import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from spark_kafkalite.errors import RegistryError
from spark_kafkalite.registry.database import DATABASE_NAME
from spark_kafkalite.registry.embedded import EmbeddedRegistry, open_embedded
from spark_kafkalite.registry.store import ConnectionLoss, SessionExpired, SessionState

ROOT = str(Path(__file__).resolve().parents[3])


def test_persistent_nodes_stats_and_counters_survive_a_restart(tmp_path: Path) -> None:
    store = open_embedded(tmp_path / "r")
    store.create("/a/b", b"x", make_parents=True).result()
    store.set("/a/b", b"y").result()
    store.create("/a/q-", sequential=True).result()
    before = [store.get(path).result() for path in ("/a", "/a/b")]
    session = store.session_id
    store.close()
    again = open_embedded(tmp_path / "r")
    assert [again.get(path).result() for path in ("/a", "/a/b")] == before
    assert again.session_id > session
    assert again.create("/a/q-", sequential=True).result() == "/a/q-0000000002"
    again.close()


def test_ephemerals_end_with_the_process_but_their_numbers_do_not_come_back(tmp_path: Path) -> None:
    script = (
        "import os, sys; from spark_kafkalite.registry.embedded import open_embedded; s = open_embedded(sys.argv[1]);"
        "s.create('/m/n-', ephemeral=True, sequential=True, make_parents=True).result(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, env={"PYTHONPATH": ROOT})
    store = open_embedded(tmp_path)
    assert store.children("/m").result() == []
    assert store.create("/m/n-", ephemeral=True, sequential=True).result() == "/m/n-0000000001"
    store.close()


def test_a_second_process_is_kept_out_with_the_holders_pid(tmp_path: Path) -> None:
    with EmbeddedRegistry(tmp_path):
        script = "import sys; from spark_kafkalite.registry.embedded import open_embedded; open_embedded(sys.argv[1])"
        second = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, env={"PYTHONPATH": ROOT}
        )
    assert second.returncode == 1
    assert "is in use by another process (pid" in second.stderr


def test_the_lock_holds_within_a_process_and_goes_with_close(tmp_path: Path) -> None:
    with EmbeddedRegistry(tmp_path), pytest.raises(RegistryError, match="in use by another process"):
        EmbeddedRegistry(tmp_path)
    EmbeddedRegistry(tmp_path).close()


def test_a_damaged_or_unknown_file_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / DATABASE_NAME).write_bytes(b"this is not a database, but it is long enough to be taken for one" * 20)
    with pytest.raises(RegistryError, match=r"registry\.db: file is not a database"):
        EmbeddedRegistry(tmp_path)
    (tmp_path / DATABASE_NAME).unlink()
    EmbeddedRegistry(tmp_path).close()
    database = sqlite3.connect(tmp_path / DATABASE_NAME)
    database.execute("UPDATE counters SET value = 99 WHERE name = 'format'")
    database.commit()
    database.close()
    with pytest.raises(RegistryError, match="format 99 is not known"):
        EmbeddedRegistry(tmp_path)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RegistryError, match="cannot use the registry directory"):
        EmbeddedRegistry(tmp_path / "file" / "r")


def test_a_failed_commit_stops_the_registry_and_loses_the_session(tmp_path: Path) -> None:
    registry = EmbeddedRegistry(tmp_path)
    store = registry.connect()
    store.create("/safe", b"1").result()
    lost = threading.Event()
    store.add_session_listener(lambda state: lost.set() if state is SessionState.LOST else None)

    def fill_the_disk() -> None:
        # The limit lies below what the next node needs: SQLite answers as on a full disk.
        pages = registry._database._connection.execute("PRAGMA page_count").fetchone()[0]
        registry._database._connection.execute(f"PRAGMA max_page_count = {pages}")

    filled: Future[None] = Future()
    registry.submit(fill_the_disk, filled)
    filled.result(10)
    with pytest.raises(ConnectionLoss, match="cannot be written"):
        store.create("/big", bytes(500_000)).result(10)
    assert lost.wait(10)
    with pytest.raises(ConnectionLoss):
        store.get("/safe").result(10)
    registry.close()
    with EmbeddedRegistry(tmp_path) as again:
        store = again.connect()
        assert store.get("/safe").result()[0] == b"1"
        assert store.exists("/big").result() is None


def test_an_expired_session_is_told_and_its_own_close_is_not(tmp_path: Path) -> None:
    with EmbeddedRegistry(tmp_path) as registry:
        expired, left, closed = registry.connect(), registry.connect(), registry.connect()
        told: list[tuple[str, SessionState]] = []
        for name, store in (("expired", expired), ("left", left), ("closed", closed)):
            store.add_session_listener(lambda state, name=name: told.append((name, state)))
        registry.expire(expired.session_id).result()
        closed.close()
        assert told == [("expired", SessionState.LOST)]
    assert told[1:] == [("left", SessionState.LOST)]


def test_nothing_works_after_close(tmp_path: Path) -> None:
    store = open_embedded(tmp_path)
    store.close()
    store.close()
    with pytest.raises(SessionExpired):
        store.get("/").result(10)


def test_deleted_nodes_stay_deleted(tmp_path: Path) -> None:
    store = open_embedded(tmp_path)
    store.create("/a").result()
    store.delete("/a").result()
    store.close()
    store = open_embedded(tmp_path)
    assert store.children("/").result() == []
    store.close()
