"""How tests see that clients authenticate again: their sessions do not expire."""

from __future__ import annotations

from collections.abc import Callable

from spark_kafkalite.processes.cluster import BrokerProcess
from tests.patience import wait_until


def wait_for_lasting_sessions(broker: BrokerProcess, play: Callable[[], object]) -> None:
    """Have clients work for longer than a session lives, until they have done so with at most one that expired.

    Those that do not authenticate again are cut off at each end, each time. A host that stands still makes others late.
    """

    def expired() -> int:
        return broker.stderr_path.read_text().count("its session has expired")

    def have_lasted() -> bool:
        before = expired()
        play()
        return expired() - before <= 1

    wait_until(have_lasted, "sessions to last")
