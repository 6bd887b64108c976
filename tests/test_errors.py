from ds_tft.errors import suggestion


def test_near_name_is_suggested():
    assert suggestion("hiden_size", ["hidden_size", "dropout"]) == "did you mean 'hidden_size'?"


def test_without_a_near_name_all_are_listed():
    assert suggestion("xyz", ["b", "a"]) == "known: a, b"


def test_a_name_in_other_letters_is_suggested():
    assert suggestion("Y", ["time", "y"]) == "did you mean 'y'?"
    assert suggestion("y", ["x", "Y"]) == "did you mean 'Y'?"
