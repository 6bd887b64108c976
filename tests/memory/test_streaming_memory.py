"""What streaming holds: little for backward, one chunk at a time, nothing without gradients."""

from __future__ import annotations

import pytest
import torch
from streaming_cases import GROUPS, Owner, draw_inputs, streamed

from ds_tft.memory.chunks import StreamingSettings
from ds_tft.memory.meter import kept_for_backward, tensor_bytes
from ds_tft.memory.peak import peak_live_bytes
from ds_tft.memory.streaming import stream_variable_selection

CPU = torch.device("cpu")
FLOAT = 4
VARIABLES = 220


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    monkeypatch.setitem(GROUPS, "wide", ((210, ()), (10, ())))
    monkeypatch.setitem(GROUPS, "forty", ((40, ()),))
    monkeypatch.setitem(GROUPS, "forty with categories", ((20, ()), (0, (30,) * 20)))
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the profiler does not see what other threads allocate
    yield
    torch.set_num_threads(before)


def wide(hidden: int, kind: str = "wide") -> Owner:
    torch.manual_seed(0)
    return Owner(kind, hidden, 0.1, with_context=True)


def inputs_of(owner: Owner, batch: int, steps: int):
    inputs = draw_inputs(owner, batch, steps, with_context=True, dtype=torch.float32)
    return inputs._replace(reals=inputs.reals.detach(), context=inputs.context.detach())


def kept(owner: Owner, batch: int, steps: int) -> int:
    inputs = inputs_of(owner, batch, steps)
    return kept_for_backward(lambda: owner(*inputs), excluded=[*owner.parameters(), *inputs])


def test_a_thirtieth_is_kept_and_less_for_longer_batches():
    plain = wide(hidden=32)
    streaming = streamed(plain)
    assert kept(plain, 4, 20) > 30 * kept(streaming, 4, 20)
    assert kept(plain, 8, 30) > 50 * kept(streaming, 8, 30)


def test_what_is_kept_per_row_does_not_grow_with_variables_times_hidden():
    per_row = {
        hidden: (kept(streamed(wide(hidden)), 8, 20) - kept(streamed(wide(hidden)), 4, 20)) / (4 * 20 * FLOAT)
        for hidden in (16, 64)
    }
    assert (
        per_row[16] < 2.5 * VARIABLES
    )  # weights, rows of tables; what leads to the weights is computed again
    assert per_row[64] - per_row[16] < 8 * 48


def test_no_copy_of_a_wide_weight_is_kept_under_autocast_either():
    streaming = streamed(wide(hidden=64))
    weight_bytes = VARIABLES * 64 * 64 * FLOAT
    with torch.autocast("cpu", torch.bfloat16):
        held = kept(streaming, 1, 2)
    assert held < weight_bytes / 2


def test_without_gradients_nothing_is_kept():
    streaming = streamed(wide(hidden=16))
    inputs = inputs_of(streaming, 2, 5)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda packed: packed):
        for training in (True, False):
            streaming.train(training)
            with torch.no_grad():
                streaming(*inputs)
            streaming.requires_grad_(False)
            streaming(*inputs)
            streaming.requires_grad_(True)
    assert saved == []


@pytest.mark.parametrize(("kind", "buffers"), [("forty", 6.5), ("forty with categories", 7.5)])
def test_the_workspace_is_that_of_a_chunk_and_within_what_is_reported(kind, buffers):
    buffer = 4 * 480 * 64 * FLOAT  # a tenth of the variables
    streaming = wide(64, kind)
    history = stream_variable_selection(streaming, StreamingSettings(buffer_bytes=buffer)).selections[0]
    inputs = inputs_of(streaming, 8, 60)
    small = 3 * 480 * (40 + 64) * FLOAT  # tensors of shape (R, V) and (R, H)

    def forward() -> None:
        with torch.no_grad():
            streaming(*inputs)

    def step() -> None:
        streaming(*inputs)[0].sum().backward()

    step()
    parameters = tensor_bytes(streaming.parameters())
    streaming.zero_grad(set_to_none=True)
    assert history.workspace_bytes(480) == 11 * buffer
    assert peak_live_bytes(forward, CPU) < buffers * buffer + small
    assert peak_live_bytes(step, CPU) < 11 * buffer + small + parameters


def test_a_longer_batch_adds_no_tensor_of_batch_times_variables_times_hidden():
    streaming = streamed(wide(64, "forty"), StreamingSettings(buffer_bytes=64 * 1024))  # 256 rows
    peaks = []
    for batch in (10, 50):
        inputs = inputs_of(streaming, batch, 30)

        def step(inputs=inputs) -> None:
            streaming.zero_grad(set_to_none=True)
            streaming(*inputs)[0].sum().backward()

        step()
        streaming.zero_grad(set_to_none=True)
        peaks.append(peak_live_bytes(step, CPU))
        streaming.zero_grad(set_to_none=True)
    more_rows = 40 * 30
    assert peaks[1] - peaks[0] < 32 * more_rows * 40 * FLOAT  # half of one (R, V, H) tensor


def test_peak_live_bytes_counts_what_lives_together():
    def step() -> None:
        first = torch.empty(1000, dtype=torch.uint8)
        del first
        second = torch.empty(3000, dtype=torch.uint8)
        third = torch.empty(2000, dtype=torch.uint8)
        del second, third

    assert 5000 <= peak_live_bytes(step, CPU) < 5500
