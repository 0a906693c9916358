"""Which Python Spark starts for the format, and whether that Python has this package.

Spark chooses twice. The driver's JVM finds and plans data sources with ``PYSPARK_DRIVER_PYTHON`` or ``PYSPARK_PYTHON``
of the environment that it was started with, or else with ``python3`` from the PATH. Tasks, and sources that were
registered, run with ``SparkContext.pythonExec``: ``PYSPARK_PYTHON`` of the application, or else ``python3``. A virtual
environment whose Python was started by its path (cron, systemd, Airflow) is not on the PATH. Then Spark starts another
Python, and the query ends with ``DATA_SOURCE_NOT_FOUND``.

:func:`provide_python` repairs a session where ``PYSPARK_PYTHON`` is not set, and warns elsewhere. It cannot change the
environment of a running JVM, so the format must be registered afterwards. ``kafkalite doctor`` reports what
:func:`planning_python` returns. A session of Spark Connect is left to its server.
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spark_kafkalite.spark.workers.needed_modules import NEEDED_MODULES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger("spark_kafkalite.spark")

PYTHON: Final = "PYSPARK_PYTHON"
DRIVER_PYTHON: Final = "PYSPARK_DRIVER_PYTHON"
_DEFAULT: Final = "python3"
_MODULES: Final = ("spark_kafkalite", *NEEDED_MODULES)
# Any Python 3 runs this.
_PROGRAM: Final = "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if u.find_spec(n) is None])"
_TIMEOUT_S: Final = 30


@dataclass(frozen=True)
class WorkerPython:
    """A Python that Spark starts.

    ``variable`` is the environment variable that names it, None where Spark takes ``python3`` from the PATH. ``path``
    is where it lies, None if there is none. ``missing`` are modules that it lacks. ``problem``: why it does not run.
    """

    command: str
    variable: str | None
    path: str | None
    missing: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def is_usable(self) -> bool:
        """Whether the format works in it."""
        return not self.missing and self.problem is None

    def __str__(self) -> str:
        """Return which Python it is and why: ``/usr/bin/python3 (python3 on the PATH, PYSPARK_PYTHON is not set)``."""
        why = f"{_DEFAULT} on the PATH, {PYTHON} is not set" if self.variable is None else f"{self.variable} names it"
        return f"{self.path or self.command} ({why})"

    @property
    def lack(self) -> str:
        """What is wrong with it, as ``has no spark_kafkalite, no pyarrow``."""
        return self.problem or f"has no {', no '.join(self.missing)}"


def planning_python(spark: SparkSession) -> WorkerPython:
    """Return the Python with which the driver's JVM of a classic session finds data sources, and plans with them."""
    environment = _environment_of_jvm(spark)
    for variable in (DRIVER_PYTHON, PYTHON):
        if variable in environment:
            return examined(environment[variable], variable, environment.get("PATH"))
    return examined(_DEFAULT, None, environment.get("PATH"))


def task_python(spark: SparkSession) -> WorkerPython:
    """Return the Python of a classic session's tasks and registered sources, as it is on the driver's host."""
    command = _context(spark).pythonExec
    variable = PYTHON if PYTHON in os.environ else None
    return examined(command, variable, _environment_of_jvm(spark).get("PATH"))


def examined(command: str, variable: str | None, search_path: str | None) -> WorkerPython:
    """Return what a command starts, looked up in a PATH. It is run, unless it is the interpreter that runs this."""
    path = shutil.which(command, path=search_path)
    if path is None:
        return WorkerPython(command, variable, None, problem="is not there, or cannot be run")
    path = os.path.abspath(path)
    if is_own(path):
        return WorkerPython(command, variable, path)
    # Packages that were shipped are found by Spark's workers, though not installed.
    return WorkerPython(command, variable, path, *_run(path, _shipped_packages()))


def is_own(path: str) -> bool:
    """Whether a path is this process's interpreter, by any of the names that it has in its directory."""
    own = os.path.abspath(sys.executable)
    # Not the target alone: the interpreters of virtual environments link to one of the system.
    return os.path.dirname(path) == os.path.dirname(own) and os.path.realpath(path) == os.path.realpath(own)


