import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from spark_kafkalite.errors import RegistryError
from spark_kafkalite.registry.store import (
    ConnectionLoss,
    Create,
    OutOfRoom,
    SessionExpired,
    SessionState,
    SetData,
    WatchEvent,
)
from spark_kafkalite.registry.tree.database import DATABASE_NAME, DatabaseFailed, DatabaseFull
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore, open_embedded
from spark_kafkalite.registry.tree.zxid_note import ZxidNote
from tests.paths import PROJECT
from tests.patience import PATIENCE_S

ROOT = str(PROJECT)


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
        "import os, sys; from spark_kafkalite.registry.tree.embedded_store import open_embedded;"
        "s = open_embedded(sys.argv[1]);"
        "s.create('/m/n-', ephemeral=True, sequential=True, make_parents=True).result(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, env={"PYTHONPATH": ROOT})
    store = open_embedded(tmp_path)
    assert store.children("/m").result() == []
    assert store.create("/m/n-", ephemeral=True, sequential=True).result() == "/m/n-0000000001"
    store.close()


LAST_WRITES = {
    "set": "s.set('/a', b'2')",
    "create": "s.create('/a/c')",
    "create an ephemeral": "s.create('/a/c', ephemeral=True)",
    "delete": "s.delete('/a/b')",
    "delete in the root": "s.multi([Delete('/a/b'), Delete('/a')])",
    "more than one statement": "s.multi([SetData('/a', b'%d' % n) for n in range(3)] + [Create(f'/a/{n}') "
    "for n in range(150)])",
    "session": "EmbeddedStore(s.registry)",
}


@pytest.mark.parametrize("write", LAST_WRITES.values(), ids=LAST_WRITES.keys())
def test_the_last_zxid_outlives_a_crash_whatever_was_written_last(tmp_path: Path, write: str) -> None:
    script = f"""import os, sys
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore, open_embedded
from spark_kafkalite.registry.store import Create, Delete, SetData
s = open_embedded(sys.argv[1])
s.create('/a/b', make_parents=True).result()
written = {write}
if hasattr(written, 'result'): written.result()
print(s.registry.last_zxid, flush=True)
os._exit(0)"""
    wrote = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], check=True, env={"PYTHONPATH": ROOT}, capture_output=True
    )
    with EmbeddedRegistry(tmp_path) as again:
        assert again.last_zxid == int(wrote.stdout) > 1


@pytest.mark.parametrize(("number", "lacks"), [(1, ["acl", "aversion", "owner"]), (2, ["owner"]), (3, ["owner"])])
def test_a_file_of_an_older_format_is_upgraded(tmp_path: Path, number: int, lacks: list[str]) -> None:
    with EmbeddedRegistry(tmp_path) as registry:
        EmbeddedStore(registry).create("/a", b"1").result(PATIENCE_S)
    database = sqlite3.connect(tmp_path / DATABASE_NAME)
    for column in lacks:
        database.execute(f"ALTER TABLE nodes DROP COLUMN {column}")
    database.execute("DROP TABLE sessions")
    database.execute("UPDATE counters SET value = ? WHERE name = 'format'", (number,))
    database.execute("UPDATE counters SET value = 1000 WHERE name = 'zxid'")
    database.commit()
    database.close()
    for _ in range(2):
        with EmbeddedRegistry(tmp_path) as registry:
            assert registry.last_zxid >= 1000
            assert EmbeddedStore(registry).set("/a", b"2").result(PATIENCE_S).mzxid > 1000


def test_a_second_process_is_kept_out_with_the_holders_pid(tmp_path: Path) -> None:
    with EmbeddedRegistry(tmp_path):
        script = (
            "import sys; from spark_kafkalite.registry.tree.embedded_store import open_embedded;"
            "open_embedded(sys.argv[1])"
        )
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


def limit_pages(registry: EmbeddedRegistry, more: int) -> None:
    """Let the database have so many pages more: beyond them SQLite answers as on a full disk."""

    def limit() -> None:
        pages = registry._database._connection.execute("PRAGMA page_count").fetchone()[0]
        registry._database._connection.execute(f"PRAGMA max_page_count = {pages + more}")

    limited: Future[None] = Future()
    registry.submit(limit, limited)
    limited.result(PATIENCE_S)


