"""Groups whose members, of two libraries, come and go all day: they leave, leave without a commit, and are killed.

What the members did is judged as that of a storm (``tests.interop.storms.history``): commits never go back, nor ahead
of what was read, and no partition has two owners in one generation.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from spark_kafkalite.processes.child_process import ChildFailed, ChildProcess
from tests.cluster_day.counts import Row
from tests.cluster_day.member import ROWS_SUFFIX
from tests.cluster_day.part import PARTITIONS, TOPIC, Part, PartFailed, Plan, wait_until
from tests.interop.storms.history import read_journals, violations
from tests.interop.storms.storm import Observer
from tests.paths import PROJECT

KINDS: Final = ("ours", "confluent")
_MEMBERS: Final = 3
_SESSION_MS: Final = 10_000
# Between two changes: at least so long, and up to a share of an hour more.
_PAUSE_S: Final = 3.0
_PAUSE_HOURS: Final = 0.4
_DRAIN_WITHIN_S: Final = 180.0
_LEAVE_WITHIN_S: Final = 60.0
_OBSERVE_S: Final = 1.0
# What becomes of a member, and the signal that does it.
_ENDS: Final = {"left": signal.SIGTERM, "left without a commit": signal.SIGUSR1, "killed": signal.SIGKILL}


class Group(Part):
    """A group with one assignor; its name is that."""

    def __init__(self, assignor: str, plan: Plan, bootstrap: str) -> None:
        super().__init__(f"group {assignor}")
        self.assignor = assignor
        self.ends: Counter[str] = Counter()
        self._bootstrap = bootstrap
        self._plan = plan
        self._chance = plan.chance(self.name)
        self._directory = plan.directory / f"group-{assignor}"
        self._directory.mkdir()
        self._members: list[ChildProcess] = []
        self._leaving: list[ChildProcess] = []
        self._started = 0
        self._observer = Observer(bootstrap, self._directory, assignor, TOPIC, PARTITIONS, pause_s=_OBSERVE_S)

    def run(self) -> None:
        self._observer.start()
        while len(self._members) < _MEMBERS:
            self._join()
        while not self.stopping.wait(_PAUSE_S + self._chance.uniform(0, _PAUSE_HOURS * self._plan.hour_s)):
            self._check_members()
            # Sometimes one fewer for a while.
            if len(self._members) < _MEMBERS:
                self._join()
            else:
                self._end_one()

    def drain(self, end_offsets: Mapping[int, int]) -> None:
        """Wait until the group has committed these ends, and have all members leave. Raises PartFailed."""

        def done() -> bool:
            self._check_members()
            return self._observer.latest == end_offsets

        def lacking() -> str:
            behind = {at: (self._observer.latest.get(at), end) for at, end in end_offsets.items()}
            different = {at: pair for at, pair in behind.items() if pair[0] != pair[1]}
            return f"{self.name} to commit the ends of the log; committed and end by partition: {different}"

        wait_until(done, _DRAIN_WITHIN_S, lacking)
        for member in self._members:
            member.signal(signal.SIGTERM)
        for member in (*self._members, *self._leaving):
            try:
                if member.wait(_LEAVE_WITHIN_S) != 0:
                    raise PartFailed(f"{member.name} ended with exit code {member.returncode}{member.tail()}")
            except ChildFailed as error:
                raise PartFailed(f"{self.name}: {error}") from error
        self._observer.stop()

    def wrongs(self, end_offsets: Mapping[int, int]) -> list[str]:
        """Return what the journals show that must not be."""
        return [f"{self.name}: {text}" for text in violations(read_journals(self._directory), end_offsets)]

    def rows(self) -> Iterator[Row]:
        """Give all records that any member has read; a line that a kill has cut off is left out."""
        for path in sorted(self._directory.glob(f"*{ROWS_SUFFIX}")):
            with path.open("rb") as lines:
                for line in lines:
                    if line.endswith(b"\n"):
                        partition, offset, value = line[:-1].split(b" ", 2)
                        yield int(partition), int(offset), value

    def close(self) -> None:
        super().close()
        for member in (*self._members, *self._leaving):
            member.kill()
        self._observer.stop()

    def _join(self) -> None:
        kind = KINDS[self._started] if self._started < len(KINDS) else self._chance.choice(KINDS)
        self._started += 1
        name = f"{kind}-{self._started}"
        settings = {
            "kind": kind,
            "bootstrap": self._bootstrap,
            "group": self.assignor,
            "topic": TOPIC,
            "name": name,
            "journal": str(self._directory / f"{name}.journal"),
            "assignor": self.assignor,
            "session_ms": _SESSION_MS,
            "seed": self._chance.randrange(1 << 31),
            "instance": None,
            "misdeed": None,
        }
        command = [sys.executable, "-m", "tests.cluster_day.member", json.dumps(settings)]
        self._members.append(ChildProcess(command, self._directory, name, working_directory=PROJECT))

    def _end_one(self) -> None:
        member = self._members.pop(self._chance.randrange(len(self._members)))
        end = self._chance.choice(sorted(_ENDS))
        self.ends[end] += 1
        if _ENDS[end] is signal.SIGKILL:
            member.kill()
        else:
            member.signal(_ENDS[end])
            self._leaving.append(member)

    def _check_members(self) -> None:
        for member in self._members:
            if not member.running:
                raise PartFailed(f"{member.name} ended by itself, exit code {member.returncode}{member.tail()}")
