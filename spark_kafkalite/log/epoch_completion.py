"""Has the leader epochs of a log that is in use fit its batches; see ``loading.epoch_check`` for how, and why."""

from __future__ import annotations

import logging

from spark_kafkalite.log.loading.epoch_check import completed, epoch_runs, tell_of_completion
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.steps import Piece, Steps

logger = logging.getLogger(__name__)


def epoch_completion(log: PartitionLog) -> Steps[None]:
    """Compare the epochs with all batches, in a thread, and put right what does not fit; the file follows.

    The log may be appended to meanwhile. What is cut off meanwhile, or cannot be read, leaves the epochs as they are.
    Raises KafkaStorageError (56) when the file cannot be written.
    """
    segments, generation = list(log.segments), log.local.generation
    yield (look := Piece(lambda: epoch_runs(segments)))
    try:
        runs = look.result()
    except OSError as error:
        logger.warning(
            "%s: the batches cannot be read to compare the leader epochs with: %s", log.topic_partition, error
        )
        return
    before = log.epochs.entries
    entries = completed(before, runs)
    if not log.local.is_usable or log.local.generation != generation or entries == before:
        return
    tell_of_completion(log.topic_partition, before, entries)
    log.epochs.replace(entries)
    log.epochs.truncate_from_start(log.log_start_offset)
    log.write_epochs()
