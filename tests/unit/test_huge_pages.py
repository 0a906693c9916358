"""What lives in huge pages, in processes of their own: the allocator of this one is left as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.huge_pages import use_huge_pages
from tests.patience import PATIENCE_S

_MANY = 500_000

_HUGE_MB = """
import gc, mmap, sys

def huge_mb():
    with open("/proc/self/smaps_rollup") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages")) // 1024
"""

_PROBE = """
area = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
area.madvise(mmap.MADV_HUGEPAGE)
area.write(bytes(8 << 20))
print(huge_mb())
"""

_PROGRAM = f"""
from spark_kafkalite.huge_pages import use_huge_pages

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


# Arenas of which every other one is given back, and then asked for again.
_HALVES = """
from spark_kafkalite.huge_pages import use_huge_pages

use_huge_pages()
held = [object() for _ in range(20 << 20 >> 4)]
arenas = {id(each) >> 20 for each in held}
inner = [each for each in held if (id(each) >> 20) & 1]
full_mb = huge_mb()
del held
gc.collect()
half_mb = huge_mb()
outer = [object() for _ in range(len(inner) * 8 // 10)]
print(len(arenas), full_mb, half_mb, huge_mb())
"""


def run(program: str, **environment: str) -> list[int]:
    command = [sys.executable, "-c", _HUGE_MB + program]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


@pytest.fixture(scope="module")
def gives_huge_pages() -> None:
    pytest.importorskip("spark_kafkalite._huge_pages")
    if run(_PROBE)[0] < 4:
        pytest.skip("this system gives no huge pages to who asks for them")


@pytest.mark.usefixtures("gives_huge_pages")
def test_objects_come_to_lie_in_huge_pages_and_go() -> None:
    before_mb, with_mb, after_mb, again_mb = run(_PROGRAM)
    # A list of one and its number take more than 80 bytes.
    least_mb = _MANY * 80 >> 20
    assert with_mb - before_mb >= least_mb
    assert after_mb <= before_mb + least_mb // 4
    assert again_mb - after_mb >= least_mb


@pytest.mark.usefixtures("gives_huge_pages")
def test_half_of_a_page_stays_with_the_other_half_and_is_used_again() -> None:
    """Given back alone it would end the page, and the system would have nothing of it."""
    arenas, full_mb, half_mb, again_mb = run(_HALVES)
    assert arenas >= 20 and full_mb >= 20
    assert half_mb >= full_mb - 4
    assert abs(again_mb - half_mb) <= 4


@pytest.mark.parametrize(
    ("prelude", "environment"),
    [
        pytest.param("sys.modules['spark_kafkalite._huge_pages'] = None", {}, id="without the extension"),
        pytest.param("", {"KAFKALITE_HUGE_PAGES": "0"}, id="not wanted"),
    ],
)
def test_otherwise_all_is_as_it_was(prelude: str, environment: dict[str, str]) -> None:
    before_mb, with_mb, *_ = run(f"{prelude}\n{_PROGRAM}", **environment)
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[always]" not in setting.read_text(encoding="ascii"):
        assert with_mb == before_mb


@pytest.mark.parametrize("value", ["off", "false", "2", "00"])
def test_what_is_neither_yes_nor_no_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKALITE_HUGE_PAGES", value)
    with pytest.raises(ConfigError, match=rf"KAFKALITE_HUGE_PAGES='{value}' in the environment: 0 .* or 1"):
        use_huge_pages()


def test_a_broker_begins_with_huge_pages() -> None:
    """Before its modules are imported: what they define is what every request needs."""
    program = """
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
