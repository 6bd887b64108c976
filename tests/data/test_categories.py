import numpy as np

from ds_tft.data.categories import CategoryMap, unseen_line


def fit(codes, values, train=None):
    codes = np.array(codes)
    return CategoryMap.fit(codes, values, np.ones(len(codes), dtype=bool) if train is None else train)


def test_codes_follow_the_value_and_not_the_file():
    first = fit([0, 1, 0], ["NQ", "ES"])
    second = fit([1, 0, 1], ["ES", "NQ"])
    assert first == second
    codes = [
        first.encode(np.array(c), v)[0].tolist() for c, v in [([0, 1], ["NQ", "ES"]), ([1, 0], ["ES", "NQ"])]
    ]
    assert codes == [[2, 1], [2, 1]]
    assert first.cardinality == 3


def test_values_after_training_are_unseen_and_reported():
    codes = np.array([0, 1, 2, 2, -1])
    fitted = fit(codes, ["jan", "feb", "aug", "never used"], np.array([True, True, False, False, False]))
    encoded, unseen = fitted.encode(codes, ["jan", "feb", "aug", "never used"])
    assert fitted.values == ("feb", "jan")
    assert encoded.dtype == np.int32
    assert encoded.tolist() == [2, 1, 0, 0, 0]
    assert unseen == {"aug": 2, "<null>": 1}
    assert encoded.max() < fitted.cardinality == 3


def test_null_in_training_is_a_value():
    fitted = fit([0, -1, 1], ["<null>", "a"])
    encoded, unseen = fitted.encode(np.array([-1, 0, 1, 2]), ["<null>", "a", "b"])
    assert encoded.tolist() == [3, 1, 2, 0]
    assert unseen == {"b": 1}
    assert fitted.cardinality == 4


def test_no_rows_and_no_training_rows():
    fitted = fit([0, 0], ["a"], np.zeros(2, dtype=bool))
    assert fitted.cardinality == 1
    encoded, unseen = fitted.encode(np.array([0, -1]), ["a"])
    assert encoded.tolist() == [0, 0]
    assert unseen == {"a": 1, "<null>": 1}
    encoded, unseen = fitted.encode(np.empty(0, dtype=int), [])
    assert encoded.shape == (0,)
    assert unseen == {}


def test_json_round_trip():
    fitted = fit([0, 1, -1], ["ü", 'a"b'])
    assert CategoryMap.model_validate_json(fitted.model_dump_json()) == fitted


def test_unseen_line_names_the_most_frequent():
    line = unseen_line("month", {f"m{i}": 10 - i for i in range(7)})
    assert line == (
        "month: 7 values unseen in training, taken as unknown, 49 times: "
        "'m0' (10), 'm1' (9), 'm2' (8), 'm3' (7), 'm4' (6) and 2 more"
    )
