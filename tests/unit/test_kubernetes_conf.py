"""conf/kubernetes: Kubernetes' schema takes it, kafkalite takes its command, and what it names exists."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from spark_kafkalite.broker.metrics import endpoint
from spark_kafkalite.broker.settings.broker_settings import BROKER_SETTINGS
from spark_kafkalite.settings import read_properties
from tests.paths import PROJECT
from tests.unit.test_production_conf import PROGRAM, check_command, instructions

FILE: Final = PROJECT / "conf/kubernetes/kafkalite.yaml"
OBJECTS: Final[list[dict[str, Any]]] = list(yaml.safe_load_all(FILE.read_text()))


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = [each for each in OBJECTS if each["kind"] == kind]
    return found


SET: Final = of_kind("StatefulSet")["spec"]
POD: Final = SET["template"]["spec"]
BROKER: Final = POD["containers"][0]


@pytest.mark.parametrize("document", OBJECTS, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_kubernetes_schema_takes_it(document: dict[str, Any]) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    validator.validate(document, "1.30", strict=True)


def settings(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "broker.properties"
    path.write_text(of_kind("ConfigMap")["data"]["broker.properties"])
    return read_properties(path)


def test_the_broker_takes_its_settings(tmp_path: Path) -> None:
    found = settings(tmp_path)
    BROKER_SETTINGS.parse(found)
    (volume,) = SET["volumeClaimTemplates"]
    paths = {mount["name"]: mount["mountPath"] for mount in BROKER["volumeMounts"]}
    assert found["log.dirs"].startswith(f"{paths[volume['metadata']['name']]}/")
    assert found["inter.broker.secret.file"].startswith(f"{paths['run']}/")
    named = {"data", *(each["name"] for each in POD["volumes"])}
    assert set(paths) == named
    ports = {each["name"]: each["containerPort"] for each in BROKER["ports"]}
    assert found["listeners"].endswith(f":{ports['kafka']}")
    assert found["metrics.listener"].endswith(f":{ports['metrics']}")


def test_the_shell_makes_a_command_that_kafkalite_takes(tmp_path: Path) -> None:
    assert BROKER["command"] == ["/bin/sh", "-c"]
    (script,) = BROKER["args"]
    copies, _, rest = script.partition(" && exec ")
    assert all(f"/etc/kafkalite-secrets/{name}" in copies for name in ("secret", "metrics-token"))
    shown = subprocess.run(
        ["sh", "-c", f"echo {rest}"],
        env={"POD": "kafkalite-11", "NAMESPACE": "logs"},
        capture_output=True,
        text=True,
        check=True,
    )
    program, *arguments = shlex.split(shown.stdout)
    assert program == PROGRAM
    check_command(arguments)
    assert "broker.id=12" in arguments
    assert "advertised.listeners=PLAINTEXT://kafkalite-11.kafkalite-brokers.logs.svc:9092" in arguments


def test_the_probes_are_pages_of_the_broker() -> None:
    source = Path(endpoint.__file__).read_text()
    for probe, page in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        asked = BROKER[probe]["httpGet"]
        assert asked == {"path": page, "port": "metrics"} and f'"{page}"' in source


def test_the_user_is_that_of_the_image() -> None:
    (made,) = [rest for word, rest in instructions("Containerfile") if word == "RUN" and "useradd" in rest]
    assert f"--uid {POD['securityContext']['runAsUser']} " in made


def test_objects_name_each_other() -> None:
    services = {each["metadata"]["name"]: each for each in OBJECTS if each["kind"] == "Service"}
    assert services[SET["serviceName"]]["spec"]["clusterIP"] == "None"
    labels = SET["template"]["metadata"]["labels"]
    assert all(each["spec"]["selector"] == labels for each in services.values())
    assert SET["selector"]["matchLabels"] == labels == of_kind("PodDisruptionBudget")["spec"]["selector"]["matchLabels"]
