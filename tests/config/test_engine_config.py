import json
import re

import pytest

from ds_tft.config.batch import resolve_batch
from ds_tft.config.deepspeed import read_deepspeed_settings
from ds_tft.config.engine_config import auto_bucket, engine_config
from ds_tft.config.engine_notes import engine_notes
from ds_tft.errors import ConfigError

ADAM8BIT = 'optimizer={"type":"AdamW8bit"}'
SGD = 'deepspeed.optimizer={"type":"SGD","params":{"lr":0.1,"momentum":0.9}}'


def read(*overrides):
    return read_deepspeed_settings(None, [f"deepspeed.{text}" for text in overrides])[0]


def build(*overrides, world_size=1, total_steps=1000, num_parameters=26_700_001):
    settings = read(*overrides)
    return engine_config(settings, resolve_batch(settings, world_size, None), total_steps, num_parameters)


def notes(*overrides, world_size=2, total_steps=1000, num_parameters=1_000_000, has_cuda=True):
    settings = read(*overrides)
    batch = resolve_batch(settings, world_size, None)
    return engine_notes(settings, batch, total_steps, num_parameters, has_cuda)


def test_default_is_written_out_in_full():
    assert build() == {
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 32,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "steps_per_print": 2**31 - 1,
        "wall_clock_breakdown": False,
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": 0.001,
                "betas": [0.9, 0.999],
                "eps": 1e-08,
                "weight_decay": 0.01,
                "adam_w_mode": True,
                "torch_adam": True,
                "fused": True,
            },
        },
        "scheduler": {
            "type": "WarmupCosineLR",
            "params": {
                "warmup_min_ratio": 0.0,
                "warmup_num_steps": 50,
                "warmup_type": "linear",
                "cos_min_ratio": 0.01,
                "total_num_steps": 1001,
            },
        },
        "zero_optimization": {
            "stage": 1,
            "reduce_bucket_size": 5_000_000,
            "allgather_bucket_size": 5_000_000,
            "contiguous_gradients": True,
            "reduce_scatter": True,
            "allgather_partitions": True,
        },
        "activation_checkpointing": {
            "partition_activations": False,
            "cpu_checkpointing": False,
            "contiguous_memory_optimization": False,
            "number_checkpoints": None,
            "synchronize_checkpoint_boundary": False,
            "profile": False,
        },
    }


@pytest.mark.parametrize(
    "overrides",
    [(), ("bf16.enabled=true",), ("optimizer.params.lr=0.01", 'scheduler={"type":"WarmupLR"}')],
)
def test_no_auto_is_left(overrides):
    assert "auto" not in json.dumps(build(*overrides))


@pytest.mark.parametrize("num_parameters", [1, 2, 3, 599, 600, 4_999_999, 5_000_001, 26_700_001])
def test_auto_bucket_is_even_and_not_above_the_model(num_parameters):
    bucket = auto_bucket(num_parameters)
    assert bucket % 2 == 0
    assert bucket <= max(2, num_parameters)
    assert bucket <= 5_000_000
    assert bucket >= min(num_parameters, 5_000_000) - 1


def test_explicit_buckets_are_kept():
    zero = build("zero_optimization.reduce_bucket_size=5e8", "zero_optimization.allgather_bucket_size=10")[
        "zero_optimization"
    ]
    assert (zero["reduce_bucket_size"], zero["allgather_bucket_size"]) == (500_000_000, 10)


def test_batch_sizes_follow_the_processes():
    config = build("train_micro_batch_size_per_gpu=4", "gradient_accumulation_steps=2", world_size=3)
    assert config["train_batch_size"] == 24


def test_precision():
    assert build("bf16.enabled=true")["bf16"] == {"enabled": True}
    config = build("fp16.enabled=true", "fp16.loss_scale=128")
    assert config["fp16"]["enabled"] is True
    assert config["fp16"]["loss_scale"] == 128
    assert "bf16" not in config
    assert not {"fp16", "bf16"} & set(build())


