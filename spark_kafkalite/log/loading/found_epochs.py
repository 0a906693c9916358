"""The file of a log's leader epochs as a start finds it: what it has, whether it can be believed, how it is completed.

``epoch_check`` has the rules by which the batches decide.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from spark_kafkalite.log.epochs import MAX_LEADER_EPOCH, LeaderEpochs
from spark_kafkalite.log.files.log_files import LogFiles
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.files.small_files import LEADER_EPOCH_FILE, CheckpointError
from spark_kafkalite.log.loading.epoch_check import completed, epoch_runs, tell_of_completion
from spark_kafkalite.log.loading.loaded_log import LastRun
from spark_kafkalite.log.loading.scan import EVERYWHERE
from spark_kafkalite.log.segments.segment import Segment
from spark_kafkalite.model import NO_LEADER_EPOCH

logger = logging.getLogger(__name__)


class FoundEpochs:
    """See the module's text.

    ``epochs`` are the log's from now on; ``is_lost``: they have to be read from the batches. What the file has:
    ``first_offset`` is where the log began, if that is known, and ``last_start_offset`` where its last epoch did.
    """

    def __init__(self, files: OpenFiles, directory: str, found: LogFiles, last_run: LastRun) -> None:
        self._fs = files.fs
        self._directory = directory
        self._found = found
        self._clean = last_run.clean
        self._log_start_offset = last_run.log_start_offset
        # That of the last record when the log was stopped in order; -1 when it is not known.
        self.last_record_epoch = last_run.last_record_epoch if last_run.clean else NO_LEADER_EPOCH
        self.first_offset = EVERYWHERE
        self.last_start_offset = 0
        self.epochs, self.is_lost = self._empty(), False
        self._before_scan: Sequence[tuple[int, int]] = ()

    def _empty(self) -> LeaderEpochs:
        return LeaderEpochs(self._fs, f"{self._directory}/{LEADER_EPOCH_FILE}")

    def load(self) -> None:
        """Read the file, and leave out what lies below the log start."""
        try:
            self.epochs = LeaderEpochs.load(self._fs, f"{self._directory}/{LEADER_EPOCH_FILE}")
            # It is written no later than the first flush of a record.
            self.is_lost = not self._found.has_epochs and any(self._found.logs.values())
        except CheckpointError as error:
            logger.warning("%s; reading the leader epochs from the log", error)
            self.epochs, self.is_lost = self._empty(), True
        starts = [start for _, start in self.epochs.entries]
        self.last_start_offset = max(starts, default=0)
        bases = self._found.base_offsets
        if not bases:
            # What is left of them belongs to what is gone.
            self.epochs = self._empty()
            return
        if starts and not self._clean:
            self.first_offset = max(starts[0], self._log_start_offset)
        # The file may be older than the log start.
        self.epochs.truncate_from_start(max(self._log_start_offset, bases[0]))

    def lacks_last(self, end_offset: int) -> bool:
        """Return whether the file has another epoch for the last record than the log, as far as that is known."""
        known = self.last_record_epoch
        return 0 <= known <= MAX_LEADER_EPOCH and known != self.epochs.epoch_at(end_offset - 1)

    def complete(self, segments: Iterable[Segment]) -> None:
        """Have the epochs that the batches of these segments have; the file may be an older one."""
        before = self.epochs.entries
        self.epochs.replace(completed(before, epoch_runs(segments)))
        tell_of_completion(self._directory.rpartition("/")[2], before, self.epochs.entries)

    def begin_scan(self) -> None:
        """Remember what the file has, before the scan replaces it."""
        self._before_scan = self.epochs.entries

    @property
    def has_changed(self) -> bool:
        """Whether the file is to be written after a scan."""
        return self.is_lost or self.epochs.entries != self._before_scan

    def known_at(self, offset: int) -> int:
        """Return the leader epoch of an offset by the file that was found, -1 without an entry."""
        return max((epoch for epoch, start in self._before_scan if start <= offset), default=NO_LEADER_EPOCH)
