"""What a follower asks its leader for, and what it does with the answers. Pure rules, for one partition in one epoch.

A follower fetches from the end of its own log. With the fetch offset it acknowledges everything below. It also sends
the leader epoch of its last record. Where the leader's log has another epoch there, the leader returns where the two
logs part (KIP-595). The follower truncates its log and fetches again, until the logs fit (KIP-279). Only then it adopts
the leader's high watermark: the records that it truncated may lie below that (KAFKA-14704).

- What is asked follows from the own log alone, never from an answer: an empty answer gives no last epoch (KAFKA-15510).
- Nothing is ever cut back to the high watermark, which a follower may know too late (KIP-101).
- No answer ends the following: after an error the follower only waits a little (KAFKA-7414). The first wait is short,
  since leader and follower seldom receive a new leader epoch at the same moment.
- Only while nothing else works on the log is anything asked: not while an append or a truncation is under way, nor,
  where acknowledgement means flushed (D8 in the design), while anything is unflushed.

- A member of the ISR has all that is committed, and so has its leader. Where it would have to cut below its own high
  watermark, or the leader's, something is wrong: the file of leader epochs of one of the two, or the leader's log. It
  compares its own file with its batches first. Then it truncates nothing: it sends its high watermark with its fetch
  (KIP-1166 has the field), and waits for the leader to check its own log (``contest``).
- An eligible replica has all that is committed, too (R16). It contests where its own high watermark is above the
  leader's: then the leader lacks records that it does not know to be committed. Otherwise a fault of its own disk may
  have taken what the leader has, and it cuts like any follower outside the ISR.
- Another follower outside the ISR has what was committed when it left. Where no unclean election has given that up
  since, its leader has lost it. If this log begins with all that the leader had when its epoch began, the follower
  contests once, and the leader hands over if it may (rule R24). If the leader answers again that the logs part, both
  have something that the other lacks. The follower sets its log aside then, and copies all.
- After an unclean election a follower outside the ISR cuts below its high watermark until its log fits the leader's;
  that may take several cuts in a row (KIP-279). If it had to do so once more in the same leader epoch, the
  leader would have it cut off, for ever, what the leader itself has sent: it stops until the next epoch.
- No log starts behind its own end. A leader whose log does has a wrong file, and nothing is deleted because of it: the
  follower stops until the next epoch, too.

An answer may come when the log is not any more what it was asked with: leaders answer two requests in a row. Records
count only if they come after the log's present end; an answer to what was asked before a truncation does not count.

Rule R3: a :class:`Following` ends with its leader epoch, and answers to it with it. Sources: KIP-101, KIP-279, KIP-595,
kafka.server.AbstractFetcherThread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

# How long a follower waits after the first error in a row; each further one doubles it, up to
# replica.fetch.backoff.ms.
_FIRST_BACKOFF_S: Final = 0.05
_NO_ERROR: Final = 0
_OFFSET_OUT_OF_RANGE: Final = 1


class FollowedLog(Protocol):
    """What is asked of a follower's log; see ``log.partition_log``."""

    @property
    def log_start_offset(self) -> int:
        """The log's first offset."""

    @property
    def log_end_offset(self) -> int:
        """The next offset to be written."""

    @property
    def recovery_point(self) -> int:
        """Everything below it is on the disk."""

    @property
    def last_record_epoch(self) -> int:
        """The leader epoch that wrote the last record; -1 when there is none."""

    def end_offset_for_epoch(self, leader_epoch: int, /) -> tuple[int, int]:
        """Return (the largest known epoch at or below ``leader_epoch``, its end offset); (-1, -1) when unknown."""


class Asked(NamedTuple):
    """One partition in a follower's fetch. ``cut_count``: how often the log had been cut back by then.

    ``high_watermark`` is -1 but where the follower contests that its log is to be cut below it.
    """

    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    cut_count: int = 0
    high_watermark: int = -1


