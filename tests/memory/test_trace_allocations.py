from __future__ import annotations

import threading

import pytest
import torch

from ds_tft.memory.peak import peak_live_bytes
from ds_tft.memory.trace.allocations import AllocationRecorder, worker_recording
from ds_tft.memory.trace.timeline import Place, timeline_of
from ds_tft.memory.workers import run_workers

CPU = torch.device("cpu")


def recorded(step):
    recorder = AllocationRecorder[str](CPU)
    recorder.start()
    try:
        step(recorder)
    finally:
        allocations = recorder.stop()
    return allocations


def test_every_allocation_and_free_is_there_in_order():
    def step(recorder):
        first = torch.empty(100)
        recorder.mark("marked")
        second = torch.empty(200, dtype=torch.float64)
        del first
        del second

    allocations = recorded(step)
    assert [change.bytes for change in allocations.changes] == [400, 1600, -400, -1600]
    assert [(mark.position, mark.label) for mark in allocations.marks] == [(1, "marked")]
    moments = [change.seconds for change in allocations.changes]
    assert moments == sorted(moments)
    assert 0 <= moments[0] <= allocations.marks[0].seconds <= moments[1] <= moments[-1] <= allocations.seconds


def test_backward_is_recorded():
    x = torch.ones(1000, requires_grad=True)
    y = x.exp().sum()
    sizes = [change.bytes for change in recorded(lambda _: y.backward()).changes]
    assert 4000 in sizes
    assert x.grad is not None


def test_a_recorded_worker_counts_and_another_does_not():
    def step(_):
        recording = worker_recording()

        def work(context):
            with context():
                torch.empty(1234)

        from contextlib import nullcontext

        for context in (recording, nullcontext):
            thread = threading.Thread(target=work, args=(context,))
            thread.start()
            thread.join()

    assert [change.bytes for change in recorded(step).changes] == [1234 * 4, -1234 * 4]


def test_workers_of_streaming_count():
    """Both hold their memory at the same time."""
    threads = torch.get_num_threads()
    barrier = threading.Barrier(2, timeout=30)

    def work(number):
        held = torch.empty(1000 * (number + 1))
        barrier.wait()
        return held.numel()

    assert peak_live_bytes(lambda: run_workers(work, 2), CPU) == 3000 * 4
    assert torch.get_num_threads() == threads


def test_nothing_is_recorded_outside():
    with pytest.raises(ZeroDivisionError):
        recorded(lambda _: 1 / 0)
    assert not torch.autograd._profiler_enabled()
    torch.empty(100)
    assert recorded(lambda _: None).changes == ()


def test_an_exception_leaves_no_recorder_behind():
    with pytest.raises(ZeroDivisionError):
        peak_live_bytes(lambda: 1 / 0, CPU)
    assert peak_live_bytes(lambda: torch.empty(10), CPU) == 40


def test_live_bytes_are_cut_into_places():
    recorder = AllocationRecorder[Place](CPU)
    recorder.start()
    first = torch.empty(100)
    recorder.mark(Place("forward", "a"))
    second = torch.empty(1000)
    del second
    third = torch.empty(10)
    recorder.mark(Place("forward"))
    del first, third
    timeline = timeline_of(recorder.stop())
    assert timeline.live.tolist() == [400, 4400, 400, 440, 40, 0]
    assert timeline.peak == 4400
    assert [(each.place, each.entry, each.exit, each.peak) for each in timeline.stretches] == [
        (Place(), 0, 400, 400),
        (Place("forward", "a"), 400, 440, 4400),
        (Place("forward"), 440, 0, 440),
    ]
    assert [each.workspace for each in timeline.stretches] == [0, 3960, 0]
    stops = [each.stop for each in timeline.stretches]
    assert [each.start for each in timeline.stretches] == [0.0, *stops[:-1]]
    joined = timeline.runs(lambda place: place.phase)
    assert [(run.place.phase, run.entry, run.exit, run.peak) for run in joined] == [
        ("", 0, 400, 400),
        ("forward", 400, 0, 4400),
    ]
    assert joined[1].workspace == 4000


def test_a_record_without_any_change_is_flat():
    recorder = AllocationRecorder[Place](CPU)
    recorder.start()
    timeline = timeline_of(recorder.stop())
    assert timeline.peak == 0
    assert len(timeline.stretches) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_cuda_the_allocator_is_recorded():
    device = torch.device("cuda", torch.cuda.current_device())
    recorder = AllocationRecorder[Place](device)
    recorder.start()
    torch.empty(1000)  # on the host
    on_device = torch.empty(2**20, device=device)
    del on_device
    assert [change.bytes for change in recorder.stop().changes] == [4 * 2**20, -4 * 2**20]
