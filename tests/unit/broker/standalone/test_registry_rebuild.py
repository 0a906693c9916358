"""What a registry made again from log directories holds."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from spark_kafkalite.broker.standalone.registry_evidence import RegistryEvidence, RegistryLost
from spark_kafkalite.broker.standalone.registry_rebuild import RebuildPlan, as_json, locked, plan_rebuild, write
from spark_kafkalite.errors import ConfigError, KafkaliteError
from spark_kafkalite.log.directories.log_dirs import LogDirectories
from spark_kafkalite.log.directories.siblings import find_siblings
from spark_kafkalite.log.files.os_fs import OsFs
from spark_kafkalite.log.files.small_files import (
    CLEANER_OFFSET_FILE,
    REGISTRY_ZXID_FILE,
    partition_metadata,
    topic_id_text,
    write_meta,
    write_offsets,
    write_registry_zxid,
)
from spark_kafkalite.model import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from spark_kafkalite.records import kernel
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.producer_id_block import PRODUCER_ID_BLOCK, ProducerIdBlock
from spark_kafkalite.registry.tree.database import DATABASE_NAME
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore
from spark_kafkalite.registry.znodes import LeaderAndIsr, TopicAssignment
from tests.lab.batches import make_batch
from tests.patience import PATIENCE_S

FS = OsFs()
CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"
ID, OTHER_ID = bytes(range(16)), bytes(range(1, 17))


def add_log(log_dir: Path, name: str, topic_id: bytes | None = ID, *, epoch: int = 3, producer_id: int = 1500) -> Path:
    directory = log_dir / name
    directory.mkdir(parents=True)
    batch = make_batch(2, producer_id=producer_id, producer_epoch=0, base_sequence=0)
    kernel.stamp(batch, 0, 0, epoch)
    (directory / f"{0:020d}.log").write_bytes(batch)
    if topic_id is not None:
        (directory / "partition.metadata").write_bytes(partition_metadata(topic_id, int(name.rpartition("-")[2])))
    return directory


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    write_meta(FS, f"{path}/meta.properties", {"broker.id": "3", "cluster.id": CLUSTER})
    return path


def planned(*log_dirs: Path, registry: Path | None = None) -> RebuildPlan:
    return plan_rebuild(FS, [str(each) for each in log_dirs], registry or log_dirs[0] / "_registry")


def nodes(registry: Path) -> dict[str, bytes]:
    with EmbeddedRegistry(registry) as opened:
        return {path: node.data for path, node in opened.tree.nodes.items()}


def registry_with(registry: Path, content: dict[str, bytes]) -> int:
    with EmbeddedRegistry(registry) as opened:
        store = EmbeddedStore(opened)
        for path, data in content.items():
            store.create(path, data, make_parents=True).result(PATIENCE_S)
        return opened.last_zxid


def state(epoch: int) -> bytes:
    return LeaderAndIsr(BrokerId(3), LeaderEpoch(epoch), (BrokerId(3),), ControllerEpoch(2)).encode()


def test_the_log_of_another_partition_is_not_taken_for_that_of_its_directory(log_dir: Path) -> None:
    add_log(log_dir, "t-0").rename(log_dir / "t-1")
    with pytest.raises(ConfigError, match=r"t-1 holds the log of partition 0, by its partition\.metadata: give"):
        planned(log_dir)


def test_all_that_the_logs_name_comes_back(log_dir: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    add_log(log_dir, "t-0", epoch=3)
    add_log(second, "t-2", epoch=9, producer_id=7_777)
    add_log(log_dir, "compacted-0", OTHER_ID)
    add_log(log_dir, "__consumer_offsets-0", None)
    write_offsets(FS, f"{log_dir}/{CLEANER_OFFSET_FILE}", {TopicPartition("compacted", 0): 5})
    (log_dir / "old-0.0123-stray").mkdir()
    plan = planned(log_dir, second)
    assert not (log_dir / "_registry").exists()
    assert plan.recovery.set_aside == [(3, f"{log_dir}/old-0.0123-stray")]
    assert (plan.recovery.cluster_id, plan.host.broker_id, plan.state) == (CLUSTER, 3, "missing")
    json.dumps(as_json(plan))
    assert write(plan) == []
    found = nodes(log_dir / "_registry")
    assert znodes.decode_cluster_id(found[znodes.CLUSTER_ID]) == CLUSTER
    topic = TopicAssignment.decode("t", found[znodes.topic_path("t")])
    assert (topic.topic_id, dict(topic.partitions)) == (ID, {0: (3,), 1: (3,), 2: (3,)})
    states = [LeaderAndIsr.decode("t", number, found[znodes.state_path("t", number)]) for number in range(3)]
    assert states[0].leader_epoch > 3
    assert states[2].leader_epoch > 9
    assert {each.isr for each in states} == {(3,)}
    assert next(each for each in plan.recovery.topics if each.name == "t").without_log == (1,)
    assert ProducerIdBlock.decode(found[PRODUCER_ID_BLOCK]).last >= 7_777
    # Retention removes nothing that the lost settings may have kept, and what was compacted is again.
    config = {name: znodes.decode_config("/", found[znodes.topic_config_path(name)]) for name in ("t", "compacted")}
    assert config["t"]["retention.ms"] == config["t"]["retention.bytes"] == "-1"
    assert config["compacted"] == {"cleanup.policy": "compact"}
    internal = znodes.decode_config("/", found[znodes.topic_config_path("__consumer_offsets")])
    assert internal["cleanup.policy"] == "compact"
    again = planned(log_dir, second)
    assert (again.is_needed, again.recovery.nodes, again.recovery.problems) == (False, {}, [])


def test_an_older_registry_is_completed_and_keeps_what_no_log_names(log_dir: Path) -> None:
    add_log(log_dir, "t-0", epoch=8)
    add_log(log_dir, "newer-0", OTHER_ID)
    registry = log_dir / "_registry"
    zxid = registry_with(
        registry,
        {
            znodes.CLUSTER_ID: znodes.encode_cluster_id(CLUSTER),
            znodes.topic_path("t"): TopicAssignment(ID, {0: (BrokerId(3),)}).encode(),
            znodes.state_path("t", 0): state(4),
            znodes.topic_config_path("t"): znodes.encode_config({"retention.ms": "5"}),
            znodes.topic_path("gone"): TopicAssignment(ID, {0: (BrokerId(3),)}).encode(),
            znodes.CONTROLLER_EPOCH: b"junk",
            "/consumers/g/offsets/t/0": b"17",
        },
    )
    write_registry_zxid(FS, f"{log_dir}/{REGISTRY_ZXID_FILE}", zxid + 500)
    plan = planned(log_dir)
    assert (plan.state, plan.keeps_old) == ("older", True)
    assert plan.recovery.without_logs == ["gone"]
    before = {each.name for each in registry.iterdir()}
    kept = write(plan)
    assert {Path(each).name.partition(".before-rebuild-")[0] for each in kept} == before - {"registry.lock"}
    found = nodes(registry)
    assert found["/consumers/g/offsets/t/0"] == b"17"
    assert znodes.decode_config("/", found[znodes.topic_config_path("t")]) == {"retention.ms": "5"}
    assert LeaderAndIsr.decode("t", 0, found[znodes.state_path("t", 0)]).leader_epoch > 8
    assert znodes.topic_path("newer") in found
    assert znodes.decode_controller_epoch(found[znodes.CONTROLLER_EPOCH]) >= 2
    with EmbeddedRegistry(registry) as opened:
        assert opened.last_zxid > zxid + 500


def test_a_registry_that_lacks_nothing_is_left_alone(log_dir: Path) -> None:
    add_log(log_dir, "t-0", epoch=4, producer_id=10)
    registry = log_dir / "_registry"
    content = {
        znodes.CLUSTER_ID: znodes.encode_cluster_id(CLUSTER),
        znodes.topic_path("t"): TopicAssignment(ID, {0: (BrokerId(3),)}).encode(),
        znodes.state_path("t", 0): state(4),
        znodes.topic_config_path("t"): znodes.encode_config({}),
        PRODUCER_ID_BLOCK: ProducerIdBlock(BrokerId(3), 0, 999).encode(),
    }
    registry_with(registry, {**dict.fromkeys(znodes.PERSISTENT_PATHS, b""), **content})
    plan = planned(log_dir)
    assert (plan.state, plan.recovery.next_producer_id, set(plan.recovery.nodes)) == ("complete", 1000, set())


@pytest.mark.parametrize(
    ("content", "state_said"),
    [(b"", "empty"), (bytes(4096), "damaged: file is not a database"), (b"x" * 900, "damaged")],
)
def test_a_damaged_registry_is_kept_under_another_name(log_dir: Path, content: bytes, state_said: str) -> None:
    add_log(log_dir, "t-0")
    registry = log_dir / "_registry"
    registry.mkdir()
    (registry / DATABASE_NAME).write_bytes(content)
    plan = planned(log_dir)
    assert plan.state.startswith(state_said)
    assert (registry / DATABASE_NAME).read_bytes() == content
    (kept,) = write(plan)
    assert Path(kept).read_bytes() == content
    assert znodes.state_path("t", 0) in nodes(registry)


def test_what_would_name_a_topic_wrongly_is_refused(log_dir: Path, tmp_path: Path) -> None:
    add_log(log_dir, "t-0")
    add_log(log_dir, "t-1", OTHER_ID)
    with pytest.raises(ConfigError, match=f"topic t have different topic ids .*{topic_id_text(OTHER_ID)}"):
        planned(log_dir)
    other = tmp_path / "other"
    add_log(other, "t-0")
    with pytest.raises(ConfigError, match="partition t-0 lies in"):
        planned(log_dir, other)
    write_meta(FS, f"{other}/meta.properties", {"broker.id": "3", "cluster.id": "BBBBBBBBBBBBBBBBBBBBBA"})
    with pytest.raises(ConfigError, match=r"different values of cluster\.id"):
        planned(log_dir, other)
    add_log(tmp_path / "third", "t-2147483648")
    with pytest.raises(ConfigError, match="no topic has 2147483648 partitions"):
        planned(tmp_path / "third")
    add_log(tmp_path / "sparse", "t-0")
    add_log(tmp_path / "sparse", "t-99999")
    with pytest.raises(ConfigError, match=r"sparse/t-99999: of the 99999 partitions of topic t below it 99998 have no"):
        planned(tmp_path / "sparse")
    add_log(tmp_path / "copied", "t-0")
    add_log(tmp_path / "copied", "u-0")
    with pytest.raises(ConfigError, match=r"copied/t-0 and .*copied/u-0 have the same topic id|u-0 and .*t-0 have the"):
        planned(tmp_path / "copied")
    foreign = tmp_path / "foreign"
    registry_with(foreign, {znodes.CLUSTER_ID: znodes.encode_cluster_id("BBBBBBBBBBBBBBBBBBBBBA")})
    add_log(tmp_path / "fourth", "t-0")
    write_meta(FS, f"{tmp_path}/fourth/meta.properties", {"broker.id": "3", "cluster.id": CLUSTER})
    with pytest.raises(ConfigError, match="is that of cluster BBBB"):
        planned(tmp_path / "fourth", registry=foreign)


def test_a_log_directory_that_the_others_know_is_not_left_out(log_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    logs = LogDirectories(FS, [str(log_dir), str(other)])
    logs.claim(3, CLUSTER)
    add_log(other, "elsewhere-0")
    assert {topic.name for topic in planned(log_dir, other).recovery.topics} >= {"elsewhere"}
    (missing,) = find_siblings(FS, [str(log_dir)]).missing
    shutil.rmtree(other)
    other.mkdir()
    for named in ([log_dir], [log_dir, other]):
        with pytest.raises(ConfigError, match=f"missing or empty: {other} .directory.id {missing}.*--lost {missing}"):
            planned(*named)
    add_log(log_dir, "here-0")
    assert plan_rebuild(FS, [str(log_dir)], log_dir / "_registry", lost=[missing]).recovery.topics


def test_a_rebuild_that_was_interrupted_leaves_a_registry_that_is_refused(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each rename: the old registry in part, or none, or the new one."""
    add_log(log_dir, "t-0")
    registry = log_dir / "_registry"
    zxid = registry_with(registry, {znodes.CLUSTER_ID: znodes.encode_cluster_id(CLUSTER)})
    write_registry_zxid(FS, f"{log_dir}/{REGISTRY_ZXID_FILE}", zxid + 1)
    rename, calls = os.rename, 0

    class Killed(Exception):
        pass

    def killed(source: object, target: object) -> None:
        nonlocal calls
        if calls == stop_at:
            raise Killed
        calls += 1
        rename(source, target)  # type: ignore[arg-type]

    for stop_at in range(2):  # noqa: B007
        calls = 0
        with monkeypatch.context() as patched:
            patched.setattr(os, "rename", killed)
            with pytest.raises(Killed):
                write(planned(log_dir))
        with pytest.raises(KafkaliteError):
            evidence = RegistryEvidence(FS, [str(log_dir)], registry)
            evidence.check_file()
            EmbeddedRegistry(registry, check=evidence.check_tree).close()
    write(planned(log_dir))
    evidence = RegistryEvidence(FS, [str(log_dir)], registry)
    evidence.check_file()
    EmbeddedRegistry(registry, check=evidence.check_tree).close()


