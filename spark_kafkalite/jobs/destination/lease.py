"""The lease of a destination names the run that works in it, so that a second run waits or ends at once.

Leases are ``_kafkalite/leases/N.json``, N counting from 1 in 20 digits. As with manifests, one run makes each number.
The lease with the highest number is valid, unless it is released (a field in it) or expired. Its holder writes it again
every third of its length. A run that finds it expired or released makes N+1 and deletes the older ones. The highest
always stays, so that no number is used twice.

The age of a lease is the difference of two modification times: of the lease, and of a file that the checking run has
just written. Both come from the file system's clock, so the clocks of hosts need not agree. The run writes that file
before it reads the lease, so a lease that is renewed in between does not look old.

No record depends on the lease: a run that was paused for longer than its lease fails at its commit (``publish``).
"""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.jobs.program.outcome import error_line
from spark_kafkalite.manifests.files import FileExists, Files, FilesError
from spark_kafkalite.manifests.manifest import HOME

LEASES: Final = f"{HOME}/leases"
_DIGITS: Final = 20
_NAME: Final = re.compile(rf"[0-9]{{{_DIGITS}}}\.json", re.ASCII)
_CLOCK: Final = "clock-"
_RENEWALS_IN_A_LEASE: Final = 3
_LOOKS_IN_A_LEASE: Final = 20
_LONGEST_PAUSE_S: Final = 2.0
# A renewal hangs for as long as a file system's client tries to reach it; the run has its own end to come to.
_AWAIT_RENEWAL_S: Final = 10.0
# What a killed run has left half-written; one that lives has long given it a name.
_LEFTOVER_MS: Final = 3_600_000


class DestinationHeld(KafkaliteError):
    """Another run holds the destination, or has taken it over from this one."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The run that made a lease. ``started`` is its host's time, for people; ``lease_ms`` is the lease's length."""

    run: str
    host: str
    pid: int
    user: str
    started: str
    lease_ms: int
    released: bool = False

    @classmethod
    def of_this_process(cls, run: str, lease_ms: int) -> Holder:
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # A container's user may have no name.
            user = str(os.getuid())
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(run, socket.gethostname(), os.getpid(), user, now, lease_ms)

    def __str__(self) -> str:
        return f"run {self.run} (host {self.host}, pid {self.pid}, user {self.user}, since {self.started})"


def lease_path(number: int) -> str:
    """Return where lease ``number`` lies under the destination."""
    return f"{LEASES}/{number:0{_DIGITS}d}.json"


def lease_numbers(files: Files) -> list[int]:
    """Return the numbers of the leases that exist, ascending."""
    return sorted(int(name.removesuffix(".json")) for name in files.names(LEASES) if _NAME.fullmatch(name))


class DestinationLease:
    """A lease that this run has taken. A thread renews it."""

    def __init__(
        self, files: Files, number: int, holder: Holder, say: Callable[[str], None], what: str = "destination"
    ) -> None:
        self.number = number
        self.holder = holder
        self._files = files
        self._say = say
        self._what = what
        self._has_said = False
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._renew_until_the_end, name="kafkalite-lease", daemon=True)
        self._thread.start()

    def taker(self) -> Holder | None:
        """Return the run that has taken the destination over from this one, None if no run has."""
        number = max(lease_numbers(self._files), default=0)
        return _read(self._files, number, self.holder.lease_ms) if number > self.number else None

    def check(self) -> None:
        """Raise DestinationHeld when another run has taken the destination over."""
        taker = self.taker()
        if taker is not None:
            raise self.overtaken(taker)

    def overtaken(self, taker: Holder) -> DestinationHeld:
        return DestinationHeld(
            f"{self._files.root}: {taker} took the {self._what} over while this run ({self.holder.run}) did not renew "
            f"its lease of {_seconds(self.holder.lease_ms)}; what this one had not committed is not published; run "
            "again when the other one has ended"
        )

    def _renew_until_the_end(self) -> None:
        while not self._ends.wait(self.holder.lease_ms / 1000 / _RENEWALS_IN_A_LEASE):
            try:
                taker = self.taker()
                if taker is None:
                    self._files.replace(lease_path(self.number), _text(self.holder))
            # Whatever a file system's client raises: the run does not depend on its lease.
            except Exception as error:
                self._say_once(f"cannot be renewed and may end: {error_line(error)}")
            else:
                if taker is not None:
                    self._say_once(f"has passed to {taker}, which has taken this run for dead")
                    return

    def _say_once(self, text: str) -> None:
        if not self._has_said:
            self._has_said = True
            self._say(f"WARNING: the lease of {self._files.root} {text}")

    def release(self, *, quietly: bool = False) -> None:
        """Release the lease, so that the next run begins at once.

        A lease that cannot be released expires; this is reported unless ``quietly``.
        """
        self._ends.set()
        self._thread.join(_AWAIT_RENEWAL_S)
        try:
            # A renewal that comes later would take the release back.
            if not self._thread.is_alive() and self.taker() is None:
                self._files.replace(lease_path(self.number), _text(replace(self.holder, released=True)))
        except Exception as error:
            if not quietly:
                self._say_once(f"cannot be released, and ends by itself: {error_line(error)}")


