"""Install each wheel of dist/ that runs here as a user would, and use it: produce, consume, read with Spark.

    python scripts/check_wheels.py PYTHON ...
    python scripts/check_wheels.py --wheels DIRECTORY PYTHON ...

Each PYTHON is the interpreter of one wheel. Wheels of other machines are named and left out. The environment is new.
pip installs the wheel and PySpark into it, in the versions of requirements.txt. No C compiler is on the PATH, so that
what would have to be compiled fails. Then a program outside the checkout uses the wheel. A warning about the native
kernel is an error there.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_COMPILER = re.compile(r"(?:.*-)?(?:cc|c\+\+|c89|c99|gcc|g\+\+|clang|clang\+\+|tcc|zig)(?:-[\d.]+)?")

_PROGRAM = """
import sys
import warnings
from pathlib import Path

warnings.simplefilter("error")
import spark_kafkalite
from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.records import kernel
from spark_kafkalite.processes.cluster import BrokerProcess

assert kernel.IS_NATIVE, "the native kernel is not used"
assert Path(spark_kafkalite.__file__).is_relative_to(sys.prefix), spark_kafkalite.__file__
values = [b"first", b"second", b"third"]
with BrokerProcess(Path("data")) as broker:
    servers = {"bootstrap.servers": broker.bootstrap}
    with Admin(servers) as admin:
        admin.create_topic("checked", 1)
    with Producer(servers) as producer:
        for value in values:
            producer.send("checked", value=value)
    with Consumer(servers, auto_offset_reset="earliest", group_id="checked") as consumer:
        consumer.subscribe(["checked"])
        consumed = []
        while len(consumed) < len(values):
            consumed += [record.value for record in consumer.poll(1000)]
    assert consumed == values, consumed
    warnings.resetwarnings()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    frame = spark.read.format("kafkalite").option("kafka.bootstrap.servers", broker.bootstrap)
    rows = frame.option("subscribe", "checked").load().orderBy("offset").collect()
    assert [bytes(row.value) for row in rows] == values, rows
    # A session that has stopped cannot say its version.
    version, gateway = spark.version, spark.sparkContext._gateway
    spark.stop()
    # The directory is removed next; Java clears up before it ends.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
print(f"kernel native, {len(consumed)} records consumed, {len(rows)} rows read by Spark", version)
"""


def path_without_compilers(directory: Path) -> str:
    """Fill a directory with links to all programs of the PATH that compile nothing, and return it."""
    for source in os.environ["PATH"].split(os.pathsep):
        for program in Path(source).iterdir() if Path(source).is_dir() else ():
            link = directory / program.name
            if not _COMPILER.fullmatch(program.name) and not link.is_symlink():
                link.symlink_to(program)
    return str(directory)


def tag_of(python: str) -> str:
    """Return the tag that the wheels of an interpreter have, such as ``cp311``."""
    program = "import sys; print('cp%d%d' % sys.version_info[:2])"
    return subprocess.run([python, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def check(wheel: Path, python: str, requirements: Path) -> None:
    """Install the wheel into a new environment and run the program. Raises CalledProcessError where that fails."""
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        programs = directory / "programs"
        programs.mkdir()
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "PYSPARK", "SPARK", "VIRTUAL"))
        } | {"PATH": path_without_compilers(programs), "SPARK_LOCAL_IP": "127.0.0.1"}
        subprocess.run([python, "-m", "venv", directory / "environment"], env=environment, check=True)
        own = directory / "environment" / "bin" / "python"
        # Source is allowed: pyspark is published as nothing else, and compiles nothing.
        pip = [own, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        subprocess.run(
            [*pip, "--constraint", requirements, wheel, "pyspark"], cwd=directory, env=environment, check=True
        )
        environment["PYSPARK_PYTHON"] = str(own)
        subprocess.run([own, "-c", _PROGRAM], cwd=directory, env=environment, check=True, stderr=subprocess.STDOUT)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="+", metavar="PYTHON")
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist")
    parser.add_argument("--requirements", type=Path, default=ROOT / "requirements.txt")
    options = parser.parse_args(arguments)
    python_of = {tag_of(python): python for python in options.pythons}
    wheels = sorted(options.wheels.glob("*.whl"))
    if not wheels:
        print(f"no wheels in {options.wheels}: run make wheel", file=sys.stderr)
        return 1
    failed = []
    for wheel in wheels:
        tag = wheel.name.split("-")[2]
        if not wheel.stem.endswith(platform.machine()) or tag not in python_of:
            print(f"{wheel.name}: not run, its interpreter or its machine is not here", flush=True)
            continue
        print(f"{wheel.name}:", flush=True)
        try:
            check(wheel, python_of[tag], options.requirements.resolve())
        except subprocess.CalledProcessError as error:
            failed.append(wheel.name)
            print(f"FAILED: {error}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
