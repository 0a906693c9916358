"""What a log needs before it takes its first append: its identity on the disk, and its end read.

A new log waits for the sync of its identity (``identity``). A fast start trusts the last segment and leaves its end
unread (``loading.recovery``): that is read before the first append, and where the indexes there are damaged all of the
segment is. If the segment turns out to be damaged, the log goes on with the sound batches behind the damage, as after a
recovery (``loading.later_segments``). All of this may have to wait for the disk, so the loop leaves it to a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from spark_kafkalite.errors import CorruptMessage, KafkaStorageError
from spark_kafkalite.log.files.needs_thread import NeedsThread, may_wait, without_waiting
from spark_kafkalite.log.loading.later_segments import LaterSegments
from spark_kafkalite.log.local_log import LocalLog
from spark_kafkalite.log.segments.active_segment import EndLost
from spark_kafkalite.log.segments.segment import IndexesDamaged
from spark_kafkalite.log.steps import Piece, Steps

_NOTHING_LATER: Final = LaterSegments((), "")
# Two threads would write the same files.
_finding = threading.Lock()


class EndDamaged(NeedsThread):
    """The end of a log cannot be walked; ``work`` finds out where it ends, and what lies behind."""

    def __init__(
        self, local: LocalLog, find_later: Callable[[EndLost], LaterSegments], found: IndexesDamaged | EndLost
    ) -> None:
        super().__init__(str(found))
        self._local = local
        self._active = local.segments.active
        self._find_later = find_later
        self._found = found

    def work(self) -> None:
        with _finding:
            # Unless another one has done it meanwhile, or the log has gone on.
            if self._local.later is None and self._local.segments.active is self._active:
                self._work()

    def _work(self) -> None:
        lost: EndLost | None
        if isinstance(self._found, EndLost):
            lost = self._found
        else:
            self._found.work()
            lost = self._active.lost_end()
        if lost is not None and lost.position < self._active.size_bytes:
            self._local.later = self._find_later(lost)


class LogReadiness:
    """See the module's text. With ``LocalLog.takes_appends`` there is nothing to do."""

    def __init__(
        self,
        local: LocalLog,
        find_later: Callable[[EndLost], LaterSegments],
        go_on: Callable[[EndLost, LaterSegments, int], None],
    ) -> None:
        """``find_later`` makes segments of what lies behind damage, in a thread. ``go_on`` has a log go on with them,
        up to the offset at which it ended when the broker stopped."""
        self._local = local
        self._find_later = find_later
        self._go_on = go_on

    def missing(self) -> NeedsThread | None:
        """Return what a thread has to do before the log takes appends, if anything."""
        local = self._local
        if local.takes_appends or not local.is_usable:
            return None
        pending = local.identity.pending()
        if pending is not None or local.is_ready:
            return pending
        try:
            with without_waiting():
                self.read_end()
        except NeedsThread as missing:
            return missing
        except KafkaStorageError:
            # The append meets it as well.
            pass
        return None

    def steps(self) -> Steps[None]:
        """Have the log take appends, in steps; see :meth:`missing`. KafkaStorageError when it cannot."""
        missing = self.missing()
        if missing is not None:
            # What goes wrong is met again.
            yield Piece(missing.work)
        if not self._local.takes_appends:
            self.prepare()

    def prepare(self) -> None:
        """Have the log take appends, in this thread. Raises KafkaStorageError (56) or ClosedError when it takes
        none."""
        local = self._local
        if not local.is_usable:
            raise local.unusable_error()
        local.sync_identity()
        if not local.is_ready:
            self.read_end()

    def read_end(self) -> None:
        """Read what a fast start has left unread. Raises KafkaStorageError (56) or ClosedError when the log takes no
        appends."""
        local, active = self._local, self._local.segments.active
        if not local.is_usable:
            raise local.unusable_error()
        try:
            active.read_tail()
        except IndexesDamaged as missing:
            raise EndDamaged(local, self._find_later, missing) from None
        except EndLost as lost:
            self._go_on_behind(lost)
        except CorruptMessage as error:
            local.is_damaged = True
            reason = f"cannot append to {local.topic_partition}: {error}; a restart of the broker recovers the log"
            local.fail(reason)
            raise KafkaStorageError(reason) from error
        except OSError as error:
            raise local.fatal_error("read the end of", error) from error

    def _go_on_behind(self, lost: EndLost) -> None:
        local, active = self._local, self._local.segments.active
        later, local.later = local.later, None
        if later is None and lost.position < active.size_bytes:
            if not may_wait():
                raise EndDamaged(local, self._find_later, lost)
            later = self._find_later(lost)
        stopped_at = active.unread_until_offset
        active.unread_until_offset = -1
        self._go_on(lost, later or _NOTHING_LATER, stopped_at)
