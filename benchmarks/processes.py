"""A process for each form of the model, so that none works in memory that another has left behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch
from workload import Trial, Workload, find_device

END = ""


class FormProcess:
    """One form in a process of its own.

    Args:
        pipe: To the process.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def ask(self, question: str) -> Any:
        """Calls the method of the trial that is named, and returns what it returns."""
        self._pipe.send(question)
        return self._pipe.recv()


@contextmanager
def form_process(workload: Workload, form: str) -> Iterator[FormProcess]:
    """Starts the process of a form, and ends it."""
    context = get_context("spawn")
    pipe, other_end = context.Pipe()
    process = context.Process(target=serve, args=(workload, form, other_end), daemon=True)
    process.start()
    other_end.close()  # so that the end of the process is seen on `pipe`
    yield FormProcess(pipe)
    pipe.send(END)
    process.join()


@contextmanager
def form_processes(workload: Workload, forms: Sequence[str]) -> Iterator[dict[str, FormProcess]]:
    """Starts a process for each form."""
    with ExitStack() as stack:
        yield {form: stack.enter_context(form_process(workload, form)) for form in forms}


def serve(workload: Workload, form: str, pipe: Connection) -> None:
    """Answers questions about one form until none is left."""
    torch.set_num_threads(workload.threads)
    trial = Trial(workload, form, find_device())
    while (question := pipe.recv()) != END:
        pipe.send(getattr(trial, question)())