class OwnState(NamedTuple):
    """What a follower knows of itself besides its log: its high watermark, and whether the state names this run of it
    as a member of the ISR, or as an eligible replica.

    ``is_sound``: its log lacks nothing, and no unclean election has given up what it knows to be committed.
    """

    high_watermark: int = 0
    is_member: bool = False
    is_eligible: bool = False
    is_sound: bool = False

    def has_committed(self, leader_high_watermark: int) -> bool:
        """Whether its log has all that is committed, so that nothing below a high watermark is cut from it."""
        return self.is_member or (self.is_eligible and self.high_watermark > leader_high_watermark)


_NOBODY: Final = OwnState()


class LeaderAnswer(NamedTuple):
    """The leader's answer for one partition; -1 for offsets that it does not send. ``diverging``: the largest leader
    epoch that it knows at or below the one asked with, and the end offset of that.

    ``log_end_offset`` comes with OFFSET_OUT_OF_RANGE, but not from brokers of earlier versions.
    """

    error_code: int = _NO_ERROR
    high_watermark: int = -1
    log_start_offset: int = -1
    has_records: bool = False
    diverging: tuple[int, int] | None = None
    log_end_offset: int = -1

    @property
    def is_start_wrong(self) -> bool:
        """Whether the leader reports a log that starts behind its own end."""
        return 0 <= self.log_end_offset < self.log_start_offset


@dataclass(frozen=True, slots=True)
class Append:
    """Append the records of the answer, then call :meth:`Following.appended`, or :meth:`Following.failed`."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log back to ``offset``, then call :meth:`Following.cut`. If that is below its start it begins there."""

    offset: int


@dataclass(frozen=True, slots=True)
class StartAnew:
    """Drop everything and go on at ``offset``, where the leader's log begins, then call :meth:`Following.cut`."""

    offset: int


@dataclass(frozen=True, slots=True)
class CheckEpochs:
    """Compare the own leader epochs with the batches, and complete them; then call :meth:`Following.cut`."""


@dataclass(frozen=True, slots=True)
class Contested:
    """The log is not cut back to ``offset``, because committed records are behind it; the leader is to find out."""

    offset: int


@dataclass(frozen=True, slots=True)
class StopFollowing:
    """Nothing is asked any more in this epoch: the log would be cut back to ``offset`` once more."""

    offset: int


@dataclass(frozen=True, slots=True)
class SetAside:
    """Set the log aside, and copy all again: it has committed records from ``offset`` on that its leader lacks for
    good."""

    offset: int


