"""The network between brokers, and between them and the registry, as a test may have it: TCP forwarders, without root.

A ``Door`` stands before one server's port; everybody who is to be disturbed connects to the door instead. Each pair of
a source and a door has a ``Link``, with a condition for each direction (``forwarder.Direction``), so that one broker
may be cut off from another and nobody else. A door is for one source, or tells sources apart by what a connection says
first: a broker's requests have its number in their client id.

All of them live in one process of their own (``forwarder``). Conditions are changed from any thread, between two pieces
of data.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tests.paths import PROJECT


@dataclass(frozen=True)
class Way:
    """One direction of a link: ``name`` is ``there`` or ``back``."""

    door: int
    source: int
    name: str


@dataclass(frozen=True)
class Link:
    """From ``source`` to the server behind a door, and back."""

    door: int
    source: int

    @property
    def there(self) -> Way:
        return Way(self.door, self.source, "there")

    @property
    def back(self) -> Way:
        return Way(self.door, self.source, "back")


@dataclass(frozen=True)
class Door:
    """One forwarder. ``address`` is where to connect to; ``link`` is how it treats a source."""

    network: Network
    number: int
    port: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def link(self, source: int) -> Link:
        """Return the link from a source, by its number; 0 is everybody who has none."""
        return Link(self.number, source)

    def reset(self, source: int) -> None:
        """End a source's connections with a reset."""
        self.network.tell("reset", self.number, source)

    def cut(self, source: int) -> None:
        """End a source's connections, and take no more until its link is healed."""
        self.network.tell("cut", self.number, source)


class Network:
    """All doors of a cluster; a context manager."""

    def __init__(self) -> None:
        self.doors: list[Door] = []
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.forwarder"],
            # asyncio's checks are for what is tested; here they would take most of the time.
            env={name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"},
            cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # It ends with its input; nobody needs to wait for what is on its way.
        self._process.kill()
        self._process.communicate()

    def open_door(self, target_port: int, source: int | None = None) -> Door:
        """Listen on a free port for what is meant for another. ``source`` is the only one that connects; None: they are
        told apart by what they say first."""
        door = Door(self, len(self.doors), self.tell("open_door", target_port, source))
        self.doors.append(door)
        return door

    def change(self, ways: Iterable[Way], **conditions: Any) -> None:
        """Set conditions of directions; they hold for everything that passes after this returns."""
        self.tell("change", [(way.door, way.source, way.name) for way in ways], conditions)

    def damages_left(self, way: Way) -> int:
        """Return how many pieces of a direction are still to be damaged."""
        return int(self.tell("damages_left", way.door, way.source, way.name))

    def hold(self, links: Iterable[Link]) -> None:
        """Hold these links in both directions: nothing passes, connections stay open, and new ones are taken."""
        self.change([way for link in links for way in (link.there, link.back)], held=True)

    def heal(self) -> None:
        """Be a good network everywhere."""
        self.tell("heal")

    def tell(self, method: str, *arguments: object) -> Any:
        """Have the forwarder do something, and return what it answers."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps([method, *arguments]) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())
