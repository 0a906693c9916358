"""What a log needs before it takes its first append: its identity on the disk, and its end read.

A new log waits for the sync of its identity (``identity``). A fast start trusts the last segment and leaves its end
unread (``loading.recovery``): that is read before the first append, and where the indexes there are damaged all of the
segment is. Both may have to wait for the disk, so the loop leaves them to a thread.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_kafkalite.errors import CorruptMessage, KafkaStorageError
from spark_kafkalite.log.files.needs_thread import NeedsThread, without_waiting
from spark_kafkalite.log.local_log import LocalLog
from spark_kafkalite.log.segments.active_segment import EndLost
from spark_kafkalite.log.steps import Piece, Steps
from spark_kafkalite.model import Offset


class LogReadiness:
    """See the module's text. With ``LocalLog.takes_appends`` there is nothing to do."""

    def __init__(self, local: LocalLog, go_on_at_end: Callable[[int, str], None]) -> None:
        """``go_on_at_end`` has a log that has lost its end go on at an offset, for a reason."""
        self._local = local
        self._go_on_at_end = go_on_at_end

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
        except EndLost as error:
            stopped_at = active.unread_until_offset
            active.unread_until_offset = -1
            local.log_end_offset = Offset(error.end_offset)
            self._go_on_at_end(stopped_at, str(error))
        except CorruptMessage as error:
            local.is_damaged = True
            reason = f"cannot append to {local.topic_partition}: {error}; a restart of the broker recovers the log"
            local.fail(reason)
            raise KafkaStorageError(reason) from error
        except OSError as error:
            raise local.fatal_error("read the end of", error) from error
