import io
import json
import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from spark_kafkalite.cli.main import run
from spark_kafkalite.log.files.os_fs import OsFs
from spark_kafkalite.log.files.small_files import partition_metadata, write_own_starts
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records import kernel
from spark_kafkalite.records.compression import ZSTD
from spark_kafkalite.records.kernel import OpenBatch
from tests.paths import GOLDEN


def batch(base_offset: int, values: list[bytes], codec: int = 0, timestamp: int = 1000) -> bytes:
    open_batch = OpenBatch(1 << 20)
    for number, value in enumerate(values):
        open_batch.append(timestamp + number, b"k%d" % number, value, [("h", b"x")])
    data = open_batch.build(codec, None)
    kernel.stamp(data, 0, base_offset, 4)
    return bytes(data)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A partition directory with one segment of three batches, and indexes that agree with it."""
    directory = tmp_path / "events-7"
    directory.mkdir()
    batches = [batch(0, [b"a", b"b"]), batch(2, [b"c" * 500], ZSTD, 2000), batch(3, [b"d"], 0, 1500)]
    (directory / "00000000000000000000.log").write_bytes(b"".join(batches))
    second = len(batches[0])
    (directory / "00000000000000000000.index").write_bytes(struct.pack(">ii", 2, second))
    (directory / "00000000000000000000.timeindex").write_bytes(struct.pack(">qi", 2000, 2))
    (directory / "leader-epoch-checkpoint").write_text("0\n1\n4 0\n")
    return directory


def dump(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = run(["dump-log", *map(str, arguments)])
    return code, capsys.readouterr().out


def test_a_whole_log_is_shown_and_found_good(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = dump(capsys, log)
    assert code == 0
    assert "baseOffset: 0 lastOffset: 1 count: 2 " in out
    assert "compresscodec: zstd" in out
    assert "isvalid: false" not in out
    assert f"OK {log}/00000000000000000000.log: 3 batches, 4 records" in out
    assert "payload" not in out


def test_a_brokers_directory_stands_for_all_its_logs(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (log.parent / "recovery-point-offset-checkpoint").write_text("0\n1\nevents 7 4\n")
    (log.parent / "events-10").mkdir()
    (log.parent / "events-10" / "00000000000000000000.log").write_bytes(b"torn")
    (log.parent / "events-10" / "leader-epoch-checkpoint").write_text("x")
    (log.parent / "events-7.0f-delete").mkdir()
    (log.parent / "events-7.0f-delete" / "00000000000000000000.log").write_bytes(b"torn")
    code, out = dump(capsys, "--check", log.parent)
    assert code == 1
    # Each file once, with its path once.
    assert [
        line.removeprefix(f"{log.parent}/") for line in out.replace("OK ", "").replace("DAMAGED ", "").split("\n")
    ] == [
        "recovery-point-offset-checkpoint: 1 entries",
        "events-7/00000000000000000000.log: 3 batches, 4 records",
        "events-7/00000000000000000000.index: 1 entries",
        "events-7/00000000000000000000.timeindex: 1 entries",
        "events-7/leader-epoch-checkpoint: 1 entries",
        "events-10/00000000000000000000.log: position 0: record batch at position 0: its header takes 61 bytes, 4 are "
        "left; 4 bytes are not readable",
        "events-10/leader-epoch-checkpoint: the first two lines are not a version and a number of entries",
        "",
    ]


def test_records_are_shown_when_asked_for(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = dump(capsys, "--print-data-log", "--files", log / "00000000000000000000.log")
    assert code == 0
    assert "| offset: 1 CreateTime: 1001 keySize: 2 valueSize: 1 headerKeys: [h] key: k1 payload: b" in out


def test_what_a_cleaner_leaves_is_found_good(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    captured = GOLDEN / "records" / "cleaned.log"
    path = tmp_path / "cleaned-0" / "00000000000000000000.log"
    path.parent.mkdir()
    path.write_bytes(captured.read_bytes())
    code, out = dump(capsys, "--print-data-log", "--files", path)
    assert code == 0
    assert "baseOffset: 0 lastOffset: 3 count: 2 " in out and "deleteHorizonMs: 1795363129155" in out
    assert "baseOffset: 20 lastOffset: 20 count: 0 " in out
    assert "| offset: 17 CreateTime: 1700000000017 keySize: 9 valueSize: -1 headerKeys: [h] key: gone zstd\n" in out


def test_json_lines(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = dump(capsys, "--json", "--print-data-log", log)
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    records = [line for line in lines if "type" not in line]
    assert [(each["topic"], each["partition"], each["offset"]) for each in records] == [
        ("events", 7, n) for n in range(4)
    ]
    (segment,) = [line for line in lines if line.get("type") == "file" and line["path"].endswith(".log")]
    assert (segment["batches"], segment["records"], segment["damage"]) == (3, 4, [])


def damaged(log: Path, name: str, change: object) -> None:
    path = log / name
    data = bytearray(path.read_bytes())
    change(data)  # type: ignore[operator]
    path.write_bytes(data)


def flip(position: int):
    def change(data: bytearray) -> None:
        data[position] ^= 1

    return change


SEGMENT, INDEX, TIMES = ("00000000000000000000" + suffix for suffix in (".log", ".index", ".timeindex"))


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (SEGMENT, flip(70), "CRC"),
        (SEGMENT, flip(16), "magic"),
        (SEGMENT, lambda data: data.__delitem__(slice(-5, None)), "ends in the middle of the batch at offset 3"),
        (SEGMENT, lambda data: data.extend(b"\x00" * 30), "not readable"),
        (SEGMENT, lambda data: data.extend(batch(2, [b"again"])), "its offset is below 4"),
        (INDEX, lambda data: data.extend(struct.pack(">ii", 1, 5)), "does not ascend"),
        (INDEX, flip(7), "no batch begins at position"),
        (INDEX, flip(3), "ends with 2"),
        (INDEX, lambda data: data.append(1), "not a multiple of 8"),
        (TIMES, flip(6), "where the segment has 2000"),
        (TIMES, flip(10), "beyond the end"),
        ("leader-epoch-checkpoint", lambda data: data.extend(b"5 9\n"), "1 entries announced, 2 found"),
    ],
)
def test_damage_is_found_and_nothing_is_repaired(
    log: Path, capsys: pytest.CaptureFixture[str], name: str, change: object, said: str
) -> None:
    damaged(log, name, change)
    before = {path.name: path.read_bytes() for path in log.iterdir()}
    code, out = dump(capsys, "--check", log)
    assert code == 1
    lines = [line for line in out.splitlines() if line.startswith(f"DAMAGED {log / name}: ")]
    assert said in "\n".join(lines)
    # A fault in one file is not blamed on the others; indexes may name what the segment has lost.
    blamed = {line.split(": ")[0] for line in out.splitlines() if line.startswith("DAMAGED")}
    assert len(blamed) == 1 or name == SEGMENT
    assert {path.name: path.read_bytes() for path in log.iterdir()} == before


def test_a_record_that_lies_about_its_length_is_found_behind_a_good_crc(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from crc32c import crc32c

    data = bytearray(batch(4, [b"value"]))
    data[61] ^= 0x02  # the record's length
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    with (log / SEGMENT).open("ab") as file:
        file.write(data)
    code, out = dump(capsys, "--check", log / SEGMENT)
    assert code == 1
    assert "offset 4: record 0" in out


def test_kafkas_preallocated_index_is_good(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged(log, INDEX, lambda data: data.extend(bytes(8000)))
    assert dump(capsys, "--check", log)[0] == 0


def test_an_empty_segment_is_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / SEGMENT).touch()
    code, out = dump(capsys, tmp_path)
    assert (code, "0 batches" in out) == (0, True)


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dump(capsys)[0] == 2
    assert dump(capsys, tmp_path)[0] == 1
    assert dump(capsys, tmp_path / "nothing")[0] == 1
    (tmp_path / "notes.txt").write_text("x")
    assert dump(capsys, tmp_path / "notes.txt")[0] == 2


# Repair -------------------------------------------------------------------------------------------------------------


def tear(log: Path, extra: bytes = b"torn") -> Path:
    segment = log / "00000000000000000000.log"
    segment.write_bytes(segment.read_bytes() + extra)
    return segment


def test_repair_cuts_a_torn_tail_when_told_to(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (log / "00000000000000000000.log").read_bytes()
    segment = tear(log)
    (log.parent / ".kafka_cleanshutdown").write_text("{}")
    code, out = dump(capsys, "--repair", "--yes", log)
    assert code == 0
    assert f"DAMAGED {segment} at position {len(before)}" in out
    assert "to be cut: 4 bytes; the log would end at offset 4" in out
    assert f"what was cut is in {segment}.torn" in out
    assert segment.read_bytes() == before
    assert Path(f"{segment}.torn").read_bytes() == b"torn"
    assert not (log.parent / ".kafka_cleanshutdown").exists()
    assert dump(capsys, log)[0] == 0
    assert "nothing to cut" in dump(capsys, "--repair", log)[1]


@pytest.mark.parametrize(("answer", "cut"), [("y\n", True), ("n\n", False), ("\n", False), ("", False)])
def test_repair_asks(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: str, cut: bool
) -> None:
    segment = tear(log)
    torn = segment.read_bytes()
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    code, out = dump(capsys, "--repair", log)
    assert "to be cut: 4 bytes" in out
    assert code == (0 if cut else 1)
    assert (segment.read_bytes() != torn) is cut


def test_repair_does_not_take_sound_batches_for_a_torn_tail(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged(log, "00000000000000000000.log", flip(70))
    segment = log / "00000000000000000000.log"
    torn = segment.read_bytes()
    code, out = dump(capsys, "--repair", "--yes", log)
    assert code == 1
    assert "NOT A TORN TAIL: 2 sound batches with 2 records follow the damage, offsets 2 to 3" in out
    assert segment.read_bytes() == torn
    code, out = dump(capsys, "--repair", "--yes", "--force", log)
    assert code == 0
    assert segment.read_bytes() == b""
    assert Path(f"{segment}.torn").read_bytes() == torn


def test_repair_does_not_take_a_whole_batch_for_a_torn_tail(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = log / SEGMENT
    sound = segment.read_bytes()
    last = bytearray(batch(4, [b"%d" % number for number in range(100)]))
    last[100] ^= 1
    segment.write_bytes(sound + last)
    code, out = dump(capsys, "--repair", "--yes", log)
    assert code == 1
    assert "the log would end at offset 4" in out
    assert "holds, by its header, offsets 4 to 103, 100 records; all of its bytes exist, so it is DAMAGED" in out
    assert "left as it is: --yes is for torn tails; add --force to cut whole batches" in out
    assert segment.read_bytes() == sound + last
    assert dump(capsys, "--repair", "--yes", "--force", log)[0] == 0
    assert segment.read_bytes() == sound
    assert Path(f"{segment}.torn").read_bytes() == last


def test_repair_says_which_offsets_a_torn_batch_held(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tear(log, batch(4, [b"a", b"b"])[:-1])
    code, out = dump(capsys, "--repair", "--yes", log)
    assert code == 0
    assert "holds, by its header, offsets 4 to 5, 2 records; its end is missing" in out


def test_repair_refuses_while_a_broker_runs(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = tear(log)
    torn = segment.read_bytes()
    lock = OsFs().lock(str(log.parent / ".lock"))
    assert lock is not None
    code = run(["dump-log", "--repair", "--yes", str(log)])
    assert code == 1
    assert "a broker uses" in capsys.readouterr().err
    assert segment.read_bytes() == torn
    lock.release()
    assert dump(capsys, "--repair", "--yes", log)[0] == 0


def test_checkpoints_are_shown(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (log.parent / "recovery-point-offset-checkpoint").write_text("0\n1\nevents 7 4\n")
    (log.parent / "log-start-offset-checkpoint").write_text("0\n2\nevents 7 1\n")
    (log.parent / "meta.properties").write_text("version=0\nbroker.id=3\ncluster.id=abc\n")
    code, out = dump(capsys, log.parent)
    assert code == 1
    assert "topic: events partition: 7 offset: 4" in out
    assert "broker.id: 3" in out
    assert "DAMAGED" in out
    assert "2 entries announced, 1 found" in out


def test_the_log_starts_that_a_broker_has_written_are_shown(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = log.parent / "kafkalite-log-starts"
    write_own_starts(OsFs(), str(path), {TopicPartition("events", 7): 4})
    code, out = dump(capsys, log.parent)
    assert code == 0, out
    assert "topic: events partition: 7 offset: 4" in out
    assert f"OK {path}: 1 entries" in out
    path.write_bytes(path.read_bytes().replace(b"7 4", b"7 5"))
    code, out = dump(capsys, log.parent)
    assert code == 1
    assert f"DAMAGED {path}: its checksum is missing or wrong" in out


def test_what_compaction_leaves_is_good(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = log / "00000000000000000000.log"
    emptied = bytearray(batch(9, [b"gone"])[:61])
    struct.pack_into(">i", emptied, 8, 49)
    struct.pack_into(">i", emptied, 57, 0)
    struct.pack_into(">I", emptied, 17, crc32c(bytes(emptied[21:])))
    segment.write_bytes(segment.read_bytes() + bytes(emptied))
    (log / "00000000000000000000.txnindex").write_bytes(b"x" * 34)
    horizon = bytearray(batch(20, [b"late"]))
    horizon[22] |= 0x40
    struct.pack_into(">q", horizon, 27, 1234)
    struct.pack_into(">I", horizon, 17, crc32c(bytes(horizon[21:])))
    segment.write_bytes(segment.read_bytes() + bytes(horizon))
    code, out = dump(capsys, log)
    assert code == 0, out
    assert "count: 0" in out
    assert "deleteHorizonMs: 1234" in out
    assert f"UNKNOWN {log}/00000000000000000000.txnindex" in out
    assert "nothing to cut" in dump(capsys, "--repair", log)[1]


def test_yes_is_for_repair(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dump-log", "--yes", str(log)]) == 2


def test_symbolic_links_are_told_of_and_not_followed(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outside = log.parent / "outside"
    outside.write_bytes(b"somebody's")
    for name in ("00000000000000000009.log", "00000000000000000009.index", "00000000000000000004.snapshot"):
        (log / name).symlink_to(outside)
    (log / "partition.metadata").symlink_to(outside)
    (log.parent / "events-8").symlink_to(log)
    code, out = dump(capsys, "--check", log.parent)
    assert code == 1
    linked = {
        line.split(":")[0] for line in out.splitlines() if "a symbolic link, which a broker does not follow" in line
    }
    names = ("00000000000000000009.log", "00000000000000000009.index", "00000000000000000004.snapshot")
    assert linked == {
        f"DAMAGED {path}"
        for path in (log.parent / "events-8", log / "partition.metadata", *(log / name for name in names))
    }
    assert f"OK {log}/00000000000000000000.log: 3 batches, 4 records" in out
    # A directory that somebody names may be a link, as log.dirs may.
    code, out = dump(capsys, "--check", log.parent / "events-8")
    assert f"OK {log.parent}/events-8/00000000000000000000.log: 3 batches, 4 records" in out


def test_a_directory_with_the_log_of_another_partition(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = log / "partition.metadata"
    path.write_bytes(partition_metadata(bytes(range(16)), 7))
    assert dump(capsys, log)[0] == 0
    path.write_bytes(partition_metadata(bytes(range(16)), 8))
    code, out = dump(capsys, "--check", log)
    assert code == 1
    assert f"DAMAGED {path}: the log is that of partition 8: give the directory its name back" in out


def test_repair_follows_no_link(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = log / "00000000000000000000.log"
    target = log.parent / "outside"
    target.write_bytes(segment.read_bytes() + b"torn")
    segment.unlink()
    segment.symlink_to(target)
    before = target.read_bytes()
    assert run(["dump-log", "--repair", "--yes", str(log)]) == 1
    assert "is a symbolic link" in capsys.readouterr().err
    assert target.read_bytes() == before


def test_segment_name_beyond_int64(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"{2**63:020d}.log"
    (log / name).write_bytes(b"")
    code, out = dump(capsys, "--check", log)
    assert code == 1 and f"DAMAGED {log}/{name}: the name is larger than any offset" in out
    assert run(["dump-log", "--repair", "--yes", str(log)]) == 1
    assert name in capsys.readouterr().err
