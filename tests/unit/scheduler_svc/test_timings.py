"""The histogram of commits, as Prometheus reads it."""

from __future__ import annotations

from scheduler_svc.timings import COMMIT_BUCKETS_S, Timings


def test_a_bucket_counts_all_up_to_its_bound() -> None:
    timings = Timings()
    for duration_s in (0.0001, 0.001, 0.0011, 7.0):
        timings.note_commit(duration_s)
    counts = dict(timings.commit_histogram())
    assert counts["0.0002"] == 1
    assert counts["0.001"] == 2  # a bound belongs to its own bucket
    assert counts["0.0012"] == 3
    assert counts[str(COMMIT_BUCKETS_S[-1])] == 3
    assert counts["+Inf"] == timings.num_commits == 4