def test_offload():
    config = build(
        "zero_optimization.offload_optimizer.device=cpu",
        "zero_optimization.offload_optimizer.pin_memory=false",
    )
    assert config["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": False}
    assert (
        "offload_optimizer"
        not in build("zero_optimization.offload_optimizer.device=none")["zero_optimization"]
    )


def test_explicit_torch_adam_is_kept():
    plain = build("optimizer.params.torch_adam=false", "optimizer.params.fused=null")["optimizer"]["params"]
    assert plain["torch_adam"] is False
    assert "fused" not in plain


def test_sgd_is_allowed_under_zero():
    config = build("scheduler=null", SGD.removeprefix("deepspeed."))
    assert config["zero_allow_untested_optimizer"] is True
    assert config["optimizer"]["params"]["momentum"] == 0.9
    assert "zero_allow_untested_optimizer" not in build()


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_8_bit_adam_is_named_and_allowed_under_zero(stage):
    config = build(ADAM8BIT, f"zero_optimization.stage={stage}")
    assert config["zero_allow_untested_optimizer"] is True
    assert config["optimizer"] == {
        "type": "AdamW8bit",
        "params": {
            "lr": 0.001,
            "betas": [0.9, 0.999],
            "eps": 1e-08,
            "weight_decay": 0.01,
            "min_8bit_size": 4096,
        },
    }


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("zero_optimization.stage=3", "ds_tft.streaming=false"),
            "optimizer.type AdamW8bit works in zero_optimization.stage 0 to 2, got 3; use stage 2, or AdamW",
        ),
        (
            ("zero_optimization.offload_optimizer.device=cpu",),
            "optimizer.type AdamW8bit keeps its states on the device, got offload_optimizer.device 'cpu'; leave "
            "offload_optimizer out, or use AdamW",
        ),
        (
            ("zero_allow_untested_optimizer=false",),
            "zero_allow_untested_optimizer is false, and AdamW8bit in stage 1 needs it; leave it out",
        ),
    ],
)
def test_8_bit_adam_is_refused_where_zero_does_not_carry_it_out(overrides, message):
    with pytest.raises(ConfigError, match=f"{re.escape(message)}$"):
        build(ADAM8BIT, *overrides)


def test_8_bit_adam_without_zero_needs_no_permission():
    config = build(ADAM8BIT, "zero_allow_untested_optimizer=false", "zero_optimization.stage=0")
    assert config["optimizer"]["type"] == "AdamW8bit"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ("fused=true", "another type has it, this one has: betas, eps, lr, min_8bit_size, weight_decay"),
        ("min_8bit_size=0", "expected 1 or more, got 0"),
        ("min_8bit_sice=1", "did you mean 'min_8bit_size'"),
    ],
)
def test_8_bit_adam_takes_what_bitsandbytes_takes_and_no_more(params, message):
    with pytest.raises(ConfigError, match=message):
        read(ADAM8BIT, f"optimizer.params.{params}")


def test_scheduler_is_optional():
    assert "scheduler" not in build("scheduler=null")


@pytest.mark.parametrize(("total_steps", "warmup"), [(1, 2), (40, 2), (100, 5), (1000, 50)])
def test_warmup_is_a_share_of_the_run(total_steps, warmup):
    params = build(total_steps=total_steps)["scheduler"]["params"]
    assert params["warmup_num_steps"] == warmup
    assert params["total_num_steps"] == total_steps + 1


def test_explicit_steps_are_kept():
    params = build("scheduler.params.warmup_num_steps=7", "scheduler.params.total_num_steps=70")["scheduler"][
        "params"
    ]
    assert (params["warmup_num_steps"], params["total_num_steps"]) == (7, 70)


@pytest.mark.parametrize("kind", ["WarmupLR", "WarmupDecayLR"])
def test_highest_rate_is_the_optimizers(kind):
    config = build(f'scheduler={{"type":"{kind}"}}', "optimizer.params.lr=0.02")
    assert config["scheduler"]["params"]["warmup_max_lr"] == 0.02


