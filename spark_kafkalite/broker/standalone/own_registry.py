"""The registry that a standalone broker runs within itself: opened with the broker, lost only with its disk.

It is opened only if it can be the one that the log directories knew (``registry_evidence``). ``registry.listener``
serves it to other processes.
"""

from __future__ import annotations

from concurrent.futures import Future

from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.broker.standalone.registry_evidence import RegistryEvidence
from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.registry.store import Store
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore


class OwnRegistry:
    """See the module's text."""

    def __init__(self, config: BrokerConfig, logs: LogManager, evidence: RegistryEvidence, clock: Clock) -> None:
        """Open the registry. Raises RegistryLost and what EmbeddedRegistry does."""
        self._config = config
        self._logs = logs
        evidence.check_file()
        self._registry = EmbeddedRegistry(config.registry_dir, clock, self._make_room, evidence.check_tree)
        self._close_server = _nothing

    def open_session(self) -> Future[Store]:
        """Open a session; done when this returns. Raises RegistryError when there is no room for it."""
        opened: Future[Store] = Future()
        opened.set_result(EmbeddedStore(self._registry))
        return opened

    def serve(self, max_clients: int) -> str | None:
        """Let other processes in where ``registry.listener`` is set; return the address, None when it is not set.

        Raises ConfigError when the address cannot be bound.
        """
        listener = self._config.registry_listener
        if listener is None:
            return None
        # Not at the top: most brokers serve no registry, and start faster without.
        from spark_kafkalite.registry.served.server import TreeServer

        server = TreeServer(self._registry, digest=listener.digest, max_connections=max_clients)
        try:
            port = server.start(listener.host, listener.port)
        except OSError as error:
            where = self._config["registry.listener"]
            raise ConfigError(f"cannot listen on registry.listener={where}: {error.strerror}") from error
        self._close_server = server.close
        return listener.address(port)

    @property
    def committed_zxid(self) -> int:
        """The number of the last transaction that is on the disk."""
        return self._registry.committed_zxid

    def close(self) -> None:
        """End all sessions and release the directory."""
        self._close_server()
        self._registry.close()

    def _make_room(self) -> bool:
        return self._logs.directories.release_reserve_beside(str(self._config.registry_dir))


def _nothing() -> None: ...
