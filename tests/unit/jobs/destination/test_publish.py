"""Publishing over a real directory, stopped after each of its operations."""

import json
import re
from pathlib import Path

import pytest

from spark_kafkalite.jobs.destination import folding, publish
from spark_kafkalite.jobs.destination.lease import DestinationHeld
from spark_kafkalite.jobs.load.accounting import AuditError
from spark_kafkalite.jobs.load.completeness import Directories
from spark_kafkalite.jobs.load.planning import LoadPlan
from spark_kafkalite.manifests.files import LocalFiles
from spark_kafkalite.manifests.manifest import (
    FilePart,
    LoadedRange,
    LoadedTopic,
    LostRange,
    Manifest,
    ManifestError,
    PublishedFile,
    RecreatedTopic,
    Staged,
    manifest_numbers,
    staging_path,
)
from spark_kafkalite.manifests.manifest_reader import read_manifest
from spark_kafkalite.manifests.names import file_name
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange
from tests.paths import PROJECT

P0 = TopicPartition("t", 0)
ID = "AAAAAAAAQACAAAAAAAAAAQ"


def plan_of(start: int, until: int, topic: str = "t") -> LoadPlan:
    ranges = (OffsetRange(TopicPartition(topic, 0), start, until),)
    return LoadPlan(ranges, {topic: LoadedTopic(ID, {0: until})})


class Stopped(Exception):
    pass


class StoppingFiles(LocalFiles):
    """A directory whose owner dies before its n-th change."""

    def __init__(self, root: Path, changes: int) -> None:
        super().__init__(root)
        self.changes_left = changes

    def _change(self) -> None:
        if self.changes_left == 0:
            raise Stopped
        self.changes_left -= 1

    def write_new(self, path: str, text: str) -> None:
        self._change()
        super().write_new(path, text)

    def rename_new(self, source: str, target: str) -> None:
        self._change()
        super().rename_new(source, target)

    def delete(self, path: str) -> None:
        self._change()
        super().delete(path)


def load(files: LocalFiles, run: str, start: int, until: int) -> Manifest:
    """One run as the job does it, with plain files in place of Spark's."""
    recovery = publish.recover(files)
    plan = plan_of(start, until)
    publish.write_plan(files, run, plan)
    staged = []
    for first in range(start, until, 2):
        path = f"{staging_path(run)}/data/{first}"
        files.write_new(path, f"offsets from {first} by {run}")
        final = f"t/{file_name('t', 0, first, first + 1)}"
        staged.append(PublishedFile(path, final, "t", (FilePart(0, first, first + 1, 2),)))
    return publish.commit(files, run, plan, Staged(tuple(staged)), recovery.newest)


def published(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "t").glob("*")) if (root / "t").exists() else []


