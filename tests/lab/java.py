"""Runs a Java program to its end."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS, JavaToolFailed, java_arguments


def run_java(
    class_path: str,
    main_class: str,
    *arguments: str,
    input: str | None = None,
    timeout_s: float = 120,
    check: bool = True,
    jvm_options: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run ``main_class`` to its end and return its text output.

    ``input`` is its standard input (empty when None). With ``check``, an exit code other than 0 raises JavaToolFailed.
    """
    command = java_arguments(class_path, main_class, *arguments, jvm_options=(*SHORT_LIVED_OPTIONS, *jvm_options))
    try:
        done = subprocess.run(
            command, input=input or "", capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as expired:
        partial = "".join(
            part.decode(errors="replace") if isinstance(part, bytes) else part or ""
            for part in (expired.stdout, expired.stderr)
        )
        raise JavaToolFailed(
            f"{main_class} {' '.join(arguments)}: not done after {timeout_s} s\n{_last_lines(partial)}"
        ) from None
    if check and done.returncode != 0:
        raise JavaToolFailed(
            f"{main_class} {' '.join(arguments)}: exit code {done.returncode}\n{_last_lines(done.stdout + done.stderr)}"
        )
    return done


def _last_lines(text: str, lines: int = 30) -> str:
    return "\n".join(text.splitlines()[-lines:])
