"""The files in conf/ for a log host in production: what they name exists, and they agree with each other."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from spark_kafkalite.cli.main import kafkalite
from spark_kafkalite.settings import read_properties
from tests.paths import PROJECT

CONF = PROJECT / "conf"
SERVICE = CONF / "kafkalite-broker.service"
HOST_PROPERTIES = read_properties(CONF / "log-host.properties")
PROGRAM = "/opt/kafkalite/bin/kafkalite"


def instructions(name: str) -> list[tuple[str, str]]:
    """Return the instructions of a Containerfile with their arguments, of several lines as one."""
    lines = [line for line in (CONF / name).read_text().splitlines() if not line.startswith("#")]
    found = "\n".join(lines).replace("\\\n", "")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in found.splitlines()) if word]


def of_service(name: str) -> str:
    (found,) = re.findall(rf"(?m)^{name}=(.*)$", SERVICE.read_text())
    return found


def compose() -> dict[str, Any]:
    return yaml.safe_load((CONF / "compose.yaml").read_text())


def check_command(arguments: list[str]) -> None:
    """Fail unless the command line of kafkalite takes the arguments; nothing is run."""
    command: click.Command = kafkalite
    context = click.Context(kafkalite)
    while isinstance(command, click.Group):
        name, found, arguments = command.resolve_command(context, arguments)
        assert found is not None, name
        command, context = found, click.Context(found, context)
    command.make_context(command.name, arguments, context.parent)


def test_the_check_of_commands_can_fail() -> None:
    with pytest.raises(click.UsageError):
        check_command(["broker", "--configuration", "file"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize(("more", "told"), [("", ""), ("[Service]\nNoSuchSetting=1\n", "NoSuchSetting")])
def test_systemd_takes_the_service(tmp_path: Path, more: str, told: str) -> None:
    program = tmp_path / "kafkalite"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / SERVICE.name
    unit.write_text(SERVICE.read_text().replace(PROGRAM, str(program)) + more)
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    # What it says of other units is about the host.
    problems = [line for line in verified.stderr.splitlines() if SERVICE.stem in line]
    assert (verified.returncode, bool(problems)) == (0, bool(told)), verified.stderr
    assert told in verified.stderr


def test_the_service_runs_the_broker_on_its_directory_and_reloads_it() -> None:
    program, *arguments = shlex.split(of_service("ExecStart"))
    assert program == PROGRAM
    check_command(arguments)
    assert HOST_PROPERTIES["log.dirs"] == f"/var/lib/{of_service('StateDirectory')}"
    assert of_service("ExecReload") == "/bin/kill -HUP $MAINPID"
    assert (of_service("KillSignal"), of_service("Restart")) == ("SIGTERM", "on-failure")
    assert int(of_service("LimitNOFILE")) >= 2000 + 2 * int(HOST_PROPERTIES["max.connections.per.ip"])


def test_the_log_host_s_image_agrees_with_its_settings() -> None:
    found = instructions("Containerfile")
    (entry_point,) = [json.loads(rest) for word, rest in found if word == "ENTRYPOINT"]
    assert [PROGRAM, *shlex.split(of_service("ExecStart"))[1:]] == entry_point
    check_command(entry_point[1:])
    copied = [shlex.split(rest) for word, rest in found if word == "COPY" and "--from" not in rest]
    assert ["conf/log-host.properties", entry_point[-1]] in copied
    assert dict(found)["VOLUME"] == HOST_PROPERTIES["log.dirs"]
    assert HOST_PROPERTIES["listeners"].endswith(f":{dict(found)['EXPOSE']}")


@pytest.mark.parametrize("name", ["Containerfile", "Containerfile.executor"])
def test_images_take_the_package_from_the_directory_of_wheels_alone(name: str) -> None:
    (install,) = [rest for word, rest in instructions(name) if word == "RUN" and "pip install" in rest]
    assert re.search(r'--no-index --find-links /tmp/wheels "?spark-kafkalite', install)
    assert ("COPY", "wheels /tmp/wheels") in instructions(name)
    assert "pip wheel --wheel-dir wheels " in (CONF / name).read_text()


def test_the_compose_file_names_what_there_is() -> None:
    document = compose()
    services = document["services"]
    for service in services.values():
        build = service["build"]
        assert (CONF / build["context"]).resolve() == PROJECT
        assert (PROJECT / build["dockerfile"]).is_file()
        assert set(service.get("depends_on", ())) <= set(services)
        assert {mount.partition(":")[0] for mount in service.get("volumes", ())} <= set(document["volumes"])
    broker, topics, load = services["broker"], services["topics"], services["load"]
    (entry_point,) = [json.loads(rest) for word, rest in instructions("Containerfile") if word == "ENTRYPOINT"]
    check_command([*entry_point[1:], *broker["command"]])
    assert broker["healthcheck"]["test"][:2] == ["CMD", PROGRAM]
    check_command(broker["healthcheck"]["test"][2:])
    assert topics["entrypoint"] == [PROGRAM]
    check_command(topics["command"])
    submitted = shlex.split(load["command"][0])
    script = submitted.index("$$(/opt/kafkalite/bin/kafkalite jobs path hadoop_load)")
    check_command(["jobs", "path", "hadoop_load"])
    check_command(["jobs", "run", "hadoop_load", *submitted[script + 1 :]])


def test_a_stop_has_the_same_time_everywhere() -> None:
    assert (of_service("TimeoutStopSec"), compose()["services"]["broker"]["stop_grace_period"]) == ("300", "5m")
    assert "--time 300" in (CONF / "Containerfile").read_text()
