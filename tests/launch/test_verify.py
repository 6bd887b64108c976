"""`launch/verify.py` as a command."""

import importlib.util
import json

import pytest
from commands import REPOSITORY
from datasets import ROLES, WINDOW, panel, write

from ds_tft.errors import ConfigError
from ds_tft.training.arguments import TrainArguments
from ds_tft.training.environment import ProcessPlace
from ds_tft.training.verification import Verification
from ds_tft.training.verify import halvings, verify


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("verify_script", REPOSITORY / "launch" / "verify.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    config = {"data": ROLES, "window": WINDOW, "model": {"hidden_size": 32, "num_heads": 2}}
    (folder / "run.json").write_text(json.dumps(config))
    write(folder / "panel.parquet", panel())
    return ["--parquet-file", str(folder / "panel.parquet"), "--config", str(folder / "run.json"),
            "--batch-size", "16"]  # fmt: skip


def test_it_prints_tables_and_a_verdict(script, line, capsys):
    assert script.main(line) == 0
    words = capsys.readouterr().out
    assert "batch: 16 windows, fp32, on CPU" in words
    assert "verdict: 3 comparisons hold; what they compare trains the same model" in words
    assert "offload: no effect here: activation_checkpointing.cpu_checkpointing: nothing was moved" in words


def test_a_failure_is_one_line_and_code_2(script, line, capsys, monkeypatch):
    monkeypatch.setattr("ds_tft.training.verification.FP32_BOUND", 0.0)
    assert script.main(line) == 2
    told = capsys.readouterr()
    assert told.err.startswith("error: launch/verify.py: streaming differs from plain, got ")
    assert told.err.count("\n") == 1
    assert "FAILS" in told.out


def test_too_large_a_batch_is_halved(script, line, capsys, monkeypatch):
    real = Verification.differences

    def limited(self):
        if len(self.batch.labels) > 4:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return real(self)

    monkeypatch.setattr(Verification, "differences", limited)
    assert script.main(line) == 0
    words = capsys.readouterr().out
    assert "16 windows do not fit into memory in every form; taking half" in words
    assert "8 windows do not fit" in words


def test_halvings_end_at_one():
    assert list(halvings(10)) == [10, 5, 2, 1]


def test_several_processes_are_refused():
    with pytest.raises(ConfigError, match=r"runs in one process, got 2; start it with plain python"):
        verify(TrainArguments(parquet="a.parquet"), ProcessPlace(0, 0, 2))


def test_stage_3_and_useless_blocks_are_refused(script, line, capsys):
    stage = ("deepspeed.zero_optimization.stage=3", "deepspeed.ds_tft.streaming=false")
    assert script.main([*line, *(word for each in stage for word in ("--set", each))]) == 2
    assert "passes that stage 3 does not allow" in capsys.readouterr().err
    assert script.main([*line, "--set", 'deepspeed.ds_tft.recompute=["quantile_head"]']) == 2
    assert "recomputing 'quantile_head' frees no memory" in capsys.readouterr().err
