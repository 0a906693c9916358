"""What a user gets from ``pip install``: tried in an empty environment outside the checkout."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from tests.packaging.environments import Environment, run

pytestmark = [pytest.mark.timeout(1200)]

JOBS = ["hadoop_load", "mirror", "replay", "stream"]

USE_THE_KERNEL = """
import sys, warnings
warnings.simplefilter("error")
import spark_kafkalite
from spark_kafkalite.records import kernel
batch = kernel.OpenBatch(10_000)
for number in range(3):
    batch.append(1_700_000_000_000 + number, b"key", b"value %d" % number, [("h", b"x")])
data = batch.build(0, None)
header = kernel.read_header(data)
kernel.check_crc(data, 0, header.size_bytes)
builder = kernel.ColumnBuilder(True)
builder.add_batch(data, 0, header)
columns = builder.finish()
print(kernel.IS_NATIVE, columns.count, columns.value_at(2), kernel.__file__)
"""

PLUGIN_TEST = """
from spark_kafkalite.processes.cluster import BrokerProcess


def test_a_broker_serves(kafkalite_broker: BrokerProcess) -> None:
    assert kafkalite_broker.running
    assert kafkalite_broker.bootstrap.startswith("127.0.0.1:")


def test_another_broker_serves_beside_it(kafkalite_broker: BrokerProcess) -> None:
    address = kafkalite_broker.bootstrap
    kafkalite_broker.kill()
    assert not kafkalite_broker.running
    assert kafkalite_broker.restart().bootstrap == address
"""

BROKER_FOR_A_COMMAND = """
import subprocess, sys
from pathlib import Path
from spark_kafkalite.processes.cluster import BrokerProcess
kafkalite = str(Path(sys.executable).with_name("kafkalite"))
with BrokerProcess(Path("data")) as broker:
    def run(*arguments, input=""):
        command = [kafkalite, *arguments, "--bootstrap-server", broker.bootstrap]
        return subprocess.run(command, input=input, text=True, check=True, capture_output=True, timeout=60).stdout
    run("topics", "create", "--topic", "t", "--partitions", "1")
    run("produce", "--topic", "t", input="first\\nsecond\\n")
    print(run("consume", "--topic", "t", "--from-beginning", "--max-messages", "2"))
"""


def test_the_wheel_holds_the_kernel_and_the_types_and_nothing_foreign(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if name.startswith("spark_kafkalite/records/_kernel.") and name.endswith(".so")]
    assert {"spark_kafkalite/py.typed", "spark_kafkalite/records/_kernel.pyi", "pyspark_kafkalite/__init__.py"} <= set(
        names
    )
    assert {name.split("/")[0].split("-")[0] for name in names} == {"spark_kafkalite", "pyspark_kafkalite"}
    assert not [name for name in names if name.endswith((".c", ".pyx"))]
    assert "-py3-none-any" not in wheel.name


def test_every_module_of_the_checkout_is_in_the_wheel(wheel: Path, source_copy: Path) -> None:
    modules = {
        str(path.relative_to(source_copy))
        for package in ("spark_kafkalite", "pyspark_kafkalite")
        for path in (source_copy / package).rglob("*.py")
    }
    assert modules - set(zipfile.ZipFile(wheel).namelist()) == set()


def test_the_native_kernel_works(installed: Environment) -> None:
    native, count, value, path = installed.run_python(USE_THE_KERNEL).split(maxsplit=3)[0:4]
    assert native == "True"
    assert count == "3"
    assert value.startswith("b'value")
    assert str(installed.path) in path


def test_the_version_is_the_same_everywhere(installed: Environment, wheel: Path) -> None:
    program = "import importlib.metadata as m, spark_kafkalite as k; print(m.version('spark-kafkalite'), k.__version__)"
    in_metadata, in_code = installed.run_python(program).split()
    assert in_metadata == in_code == wheel.name.split("-")[1]


def test_the_public_names_are_there(installed: Environment) -> None:
    program = "import spark_kafkalite as k; print(all(getattr(k, name) for name in k.__all__), *k.__all__)"
    are_there, *names = installed.run_python(program).split()
    assert are_there == "True"
    assert {"Admin", "Consumer", "ConsumerConnector", "Producer"} <= set(names)


def test_the_command_line_talks_to_a_broker(installed: Environment) -> None:
    assert installed.run_script("kafkalite", "--help").lstrip().startswith("Usage: kafkalite")
    assert installed.run_python(BROKER_FOR_A_COMMAND).split() == ["first", "second"]


def test_the_jobs_are_files_that_spark_submit_can_run(installed: Environment) -> None:
    path = Path(installed.run_script("kafkalite", "jobs", "path", "hadoop_load").strip())
    assert path.is_relative_to(installed.path)
    program = "from spark_kafkalite.cli.jobs import script_path; print(*map(script_path, %r), sep='\\n')"
    paths = [Path(line) for line in installed.run_python(program % (JOBS,)).splitlines()]
    assert path in paths
    assert [each.stem for each in paths] == JOBS
    assert all(each.is_file() and each.parent == path.parent for each in paths)


def test_spark_finds_the_source_by_listing_the_path(installed: Environment) -> None:
    program = (
        "import pkgutil; print([m.name for m in pkgutil.iter_modules() if m.name.startswith('pyspark_kafkalite')])"
    )
    assert installed.run_python(program).strip() == "['pyspark_kafkalite']"
    assert "DefaultSource" in installed.run_python("import pyspark_kafkalite as p; print(dir(p))")


def test_the_fixture_comes_with_the_package(installed: Environment, tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(PLUGIN_TEST)
    said = run(
        installed.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", tmp_path,
        directory=tmp_path, environment={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert "2 passed" in said
