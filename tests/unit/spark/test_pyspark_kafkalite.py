"""The package that Spark discovers must never raise: it would break every other Python source."""

import socket
import subprocess
import sys

import pytest

from tests.patience import PATIENCE_S

BREAK = {
    "our package is broken": "sys.modules['spark_kafkalite.spark.source'] = None",
    "pyarrow is missing": "sys.modules['pyarrow'] = None",
    "pyspark is missing": "sys.modules['pyspark'] = None",
    "pyspark is too old": "import types; sys.modules['pyspark.sql.datasource'] = types.ModuleType('x')",
}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("what", BREAK)
def test_importing_never_raises(what):
    assert run(f"import sys; {BREAK[what]}; import pyspark_kafkalite; print('imported')") == "imported"


def test_the_source_is_found():
    assert run("import pyspark_kafkalite as p; print(p.DefaultSource.name(), p.DefaultSource.__module__)") == (
        "kafkalite spark_kafkalite.spark.source"
    )


def test_a_broken_installation_says_so_when_it_is_used():
    said = run(
        f"import sys; {BREAK['our package is broken']}; import pyspark_kafkalite as p\n"
        "try: p.DefaultSource({}).schema()\n"
        "except RuntimeError as error: print(str(error).splitlines()[-1])"
    )
    assert said.startswith("[KAFKALITE_NOT_IMPORTABLE] spark-kafkalite is installed but cannot be imported")


def test_missing_modules_are_named_in_one_line_that_says_where():
    said = run(
        "import sys; sys.modules['crc32c'] = sys.modules['pyarrow'] = None; import pyspark_kafkalite as p\n"
        "try: p.DefaultSource({}).schema()\n"
        "except RuntimeError as error: print(str(error).splitlines()[-1])"
    )
    assert said.startswith(f"[KAFKALITE_MODULES_MISSING] {sys.executable} (Python 3.")
    assert f" on host {socket.gethostname()} has no crc32c, no pyarrow: run pip install ." in said


def test_a_task_names_what_its_python_lacks():
    # What a worker does that is sent a reader whose modules it cannot import.
    said = run(
        "import sys; sys.modules['cramjam'] = None\n"
        "try: import spark_kafkalite.spark.reading.batch_reader\n"
        "except ImportError as error: print(error)"
    )
    assert said.startswith("[KAFKALITE_MODULES_MISSING] ") and " has no cramjam: " in said


def test_importing_the_package_does_not_import_pyspark():
    assert run("import sys, spark_kafkalite.spark; print('pyspark' in sys.modules)") == "False"


def test_what_only_plans_does_not_import_what_reads_and_writes():
    # Spark starts a Python process for every streaming query; each module here is a part of the wait for it.
    imported = run(
        "import sys, pyspark_kafkalite\n"
        "from spark_kafkalite.spark.options.options import reader_options\n"
        "from spark_kafkalite.spark.reading.read_schema import projected_schema, spark_schema\n"
        "from spark_kafkalite.spark.reading.stream_reader import KafkaliteStreamReader\n"
        "options = reader_options({'kafka.bootstrap.servers': 'localhost:1', 'subscribe': 't'})\n"
        "reader = KafkaliteStreamReader(options, projected_schema(spark_schema(False)))\n"
        "assert reader._registry is None\n"
        "print(*sys.modules)"
    ).split()
    heavy = {
        "difflib",
        "importlib.metadata",
        "pyarrow.compute",
        "spark_kafkalite.client.consume.range_fetcher",
        "spark_kafkalite.client.produce.producer",
        "spark_kafkalite.records.kernel",
        "spark_kafkalite.security.sasl",
        "spark_kafkalite.spark.checkpoints.checkpoint_commits",
        "spark_kafkalite.spark.reading.partition_reader",
        "spark_kafkalite.spark.sink.writer",
    }
    assert "spark_kafkalite.spark.reading.stream_reader" in imported
    assert not heavy & set(imported)
