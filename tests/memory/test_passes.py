"""From the DeepSpeed JSON to the passes on a model."""

import pytest
import torch
from recompute_cases import build

from ds_tft.config.deepspeed_sections import DeepSpeedSettings, ProductSettings
from ds_tft.memory.chunks import BUFFERS, CPU_BUFFER_BYTES, CUDA_BUFFER_BYTES, StreamingSettings
from ds_tft.memory.passes import attach_passes, detach_passes, streaming_settings
from ds_tft.memory.recompute import DEFAULT_BLOCKS

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def settings(**product):
    return DeepSpeedSettings(ds_tft=ProductSettings(**product))


@pytest.mark.parametrize(
    ("product", "lines"),
    [
        ({}, ("streaming variable selection: static_selection", "recompute: off")),
        ({"streaming": False}, ("streaming variable selection: off (ds_tft.streaming)", "recompute: off")),
        (
            {"recompute": "default"},
            ("streaming variable selection: static", "recompute: history_selection, "),
        ),
        (
            {"streaming": False, "recompute": ("attention",)},
            ("streaming variable selection: off", "recompute: att"),
        ),
    ],
)
def test_what_is_on_is_said_and_can_be_taken_off(product, lines):
    model = build(streams=False)
    passes = attach_passes(model, settings(**product), CPU)
    for line, expected in zip(passes.lines(), lines, strict=True):
        assert line.startswith(expected)
    detach_passes(model, passes)
    assert not any("forward" in vars(module) for module in model.modules())


def test_the_default_blocks_come_after_streaming():
    passes = attach_passes(build(streams=False), settings(recompute="default"), CPU)
    assert passes.recompute.blocks == DEFAULT_BLOCKS


def test_chunks_follow_the_json_then_the_budget_then_the_device():
    def chunks(device, **product):
        return streaming_settings(ProductSettings(**product), device)

    assert chunks(CPU, variables_per_chunk=3) == StreamingSettings(variables_per_chunk=3)
    assert chunks(CPU) == StreamingSettings(buffer_bytes=CPU_BUFFER_BYTES)
    assert chunks(CUDA) == StreamingSettings(buffer_bytes=CUDA_BUFFER_BYTES)
    assert chunks(CUDA, memory_budget_gib=4) == StreamingSettings(buffer_bytes=CUDA_BUFFER_BYTES)
    small = chunks(CUDA, memory_budget_gib=1)
    assert small.buffer_bytes < CUDA_BUFFER_BYTES
    assert BUFFERS * small.buffer_bytes == pytest.approx(2**30 / 16, rel=1e-6)
