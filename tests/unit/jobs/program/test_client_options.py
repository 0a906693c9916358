"""The client settings of a job, from its command line and its file."""

from pathlib import Path

import click
import pytest

from spark_kafkalite.jobs.program.client_options import client_settings, open_admin, sink_options, source_options
from spark_kafkalite.jobs.program.session import JobFailed

CANARY = "canary-of-a-secret"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "client.properties"
    path.touch(0o600)
    return path


def test_a_client_setting_goes_to_the_clients_that_read_it(caplog: pytest.LogCaptureFixture) -> None:
    given = ("fetch.max.bytes=1000000", " linger.ms = 7", "request.timeout.ms=9000")
    settings = client_settings(None, given, writes=True)
    cluster = {"kafka.bootstrap.servers": "h:1"}
    common = {**cluster, "kafka.request.timeout.ms": "9000"}
    assert source_options("h:1", settings) == {**common, "kafka.fetch.max.bytes": "1000000"}
    assert sink_options("h:1", settings) == {**common, "kafka.linger.ms": "7"}
    with open_admin("h:1", settings):
        assert not caplog.records  # a warning of settings that an admin client does not know


@pytest.mark.parametrize(
    ("pair", "writes", "said"),
    [
        ("fetch.max.byte=3", False, "'fetch.max.byte' is no consumer setting; did you mean 'fetch.max.bytes'?"),
        ("linger.mss=3", True, "'linger.mss' is no consumer or producer setting; did you mean 'linger.ms'?"),
        ("batch.size=3", False, "'batch.size' is no consumer setting"),
        ("fetch.max.bytes", False, "'fetch.max.bytes' is not of the form NAME=VALUE"),
    ],
)
def test_an_option_that_no_client_of_the_job_reads_is_refused(pair: str, writes: bool, said: str) -> None:
    with pytest.raises(click.BadParameter) as refused:
        client_settings(None, [pair], writes=writes)
    assert refused.value.message.startswith(said)


def test_a_file_comes_first_and_options_go_over_it(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text("security.protocol=SASL_SSL\nsasl.username=u\nlinger.ms=3\nrequest.timeout.ms=1\n")
    settings = client_settings(str(config), ["request.timeout.ms=2"])
    assert settings["request.timeout.ms"] == "2"
    assert source_options("h:1", settings) == {
        "kafka.bootstrap.servers": "h:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.username": "u",
        "kafka.request.timeout.ms": "2",
    }
    assert sink_options("h:1", settings)["kafka.linger.ms"] == "3"
    assert capsys.readouterr().err == ""


def test_a_file_for_other_tools_serves_too(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(
        "bootstrap.servers=elsewhere:1\ngroup.id=g\nauto.offset.reset=earliest\nenable.auto.commit=false\n"
        "key.deserializer=x\nsasl.kerberos.kinit.cmd=kinit\nsecurity.protocl=SSL\n"
    )
    assert source_options("h:1", client_settings(str(config), [])) == {"kafka.bootstrap.servers": "h:1"}
    warned = capsys.readouterr().err.splitlines()
    assert warned == [
        f"WARNING: --command-config {config}: sasl.kerberos.kinit.cmd has no effect: it is for the JVM",
        f"WARNING: --command-config {config}: security.protocl has no effect: no client knows it; did you mean "
        "'security.protocol'?",
    ]


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(JobFailed) as failed:
        client_settings(str(tmp_path / "no.properties"), [])
    assert failed.value.message.startswith("--command-config: cannot read the settings file")
    assert "\n" not in failed.value.message


def test_secrets_that_others_see_are_warned_of_and_not_shown(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(f"sasl.password={CANARY}\n")
    config.chmod(0o644)
    assert client_settings(str(config), [f"sasl.jaas.config={CANARY}"])["sasl.jaas.config"] == CANARY
    said = capsys.readouterr().err
    assert f"WARNING: {config} holds secrets, and every user of this host can read it" in said
    assert "WARNING: sasl.jaas.config is on the command line" in said
    assert CANARY not in said
