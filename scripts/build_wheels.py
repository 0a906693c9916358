"""Build the files of a release into dist/: a source distribution, and from it a manylinux wheel for each interpreter.

    python scripts/build_wheels.py PYTHON ...                   # x86_64 and aarch64
    python scripts/build_wheels.py --machine x86_64 PYTHON ...

Runs in the environment of requirements-wheels.txt. Each PYTHON is a CPython of this machine with its C headers; a
wheel is for its version. The compiler is zig's. It links against the chosen version of glibc and builds for either
machine, so that no container is needed. The headers are those of this machine for both. That is enough, because the
two machines have the same byte order and the same sizes of C's types. auditwheel checks each wheel and names it.

A wheel that lacks the kernel is an error here, though setup.py goes on without a compiler.
"""

from __future__ import annotations

import argparse
import os
import shutil
import site
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MACHINES = ("x86_64", "aarch64")
GLIBC = (2, 17)
EXTENSION = "spark_kafkalite/records/_kernel"

_BUILD_WHEEL = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
# auditwheel offers the platforms of the machine that it runs on, and checks wheels for any.
_AUDIT_WHEEL = """
import platform, sys
machine = sys.argv.pop(1)
platform.machine = lambda: machine
from auditwheel.main import main
sys.exit(main())
"""


def run(*command: str | Path, directory: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command and return what it printed. Raises SystemExit with that if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=directory,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\n{' '.join(map(str, command))}: exit code {done.returncode}")
    return done.stdout


def compiler(machine: str, headers: Path) -> dict[str, str]:
    """Return the environment in which setuptools compiles for a machine, with one more directory of headers."""
    target = f"{machine}-linux-gnu.{'.'.join(map(str, GLIBC))}"
    (package,) = find_spec("ziglang").submodule_search_locations
    command = f"{package}/zig cc -target {target}"
    return {
        "CC": command,
        "LDSHARED": f"{command} -shared -s",
        # What CPython itself was compiled with is not for this compiler.
        "CFLAGS": f"-fPIC -fwrapv -DNDEBUG -I{headers}",
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
    }


def version_of(python: str) -> tuple[str, Path | None]:
    """Return the version of an interpreter, such as ``3.11``, and where Debian puts its configuration's header."""
    program = (
        "import sys, sysconfig as s\n"
        "print('%d.%d' % sys.version_info[:2], s.get_path('include'), s.get_config_var('MULTIARCH'))"
    )
    version, include, name = subprocess.check_output([python, "-c", program], text=True).split()
    header = Path(include).parent / name / Path(include).name / "pyconfig.h"
    return version, header if header.is_file() else None


def link_configuration(header: Path, machine: str, headers: Path) -> None:
    """Let Debian's Python.h find its configuration, which lies in a directory named after the machine."""
    link = headers / f"{machine}-linux-gnu" / header.parent.name / "pyconfig.h"
    if not link.is_symlink():
        link.parent.mkdir(parents=True)
        link.symlink_to(header)


def unpacked(archive: Path, directory: Path) -> Path:
    with tarfile.open(archive) as opened:
        if hasattr(tarfile, "data_filter"):  # from 3.11.4 on
            opened.extraction_filter = tarfile.data_filter
        opened.extractall(directory)
    (project,) = directory.iterdir()
    return project


def build_wheel(project: Path, python: str, machine: str, out: Path) -> Path:
    """Build, check and name one wheel. Raises SystemExit where an extension is missing or needs a newer glibc."""
    shutil.rmtree(project / "build", ignore_errors=True)
    version, header = version_of(python)
    headers = project.parent / "headers"
    if header is not None:
        link_configuration(header, machine, headers)
    suffix = f".cpython-{version.replace('.', '')}-{machine}-linux-gnu.so"
    environment = compiler(machine, headers) | {
        "SETUPTOOLS_EXT_SUFFIX": suffix,
        "PYTHONPATH": os.pathsep.join(site.getsitepackages()),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with tempfile.TemporaryDirectory(dir=project.parent) as made:
        said = run(python, "-c", _BUILD_WHEEL, made, directory=project, environment=environment)
        (plain,) = Path(made).glob("*.whl")
        if EXTENSION + suffix not in zipfile.ZipFile(plain).namelist():
            raise SystemExit(f"{said}\n{plain.name} has no {EXTENSION + suffix}")
        platform = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}"
        repaired = Path(made, "repaired")
        audit = [sys.executable, "-c", _AUDIT_WHEEL, machine, "repair", "--plat", platform, "-w", repaired, plain]
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        run(*audit, directory=project, environment={"PATH": path})
        (wheel,) = repaired.glob("*.whl")
        return Path(shutil.copy(wheel, out))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="+", metavar="PYTHON")
    parser.add_argument("--machine", action="append", choices=MACHINES, dest="machines")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    options = parser.parse_args(arguments)
    options.out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        os.environ["ZIG_GLOBAL_CACHE_DIR"] = os.environ["ZIG_LOCAL_CACHE_DIR"] = str(Path(work, "zig"))
        sdist = ["-m", "build", "--sdist", "--no-isolation", "--outdir", Path(work, "sdist"), ROOT]
        run(sys.executable, *sdist, directory=ROOT)
        (archive,) = Path(work, "sdist").iterdir()
        print(f"built {Path(shutil.copy(archive, options.out)).name}", flush=True)
        project = unpacked(archive, Path(work, "source"))
        for python in options.pythons:
            for machine in options.machines or MACHINES:
                print(f"built {build_wheel(project, python, machine, options.out).name}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
