"""The commands about a cluster as processes: what they print, what they start, and what is left of it."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Consumer, Producer, TopicPartition
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.errors import RequestTimedOut
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from tests.interop.cluster.heard import wait_until_told_of_isr
from tests.interop.support.collect import collected
from tests.patience import PATIENCE_S, wait_until
from tests.pool.forking import run_command
from tests.pool.process_tree import has_ended

COMMAND = [sys.executable, "-m", "spark_kafkalite.cli"]


def kafkalite(*arguments: str, code: int = 0, given: bytes = b"") -> subprocess.CompletedProcess[str]:
    done = run_command(*arguments, input=given)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == code, done.stdout + done.stderr
    return done


def at_terminal(answer: bytes, *arguments: str) -> int:
    """Run a command at a terminal where somebody types an answer; return its exit code."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([*COMMAND, *arguments], stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        try:
            said = b""
            while b"[y/N]" not in said:
                said += os.read(ours, 4096)
            os.write(ours, answer)
            return process.wait(PATIENCE_S)
        finally:
            process.kill()
            os.close(ours)


@dataclass
class Up:
    """A ``kafkalite cluster up`` that runs."""

    process: subprocess.Popen[str]
    bootstrap: str
    pids: dict[str, int]
    errors: Path

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


@contextmanager
def up(tmp_path: Path, *arguments: str) -> Iterator[Up]:
    errors = tmp_path / "up.err"
    command = [*COMMAND, "cluster", "up", "--port", "0", "--registry-port", "0", *arguments]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with (
        errors.open("w") as err,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True, env=environment) as process,
    ):
        try:
            assert process.stdout is not None
            said = ""
            while "cluster ready" not in said:
                line = process.stdout.readline()
                assert line, said + errors.read_text()
                said += line
            bootstrap = re.search(r"^kafkalite cluster ready on (\S+)$", said, re.MULTILINE)
            assert bootstrap is not None, said
            assert re.match(r"kafkalite registry ready on 127.0.0.1:\d+\n", said)
            pids = dict(
                re.findall(r"^kafkalite broker (\d+) ready on 127.0.0.1:\d+ \(pid (\d+)\)$", said, re.MULTILINE)
            )
            yield Up(process, bootstrap.group(1), {number: int(pid) for number, pid in pids.items()}, errors)
        finally:
            process.kill()


def created(bootstrap: str, topic: str) -> str:
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(topic)
    return topic


def produced(bootstrap: str, topic: str, value: bytes) -> int:
    with Producer(bootstrap_servers=bootstrap) as producer:
        return producer.send(topic, value, partition=0).result(PATIENCE_S).offset


def test_up_runs_until_ctrl_c_and_leaves_nothing(tmp_path: Path) -> None:
    with up(tmp_path) as running:
        assert list(running.pids) == ["1", "2", "3"]
        assert produced(running.bootstrap, created(running.bootstrap, "events"), b"one") == 0
        with Admin(bootstrap_servers=running.bootstrap) as admin:
            (partition,) = admin.describe_topics(["events"])["events"].partitions
        assert len(partition.replicas) == 3
        assert running.stop() == 0
        assert all(map(has_ended, running.pids.values()))
        assert running.errors.read_text() == ""
    assert [path.name for path in tmp_path.iterdir()] == ["up.err"]


