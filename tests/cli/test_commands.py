"""The real commands as processes, against a real broker: what they print, where, and their exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from spark_kafkalite.processes.cluster import BrokerProcess
from tests.lab.model_broker import ModelBroker
from tests.patience import PATIENCE_S, wait_until
from tests.pool.forking import run_command

# Older than now, within every limit on timestamps.
BASE_MS = int(time.time() * 1000) - 60_000
_topics = count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("cli") / "data") as broker:
        yield broker


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_topics)}"


def kafkalite(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[str]:
    done = run_command(*arguments, input=given)
    assert "Traceback" not in done.stderr, done.stderr
    assert "\x1b" not in done.stdout + done.stderr, "no colours and bars in a pipe"
    return done


def started(*arguments: str, **streams: int) -> subprocess.Popen[bytes]:
    """Start a command that a test talks to while it runs; use it as a context manager."""
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.Popen([sys.executable, "-m", "spark_kafkalite.cli", *arguments], **piped)  # type: ignore[call-overload, no-any-return]


class Commands:
    """The commands with the broker's address."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.bootstrap = broker.bootstrap
        self.at = ("--bootstrap-server", broker.bootstrap)

    def __call__(self, *arguments: str, given: bytes = b"", code: int = 0) -> subprocess.CompletedProcess[str]:
        done = kafkalite(*arguments, "--bootstrap-server", self.bootstrap, given=given)
        assert done.returncode == code, done.stderr
        return done

    def consume(self, topic: str, *arguments: str) -> str:
        return self("consume", "--topic", topic, "--from-beginning", "--until-end", *arguments).stdout


@pytest.fixture
def run(broker: BrokerProcess) -> Commands:
    return Commands(broker)


def test_the_life_of_a_topic(run: Commands, topic: str) -> None:
    created = run("topics", "create", "--topic", topic, "--partitions", "3", "--config", "retention.ms=-1")
    assert created.stdout == f"Created topic {topic}.\n"
    assert "with --if-not-exists this is not an error" in run("topics", "create", "--topic", topic, code=1).stderr
    assert "exists already" in run("topics", "--create", "--topic", topic, "--if-not-exists").stdout
    assert topic in run("topics", "--list").stdout.splitlines()
    assert topic in json.loads(run("topics", "list", "--json").stdout)
    run("topics", "alter", "--topic", topic, "--partitions", "4")
    first, *partitions = run("topics", "--describe", "--topic", topic).stdout.splitlines()
    assert first.startswith(f"Topic: {topic}\tTopicId: ")
    assert first.endswith("PartitionCount: 4\tReplicationFactor: 1\tConfigs: retention.ms=-1")
    assert partitions == [
        f"\tTopic: {topic}\tPartition: {n}\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr: " for n in range(4)
    ]
    (described,) = json.loads(run("topics", "describe", "--topic", topic, "--json").stdout)
    assert (described["configs"], len(described["partitions"])) == ({"retention.ms": "-1"}, 4)
    for nothing in ("--unavailable-partitions", "--under-min-isr-partitions", "--under-replicated-partitions"):
        assert run("topics", "describe", "--topic", topic, nothing).stdout == ""
    assert len(run("topics", "describe", "--topic", topic, "--at-min-isr-partitions").stdout.splitlines()) == 4
    run("topics", "delete", "--topic", topic)
    assert topic not in run("topics", "list").stdout.splitlines()
    assert "no topic" in run("topics", "describe", "--topic", topic, code=1).stderr
    assert run("topics", "describe", "--topic", topic, "--if-exists").stdout == ""
    assert run("topics", "delete", "--topic", topic, "--if-exists").stdout == "Nothing to delete.\n"
    run("topics", "delete", "--topic", topic, code=1)


def test_bad_topics_are_refused_with_the_reason(run: Commands, topic: str) -> None:
    assert "code 40" in run("topics", "create", "--topic", topic, "--config", "retenton.ms=1", code=1).stderr
    run("topics", "create", "--topic", "no/slash", code=2)
    assert (
        "Unable to replicate the partition 3 time(s)"
        in run("topics", "create", "--topic", topic, "--replication-factor", "3", code=1).stderr
    )
    run("topics", "create", "--topic", topic, "--replica-assignment", "1,1")
    assert run("topics", "describe", "--topic", topic).stdout.count("Leader: 1") == 2
    assert (
        "currently has 2 partition(s)" in run("topics", "alter", "--topic", topic, "--partitions", "1", code=1).stderr
    )


