"""The broker's end of a cleaner process: starts it, gives it one job at a time, kills it to call a job off.

See ``log.compaction.cleaner_process`` for the other end and for what travels between them. The process inherits the
broker's standard error, so that what kills it is seen in the broker's log.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any, Final

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.log.compaction.clean_job import CleanJob, CleanResult, UncleanableLog
from spark_kafkalite.log.compaction.cleaner_process import decode_result, encode_job

_MODULE: Final = "spark_kafkalite.log.compaction.cleaner_process"
# A result names every segment it wrote; this is room for a hundred thousand.
_LONGEST_LINE_BYTES: Final = 16 * 1024 * 1024


class CleanerDied(KafkaliteError):
    """The process ended without an answer: killed, out of memory, or a bug; its output shows which."""


class CleanerChild:
    """At most one process. All of it is the event loop's."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The process's number, None when there is none."""
        return self._process.pid if self._process is not None else None

    async def clean(self, job: CleanJob, bytes_per_second: float, on_progress: Callable[[int], None]) -> CleanResult:
        """Do one job; ``on_progress`` receives the bytes read and written so far, about every second.

        Raises UncleanableLog, OSError as it came up over there, CleanerDied. When this is cancelled the process is
        killed; what it had written lies about then, and is the caller's to remove.
        """
        try:
            answer = await self._answer(job, bytes_per_second, on_progress)
        except BaseException:
            await self._kill()
            raise
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _answer(
        self, job: CleanJob, bytes_per_second: float, on_progress: Callable[[int], None]
    ) -> CleanResult | UncleanableLog | OSError:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                _MODULE,
                str(os.getpid()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_LONGEST_LINE_BYTES,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(ConnectionError):
            process.stdin.write(encode_job(job, bytes_per_second))
            await process.stdin.drain()
        while True:
            line = await process.stdout.readline()
            if not line.endswith(b"\n"):
                code = await process.wait()
                raise CleanerDied(f"the cleaner process ended with exit code {code}")
            message: dict[str, Any] = json.loads(line)
            if "progress" in message:
                on_progress(message["progress"])
            elif "result" in message:
                return decode_result(message["result"])
            elif message["failed"] == "log":
                return UncleanableLog(message["text"])
            else:
                return OSError(message["errno"], message["text"])

    async def close(self) -> None:
        """End the process, because there is nothing to do for it at present. It has nothing to save, so it is killed:
        at its low priority an orderly end may take long."""
        await self._kill()

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            # It writes nothing any more once it has been reaped.
            await asyncio.shield(process.wait())
