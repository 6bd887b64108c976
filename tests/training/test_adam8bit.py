"""8-bit Adam under DeepSpeed: what its states take, that a resumed run is the same run, and what is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import accumulate
from pathlib import Path
from shutil import copy, copytree

import pytest
import torch
from adam8bit_cases import (
    ADAM8BIT,
    ADAMW,
    BF16,
    WINDOWS,
    base_of,
    equal_states,
    leave_and_resume,
    losses_of,
    make_engine,
    smallest,
    stage,
    states_of,
)
from loops import make_data, make_trainer, series_of, weights_of
from torch import nn

from ds_tft.config.deepspeed import read_deepspeed_settings
from ds_tft.errors import ConfigError
from ds_tft.memory.meter import optimizer_tensors, tensor_bytes
from ds_tft.memory.trace.allocations import AllocationRecorder
from ds_tft.training.adam8bit import BLOCK, PIECE, check_8bit, check_adamw_8bit, make_adamw_8bit
from ds_tft.training.checkpoint import BEST_WEIGHTS, load_checkpoint, save_checkpoint
from ds_tft.training.state import TrainingState

bitsandbytes = pytest.importorskip("bitsandbytes")

pytestmark = [
    pytest.mark.usefixtures("process_group"),
    pytest.mark.filterwarnings("ignore:.*_tensor. is deprecated:FutureWarning"),
]

CPU = torch.device("cpu")
STAGES = [(0, ()), (1, ()), (2, ()), (1, (BF16,)), (2, (BF16,))]


# What the states take


@pytest.mark.parametrize(("number", "precision"), STAGES)
def test_states_take_two_bytes_per_parameter(number, precision):
    engine = make_engine(ADAM8BIT, stage(number), *precision, width=2000)
    assert check_8bit(engine) is None, "there are no states yet"
    losses_of(engine, count=1)
    line = check_8bit(engine)
    counted, parameters = tensor_bytes(optimizer_tensors(base_of(engine))), 66 * 2000 + 1
    assert line.startswith(f"optimizer: 8-bit Adam, {counted / parameters:.2f} bytes per parameter of states")
    assert counted / parameters < (2.3 if number == 0 else 2.05)  # small tensors of stage 0 are in fp32


def test_one_tensor_has_two_bytes_and_two_scales_per_block_and_two_tables():
    engine = make_engine(ADAM8BIT, stage(1), width=2000)
    losses_of(engine, count=1)
    (state,) = states_of(engine)
    assert {name: (value.dtype, value.numel()) for name, value in state.items() if name != "step"} == {
        "state1": (torch.uint8, 132_002),
        "state2": (torch.uint8, 132_002),
        "absmax1": (torch.float32, -(-132_002 // BLOCK)),
        "absmax2": (torch.float32, -(-132_002 // BLOCK)),
        "qmap1": (torch.float32, 256),
        "qmap2": (torch.float32, 256),
    }
    assert check_8bit(engine) == "optimizer: 8-bit Adam, 2.05 bytes per parameter of states"


def test_tensors_that_are_too_small_are_counted_apart():
    engine = make_engine(ADAM8BIT, stage(0), width=1000)
    losses_of(engine, count=1)
    assert check_8bit(engine) == (
        "optimizer: 8-bit Adam, 2.24 bytes per parameter of states; 3 % of the parameters have fp32 states, in "
        "tensors below min_8bit_size 4096"
    )


def test_another_optimizer_is_not_8_bit_adam():
    engine = make_engine(ADAMW, stage(1))
    losses_of(engine, count=1)
    assert check_8bit(engine) is None


@pytest.mark.parametrize(("number", "largest"), [(0, 19_200), (1, 19_802)])
def test_states_of_which_none_is_8_bit_are_refused(number, largest):
    engine = make_engine(ADAM8BIT, smallest(20_000), stage(number))
    losses_of(engine, count=1)
    with pytest.raises(ConfigError) as caught:
        check_8bit(engine)
    assert str(caught.value) == (
        f"optimizer.params.min_8bit_size: 20000 elements are more than any tensor has, got {largest} in the largest, "
        "so that no state is 8-bit; lower it, or use AdamW"
    )


@pytest.mark.parametrize(("number", "largest"), [(0, 19_200), (1, 19_802)])
def test_states_of_a_checkpoint_that_are_not_8_bit_are_refused(tmp_path, number, largest):
    """Those of a checkpoint keep the type that they were saved with, whatever the settings say."""
    engine = make_engine(ADAM8BIT, smallest(20_000), stage(number))
    losses_of(engine, count=1)
    save_checkpoint(engine, tmp_path, TrainingState(step=1), keep=1)
    resumed = make_engine(ADAM8BIT, stage(number))
    load_checkpoint(resumed, tmp_path / "checkpoints" / "step-1", tmp_path, print)
    losses_of(resumed, count=1)
    with pytest.raises(ConfigError) as caught:
        check_8bit(resumed)
    assert str(caught.value) == (
        f"optimizer.params.min_8bit_size: 4096 elements make states 8-bit, got 8.00 bytes per parameter in a tensor "
        f"of {largest}; resume with the value of the first start, or start a new run"
    )


# The same training


@pytest.mark.parametrize(("number", "precision"), STAGES)
def test_a_resumed_engine_is_the_one_that_was_saved(tmp_path, number, precision):
    leave_and_resume(tmp_path, ADAM8BIT, stage(number), *precision)


def test_a_resumed_run_is_the_run_that_was_not_left(tmp_path):
    """Through the loop, with schedule and dropout."""
    data = make_data(tmp_path)
    options = {"deepspeed": (ADAM8BIT,), "epochs": 2, "checkpoint_every_steps": 4, "keep_checkpoints": 99}
    straight, resumed = (make_trainer(tmp_path / name, data, **options) for name in ("straight", "resumed"))
    straight.train()
    copytree(tmp_path / "straight" / "checkpoints", tmp_path / "resumed" / "checkpoints")
    copy(tmp_path / "straight" / BEST_WEIGHTS, tmp_path / "resumed")
    checkpoint = tmp_path / "resumed" / "checkpoints" / "step-8"
    resumed.state = load_checkpoint(resumed.engine, checkpoint, tmp_path / "resumed", print)
    resumed.train()
    losses = series_of(tmp_path / "straight", "loss/train")
    assert series_of(tmp_path / "resumed", "loss/train") == losses[8:]
    assert len(losses) == 14
    ends = weights_of(straight), weights_of(resumed)
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    assert check_8bit(resumed.engine) == check_8bit(straight.engine) is not None


@pytest.mark.slow
@pytest.mark.parametrize(("number", "elements"), [(0, "19801"), (1, "990\\d"), (2, "990\\d")])
def test_two_processes_resume_and_agree(tmp_path, number, elements):
    here = {"PYTHONPATH": str(Path(__file__).parents[2]), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1",
            "WORLD_SIZE": "2", "LOCAL_SIZE": "2", "CROSS_SIZE": "1", "OMP_NUM_THREADS": "1",
            "TMPDIR": str(tmp_path)}  # fmt: skip
    script = str(Path(__file__).with_name("adam8bit_cases.py"))
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(tmp_path / "run"), str(number)],
            env=os.environ | here | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        outputs = [process.communicate(timeout=150)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for rank, output in enumerate(outputs):
        assert re.search(
            rf"process {rank}: {elements} elements, optimizer: 8-bit Adam, 2\.\d\d bytes", output
        ), output


@pytest.mark.parametrize("number", [0, 1, 2])
def test_it_learns_as_adamw_does(number):
    losses = {}
    for name, optimizer in (("8-bit", ADAM8BIT), ("fp32", ADAMW)):
        found = losses_of(make_engine(optimizer, stage(number)), count=100)
        losses[name] = sum(found[-20:]) / 20
    assert losses["fp32"] < 0.5
    assert losses["8-bit"] == pytest.approx(losses["fp32"], rel=0.1)
    assert losses["8-bit"] != losses["fp32"]


@pytest.mark.parametrize("shape", [(2 * PIECE + 777,), (3, 1000, 300)])
def test_an_update_in_pieces_is_that_of_bitsandbytes(shape):
    params = {"lr": 0.01, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1, "min_8bit_size": 4096}
    torch.manual_seed(0)
    own = nn.Parameter(torch.randn(shape))
    theirs = nn.Parameter(own.detach().clone())
    optimizers = make_adamw_8bit(params, [own]), bitsandbytes.optim.AdamW8bit([theirs], **params)
    for _ in range(3):
        gradient = torch.randn(shape) * (torch.rand(shape) < 0.7)
        own.grad, theirs.grad = gradient.clone(), gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(own, theirs)
    assert own.numel() > PIECE
    first, second = (
        [dict(optimizer.state[weights])] for optimizer, weights in zip(optimizers, (own, theirs), strict=True)
    )
    assert equal_states(first, second)
    assert len(optimizers[0].state) == 1, "nothing of the pieces is left"


def test_an_update_in_pieces_unpacks_no_more_than_a_piece():
    weights = nn.Parameter(torch.zeros(16 * PIECE))
    optimizer = make_adamw_8bit({"lr": 0.01, "min_8bit_size": 4096}, [weights])
    weights.grad = torch.ones_like(weights)
    optimizer.step()  # makes the states
    recorder = AllocationRecorder[str](CPU)
    recorder.start()
    optimizer.step()
    live = accumulate(change.bytes for change in recorder.stop().changes)
    assert 16 * PIECE < max(live) < 24 * PIECE, "bytes: of the whole they would be 20 per element"


def test_weights_without_a_gradient_stay():
    weights = nn.Parameter(torch.randn(8 * BLOCK))
    before = weights.detach().clone()
    optimizer = make_adamw_8bit({"lr": 0.01, "weight_decay": 0.0, "min_8bit_size": BLOCK}, [weights])
    for _ in range(3):
        weights.grad = torch.zeros_like(weights)
        weights.grad[: 3 * BLOCK + 7] = 1.0
        optimizer.step()
    assert torch.equal(weights[4 * BLOCK :], before[4 * BLOCK :])
    assert not (weights[: 3 * BLOCK + 7] == before[: 3 * BLOCK + 7]).any()
    assert weights.isfinite().all()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_bad_update_is_left_out_and_leaves_the_states_alone(number):
    engine = make_engine(ADAM8BIT, stage(number))
    losses_of(engine)
    saved = states_of(engine)
    engine.backward(engine(torch.full((WINDOWS, 64), torch.nan)))
    engine.step()
    assert engine.skipped_steps == 1
    assert equal_states(states_of(engine), saved)


# What is refused


def test_a_cpu_on_which_it_works_passes():
    settings, _ = read_deepspeed_settings(None, [ADAM8BIT])
    check_adamw_8bit(settings, CPU)


def test_a_device_on_which_bitsandbytes_fails_is_refused(monkeypatch):
    """As in its versions before 0.50, on a CPU."""

    def fail(*_arguments, **_more):
        raise RuntimeError("All input tensors need to be on the same GPU:\n [(torch.Size([1024]), 'cpu')]")

    monkeypatch.setattr("bitsandbytes.functional.optimizer_update_8bit_blockwise", fail)
    settings, _ = read_deepspeed_settings(None, [ADAM8BIT])
    refused = f"^{re.escape(refusal('All input tensors need to be on the same GPU:'))}$"
    with pytest.raises(ConfigError, match=refused):
        check_adamw_8bit(settings, CPU)
    with pytest.raises(ConfigError, match=refused):
        make_engine(ADAM8BIT, stage(1))


def test_a_device_on_which_an_update_is_wrong_is_refused(monkeypatch):
    monkeypatch.setattr("bitsandbytes.functional.optimizer_update_8bit_blockwise", lambda *_, **__: None)
    settings, _ = read_deepspeed_settings(None, [ADAM8BIT])
    with pytest.raises(ConfigError, match=re.escape(refusal("an update of 0 where 0.5 is right"))):
        check_adamw_8bit(settings, CPU)


def refusal(got):
    return (
        f"optimizer.type: bitsandbytes {bitsandbytes.__version__} cannot update AdamW8bit on this CPU, got '{got}'; "
        "pip install --upgrade 'ds_tft[adam8bit]', or use AdamW"
    )


def test_other_optimizers_need_no_bitsandbytes(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    check_adamw_8bit(read_deepspeed_settings(None, [ADAMW])[0], CPU)
    losses_of(make_engine(ADAMW, stage(1)), count=1)