def test_what_does_not_fit_on_a_full_disk_has_not_happened_and_all_else_goes_on(tmp_path: Path) -> None:
    events: list[WatchEvent] = []
    with EmbeddedRegistry(tmp_path) as registry:
        store = EmbeddedStore(registry)
        store.create("/safe", b"1").result()
        store.exists("/big", watch=events.append).result()
        limit_pages(registry, 0)
        held = threading.Event()
        registry.submit(lambda: held.wait(PATIENCE_S), Future())
        # One round of the writer: what does not fit fails alone.
        read = store.get("/safe")
        big = store.create("/big", bytes(500_000))
        small = store.set("/safe", b"2")
        children = store.children("/")
        held.set()
        with pytest.raises(OutOfRoom, match=r"no room.*free space"):
            big.result(PATIENCE_S)
        assert read.result(PATIENCE_S)[0] == b"1"
        assert small.result(PATIENCE_S).version == 1
        assert children.result(PATIENCE_S) == ["safe"]
        with pytest.raises(OutOfRoom):
            store.multi([SetData("/safe", b"3"), Create("/big", bytes(500_000))]).result(PATIENCE_S)
        assert store.get("/safe").result(PATIENCE_S)[0] == b"2"
        assert not events and store.state is SessionState.CONNECTED
        limit_pages(registry, 1000)
        assert store.create("/big", bytes(500_000)).result(PATIENCE_S) == "/big"
        assert [event.path for event in events] == ["/big"]
        assert store.get("/").result(PATIENCE_S)[1].cversion == 2
    with EmbeddedRegistry(tmp_path) as again:
        store = EmbeddedStore(again)
        assert store.get("/safe").result()[0] == b"2"
        assert len(store.get("/big").result()[0]) == 500_000


def test_room_is_made_before_an_operation_fails(tmp_path: Path) -> None:
    made: list[int] = []

    def make_room() -> bool:
        made.append(1)
        # In the writer thread already.
        registry._database._connection.execute("PRAGMA max_page_count = 100000")
        return len(made) < 3

    registry = EmbeddedRegistry(tmp_path, make_room=make_room)
    with registry:
        store = EmbeddedStore(registry)
        limit_pages(registry, 0)
        assert store.create("/big", bytes(500_000)).result(PATIENCE_S) == "/big"
        assert len(made) == 1


def test_a_session_that_does_not_fit_is_not_there(tmp_path: Path) -> None:
    with EmbeddedRegistry(tmp_path) as registry:
        first = EmbeddedStore(registry)
        registry._database.commit = no_room  # type: ignore[method-assign]
        with pytest.raises(OutOfRoom):
            EmbeddedStore(registry)
        with pytest.raises(OutOfRoom):
            first.create("/ephemeral", ephemeral=True).result(PATIENCE_S)
        with pytest.raises(OutOfRoom):
            registry.expire(first.session_id).result(PATIENCE_S)
        del registry._database.commit
        assert first.create("/ephemeral", ephemeral=True).result(PATIENCE_S) == "/ephemeral"
        second = EmbeddedStore(registry)
        assert second.session_id == first.session_id + 1
        first.close()
        assert second.exists("/ephemeral").result(PATIENCE_S) is None


def no_room(*_: object) -> None:
    raise DatabaseFull("database or disk is full")


def test_a_failed_commit_stops_the_registry_and_loses_the_session(tmp_path: Path) -> None:
    registry = EmbeddedRegistry(tmp_path)
    store = EmbeddedStore(registry)
    store.create("/safe", b"1").result()
    lost = threading.Event()
    store.add_session_listener(lambda state: lost.set() if state is SessionState.LOST else None)

    def broken(*_: object) -> None:
        raise DatabaseFailed("disk I/O error")

    registry._database.commit = broken  # type: ignore[method-assign]
    with pytest.raises(ConnectionLoss, match="cannot be written"):
        store.create("/big", bytes(500_000)).result(PATIENCE_S)
    assert lost.wait(PATIENCE_S)
    with pytest.raises(ConnectionLoss):
        store.get("/safe").result(PATIENCE_S)
    registry.close()
    with EmbeddedRegistry(tmp_path) as again:
        store = EmbeddedStore(again)
        assert store.get("/safe").result()[0] == b"1"
        assert store.exists("/big").result() is None


def test_an_expired_session_is_told_and_its_own_close_is_not(tmp_path: Path) -> None:
    with EmbeddedRegistry(tmp_path) as registry:
        expired, left, closed = EmbeddedStore(registry), EmbeddedStore(registry), EmbeddedStore(registry)
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
        store.get("/").result(PATIENCE_S)


def test_deleted_nodes_stay_deleted(tmp_path: Path) -> None:
    store = open_embedded(tmp_path)
    store.create("/a").result()
    store.delete("/a").result()
    store.close()
    store = open_embedded(tmp_path)
    assert store.children("/").result() == []
    store.close()


def test_commits_that_are_missing_are_noticed_and_a_look_changes_nothing(tmp_path: Path) -> None:
    """Without its write-ahead log SQLite takes the file for a whole one, as old as its last checkpoint."""
    running = tmp_path / "running"
    with EmbeddedRegistry(running) as registry:
        store = EmbeddedStore(registry)
        store.create("/a").result(PATIENCE_S)
        for name, files in {"killed": ("registry.db", "registry.zxid"), "noted": ("registry.zxid",)}.items():
            (tmp_path / name).mkdir()
            for file in files:
                shutil.copyfile(running / file, tmp_path / name / file)
    for name, said in {"killed": r"registry\.db-wal is missing", "noted": "it is missing or empty"}.items():
        before = {each.name: each.read_bytes() for each in (tmp_path / name).iterdir()}
        for _ in range(2):
            with pytest.raises(RegistryError, match=f"has lost commits.*{said}"):
                EmbeddedRegistry(tmp_path / name)
        after = {each.name: each.read_bytes() for each in (tmp_path / name).iterdir()}
        assert after.pop("registry.lock")
        assert after == before


