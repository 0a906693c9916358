"""A reader that checks what it is given, as consumers do: a batch whose CRC is wrong is an error, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records.kernel import check_crc, scan_headers
from tests.lab.batches import values_of
from tests.simulator.clients import Finder, Seen, SimulatedReader
from tests.simulator.copies import whole_batches
from tests.simulator.disk import Disk
from tests.simulator.network import Network


class CheckingReader(SimulatedReader):
    """Keeps what it has read, and what it met last where it does not go on."""

    def __init__(
        self,
        network: Network,
        finder: Finder,
        seen: Seen,
        topic_partition: TopicPartition,
        start_of: Callable[[TopicPartition], int],
    ) -> None:
        """``start_of`` gives where a partition begins at its leader."""
        self.values: dict[int, bytes | None] = {}
        self._met = ""
        self._start_of = start_of
        super().__init__(network, finder, seen, topic_partition)

    @property
    def position(self) -> int:
        """The offset that it asks for."""
        return self._position

    @property
    def state(self) -> str:
        """Where it is, and what keeps it there."""
        return f"the reader is at {self._position}" + (f": {self._met}" if self._met else "")

    def _ask_end(self, leader: int) -> None:
        # After an unclean election it may go back.
        self._later()

    def _fetched(self, topic_id: bytes, answer: Any) -> None:
        if answer is None:
            self._met = "no answer, or the connection broke"
        elif answer.responses and topic_id == self._topic_id:
            (partition,) = answer.responses[0].partitions
            if partition.error_code:
                self._met = f"error {partition.error_code}"
                # Of an unclean election, or a log start that has moved: as auto.offset.reset=earliest.
                if partition.error_code == 1:
                    self._position = self._start_of(self._partition)
            elif partition.records:
                self._met = ""
                self._take(topic_id, bytes(partition.records))
                if not self._met:
                    self._world.later(0.01, self._next)
                    return
        self._later()

    def _take(self, topic_id: bytes, records: bytes) -> None:
        position = 0
        try:
            for header in scan_headers(records):
                check_crc(records, position, header.size_bytes)
                batch = records[position : position + header.size_bytes]
                for offset, value in values_of(batch) if header.record_count else ():
                    if offset >= self._position:
                        self.values[offset] = value
                        self._note(topic_id, offset, value)
                self._position = max(self._position, header.next_offset)
                position += header.size_bytes
        except CorruptMessage as error:
            self._met = f"damaged batch: {error}"

    def _note(self, topic_id: bytes, offset: int, value: bytes | None) -> None:
        if value is not None:
            self._seen.read.setdefault((topic_id, self._partition.partition, offset), value)

    @staticmethod
    def values_in(disk: Disk, below: str) -> dict[int, bytes | None]:
        """Return the records of whole batches in a directory's segments, by offset."""
        values: dict[int, bytes | None] = {}
        for path in disk.paths(below):
            # Also those that are set aside under another ending.
            if ".log" in path or ".corrupt" in path or ".kept" in path:
                data = disk.content(path)
                for position, size, batch in whole_batches(data):
                    if batch.records:
                        values.update(values_of(data[position : position + size]))
        return values


class LastReader(CheckingReader):
    """Reads everything once more in the end; what it is given is compared with what was, and is not news."""

    def _note(self, topic_id: bytes, offset: int, value: bytes | None) -> None: ...
