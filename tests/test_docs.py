"""The pages say what the code does: commands parse, links and settings exist, printed output is current."""

import datetime
import importlib.util
import io
import json
import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic_core import PydanticUndefined
from rich.console import Console

from ds_tft.config.deepspeed import read_deepspeed_settings
from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.config.reference import reference
from ds_tft.config.resolve import read_run_settings
from ds_tft.config.run import RunSettings
from ds_tft.config.validation import default_at
from ds_tft.data.infer import infer_roles, roles_table
from ds_tft.data.parquet import open_source
from ds_tft.data.prepare import prepare_training

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "launch" / "examples").glob("*.json"))
SETTING = re.compile(r"`(?:--set )?((?:data|window|split|scaling|model|training)(?:\.[a-z_]+)+)")
FILE_ENDINGS = (".md", ".json", ".jsonl", ".safetensors")
SHOPS = re.compile(r"<!-- printed: made by tests/test_docs.py -->\n```text\n(.*?)```", re.DOTALL)


def name(path):
    return str(path.relative_to(ROOT))


def blocks(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)


def words_of_commands(text):
    """Words of every command that runs a launch script, without the environment before it."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.strip().removeprefix("$ "), comments=True)
        if words and words[0].endswith(("python", "deepspeed")) and any("launch/" in word for word in words):
            yield words


def fenced_commands():
    """Page and words of every command in a code block."""
    for page in PAGES:
        for text in re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            yield from ((name(page), words) for words in words_of_commands(text))


COMMANDS = [pytest.param(words, id=f"{page}: {' '.join(words)}") for page, words in fenced_commands()]


def parse(words):
    """Parses a command with the script's own parser, and the launcher's part with the launcher's."""
    at = next(i for i, word in enumerate(words) if word.startswith("launch/"))
    if words[0].endswith("deepspeed"):
        from deepspeed.launcher.runner import parse_args

        assert parse_args(words[1:]).user_script == words[at]
    else:
        assert at == 1, f"{words[:at]}: no options of python"
    spec = importlib.util.spec_from_file_location("script", ROOT / words[at])
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script.build_parser().parse_args(words[at + 1 :])


def check_settings(options):
    """Reads the settings that a training command names; files of the reader's own are left out."""

    def own(path):
        return str(ROOT / path) if path and (ROOT / path).exists() else None

    config = getattr(options, "config", None)  # launch/quantise.py has none: the model has it
    for path in (config, options.deepspeed_config):
        assert path is None or "/" not in path or own(path), f"{path} is not in the repository"
    read_run_settings(own(config), options.overrides)
    read_deepspeed_settings(own(options.deepspeed_config), options.overrides)


@pytest.mark.parametrize("words", COMMANDS)
def test_commands_parse(words):
    options = parse(words)
    if hasattr(options, "overrides"):
        check_settings(options)


def test_every_script_is_shown():
    shown = {word for _, words in fenced_commands() for word in words}
    assert {f"launch/{path.name}" for path in (ROOT / "launch").glob("*.py")} <= shown


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
        if target.startswith("http"):
            continue
        file = (page.parent / target) if target else page
        assert file.exists(), f"{name(page)}: {target}"
        if anchor:
            assert anchor in anchors(file), f"{name(page)}: {target}#{anchor}"


