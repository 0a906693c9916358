"""The registry that the brokers of a cluster share: sessions with it (``zookeeper.connect``), one after the other."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future

from spark_kafkalite.registry.store import Store
from spark_kafkalite.registry.zookeeper_address import ZooKeeperAddress

logger = logging.getLogger(__name__)


class SharedRegistry:
    """See the module's text."""

    def __init__(self, address: ZooKeeperAddress) -> None:
        self._address = address

    def __repr__(self) -> str:
        return f"SharedRegistry({self._address.connect})"

    def open_session(self) -> Future[Store]:
        """Open a session; its future fails with what ``open_zookeeper`` raises.

        Each in a thread of its own, which ends with the process: a stop waits for no registry.
        """
        opened: Future[Store] = Future()
        threading.Thread(target=self._open, args=(opened,), name="kafkalite-registry-session", daemon=True).start()
        return opened

    def _open(self, opened: Future[Store]) -> None:
        address = self._address
        try:
            # Not at the top: a broker with a registry of its own starts faster without kazoo.
            from spark_kafkalite.registry.zookeeper import open_zookeeper

            store = open_zookeeper(
                address.connect,
                session_timeout_ms=address.session_timeout_ms,
                connect_timeout_s=address.connection_timeout_ms / 1000,
                auth=address.auth,
                set_acl=address.set_acl,
                watches_trees=True,
            )
        except BaseException as error:
            opened.set_exception(error)
            return
        logger.info(
            "session %#x with the registry at %s; it lasts %d ms without a word (asked for: %d ms)",
            store.session_id,
            address.connect,
            store.session_timeout_ms,
            address.session_timeout_ms,
        )
        opened.set_result(store)
