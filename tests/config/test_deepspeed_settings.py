import json
import re
from pathlib import Path

import pytest

from ds_tft.config.deepspeed import check_machine, default_deepspeed_json, read_deepspeed_settings
from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.config.validation import _sections
from ds_tft.errors import ConfigError

CONFIGS = sorted((Path(__file__).parents[2] / "ds_configs").glob("*.json"))


@pytest.fixture
def read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def read(raw, overrides=()):
        (tmp_path / "ds.json").write_text(json.dumps(raw))
        return read_deepspeed_settings("ds.json", overrides)

    return read


def zero(**section):
    return {"zero_optimization": section}


def adam(**params):
    return {"optimizer": {"type": "AdamW", "params": params}}


def test_default_is_zero1_json():
    path = next(path for path in CONFIGS if path.name == "zero1.json")
    assert json.loads(path.read_text()) == default_deepspeed_json()
    assert read_deepspeed_settings(str(path)) == read_deepspeed_settings(None)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configs(path):
    settings, lines = read_deepspeed_settings(str(path))
    assert lines == []
    assert settings.optimizer.params.torch_adam
    assert settings.train_micro_batch_size_per_gpu == "auto"
    assert "1.0" in path.read_text()
    half, small = path.stem in ("zero1_bf16", "4gb_max"), path.stem.startswith("4gb")
    assert settings.precision == ("bf16" if half else "fp32")
    assert settings.zero_optimization.offloads == ("offload" in path.stem or path.stem == "4gb_max")
    assert settings.zero_optimization.stage == (1 if small else int(path.stem[4]))
    assert settings.ds_tft.memory_budget_gib == (4 if small else None)
    assert settings.recomputes == small
    check_machine(settings, has_cuda=False, find_tool={}.get)


def test_left_out_keys_mean_what_they_mean_to_deepspeed(read):
    settings, _ = read({})
    assert settings.zero_optimization.stage == 0
    assert settings.scheduler is None
    assert settings.gradient_clipping == 1.0
    assert settings.precision == "fp32"


def test_null_switches_a_section_off(read):
    settings, _ = read(zero(stage=1, offload_optimizer=None) | {"scheduler": None})
    assert settings.scheduler is None
    assert not settings.zero_optimization.offloads


def test_bucket_may_be_written_as_5e8(read):
    bucket = read(zero(stage=1, reduce_bucket_size=5e8))[0].zero_optimization.reduce_bucket_size
    assert bucket == 500_000_000
    assert isinstance(bucket, int)


def test_overrides(read):
    raw = default_deepspeed_json()
    settings, lines = read(
        raw, ["deepspeed.gradient_clipping=0.5", "deepspeed.optimizer.params.eps=1e-6", "model.dropout=0"]
    )
    assert settings.gradient_clipping == 0.5
    assert lines == [
        "gradient_clipping: 1.0 (ds.json) -> 0.5 (--set)",
        "optimizer.params.eps: 1e-08 (default) -> 1e-06 (--set)",
    ]


def test_an_override_opens_a_section_that_is_null(read):
    raw = zero(stage=1, offload_optimizer=None)
    settings, lines = read(raw, ["deepspeed.zero_optimization.offload_optimizer.device=cpu"])
    assert settings.zero_optimization.offloads
    assert lines == ['zero_optimization.offload_optimizer.device: "none" (default) -> "cpu" (--set)']


def test_a_later_override_reaches_into_an_earlier_one(read):
    overrides = ['deepspeed.optimizer={"type":"SGD"}', "deepspeed.optimizer.params.lr=0.1"]
    settings, lines = read({}, overrides)
    assert settings.optimizer.params.lr == 0.1
    assert lines[0].endswith('-> {"type": "SGD"} (--set)')


