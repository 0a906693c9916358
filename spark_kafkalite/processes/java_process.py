"""Java programs: where Java is, and how a command line of it looks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Final

REQUIRED_MAJOR: Final = 17

# What a short-lived JVM wants: one compiler, one collector thread. Cuts a tool's CPU time by half.
SHORT_LIVED_OPTIONS: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xshare:auto")

_more_options: Callable[[str], Sequence[str]] | None = None


class JavaToolFailed(Exception):
    """A Java program ended with another exit code than 0; the message ends with its last output."""


def java_command() -> str | None:
    """Return the path of the ``java`` program (``$JAVA_HOME`` first, then the PATH), or None."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").is_file():
        return str(Path(home) / "bin" / "java")
    return shutil.which("java")


@cache
def java_major(java: str) -> int | None:
    """Return the major version that this ``java`` reports, or None when it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)', done.stderr + done.stdout)
    return int(found.group(1)) if done.returncode == 0 and found else None


def java_problem() -> str | None:
    """Return why Java programs cannot run here, or None."""
    java = java_command()
    if java is None:
        return f"Java is not installed (no java on the PATH, JAVA_HOME is not set); Java {REQUIRED_MAJOR} is needed"
    major = java_major(java)
    if major is None:
        return f"{java} does not run; Java {REQUIRED_MAJOR} is needed"
    if major < REQUIRED_MAJOR:
        return f"{java} is Java {major}; Java {REQUIRED_MAJOR} or newer is needed"
    return None


def java_arguments(class_path: str, main_class: str, *arguments: str, jvm_options: Sequence[str] = ()) -> list[str]:
    """Return the command line that runs ``main_class``. Raises JavaToolFailed when there is no Java."""
    java = java_command()
    if java is None:
        raise JavaToolFailed(java_problem())
    more = _more_options(class_path) if _more_options is not None else ()
    return [java, *more, *jvm_options, "-Djava.net.preferIPv4Stack=true", "-cp", class_path, main_class, *arguments]


def set_more_options(more_options: Callable[[str], Sequence[str]] | None) -> None:
    """Give every Java command the options that this function returns for its class path, before its own; None ends
    that."""
    global _more_options
    _more_options = more_options
