"""A registry is copied whole or not at all, and the old one is out of use then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite.broker.standalone.registry_evidence import RegistryLost
from spark_kafkalite.broker.standalone.registry_export import Exported, export_registry
from spark_kafkalite.errors import ConfigError, RegistryError
from spark_kafkalite.log.files.os_fs import OsFs
from spark_kafkalite.log.files.small_files import REGISTRY_ZXID_FILE, write_meta, write_registry_zxid
from spark_kafkalite.registry.store import Store
from spark_kafkalite.registry.tree.embedded_store import open_embedded
from spark_kafkalite.registry.znodes import CLUSTER_ID, INTER_BROKER_SECRET
from tests.patience import PATIENCE_S

FS = OsFs()
CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"
ID_NODE = b'{"version":"1","id":"AAAAAAAAAAAAAAAAAAAAAA"}'
WHERE = "zk1:2181"


def make(store: Store, path: str, data: bytes = b"", *, private: bool = False, ephemeral: bool = False) -> None:
    store.create(path, data, private=private, ephemeral=ephemeral, make_parents=True).result(PATIENCE_S)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    (path / "t-0").mkdir(parents=True)
    write_meta(FS, f"{path}/meta.properties", {"broker.id": "1", "cluster.id": CLUSTER})
    return path


@pytest.fixture
def data(log_dir: Path) -> Path:
    """A stopped registry with nodes of every kind."""
    directory = log_dir / "_registry"
    store = open_embedded(directory)
    make(store, CLUSTER_ID, ID_NODE)
    for number in range(150):
        make(store, f"/brokers/topics/t{number}/partitions/0/state", b"{}" * 30)
    make(store, "/consumers/g/offsets/t0/0", b"17")
    make(store, "/brokers/ids")
    make(store, "/brokers/ids/1", b"here", ephemeral=True)
    make(store, INTER_BROKER_SECRET, b"secret")
    write_registry_zxid(FS, f"{log_dir}/{REGISTRY_ZXID_FILE}", store.seen_zxid)
    store.close()
    return directory


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Store]:
    store = open_embedded(tmp_path / "target")
    yield store
    store.close()


def export(data: Path, log_dir: Path, target: Store, *, authenticated: bool = False) -> Exported:
    return export_registry(FS, data, [str(log_dir)], target, where=WHERE, authenticated=authenticated)


def value(store: Store, path: str) -> bytes:
    return store.get(path).result(PATIENCE_S)[0]


def test_persistent_nodes_are_copied_and_the_old_registry_is_out_of_use(
    data: Path, log_dir: Path, target: Store
) -> None:
    done = export(data, log_dir, target)
    assert done.cluster_id == CLUSTER
    assert done.nodes > 600
    assert value(target, CLUSTER_ID) == ID_NODE
    assert value(target, "/brokers/topics/t149/partitions/0/state") == b"{}" * 30
    assert value(target, "/consumers/g/offsets/t0/0") == b"17"
    assert target.children("/brokers/ids").result(PATIENCE_S) == []
    assert not (log_dir / REGISTRY_ZXID_FILE).exists()
    assert not (data / "registry.db").exists()
    assert all(Path(path).exists() and ".exported-" in path for path in done.kept)
    with pytest.raises(ConfigError, match="has been exported already: start the brokers with"):
        export(data, log_dir, target)


def test_an_interrupted_export_is_run_again(data: Path, log_dir: Path, target: Store) -> None:
    class Failing(Exception):
        pass

    multi, calls = target.multi, iter(range(100))

    def breaks(operations: object) -> object:
        if next(calls) == 1:
            raise Failing
        return multi(operations)  # type: ignore[arg-type]

    target.multi = breaks  # type: ignore[method-assign, assignment]
    with pytest.raises(Failing):
        export(data, log_dir, target)
    # No broker uses half a copy: it lacks the cluster's id.
    assert target.exists(CLUSTER_ID).result(PATIENCE_S) is None
    assert (data / "registry.db").exists() and (log_dir / REGISTRY_ZXID_FILE).exists()
    target.multi = multi  # type: ignore[method-assign]
    assert export(data, log_dir, target).nodes > 600
    assert value(target, "/brokers/topics/t149/partitions/0/state") == b"{}" * 30


def test_one_that_ended_after_the_copy_is_finished(data: Path, log_dir: Path, target: Store) -> None:
    make(target, CLUSTER_ID, ID_NODE)
    make(target, "/brokers/topics/t0/partitions/0/state", b"of a broker that has gone on")
    assert export(data, log_dir, target).nodes == 0
    assert value(target, "/brokers/topics/t0/partitions/0/state") == b"of a broker that has gone on"
    assert not (data / "registry.db").exists()


@pytest.mark.parametrize(
    ("path", "what", "message"),
    [
        (CLUSTER_ID, ID_NODE.replace(b"AAAA", b"BBBB"), r"zk1:2181 holds a cluster already \(BBBB"),
        ("/hbase/master", b"", r"zk1:2181 is not empty: it holds /hbase, /hbase/master\. Name a chroot"),
    ],
)
def test_a_target_that_is_in_use_is_refused(
    data: Path, log_dir: Path, target: Store, path: str, what: bytes, message: str
) -> None:
    make(target, path, what)
    with pytest.raises(ConfigError, match=message):
        export(data, log_dir, target)
    assert (data / "registry.db").exists() and (log_dir / REGISTRY_ZXID_FILE).exists()


def test_a_registry_older_than_the_logs_is_refused(data: Path, log_dir: Path, target: Store) -> None:
    write_registry_zxid(FS, f"{log_dir}/{REGISTRY_ZXID_FILE}", 10**9)
    with pytest.raises(RegistryLost, match="is older than the logs"):
        export(data, log_dir, target)
    assert target.exists(CLUSTER_ID).result(PATIENCE_S) is None


def test_a_registry_that_runs_is_refused(data: Path, log_dir: Path, target: Store) -> None:
    running = open_embedded(data)
    with pytest.raises(RegistryError, match="in use"):
        export(data, log_dir, target)
    running.close()


def test_a_directory_without_a_registry_is_named(log_dir: Path, target: Store) -> None:
    with pytest.raises(ConfigError, match=r"holds no registry: there is no registry\.db in it"):
        export(log_dir, log_dir, target)
