"""Where the files of client settings are looked for, with Spark's own SparkFiles."""

from pathlib import Path

import pytest
from pyspark import SparkFiles

from spark_kafkalite.security.jaas import parse_jaas
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.workers.connections import reading_config
from spark_kafkalite.spark.workers.shipped_files import located

SECURED = {"security.protocol": "SASL_SSL"}
NAMES = ("ssl.keystore.location", "ssl.truststore.location", "sasl.token.file")


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a worker's shipped files."""
    directory = tmp_path / "shipped"
    directory.mkdir()
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    monkeypatch.setattr(SparkFiles, "_root_directory", str(directory))
    return directory


@pytest.mark.parametrize("name", NAMES)
def test_a_file_at_its_path_comes_before_a_shipped_one(name: str, tmp_path: Path, shipped: Path) -> None:
    (tmp_path / "file").touch()
    (shipped / "file").touch()
    given = {**SECURED, name: str(tmp_path / "file"), "client.id": "c"}
    assert located(given) == given


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_not_there_is_the_shipped_one_of_that_name(name: str, shipped: Path) -> None:
    (shipped / "file").touch()
    for path in ("/nowhere/file", "file"):
        assert located({**SECURED, name: path})[name] == str(shipped / "file")


def test_a_token_endpoint_that_is_a_file_is_looked_for_too(tmp_path: Path, shipped: Path) -> None:
    name = "sasl.oauthbearer.token.endpoint.url"
    (shipped / "my jwt").touch()
    assert located({**SECURED, name: "file:///nowhere/my%20jwt"})[name] == f"file://{shipped}/my%20jwt"
    assert located({**SECURED, name: "https://idp/token"})[name] == "https://idp/token"


def test_a_file_that_is_nowhere_is_told_with_where_it_must_be(shipped: Path) -> None:
    with pytest.raises(SparkConditionError) as refused:
        reading_config({"bootstrap.servers": "h:1", **SECURED, "ssl.truststore.location": "/nowhere/ca.pem"})
    text = str(refused.value).splitlines()[-1]
    assert text.startswith("[KAFKALITE_INVALID_OPTION] kafka.ssl.truststore.location=/nowhere/ca.pem: there is no such")
    assert "none named ca.pem was shipped; it must be at that path on the driver" in text
    assert "spark-submit --files or SparkContext.addFile" in text


def test_outside_of_spark_only_paths_count(tmp_path: Path) -> None:
    with pytest.raises(SparkConditionError):
        located({**SECURED, "ssl.keystore.location": str(tmp_path / "missing")})


@pytest.mark.parametrize(
    ("protocol", "name"),
    [("PLAINTEXT", "ssl.truststore.location"), ("SASL_PLAINTEXT", "ssl.keystore.location"), ("SSL", "sasl.token.file")],
)
def test_a_file_without_effect_need_not_be_there(protocol: str, name: str) -> None:
    given = {"security.protocol": protocol, name: "/nowhere/file"}
    assert located(given) == given


MODULE = "com.sun.security.auth.module.Krb5LoginModule"
KERBEROS = {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}


@pytest.mark.parametrize("name", ["a keytab", 'quo"ted', "back\\slash", "kafka"])
def test_the_keytab_of_a_jaas_line_is_the_shipped_one(name: str, shipped: Path) -> None:
    (shipped / name).touch()
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    line = f'{MODULE} required useKeyTab=true keyTab="/nowhere/{escaped}" principal="kafka@R" serviceName=kafka;'
    found = parse_jaas(located({**KERBEROS, "sasl.jaas.config": line})["sasl.jaas.config"])
    assert found.options == {
        "useKeyTab": "true",
        "keyTab": str(shipped / name),
        "principal": "kafka@R",
        "serviceName": "kafka",
    }


@pytest.mark.parametrize("prefix", ["", "file://", "FILE:"])
def test_a_keytab_at_its_path_needs_not_be_shipped(prefix: str, tmp_path: Path, shipped: Path) -> None:
    keytab = tmp_path / "with space"
    keytab.touch()
    by_setting = {**KERBEROS, "sasl.kerberos.keytab": f"{prefix}{keytab}"}
    assert located(by_setting) == by_setting
    by_jaas = {**KERBEROS, "sasl.jaas.config": f'{MODULE} required useKeyTab=true keyTab="{prefix}{keytab}";'}
    assert located(by_jaas) == by_jaas


def test_what_is_no_keytab_of_a_jaas_line(shipped: Path) -> None:
    for line in (
        f'{MODULE} required /* keyTab="/nowhere/k" */ useTicketCache=true;',
        f'{MODULE} required useTicketCache=true principal="keyTab=x@R";',
        "not a line",
    ):
        given = {**KERBEROS, "sasl.jaas.config": line}
        assert located(given) == given


@pytest.mark.parametrize(
    ("setting", "value", "option"),
    [
        ("sasl.kerberos.keytab", "/nowhere/k", "kafka.sasl.kerberos.keytab=/nowhere/k"),
        ("sasl.jaas.config", f'{MODULE} required keyTab="/nowhere/k";', "its keyTab is /nowhere/k; "),
    ],
)
def test_a_keytab_that_is_nowhere_is_told_with_its_option(setting: str, value: str, option: str, shipped: Path) -> None:
    with pytest.raises(SparkConditionError) as refused:
        located({**KERBEROS, setting: value})
    text = str(refused.value).splitlines()[-1]
    assert option in text and "there is no such keytab on" in text and "spark-submit --files KEYTAB" in text
