"""Suites that every implementation of an interface must pass.

Each is a class of test functions over a fixture that the test module gives: subclass it there under a name that pytest
collects, and define the fixture.
"""

from __future__ import annotations

import errno

import pytest

from spark_kafkalite.log.files.file_kind import Kind
from spark_kafkalite.log.files.fs import Fs, read_whole, remove_tree, replace_file, write_whole


class FsContract:
    """What ``log.fs.Fs`` promises. Needs fixtures ``fs`` and ``root``, the path of an empty directory in it."""

    def test_missing_file_is_an_error_unless_it_may_be_made(self, fs: Fs, root: str) -> None:
        with pytest.raises(FileNotFoundError):
            fs.open(f"{root}/a")
        assert not fs.exists(f"{root}/a")
        assert fs.open(f"{root}/a", create=True).size() == 0
        assert fs.exists(f"{root}/a")

    def test_opening_for_creation_keeps_what_is_there(self, fs: Fs, root: str) -> None:
        write_whole(fs.open(f"{root}/a", create=True), b"abc")
        assert fs.open(f"{root}/a", create=True).pread(9, 0) == b"abc"

    def test_file_in_a_missing_directory_is_an_error(self, fs: Fs, root: str) -> None:
        with pytest.raises(FileNotFoundError):
            fs.open(f"{root}/no/a", create=True)

    def test_directory_cannot_be_opened_as_a_file(self, fs: Fs, root: str) -> None:
        fs.make_directories(f"{root}/d")
        with pytest.raises(IsADirectoryError, match="d is a directory where a file should be: move it away"):
            fs.open(f"{root}/d")
        with pytest.raises(IsADirectoryError, match="d is a directory where a file should be"):
            fs.open(f"{root}/d", create=True)

    def test_writes_and_reads_at_positions(self, fs: Fs, root: str) -> None:
        file = fs.open(f"{root}/a", create=True)
        assert file.pwrite(b"hello", 0) == 5
        assert file.pwrite(memoryview(bytearray(b"xy")), 3) == 2
        assert file.size() == 5
        assert file.pread(5, 0) == b"helxy"
        assert file.pread(2, 1) == b"el"

    def test_read_is_short_only_at_the_end(self, fs: Fs, root: str) -> None:
        file = fs.open(f"{root}/a", create=True)
        write_whole(file, b"hello")
        assert file.pread(100, 3) == b"lo"
        assert file.pread(100, 5) == b""
        assert file.pread(100, 500) == b""

    def test_write_beyond_the_end_leaves_zeros(self, fs: Fs, root: str) -> None:
        file = fs.open(f"{root}/a", create=True)
        file.pwrite(b"x", 3)
        assert file.pread(9, 0) == b"\0\0\0x"

    def test_truncate_cuts_and_extends(self, fs: Fs, root: str) -> None:
        file = fs.open(f"{root}/a", create=True)
        write_whole(file, b"hello")
        file.truncate(2)
        assert file.pread(9, 0) == b"he"
        file.truncate(4)
        assert file.pread(9, 0) == b"he\0\0"

    def test_reserve_changes_neither_length_nor_bytes(self, fs: Fs, root: str) -> None:
        file = fs.open(f"{root}/file", create=True)
        file.pwrite(b"abc", 0)
        file.reserve(100_000)
        assert (file.size(), file.pread(10, 0)) == (3, b"abc")
        file.pwrite(b"def", 3)
        file.release_reserve()
        assert (file.size(), file.pread(10, 0)) == (6, b"abcdef")

    def test_two_openings_see_the_same_bytes(self, fs: Fs, root: str) -> None:
        first = fs.open(f"{root}/a", create=True)
        second = fs.open(f"{root}/a")
        first.pwrite(b"abc", 0)
        assert second.pread(9, 0) == b"abc"

    def test_removed_file_stays_readable_for_who_holds_it(self, fs: Fs, root: str) -> None:
        file = fs.open(f"{root}/a", create=True)
        write_whole(file, b"abc")
        fs.unlink(f"{root}/a")
        assert not fs.exists(f"{root}/a")
        write_whole(fs.open(f"{root}/a", create=True), b"new")
        assert file.pread(9, 0) == b"abc"

    def test_entries_name_files_with_sizes_and_directories(self, fs: Fs, root: str) -> None:
        write_whole(fs.open(f"{root}/a", create=True), b"abc")
        fs.make_directories(f"{root}/d/e")
        assert sorted(fs.entries(root)) == [("a", Kind.FILE, 3), ("d", Kind.DIRECTORY, 0)]
        assert [fs.kind(f"{root}/{name}") for name in ("a", "d", "no")] == [Kind.FILE, Kind.DIRECTORY, None]
        assert fs.kind(f"{root}/a/no") is None
        assert [entry.name for entry in fs.entries(f"{root}/d")] == ["e"]
        with pytest.raises(FileNotFoundError):
            fs.entries(f"{root}/no")

    def test_making_directories_again_is_fine(self, fs: Fs, root: str) -> None:
        assert fs.make_directories(f"{root}/d/e")
        assert not fs.make_directories(f"{root}/d/e")
        assert not fs.make_directories(f"{root}/d")
        assert fs.make_directories(f"{root}/d/g")
        write_whole(fs.open(f"{root}/f", create=True), b"")
        with pytest.raises(FileExistsError, match="f is a file where a directory should be"):
            fs.make_directories(f"{root}/f")

    def test_rename_replaces_a_file(self, fs: Fs, root: str) -> None:
        write_whole(fs.open(f"{root}/a", create=True), b"new")
        write_whole(fs.open(f"{root}/b", create=True), b"old")
        fs.rename(f"{root}/a", f"{root}/b")
        assert read_whole(fs, f"{root}/b") == b"new"
        assert not fs.exists(f"{root}/a")

    def test_rename_moves_a_directory_with_what_it_holds(self, fs: Fs, root: str) -> None:
        fs.make_directories(f"{root}/d")
        file = fs.open(f"{root}/d/a", create=True)
        write_whole(file, b"abc")
        fs.rename(f"{root}/d", f"{root}/e")
        assert read_whole(fs, f"{root}/e/a") == b"abc"
        file.pwrite(b"X", 0)
        assert read_whole(fs, f"{root}/e/a") == b"Xbc"

    def test_renaming_what_is_not_there_is_an_error(self, fs: Fs, root: str) -> None:
        with pytest.raises(FileNotFoundError):
            fs.rename(f"{root}/a", f"{root}/b")

    def test_unlink_of_what_is_not_there_is_an_error(self, fs: Fs, root: str) -> None:
        with pytest.raises(FileNotFoundError):
            fs.unlink(f"{root}/a")

    def test_only_empty_directories_can_be_removed(self, fs: Fs, root: str) -> None:
        fs.make_directories(f"{root}/d/e")
        with pytest.raises(OSError) as caught:
            fs.remove_directory(f"{root}/d")
        assert caught.value.errno == errno.ENOTEMPTY
        remove_tree(fs, f"{root}/d")
        assert not fs.exists(f"{root}/d")

    def test_syncs_succeed(self, fs: Fs, root: str) -> None:
        file = fs.open(f"{root}/a", create=True)
        write_whole(file, b"abc")
        file.start_writeback(0, 3)
        file.sync()
        fs.sync_directory(root)
        fs.sync_everything(root)
        assert file.pread(3, 0) == b"abc"

    def test_modification_time_moves_with_writes(self, fs: Fs, root: str) -> None:
        file = fs.open(f"{root}/a", create=True)
        before = fs.modified_ms(f"{root}/a")
        write_whole(file, b"abc")
        assert fs.modified_ms(f"{root}/a") >= before > 0
        with pytest.raises(FileNotFoundError):
            fs.modified_ms(f"{root}/no")

    def test_a_files_identity_stays_with_it_and_is_no_copys(self, fs: Fs, root: str) -> None:
        file = fs.open(f"{root}/a", create=True)
        write_whole(file, b"abc")
        identity = file.identity()
        fs.rename(f"{root}/a", f"{root}/b")
        write_whole(file, b"abcdef")
        assert fs.open(f"{root}/b").identity() == identity
        assert fs.open(f"{root}/a", create=True).identity() != identity
        replace_file(fs, f"{root}/b", b"abcdef")
        assert fs.open(f"{root}/b").identity() != identity

    def test_replace_file_may_ask_the_file_that_it_makes(self, fs: Fs, root: str) -> None:
        fs.open(f"{root}/a.tmp", create=True)
        replace_file(fs, f"{root}/a", lambda file: file.identity().encode())
        file = fs.open(f"{root}/a")
        assert read_whole(fs, f"{root}/a") == file.identity().encode()

    def test_replace_file_names_a_directory_in_its_place(self, fs: Fs, root: str) -> None:
        for taken, path in (("a", "a"), ("b.tmp", "b")):
            fs.make_directories(f"{root}/{taken}")
            with pytest.raises(IsADirectoryError, match=f"{taken} is a directory where a file should be"):
                replace_file(fs, f"{root}/{path}", b"new")
        assert sorted(entry.name for entry in fs.entries(root)) == ["a", "b.tmp"]

    def test_replace_file_leaves_nothing_else_behind(self, fs: Fs, root: str) -> None:
        replace_file(fs, f"{root}/a", b"one, which is longer")
        replace_file(fs, f"{root}/a", b"two", sync=False)
        assert read_whole(fs, f"{root}/a") == b"two"
        assert [entry.name for entry in fs.entries(root)] == ["a"]

    def test_lock_is_held_until_released(self, fs: Fs, root: str) -> None:
        held = fs.lock(f"{root}/.lock")
        assert held is not None
        assert fs.lock(f"{root}/.lock") is None
        held.release()
        held.release()
        again = fs.lock(f"{root}/.lock")
        assert again is not None
        again.release()