def test_resolved_settings_reproduce_the_run(read):
    settings, _ = read_deepspeed_settings(
        None, ["deepspeed.optimizer.type=Adam", "deepspeed.bf16.enabled=true"]
    )
    assert read(json.loads(settings.model_dump_json()))[0] == settings


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("deepspeed=3", "--set deepspeed: names no key; write --set deepspeed.gradient_clipping=0.5"),
        ("deepspeed.gradient_cliping=1",
         "--set deepspeed: gradient_cliping: unknown key; did you mean 'gradient_clipping'?"),
        ("deepspeed.amp.enabled=true",
         "ds.json, --set deepspeed: amp: not supported, it is no longer in DeepSpeed; use bf16"),
        ("deepspeed.zero_optimization.offload_optimizer.device=nvme",
         '--set deepspeed: zero_optimization.offload_optimizer.device: not supported, got "nvme"; use cpu'),
    ],
)  # fmt: skip
def test_bad_overrides(read, override, message):
    with pytest.raises(ConfigError) as caught:
        read({}, [override])
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"gradient_cliping": 1}, "gradient_cliping: unknown key; did you mean 'gradient_clipping'?"),
        ({"zero_optimisation": {}}, "zero_optimisation: unknown key; did you mean 'zero_optimization'?"),
        ({"stage": 1}, "stage: unknown key; did you mean 'zero_optimization.stage'?"),
        (zero(stage="1"), 'zero_optimization.stage: expected an integer, got "1"; write 1'),
        (zero(stage=True), "zero_optimization.stage: expected an integer, got true; the default is 0"),
        (zero(stage=3), "zero_optimization.stage 3 gathers weights for plain modules only; "
         "use stage 2, or set ds_tft.streaming to false"),
        (
            {"ds_tft": {"streaming": False, "variables_per_chunk": 4}},
            "ds_tft: variables_per_chunk has no effect without streaming, got 4; leave it out",
        ),
        (zero(stage=4), "zero_optimization.stage: expected 3 or less, got 4; the default is 0"),
        (zero(stage=1, overlap_comm="true"),
         'zero_optimization.overlap_comm: expected true or false, got "true"; write true'),
        (zero(stage=1, reduce_bucket_size=5.5),
         "zero_optimization.reduce_bucket_size: expected an integer, or 'auto', got 5.5; the "
         "default is \"auto\""),
        (zero(stage=1, allgather_bucket_size=3),
         "zero_optimization: allgather_bucket_size must be even, got 3; write 4"),
        (zero(stage=0, offload_optimizer={"device": "cpu"}),
         "zero_optimization: offload_optimizer has no effect with stage 0; use stage 1"),
        (zero(stage=1, offload_optimizer={"device": "gpu"}),
         "zero_optimization.offload_optimizer.device: expected 'cpu' or 'none', got \"gpu\"; "
         "did you mean 'cpu'?"),
        ({"gradient_clipping": -1}, "gradient_clipping: expected 0 or more, got -1; the default is 1.0"),
        ({"gradient_clipping": "auto"},
         'gradient_clipping: expected a number, got "auto"; the default is 1.0'),
        ({"gradient_clipping": True}, "gradient_clipping: expected a number, got true; the default is 1.0"),
        ({"train_micro_batch_size_per_gpu": 2.5},
         "train_micro_batch_size_per_gpu: expected an integer, or 'auto', got 2.5; the default is \"auto\""),
        ({"train_micro_batch_size_per_gpu": True},
         "train_micro_batch_size_per_gpu: expected an integer, or 'auto', got true; the default is \"auto\""),
        ({"bf16": {"enabled": 1}}, "bf16.enabled: expected true or false, got 1; the default is false"),
        ({"bf16": {"enabled": True}},
         "bf16.enabled with zero_optimization.stage 0 takes an optimizer of DeepSpeed whose "
         "updates are imprecise; "
         "use stage 1, which is the same on one process"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}},
         "fp16.enabled and bf16.enabled are both true; enable one"),
        (adam(lr="auto"), 'optimizer.params.lr: expected a number, got "auto"; the default is 0.001'),
        (adam(adam_w_mode=False),
         "optimizer.params: adam_w_mode false has no effect on AdamW; use optimizer type Adam"),
        (adam(fused=True, torch_adam=False),
         "optimizer.params: fused is torch's and needs torch_adam true; leave one of them out"),
        ({"optimizer": {"type": "SGD", "params": {"nesterov": True}}},
         "optimizer.params: nesterov needs a momentum above 0 and no dampening; set momentum, such as 0.9"),
        (zero(stage=2) | {"optimizer": {"type": "SGD"}, "zero_allow_untested_optimizer": False},
         "zero_allow_untested_optimizer is false, and SGD in stage 2 needs it; leave it out"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01}}},
         "scheduler.params.warmup_max_lr is 0.01, but optimizer.params.lr is 0.001; "
         "give the rate in optimizer.params.lr only"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0.01}}},
         "scheduler.params.warmup_min_lr is 0.01, above optimizer.params.lr 0.001; lower it"),
        ({"activation_checkpointing": {"partitioned_activations": True}},
         "activation_checkpointing.partitioned_activations: unknown key; did you mean "
         "'partition_activations'?"),
        ({"ds_tft": {"memory": 4}},
         "ds_tft.memory: unknown key; known: compress_kept, int8, memory_budget_gib, on_out_of_memory, "
         "recompute, streaming, trace_every_steps, trace_snapshot, variables_per_chunk"),
        ({"zero_optimization": {"stage": 3}, "ds_tft": {"streaming": False, "recompute": "default"}},
         "zero_optimization.stage 3 does not gather weights again where a block is recomputed; "
         "use stage 2, or leave ds_tft.recompute and activation_checkpointing out"),
        ({"activation_checkpointing": {"cpu_checkpointing": True}, "ds_tft": {"compress_kept": "int8"}},
         "ds_tft.compress_kept and activation_checkpointing.cpu_checkpointing both say how the inputs of "
         "recomputed blocks are kept; give one of them"),
        ({"ds_tft": {"compress_kept": "int8"}},
         "ds_tft.compress_kept is 'int8', and no block is recomputed; "
         'set ds_tft.recompute to "default", or leave it out'),
    ],
)  # fmt: skip
def test_messages(read, raw, message):
    with pytest.raises(ConfigError) as caught:
        read(raw)
    assert str(caught.value) == f"ds.json: {message}"


