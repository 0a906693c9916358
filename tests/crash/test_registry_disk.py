"""The full disk of a registry in a process of its own, and the brokers that use it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.errors import BrokerUnreachable, KafkaStorageError, RequestTimedOut
from spark_kafkalite.processes.child_process import ChildFailed
from spark_kafkalite.processes.cluster import BrokerProcess, RegistryProcess
from tests.crash.small_disk import SmallDisk, why_not
from tests.patience import wait_until

pytestmark = [pytest.mark.root, pytest.mark.debian]


@pytest.fixture(autouse=True)
def possible() -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)


def test_a_full_disk_is_named_by_the_registry_its_brokers_and_their_clients(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path / "disk", 2 << 20)
    with contextlib.ExitStack() as stack:
        stack.callback(disk.unmount)
        # Only the data is on that disk, not the log.
        (tmp_path / "registry").symlink_to(disk.path)
        registry = stack.enter_context(RegistryProcess(tmp_path / "registry"))

        def a_broker(number: int, **settings: object) -> BrokerProcess:
            overrides = {"broker.id": number, "zookeeper.connect": registry.connect, **settings}
            return BrokerProcess(tmp_path / f"data-{number}", overrides=overrides)

        first = stack.enter_context(a_broker(0))
        admin = stack.enter_context(Admin(bootstrap_servers=first.bootstrap))
        disk.fill()

        def refusal() -> Exception | None:
            # The write-ahead log may still have room for some.
            with contextlib.suppress(FileNotFoundError):
                disk.fill()
            try:
                admin.create_topics([NewTopic(f"t{len(made)}", 100)], timeout_ms=1000)
            except KafkaStorageError as error:
                return error
            except (RequestTimedOut, BrokerUnreachable):  # on a slow host, before an answer came
                return None
            made.append(1)
            return None

        made: list[int] = []
        refused = wait_until(refusal, "a topic that finds no room")
        assert "the registry has no room" in str(refused)
        with pytest.raises(ChildFailed, match=r"opened no session within 5 s, because its disk has no room .*free"):
            a_broker(1, **{"zookeeper.connection.timeout.ms": 5000}).start()
        assert first.running
        errors = [line for line in registry.stderr_path.read_text().splitlines() if "has no room" in line]
        assert errors and all("ERROR" in line and str(tmp_path / "registry") in line for line in errors)

        (disk.path / "filler").unlink()
        stack.enter_context(a_broker(1))
        admin.create_topics([NewTopic("later", 2, 2)])
        assert set(admin.list_topics()) >= {"later", *(f"t{number}" for number in range(len(made)))}