def test_lines_go_in_and_come_out(run: Commands, topic: str) -> None:
    lines = [f"line {number}" for number in range(1000)] + ["", "último"]
    run("topics", "create", "--topic", topic)
    done = run("produce", "--topic", topic, given="\n".join(lines).encode())
    assert (done.stdout, done.stderr) == ("", "")
    assert run.consume(topic).splitlines() == lines


def test_a_topic_that_sending_makes_is_warned_of(run: Commands, topic: str) -> None:
    warning = (
        f"kafkalite: warning: topic {topic} does not exist: the broker creates it if its auto.create.topics.enable is "
        "true and there are brokers enough for its replicas; 'kafkalite topics create' reports what is missing\n"
    )
    assert run("produce", "--topic", topic, given=b"a\nb\n").stderr == warning
    assert run("produce", "--topic", topic, given=b"c\n").stderr == ""
    assert run.consume(topic).splitlines() == ["a", "b", "c"]


@pytest.mark.parametrize(("given", "sent"), [("nokey\n", "nothing was"), ("k:a\nnokey\nk:c\n", "1 record was")])
def test_a_line_that_cannot_be_sent_says_what_was_sent_before(run: Commands, topic: str, given: str, sent: str) -> None:
    run("topics", "create", "--topic", topic)
    number = given.splitlines().index("nokey") + 1
    refused = run("produce", "--topic", topic, "--key-separator", ":", given=given.encode(), code=1).stderr
    assert refused == (
        f"kafkalite: line {number}: no --key-separator ':' in it; --reader-property ignore.error=true sends such a "
        f"line without a key; {sent} sent before it\n"
    )
    assert run.consume(topic).splitlines() == ["a"] * (number - 1)


@pytest.mark.parametrize("where", [(), ("--from-beginning",), ("--offset", "0")])
def test_a_place_to_start_that_there_is_not_is_refused(run: Commands, topic: str, where: tuple[str, ...]) -> None:
    wrong = ("--command-property", "auto.offset.reset=first")
    refused = run("consume", "--topic", topic, "--until-end", *where, *wrong, code=2)
    assert "auto.offset.reset=first: must be one of earliest, latest" in refused.stderr


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compression(run: Commands, topic: str, codec: str, broker: BrokerProcess) -> None:
    run("produce", "--topic", topic, "--compression", codec, given=b"x\n" * 2000)
    assert run.consume(topic) == "x\n" * 2000
    shown = kafkalite("dump-log", str(broker.data_dir / f"{topic}-0")).stdout
    assert f"compresscodec: {codec} " in shown


def test_keys_headers_and_kafkas_formats(run: Commands, topic: str) -> None:
    run("topics", "create", "--topic", topic)
    run(
        *("produce", "--topic", topic, "--key-separator", ":", "--header", "from=test", "--acks", "1"),
        *("--property", "parse.headers=true", "--reader-property", "null.marker=NIL"),
        given=b"a:1\tk1:v1\r\na:2\tk2:NIL\n",
    )
    properties = [part for name in ("key", "headers", "offset") for part in ("--property", f"print.{name}=true")]
    assert run.consume(topic, *properties).splitlines() == [
        "Offset:0\tfrom:test,a:1\tk1\tv1",
        "Offset:1\tfrom:test,a:2\tk2\tnull",
    ]


