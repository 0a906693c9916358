"""A broker beside a registry that is lost, or older than its logs: it does not start; the registry is made again."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer as ConfluentConsumer

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.log.files.small_files import META_FILE, REGISTRY_ZXID_FILE
from spark_kafkalite.processes.child_process import ChildFailed
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.registry.tree.database import DATABASE_NAME
from spark_kafkalite.registry.tree.zxid_note import NOTE_NAME
from spark_kafkalite.wire.messages.init_producer_id import InitProducerIdRequest
from spark_kafkalite.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.interop.support.collect import collected
from tests.interop.support.raw_client import RawClient
from tests.patience import PATIENCE_S, wait_until
from tests.pool.forking import run_command
from tests.seeds import SEED

OVERRIDES = {"offsets.topic.num.partitions": 2, "group.initial.rebalance.delay.ms": 0}
WAL = f"{DATABASE_NAME}-wal"
VALUES = [b"%d" % number for number in range(10)]


def new_broker(data: Path) -> BrokerProcess:
    return BrokerProcess(data, overrides=OVERRIDES)


def fill(broker: BrokerProcess) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic("t", 2, 1)
        admin.create_topic("u", 1, 1)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for value in VALUES:
            producer.send("t", value, partition=0).result(PATIENCE_S)


def values(broker: BrokerProcess, topic: str = "t", count: int = len(VALUES)) -> list[bytes | None]:
    with Consumer(bootstrap_servers=broker.bootstrap) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek_to_beginning()
        return [record.value for record in collected(lambda: consumer.poll(timeout_ms=500), count)]


def refusal(broker: BrokerProcess) -> str:
    with pytest.raises(ChildFailed, match="exit code 1"):
        broker.start()
    (line,) = [each for each in broker.stderr_path.read_text().splitlines() if each.startswith("kafkalite: ")]
    return line


def names(data: Path) -> list[str]:
    return sorted(each.name for each in data.iterdir() if each.is_dir() and each.name != "_registry")


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of a broker that was killed, with its registry's last commits in the write-ahead log only."""
    data = tmp_path_factory.mktemp("crashed") / "data"
    with new_broker(data) as broker:
        fill(broker)
        broker.kill()
    assert (data / "_registry" / WAL).stat().st_size > 0
    return data


@pytest.fixture
def data(crashed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(crashed, tmp_path / "data"))


@pytest.fixture
def broker(data: Path) -> Iterator[BrokerProcess]:
    broker = new_broker(data)
    yield broker
    broker.kill()


def rebuild(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_command("registry", "rebuild", *map(str, arguments))


def remove(*found: str) -> Callable[[Path], None]:
    return lambda registry: [(registry / name).unlink() for name in found] and None


def empty(registry: Path) -> None:
    os.truncate(registry / DATABASE_NAME, 0)
    (registry / WAL).unlink()


def overwrite(name: str) -> Callable[[Path], None]:
    return lambda registry: (registry / name).write_bytes(bytes((registry / name).stat().st_size)) and None


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        pytest.param(lambda registry: shutil.rmtree(registry), "_registry does not exist", id="directory"),
        pytest.param(remove(DATABASE_NAME, WAL, NOTE_NAME), "registry.db does not exist", id="file"),
        pytest.param(remove(DATABASE_NAME), "registry.db does not exist", id="all but its log"),
        pytest.param(remove(WAL), "registry.db-wal is missing", id="its log"),
        pytest.param(remove(WAL, NOTE_NAME), "is a new one", id="its log and the note"),
        pytest.param(empty, "registry.db is empty", id="truncated"),
        pytest.param(overwrite(WAL), "has lost commits", id="its log zeroed"),
        pytest.param(
            lambda registry: (remove(WAL)(registry), overwrite(DATABASE_NAME)(registry)), "not a database", id="zeroed"
        ),
    ],
)
def test_without_its_registry_a_broker_does_not_start_and_touches_nothing(
    data: Path, broker: BrokerProcess, damage: Callable[[Path], None], named: str, tmp_path: Path
) -> None:
    registry, kept = data / "_registry", tmp_path / "kept"
    shutil.copytree(registry, kept)
    damage(registry)
    before = names(data)
    for _ in range(2):  # a start that was refused must not make the next one pass
        told = refusal(broker)
        assert named in told
        assert "kafkalite registry rebuild" in told
    assert names(data) == before
    # What was taken away is put back, over whatever the refused starts have left.
    shutil.copytree(kept, registry, dirs_exist_ok=True)
    broker.start()
    assert values(broker) == VALUES
    assert broker.stop() == 0


def test_an_older_copy_of_the_registry_is_refused_and_completed_from_the_logs(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    with new_broker(data) as broker:
        fill(broker)
        broker.stop()
        shutil.copytree(data / "_registry", copy)
        broker.start()
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("newer", 1, 1)
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            producer.send("newer", b"kept").result(PATIENCE_S)
        broker.stop()
        shutil.rmtree(data / "_registry")
        shutil.copytree(copy, data / "_registry")
        told = refusal(broker)
        assert "is older than the logs" in told
        assert names(data) == ["newer-0", "t-0", "t-1", "u-0"]
        shown = rebuild("--log-dirs", data, "--execute")
        assert shown.returncode == 0, shown.stderr
        assert "older than the logs" in shown.stdout
        broker.start()
        assert values(broker) == VALUES
        assert values(broker, "newer", 1) == [b"kept"]


def described(broker: BrokerProcess, topic: str) -> tuple[str | None, bytes, dict[int, int]]:
    """Return the cluster id, the topic's id and the leader epoch of each partition."""
    with RawClient(broker.bootstrap) as client:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        answer = client.call(request, 12)
    (found,) = answer.topics
    assert found.error_code == 0
    return answer.cluster_id, found.topic_id, {each.partition_index: each.leader_epoch for each in found.partitions}


def next_producer_id(broker: BrokerProcess) -> int:
    with RawClient(broker.bootstrap) as client:
        return int(client.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0), 4).producer_id)


