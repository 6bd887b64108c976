from __future__ import annotations

import numpy as np

from ds_tft.forecast.rows import rows_with_earlier, segment_of_row


def test_rows_with_earlier_needs_one_segment_and_both_rows(build_table):
    table = build_table([(0, np.ones((4, 1))), (0, np.ones((3, 1)))], [1])
    segments = segment_of_row(table)
    assert segments.tolist() == [0, 0, 0, 0, 1, 1, 1]
    allowed = np.array([1, 1, 0, 1, 1, 1, 1], dtype=np.bool_)
    assert rows_with_earlier(segments, allowed, 1).tolist() == [1, 5, 6]
    assert rows_with_earlier(segments, allowed, 2).tolist() == [3, 6]
    assert rows_with_earlier(segments, allowed, 9).tolist() == []


def test_rows_in_no_segment_are_never_paired(build_table):
    table = build_table([(0, np.ones((6, 1)))], [1])
    table.segments[0] = (0, 2, 6)
    assert segment_of_row(table).tolist() == [-1, -1, 0, 0, 0, 0]
    assert rows_with_earlier(segment_of_row(table), np.ones(6, np.bool_), 1).tolist() == [3, 4, 5]
