"""Independent pieces of work on the cores of a CPU, each core at its own.

Torch by itself splits every operation among its threads and waits for the slowest of them each time. With
many short operations the waiting counts, and where other programs take a core now and then it counts many
times over. Pieces that need nothing of each other are better done whole, by one thread each.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from ds_tft.memory.dry_running import is_dry_run
from ds_tft.memory.trace.allocations import worker_recording

Result = TypeVar("Result")


def count_workers(num_pieces: int, device: torch.device) -> int:
    """Returns how many threads should share the pieces: torch's number on a CPU, one on a GPU."""
    return 1 if device.type != "cpu" else max(1, min(torch.get_num_threads(), num_pieces))


def run_workers(work: Callable[[int], Result], count: int) -> list[Result]:
    """Returns `work(0), ..., work(count - 1)`, each run in its own thread and without gradients.

    With one worker, it is called here, and torch splits its operations as usual. In a dry run all are called
    here, one after the other.
    """
    if count == 1 or is_dry_run():
        return [work(number) for number in range(count)]
    threads, inference = torch.get_num_threads(), torch.is_inference_mode_enabled()
    recording = worker_recording()

    def run(number: int) -> Result:
        torch.set_num_threads(1)  # of the operations that this thread starts
        with torch.inference_mode(inference), torch.no_grad(), recording():
            return work(number)

    try:
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(run, range(count)))
    finally:
        torch.set_num_threads(threads)  # what threads to come start with