@contextmanager
def held(
    files: Files,
    run: str,
    *,
    lease_ms: int,
    wait_ms: int | None,
    say: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
    what: str = "destination",
) -> Iterator[DestinationLease]:
    """Hold the lease of the destination while the block runs.

    While another run holds it, wait for ``wait_ms``. If that is None, wait until the other lease expires or is renewed:
    until then its run may be dead. ``say`` receives a line for people, ``pause`` the seconds to wait. ``what`` is the
    directory's name in messages.

    Raises DestinationHeld if the other run still holds the destination then. It also replaces any error of the block
    after another run has taken the destination over, because that run's deletions may have caused the error.
    """
    lease = _take(files, run, lease_ms, wait_ms, say, pause, what)
    failed = True
    try:
        _delete_older(files, lease.number)
        yield lease
        failed = False
    except DestinationHeld:
        raise
    except Exception as error:
        taker = None
        with suppress(Exception):
            taker = lease.taker()
        if taker is not None:
            raise lease.overtaken(taker) from error
        raise
    finally:
        # The same disk or file system may have failed the run, and one report is enough.
        lease.release(quietly=failed)


def _take(
    files: Files,
    run: str,
    lease_ms: int,
    wait_ms: int | None,
    say: Callable[[str], None],
    pause: Callable[[float], None],
    what: str,
) -> DestinationLease:
    began = time.monotonic()
    seen: tuple[int, int] | None = None
    while True:
        now_ms = _now_ms(files, run)
        number = max(lease_numbers(files), default=0)
        modified_ms = files.modified_ms(lease_path(number)) or now_ms
        holder = _read(files, number, lease_ms)
        left_ms = 0 if holder is None or holder.released else modified_ms + holder.lease_ms - now_ms
        if holder is None or left_ms <= 0:
            own = Holder.of_this_process(run, lease_ms)
            try:
                files.write_new(lease_path(number + 1), _text(own))
            except FileExists:
                continue
            # Where two others came and went in between, this one is an old number.
            if max(lease_numbers(files)) == number + 1:
                files.delete(_clock_path(run))
                return DestinationLease(files, number + 1, own, say, what)
            files.delete(lease_path(number + 1))
            continue
        waited_ms = (time.monotonic() - began) * 1000
        is_renewed = seen is not None and (number, modified_ms) > seen
        gives_up = is_renewed if wait_ms is None else waited_ms >= wait_ms
        if gives_up:
            files.delete(_clock_path(run))
            waited = f" after {_seconds(waited_ms)}" if waited_ms >= 1000 else ""
            how = "; its lease was renewed, so it lives" if is_renewed else ""
            raise DestinationHeld(
                f"{files.root}: {holder} holds the {what}{waited}{how}: wait for its end (--wait SECONDS waits), or "
                f"take another {what}"
            )
        if seen is None:
            say(
                f"{files.root}: {holder} holds the {what}; its lease ends in {_seconds(left_ms)} unless it is "
                f"renewed; waiting {'for that' if wait_ms is None else f'up to {_seconds(wait_ms)}'}"
            )
            seen = (number, modified_ms)
        rests_ms = [left_ms, holder.lease_ms / _LOOKS_IN_A_LEASE, _LONGEST_PAUSE_S * 1000]
        if wait_ms is not None:
            rests_ms.append(wait_ms - waited_ms)
        pause(max(0.0, min(rests_ms)) / 1000)


def _clock_path(run: str) -> str:
    return f"{LEASES}/{_CLOCK}{run}"


def _now_ms(files: Files, run: str) -> int:
    path = _clock_path(run)
    files.replace(path, "")
    now_ms = files.modified_ms(path)
    if now_ms is None:
        raise FilesError(f"{files.root}/{path} is gone as soon as it is written: the file system keeps no small files")
    return now_ms


def _read(files: Files, number: int, lease_ms: int) -> Holder | None:
    """Return the holder of a lease, None if it does not exist. One that cannot be read counts as ``lease_ms`` long."""
    try:
        text = files.read(lease_path(number))
    except FileNotFoundError:
        return None
    try:
        document: dict[str, Any] = json.loads(text)
        made = Holder(**document)
        # Compared below, so a text must not get in there.
        return replace(made, lease_ms=int(made.lease_ms), released=bool(made.released))
    except (ValueError, TypeError):
        return Holder("unknown", "unknown", 0, "unknown", "unknown", lease_ms)


def _text(holder: Holder) -> str:
    return json.dumps(asdict(holder), indent=1) + "\n"


def _delete_older(files: Files, number: int) -> None:
    """Delete the leases before ``number``, and what runs that were killed in the middle of a write have left."""
    now_ms = files.modified_ms(lease_path(number)) or 0
    for name in files.names(LEASES):
        path = f"{LEASES}/{name}"
        if _NAME.fullmatch(name):
            if path < lease_path(number):
                files.delete(path)
        elif now_ms - (files.modified_ms(path) or now_ms) > _LEFTOVER_MS:
            files.delete(path)


def _seconds(ms: float) -> str:
    return f"{ms / 1000:.0f} s" if ms >= 1000 else f"{ms:.0f} ms"
