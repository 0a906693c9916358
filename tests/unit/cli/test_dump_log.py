import json
import struct
from pathlib import Path

import pytest

from spark_kafkalite.cli.main import run
from spark_kafkalite.records import kernel
from spark_kafkalite.records.compression import ZSTD
from spark_kafkalite.records.kernel import OpenBatch


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


def test_records_are_shown_when_asked_for(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = dump(capsys, "--print-data-log", "--files", log / "00000000000000000000.log")
    assert code == 0
    assert "| offset: 1 CreateTime: 1001 keySize: 2 valueSize: 1 headerKeys: [h] key: k1 payload: b" in out


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
