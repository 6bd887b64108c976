from __future__ import annotations

import pytest
import torch

from ds_tft.config.deepspeed_sections import ProductSettings
from ds_tft.errors import ConfigError
from ds_tft.memory.trace.settings import TraceSettings, trace_settings

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def traced(settings, first_step=1, count=12):
    return [
        step
        for since_start, step in enumerate(range(first_step, first_step + count), 1)
        if settings.is_due(step, since_start)
    ]


def test_without_a_cadence_only_the_second_update_is_traced():
    assert traced(TraceSettings()) == [2]


def test_with_one_the_second_and_every_so_many():
    assert traced(TraceSettings(every_steps=5)) == [2, 5, 10]
    assert traced(TraceSettings(every_steps=1), count=4) == [2, 3, 4]


def test_a_resumed_run_traces_its_own_second_update():
    assert traced(TraceSettings(every_steps=5), first_step=100) == [101, 105, 110]
    assert traced(TraceSettings(), first_step=100) == [101]


def test_the_json_is_read():
    settings = ProductSettings(trace_every_steps=7)
    assert trace_settings(settings, CPU) == TraceSettings(every_steps=7)
    settings = ProductSettings(trace_snapshot=True)
    assert trace_settings(settings, CUDA) == TraceSettings(snapshot=True)


def test_a_snapshot_is_refused_where_there_is_none():
    with pytest.raises(ConfigError) as error:
        trace_settings(ProductSettings(trace_snapshot=True), CPU)
    assert str(error.value) == (
        "ds_tft.trace_snapshot: it is the history of the CUDA allocator, and training runs on the CPU, "
        "got true; leave it out"
    )