def test_runs_add_up(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    assert load(files, "r1", 0, 4).number == 1
    second = load(files, "r2", 4, 6)
    assert second.number == 2
    assert second.next_offsets == {P0: 6}
    assert published(tmp_path) == [file_name("t", 0, first, first + 1) for first in (0, 2, 4)]
    assert files.names("_kafkalite/staging") == []


def test_a_run_stopped_anywhere_is_wholly_there_or_not_at_all_after_the_next(tmp_path: Path) -> None:
    changes = 0
    finished = False
    while not finished:
        root = tmp_path / str(changes)
        load(LocalFiles(root), "r1", 0, 4)
        stopping = StoppingFiles(root, changes)
        try:
            load(stopping, "r2", 4, 10)
            finished = True
        except Stopped:
            pass
        before_recovery = published(root)
        recovered = publish.recover(LocalFiles(root)).newest
        assert recovered is not None
        whole = [file_name("t", 0, first, first + 1) for first in range(0, 10, 2)]
        committed = len(list(publish.manifests(LocalFiles(root)))[1].files) == 3 if recovered.number > 1 else False
        assert published(root) == (whole if committed else whole[:2]), f"stopped before change {changes}"
        if not committed:
            assert before_recovery == whole[:2], "uncommitted files outside _kafkalite"
        assert LocalFiles(root).names("_kafkalite/staging") == []
        changes += 1
    # plan, three data files, manifest, three moves, deleting the staging directory
    assert changes == 10


def test_recovery_itself_may_be_stopped_and_done_again(tmp_path: Path) -> None:
    committed_unmoved = 5  # the plan, three data files and the manifest
    with pytest.raises(Stopped):
        load(StoppingFiles(tmp_path, committed_unmoved), "r1", 0, 6)
    for changes in range(4):
        with pytest.raises(Stopped):
            publish.recover(StoppingFiles(tmp_path, min(changes, 1)))
    publish.recover(LocalFiles(tmp_path))
    assert published(tmp_path) == [file_name("t", 0, first, first + 1) for first in (0, 2, 4)]
    assert publish.recover(LocalFiles(tmp_path)).moved == 0


@pytest.mark.parametrize("error", [AuditError("no"), OSError("full"), KeyboardInterrupt()], ids=repr)
def test_a_run_that_fails_before_its_commit_drops_what_it_has_staged(tmp_path: Path, error: BaseException) -> None:
    files = LocalFiles(tmp_path)
    with pytest.raises(type(error)), publish.dropped_on_failure(files, "r1"):
        publish.write_plan(files, "r1", plan_of(0, 2))
        raise error
    assert files.names("_kafkalite/staging") == []
    # So the next run takes no number from it.
    assert load(files, "r2", 0, 2).number == 1


def test_a_run_that_fails_at_its_manifest_leaves_what_it_has_staged(tmp_path: Path) -> None:
    """The answer may be what got lost, and the manifest be there."""

    class AnswerLost(LocalFiles):
        def write_new(self, path: str, text: str) -> None:
            super().write_new(path, text)
            if "manifests" in path:
                raise OSError("the answer got lost")

    with pytest.raises(OSError, match="the answer got lost"):
        load(AnswerLost(tmp_path), "r1", 0, 4)
    assert LocalFiles(tmp_path).names("_kafkalite/staging") == ["r1"]
    recovered = publish.recover(LocalFiles(tmp_path))
    assert recovered.moved == 2
    assert published(tmp_path) == [file_name("t", 0, first, first + 1) for first in (0, 2)]


def test_two_runs_at_once_publish_only_one(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    plan = plan_of(0, 2)
    publish.commit(files, "r1", plan, Staged(), None)
    publish.write_plan(files, "r2", plan)
    with pytest.raises(DestinationHeld, match=r"another run took over and made manifest 1 while this one \(r2\)"):
        publish.commit(files, "r2", plan, Staged(), None)
    # It can never be published; left there it would be fenced once more.
    assert files.names("_kafkalite/staging") == []


def test_a_manifest_that_is_made_between_the_look_and_the_commit_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = LocalFiles(tmp_path)
    first = publish.commit(files, "r1", plan_of(0, 2), Staged(), None)
    publish.write_plan(files, "r2", plan_of(0, 2))
    # As r2 has seen the destination before r1 committed.
    monkeypatch.setattr(publish, "newest_number", lambda files: 0)
    with pytest.raises(DestinationHeld, match=r"made manifest 1 while this one \(r2\)"):
        publish.commit(files, "r2", plan_of(0, 2), Staged(), None)
    assert publish.newest_manifest(files) == first


def test_what_another_run_has_staged_is_fenced_before_it_is_deleted(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    first = load(files, "r1", 0, 4)
    publish.write_plan(files, "r2", plan_of(4, 6))
    recovery = publish.recover(files, "r3")
    assert recovery.discarded == ("r2",)
    assert recovery.newest is not None
    assert (recovery.newest.number, recovery.newest.files, recovery.newest.records) == (2, (), 0)
    assert recovery.newest.topics == first.topics
    assert publish.newest_manifest(files) == recovery.newest
    with pytest.raises(DestinationHeld):
        publish.commit(files, "r2", plan_of(4, 6), Staged(), first)
    # Without a reason there is no other fence, and the fence's run is nobody's that stages.
    assert publish.recover(files, "r4").newest == recovery.newest
    publish.write_plan(files, "r3", plan_of(4, 6))
    assert publish.recover(files, "r4").discarded == ("r3",)


def test_a_run_does_not_take_a_number_whose_manifest_was_folded_and_deleted(tmp_path: Path) -> None:
    """A run that was paused for a month finds its number free. The newer manifests show that it was overtaken."""
    files = LocalFiles(tmp_path)
    plan = plan_of(0, 2)
    publish.write_plan(files, "r1", plan)
    late = staged_file(files, "r1", "t", "t/late.parquet")
    fence = publish.recover(files, "r2").newest
    assert fence is not None and fence.number == 1
    newest = publish.commit(files, "r2", plan, Staged(), fence)
    assert folding.fold(files, keep_ms=0, every=1) == 2
    assert not files.exists(fence.path)
    with pytest.raises(DestinationHeld, match=r"made manifest 1 while this one \(r1\)"):
        publish.commit(files, "r1", plan, Staged((late,)), None)
    assert not files.exists(fence.path)
    assert publish.newest_manifest(files) == newest
    assert published(tmp_path) == []


def test_a_recovery_takes_nothing_from_others_when_it_has_lost_the_destination(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    publish.write_plan(files, "r1", plan_of(0, 2))

    def check() -> None:
        raise DestinationHeld("r1 holds it")

    with pytest.raises(DestinationHeld):
        publish.recover(files, "r2", check)
    assert files.names("_kafkalite/staging") == ["r1"]
    assert publish.newest_manifest(files) is None


def test_a_manifest_that_the_file_system_has_made_twice_is_the_runs_own(tmp_path: Path) -> None:
    class AskedTwice(LocalFiles):
        def write_new(self, path: str, text: str) -> None:
            super().write_new(path, text)
            if "manifests" in path:
                super().write_new(path, text)

    assert publish.commit(AskedTwice(tmp_path), "r1", plan_of(0, 2), Staged(), None).number == 1


def test_a_published_file_that_somebody_deleted_is_named(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    lost = PublishedFile("_kafkalite/staging/r1/data/0", "t/x.parquet", "t", (FilePart(0, 0, 1, 2),))
    publish.write_plan(files, "r1", plan_of(0, 2))
    with pytest.raises(ManifestError, match=r"run r1\) names t/x\.parquet, which is neither there nor at _kafkalite"):
        publish.commit(files, "r1", plan_of(0, 2), Staged((lost,)), None)


def staged_file(files: LocalFiles, run: str, topic: str, final: str) -> PublishedFile:
    staged = f"{staging_path(run)}/data/{topic}"
    files.write_new(staged, f"{topic} by {run}")
    return PublishedFile(staged, final, topic, (FilePart(0, 0, 1, 2),), 5)


def test_a_file_that_nobody_published_stops_a_run_before_its_commit(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    files.write_new("t/x.parquet", "somebody's")
    file = staged_file(files, "r1", "t", "t/x.parquet")
    with pytest.raises(ManifestError, match=r"t/x\.parquet is under .* already, and no manifest names it; nothing was"):
        publish.commit(files, "r1", plan_of(0, 2), Staged((file,)), None)
    assert publish.newest_manifest(files) is None


def test_a_file_never_counts_as_moved_because_another_one_has_its_name(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    file = staged_file(files, "r1", "t", "t/x.parquet")
    manifest = Manifest(1, "r1", "now", (file,), {"t": LoadedTopic(ID, {0: 2})}, 2, 0)
    files.write_new(manifest.path, manifest.to_json())
    files.write_new("t/x.parquet", "somebody's")
    with pytest.raises(ManifestError, match=r"\(run r1\) names t/x\.parquet, but another file has that name"):
        publish.recover(files)
    assert files.exists(file.staged)
    files.delete("t/x.parquet")
    assert publish.recover(files).moved == 1
    assert files.read("t/x.parquet") == "t by r1"


def test_two_files_of_one_place_are_never_published(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    both = (staged_file(files, "r1", "a", "x/x.parquet"), staged_file(files, "r1", "b", "x/x.parquet"))
    with pytest.raises(ManifestError, match=r"data/b and _kafkalite/staging/r1/data/a would both become x/x\.parquet"):
        publish.commit(files, "r1", plan_of(0, 2), Staged(both), None)
    assert publish.newest_manifest(files) is None


class CaseBlindFiles(LocalFiles):
    """A directory in which case makes no difference."""

    def exists(self, path: str) -> bool:
        return super().exists(path.lower())

    def write_new(self, path: str, text: str) -> None:
        super().write_new(path.lower(), text)

    def rename_new(self, source: str, target: str) -> None:
        super().rename_new(source.lower(), target.lower())


@pytest.mark.parametrize(("kind", "refused"), [(CaseBlindFiles, True), (LocalFiles, False)])
def test_topics_that_differ_in_case_only_need_a_file_system_that_tells_them_apart(
    tmp_path: Path, kind: type[LocalFiles], refused: bool
) -> None:
    files = kind(tmp_path)
    publish.write_plan(files, "r1", plan_of(0, 2, "events"))
    first = publish.commit(files, "r1", plan_of(0, 2, "events"), Staged(), None)
    publish.write_plan(files, "r2", plan_of(0, 2, "Events"))
    if refused:
        with pytest.raises(ManifestError, match="topics events and Events differ in case only"):
            publish.commit(files, "r2", plan_of(0, 2, "Events"), Staged(), first)
    else:
        assert publish.commit(files, "r2", plan_of(0, 2, "Events"), Staged(), first).number == 2


# Manifests of format 1 ----------------------------------------------------------------------------------------------


def format_1(number: int, topic: str, final: str, staged: str = "_kafkalite/staging/old/data/x") -> str:
    """As version 1 wrote them: no ids, no sizes, the topic's name as it is."""
    file = {"staged": staged, "final": final, "topic": topic, "partition": 0}
    return json.dumps(
        {
            "format": 1,
            "number": number,
            "run": f"old{number}",
            "created": "2025-01-01T00:00:00+00:00",
            "records": 4,
            "records_without_timestamp": 0,
            "next_offsets": {topic: {"0": 4}},
            "files": [file | {"first_offset": 0, "last_offset": 3, "records": 4}],
        }
    )


def test_format_1_is_read_without_ids() -> None:
    manifest = read_manifest(format_1(3, "t", "t/day=2013-01-01/t-0-x.parquet"), "m.json")
    assert manifest.topics == {"t": LoadedTopic(None, {0: 4})}
    assert manifest.next_offsets == {P0: 4}
    assert manifest.files[0].final == "t/day=2013-01-01/t-0-x.parquet"
    assert (manifest.files[0].hidden_final, manifest.files[0].size_bytes) == (None, None)


def test_files_that_format_1_hid_are_renamed_and_their_directories_go(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    hidden = {
        "_schemas": ("day=2013-01-01/", "%5Fschemas"),
        ".x": ("day=2013-01-01/hour=05/", "%2Ex"),
        "_kafkalite": ("", "%5Fkafkalite"),
        "a._COPYING_": ("", "a._COPYING%5F"),
    }
    for number, (topic, (times, _)) in enumerate(hidden.items(), 1):
        final = f"{topic}/{times}{topic}-0-{0:020d}-{3:020d}.parquet"
        files.write_new(final, topic)
        files.write_new(f"_kafkalite/manifests/{number:020d}.json", format_1(number, topic, final))
    files.write_new("_schemas/notes.txt", "somebody's")
    for changes in range(4):
        with pytest.raises(Stopped):
            publish.recover(StoppingFiles(tmp_path, 1 if changes < 3 else 0))
    assert publish.recover(files).renamed == 1
    assert publish.recover(files).renamed == 0
    for topic, (times, name) in hidden.items():
        assert files.read(f"{name}/{times}{name}-0-{0:020d}-{3:020d}.parquet") == topic
    assert files.names("") == ["%2Ex", "%5Fkafkalite", "%5Fschemas", "_kafkalite", "_schemas", "a._COPYING%5F"]
    assert files.names("_kafkalite") == ["manifests"]
    assert files.names("_schemas") == ["notes.txt"]


def test_a_run_of_format_1_that_stopped_in_its_moves_is_completed_under_the_names_of_today(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    staged, final = f"{staging_path('old1')}/data/x", f"_t/_t-0-{0:020d}-{3:020d}.parquet"
    files.write_new(staged, "records")
    files.write_new("_kafkalite/manifests/00000000000000000001.json", format_1(1, "_t", final, staged))
    assert publish.recover(files).moved == 1
    assert files.read(f"%5Ft/%5Ft-0-{0:020d}-{3:020d}.parquet") == "records"


def test_manifest_round_trip() -> None:
    manifest = Manifest(
        7,
        "r",
        "2026-01-01T00:00:00+00:00",
        (
            PublishedFile("_kafkalite/staging/r/1", "t/1", "t", (FilePart(3, 5, 9, 4), FilePart(4, 0, 0, 1)), 1234),
            PublishedFile("_kafkalite/staging/r/2", "t/_late/2", "t", (FilePart(3, 11, 12, 2),), 9, late=True),
        ),
        {
            "t": LoadedTopic(ID, {3: 10, 11: 2}, (None, "AAAAAAAAQACAAAAAAAAAAg"), {3: 1_000}, ("t/day=2026-01-01",)),
            "u": LoadedTopic(None, {0: 1}, layout={"format": "parquet", "value": "bytes"}),
            "v": LoadedTopic(None, {}, layout={}),
        },
        7,
        1,
        (LostRange("t", 3, 2, 5),),
        (RecreatedTopic("t", None, ID, {3: 17}),),
        ("u",),
        (LoadedRange("t", 3, 2, 20, 3, 1, 2, 4, 8, 1, 2, 99, 5, 6), LoadedRange("u", 0, 4, 4)),
        ("t/day=2025-12-31",),
        ("t/day=2025-12-30",),
        ("t/old",),
        {"format": "parquet"},
        "compact",
        quarantine=(
            PublishedFile(
                "_kafkalite/staging/r/3", "_kafkalite/quarantine/t/3", "t", (FilePart(3, 10, 10, 1),), size_bytes=5
            ),
        ),
        event_time_fallbacks=4,
    )
    assert read_manifest(manifest.to_json(), "x") == manifest


def test_the_page_about_loads_names_every_field_of_a_manifest() -> None:
    page = (PROJECT / "docs" / "hadoop_load.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    fields = re.findall(r"`(\w+)`", "".join(rows))
    assert fields == list(json.loads(Manifest(1, "r", "now", (), {}, 0, 0).to_json()))


def test_damage_is_told_with_the_destination(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    load(files, "r1", 0, 4)
    path = tmp_path / "_kafkalite" / "manifests" / f"{1:020d}.json"
    whole = path.read_bytes()
    for damaged in (whole[:50], whole.replace(b'"number": 1', b'"number": 2'), whole.replace(b"r1", b"\xff\xfe")):
        path.write_bytes(damaged)
        for read in (publish.newest_manifest, lambda files: list(publish.manifests(files))):
            with pytest.raises(ManifestError, match=f"{files.root}/_kafkalite/manifests/{1:020d}.json is"):
                read(files)


def test_manifest_numbers_ignore_other_files() -> None:
    assert manifest_numbers(
        [
            ".00001.json.tmp",
            "00000000000000000010.json",
            "00000000000000000002.json",
            "x.json",
            "2.json",
            "\u00b23.json",
            "\u0663" * 20 + ".json",
        ]
    ) == [2, 10]


def test_marks_of_directories_are_made_and_taken_wherever_a_run_stops(tmp_path: Path) -> None:
    day, other = "t/day=2026-01-01", "t/day=2026-01-02"
    for changes in range(12):
        files = LocalFiles(tmp_path / str(changes))
        files.write_new(f"{day}/_SUCCESS", "")
        run, stopping = "r1", StoppingFiles(tmp_path / str(changes), changes)
        staged = f"{staging_path(run)}/data/x"
        try:
            publish.write_plan(stopping, run, plan_of(0, 2))
            stopping.write_new(staged, "rows")
            file = PublishedFile(staged, f"{day}/x", "t", (FilePart(0, 0, 1, 2),), 4, late=True)
            directories = Directories({"t": LoadedTopic(ID, {0: 2})}, (other,), (day,))
            publish.commit(stopping, run, plan_of(0, 2), Staged((file,)), None, directories)
        except Stopped:
            publish.recover(files)
        committed = any(manifest.files for manifest in publish.manifests(files))
        assert files.names(day) == (["x"] if committed else ["_SUCCESS"]), f"stopped before change {changes}"
        assert files.names(other) == (["_SUCCESS"] if committed else [])
    assert committed
