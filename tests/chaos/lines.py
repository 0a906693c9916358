"""The lines between a cluster's brokers and its registry, as a test may disturb them.

There are two kinds with one contract. ``ForwardedLines`` needs no root: everybody is on loopback, and connects through
the doors of ``links``; what is held comes when it is let go. ``HostLines`` gives each side a host of its own
(``tests.network.hosts``): what is held is lost, and TCP sends it again or gives up.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Final

from spark_kafkalite.processes.free_ports import free_ports
from tests.chaos.links import Door, Link, Network, Way
from tests.network import hosts

# A side is a broker, by its number, or the registry.
REGISTRY: Final = 0


class Lines(ABC):
    """The lines of a cluster of some brokers, numbered from 1 on. Clients reach every broker, whatever is held."""

    def __init__(self, size: int) -> None:
        self.brokers = range(1, size + 1)

    @abstractmethod
    def laid(self) -> contextlib.AbstractContextManager[None]:
        """Have the lines for a while."""

    @property
    @abstractmethod
    def registry_address(self) -> tuple[str, int]:
        """Where the registry listens."""

    @abstractmethod
    def prefix(self, side: int) -> tuple[str, ...]:
        """Return what stands before a side's command."""

    @abstractmethod
    def settings(self, broker: int) -> dict[str, object]:
        """Return where a broker listens, and where it finds the others and the registry."""

    @abstractmethod
    def hold_ways(self, ways: Iterable[tuple[int, int]]) -> None:
        """Let nothing get from the first to the second side of each pair, on old and new connections. Nobody is
        told."""

    @abstractmethod
    def unplug(self, broker: int) -> None:
        """Cut a broker off from the registry and all others; where hosts are apart, from clients as well."""

    @abstractmethod
    def heal(self) -> None:
        """Be a good network everywhere."""

    def hold(self, one: int, other: int) -> None:
        """Let nothing get from one side to the other, in either direction."""
        self.hold_ways([(one, other), (other, one)])

    def isolate(self, broker: int) -> None:
        """Let nothing get from a broker to other sides, or back; clients still reach it."""
        others = [side for side in (REGISTRY, *self.brokers) if side != broker]
        self.hold_ways([way for other in others for way in ((broker, other), (other, broker))])


class ForwardedLines(Lines):
    """Doors on loopback. ``inner_doors`` are those before the brokers, by number; each link may have a condition."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.network: Network
        self.inner_doors: dict[int, Door] = {}
        self._registry_doors: dict[int, Door] = {}
        self._registry_port, *ports = free_ports(1 + 2 * size)
        self._client_ports = dict(zip(self.brokers, ports[:size], strict=True))
        self._inner_ports = dict(zip(self.brokers, ports[size:], strict=True))

    @contextlib.contextmanager
    def laid(self) -> Iterator[None]:
        with Network() as self.network:
            for broker in self.brokers:
                self.inner_doors[broker] = self.network.open_door(self._inner_ports[broker])
                self._registry_doors[broker] = self.network.open_door(self._registry_port, broker)
            yield

    @property
    def registry_address(self) -> tuple[str, int]:
        return "127.0.0.1", self._registry_port

    def prefix(self, side: int) -> tuple[str, ...]:
        return ()

    def settings(self, broker: int) -> dict[str, object]:
        clients = f"PLAINTEXT://127.0.0.1:{self._client_ports[broker]}"
        return {
            "listeners": f"{clients},INNER://127.0.0.1:{self._inner_ports[broker]}",
            "advertised.listeners": f"{clients},INNER://{self.inner_doors[broker].address}",
            "zookeeper.connect": self._registry_doors[broker].address,
        }

    def hold_ways(self, ways: Iterable[tuple[int, int]]) -> None:
        directions = [each for sender, receiver in ways for each in self._directions(sender, receiver)]
        self.network.change(directions, held=True)

    def unplug(self, broker: int) -> None:
        self.isolate(broker)

    def cut_from_registry(self, broker: int) -> None:
        """End a broker's connections with the registry, with what is on its way, and refuse others until healed."""
        self._registry_doors[broker].cut(broker)

    def heal(self) -> None:
        self.network.heal()

    def _directions(self, sender: int, receiver: int) -> list[Way]:
        """Return all that data takes from one side to another, on connections that either has opened."""
        if receiver == REGISTRY:
            return [self._registry_link(sender).there]
        if sender == REGISTRY:
            return [self._registry_link(receiver).back]
        return [self.inner_doors[receiver].link(sender).there, self.inner_doors[sender].link(receiver).back]

    def _registry_link(self, broker: int) -> Link:
        return self._registry_doors[broker].link(broker)


class HostLines(Lines):
    """Every side on a host of its own, clients on another one. It needs root, and a program of its own: whoever starts
    threads while they are laid has them on the clients' host for ever."""

    _CLIENTS = "clients"
    _CLIENT_PORT = 9092
    _INNER_PORT = 9093
    _REGISTRY_PORT = 2181

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._host_of = {REGISTRY: "registry", **{broker: f"broker-{broker}" for broker in self.brokers}}
        self._network = hosts.Network([*self._host_of.values(), self._CLIENTS])

    @contextlib.contextmanager
    def laid(self) -> Iterator[None]:
        with self._network, self._network.joined(self._CLIENTS):
            yield

    @property
    def registry_address(self) -> tuple[str, int]:
        return self._address(REGISTRY), self._REGISTRY_PORT

    def prefix(self, side: int) -> tuple[str, ...]:
        return self._network.prefix(self._host_of[side])

    def settings(self, broker: int) -> dict[str, object]:
        address = self._address(broker)
        return {
            "listeners": f"PLAINTEXT://{address}:{self._CLIENT_PORT},INNER://{address}:{self._INNER_PORT}",
            "zookeeper.connect": f"{self._address(REGISTRY)}:{self._REGISTRY_PORT}",
        }

    def hold_ways(self, ways: Iterable[tuple[int, int]]) -> None:
        for sender, receiver in ways:
            self._network.lose(self._host_of[sender], self._host_of[receiver])

    def unplug(self, broker: int) -> None:
        self._network.unplug(self._host_of[broker])

    def heal(self) -> None:
        self._network.heal()

    def _address(self, side: int) -> str:
        return self._network.addresses[self._host_of[side]]
