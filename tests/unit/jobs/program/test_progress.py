"""What a run prints of its progress, where Spark has repeated tasks."""

from spark_kafkalite.jobs.program.progress import line


def test_a_line_ends_at_the_total() -> None:
    assert line("loading", 500, 1_000, 2e6, 1.0) == (
        "loading: 500 of 1,000 records, about 1.0 of 2.0 MB, 1.0 MB/s, about 1 s left"
    )
    # The tasks have written more than the plan has: one was repeated.
    assert line("loading", 1_300, 1_000, 2e6, 1.0) == (
        "loading: 1,000 of 1,000 records, about 2.0 of 2.0 MB, 2.0 MB/s, about 0 s left"
    )