@dataclass(frozen=True, slots=True)
class RefuseLogStart:
    """The follower fetches nothing more in this epoch: the leader reports a log that starts behind its own end."""

    log_start_offset: int
    log_end_offset: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The leader does not serve this partition at present, or its answer is nonsense: ``problem``, or the error."""

    error_code: int
    problem: str = ""


Effect = Append | Truncate | StartAnew | CheckEpochs | Contested | StopFollowing | SetAside | RefuseLogStart | Refused
_APPEND: Final = Append()


class Following:
    """One partition, followed under one leader epoch. The log is the caller's and given to each question."""

    __slots__ = (
        "_claimed_high_watermark",
        "_cut_count",
        "_failures",
        "_has_checked_epochs",
        "_has_cut_committed",
        "_has_fitted_since",
        "_is_aligned",
        "_longest_backoff_s",
        "_ready_at_s",
        "is_busy",
        "leader_high_watermark",
        "leader_log_start_offset",
        "stopped",
    )

    def __init__(self, longest_backoff_s: float) -> None:
        self.leader_high_watermark = 0
        self.leader_log_start_offset = 0
        # Whether something works on the log, so that nothing is asked.
        self.is_busy = False
        # Whether the own log is known to be the beginning of the leader's.
        self._is_aligned = False
        self._longest_backoff_s = longest_backoff_s
        self._failures = 0
        self._ready_at_s = 0.0
        self._cut_count = 0
        # Why nothing is asked any more in this epoch.
        self.stopped: StopFollowing | SetAside | RefuseLogStart | None = None
        # What is said to a leader whose answer would have this log cut below it; -1: nothing.
        self._claimed_high_watermark = -1
        self._has_checked_epochs = False
        # Whether this log has been cut below its high watermark in this epoch, and has fitted the leader's since.
        self._has_cut_committed = self._has_fitted_since = False

    # Asking ---------------------------------------------------------------------------------------------------------

    def ask(self, log: FollowedLog, now_s: float, *, flushed_only: bool) -> Asked | None:
        """Return what the next fetch asks for, None while nothing is to be asked.

        ``flushed_only``: what is not flushed may not be acknowledged.
        """
        if self.is_busy or self.stopped is not None or now_s < self._ready_at_s:
            return None
        if flushed_only and log.recovery_point < log.log_end_offset:
            return None
        return Asked(
            log.log_end_offset,
            log.last_record_epoch,
            log.log_start_offset,
            self._cut_count,
            self._claimed_high_watermark,
        )

    @property
    def failures(self) -> int:
        """How many errors there have been in a row."""
        return self._failures

    @property
    def ready_at_s(self) -> float:
        """Until when nothing is asked, because of an error."""
        return self._ready_at_s

    @property
    def is_contesting(self) -> bool:
        """Whether the leader is asked to hand over, because this log would have to be cut below what is committed."""
        return self._claimed_high_watermark >= 0

    # Answers --------------------------------------------------------------------------------------------------------

    def answered(
        self, asked: Asked, answer: LeaderAnswer, log: FollowedLog, now_s: float, own: OwnState = _NOBODY
    ) -> Effect | None:
        """Return what an answer asks for; bounds follow from :meth:`high_watermark` and :meth:`log_start` afterwards.

        After Append, Truncate, StartAnew and CheckEpochs nothing is asked until the caller has reported the outcome.
        """
        if self.stopped is not None:
            # The answer to a request that was sent before that one's.
            return None
        if answer.is_start_wrong:
            self._is_aligned = False
            self.stopped = RefuseLogStart(answer.log_start_offset, answer.log_end_offset)
            return self.stopped
        # They only grow under one leader epoch, so old answers count as well.
        self.leader_high_watermark = max(self.leader_high_watermark, answer.high_watermark)
        if answer.error_code == _NO_ERROR and answer.diverging is None:
            # What was asked lies between the start and the end of the leader's log, so the start can be right.
            self.leader_log_start_offset = max(self.leader_log_start_offset, answer.log_start_offset)
        if self.is_busy or asked.cut_count != self._cut_count:
            return None
        if answer.error_code == _OFFSET_OUT_OF_RANGE:
            return self._out_of_range(asked, answer, log, now_s, own)
        if answer.error_code != _NO_ERROR:
            self.failed(now_s)
            return Refused(answer.error_code)
        if answer.diverging is not None:
            return self._diverged(asked, answer.diverging, log, now_s, own)
        self._fits()
        if answer.has_records and asked.fetch_offset == log.log_end_offset:
            self.is_busy = True
            return _APPEND
        return None

    def has_no_news(self, asked: Asked) -> None:
        """Note that the leader has answered a request that asked this, without an entry for this partition."""
        if not self.is_busy and asked.cut_count == self._cut_count:
            self._fits()

    def _fits(self) -> None:
        self._failures = 0
        self._is_aligned = True
        self._has_fitted_since = self._has_cut_committed
        self._claimed_high_watermark = -1

    def _diverged(
        self, asked: Asked, diverging: tuple[int, int], log: FollowedLog, now_s: float, own: OwnState
    ) -> Effect | None:
        if asked.fetch_offset != log.log_end_offset:
            # Of a log that has grown since; it is asked again.
            return None
        self._is_aligned = False
        epoch, end_offset = diverging
        own_epoch, own_end_offset = log.end_offset_for_epoch(epoch)
        offset = min(end_offset, own_end_offset) if own_epoch >= 0 else end_offset
        if epoch < 0 or end_offset < 0 or offset >= log.log_end_offset:
            self.failed(now_s)
            problem = (
                "the leader reports that its log parts from this one, which ends at "
                f"{log.log_end_offset} with leader epoch {asked.last_fetched_epoch}, "
                f"at the end {end_offset} of epoch {epoch}, which is not behind it"
            )
            return Refused(_NO_ERROR, problem)
        has_committed = own.has_committed(self.leader_high_watermark)
        committed = max(own.high_watermark, self.leader_high_watermark) if has_committed else own.high_watermark
        if offset < committed:
            # Whether this log begins with all of the leader's up to there.
            is_same = own_epoch == epoch and offset == end_offset and self.leader_high_watermark <= offset
            may_claim = has_committed or (own.is_sound and is_same and asked.high_watermark < 0)
            kept = self._keeps_committed(offset, now_s, committed, may_claim=may_claim, is_sound=own.is_sound)
            if kept is not None:
                return kept
        self.is_busy = True
        return Truncate(offset)

    def _keeps_committed(
        self, offset: int, now_s: float, committed: int, *, may_claim: bool, is_sound: bool
    ) -> Effect | None:
        """Return what is done in the place of a cut to ``offset``, below what is ``committed``; None to cut all the
        same. ``may_claim``: the leader may be asked to hand over. ``is_sound``: see :class:`OwnState`."""
        if not self._has_checked_epochs:
            self._has_checked_epochs = True
            self.is_busy = True
            return CheckEpochs()
        if may_claim:
            self._claimed_high_watermark = committed
            self.failed(now_s)
            return Contested(offset)
        if is_sound:
            self.stopped = SetAside(offset)
            return self.stopped
        if self._has_fitted_since:
            self.stopped = StopFollowing(offset)
            return self.stopped
        self._has_cut_committed = True
        return None

    def _out_of_range(
        self, asked: Asked, answer: LeaderAnswer, log: FollowedLog, now_s: float, own: OwnState
    ) -> Effect | None:
        if asked.fetch_offset != log.log_end_offset:
            return None
        self._is_aligned = False
        leader_start = answer.log_start_offset
        # Beyond the leader's end with a last epoch is no case of this: the two logs part somewhere then.
        if leader_start < 0 or (leader_start <= log.log_end_offset and asked.last_fetched_epoch >= 0):
            self.failed(now_s)
            return Refused(_OFFSET_OUT_OF_RANGE)
        if own.is_member and leader_start > log.log_end_offset > log.log_start_offset:
            self.failed(now_s)
            problem = (
                f"its log begins at {leader_start}, behind all that this in-sync replica has, which ends at "
                f"{log.log_end_offset}"
            )
            return Refused(_NO_ERROR, problem)
        self.is_busy = True
        return StartAnew(leader_start)

    # How it went ----------------------------------------------------------------------------------------------------

    def appended(self) -> None:
        """Go on after records have been appended."""
        self.is_busy = False

    def cut(self) -> None:
        """Go on after the log has been truncated, or created again: it is compared again."""
        self.is_busy = False
        self._cut_count += 1
        # It was said of the log as it was.
        self._claimed_high_watermark = -1

    def say_anew(self) -> None:
        """Send the leader again what the log has: earlier reports do not count."""
        self._cut_count += 1

    def failed(self, now_s: float) -> None:
        """Wait a while: the leader, the own disk or the way between them has a problem."""
        self.is_busy = False
        backoff_s = min(_FIRST_BACKOFF_S * 2 ** min(self._failures, 20), self._longest_backoff_s)
        self._failures += 1
        self._ready_at_s = now_s + backoff_s

    # Bounds ---------------------------------------------------------------------------------------------------------

    def high_watermark(self, log: FollowedLog) -> int:
        """Return up to where the own high watermark may rise; 0 while the logs have not been found to fit."""
        return min(self.leader_high_watermark, log.log_end_offset) if self._is_aligned else 0

    def log_start(self, log: FollowedLog, high_watermark: int) -> int:
        """Return where the own log is to start: with the leader's, but not beyond the own high watermark."""
        return max(min(self.leader_log_start_offset, high_watermark), log.log_start_offset)
