"""The installed DeepSpeed takes what is built for it, and still behaves as the documentation says."""

import math
from pathlib import Path

import pytest

from ds_tft.config.batch import resolve_batch
from ds_tft.config.deepspeed import read_deepspeed_settings
from ds_tft.config.engine_config import engine_config

torch = pytest.importorskip("torch")
runtime_config = pytest.importorskip("deepspeed.runtime.config")
schedules = pytest.importorskip("deepspeed.runtime.lr_schedules")

CONFIGS = sorted((Path(__file__).parents[2] / "ds_configs").glob("*.json"))
SGD = 'optimizer={"type":"SGD","params":{"lr":0.1,"momentum":0.9,"nesterov":true}}'


def build(path, *overrides):
    settings, _ = read_deepspeed_settings(path, [f"deepspeed.{text}" for text in overrides])
    return engine_config(settings, resolve_batch(settings, 1, 16), 100, 5000)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configs(path):
    config = build(str(path))
    parsed = runtime_config.DeepSpeedConfig(config)
    assert parsed.train_batch_size == 16
    assert parsed.zero_optimization_stage == config["zero_optimization"]["stage"]
    assert parsed.gradient_clipping == 1.0
    assert parsed.bfloat16_config.enabled == (path.stem in ("zero1_bf16", "4gb_max"))
    assert not parsed.monitor_config.enabled


@pytest.mark.parametrize(
    "overrides",
    [
        ("fp16.enabled=true", "fp16.loss_scale=128", "fp16.consecutive_hysteresis=true"),
        ("zero_optimization.stage=3", "zero_optimization.overlap_comm=false", "ds_tft.streaming=false"),
        ("train_micro_batch_size_per_gpu=4",),
        (SGD,),
        ("optimizer.type=Adam", "optimizer.params.adam_w_mode=false"),
        ('scheduler={"type":"WarmupDecayLR"}', "wall_clock_breakdown=true", "log_level=warning"),
        ("scheduler=null", "steps_per_print=5"),
    ],
)
def test_other_settings(overrides):
    config = build(None, *overrides)
    parsed = runtime_config.DeepSpeedConfig(config)
    assert parsed.optimizer_params == config["optimizer"]["params"]
    assert parsed.scheduler_name == config.get("scheduler", {}).get("type")


@pytest.mark.parametrize(
    "overrides",
    [
        ("optimizer.params.fused=true",),
        ("optimizer.params.weight_decay=0",),
        (SGD,),
        ("optimizer.type=Adam",),
    ],
)
def test_optimizers_take_their_parameters(overrides):
    section = build(None, *overrides)["optimizer"]
    params = {k: v for k, v in section["params"].items() if k not in ("torch_adam", "adam_w_mode")}
    getattr(torch.optim, section["type"])([torch.nn.Parameter(torch.zeros(2))], **params)


def rates(section, lr=0.001, updates=12, ahead=2):
    """Rates of the updates of a run; the engine starts schedules `ahead` steps in advance."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = getattr(schedules, section["type"])(optimizer, **section["params"])
    for _ in range(ahead):
        scheduler.step()
    found = []
    for _ in range(updates):
        found.append(optimizer.param_groups[0]["lr"])
        scheduler.step()
    return found


def schedule(kind, **params):
    text = ",".join(f'"{name}":{value}' for name, value in params.items())
    override = f'deepspeed.scheduler={{"type":"{kind}","params":{{{text}}}}}'
    settings, _ = read_deepspeed_settings(None, [override])
    return engine_config(settings, resolve_batch(settings, 1, None), 12, 100)["scheduler"]


@pytest.mark.parametrize("kind", ["WarmupLR", "WarmupDecayLR", "WarmupCosineLR"])
def test_deepspeed_spends_two_updates_at_the_lowest_rate(kind):
    section = schedule(kind, warmup_num_steps=4)
    assert rates(section, ahead=0)[:2] == [0, 0]
    assert rates(section, ahead=0)[2] > 0
    assert rates(section)[0] > 0


def test_linear_warmup_and_decay():
    section = schedule("WarmupDecayLR", warmup_num_steps=4, warmup_type='"linear"')
    expected = [k / 4 if k < 4 else (13 - k) / 9 for k in range(1, 13)]
    assert rates(section) == pytest.approx([0.001 * share for share in expected])


def test_logarithmic_warmup():
    section = schedule("WarmupLR", warmup_num_steps=4)
    expected = [math.log(k + 1) / math.log(4) if k < 4 else 1 for k in range(1, 13)]
    assert rates(section) == pytest.approx([0.001 * share for share in expected])


def test_cosine_decay_ends_on_the_last_update():
    section = schedule("WarmupCosineLR", warmup_num_steps=4, warmup_type='"linear"', cos_min_ratio=0.1)
    decay = [0.1 + 0.9 * (1 + math.cos(math.pi * (k - 3) / 9)) / 2 for k in range(4, 13)]
    found = rates(section)
    assert found == pytest.approx([0.001 * share for share in [0.25, 0.5, 0.75, *decay]])
    assert found[-1] == pytest.approx(0.0001)
    assert found[-2] > found[-1]
