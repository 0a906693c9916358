"""What commands load. Imports are most of what a short command costs, and they come back unnoticed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from spark_kafkalite import Admin
from tests.patience import PATIENCE_S

# Modules, and packages with all that they hold, that have nothing to do with a list of topics.
NOT_FOR_A_LIST = (
    "asyncio",
    "crc32c",
    "cramjam",
    "encodings.idna",
    "importlib.metadata",
    "json",
    "kazoo",
    "pathlib",
    "pyarrow",
    "rich",
    "ssl",
    "spark_kafkalite.broker",
    "spark_kafkalite.cli.configs",
    "spark_kafkalite.cli.topics.changes",
    "spark_kafkalite.client.admin.admin",
    "spark_kafkalite.client.config",
    "spark_kafkalite.client.consume",
    "spark_kafkalite.client.group",
    "spark_kafkalite.client.produce",
    "spark_kafkalite.coordinator",
    "spark_kafkalite.log",
    "spark_kafkalite.records",
    "spark_kafkalite.registry",
    "spark_kafkalite.wire.packed",
)
# It runs the command of its arguments as `kafkalite` does, and then prints what that has loaded. What an environment
# loads at every start is not the command's.
PROGRAM = """
import sys
before = set(sys.modules)
from spark_kafkalite.cli.main import run
status = run(sys.argv[1:])
print("loaded", *sorted(set(sys.modules) - before))
sys.exit(status)
"""


def loaded_by(*arguments: str, code: int = 0) -> set[str]:
    """Return the modules that a command has loaded when it ends, with this exit code."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == code
    word, *modules = done.stdout.splitlines()[-1].split()
    assert word == "loaded"
    return set(modules)


def test_a_list_of_topics_loads_only_what_it_needs(bootstrap: str) -> None:
    loaded = loaded_by("topics", "list", "--bootstrap-server", bootstrap)
    assert "spark_kafkalite.client.admin.cluster" in loaded
    assert [
        name for name in sorted(loaded) if any(name == each or name.startswith(f"{each}.") for each in NOT_FOR_A_LIST)
    ] == []


def test_the_list_of_commands_loads_none_of_them() -> None:
    ours = {name for name in loaded_by("--help") if name.startswith("spark_kafkalite.")}
    assert ours == {
        "spark_kafkalite.cli",
        "spark_kafkalite.cli.main",
        "spark_kafkalite.errors",
        "spark_kafkalite.printable",
        "spark_kafkalite.version",
    }


def test_a_sensor_loads_neither_spark_nor_arrow(bootstrap: str, tmp_path: Path) -> None:
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topic("sensed", 1)
    given = ("--topic", "sensed", "--destination", f"file://{tmp_path}", "--bootstrap-server", bootstrap)
    loaded = loaded_by("jobs", "run", "hadoop_load", "--sensor", *given, code=7)
    assert "spark_kafkalite.jobs.load.sensor" in loaded
    assert loaded & {"pyspark", "py4j", "pyarrow", "pandas"} == set()


def test_top_for_scripts_draws_nothing(bootstrap: str) -> None:
    loaded = loaded_by("top", "--once", "--json", "--interval", "0.2", "--bootstrap-server", bootstrap)
    packages = {name.partition(".")[0] for name in loaded}
    assert not packages & {"rich", "pyarrow", "kazoo"}
    assert not [name for name in loaded if name.startswith("spark_kafkalite.broker")]
