import numpy as np

from ds_tft.data.columns import Codes
from ds_tft.data.series import number_series


def codes(*texts):
    values = tuple(dict.fromkeys(text for text in texts if text is not None))
    return Codes(
        codes=np.array([-1 if text is None else values.index(text) for text in texts], dtype=np.int32),
        values=values,
    )


def test_series_are_numbered_by_key_not_by_first_row():
    ids = number_series({"shop": codes("b", "a", "b", "c")}, 4)
    assert ids.keys == (("a",), ("b",), ("c",))
    assert ids.series_of_row.tolist() == [1, 0, 1, 2]


def test_several_columns_name_a_series_together():
    ids = number_series({"shop": codes("a", "a", "b", "a"), "item": codes("x", "y", "x", "x")}, 4)
    assert ids.keys == (("a", "x"), ("a", "y"), ("b", "x"))
    assert ids.series_of_row.tolist() == [0, 1, 2, 0]
    assert ids.names == ("a/x", "a/y", "b/x")


def test_a_null_id_is_an_id_of_its_own():
    ids = number_series({"shop": codes("a", None, None), "item": codes(None, None, "x")}, 3)
    assert len(ids.keys) == 3
    assert sorted(set(ids.series_of_row.tolist())) == [0, 1, 2]
    assert ids.keys[ids.series_of_row[0]] == ("a", "<null>")


def test_without_id_columns_all_rows_are_one_series_without_a_name():
    ids = number_series({}, 3)
    assert ids.keys == ((),)
    assert ids.names == ("",)
    assert ids.series_of_row.tolist() == [0, 0, 0]


def test_many_wide_id_columns_do_not_run_over():
    rng = np.random.default_rng(0)
    rows = 2000
    columns = {
        f"id{i}": Codes(
            codes=rng.integers(-1, rows, rows).astype(np.int32), values=tuple(map(str, range(rows)))
        )
        for i in range(8)
    }  # 2001**8 combinations are more than int64 holds
    ids = number_series(columns, rows)
    rows_of = {tuple(int(column.codes[row]) for column in columns.values()) for row in range(rows)}
    assert len(ids.keys) == len(rows_of)
    for row in (0, 17, rows - 1):
        expected = tuple(
            "<null>" if column.codes[row] < 0 else str(column.codes[row]) for column in columns.values()
        )
        assert ids.keys[ids.series_of_row[row]] == expected
