import re

import pytest

from ds_tft.config.json_reader import LIMIT_BYTES, dotted, parse_json, read_json, shortened
from ds_tft.errors import ConfigError


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "run.json"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def refusal(path):
    with pytest.raises(ConfigError) as caught:
        read_json(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_reads_plain_json(write):
    text = '{"a": {"b": [1, -2.5e3, null, true, "é"]}, "c": 18446744073709551615}'
    assert read_json(write(text)) == {"a": {"b": [1, -2500.0, None, True, "é"]}, "c": 2**64 - 1}


def test_byte_order_mark_is_no_content(write):
    assert read_json(write(b'\xef\xbb\xbf{"a": 1}')) == {"a": 1}


@pytest.mark.parametrize(
    ("text", "place", "fix"),
    [
        ('{"a": 1,}', "1:9", "remove the comma before the closing bracket"),
        ('{"a": [1, 2, ]}', "1:14", "remove the comma before the closing bracket"),
        ('{\n  "a": 1 // one\n}', "2:10", "remove the comment"),
        ("# settings\n{}", "1:1", "remove the comment"),
        ('{"a": /* one */ 1}', "1:7", "remove the comment"),
        ("{'a': 1}", "1:2", "use double quotes"),
        ("{\"a\": 'x'}", "1:7", "use double quotes"),
        ('{"a": True}', "1:7", "write true"),
        ('{"a": False}', "1:7", "write false"),
        ('{"a": None}', "1:7", "write null"),
        ('{"a": 1', "1:8", "ends too early"),
        ('{"a": "x\n"}', "1:9", "close the quote on the same line"),
        ('{"a": 1} {}', "1:10", "keep one JSON value"),
        ('{"a" 1}', "1:6", "put a colon between key and value"),
        ('{"a": 1 "b": 2}', "1:9", "put a comma between two values"),
        ("{a: 1}", "1:2", "put keys in double quotes"),
        ('{"a": .5}', "1:7", "write a number, true, false, null"),
    ],
)
def test_syntax_errors_say_where_and_what_to_change(write, text, place, fix):
    path = write(text)
    line, column = map(int, place.split(":"))
    message = refusal(path)
    assert fix in message
    found = re.fullmatch(rf"{re.escape(path)}:(\d+):(\d+): not valid JSON, .*", message)
    # Python 3.13 points at a trailing comma, earlier releases at the bracket after it.
    assert int(found[1]) == line
    assert column - 2 <= int(found[2]) <= column


def test_repeated_key_is_named_with_its_path(write):
    message = refusal(write('{"zero": [{}, {"stage": 1, "stage": 2}]}'))
    assert message.endswith(": zero[1].stage: key written twice; keep one of the two")


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ('{"a": {"b": [0, NaN]}}', "a.b[1]: not a JSON value, got NaN; write a finite number or null"),
        ('{"a": -Infinity}', "a: not a JSON value, got -Infinity; write a finite number or null"),
        ('{"a": 1e999}', "a: too large a number, got 1e999; write a finite number or null"),
        (
            '{"a": ' + "9" * 9999 + "}",
            f"a: too large a number, got {'9' * 20}; write a finite number or null",
        ),
        ('{"a b": {"c": NaN}}', '"a b".c: not a JSON value, got NaN; write a finite number or null'),
        ('{"a": "\\ud800"}', 'a: not a character, got "\\ud800"; write the character itself'),
        ('{"\\ud800": 1}', 'not a character, got "\\ud800"; write the character itself'),
    ],
)
def test_values_outside_strict_json(write, text, end):
    assert refusal(write(text)).endswith(f": {end}")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 60 + "1" + "}" * 60])
def test_deep_nesting(write, text):
    assert refusal(write(text)).endswith(": nested more than 50 levels deep; is this the right file?")


@pytest.mark.parametrize("text", ["[1]", '"x"', "null", "3"])
def test_top_level_must_be_an_object(write, text):
    assert refusal(write(text)).endswith(f": expected an object, got {text}; write settings inside {{ }}")


@pytest.mark.parametrize("text", ["", " \n"])
def test_empty_file(write, text):
    assert refusal(write(text)).endswith(": the file is empty; write {} for all defaults")


def test_not_utf8(write):
    message = refusal(write(b"PAR1\x15\x04\x80"))
    assert message.endswith(": not UTF-8 text, got byte 0x80 at offset 6; save it as UTF-8 JSON")


def test_huge_file(write):
    assert refusal(write(b" " * (LIMIT_BYTES + 1))).endswith(": larger than 4 MiB; is this the right file?")


def test_missing_file_names_its_neighbour(write, tmp_path):
    write("{}")
    assert refusal(str(tmp_path / "runn.json")).endswith(": no such file; did you mean 'run.json'?")


def test_missing_file_without_neighbours(tmp_path):
    assert "no such file; there is no JSON file in" in refusal(str(tmp_path / "run.json"))
    assert "no such file; there is no directory" in refusal(str(tmp_path / "nowhere" / "run.json"))


def test_directory(tmp_path):
    assert refusal(str(tmp_path)).endswith(": is a directory; give the JSON file in it")


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000])
def test_impossible_path(path):
    assert ": cannot be read, " in refusal(path)


def test_parse_json_takes_any_value():
    assert parse_json("[1, {}]", "--set") == [1, {}]


def test_paths_and_values_are_kept_short():
    assert dotted(("a", 0, "b-c", "d.e", "")) == 'a[0].b-c."d.e".""'
    assert len(shortened(list(range(1000)))) == 60
    assert len(dotted(("x" * 1000,))) == 60
