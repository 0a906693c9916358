"""The images of conf/, built by buildah on a base that debootstrap makes, and a broker that runs in one of them.

Needs Debian's archive and PyPI, for the base and for the wheels of what the package needs, and root, for the base.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Producer
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.processes.free_ports import free_ports
from tests.packaging.conftest import PROJECT
from tests.packaging.environments import run
from tests.patience import PATIENCE_S, wait_until

pytestmark = [pytest.mark.soak, pytest.mark.root, pytest.mark.debian, pytest.mark.timeout(3600)]

BASE = "localhost/kafkalite-base"
IMAGE = "localhost/kafkalite-broker"
# Of a Debian whose Python is one that the package takes; the test's own interpreter makes the wheels.
RELEASE = "bookworm"
ENTRY_POINT = ["/opt/kafkalite/bin/kafkalite", "broker", "--config", "/etc/kafkalite/broker.properties"]


class Buildah:
    """Buildah with a store of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        store = ["--storage-driver", "vfs", "--root", str(directory / "store"), "--runroot", str(directory / "run")]
        self.command = ["buildah", *store]

    def __call__(self, *arguments: str | Path) -> str:
        return run(*self.command, *arguments, directory=self.directory)


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    for program in ("buildah", "debootstrap"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    if sys.version_info[:2] != (3, 11):
        pytest.skip(f"Debian {RELEASE} has Python 3.11, which the wheels are made for")
    made = Buildah(tmp_path_factory.mktemp("buildah"))
    base = made.directory / "base"
    run("debootstrap", "--variant=minbase", "--include=python3,python3-venv", RELEASE, base, directory=made.directory)
    container = made("from", "scratch").strip()
    made("add", container, base, "/")
    shutil.rmtree(base)
    made("commit", "--rm", container, BASE)
    yield made
    made("rm", "--all")
    made("rmi", "--all", "--force")


@pytest.fixture(scope="module")
def context(buildah: Buildah, wheel: Path) -> Path:
    """The directory that images are built in: conf/, and the wheels."""
    directory = buildah.directory / "context"
    shutil.copytree(PROJECT / "conf", directory / "conf")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--wheel-dir", directory / "wheels", wheel, directory=directory)
    return directory


def is_up(bootstrap: str) -> bool:
    try:
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.list_topics()
    except KafkaliteError:
        return False
    return True


def test_a_broker_runs_in_the_image_of_a_log_host(buildah: Buildah, context: Path) -> None:
    build = ("build", "--isolation", "chroot", "--build-arg", f"BASE={BASE}", "-f", context / "conf/Containerfile")
    buildah(*build, "-t", IMAGE, context)
    container = buildah("from", IMAGE).strip()
    bootstrap = f"127.0.0.1:{free_ports(1)[0]}"
    address = f"PLAINTEXT://{bootstrap}"
    command = [*buildah.command, "run", "--isolation", "chroot", container, "--", *ENTRY_POINT]
    command += ["--override", f"listeners={address}", "--override", f"advertised.listeners={address}"]
    broker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(partial(is_up, bootstrap), "the broker in the image")
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic("events")
        with Producer(bootstrap_servers=bootstrap) as producer:
            assert producer.send("events", b"v").result(PATIENCE_S).offset == 0
        os.kill(process_in(broker.pid), signal.SIGTERM)
        _, log = broker.communicate(timeout=PATIENCE_S)
    finally:
        broker.kill()
        broker.wait()
    assert broker.returncode == 0, log
    held = buildah("run", "--isolation", "chroot", container, "--", "ls", "/var/lib/kafkalite")
    assert "events-0" in held


def process_in(pid: int) -> int:
    """Return the process below another that has none itself; any thread of a process may have children."""
    found = pid
    while children := [
        child for each in Path(f"/proc/{found}/task").glob("*/children") for child in each.read_text().split()
    ]:
        found = int(children[0])
    return found


def test_the_image_of_executors_has_the_source_in_the_python_of_spark(buildah: Buildah, context: Path) -> None:
    build = ("build", "--isolation", "chroot", "--build-arg", f"BASE={BASE}", "--build-arg", "RUN_AS=nobody")
    buildah(*build, "-f", context / "conf/Containerfile.executor", "-t", "localhost/kafkalite-executor", context)
    container = buildah("from", "localhost/kafkalite-executor").strip()
    inside = ("run", "--isolation", "chroot", container, "--")
    buildah(*inside, "sh", "-c", "$PYSPARK_PYTHON -c 'import spark_kafkalite.client'")
    script = buildah(*inside, "/opt/kafkalite/bin/kafkalite", "jobs", "path", "hadoop_load").strip()
    buildah(*inside, "test", "-f", script)
