"""Every script runs, at sizes that say nothing."""

import json
import subprocess
import sys
from pathlib import Path

import blocks
import growth
import memory
import pytest
import step_time
import torch
from growth_plot import Point, save_plot
from tables import verdict
from workload import Seconds, StepSeconds

ROOT = Path(__file__).parents[2]
TINY = ["--hidden-size", "8", "--variables", "20"]


@pytest.fixture(autouse=True)
def _keep_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def rows(output):
    """Cells of the rows of all tables, headings included."""
    lines = [line.strip() for line in output.splitlines() if line.strip().startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.slow
def test_memory(capsys):
    assert memory.main([*TINY, "--batch", "2", "--threads", "1", "2"]) == 0, (
        "tiny sizes are within all bounds"
    )
    printed = rows(capsys.readouterr().out)
    assert printed[0] == ["MiB", "form", "at most", "1 thread", "", "2 threads", ""]
    bounded = {tuple(row[:3]) for row in printed[2:] if row[2]}
    assert bounded == {
        ("kept for backward", "streaming", "60"),
        ("kept for backward", "checkpointing", "20"),
        ("kept for backward", "offload", "8"),
        ("peak live less states", "checkpointing", "100"),
        ("growth of that peak per window", "checkpointing", "1.2"),
    }
    assert all(row[4] == row[6] == ("pass" if row[2] else "") for row in printed[2:])


def test_a_missed_bound_shows(capsys):
    columns = [[memory.Figure(memory.KEPT, "offload", mib)] for mib in (7.9, 8.1)]
    assert memory.print_figures(columns, [1, 2]) == 1
    assert rows(capsys.readouterr().out)[2] == [
        "kept for backward",
        "offload",
        "8",
        "7.90",
        "pass",
        "8.10",
        "MISS",
    ]
    assert memory.print_figures(columns[:1], [1]) == 0
    assert (verdict(2.0, 1.0), verdict(1.0, 1.0), verdict(1.0, None)) == ("MISS", "pass", "")


@pytest.mark.slow
def test_step_time(capsys, monkeypatch):
    monkeypatch.setattr(step_time, "FORMS", ("plain", "streaming"))
    monkeypatch.setattr(step_time, "BOUNDS", {("streaming", "plain"): 1e9})
    assert step_time.main([*TINY, "--batch", "2", "--threads", "1", "--rounds", "1"]) == 0
    names = [row[0] for row in rows(capsys.readouterr().out)]
    assert names == ["form", names[1], "plain", "streaming", "step time", names[5], "streaming / plain"]


@pytest.mark.parametrize(("bound", "code"), [(0.5, "pass"), (0.4, "MISS")])
def test_ratios_are_medians_of_turns(capsys, monkeypatch, bound, code):
    monkeypatch.setattr(step_time, "BOUNDS", {("streaming", "plain"): bound})

    def turn(cpu):
        part = Seconds(wall=2 * cpu, cpu=cpu)
        return step_time.Turn(StepSeconds(part, part, part), part)

    turns = {"plain": [turn(1), turn(2), turn(100)], "streaming": [turn(0.5), turn(1), turn(1)]}
    assert step_time.print_ratios(turns, on_gpu=False) is (code == "pass")
    assert rows(capsys.readouterr().out)[2] == ["streaming / plain", f"{bound}", "0.50", "0.50", code]


def test_step_time_profile(capsys):
    assert step_time.main([*TINY, "--batch", "2", "--threads", "1", "--profile", "streaming"]) == 0
    assert "_MixVariables" in capsys.readouterr().out


def test_blocks(capsys):
    blocks.main([*TINY, "--batch", "2", "--rounds", "1"])
    printed = {row[0]: row for row in rows(capsys.readouterr().out)}
    assert float(printed["lstm_encoder"][1]) > 0
    assert printed["none"][4] == "1.00"
    assert float(printed["default blocks"][1]) < float(printed["none"][1])


def test_growth_measures_what_is_missing(capsys, tmp_path, monkeypatch):
    results, plot = tmp_path / "growth.jsonl", tmp_path / "growth.png"
    files = ["--results", str(results), "--plot", str(plot)]
    # The plain form of 225 variables is over the limit, that of 20 is not.
    sizes = ["--hidden-size", "8", "--variables", "20", "--batches", "1", "--limit-gib", "0.0147"]
    growth.main([*sizes, *files])
    found = [json.loads(line) for line in results.read_text().splitlines()]
    assert {(point["form"], point["variables"]) for point in found} == {
        ("plain", 20),
        ("plain", 225),
        ("streaming", 20),
        ("streaming", 225),
        ("checkpointing", 20),
        ("checkpointing", 225),
    }
    assert plot.read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(growth, "measure", lambda *_: pytest.fail("all is there already"))
    growth.main([*sizes, *files])
    assert len(rows(capsys.readouterr().out)) == 2 * (len(found) + 2)


def test_plot_of_some_points(tmp_path):
    sizes = {"hidden_size": 8, "kept_mib": 1.0, "peak_mib": 2.0, "step_seconds": 0.1}
    save_plot([Point(form="streaming", variables=25, batch=32, **sizes)], tmp_path / "one.png")
    assert (tmp_path / "one.png").exists()


def test_gpu_check_without_a_gpu_says_so():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    command = [str(ROOT / "benchmarks" / "gpu_check.sh")]
    done = subprocess.run(
        command, capture_output=True, text=True, env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 2
    assert done.stdout.startswith("gpu_check: needs a CUDA GPU")
    assert len(done.stdout.splitlines()) == 1