def test_json_round_trip_keeps_everything_that_a_record_is(run: Commands, topic: str) -> None:
    records = [
        {"key": "k", "value": "v", "partition": 1, "timestamp": int(time.time() * 1000)},
        {"keyBase64": "/w==", "value": None, "partition": 0, "headers": [{"key": "h", "valueBase64": "AP8="}]},
        {"value": {"nested": [1, 2]}, "partition": 1, "headers": [{"key": "n", "value": None}]},
    ]
    for name in (topic, f"{topic}-copy"):
        run("topics", "create", "--topic", name, "--partitions", "2")
    given = "".join(json.dumps(record) + "\n" for record in records).encode()
    assert json.loads(run("produce", "--topic", topic, "--json", given=given).stdout) == {"sent": 3, "failed": 0}
    first = run.consume(topic, "--json")
    assert len(first.splitlines()) == 3
    run("produce", "--topic", f"{topic}-copy", "--json", given=first.encode())
    second = run.consume(f"{topic}-copy", "--json")
    by_place = sorted(second.replace(f'"{topic}-copy"', f'"{topic}"').splitlines())
    assert by_place == sorted(first.splitlines())


def test_a_line_that_is_no_record_is_named_by_its_number(run: Commands, topic: str) -> None:
    done = run("produce", "--topic", topic, "--json", given=b'{"value":"a"}\nnot json\n', code=1)
    assert "line 2: not JSON" in done.stderr
    assert run.consume(topic) == "a\n"


def test_records_past_their_retention_are_warned_of(run: Commands, topic: str) -> None:
    run("topics", "create", "--topic", topic, "--config", "retention.ms=86400000")
    old = b'{"value":"old","timestamp":1000}\n'
    done = run("produce", "--topic", topic, "--json", given=old * 3 + b'{"value":"new"}\n')
    assert f"records for topic {topic} are older than its retention.ms=86400000" in done.stderr
    assert f"3 records for topic {topic} were older" in done.stderr
    kept = f"{topic}-kept"
    run("topics", "create", "--topic", kept, "--config", "retention.ms=-1")
    assert run("produce", "--topic", kept, "--json", given=old).stderr == ""


def test_a_refused_record_fails_the_command(run: Commands, topic: str) -> None:
    run("topics", "create", "--topic", topic, "--config", "max.message.bytes=1000")
    done = run("produce", "--topic", topic, given=b"x" * 5000, code=1)
    assert "1 of 1 records were not sent" in done.stderr
    assert "1 record for " in done.stderr
    # Once: what is said of the batch is not said again of the command.
    assert done.stderr.count("MESSAGE_TOO_LARGE") == 1
    assert "partitions 0 to 0" in run("produce", "--topic", topic, "--partition", "7", given=b"x", code=1).stderr


def test_where_reading_begins_and_ends(run: Commands, topic: str) -> None:
    run("topics", "create", "--topic", topic, "--partitions", "2")
    for partition in (0, 1):
        given = "".join(
            json.dumps({"value": f"{partition}-{n}", "partition": partition, "timestamp": BASE_MS + n}) + "\n"
            for n in range(10)
        )
        run("produce", "--topic", topic, "--json", given=given.encode())

    def read(*arguments: str) -> list[str]:
        return sorted(run("consume", "--topic", topic, *arguments).stdout.splitlines())

    assert read("--partition", "1", "--offset", "8", "--until-end") == ["1-8", "1-9"]
    assert read("--offset", "-1", "--until-end") == ["0-9", "1-9"]
    assert read("--offset", "-100", "--partition", "0", "--until-end", "--max-messages", "3") == ["0-0", "0-1", "0-2"]
    assert read("--offset", f"@{BASE_MS + 8}", "--until-end") == ["0-8", "0-9", "1-8", "1-9"]
    assert read("--offset", "latest", "--until-end") == []
    # It ends with the silence, which on a slow host may come before the records.
    wait_until(lambda: len(read("--from-beginning", "--timeout-ms", "3000")) == 20, "all records before a silence")
    assert read("--from-beginning", "--max-messages", "0") == []
    wrong = run("consume", "--topic", topic, "--partition", "0", "--offset", "11", code=1)
    assert f"{topic}-0 holds the offsets 0 to 9" in wrong.stderr
    missing = run("consume", "--topic", topic, "--partition", "0,2,9", code=1).stderr
    assert f"topic {topic} has no partition 2, 9; it has 0 to 1" in missing
    assert "no such topic" in run("consume", "--topic", f"{topic}-none", code=1).stderr


