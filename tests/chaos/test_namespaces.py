"""Rows of the matrix where every broker, the registry and the clients have hosts of their own: what is cut off is
really cut off, and nobody is told.

A program of its own plays them, since whoever joins a host does so with all its threads. A run of the tests has one
row, ``KAFKALITE_SOAK=1`` those of every run and those that need hosts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite.testing import apache_kafka, jars
from tests.chaos.rows import MORE_ROWS, ROWS
from tests.conftest import fetch_or_skip
from tests.network.hosts import namespaces_of, problem
from tests.paths import PROJECT

_ON_HOSTS = [row.label for row in (*ROWS, *MORE_ROWS) if row.needs_hosts or row in ROWS]
_CHOSEN = _ON_HOSTS if os.environ.get("KAFKALITE_SOAK") else ["13"]
_TIMEOUT_S = 60.0
# A row takes one to two minutes; all else some seconds, unless what the rows need has to be made first.
_ALL_ROWS_S = 180 + 150 * len(_CHOSEN)

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.kafka, pytest.mark.timeout(_ALL_ROWS_S + 120)]


@pytest.fixture(autouse=True)
def _hosts() -> Iterator[None]:
    for reason in (problem(), apache_kafka.available()):
        if reason is not None:
            pytest.skip(reason)
    fetch_or_skip(jars.APACHE_KAFKA)
    yield


def play(directory: Path, *rows: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.chaos.play", "--namespaces", "--directory", str(directory)]
    return subprocess.Popen([*command, *rows], cwd=PROJECT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_rows(tmp_path: Path) -> None:
    with play(tmp_path, *_CHOSEN) as player:
        try:
            printed, _ = player.communicate(timeout=_ALL_ROWS_S)
        finally:
            player.kill()
    print(printed)
    assert player.returncode == 0 and printed.count("nothing is wrong") == len(_CHOSEN), printed
    assert not namespaces_of(player.pid)


def test_a_player_that_is_interrupted_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither a namespace nor a process, whatever it was about to do."""
    with play(tmp_path, "1") as player:
        try:
            deadline = time.monotonic() + _TIMEOUT_S
            while not (made := namespaces_of(player.pid)) and player.poll() is None:
                assert time.monotonic() < deadline, "it makes no host"
                time.sleep(0.05)
            player.send_signal(signal.SIGINT)
            printed, _ = player.communicate(timeout=_TIMEOUT_S)
        finally:
            player.kill()
    assert made and player.returncode != 0 and "KeyboardInterrupt" in printed, printed
    assert not namespaces_of(player.pid)