def test_equal_rate_in_two_places_is_fine(read):
    scheduler = {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01}}
    assert read(adam(lr=0.01) | {"scheduler": scheduler})[0].optimizer.params.lr == 0.01


def test_sections_that_ask_for_nothing_are_fine(read):
    raw = {
        "activation_checkpointing": {"cpu_checkpointing": False},
        "compression_training": None,
        "ds_tft": {},
    }
    assert read(raw)[0] == read({})[0]


def test_fp16_needs_a_gpu(read):
    settings, _ = read(zero(stage=1) | {"fp16": {"enabled": True}})
    check_machine(settings, has_cuda=True)
    with pytest.raises(ConfigError, match=r"fp16\.enabled: true needs a GPU, and none was found; use bf16"):
        check_machine(settings, has_cuda=False)


@pytest.mark.parametrize(
    ("has_cuda", "offload", "present", "missing"),
    [
        (False, False, set(), "FusedAdam at the first start and needs c++,"),
        (False, False, {"c++"}, "FusedAdam at the first start and needs ninja,"),
        (False, False, {"c++", "ninja"}, None),
        (True, False, {"c++", "ninja"}, "FusedAdam at the first start and needs nvcc,"),
        (True, True, {"c++", "ninja"}, None),
        (True, True, {"ninja"}, "CPUAdam at the first start and needs c++,"),
    ],
)
def test_an_optimizer_to_compile_needs_its_tools(read, has_cuda, offload, present, missing):
    section = {"device": "cpu"} if offload else None
    settings, _ = read(adam(torch_adam=False) | zero(stage=1, offload_optimizer=section))

    def check():
        check_machine(settings, has_cuda, find_tool=lambda name: name if name in present else None)

    if missing is None:
        check()
    else:
        with pytest.raises(ConfigError, match=r"torch_adam: false compiles") as caught:
            check()
        assert missing in str(caught.value)
        assert str(caught.value).endswith("install it or write torch_adam true")


def test_an_8_bit_optimizer_compiles_nothing(read):
    settings, _ = read({"optimizer": {"type": "AdamW8bit"}})
    check_machine(settings, has_cuda=True, find_tool={}.get)


def test_every_key_and_every_shipped_file_is_documented():
    text = (Path(__file__).parents[2] / "docs" / "deepspeed_config.md").read_text()

    def keys(model):
        for name, field in model.model_fields.items():
            yield name
            for section in _sections(field.annotation):
                yield from keys(section)

    assert not [name for name in keys(DeepSpeedSettings) if not re.search(rf"\b{name}\b", text)]
    assert [path.name for path in CONFIGS] == sorted(
        re.findall(r"^\| `((?:zero|4gb)\w*\.json)`", text, re.MULTILINE)
    )


@pytest.mark.parametrize(
    ("product", "expected"),
    [(None, "default"), ({"recompute": None}, "default"), ({"recompute": ["attention"]}, ("attention",))],
)
def test_the_flag_recomputes_what_the_file_names_or_the_default(tmp_path, product, expected):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({} if product is None else {"ds_tft": product}))
    settings, lines = read_deepspeed_settings(str(file), use_checkpointing=True)
    assert settings.ds_tft.recompute == expected
    said = expected == "default"
    assert [line.endswith('-> "default" (--use-gradient-checkpointing)') for line in lines] == [True] * said
