"""Rows of the matrix where every broker, the registry and the clients have hosts of their own: what is cut off is
really cut off, and no process is notified.

A program of its own plays them, since a process joins a host with all its threads. The rows are for the soak: what is
left makes hosts with a cluster on them, and ends.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.rows import MORE_ROWS, ROWS
from tests.conftest import fetch_or_skip
from tests.lab import apache_kafka, jars
from tests.network.hosts import namespaces_of, problem
from tests.paths import PROJECT
from tests.patience import PATIENCE_S, wait_until

_ON_HOSTS = ("1", "3", "8", "11", "19", "31", "33", "36", "37c")
_CHOSEN = [row.label for row in (*ROWS, *MORE_ROWS) if row.needs_hosts or row.label in _ON_HOSTS]
# A row takes one to two minutes; all else some seconds, unless what the rows need has to be made first.
_ALL_ROWS_S = 180 + 150 * len(_CHOSEN)

pytestmark = [pytest.mark.root, pytest.mark.kafka, pytest.mark.timeout(_ALL_ROWS_S + 120)]


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


@pytest.mark.soak
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
            made = wait_until(lambda: namespaces_of(player.pid) or player.poll() is not None, "a host")
            player.send_signal(signal.SIGINT)
            printed, _ = player.communicate(timeout=PATIENCE_S)
        finally:
            player.kill()
    assert made is not True and player.returncode != 0 and "KeyboardInterrupt" in printed, printed
    assert not namespaces_of(player.pid)
