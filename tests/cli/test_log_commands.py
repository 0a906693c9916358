"""``topics delete-records``, ``cluster log-dirs`` and the places of ``offsets get``, as a shell runs them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Producer
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.pool.forking import run_command


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("cli") / "data") as running:
        with Admin(bootstrap_servers=running.bootstrap) as admin:
            admin.create_topic("events", 3, 1)
        with Producer(bootstrap_servers=running.bootstrap) as producer:
            for partition in range(3):
                for number in range(10):
                    producer.send("events", b"%d" % number, partition=partition)
        yield running


def kafkalite(broker: BrokerProcess, *arguments: str, code: int = 0) -> str:
    done = run_command(*arguments, "--bootstrap-server", broker.bootstrap)
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_records_are_deleted_by_options_and_by_file(broker: BrokerProcess, tmp_path: Path) -> None:
    delete = ("topics", "delete-records", "--topic", "events")
    assert kafkalite(broker, *delete, "--partition", "0", "--before-offset", "4") == "events:0:4\n"
    assert kafkalite(broker, "offsets", "get", "--topic", "events", "--time", "earliest") == (
        "events:0:4\nevents:1:0\nevents:2:0\n"
    )
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps({"partitions": [{"topic": "events", "partition": 1, "offset": 7}], "version": 1}))
    answer = json.loads(kafkalite(broker, "topics", "delete-records", "--offset-json-file", str(file), "--json"))
    assert answer == [{"topic": "events", "partition": 1, "low_watermark": 7}]
    assert kafkalite(broker, *delete, "--before-offset", "latest") == "events:0:10\nevents:1:10\nevents:2:10\n"
    # Kafka's spelling, and what is refused.
    assert kafkalite(broker, "topics", "--delete-records", *delete[2:], "--before-offset", "-1").startswith("events:0:")
    refused = kafkalite(broker, *delete, "--partition", "0", "--before-offset", "99", code=1)
    assert "events-0: records before 99 cannot" in refused
    assert "; events-0 ends at 10; give an offset up to there, or 'latest' to delete everything" in refused
    refused = kafkalite(broker, *delete, "--partition", "7", "--before-offset", "1", code=1)
    assert "topic events has no partition 7; it has 0 to 2" in refused
    by_file = ("topics", "delete-records", "--offset-json-file", str(tmp_path / "none.json"))
    assert "--offset-json-file" in kafkalite(broker, *by_file, code=2)
    assert "neither an offset" in kafkalite(broker, *delete, "--before-offset", "soon", code=2)
    assert "give --topic and" in kafkalite(broker, *delete, code=2)
    file.write_text('{"partitions": [{"topic": "events"}]}')
    assert "not of the form" in kafkalite(broker, "topics", "delete-records", "--offset-json-file", str(file), code=2)


def test_log_directories(broker: BrokerProcess) -> None:
    text = kafkalite(broker, "cluster", "log-dirs")
    assert text.startswith(f"Broker 1  {broker.data_dir}  online, ")
    assert [line.split()[0] for line in text.splitlines()[1:]] == ["PARTITION", "events-0", "events-1", "events-2"]
    (found,) = json.loads(kafkalite(broker, "cluster", "log-dirs", "--topic-list", "events", "--json"))
    assert (found["broker"], found["log_dir"], found["error"]) == (1, str(broker.data_dir), None)
    assert found["total_bytes"] > found["usable_bytes"] > 0
    sizes = {each["partition"]: each["size_bytes"] for each in found["partitions"]}
    assert sizes == {
        number: sum(path.stat().st_size for path in (broker.data_dir / f"events-{number}").glob("*.log"))
        for number in range(3)
    }
    assert "no live broker 9" in kafkalite(broker, "cluster", "log-dirs", "--brokers", "9", code=2)
    assert "not of the form" in kafkalite(broker, "cluster", "log-dirs", "--brokers", "x", code=2)


def test_every_place_has_a_name(broker: BrokerProcess) -> None:
    get = ("offsets", "get", "--topic", "events", "--partitions", "2", "--time")
    assert kafkalite(broker, *get, "earliest-local") == kafkalite(broker, *get, "earliest")
    assert kafkalite(broker, *get, "latest") == "events:2:10\n"
    assert kafkalite(broker, *get, "latest-tiered") == "events:2:\n"
    assert kafkalite(broker, *get, "max-timestamp").startswith("events:2:")
