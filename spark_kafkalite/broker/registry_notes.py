"""Notes in the log directories of how far the registry has come, so that the next start recognises an older one.

What is noted is on the registry's disk: its own file's, or that of an ensemble, which answers nothing before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from spark_kafkalite.broker.standalone.registry_evidence import RegistryEvidence
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.net.io_threads import IoThreads, Lane


class RegistryNotes:
    """See the module's text; ``zxid_of`` gives the registry's last transaction that this broker has seen."""

    def __init__(self, logs: LogManager, evidence: RegistryEvidence, zxid_of: Callable[[], int]) -> None:
        self._logs = logs
        self._evidence = evidence
        self._zxid_of = zxid_of
        self._writing = threading.Lock()

    @property
    def zxid(self) -> int:
        """The number of the last transaction that is known to be on the disk."""
        return self._zxid_of()

    def write(self, zxid: int) -> None:
        """Note that the registry has come so far. In any thread."""
        with self._writing:
            self._evidence.note([each.path for each in self._logs.directories.online], zxid)

    async def replace_old(self, io: IoThreads) -> None:
        """Note how far the registry has come if the directories have a later note.

        The registry was created again then, and the old one was not missed; after a crash it must not be compared with
        the old one's numbers.
        """
        zxid = self.zxid
        if zxid < self._evidence.zxid:
            await io.run(lambda: self.write(zxid), Lane.SYNC)
