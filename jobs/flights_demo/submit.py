"""Runs the jobs as their users do: `spark-submit` in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from spark_kafkalite.version import install_command

_TIMEOUT_S = 180
_SPARK_OPTIONS = {
    "spark.ui.enabled": "false",
    # HDFS's client sleeps this long when a file's only block is not reported yet at its close: 0.4 s for most of the
    # many small files that day directories are made of, on a cluster of one node.
    "spark.hadoop.dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "5",
}


class JobRun:
    """One `spark-submit` of a job, running in a process group of its own."""

    def __init__(self, job: str, *arguments: str, log: Path) -> None:
        spec = importlib.util.find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise SystemExit(f"the demo runs Spark: {install_command('spark')}")
        home = Path(spec.origin).parent
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        environment = python | os.environ | {"SPARK_HOME": str(home)}
        script = Path(__file__).parents[1] / f"{job}.py"
        command = [str(home / "bin" / "spark-submit"), "--master", "local[2]"]
        for name, value in _SPARK_OPTIONS.items():
            command += ["--conf", f"{name}={value}"]
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [*command, str(script), *arguments, "--json"],
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill the job, its JVM and its Python workers with -9."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.communicate()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def result(self) -> dict[str, Any]:
        """Wait for the job and return what it printed. Raises RuntimeError with the log's end when it failed."""
        try:
            output, _ = self._process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"the job was not done after {_TIMEOUT_S} s; its log is {self._log}") from None
        if self._process.returncode != 0:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-5:])
            raise RuntimeError(f"the job ended with exit code {self._process.returncode}; {self._log} ends:\n{tail}")
        result: dict[str, Any] = json.loads(output.decode().strip().splitlines()[-1])
        return result