def test_offsets_get(run: Commands, topic: str) -> None:
    run("topics", "create", "--topic", topic, "--partitions", "2")
    given = b"".join(b'{"value":"x","partition":1,"timestamp":%d}\n' % (BASE_MS + n) for n in range(5))
    run("produce", "--topic", topic, "--json", given=given)

    def offsets(*arguments: str) -> str:
        return run("offsets", "get", "--topic", topic, *arguments).stdout

    assert offsets() == f"{topic}:0:0\n{topic}:1:5\n"
    assert offsets("--time", "-2") == f"{topic}:0:0\n{topic}:1:0\n"
    assert offsets("--time", str(BASE_MS + 3)) == f"{topic}:0:\n{topic}:1:3\n"
    assert json.loads(offsets("--time", str(BASE_MS + 3), "--partitions", "1", "--json")) == [
        {"topic": topic, "partition": 1, "offset": 3, "timestamp": BASE_MS + 3}
    ]
    run("offsets", "get", "--topic", f"{topic}-none", code=1)
    for asked, said in ((("--topic", topic), f"topic {topic} has no partition 9; it has 0 to 1"),
                        (("--topic", f"{topic},{topic}"), "none of these topics has a partition 9"),
                        ((), "no topic has a partition 9")):  # fmt: skip
        assert said in run("offsets", "get", *asked, "--partitions", "0,9", code=1).stderr


def test_consume_follows_and_ctrl_c_ends_it_quietly(run: Commands, topic: str) -> None:
    run("topics", "create", "--topic", topic)
    with started("consume", "--topic", topic, "--from-beginning", "--bootstrap-server", run.bootstrap) as process:
        assert process.stdout is not None
        for text in (b"one\n", b"two\n"):
            run("produce", "--topic", topic, given=text)
            assert process.stdout.readline() == text
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (0, b"", b"Processed a total of 2 messages\n")


def test_ctrl_c_ends_the_input_of_produce_and_nothing_read_is_lost(run: Commands, topic: str) -> None:
    run("topics", "create", "--topic", topic)
    arguments = ("produce", "--topic", topic, "--bootstrap-server", run.bootstrap)
    with started(*arguments, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"kept\n")
        process.stdin.flush()
        wait_until(lambda: f"{topic}:0:1" in run("offsets", "get").stdout, "the line to be in the log")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
        assert process.stdout is not None and process.stderr is not None
        assert (process.stdout.read(), process.stderr.read()) == (b"", b"")
    assert run.consume(topic) == "kept\n"


def test_a_reader_that_goes_away_is_no_error(run: Commands, topic: str) -> None:
    run("produce", "--topic", topic, given=b"0123456789\n" * 100_000)
    arguments = ("consume", "--topic", topic, "--from-beginning", "--bootstrap-server", run.bootstrap)
    with started(*arguments) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"0123456789\n"
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr.read() == b""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_error(run: Commands, topic: str, closed: str) -> None:
    command = (sys.executable, "-m", "spark_kafkalite.cli", "produce", "--bootstrap-server", run.bootstrap)
    done = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *command, "--topic", topic], input=b"", capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_full_disk_behind_the_output_is_one_line(run: Commands, topic: str) -> None:
    run("topics", "create", "--topic", topic)  # without any topic there would be nothing to write
    with Path("/dev/full").open("wb") as full, started("topics", "list", *run.at, stdout=full.fileno()) as process:
        assert process.stderr is not None
        assert process.wait(PATIENCE_S) == 1
        assert process.stderr.read() == b"kafkalite: No space left on device\n"


def test_settings_that_no_client_has_are_warned_of_once(run: Commands, topic: str) -> None:
    given = ("--command-property", "lingr.ms=5", "--command-property", "linger.ms=5")
    assert (
        run("topics", "create", "--topic", topic, *given).stderr
        == "kafkalite: warning: unknown admin setting 'lingr.ms' is ignored\n"
    )
    assert run("produce", "--topic", topic, *given).stderr.count("lingr.ms") == 1


def test_no_broker_is_one_clear_line() -> None:
    commands = (["topics", "list"], ["produce", "--topic", "t"], ["consume", "--topic", "t"], ["offsets", "get"])
    with contextlib.ExitStack() as stack:
        # All at once: each of them waits for some seconds.
        running = [
            stack.enter_context(started(*command, "--bootstrap-server", "127.0.0.1:1", stdin=subprocess.DEVNULL))
            for command in commands
        ]
        for process in running:
            out, err = process.communicate(timeout=PATIENCE_S)
            assert (process.returncode, out) == (1, b"")
            (line,) = err.decode().splitlines()
            assert "127.0.0.1:1: connection refused" in line
            assert "is a broker running there?" in line