def test_evidence(log_dir: Path) -> None:
    registry = log_dir / "_registry"
    nothing = RegistryEvidence(FS, [str(log_dir)], registry)
    nothing.check_file()  # a registry that nobody needs may be missing
    add_log(log_dir, "t-0")
    evidence = RegistryEvidence(FS, [str(log_dir), f"{log_dir}-missing"], registry)
    with pytest.raises(RegistryLost, match=f"does not exist, but .* 1 partitions of cluster {CLUSTER} .t-0."):
        evidence.check_file()
    with pytest.raises(RegistryLost, match="is a new one"):
        EmbeddedRegistry(registry, check=evidence.check_tree)
    zxid = registry_with(registry, {znodes.CLUSTER_ID: znodes.encode_cluster_id(CLUSTER)})
    EmbeddedRegistry(registry, check=evidence.check_tree).close()
    evidence.note([str(log_dir), f"{log_dir}-missing"], zxid + 1)
    for _ in range(3):  # what a refused start opens and closes does not count as progress
        evidence = RegistryEvidence(FS, [str(log_dir)], registry)
        with pytest.raises(RegistryLost, match=f"ends with transaction {zxid}, .* seen transaction {zxid + 1}"):
            EmbeddedRegistry(registry, check=evidence.check_tree)
    # What a registry elsewhere settles is exactly what the directories say.
    for settled in (None, zxid, zxid + 2):
        with pytest.raises(RegistryLost, match="recover-registry"):
            evidence.check_shared(zxid, settled)
    evidence.check_shared(zxid, zxid + 1)
    (log_dir / REGISTRY_ZXID_FILE).write_bytes(b"0\n1\nx\n")
    EmbeddedRegistry(registry, check=RegistryEvidence(FS, [str(log_dir)], registry).check_tree).close()


