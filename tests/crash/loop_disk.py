"""Disks that can lose power: ext4 over a loop file, and images of what the platter would hold at this moment.

The kernel keeps the dirty pages of the mounted file system in memory; the loop file holds only what ext4 has sent to
its device. A copy of the file, mounted anew, is what a machine finds after its power came back.

A copy takes a moment, and the file may be written meanwhile. Whether that matters is a question of *flushes*: a disk
may lose, in any selection, what was written since the last flush that it has completed, and nothing older. A copy that
no flush completed during is the state at its begin plus some of the writes since, so it is an image of a power cut at
its end. ``/sys/block/loopN/stat`` counts the completed flushes; a copy during which the count moved is thrown away. Two
good copies between the same two flushes may be mixed block by block for the same reason, which gives images in which
late writes are missing and later ones are there. With ``barrier=0`` ext4 sends no flushes and promises only what a
disk with a battery keeps: there a copy counts if nothing at all was written during it.

Everything made here lies in one directory whose name tells the process, and goes when the process ends its work, at
its exit, or, if it was killed, when the next run begins. Needs root, mkfs.ext4, losetup and mount.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.patience import PATIENCE_S

_PREFIX = "kafkalite-cut"
_OWNER = re.compile(rf"{_PREFIX}-(\d+)-.+")
_PROGRAMS = ("mkfs.ext4", "losetup", "mount", "umount")
_SIZE_BYTES = 192 << 20
_BLOCK_BYTES = 4096
# In memory where that can be had: the copies are faster, and nobody else's disk is kept busy.
_PLACES = (Path("/dev/shm"), Path(tempfile.gettempdir()))

# Which promises ext4 keeps without fsync differs; what a broker may rely on does not.
MOUNT_OPTIONS = (
    "data=ordered",
    "data=writeback,nodelalloc,commit=1",
    "data=ordered,noauto_da_alloc,commit=1",
    "data=writeback,noauto_da_alloc",
    "data=ordered,barrier=0",
    "data=journal",
)

Blocks = dict[int, bytes]


def why_not() -> str | None:
    """Return why this host cannot do it, None when it can."""
    if os.geteuid() != 0:
        return "loop devices and mounts need root"
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed (make setup-debian)"
    if not Path("/dev/loop-control").exists():
        return "the kernel has no loop devices"
    return None


class Disks:
    """The directory that disks of this process lie in; a context manager."""

    def __init__(self) -> None:
        for place in _PLACES:
            if place.is_dir():
                _remove_leftovers(place)
        place = next(place for place in _PLACES if os.access(place, os.W_OK))
        self.directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}-{os.getpid()}-", dir=place))
        self._count = 0
        atexit.register(self.remove)

    def new_path(self, what: str) -> Path:
        """Return a name that nothing has yet."""
        self._count += 1
        return self.directory / f"{what}-{self._count}"

    def new_disk(self, options: str) -> Disk:
        """Make an empty disk and mount it."""
        image = self.new_path("disk")
        with image.open("wb") as file:
            file.truncate(_SIZE_BYTES)
        _run("mkfs.ext4", "-q", "-F", "-b", str(_BLOCK_BYTES), "-N", "16384", "-J", "size=8", str(image))
        return Disk(self, image, options)

    def remove(self) -> None:
        """Unmount and remove everything."""
        atexit.unregister(self.remove)
        _remove(self.directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


class Disk:
    """A mounted disk. ``path`` is where; ``was_mixed`` says whether its image was made of two copies."""

    def __init__(self, disks: Disks, image: Path, options: str) -> None:
        self.options = options
        self.was_mixed = False
        self._disks = disks
        self._image = image
        self.path = disks.new_path("mount")
        self.path.mkdir()
        self._device = _run("losetup", "--find", "--show", str(image)).strip()
        try:
            _run("mount", "-o", f"noinit_itable,{options}", self._device, str(self.path))
        except OSError:
            _run("losetup", "--detach", self._device)
            raise
        self._file = os.open(image, os.O_RDONLY | os.O_CLOEXEC)

    def cut_power(self, chance: random.Random, *, still: Callable[[], None]) -> Disk:
        """Return a disk, mounted, that holds what this one would hold if the power went now.

        ``still`` is called when the disk is too busy for a copy: it has to end the writing.
        """
        target = self._disks.new_path("disk")
        blocks, mixed = self._image_now(chance, still)
        with target.open("wb") as file:
            for number, data in blocks.items():
                file.seek(number * _BLOCK_BYTES)
                file.write(data)
            file.truncate(_SIZE_BYTES)
        disk = Disk(self._disks, target, self.options)
        disk.was_mixed = mixed
        return disk

    def _image_now(self, chance: random.Random, still: Callable[[], None]) -> tuple[Blocks, bool]:
        began = time.monotonic()
        previous: tuple[Blocks, tuple[int, ...]] | None = None
        # Some tries wait for two copies that differ between the same two flushes; then any single copy will do.
        tries_for_two = chance.choice((0, 0, 15))
        tries = 0
        while time.monotonic() - began < PATIENCE_S:
            tries += 1
            before = self._writes()
            blocks = self._read_blocks()
            after = self._writes()
            if before != after:
                if tries == 40:
                    still()
                continue
            if previous is not None and previous[1] == before and previous[0] != blocks:
                older = previous[0]
                mixed = {
                    number: data if chance.random() < 0.5 else older.get(number, bytes(_BLOCK_BYTES))
                    for number, data in blocks.items()
                }
                return mixed, True
            if tries >= tries_for_two:
                return blocks, False
            previous = (blocks, before)
        raise OSError(f"{self._device} was never without a flush for as long as a copy takes")

    def _writes(self) -> tuple[int, ...]:
        """Return what must not change during a copy."""
        fields = Path(f"/sys/block/{Path(self._device).name}/stat").read_text(encoding="ascii").split()
        if "barrier=0" not in self.options:
            return (int(fields[15]),)  # completed flushes
        in_flight = int(fields[8])
        # A copy that begins with a write on its way is no good: never equal to anything.
        return (int(fields[4]), in_flight, time.monotonic_ns() if in_flight else 0)

    def _read_blocks(self) -> Blocks:
        pieces, position = [], 0
        while True:
            try:
                start = os.lseek(self._file, position, os.SEEK_DATA)
            except OSError:  # nothing but a hole follows
                break
            position = os.lseek(self._file, start, os.SEEK_HOLE)
            pieces.append((start, os.pread(self._file, position - start, start)))
        return {
            (start + at) // _BLOCK_BYTES: data[at : at + _BLOCK_BYTES]
            for start, data in pieces
            for at in range(0, len(data), _BLOCK_BYTES)
        }

    def unmount(self) -> None:
        """Unmount the disk and remove its file."""
        os.close(self._file)
        _unmount(self.path)
        _detach(self._device)
        self.path.rmdir()
        self._image.unlink()


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _unmount(path: Path) -> None:
    # A process that was killed may hold its files for a moment longer.
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            _run("umount", str(path))
            return
        time.sleep(0.05)
    _run("umount", "--lazy", str(path))


def _detach(device: str) -> None:
    with contextlib.suppress(OSError):
        _run("losetup", "--detach", device)


def _remove_leftovers(place: Path) -> None:
    """Remove what runs that were killed have left."""
    for path in place.iterdir():
        owner = _OWNER.fullmatch(path.name)
        if owner is not None and not Path(f"/proc/{owner[1]}").exists():
            _remove(path)


def _remove(directory: Path) -> None:
    if not directory.exists():
        return
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    for mounted in [line.split()[1] for line in mounts]:
        if mounted.startswith(f"{directory}/"):
            _unmount(Path(mounted))
    for line in _run("losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE").splitlines():
        device, _, backing = line.strip().partition(" ")
        if backing.strip().startswith(f"{directory}/"):
            _detach(device)
    shutil.rmtree(directory, ignore_errors=True)
