"""Files of --command-config: variables as Kafka's configuration providers have them, and what is warned about."""

from __future__ import annotations

import pytest

from spark_kafkalite.client.command_config import read_command_config, warn_of_arguments
from spark_kafkalite.errors import ConfigError
from tests import canary


@pytest.fixture
def warnings():
    return []


@pytest.fixture
def config(tmp_path, warnings):
    """Write a file, and read it with an environment."""

    def read(text: str, mode: int = 0o600, **environment: str) -> dict[str, str]:
        path = tmp_path / "client.properties"
        path.write_text(text.replace("DIR", str(tmp_path)))
        path.chmod(mode)
        return read_command_config(str(path), warnings.append, environment)

    return read


def test_settings_without_variables(config, warnings):
    assert config("security.protocol=SSL\nclient.id=a${b}c\n") == {"security.protocol": "SSL", "client.id": "a${b}c"}
    assert warnings == []


def test_variables_of_the_environment(config, warnings):
    text = (
        'sasl.password=${env:PW}\nsasl.jaas.config=x.M required username="u" password="${env:PW}";\n'
        "client.id=${env:A}-${env:B}"
    )
    assert config(text, 0o644, PW="p/=\\", A="a", B="${env:A}") == {
        "sasl.password": "p/=\\",
        "sasl.jaas.config": 'x.M required username="u" password="p/=\\";',
        "client.id": "a-${env:A}",  # once, as Kafka does: what was put in is not looked at
    }
    assert warnings == []


def test_variables_of_files(config, tmp_path, warnings):
    secrets = tmp_path / "secrets.properties"
    secrets.write_text("sasl.pw = a\\\\b\nother:x\n")
    secrets.chmod(0o600)
    (tmp_path / "pw").write_text("from dir\n")
    text = "sasl.password=${file:DIR/secrets.properties:sasl.pw}\nssl.key.password=<${dir:DIR:pw}>"
    assert config(text) == {"sasl.password": "a\\b", "ssl.key.password": "<from dir>"}
    assert warnings == []
    secrets.chmod(0o644)
    config(text)
    assert warnings == [f"{secrets} holds secrets, and every user of this host can read it; chmod 600 {secrets}"]


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("${env:NO_SUCH}", "a.b=${env:NO_SUCH}: the environment variable NO_SUCH is not set"),
        ("${env:x:PW}", "give it as ${env:NAME}"),
        (
            "${file:DIR/none:x}",
            "a.b=${file:DIR/none:x}: cannot read the settings file DIR/none: No such file",
        ),
        ("${file:DIR/client.properties:x}", "DIR/client.properties has no x"),
        ("${file:x}", "give it as ${file:/path:key}"),
        ("${dir:DIR:none}", "cannot read DIR/none: No such file or directory"),
        ("${dir:DIR:../x}", "with the name of a file in that directory"),
        ("${dir:DIR/client.properties:x}", "Not a directory"),
        ("${dir:DIR:bytes}", "DIR/bytes is not UTF-8 text (byte 1)"),
        ("${vault:a:b}", "a.b has a variable of an unknown provider; there are env, file and dir"),
    ],
)
def test_a_variable_that_is_not_to_be_had(config, tmp_path, value, complaint):
    (tmp_path / "bytes").write_bytes(b"a\xff" + canary.PASSWORD.encode())
    with pytest.raises(ConfigError) as caught:
        config(f"z.password={canary.CLIENT_SECRET}\na.b={value}\n", PW=canary.PASSWORD)
    assert complaint.replace("DIR", str(tmp_path)) in str(caught.value)
    assert not any(map(canary.leaks, canary.exception_texts(caught.value)))


def test_a_password_that_looks_like_a_variable_is_not_shown(config):
    with pytest.raises(ConfigError, match=r"sasl\.password has a variable of an unknown provider") as caught:
        config(f"sasl.password=a${{b:{canary.CLIENT_SECRET}}}")
    assert not any(map(canary.leaks, canary.exception_texts(caught.value)))


def test_the_providers_of_kafka_are_there_without_being_named(config):
    text = "config.providers=env\nconfig.providers.env.class=org.apache.kafka.x.EnvVarConfigProvider\n"
    assert config(f"{text}client.id=${{env:A}}", A="a") == {"client.id": "a"}
    with pytest.raises(ConfigError, match=r"config\.providers\.file\.param\.allowed\.paths is not supported"):
        config("config.providers.file.param.allowed.paths=/etc/kafka")


@pytest.mark.parametrize(
    ("text", "mode", "warned"),
    [
        ("sasl.password=x", 0o644, True),
        ("sasl.password=x", 0o640, False),
        ("sasl.password=x", 0o600, False),
        ("sasl.passwrd=" + canary.PLAIN_JAAS, 0o644, True),
        ("ssl.truststore.location=/x\nssl.truststore.certificates=x", 0o644, False),
        ("sasl.password=${env:A}", 0o644, False),
    ],
)
def test_a_file_whose_secrets_others_can_read(config, warnings, text, mode, warned):
    config(text, mode, A="a")
    assert bool(warnings) == warned
    assert all("chmod 600" in each for each in warnings)


def test_secrets_among_arguments(warnings):
    warn_of_arguments(
        [("acks", "all"), ("sasl.password", canary.PASSWORD), ("x", canary.PLAIN_JAAS), (canary.PLAIN_JAAS, "x")],
        warnings.append,
    )
    assert len(warnings) == 3
    assert all("list of processes" in each and "--command-config FILE" in each for each in warnings)
    assert warnings[0].startswith("sasl.password is on the command line")
    assert not any(map(canary.leaks, warnings))