@pytest.mark.parametrize("zxid", [2**62 + 1, 2**63 - 1, 10**30, -1])
def test_a_note_that_cannot_be_true_is_no_evidence(log_dir: Path, caplog: pytest.LogCaptureFixture, zxid: int) -> None:
    registry = log_dir / "_registry"
    add_log(log_dir, "t-0")
    (log_dir / REGISTRY_ZXID_FILE).write_text(f"0\n1\n{zxid}\n")
    assert write(planned(log_dir)) == []
    assert f"no registry has reached transaction {zxid}" in caplog.text
    EmbeddedRegistry(registry, check=RegistryEvidence(FS, [str(log_dir)], registry).check_tree).close()
    # The greatest that may be true leaves room.
    (log_dir / REGISTRY_ZXID_FILE).write_text(f"0\n1\n{2**62}\n")
    write(planned(log_dir))
    EmbeddedRegistry(registry, check=RegistryEvidence(FS, [str(log_dir)], registry).check_tree).close()


def test_the_locks_keep_brokers_out(log_dir: Path) -> None:
    registry = log_dir / "_registry"
    with (
        locked(FS, [str(log_dir)], registry),
        pytest.raises(ConfigError, match="in use by a broker"),
        locked(FS, [str(log_dir)], registry),
    ):
        pass
    with pytest.raises(ConfigError, match="does not exist"), locked(FS, [f"{log_dir}-x"], registry):
        pass


