"""``kafkalite consume --group``: sharing partitions, and committing what was printed, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from spark_kafkalite import Admin, Producer
from spark_kafkalite.cli.main import run
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.patience import PATIENCE_S, wait_until

_numbers = count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("consume-group") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker: BrokerProcess) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.bootstrap) as client:
        yield client


@pytest.fixture
def group() -> str:
    return f"printing-{next(_numbers)}"


def send(broker: BrokerProcess, topic: str, numbers: range) -> None:
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in numbers:
            producer.send(topic, b"line %d" % number, partition=number % 3)


@pytest.fixture
def topic(admin: Admin, broker: BrokerProcess, group: str) -> str:
    """Three partitions with ten records each."""
    name = f"topic-of-{group}"
    admin.create_topic(name, 3, 1)
    send(broker, name, range(30))
    return name


Consume = Callable[..., list[str]]


@pytest.fixture
def consume(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> Consume:
    def consume(*arguments: str, code: int = 0) -> list[str]:
        ended = run(["consume", "--bootstrap-server", broker.bootstrap, *arguments])
        out, err = capsys.readouterr()
        assert ended == code, out + err
        return (err if code else out).splitlines()

    return consume


def offsets_of(admin: Admin, group: str) -> list[int]:
    return [each.offset for each in admin.group_offsets(group).values()]


def lines(numbers: range) -> list[str]:
    return sorted(f"line {number}" for number in numbers)


def test_a_group_goes_on_where_it_was(
    consume: Consume, broker: BrokerProcess, admin: Admin, group: str, topic: str
) -> None:
    read = ("--topic", topic, "--group", group, "--from-beginning")
    first = consume(*read, "--max-messages", "12")
    assert len(first) == 12 and sum(offsets_of(admin, group)) == 12
    rest = consume(*read, "--until-end")
    assert sorted(first + rest) == lines(range(30))
    assert offsets_of(admin, group) == [10, 10, 10]
    send(broker, topic, range(30, 33))
    more: list[str] = []

    def has_come() -> bool:
        """A silence, which ends the command, may come before the records on a slow host."""
        more.extend(consume(*read, "--timeout-ms", "4000"))
        return len(more) >= 3

    wait_until(has_come, lambda: f"three more records, there are {more}")
    assert sorted(more) == lines(range(30, 33))
    assert consume(*read, "--until-end") == []
    assert admin.describe_groups([group])[group].members == ()


def test_a_new_group_begins_at_the_end_unless_told_otherwise(
    consume: Consume, broker: BrokerProcess, admin: Admin, group: str, topic: str
) -> None:
    assert consume("--topic", topic, "--group", group, "--until-end") == []
    assert offsets_of(admin, group) == [10, 10, 10]
    send(broker, topic, range(30, 32))
    assert sorted(consume("--topic", topic, "--group", group, "--until-end")) == lines(range(30, 32))
    everything = consume(
        "--include", f"{topic[:-1]}[{topic[-1]}]", "--group", f"{group}-b", "--from-beginning", "--until-end"
    )
    assert sorted(everything) == lines(range(32))
    uncommitted = ("--consumer-property", "enable.auto.commit=false", "--consumer-property", f"group.id={group}-c")
    assert len(consume("--topic", topic, *uncommitted, "--from-beginning", "--until-end")) == 32
    assert admin.group_offsets(f"{group}-c") == {}


class Printing:
    """A ``kafkalite consume --group`` in a process of its own."""

    def __init__(self, broker: BrokerProcess, group: str, topic: str) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "spark_kafkalite.cli", "consume", "--bootstrap-server", broker.bootstrap),
                *("--topic", topic, "--group", group, "--from-beginning"),
                *("--consumer-property", "heartbeat.interval.ms=200"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def interrupt(self) -> list[str]:
        """End it as Ctrl-C does; return what it printed since."""
        self._process.send_signal(signal.SIGINT)
        out, err = self._process.communicate(timeout=PATIENCE_S)
        assert self._process.returncode == 0, err
        assert "Traceback" not in err, err
        return out.splitlines()

    def __enter__(self) -> Printing:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def test_what_was_printed_is_committed_at_ctrl_c(broker: BrokerProcess, admin: Admin, group: str, topic: str) -> None:
    with Printing(broker, group, topic) as printing:
        printed = [printing.line() for _ in range(30)]
        printed += printing.interrupt()
    assert sorted(printed) == lines(range(30))
    assert offsets_of(admin, group) == [10, 10, 10]


def test_two_share_the_partitions_and_one_takes_over(
    broker: BrokerProcess, admin: Admin, group: str, topic: str
) -> None:
    with Printing(broker, group, topic) as first, Printing(broker, group, topic) as second:

        def they_share() -> bool:
            described = admin.describe_groups([group])[group]
            return described.state == "Stable" and sorted(len(each.assignment) for each in described.members) == [1, 2]

        def committed() -> str:
            return f"everything to be committed: {admin.group_offsets(group)}"

        wait_until(they_share, lambda: f"the two to share: {admin.describe_groups([group])}", poll_s=0.05)
        wait_until(lambda: offsets_of(admin, group) == [10, 10, 10], committed, poll_s=0.05)
        printed = first.interrupt()
        send(broker, topic, range(30, 60))
        wait_until(lambda: offsets_of(admin, group) == [20, 20, 20], committed, poll_s=0.05)
        printed += second.interrupt()
    # Nobody crashed: what one had printed it had committed before the other took over.
    assert sorted(printed) == lines(range(60))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--group", "g"), "name what to read: --topic NAME, or --include REGEX"),
        (("--include", "x"), "--include needs --group NAME"),
        ((), "name the topic with --topic NAME"),
        (("--group", "g", "--topic", "t", "--offset", "3"), "leave out --partition and --offset"),
        (("--group", "g", "--topic", "t", "--partition", "3"), "leave out --partition and --offset"),
        (("--group", "g", "--topic", "t", "--include", "t"), "name what to read: --topic NAME, or --include REGEX"),
        (
            ("--group", "g", "--topic", "t", "--consumer-property", "group.id=h"),
            "--group g and group.id=h name two groups",
        ),
        (("--group", "g", "--include", "("), "pattern '(': not a regular expression"),
    ],
)
def test_errors_say_what_is_wrong(consume: Consume, arguments: tuple[str, ...], said: str) -> None:
    assert any(said in line for line in consume(*arguments, code=2))


def test_a_topic_that_is_not_there(consume: Consume) -> None:
    assert consume("--group", "g", "--topic", "none", code=1) == ["kafkalite: no such topic: none"]
