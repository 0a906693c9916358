"""How answers are waited for, and a link that opens its own sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from spark_kafkalite.client import registry_link
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.registry_link import RegistryLink, ZooKeeperLink
from spark_kafkalite.errors import ClosedError
from spark_kafkalite.registry.store import ConnectionLoss, SessionState, Store
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Store]]:
    """Have links open sessions with an embedded registry; yields those that they opened."""
    with EmbeddedRegistry(tmp_path) as registry:
        sessions: list[Store] = []

        def opener() -> Callable[..., Store]:
            def open_session(connect: str, *, connect_timeout_s: float, make_chroot: bool) -> Store:
                assert (connect, make_chroot) == ("there:2181", False)
                assert 0.1 <= connect_timeout_s <= 5
                sessions.append(EmbeddedStore(registry))
                return sessions[-1]

            return open_session

        monkeypatch.setattr(registry_link, "zookeeper_opener", opener)
        yield sessions


def test_silence_is_an_error_that_says_how_long_it_was_and_what_to_look_at() -> None:
    silent: Future[None] = Future()
    with pytest.raises(ConnectionLoss, match=r"the registry has not answered within 0\.01 s; is it running, and"):
        RegistryLink(answer_within_s=0.01).wait(silent)
    with pytest.raises(ConnectionLoss, match="ZooKeeper at there:2181 has not answered in time; is it running"):
        ZooKeeperLink("there:2181").wait(silent, Deadline.after_ms(10))


def test_a_session_is_opened_when_it_is_needed_and_kept(opened: list[Store]) -> None:
    link = ZooKeeperLink("there:2181")
    assert not opened
    assert link.session(Deadline.after_ms(5_000)) is link.session(Deadline.after_ms(0)) is opened[0]
    assert len(opened) == 1


def test_a_lost_session_is_closed_and_another_one_opened(opened: list[Store], monkeypatch: pytest.MonkeyPatch) -> None:
    link = ZooKeeperLink("there:2181")
    lost = link.session(Deadline.after_ms(0))
    lost.close()
    assert lost.state is SessionState.LOST
    assert link.session(Deadline.after_ms(5_000)) is opened[1]


def test_nothing_is_opened_after_the_end(opened: list[Store]) -> None:
    link = ZooKeeperLink("there:2181")
    assert link.close() is None
    with pytest.raises(ClosedError):
        link.session(Deadline.after_ms(5_000))
    assert all(each.state is SessionState.LOST for each in opened)


def test_the_error_says_what_another_host_needs() -> None:
    link = ZooKeeperLink("127.0.0.1:1")
    with pytest.raises(ConnectionLoss, match=r"no ZooKeeper answers at .* answer on their own host only: .*Spark"):
        link.session(Deadline.after_ms(100))