def test_the_next_up_goes_on_with_the_data(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with up(tmp_path, "--brokers", "2", "--data", data) as running:
        assert produced(running.bootstrap, created(running.bootstrap, "events"), b"one") == 0
        assert running.stop(signal.SIGTERM) == 0
    assert "has replicas of 2 brokers" in kafkalite("cluster", "up", "--brokers", "1", "--data", data, code=2).stderr
    with up(tmp_path, "--data", data, "--override", "num.partitions=5") as running:
        assert list(running.pids) == ["1", "2"]
        assert produced(running.bootstrap, "events", b"two") == 1
        with Consumer(bootstrap_servers=running.bootstrap) as consumer:
            consumer.assign([TopicPartition("events", 0)])
            consumer.seek_to_beginning()
            assert collected(lambda: consumer.poll(500), 1)[0].value == b"one"
        with Admin(bootstrap_servers=running.bootstrap) as admin:
            admin.create_topic("more")
            assert len(admin.describe_topics(["more"])["more"].partitions) == 5


def test_nothing_outlives_an_up_that_is_killed(tmp_path: Path) -> None:
    with up(tmp_path, "--brokers", "2") as running:
        running.stop(signal.SIGKILL)
        wait_until(lambda: all(map(has_ended, running.pids.values())), "the end of all brokers")


def test_a_broker_that_dies_is_told_of_and_can_be_started_alone(tmp_path: Path) -> None:
    with up(tmp_path, "--data", str(tmp_path / "data; of $HOME")) as running:
        os.kill(running.pids["2"], signal.SIGKILL)
        wait_until(lambda: "broker 2 has ended" in running.errors.read_text(), "a line about broker 2")
        command = re.search(r"To start it again: kafkalite (.+)", running.errors.read_text())
        assert command is not None
        with subprocess.Popen([*COMMAND, *shlex.split(command.group(1))], stdout=subprocess.PIPE, text=True) as alone:
            try:
                assert alone.stdout is not None
                assert "broker 2 ready on" in alone.stdout.readline()
                assert running.process.poll() is None
            finally:
                alone.terminate()
        assert running.stop() == 0


def test_the_data_of_a_broker_that_was_started_again_outlives_up(tmp_path: Path) -> None:
    with up(tmp_path, "--brokers", "2") as running:
        os.kill(running.pids["2"], signal.SIGKILL)
        wait_until(lambda: "broker 2 has ended" in running.errors.read_text(), "a line about broker 2")
        command = re.search(r"To start it again: kafkalite (.+)", running.errors.read_text())
        assert command is not None
        with subprocess.Popen([*COMMAND, *command.group(1).split()], stdout=subprocess.PIPE, text=True) as alone:
            try:
                assert alone.stdout is not None
                assert "broker 2 ready on" in alone.stdout.readline()
                assert running.stop() == 0
                last = running.errors.read_text().splitlines()[-1]
                told = "kafkalite: started again by hand, and still running without a registry: broker 2; end it, too. "
                assert last.startswith(told + "The data stays in ")
                assert Path(last.rpartition(" ")[2], "broker-2", ".lock").exists()
                assert alone.poll() is None
            finally:
                alone.terminate()


def test_the_registry_goes_on_for_brokers_that_were_started_again(tmp_path: Path) -> None:
    """Each broker is restarted as the command says how, until none is a process of its own any more."""
    again: list[subprocess.Popen[str]] = []
    try:
        with up(tmp_path, "--brokers", "2", "--data", str(tmp_path / "data")) as running:
            created(running.bootstrap, "events")
            for number in ("1", "2"):
                os.kill(running.pids[number], signal.SIGTERM)
                ended = re.compile(rf"broker {number} has ended.*To start it again: kafkalite (.+)")
                found = wait_until(
                    lambda ended=ended: ended.search(running.errors.read_text()),  # type: ignore[misc]
                    f"a line about broker {number}",
                )
                assert found is not None
                again.append(subprocess.Popen([*COMMAND, *found.group(1).split()], stdout=subprocess.PIPE, text=True))
                out = again[-1].stdout
                assert out is not None and f"broker {number} ready on" in out.readline()
            wait_until(lambda: "the registry goes on" in running.errors.read_text(), "a line about the registry")
            assert produced(running.bootstrap, created(running.bootstrap, "more"), b"one") == 0
            for process in again:
                process.kill()
            assert running.process.wait(PATIENCE_S) == 1
            assert "no broker is left" in running.errors.read_text()
    finally:
        for process in again:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def test_a_broker_is_not_advertised_where_another_one_is(cluster: KafkaliteCluster, tmp_path: Path) -> None:
    taken = cluster.broker(1).bootstrap
    settings = {
        **cluster.broker(1).settings,
        "broker.id": "9",
        "log.dirs": str(tmp_path / "data"),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "advertised.listeners": f"PLAINTEXT://{taken}",
    }
    overrides = [part for name, value in settings.items() for part in ("--override", f"{name}={value}")]
    failed = kafkalite("broker", *overrides, code=1)
    assert f"broker 9 would be advertised at {taken}, where broker 1 is registered: correct advertised" in failed.stderr

    def are_the_three() -> bool:
        status = kafkalite("cluster", "status", "--json", "--bootstrap-server", cluster.bootstrap).stdout
        return [broker["id"] for broker in json.loads(status)["brokers"]] == [1, 2, 3]

    # It was registered when it looked at the others. A broker may hear of its end later.
    wait_until(are_the_three, "the end of broker 9 to be heard of")


def test_an_up_whose_port_is_taken_says_so(cluster: KafkaliteCluster) -> None:
    port = cluster.broker(1).port
    failed = kafkalite("cluster", "up", "--brokers", "1", "--port", str(port), "--registry-port", "0", code=1)
    said = f"kafkalite: --port {port}: broker 1 cannot listen on 127.0.0.1:{port}: Address already in use; stop what"
    assert failed.stderr.startswith(said) and failed.stderr.count("\n") == 1
    failed = kafkalite("cluster", "up", "--port", "0", "--registry-port", str(port), code=1)
    assert failed.stderr.startswith(f"kafkalite: --registry-port {port}: the registry cannot listen on")


def test_an_up_on_the_data_of_a_running_cluster_leaves_that_alone(cluster: KafkaliteCluster) -> None:
    data = str(cluster.data_dir)
    failed = kafkalite("cluster", "up", "--data", data, "--port", "0", "--registry-port", "0", code=1)
    assert failed.stderr == (
        f"kafkalite: --data {data}: a cluster runs on it (broker 1, 2, 3): connect to that one, or give another "
        "directory and other ports\n"
    )


def test_a_broker_that_does_not_start_says_why_in_one_line() -> None:
    ports = ("--port", "0", "--registry-port", "0")
    failed = kafkalite("cluster", "up", "--brokers", "1", *ports, "--override", "num.partition=2", code=1)
    assert failed.stderr == (
        "kafkalite: broker 1 did not start: unknown broker setting 'num.partition'; did you mean 'num.partitions'?\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "19092", "--registry-port", "19094"], "among the ports of the brokers, 19092 to 19094"),
        (["--override", "broker.id=7"], "--override broker.id: set by 'cluster up' for each broker; use --brokers"),
        (["--data", sys.executable], "not a directory"),
    ],
)
def test_an_up_that_is_asked_for_in_the_wrong_way(arguments: list[str], said: str) -> None:
    assert said in kafkalite("cluster", "up", *arguments, code=2).stderr


