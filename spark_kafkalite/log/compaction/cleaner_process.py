"""The process that copies segments for the broker: ``python -m spark_kafkalite.log.compaction.cleaner_process``.

Copying keeps a processor busy, and in the broker every busy thread delays the event loop; so it happens here, at low
priority. The broker starts the process when there is something to clean, and kills it to call a cleaning off or when
there has been nothing to do for a while. It renames nothing and knows no topic.

One line of JSON each way, UTF-8:

=====================================  ===============================================================================
on standard input, for each cleaning   ``{"job": <CleanJob by field>, "bytes_per_second": number}``
on standard output, while it runs      ``{"progress": <bytes read and written so far>}``, about every second
at its end, one of                     ``{"result": <CleanResult by field>}``,
                                       ``{"failed": "log", "text": ...}``: a source cannot be cleaned, nor can it later,
                                       ``{"failed": "disk", "errno": number, "text": ...}``
=====================================  ===============================================================================

It ends at the end of its input, and with the broker: the kernel kills it when its parent dies, and where it cannot it
looks for itself. A second process would otherwise write the same files after a quick restart.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import signal
import sys
import time
from typing import Any, Final, TextIO

from spark_kafkalite.log.compaction.clean_job import CleanedGroup, CleanJob, CleanResult, UncleanableLog
from spark_kafkalite.log.compaction.cleaner import clean
from spark_kafkalite.log.compaction.plan import SourceSegment
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.files.os_fs import OsFs

_PROGRESS_EVERY_S: Final = 1.0
_NICENESS: Final = 10
# Of the lowest of the best-effort class of I/O priorities: idle would starve under load and the log would only grow.
_IO_PRIORITY: Final = (2 << 13) | 7
_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30}
_PR_SET_PDEATHSIG: Final = 1
# Rather this process than the broker when memory runs out.
_OOM_SCORE: Final = 700


def encode_job(job: CleanJob, bytes_per_second: float) -> bytes:
    """Return the line that starts a cleaning."""
    return json.dumps({"job": job._asdict(), "bytes_per_second": bytes_per_second}).encode() + b"\n"


def decode_job(line: str) -> tuple[CleanJob, float]:
    """Return what :func:`encode_job` has put into a line."""
    message: dict[str, Any] = json.loads(line)
    fields = message["job"]
    fields["sources"] = tuple(SourceSegment(*source) for source in fields["sources"])
    fields["last_offset_by_producer"] = {int(key): value for key, value in fields["last_offset_by_producer"].items()}
    return CleanJob(**fields), float(message["bytes_per_second"])


def encode_result(result: CleanResult) -> str:
    """Return the line that ends a cleaning."""
    return json.dumps({"result": result._asdict()})


def decode_result(fields: dict[str, Any]) -> CleanResult:
    """Return the result from the JSON object under ``result``."""
    groups = tuple(CleanedGroup(group[0], tuple(group[1]), *group[2:]) for group in fields["groups"])
    return CleanResult(**{**fields, "groups": groups})


class Throttle:
    """Counts bytes, keeps them below a rate, reports progress, and notices when the broker has gone."""

    def __init__(self, bytes_per_second: float, output: TextIO, parent: int) -> None:
        self._bytes_per_second = bytes_per_second
        self._output = output
        self._parent = parent
        self._began_s = self._reported_s = time.monotonic()
        self._bytes = 0

    def on_bytes(self, count: int) -> None:
        """Wait until ``count`` more bytes are due."""
        self._bytes += count
        while True:
            if os.getppid() != self._parent:
                os._exit(1)
            now_s = time.monotonic()
            if now_s - self._reported_s >= _PROGRESS_EVERY_S:
                self._reported_s = now_s
                print(json.dumps({"progress": self._bytes}), file=self._output, flush=True)
            wait_s = self._began_s + self._bytes / self._bytes_per_second - now_s
            if wait_s <= 0:
                return
            time.sleep(min(wait_s, _PROGRESS_EVERY_S))


def serve(lines: TextIO, output: TextIO, fs: Fs, parent: int) -> None:
    """Do the jobs that come in, one after another, until the end of ``lines``."""
    for line in lines:
        job, bytes_per_second = decode_job(line)
        try:
            answer = encode_result(clean(fs, job, Throttle(bytes_per_second, output, parent).on_bytes))
        except UncleanableLog as error:
            answer = json.dumps({"failed": "log", "text": str(error)})
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            text = f"{error.strerror or error}{where}"
            answer = json.dumps({"failed": "disk", "errno": error.errno or 0, "text": text})
        except MemoryError:
            answer = json.dumps({"failed": "disk", "errno": 0, "text": "out of memory"})
        print(answer, file=output, flush=True)


def _be_modest(parent: int) -> None:
    """Take the lowest priorities, and die with the broker; each as far as the system lets us."""
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(_OOM_SCORE))
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        number = _IOPRIO_SET.get(platform.machine())
        if number is not None:
            libc.syscall(number, 1, 0, _IO_PRIORITY)
    if os.getppid() != parent:
        # It died before it could be noticed.
        sys.exit(1)


def main() -> None:
    """Serve standard input."""
    # A terminal's interrupt goes to the whole group; the broker says when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = int(sys.argv[1])
    _be_modest(parent)
    serve(sys.stdin, sys.stdout, OsFs(), parent)


if __name__ == "__main__":
    main()