def test_producers_and_consumers_go_on_after_the_registry_was_made_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with new_broker(data) as broker:
        fill(broker)
        # Each restart raises the leader epochs; clients learn the one that is in force.
        broker.restart()
        where = {"bootstrap_servers": broker.bootstrap}
        reader = ConfluentConsumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "theirs",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        reader.subscribe(["t"])
        with (
            Producer(**where) as producer,
            Consumer(**where, group_id="ours", auto_offset_reset="earliest") as consumer,
        ):
            consumer.subscribe(["t"])
            sent = [
                producer.send("t", b"before %d" % number, partition=0).result(PATIENCE_S).offset for number in range(5)
            ]
            ours, theirs = [], []

            def read(count: int) -> None:
                def have_read() -> bool:
                    ours.extend((record.offset, record.value) for record in consumer.poll(timeout_ms=100))
                    found = reader.poll(0.1)
                    if found is not None and found.error() is None:
                        theirs.append((found.offset(), found.value()))
                    return len(ours) >= count and len(theirs) >= count

                wait_until(
                    have_read, lambda: f"{count} records for both; there are {len(ours)}, {len(theirs)}", poll_s=0
                )

            read(15)
            consumer.commit()
            reader.commit(asynchronous=False)
            used_id = next_producer_id(broker)
            before = described(broker, "t")
            broker.kill()
            shutil.rmtree(data / "_registry")
            shown = rebuild("--log-dirs", data)
            assert (shown.returncode, (data / "_registry").exists()) == (0, False), shown.stderr
            assert "add --execute" in shown.stderr
            assert rebuild("--log-dirs", data, "--execute").returncode == 0
            broker.start()
            after = described(broker, "t")
            assert after[:2] == before[:2]
            assert all(epoch > before[2][number] for number, epoch in after[2].items())
            assert next_producer_id(broker) > used_id
            # The very producer goes on in its sequence, and the consumers at their positions.
            sent += [
                producer.send("t", b"after %d" % number, partition=0).result(PATIENCE_S).offset for number in range(5)
            ]
            assert sent == list(range(10, 20))
            read(20)
        expected = (
            VALUES + [b"before %d" % number for number in range(5)] + [b"after %d" % number for number in range(5)]
        )
        assert ours == theirs == list(enumerate(expected))


def test_a_start_is_not_refused_without_reason(tmp_path: Path) -> None:
    """New directories, those of earlier versions, a start or a run that was killed, a registry that nobody needs."""
    data = tmp_path / "data"
    chance = random.Random(SEED)
    with new_broker(data) as broker:
        broker.kill()
        broker.start()
        fill(broker)
        broker.stop()
        (data / REGISTRY_ZXID_FILE).unlink()
        (data / "_registry" / NOTE_NAME).unlink()
        broker.start()
        broker.kill()
        command = [*broker._command()]
        for _ in range(5):
            starting = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(chance.uniform(0.1, 0.8))
            starting.kill()
            starting.wait()
        broker.start()
        assert values(broker) == VALUES
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.delete_topics(["t", "u"])
        broker.stop()
        shutil.rmtree(data / "_registry")
        # No log is left that the registry would be needed for; the cluster keeps its id.
        broker.start()
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("v", 1, 1)
        broker.kill()
        broker.start()
        assert broker.stop() == 0


def test_logs_in_a_directory_that_does_not_say_whose_it_is_stop_the_start(data: Path, broker: BrokerProcess) -> None:
    shutil.copytree(data / "u-0", data / "foreign-0")
    (data / META_FILE).unlink()
    told = refusal_of_settings(broker)
    assert f"{data} has no {META_FILE}" in told
    assert "foreign-0" in told
    assert "foreign-0" in names(data)
    assert not (data / META_FILE).exists()
    shutil.rmtree(data / "foreign-0")
    # All others are logs of the registry's topics, so the directory is this broker's.
    broker.start()
    assert values(broker) == VALUES


def refusal_of_settings(broker: BrokerProcess) -> str:
    with pytest.raises(ChildFailed):
        broker.start()
    return broker.stderr_path.read_text()


def test_a_rebuild_is_refused_while_the_broker_runs_and_names_what_is_wrong(data: Path, broker: BrokerProcess) -> None:
    broker.start()
    running = rebuild("--log-dirs", data)
    assert running.returncode == 2
    assert f"log directory {data} is in use by a broker: stop it first" in running.stderr
    broker.stop()
    missing = rebuild("--log-dirs", f"{data},{data}-other")
    assert missing.returncode == 2
    assert f"log directory {data}-other does not exist" in missing.stderr
    whole = rebuild("--log-dirs", data, "--execute")
    assert whole.returncode == 0
    assert "the registry lacks nothing" in whole.stderr
    assert sorted(each.name for each in (data / "_registry").iterdir()) == [
        DATABASE_NAME,
        "registry.lock",
        NOTE_NAME,
    ]