def anchors(page):
    """Anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [ROOT / "docs" / "deepspeed_config.md", ROOT / "README.md"], ids=name)
def test_every_deepspeed_file_is_mentioned(page):
    files = sorted((ROOT / "ds_configs").glob("*.json"))
    assert files
    assert [file.name for file in files if file.name not in page.read_text()] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_settings_exist(page):
    for key in SETTING.findall(page.read_text()):
        if not key.endswith(FILE_ENDINGS):
            path = tuple(key.split("."))
            found = default_at(RunSettings, {}, path)
            assert found is not PydanticUndefined, f"{name(page)}: no setting {key}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_json_is_valid(page, tmp_path):
    file = tmp_path / "example.json"
    for text in blocks(page, "json"):
        raw = json.loads(text)
        file.write_text(text)
        if raw.keys() <= RunSettings.model_fields.keys():
            read_run_settings(str(file))
        elif raw.keys() <= DeepSpeedSettings.model_fields.keys():
            read_deepspeed_settings(str(file))


def test_page_of_the_run_json_is_current():
    assert (ROOT / "docs" / "run_config.md").read_text() == reference(), (
        "python -m ds_tft.config.reference > docs/run_config.md"
    )


def test_every_setting_has_a_meaning():
    page = reference()
    assert "``" not in page
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| (.*?) \| (.+) \|$", page.replace("\\|", "/"), re.MULTILINE)
    assert len(rows) > 50
    assert all(meaning.strip() for *_, meaning in rows)
    assert ("quantiles", "list of numbers (above 0, below 1)") in [row[:2] for row in rows]
    assert default_at(RunSettings, {}, ("window", "horizon")) == 10
    assert "| `horizon` | integer (1 or more) | `10` |" in page


def shops():
    """Daily sales of three shops: every kind of column, rows missing and out of order."""
    rng = np.random.default_rng(0)
    days = [datetime.date(2023, 1, 1) + datetime.timedelta(days=day) for day in range(400)]
    shop, item = np.repeat([101, 102, 103], 800), np.tile(np.repeat(["apples", "bread"], 400), 3)
    rows = len(shop)
    table = pa.table(
        {
            "date": days * 6,
            "store_id": shop,
            "item": pa.array(item.tolist()).dictionary_encode(),
            "units": rng.poisson(20, rows),
            "price": pa.array(rng.uniform(1, 3, rows).round(2), mask=rng.random(rows) < 0.01),
            "promo": rng.random(rows) < 0.1,
            "on_hand": pa.array(rng.integers(0, 200, rows), mask=rng.random(rows) < 0.02),
            "floor_area": np.array([80.0, 120.0, 60.0])[shop - 101],
            "city": np.array(["Bern", "Bern", "Genf"])[shop - 101].tolist(),
            "currency": ["CHF"] * rows,
            "note": [f"row {row}" for row in range(rows)],
            "delivered": [datetime.datetime(2023, 1, 1)] * rows,
            "lines": [[1]] * rows,
        }
    )
    kept = table.filter(pa.array(np.arange(rows) % 997 > 1))
    return pa.concat_tables([kept.slice(1200), kept.slice(0, 1200)])


def printed(source, settings):
    """What a run prints about roles and data."""
    inferred = infer_roles(source, settings.data)
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(roles_table(inferred))
    lines = (*inferred.notes, *prepare_training(source, inferred, settings).lines)
    return console.file.getvalue() + "".join(f"{line}\n" for line in lines)


def test_printed_roles_are_current(tmp_path):
    page = ROOT / "docs" / "data.md"
    pq.write_table(shops(), tmp_path / "shops.parquet")
    (tmp_path / "run.json").write_text(blocks(page, "json")[0])
    settings, _ = read_run_settings(str(tmp_path / "run.json"))
    shown = SHOPS.search(page.read_text())
    assert shown is not None
    assert shown[1] == printed(open_source(str(tmp_path / "shops.parquet")), settings)


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_examples_are_valid(example):
    settings, changes = read_run_settings(str(example))
    assert changes == []
    assert settings != RunSettings()
    assert example.name in (ROOT / "README.md").read_text()


def test_hourly_prices_make_a_forecast_per_day(tmp_path):
    hours = np.arange("2013-01-01", "2018-12-25", dtype="datetime64[h]").astype("datetime64[us]")
    rng = np.random.default_rng(0)
    columns = {"Date": pa.array(hours)}
    columns |= {
        c: rng.normal(30, 10, len(hours)) for c in ("Price", "Grid load forecast", "Wind power forecast")
    }
    data = prepare_example("hourly_prices.json", columns, tmp_path)
    test = data.windows["test"]
    origins = data.table.times[test.origins].astype("datetime64[us]")
    assert origins[0] == np.datetime64("2018-12-04T23:00")
    assert (np.diff(origins) == np.timedelta64(1, "D")).all()
    assert data.preprocessor.layout.known_reals[:2] == ("Grid load forecast", "Wind power forecast")


def test_sales_panel_holds_out_half_years(tmp_path):
    settings, _ = read_run_settings(str(ROOT / "launch" / "examples" / "sales_panel.json"))
    months = np.arange("2013-01", "2018-01", dtype="datetime64[M]").astype("datetime64[us]")
    rng = np.random.default_rng(0)
    reals = settings.data.static_reals + settings.data.known_reals + settings.data.observed_reals
    columns = {"date": pa.array(np.tile(months, 4)), "agency": ["a"] * 120 + ["b"] * 120}
    columns |= {"sku": (["x"] * 60 + ["y"] * 60) * 2, "volume": rng.poisson(5, 240)}
    columns |= {c: np.ones(240) if c in settings.data.static_reals else rng.normal(size=240) for c in reals}
    data = prepare_example("sales_panel.json", columns, tmp_path)
    assert {split: len(windows) for split, windows in data.windows.items()} == {
        "train": 4 * (48 - 12 - 6 + 1),
        "validation": 4,
        "test": 4,
    }


def prepare_example(example, columns, folder):
    """Prepares made data whose columns are those that the example names."""
    pq.write_table(pa.table(columns), folder / "data.parquet")
    settings, _ = read_run_settings(str(ROOT / "launch" / "examples" / example))
    source = open_source(str(folder / "data.parquet"))
    return prepare_training(source, infer_roles(source, settings.data), settings)


def test_make_says_what_its_targets_do():
    phony = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    shown = subprocess.run(
        ["make", "-s", "-C", ROOT, "help"], capture_output=True, text=True, check=True
    ).stdout
    assert re.findall(r"^make (\S+) ", shown, re.MULTILINE) == phony


def test_make_train_runs_a_command_that_parses():
    shown = subprocess.run(
        ["make", "-n", "-C", ROOT, "train"], capture_output=True, text=True, check=True
    ).stdout
    (words,) = words_of_commands(shown)
    options = parse(words)
    check_settings(options)
    assert options.output_dir is None, "every run has a folder of its own"
