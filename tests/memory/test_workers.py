from __future__ import annotations

import threading

import pytest
import torch

from ds_tft.memory.workers import count_workers, run_workers

CPU = torch.device("cpu")


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)


def test_as_many_workers_as_threads_but_not_more_than_pieces(threads):
    assert count_workers(10, CPU) == threads
    assert count_workers(2, CPU) == 2
    assert count_workers(0, CPU) == 1
    assert count_workers(10, torch.device("cuda", 0)) == 1


def test_each_worker_has_a_thread_of_its_own_and_its_operations_one_core(threads):
    barrier = threading.Barrier(3, timeout=30)  # passes only if all three run at once

    def work(number):
        barrier.wait()
        return number, threading.get_ident(), torch.get_num_threads(), torch.is_grad_enabled()

    numbers, identities, cores, gradients = zip(*run_workers(work, 3), strict=True)
    assert numbers == (0, 1, 2)
    assert len(set(identities)) == 3
    assert set(cores) == {1}
    assert set(gradients) == {False}
    assert torch.get_num_threads() == threads


def test_a_single_worker_runs_here(threads):
    assert run_workers(lambda number: (number, threading.get_ident()), 1) == [(0, threading.get_ident())]


def test_inference_mode_goes_along(threads):
    with torch.inference_mode():
        tensor = torch.zeros(2)
        run_workers(lambda number: tensor[number].add_(1), 2)
    assert tensor.tolist() == [1, 1]


def test_an_error_reaches_the_caller_and_the_threads_are_restored(threads):
    def fail(number):
        raise ValueError(f"piece {number}")

    with pytest.raises(ValueError, match="piece 0"):
        run_workers(fail, 2)
    assert torch.get_num_threads() == threads