def test_the_written_registry_is_sound(log_dir: Path) -> None:
    add_log(log_dir, "t-0")
    write(planned(log_dir))
    assert {each.name for each in (log_dir / "_registry").iterdir()} == {DATABASE_NAME}
    with contextlib.closing(sqlite3.connect(log_dir / "_registry" / DATABASE_NAME)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_what_is_no_file_is_named_and_costs_what_it_would_say(log_dir: Path) -> None:
    for name in ("t-0", "t-1", "u-0"):
        add_log(log_dir, name, OTHER_ID if name == "u-0" else ID)
    pipes = [f"t-0/{0:020d}.log", f"t-0/{2:020d}.snapshot", "t-0/leader-epoch-checkpoint", "v-0"]
    for name in pipes:
        (log_dir / name).unlink(missing_ok=True)
        os.mkfifo(log_dir / name)
    plan = planned(log_dir)
    for name in pipes:
        (problem,) = [each for each in plan.recovery.problems if str(log_dir / name) in each]
        assert "is a named pipe where a " in problem and "move it away" in problem
    assert [topic.name for topic in plan.recovery.topics] == ["t", "u"]
    # A topic's id is not guessed.
    (log_dir / "u-0" / "partition.metadata").unlink()
    os.mkfifo(log_dir / "u-0" / "partition.metadata")
    with pytest.raises(ConfigError, match=r"u-0/partition\.metadata is a named pipe where a file should be"):
        planned(log_dir)