def test_new_secrets_are_new_and_long_enough() -> None:
    first, second = (kafkalite("cluster", "new-secret").stdout for _ in range(2))
    assert first != second
    assert len(first.strip()) >= 32


def test_consume_finds_the_one_record_whichever_broker_leads_it(
    cluster: KafkaliteCluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(3)
    at = ("--topic", topic, "--bootstrap-server", cluster.bootstrap)
    assert {cluster.leader_of(topic, partition) for partition in range(3)} == {1, 2, 3}
    for partition in range(3):
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            producer.send(topic, b"one", partition=partition).result(PATIENCE_S)
        wanted = partition + 1
        found = kafkalite("consume", *at, "--from-beginning", "--max-messages", str(wanted), "--timeout-ms", "60000")
        assert found.stdout == "one\n" * wanted


def wait_until_all_say_healthy(cluster: KafkaliteCluster) -> None:
    """Wait until each broker has heard what the registry says after the last test."""
    for broker in cluster.brokers.values():
        kafkalite("cluster", "wait", "--healthy", "--timeout", str(PATIENCE_S), "--bootstrap-server", broker.bootstrap)


def test_status_of_a_whole_cluster(cluster: KafkaliteCluster, new_topic: Callable[..., str]) -> None:
    new_topic(3)
    # It is named first: later ones may be left out, for topics of other tests have such settings, too.
    weak = f"0-weak-{uuid.uuid4().hex}"
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic(weak, 1, configs={"min.insync.replicas": "1"})
    cluster.wait_in_sync()
    wait_until_all_say_healthy(cluster)
    status = kafkalite("cluster", "status", "--bootstrap-server", cluster.bootstrap)
    # Of the lines below the summary, which depend on other tests, nothing.
    heading, _, *brokers = status.stdout.partition("\nTopics: ")[0].splitlines()
    (summary,) = [line for line in status.stdout.splitlines() if line.startswith("Topics: ")]
    assert heading.endswith(f"controller {cluster.controller()}")
    assert [line.split()[:2] for line in brokers] == [[str(n), each.bootstrap] for n, each in cluster.brokers.items()]
    assert summary.endswith("under-replicated: 0, without a live leader: 0")
    assert re.search(rf"warning: .*min.insync.replicas is less than 2: .*{weak}", status.stderr)
    found = json.loads(kafkalite("cluster", "status", "--json", "--bootstrap-server", cluster.bootstrap).stdout)
    assert (found["controller"], found["underReplicated"], found["leaderless"]) == (cluster.controller(), [], [])
    assert sum(broker["leads"] for broker in found["brokers"]) == found["partitions"]
    assert all(broker["replicas"] == broker["inSync"] for broker in found["brokers"])


def test_status_and_elections_while_a_broker_is_away(cluster: KafkaliteCluster, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    at = ("--bootstrap-server", cluster.bootstrap)
    preferred = cluster.leader_of(topic)
    assert preferred is not None
    cluster.kill(preferred)
    cluster.wait_for_leader(topic, other_than=preferred)
    living = set(cluster.brokers) - {preferred}
    for number in living:
        wait_until_told_of_isr(cluster.broker(number).bootstrap, topic, living)
    found = json.loads(kafkalite("cluster", "status", "--json", *at).stdout)
    assert [broker["live"] for broker in found["brokers"]] == [number != preferred for number in (1, 2, 3)]
    assert topic in {each["topic"] for each in found["underReplicated"]}
    # What is acknowledged by two of three is in two logs.
    assert topic not in {each["topic"] for each in found["refusingAcksAll"]}
    assert not [each for each in found["warnings"] if "are needed" in each]
    described = kafkalite("topics", "describe", "--topic", topic, "--under-replicated-partitions", *at).stdout
    assert re.search(rf"Topic: {topic}\tPartition: 0\tLeader: \d\tReplicas: \d,\d,\d\tIsr: \d,\d\tElr: \t", described)
    # Whoever does not live is not elected.
    refused = kafkalite("cluster", "elect", "--preferred", f"{topic}:0", *at, code=1)
    assert f"{topic}-0: not elected" in refused.stdout
    cluster.restart(preferred)
    cluster.wait_in_sync(topic)
    assert f"{topic}-0: led by broker" in kafkalite("cluster", "elect", "--preferred", f"{topic}:0", *at).stdout
    assert cluster.wait_for_leader(topic) == preferred
    assert "needs no election" in kafkalite("cluster", "elect", "--preferred", f"{topic}:0", *at).stdout


@pytest.mark.parametrize("which", ["first", "controller"])
def test_status_tells_of_a_dead_broker_that_nobody_misses(
    cluster: KafkaliteCluster, new_topic: Callable[..., str], which: str
) -> None:
    """The registry is away; the first broker would be asked for settings, and the controller for reassignments."""
    topic = new_topic()
    dead = 1 if which == "first" else cluster.controller()
    assert dead is not None
    cluster.registry.pause()
    try:
        cluster.kill(dead)
        living = [cluster.broker(number).bootstrap for number in (1, 2, 3) if number != dead]
        at = ("--bootstrap-server", ",".join(living))
        shown = kafkalite("cluster", "status", *at)
        found = json.loads(kafkalite("cluster", "status", "--json", *at).stdout)
    finally:
        cluster.registry.resume()
        cluster.restart(dead)
        cluster.wait_in_sync(topic)
    assert f"{cluster.broker(dead).bootstrap} (no answer)" in shown.stdout
    assert f"warning: broker {dead} cannot be connected to" in shown.stderr
    assert [(broker["live"], broker["answers"]) for broker in found["brokers"]] == [
        (True, number != dead) for number in (1, 2, 3)
    ]


def test_what_needs_the_registry_says_that_it_does_not_answer(
    cluster: KafkaliteCluster, new_topic: Callable[..., str]
) -> None:
    topic, late = new_topic(), f"late-{uuid.uuid4().hex}"
    at = ("--bootstrap-server", cluster.bootstrap)
    # A tenth of it is left for the broker's answer to come.
    with Admin(bootstrap_servers=cluster.bootstrap, request_timeout_ms=15_000) as admin:
        admin.list_topics()
        cluster.registry.pause()
        try:
            with pytest.raises(RequestTimedOut, match=r"has not answered within .* nothing was changed"):
                admin.create_topics([NewTopic(late, 1)], timeout_ms=15_000)
            shown = kafkalite("cluster", "status", *at)
        finally:
            cluster.registry.resume()
        # What is asked now comes after whatever was asked before.
        admin.create_topics([NewTopic(f"{late}-again", 1)])
        assert late not in admin.list_topics()
    assert shown.stdout.splitlines()[0].endswith("controller none")
    assert "warning: no controller is known" in shown.stderr
    cluster.wait_in_sync(topic)


def test_who_is_missed_where_acks_all_is_refused(cluster: KafkaliteCluster, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    few = f"few-{uuid.uuid4().hex}"
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic(few, 1, replication_factor=1)
    last = cluster.leader_of(few)
    others = [number for number in cluster.brokers if number != last]
    at = ("--bootstrap-server", cluster.bootstrap)
    for number in others:
        cluster.kill(number)
    try:
        wait_until_told_of_isr(cluster.broker(last).bootstrap, topic, {last})
        found = json.loads(kafkalite("cluster", "status", "--json", *at).stdout)
        under = kafkalite("topics", "describe", "--under-min-isr-partitions", *at).stdout
        at_min = kafkalite("topics", "describe", "--at-min-isr-partitions", *at).stdout
    finally:
        for number in others:
            cluster.restart(number)
        cluster.wait_in_sync(topic)
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.delete_topics([few])
    refusing = {each["topic"] for each in found["refusingAcksAll"]}
    assert (topic in refusing, few in refusing) == (True, False)
    assert (f"Topic: {topic}" in under, f"Topic: {few}" in under) == (True, False)
    assert (f"Topic: {topic}" in at_min, f"Topic: {few}" in at_min) == (False, True)


def test_an_unclean_election_shows_what_each_replica_has_and_asks(
    cluster: KafkaliteCluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1, min_insync_replicas=1)
    at = ("--bootstrap-server", cluster.bootstrap)
    last = cluster.leader_of(topic)
    assert last is not None
    led = kafkalite("cluster", "elect", "--unclean", f"{topic}:0", *at, code=1)
    assert f"{topic}-0 has a leader, broker {last}" in led.stderr
    others = [number for number in cluster.brokers if number != last]
    for number in others:
        cluster.kill(number)
    wait_until(lambda: cluster.in_sync(topic) == {last}, "the dead brokers to leave the ISR")
    assert produced(cluster.broker(last).bootstrap, topic, b"only here") == 0
    cluster.kill(last)
    for number in others:
        cluster.restart(number)
    wait_until(lambda: cluster.leader_of(topic) is None, f"{topic} to lose its leader")
    at = ("--bootstrap-server", ",".join(cluster.broker(number).bootstrap for number in others))
    # A script is no terminal: what it pipes in is no answer.
    refused = kafkalite("cluster", "elect", "--unclean", f"{topic}:0", *at, code=2, given=b"y\n")
    assert "there is no terminal here" in refused.stderr and "give --yes" in refused.stderr
    assert at_terminal(b"n\n", "cluster", "elect", "--unclean", f"{topic}:0", *at) == 1
    assert cluster.leader_of(topic) is None
    rows = {line.split()[1]: line.split()[2:] for line in refused.stdout.splitlines()[1:] if line.startswith(topic)}
    assert rows[str(last)] == ["no", "in", "sync", "?", "?", "not", "reported"]
    assert all(rows[str(number)] == ["yes", "behind", "-", "0", "whole"] for number in others)
    with Admin(bootstrap_servers=at[1]) as admin:
        (partition,) = admin.describe_topics([topic])[topic].partitions
    first = next(each for each in partition.replicas if each != last)
    assert f"{topic}-0: broker {first} would lead: broker {last} is not registered\n" in refused.stdout
    # Without a name it is asked of all that have no leader.
    assert at_terminal(b"y\n", "cluster", "elect", "--unclean", *at) == 0
    assert cluster.wait_for_leader(topic) in others
    # Once the broker that is asked has heard of all leaders.
    wait_until(
        lambda: "nothing is to be done" in kafkalite("cluster", "elect", "--unclean", *at).stderr,
        "all to have leaders",
    )
    assert produced(at[1], topic, b"again from 0") == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "either --preferred or --unclean"),
        (["--preferred", "--unclean", "t:0"], "either --preferred or --unclean"),
        (["--preferred", "t"], "not of the form TOPIC:PARTITION"),
        (["--preferred", "t:x"], "not of the form TOPIC:PARTITION"),
        (["--preferred", "--replica", "t:0=1"], "give --unclean, too"),
        (["--unclean", "--replica", "t:0"], "not of the form TOPIC:PARTITION=BROKER"),
        (["--unclean", "--replica", "t=1"], "not of the form TOPIC:PARTITION"),
        (["--unclean", "--replica", "t:0=1", "--replica", "t:0=2"], "t-0 has broker 1 already"),
    ],
)
def test_elections_that_are_asked_for_in_the_wrong_way(arguments: list[str], said: str) -> None:
    assert said in kafkalite("cluster", "elect", *arguments, code=2).stderr