@pytest.mark.parametrize("note", [None, b"", b"zxid=1\n", bytes(25), b"zxid=0000000000000000001\n"])
def test_a_note_that_is_behind_or_cannot_be_read_says_nothing(tmp_path: Path, note: bytes | None) -> None:
    with EmbeddedRegistry(tmp_path) as registry:
        EmbeddedStore(registry).create("/a").result(PATIENCE_S)
        assert (tmp_path / "registry.zxid").read_bytes() == b"zxid=%019d\n" % registry.committed_zxid
    if note is None:
        (tmp_path / "registry.zxid").unlink()
    else:
        (tmp_path / "registry.zxid").write_bytes(note)
    with EmbeddedRegistry(tmp_path) as registry:
        assert EmbeddedStore(registry).exists("/a").result(PATIENCE_S) is not None


def test_a_note_that_cannot_be_true_is_told_of_and_no_evidence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedRegistry(tmp_path) as registry:
        EmbeddedStore(registry).create("/a").result(PATIENCE_S)
    (tmp_path / "registry.zxid").write_bytes(b"zxid=%d\n" % (2**63 - 1))
    with EmbeddedRegistry(tmp_path) as registry:
        assert EmbeddedStore(registry).exists("/a").result(PATIENCE_S) is not None
    assert "registry.zxid: no registry has reached transaction 9223372036854775807" in caplog.text


@pytest.mark.parametrize("name", ["registry.db", "registry.db-wal"])
def test_a_pipe_in_the_place_of_the_database_is_named(tmp_path: Path, name: str) -> None:
    with EmbeddedRegistry(tmp_path) as registry:
        EmbeddedStore(registry).create("/a").result(PATIENCE_S)
    (tmp_path / "registry.zxid").unlink()
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(RegistryError, match=f"{name} is not a file; put the file in its place"):
        EmbeddedRegistry(tmp_path)


def test_a_pipe_in_the_place_of_the_note_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "registry.zxid")
    note = ZxidNote(tmp_path)
    assert note.read() == 0
    note.write(5)
    note.close()
    with EmbeddedRegistry(tmp_path) as registry:
        EmbeddedStore(registry).create("/a").result(PATIENCE_S)


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE nodes SET mzxid = 9223372036854775807 WHERE path = '/a'", "the row of /a holds 9223372036854775807"),
        ("UPDATE nodes SET pzxid = -1 WHERE path = '/a'", "the row of /a holds -1, which is not one of 0 to"),
        ("UPDATE nodes SET version = 2147483648 WHERE path = '/a'", "the row of /a holds 2147483648"),
        ("UPDATE nodes SET aversion = -2 WHERE path = '/a'", "the row of /a holds -2"),
        ("UPDATE nodes SET child_creations = 1073741824 WHERE path = '/a'", "the row of /a holds 1073741824"),
        ("UPDATE counters SET value = 9223372036854775807 WHERE name = 'zxid'", "the counter zxid is 9223372036854"),
        ("UPDATE counters SET value = 'x' WHERE name = 'session'", "the counter session is 'x'"),
    ],
)
def test_a_number_that_cannot_be_is_a_damaged_registry(tmp_path: Path, statement: str, problem: str) -> None:
    with EmbeddedRegistry(tmp_path) as registry:
        EmbeddedStore(registry).create("/a").result(PATIENCE_S)
    with contextlib.closing(sqlite3.connect(tmp_path / "registry.db", isolation_level=None)) as database:
        database.execute(statement)
    with pytest.raises(RegistryError, match=f"{problem}.*restore it from a backup, or have a broker's made"):
        EmbeddedRegistry(tmp_path)


@pytest.mark.parametrize(
    ("column", "value"), [("data", None), ("data", 5), ("czxid", "x"), ("version", 1.5), ("mzxid", None)]
)
def test_a_row_of_another_type_is_a_damaged_registry(tmp_path: Path, column: str, value: object) -> None:
    with EmbeddedRegistry(tmp_path) as registry:
        EmbeddedStore(registry).create("/a").result(PATIENCE_S)
    with contextlib.closing(sqlite3.connect(tmp_path / "registry.db", isolation_level=None)) as database:
        database.executescript(
            "CREATE TABLE loose AS SELECT * FROM nodes; DROP TABLE nodes; ALTER TABLE loose RENAME TO nodes"
        )
        database.execute(f"UPDATE nodes SET {column} = ? WHERE path = '/a'", (value,))
    with pytest.raises(RegistryError, match="the row of /a holds values of other types; restore it from a backup"):
        EmbeddedRegistry(tmp_path)


def test_a_session_is_over_when_close_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedRegistry(tmp_path) as registry:
        store = EmbeddedStore(registry)
        ended: Future[None] = Future()
        ended.set_result(None)
        # The registry's thread has answered, and reports the end later.
        monkeypatch.setattr(registry, "expire", lambda _: ended)
        store.close()
        assert store.state is SessionState.LOST
