from ds_tft.data.cleaning_report import CleaningReport, DuplicateCounts, GapCounts, MissingCounts


def test_nothing_done_prints_nothing():
    assert CleaningReport().lines() == []
    clean = CleaningReport(
        duplicates=DuplicateCounts(policy="last"),
        gaps=GapCounts(policy="fill", step="1h", segments=8),
        missing=MissingCounts(policy="fill"),
    )
    assert clean.lines() == []


def test_every_count_has_its_line():
    report = CleaningReport(
        out_of_order=1200,
        duplicates=DuplicateCounts(policy="last", dropped={"A": 1, "B": 2}),
        gaps=GapCounts(
            policy="fill",
            step="1h",
            gaps={"A": 5},
            longest=40,
            bridged=4,
            filled_rows=9,
            segments=3,
            off_grid=6,
            shared_steps=7,
        ),
        missing=MissingCounts(
            policy="fill",
            carried={"x": 3},
            without_past={"y": 2},
            null_categories={"c": 1},
        ),
    )
    assert report.lines() == [
        "order: 1,200 rows were out of order; all are sorted",
        "duplicates: 3 rows dropped, the last of each time kept (B 2, A 1)",
        "grid: 6 rows are off the 1h grid; each counts for its step",
        "grid: 7 rows share a 1h step with the row before",
        "gaps: 5 gaps, the longest of 40 1h steps (A 5)",
        "gaps: 4 filled with 9 rows",
        "gaps: 1 ended a segment, which leaves 3 segments",
        "missing: 3 values carried forward (x 3)",
        "missing: 2 values with none before them take the training mean (y 2)",
        "missing: 1 null categories are taken as a category of their own (c 1)",
    ]


def test_dropped_values_and_tolerated_gaps():
    assert MissingCounts(policy="drop", dropped={"x": 4, "y": 1}, unusable_rows=4).lines() == [
        "missing: no window touches 4 rows with 5 missing values (x 4, y 1)"
    ]
    counts = GapCounts(policy="tolerate", step="1min", gaps={"": 2}, longest=3, bridged=2, segments=1)
    assert counts.lines() == ["gaps: 2 gaps, the longest of 3 1min steps", "gaps: 2 tolerated"]


def test_long_lists_of_names_are_cut():
    counts = DuplicateCounts(policy="first", dropped={f"s{i}": i for i in range(1, 9)})
    assert counts.lines() == [
        "duplicates: 36 rows dropped, the first of each time kept (s8 8, s7 7, s6 6, s5 5, s4 4, 3 more)"
    ]
