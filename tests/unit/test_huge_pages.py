"""What lives in huge pages, in processes of their own: the allocator of this one is left as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MANY = 500_000

_PROGRAM = f"""
import ctypes, gc, sys
from spark_kafkalite.huge_pages import use_huge_pages

def huge_mb():
    with open("/proc/self/smaps_rollup") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages")) // 1024

def made():
    return [[number] for number in range({_MANY})]

held = made()
for _ in range(2):
    use_huge_pages()
before_mb = huge_mb()
more = made()
with_mb = huge_mb()
assert sum(each[0] for each in held) == sum(each[0] for each in more) == sum(range({_MANY}))
# Arenas of both kinds are given back.
del held, more
gc.collect()
after_mb = huge_mb()
again = made()
assert sum(each[0] for each in again) == sum(range({_MANY}))
print(before_mb, with_mb, after_mb, huge_mb())
"""


def run(program: str, *options: str) -> list[int]:
    done = subprocess.run([sys.executable, *options, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


def test_objects_come_to_lie_in_huge_pages_and_go() -> None:
    pytest.importorskip("spark_kafkalite._huge_pages")
    if not _SETTING.exists() or "[never]" in _SETTING.read_text(encoding="ascii"):
        pytest.skip("this system gives no huge pages")
    before_mb, with_mb, after_mb, again_mb = run(_PROGRAM)
    # A list of one and its number take more than 80 bytes.
    least_mb = _MANY * 80 >> 20
    assert with_mb - before_mb >= least_mb
    assert after_mb <= before_mb + least_mb // 4
    assert again_mb - after_mb >= least_mb


def test_without_the_extension_all_is_as_it_was() -> None:
    missing = "import sys; sys.modules['spark_kafkalite._huge_pages'] = None\n"
    before_mb, with_mb, *_ = run(missing + _PROGRAM)
    setting = _SETTING.read_text(encoding="ascii") if _SETTING.exists() else "[never]"
    if "[always]" not in setting:
        assert with_mb == before_mb


def test_a_broker_begins_with_huge_pages() -> None:
    """Before its modules are imported: what they define is what every request needs."""
    program = """
import sys
from spark_kafkalite.cli import broker
seen = []
class Watching:
    def find_spec(self, name, path, target=None):
        if name.startswith("spark_kafkalite.broker"):
            seen.append("spark_kafkalite._huge_pages" in sys.modules)
sys.meta_path.insert(0, Watching())
try:
    broker.command(["--override", "broker.id=nonsense"], standalone_mode=False)
except Exception:
    pass
print(int(bool(seen) and all(seen)))
"""
    pytest.importorskip("spark_kafkalite._huge_pages")
    assert run(program) == [1]
