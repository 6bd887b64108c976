import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from ds_tft.config.batch import resolve_batch
from ds_tft.config.deepspeed import engine_config, read_deepspeed_settings
from ds_tft.errors import ConfigError
from ds_tft.training.engine import build_engine, choose_device, whole_weights
from ds_tft.training.environment import ProcessPlace

pytestmark = [
    pytest.mark.usefixtures("process_group"),
    pytest.mark.filterwarnings("ignore:.*_tensor. is deprecated:FutureWarning"),
]


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 1)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))).square().mean()


def make(*overrides, steps=20):
    settings, _ = read_deepspeed_settings(None, [f"deepspeed.{text}" for text in overrides])
    torch.manual_seed(0)
    model = Small()
    count = sum(parameter.numel() for parameter in model.parameters())
    return build_engine(model, engine_config(settings, resolve_batch(settings, 1, 8), steps, count))


def update(engine, x):
    loss = engine(x)
    engine.backward(loss)
    engine.step()
    return float(loss.detach())


def test_a_cpu_process_tells_deepspeed_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    assert choose_device(ProcessPlace(0, 0, 1)) == torch.device("cpu")
    assert os.environ["DS_ACCELERATOR"] == "cpu"


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        ("null", [0.001] * 5),
        ('{"type":"WarmupLR","params":{"warmup_num_steps":4,"warmup_type":"linear"}}',
         [0.00025, 0.0005, 0.00075, 0.001, 0.001]),
        ('{"type":"WarmupLR","params":{"warmup_num_steps":4,"warmup_type":"linear","warmup_min_lr":0.0002}}',
         [0.0004, 0.0006, 0.0008, 0.001, 0.001]),
        ('{"type":"WarmupDecayLR","params":{"warmup_num_steps":2,"warmup_type":"linear","total_num_steps":6}}',
         [0.0005, 0.001, 0.00075, 0.0005, 0.00025]),
    ],
)  # fmt: skip
def test_the_first_update_has_the_first_rate_of_the_schedule(scheduler, expected):
    engine = make(f"scheduler={scheduler}")
    rates = []
    for _ in expected:
        rates.append(engine.get_lr()[0])
        update(engine, torch.ones(8, 3))
    assert rates == pytest.approx(expected)


def test_the_first_update_changes_weights():
    engine = make()
    before = [parameter.detach().clone() for parameter in engine.module.parameters()]
    update(engine, torch.ones(8, 3))
    assert not any(torch.equal(a, b) for a, b in zip(before, engine.module.parameters(), strict=True))


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_bad_update_is_left_out_and_does_not_move_the_schedule(stage):
    engine = make(f"zero_optimization.stage={stage}")
    update(engine, torch.ones(8, 3))
    rate = engine.get_lr()
    before = [parameter.detach().clone() for parameter in engine.module.parameters()]
    update(engine, torch.full((8, 3), torch.nan))
    assert engine.skipped_steps == 1
    assert engine.get_lr() == rate
    assert all(torch.equal(a, b) for a, b in zip(before, engine.module.parameters(), strict=True))
    update(engine, torch.ones(8, 3))
    assert engine.skipped_steps == 1
    assert not torch.equal(before[0], next(engine.module.parameters()))


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("clip", [0.0, 0.01])
def test_the_norm_is_that_before_clipping(stage, clip):
    engine = make(f"zero_optimization.stage={stage}", f"gradient_clipping={clip}", "scheduler=null",
                  'optimizer={"type":"SGD","params":{"lr":1.0}}')  # fmt: skip
    plain = Small()
    plain.load_state_dict(engine.module.state_dict())
    plain(torch.ones(8, 3)).backward()
    norm = float(nn.utils.get_total_norm([parameter.grad for parameter in plain.parameters()]))
    assert norm > 0.1
    before = [parameter.detach().clone() for parameter in engine.module.parameters()]
    update(engine, torch.ones(8, 3))
    assert float(engine.get_global_grad_norm()) == pytest.approx(norm, rel=1e-5)
    moved = [a - b for a, b in zip(before, engine.module.parameters(), strict=True)]
    assert float(nn.utils.get_total_norm(moved)) == pytest.approx(min(norm, clip or norm), rel=1e-4)


def test_warnings_of_every_start_are_hidden_and_others_are_not(caplog):
    logger = logging.getLogger("DeepSpeed")
    logger.addHandler(caplog.handler)
    try:
        make('optimizer={"type":"SGD"}')
        logger.warning("something else")
    finally:
        logger.removeHandler(caplog.handler)
    assert "before it has started" not in caplog.text
    assert "untested optimizer" not in caplog.text
    assert "something else" in caplog.text


def test_8_bit_adam_without_its_package_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)  # as Python finds a module that is not there
    with pytest.raises(ConfigError) as caught:
        make('optimizer={"type":"AdamW8bit"}')
    assert str(caught.value) == (
        "optimizer.type: AdamW8bit needs bitsandbytes, got 'import of bitsandbytes halted; None in sys.modules'; "
        "pip install 'ds_tft[adam8bit]', or use AdamW"
    )


@pytest.mark.parametrize("stage", [1, 3])
def test_whole_weights(stage):
    engine = make(f"zero_optimization.stage={stage}", "ds_tft.streaming=false")
    with whole_weights(engine) as model:
        shapes = [tuple(parameter.shape) for parameter in model.parameters()]
        assert model.first.weight.abs().sum() > 0
    assert shapes == [(4, 3), (4,), (1, 4), (1,)]


MEET = """
import os, sys, torch
from ds_tft.training.environment import prepare_environment
place = prepare_environment()
from ds_tft.training.engine import choose_device, start_process_group
start_process_group(choose_device(place))
sum_of_ranks = torch.tensor([place.rank + 1.0])
torch.distributed.all_reduce(sum_of_ranks)
print(float(sum_of_ranks))
"""


@pytest.mark.slow
def test_processes_of_the_launcher_meet_without_its_port(tmp_path):
    """The port is one that nothing can listen on: two runs of the launcher at once would share it."""
    here = {"PYTHONPATH": str(Path(__file__).parents[2]), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1",
            "WORLD_SIZE": "2", "LOCAL_SIZE": "2", "CROSS_SIZE": "1", "OMP_NUM_THREADS": "1",
            "TMPDIR": str(tmp_path)}  # fmt: skip
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", MEET],
            env=os.environ | here | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [output.split()[-1] for output in outputs] == ["3.0", "3.0"]
    assert not list(tmp_path.glob("ds_tft-*")), "nothing is left behind"
