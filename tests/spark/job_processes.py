"""Jobs in processes of their own, as users run them, with faults at named points (``jobs/program/faults.py``)."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from spark_kafkalite.cli.jobs import script_path
from spark_kafkalite.jobs.program.faults import VARIABLE
from spark_kafkalite.processes.child_process import ChildProcess
from tests.patience import PATIENCE_S
from tests.pool.names import own_numbers
from tests.pool.process_tree import status_of

from .class_archive import java_options

# A JVM, a Spark and its Python processes start one after the other in a job.
JOB_PATIENCE_S: Final = 4 * PATIENCE_S
_COUNTER = own_numbers()


class JobProcess:
    """``kafkalite jobs run JOB ...``, or the same by spark-submit; a context manager that leaves nothing behind."""

    def __init__(
        self,
        directory: Path,
        job: str,
        *arguments: str,
        fault: str = "",
        submitted: bool = False,
        master: str = "local[2]",
        conf: Mapping[str, str] | None = None,
        **variables: str,
    ) -> None:
        settings = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": java_options(),
            "spark.local.dir": str(directory / "local"),
            **(conf or {}),
        }
        spark = ["--master", master]
        for name, value in settings.items():
            spark += ["--conf", f"{name}={value}"]
        environment = {**os.environ, VARIABLE: fault, **variables}
        if submitted:
            submit = str(Path(sys.executable).with_name("spark-submit"))
            command = [submit, *spark, str(script_path(job)), *arguments]
        else:
            # As Spark's launcher takes it: like a shell does.
            quoted = " ".join(f"'{part}'" for part in spark)
            environment["PYSPARK_SUBMIT_ARGS"] = f"{quoted} pyspark-shell"
            command = [sys.executable, "-m", "spark_kafkalite.cli", "jobs", "run", job, *arguments]
        self.process = ChildProcess(command, directory, f"{job}-{next(_COUNTER)}", environment=environment)

    def wait(self, timeout_s: float = JOB_PATIENCE_S) -> int:
        """Wait for its end; return the exit code."""
        return self.process.wait(timeout_s)

    def result(self) -> dict[str, Any]:
        """Wait for its end, which must be a good one; return what ``--json`` has printed."""
        assert self.wait() == 0, self.process.tail()
        found: dict[str, Any] = json.loads(self.process.stdout_text().splitlines()[-1])
        return found

    @property
    def said(self) -> list[str]:
        """All lines so far: spark-submit writes what Python has on stderr to stdout."""
        paths = (self.process.stdout_path, self.process.stderr_path)
        return [line for path in paths for line in path.read_text(errors="replace").splitlines()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()


def lease_of(destination: Path) -> dict[str, Any]:
    """Return the newest lease."""
    newest = max((destination / "_kafkalite" / "leases").glob("*.json"))
    found: dict[str, Any] = json.loads(newest.read_text())
    return found


def wait_for_job(job: JobProcess, condition: Callable[[], bool], what: str) -> None:
    """Wait until something holds while a job runs. Raises ChildFailed when the job ends first, not being ``what``."""
    job.process.wait_until(condition, JOB_PATIENCE_S, what)


def await_stopped(destination: Path, job: JobProcess) -> int:
    """Wait until the process that holds the lease has stopped itself; return its id."""

    def stopped() -> bool:
        try:
            return is_stopped(lease_of(destination)["pid"])
        except (OSError, ValueError):
            return False

    wait_for_job(job, stopped, "stopped where its fault is")
    pid: int = lease_of(destination)["pid"]
    return pid


def is_stopped(pid: int) -> bool:
    status = status_of(pid)
    return status is not None and status.state == "T"


def wake(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)