def is_environments_own() -> bool:
    """Whether this process runs in a virtual environment, or in one of conda's."""
    return sys.prefix != sys.base_prefix or os.path.isdir(os.path.join(sys.prefix, "conda-meta"))


def provide_python(spark: SparkSession, *, will_register: bool) -> bool:
    """Make sure that a session's Python workers find this package, and return whether the format must be registered.

    If neither ``PYSPARK_PYTHON`` nor ``PYSPARK_DRIVER_PYTHON`` is set, Spark's ``python3`` lacks the package, and this
    process runs in a virtual environment, then tasks and registered sources of the application use this process's
    Python from now on. If only the planning Python lacks the package, a registration is enough, and nothing is changed.
    Elsewhere it warns, with what to set. ``will_register``: the caller registers the format anyway, so that only the
    Python of tasks counts.
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        return False
    python = task_python(spark) if will_register else planning_python(spark)
    if python.is_usable:
        return False
    if not will_register and task_python(spark).is_usable:
        # As in notebooks: PYSPARK_DRIVER_PYTHON is Jupyter, and PYSPARK_PYTHON has the package.
        return True
    if python.variable is None and python.command == _DEFAULT and is_environments_own():
        os.environ[PYTHON] = context.pythonExec = sys.executable
        is_local = str(context.master).startswith("local")
        _LOG.log(
            logging.INFO if is_local else logging.WARNING,
            "%s %s: Python workers use %s from now on%s",
            python,
            python.lack,
            sys.executable,
            "" if is_local else f", on executors too; set {PYTHON} before the session starts if they need another path",
        )
        return True
    _LOG.warning("%s", advice(python))
    return False


def advice(python: WorkerPython) -> str:
    """Return what is wrong with a Python that is not usable, and what to do, in one line."""
    if python.variable == DRIVER_PYTHON:
        remedy = f"unset {DRIVER_PYTHON}, and set {PYTHON}={sys.executable}, before the session starts"
    else:
        remedy = f"set {PYTHON}={sys.executable} in the environment before the session starts"
    return (
        f'Spark starts {python} for format("kafkalite"), and it {python.lack}; reads and writes would end with '
        f"DATA_SOURCE_NOT_FOUND or PYTHON_DATA_SOURCE_ERROR: {remedy}"
    )


@functools.lru_cache(maxsize=16)
def _run(path: str, packages: str) -> tuple[tuple[str, ...], str | None]:
    """Return what a Python lacks, and why it does not run, if so. ``packages``: what to add to its PYTHONPATH."""
    python_path = os.pathsep.join(filter(None, (packages, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": python_path}
    try:
        done = subprocess.run(
            [path, "-c", _PROGRAM, *_MODULES],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return (), f"cannot be run: {error}"
    if done.returncode != 0:
        last = (done.stderr.strip() or "it prints no reason").splitlines()[-1]
        return (), f"is no Python that can be used: exit code {done.returncode}: {last}"
    return tuple(done.stdout.split()), None


def _shipped_packages() -> str:
    """Return the directory with the application's ``--py-files``, an empty text where there is none."""
    from pyspark import SparkFiles
    from pyspark.core.context import SparkContext

    if SparkContext._active_spark_context is None:
        return ""
    directory = SparkFiles.getRootDirectory()
    try:
        archives = [each.path for each in os.scandir(directory) if each.name.endswith((".zip", ".egg"))]
    except OSError:
        return ""
    return os.pathsep.join([directory, *sorted(archives)])


def _context(spark: SparkSession) -> Any:
    return spark.sparkContext


def _environment_of_jvm(spark: SparkSession) -> Mapping[str, str]:
    """Return what counts of the environment that the driver's JVM was started with, which never changes."""
    jvm: Any = spark._jvm
    names = (DRIVER_PYTHON, PYTHON, "PATH")
    found = {name: jvm.java.lang.System.getenv(name) for name in names}
    return {name: value for name, value in found.items() if value is not None}
