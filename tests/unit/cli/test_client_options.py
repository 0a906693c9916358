"""How commands get the settings of their client: every one by file, and none without a warning by argument."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import click
import pytest

from spark_kafkalite.cli.broker import parse_overrides
from spark_kafkalite.cli.configs import parse_configs
from spark_kafkalite.cli.main import COMMANDS
from spark_kafkalite.cli.options import client_settings, config_file, name_values
from spark_kafkalite.errors import ConfigError
from tests import canary


def all_commands() -> Iterator[tuple[str, click.Command]]:
    waiting: list[tuple[str, click.Command]] = [
        (name, import_module(f"spark_kafkalite.cli.{module}").command) for name, (module, _) in COMMANDS.items()
    ]
    while waiting:
        name, command = waiting.pop()
        if isinstance(command, click.Group):
            context = click.Context(command)
            for each in command.list_commands(context):
                nested = command.get_command(context, each)
                assert nested is not None
                waiting.append((f"{name} {each}", nested))
        yield name, command


def spellings(command: click.Command) -> set[str]:
    return {spelling for option in command.params for spelling in option.opts}


TO_BROKERS = {name: command for name, command in all_commands() if "--bootstrap-server" in spellings(command)}


def test_the_commands_that_talk_to_brokers_are_known() -> None:
    some = {"produce", "consume", "topics create", "topics delete-records", "configs alter", "groups describe"}
    assert some | {"offsets get", "cluster log-dirs"} <= set(TO_BROKERS)


@pytest.mark.parametrize("name", TO_BROKERS)
def test_every_command_takes_settings_from_a_file(name: str) -> None:
    assert {"--command-config", "--command-property"} <= spellings(TO_BROKERS[name])


def test_the_console_tools_have_their_older_spellings() -> None:
    assert {"--producer.config", "--producer-property"} <= spellings(TO_BROKERS["produce"])
    assert {"--consumer.config", "--consumer-property"} <= spellings(TO_BROKERS["consume"])
    assert config_file("a", None, "--x.config") == config_file(None, "a", "--x.config") == "a"
    assert config_file(None, None, "--x.config") is None
    with pytest.raises(click.UsageError, match=r"--command-config and --x\.config are two names of one option"):
        config_file("a", "b", "--x.config")


def test_a_file_of_settings_is_read_with_its_variables(tmp_path, monkeypatch, capsys) -> None:
    path = tmp_path / "client.properties"
    path.write_text("security.protocol=SASL_SSL\nsasl.password=${env:CANARY_PW}\n")
    monkeypatch.setenv("CANARY_PW", canary.PASSWORD)
    settings = client_settings("h:1", str(path), ())
    assert settings["sasl.password"] == canary.PASSWORD
    # Not in what comes from elsewhere.
    assert client_settings("h:1", None, ("client.id=${env:CANARY_PW}",))["client.id"] == "${env:CANARY_PW}"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("secret", canary.SECRETS.values(), ids=canary.SECRETS.keys())
def test_a_secret_among_the_arguments_is_warned_about_and_not_repeated(capsys, secret: str) -> None:
    assert client_settings("h:1", None, (f"sasl.jaas.config={secret}",))["sasl.jaas.config"] == secret.strip()
    said = capsys.readouterr().err
    assert said.startswith("kafkalite: warning: sasl.jaas.config is on the command line")
    assert "--command-config FILE" in said
    assert canary.leaks(said) == []


@pytest.mark.parametrize("secret", ["PLAIN JAAS line", "token", "delegation token", "key"])
@pytest.mark.parametrize(
    ("parse", "expected"),
    [
        (lambda text: name_values([text], "--command-property"), click.UsageError),
        (lambda text: parse_configs([text], "--add-config"), click.UsageError),
        (lambda text: parse_overrides((text,)), ConfigError),
    ],
)
def test_a_secret_in_an_argument_that_is_wrong(parse, expected, secret: str) -> None:
    with pytest.raises(expected, match=r"\*\(redacted\): not of the form name=value") as caught:
        # One text without a name, however many '=' it had.
        parse(f"={canary.SECRETS[secret].replace(',', '')}")
    assert not any(map(canary.leaks, canary.exception_texts(caught.value)))
