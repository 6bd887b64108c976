from ds_tft.memory.meter import CudaMemory, CudaPeaks, MemoryReading, StateBytes
from ds_tft.training.scalars import memory_scalars

MIB = 2**20


def test_a_cpu_run_has_no_cuda_tags():
    reading = MemoryReading(host_rss=3 * MIB, host_rss_peak=5 * MIB, cuda=None)
    assert memory_scalars(reading) == {"memory/host_rss_mib": 3.0, "memory/host_rss_peak_mib": 5.0}


def test_each_cuda_quantity_under_its_name():
    cuda = CudaMemory(allocated=MIB, allocated_peak=2 * MIB, reserved=3 * MIB, reserved_peak=4 * MIB,
                      used=5 * MIB, total=9 * MIB)  # fmt: skip
    scalars = memory_scalars(MemoryReading(host_rss=MIB, host_rss_peak=MIB, cuda=cuda))
    assert scalars["memory/cuda_allocated_mib"] == 1.0
    assert scalars["memory/cuda_allocated_peak_mib"] == 2.0
    assert scalars["memory/cuda_reserved_peak_mib"] == 4.0
    assert scalars["memory/cuda_device_used_mib"] == 5.0
    assert scalars["memory/cuda_reserved_mib"] == 3.0


def test_each_phase_has_its_peaks():
    reading = MemoryReading(host_rss=MIB, host_rss_peak=MIB, cuda=None)
    peaks = {"forward": CudaPeaks(allocated=6 * MIB, reserved=7 * MIB)}
    scalars = memory_scalars(reading, peaks)
    assert scalars["memory/cuda_forward_allocated_peak_mib"] == 6.0
    assert scalars["memory/cuda_forward_reserved_peak_mib"] == 7.0


def test_states_have_a_tag_once_they_are_known():
    reading = MemoryReading(host_rss=MIB, host_rss_peak=MIB, cuda=None)
    assert "memory/states_mib" not in memory_scalars(reading, {}, None)
    states = StateBytes(parameters=MIB, gradients=MIB, optimizer=2 * MIB)
    assert memory_scalars(reading, {}, states)["memory/states_mib"] == 4.0