def test_a_terminal_gets_progress(run: Commands, topic: str, tmp_path: Path) -> None:
    source = tmp_path / "lines"
    source.write_bytes(b"some line\n" * 200_000)
    ours, theirs = pty.openpty()
    arguments = ("produce", "--topic", topic, "--file", str(source), "--bootstrap-server", run.bootstrap)
    with started(*arguments, stdin=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        # A terminal whose other end is closed reads as an error on Linux.
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 65536):
                shown += piece
        os.close(ours)
        assert process.wait(PATIENCE_S) == 0
    assert b"sending" in shown
    assert b"bytes/s" in shown
    assert b"200000 records sent." in shown


def test_a_terminal_gets_no_control_characters_of_records(run: Commands, topic: str) -> None:
    run("produce", "--topic", topic, given=b"\x1b[2J cleared\n")
    arguments = ("--topic", topic, "--from-beginning", "--max-messages", "1", "--bootstrap-server", run.bootstrap)
    ours, theirs = pty.openpty()
    with started("consume", *arguments, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.DEVNULL) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 65536):
                shown += piece
        os.close(ours)
        assert process.wait(PATIENCE_S) == 0
    assert shown.splitlines() == [rb"\x1b[2J cleared"]
    # In a pipe the bytes are what counts.
    with started("consume", *arguments, stdin=subprocess.DEVNULL) as process:
        assert process.communicate(timeout=PATIENCE_S)[0] == b"\x1b[2J cleared\n"


def test_dump_log_of_a_stopped_broker_and_of_a_torn_one(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as own:
        run = Commands(own)
        run("produce", "--topic", "t", given=b"x" * 100 + b"\n")
    directory = str(own.data_dir / "t-0")
    whole = kafkalite("dump-log", directory)
    assert whole.returncode == 0
    assert "DAMAGED" not in whole.stdout
    (segment,) = (own.data_dir / "t-0").glob("*.log")
    with segment.open("ab") as file:
        file.write(segment.read_bytes()[:-7])
    torn = kafkalite("dump-log", "--check", directory)
    assert torn.returncode == 1
    assert "ends in the middle of the batch" in torn.stdout


def test_a_broker_that_cannot_start_says_why_in_one_line(broker: BrokerProcess, tmp_path: Path) -> None:
    port = broker.bootstrap.rpartition(":")[2]
    taken = kafkalite(
        *("broker", "--override", f"listeners=PLAINTEXT://127.0.0.1:{port}"), "--override", f"log.dirs={tmp_path / 'a'}"
    )
    assert taken.returncode == 1
    assert port in taken.stderr
    same_data = kafkalite(
        *("broker", "--override", "listeners=PLAINTEXT://127.0.0.1:0"), "--override", f"log.dirs={broker.data_dir}"
    )
    assert same_data.returncode == 1
    assert str(broker.data_dir) in same_data.stderr


def test_the_doctor_finds_nothing_wrong(run: Commands) -> None:
    done = run("doctor")
    assert done.stdout.splitlines()[-1] == "Nothing to do."
    assert " 1 of 1 " in done.stdout
    assert json.loads(run("doctor", "--json").stdout)["problems"] == []
    refused = run("doctor", "--master", "local", code=2)
    assert "--master and --conf are for --spark" in refused.stderr


def test_the_doctor_names_an_address_that_nobody_reaches() -> None:
    broker = ModelBroker({})
    try:
        bootstrap = broker.listen()
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            broker.address = held.getsockname()
            done = kafkalite("doctor", "--bootstrap-server", bootstrap)
    finally:
        broker.close()
    assert done.returncode == 1
    assert (
        f"To do: driver: the advertised address 127.0.0.1:{broker.address[1]} cannot be used: "
        f"127.0.0.1:{broker.address[1]}: connection refused; only the broker's own host" in done.stdout
    ), done.stdout + done.stderr