def test_sections_carried_out_here_are_left_out():
    config = build("tensorboard.output_path=runs", "ds_tft={}")
    assert not {"tensorboard", "compression_training", "ds_tft"} & set(config)


def test_what_is_printed_opens_the_log():
    assert "log_level" not in build()
    assert build("wall_clock_breakdown=true")["log_level"] == "info"
    assert build("steps_per_print=5")["log_level"] == "info"
    assert build("steps_per_print=5")["steps_per_print"] == 5
    assert build("steps_per_print=5", "log_level=error")["log_level"] == "error"


def test_settings_without_anything_odd_have_no_notes():
    assert notes() == []


@pytest.mark.parametrize(
    ("overrides", "gib"),
    [
        ((), "1.86"),
        (("bf16.enabled=true",), "1.86"),  # stage 1 reduces in fp32
        (("bf16.enabled=true", "zero_optimization.stage=2"), "0.93"),
        (("zero_optimization.overlap_comm=true",), "3.73"),
        (
            ("zero_optimization.stage=3", "zero_optimization.overlap_comm=true", "ds_tft.streaming=false"),
            "1.86",
        ),
    ],
)
def test_a_bucket_above_the_model_is_named_with_its_bytes(overrides, gib):
    assert notes("zero_optimization.reduce_bucket_size=5e8", *overrides) == [
        f"zero_optimization.reduce_bucket_size: 500000000 elements allocate {gib} GiB, and the "
        f"model has 1000000 "
        'parameters; write "auto"'
    ]


def test_a_bucket_that_is_not_allocated_or_fits_is_fine():
    assert notes("zero_optimization.reduce_bucket_size=1000000") == []
    assert (
        notes("zero_optimization.reduce_bucket_size=5e8", "zero_optimization.contiguous_gradients=false")
        == []
    )


def test_zero_on_one_process():
    assert notes(world_size=1) == [
        "zero_optimization.stage: 1 partitions nothing on one process and saves no memory"
    ]
    assert notes("zero_optimization.offload_optimizer.device=cpu", world_size=1) == []
    assert notes("zero_optimization={}", world_size=1) == []


def test_offload_without_a_gpu():
    assert notes("zero_optimization.offload_optimizer.device=cpu", has_cuda=False) == [
        "zero_optimization.offload_optimizer: everything is on the CPU already; it saves nothing here"
    ]


def test_zero_keys_without_zero():
    assert notes("zero_optimization.stage=0", "zero_optimization.overlap_comm=true") == [
        "zero_optimization.stage: 0, so that these have no effect: overlap_comm"
    ]
    assert notes("zero_optimization.stage=0", 'zero_optimization.offload_optimizer={"device":"none"}') == [
        "zero_optimization.stage: 0, so that these have no effect: offload_optimizer"
    ]


def test_adam_that_is_adamw():
    assert notes("optimizer.type=Adam") == [
        "optimizer.type: Adam decays weights as AdamW does, as in DeepSpeed; "
        "write adam_w_mode false for decay through the gradient"
    ]
    assert notes("optimizer.type=Adam", "optimizer.params.adam_w_mode=false") == []
    assert notes("optimizer.type=Adam", "optimizer.params.weight_decay=0") == []


def test_schedules_that_do_not_fit_the_run():
    assert notes("scheduler.params.total_num_steps=500") == [
        'scheduler.params.total_num_steps: 500, the run has 1000 updates; write "auto"'
    ]
    assert notes("scheduler.params.total_num_steps=1000") == []
    assert notes("scheduler.params.warmup_num_steps=1001") == [
        "scheduler.params.warmup_num_steps: 1001, the run has 1000 updates and never reaches the rate 0.001; "
        'write "auto"'
    ]
    assert notes(total_steps=1) == [
        "scheduler.params.warmup_num_steps: 2, the run has 1 updates and never reaches the rate 0.001; "
        "train for more updates"
    ]
    assert notes("scheduler=null") == []
