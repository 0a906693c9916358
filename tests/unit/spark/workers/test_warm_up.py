"""What ``register`` and ``install_listener`` do in the background, once in a session."""

from __future__ import annotations

from typing import Any

from spark_kafkalite.spark.source import WARM_UP, KafkaliteDataSource
from spark_kafkalite.spark.workers.warm_up import warm_up
from tests.patience import PATIENCE_S


class Session:
    """A session whose readers write down what they are asked for."""

    _sc: Any = object()

    def __init__(self, error: Exception | None = None) -> None:
        self.read = self
        self.asked: list[str] = []
        self._error = error

    def format(self, name: str) -> Session:
        self.asked.append(name)
        return self

    def option(self, name: str, value: str) -> Session:
        self.asked.append(f"{name}={value}")
        return self

    def load(self) -> None:
        self.asked.append("load")
        if self._error is not None:
            raise self._error


def test_a_session_makes_one_source_in_the_background(capfd: Any) -> None:
    for session in (Session(), Session(RuntimeError("the session has ended"))):
        given: Any = session
        thread = warm_up(given)
        assert thread is not None and thread.daemon
        thread.join(PATIENCE_S)
        assert session.asked == ["kafkalite", "kafkalite.warmup=true", "load"]
        assert warm_up(given) is None
    assert capfd.readouterr() == ("", "")


def test_a_session_of_connect_is_left_to_its_server() -> None:
    session: Any = Session()
    session._sc = None
    assert warm_up(session) is None and session.asked == []


def test_the_load_asks_no_broker() -> None:
    assert KafkaliteDataSource({WARM_UP: "true"}).schema().names[:2] == ["key", "value"]
