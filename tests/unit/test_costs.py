"""The costs of test files: how they order a pool, and what a run says of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.patience import wait_until
from tests.pool.costs import Cost, comparison, longest_first, read_costs, tree_cpu_s, write_costs


def test_the_longest_file_is_first_and_an_unknown_one_counts_as_long() -> None:
    known = {"short": Cost(1, 1), "long": Cost(50, 10), "waits": Cost(1, 40), "again:short": Cost(60, 60)}
    assert longest_first(["new", "short", "waits", "long"], known) == ["long", "waits", "new", "short"]
    assert longest_first(["long", "short"], known, "again:") == ["short", "long"]


def test_costs_are_kept_one_file_a_line(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    assert read_costs(path) == {}
    write_costs({"b": Cost(1.26, 0), "a": Cost(2, 3)}, path)
    assert path.read_text() == '{\n  "a": [2.0, 3.0],\n  "b": [1.3, 0.0]\n}\n'
    assert read_costs(path) == {"a": Cost(2, 3), "b": Cost(1.3, 0)}


def test_a_run_is_compared_by_folder_and_names_what_has_grown() -> None:
    known = {"tests/a/test_x.py": Cost(10, 5), "tests/a/test_y.py": Cost(10, 0), "tests/b/test_z.py": Cost(5, 5)}
    run = {"tests/a/test_x.py": Cost(10, 6), "tests/a/test_y.py": Cost(15, 0), "tests/b/test_z.py": Cost(5, 5)}
    lines = comparison(run, known)
    assert [line.split()[:4] for line in lines[:3]] == [
        ["tests/a", "25", "of", "20"],
        ["tests/b", "5", "of", "5"],
        ["all", "30", "of", "25"],
    ]
    assert lines[3:] == [
        "WARNING: these files need 120% of the CPU that tests/costs.json has",
        "  tests/a/test_y.py: 10.0 -> 15.0 CPU s",
    ]
    assert len(comparison(known, known)) == 3


def test_the_cpu_of_a_process_has_that_of_all_below_it() -> None:
    """Of one that runs, and of one that has ended."""
    before_s = tree_cpu_s(os.getpid())
    spend = "import time\nwhile time.process_time() < 0.3: pass\n"
    subprocess.run([sys.executable, "-c", spend], check=True)
    assert tree_cpu_s(os.getpid()) - before_s >= 0.25
    with subprocess.Popen([sys.executable, "-c", spend + "input()"], stdin=subprocess.PIPE) as child:
        wait_until(lambda: tree_cpu_s(os.getpid()) - before_s >= 0.5, "the CPU time of a running child")
        child.kill()
