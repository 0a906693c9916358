"""Which paths are certainly local, and what configures a JVM that only spark-submit can start."""

from pathlib import Path

import pytest

from spark_kafkalite.jobs.program.destination_files import is_local
from spark_kafkalite.jobs.program.hadoop_client import needs_spark_submit, spark_defaults


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """An environment whose Spark has an empty directory of configuration."""
    return {"SPARK_CONF_DIR": str(tmp_path)}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/data/events", True),
        ("data/events", True),
        ("file:/data/events", True),
        ("file:///data/events", True),
        ("hdfs://host/data", False),
        ("hdfs:///data", False),
        ("s3a://bucket/data", False),
    ],
)
def test_schemes(path: str, expected: bool, variables: dict[str, str]) -> None:
    assert is_local(path, variables) is expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HADOOP_CONF_DIR", "/etc/hadoop"),
        ("YARN_CONF_DIR", "/etc/hadoop"),
        ("SPARK_DIST_CLASSPATH", "/etc/hadoop:/opt/hadoop/*"),
        ("PYSPARK_SUBMIT_ARGS", "--properties-file f pyspark-shell"),
        ("PYSPARK_GATEWAY_PORT", "1234"),
    ],
)
def test_a_variable_may_name_another_file_system(name: str, value: str, variables: dict[str, str]) -> None:
    assert not is_local("/data", {**variables, name: value})
    assert is_local("file:/data", {**variables, name: value})
    assert is_local("/data", {**variables, name: ""}) or name == "PYSPARK_GATEWAY_PORT"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("core-site.xml", "", False),
        ("spark-env.sh", "", False),
        ("spark-defaults.conf", "spark.hadoop.fs.defaultFS hdfs://host", False),
        ("spark-defaults.conf", "spark.hadoop.fs.default.name=hdfs://host", False),
        ("spark-defaults.conf", "spark.driver.extraClassPath /etc/hadoop", False),
        ("spark-defaults.conf", "a name without a value", True),
        ("spark-defaults.conf", "nothing", False),
        ("spark-defaults.conf", "# spark.hadoop.fs.defaultFS hdfs://host\nspark.executor.memory 4g", True),
        ("hive-site.xml", "", True),
    ],
)
def test_a_file_may_name_another_file_system(
    name: str, text: str, expected: bool, variables: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    assert is_local("/data", variables) is expected


def test_configuration_is_found_under_the_home_of_spark(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.hadoop.dfs.replication 1\n")
    assert spark_defaults({"SPARK_HOME": str(tmp_path)}) == {"spark.hadoop.dfs.replication": "1"}
    assert spark_defaults({"SPARK_CONF_DIR": str(tmp_path / "none"), "SPARK_HOME": str(tmp_path)}) == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("spark.jars.packages org.apache.hadoop:hadoop-aws:3.5.0", True),
        ("spark.kerberos.keytab /etc/k", True),
        ("spark.driver.extraJavaOptions -Djava.security.krb5.conf=/etc/k", True),
        ("spark.hadoop.fs.defaultFS hdfs://host\nspark.driver.memory 4g", False),
    ],
)
def test_what_only_spark_submit_applies(text: str, expected: bool, variables: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(text)
    assert needs_spark_submit(variables) is expected
    assert needs_spark_submit({**variables, "PYSPARK_SUBMIT_ARGS": "--jars a.jar pyspark-shell"})
