"""What a start knows of a log before it opens it, and what opening it has found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spark_kafkalite.log.epochs import LeaderEpochs
from spark_kafkalite.log.loading.holes import Hole, SegmentSizes
from spark_kafkalite.log.producer_state import ProducerStateManager
from spark_kafkalite.log.segments.segment_list import Segments
from spark_kafkalite.model import NO_LEADER_EPOCH


class LoadedLog(NamedTuple):
    """What was found on the disk."""

    segments: Segments
    epochs: LeaderEpochs
    producers: ProducerStateManager
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    recovered_segments: int = 0
    cut_bytes: int = 0
    cleaned_until_offset: int = 0
    # What is missing, but at the end.
    holes: Sequence[Hole] = ()
    # Up to where offsets have been given, as far as that is certain; else 0. Beyond the log end: what lies between is
    # lost, and the log goes on there.
    given_until: int = 0
    # What is wrong with the end, when it is known.
    end_reason: str = ""
    # Whether the directory held any segment, and whether the last one is shorter than a clean stop has left it.
    found_segments: bool = True
    # Whether an earlier run has left a file of damaged ranges.
    has_damaged_ranges: bool = False
    end_is_suspect: bool = False
    # Whether all is there that the last run of the broker had written, as far as the files can say, if the kernel has
    # lived on since or the run was stopped in order (rule R12).
    is_whole: bool = True
    # What ``log-start-offset-checkpoint`` says beyond the log start, and what is not in force; 0: nothing.
    unconfirmed_start_offset: int = 0
    # Whether ``cleaner-swap`` can be forgotten once the cleaner's checkpoint says ``cleaned_until_offset``.
    swapped: bool = False


class LastRun(NamedTuple):
    """What the last run of a broker has recorded of a log, in the files of the log directory; 0 where there is nothing.

    ``clean``: it was stopped in order. ``stopped_with``: the segments that it had then, None when unknown.
    ``last_record_epoch``: the leader epoch of the last record then, -1 when unknown. ``said_start_offset``: the start
    in the checkpoint, which a person may have raised beyond ``log_start_offset``; see ``log_start``.
    ``points_are_known``: no recovery point has been lost, so a log without one was never flushed, nor stopped in order.
    """

    clean: bool
    recovery_point: int = 0
    log_start_offset: int = 0
    cleaned_until_offset: int = 0
    high_watermark: int = 0
    stopped_with: SegmentSizes | None = None
    last_record_epoch: int = NO_LEADER_EPOCH
    said_start_offset: int = 0
    points_are_known: bool = False
