"""DeepSpeed: the process group and the engine around the model. The only module that initialises either."""

from __future__ import annotations

import atexit
import gc
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import torch
import torch.distributed
from torch import nn

from ds_tft.training.adam8bit import ADAMW_8BIT, make_adamw_8bit
from ds_tft.training.environment import ProcessPlace

# Given at every start: that the schedule has not started yet, and that DeepSpeed's authors have not tried the
# optimizer (those that this package lets through to ZeRO are tested with it); and that nobody runs tensor parallel.
HIDDEN_WARNINGS = ("before it has started", "ZeRO with an untested optimizer", "MPU is not provided")


def choose_device(place: ProcessPlace) -> torch.device:
    """Picks this process's device, and tells DeepSpeed where there is no GPU.

    Call it before DeepSpeed is imported.
    """
    if torch.cuda.is_available():
        device = torch.device("cuda", place.local_rank)
        torch.cuda.set_device(device)
        return device
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    return torch.device("cpu")


def start_process_group(device: torch.device) -> None:
    """Joins the processes of the run. Does nothing where that has been done already."""
    import deepspeed
    import deepspeed.ops

    # On a CPU DeepSpeed would compile an operation here (100 seconds, and it needs a compiler) that only
    # serves inference; gloo does all the communication of training.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    backend = "nccl" if device.type == "cuda" else "gloo"
    if not torch.distributed.is_initialized():
        _meet_without_port(backend)
    deepspeed.init_distributed(dist_backend=backend, verbose=False)


def _meet_without_port(backend: str) -> None:
    """Starts the group of one process, or of DeepSpeed's launcher on one machine, where no port is needed.

    The launcher gives every run the same port, so that a second run would fail. A file named after the
    launcher, which all its processes have as their parent, is another for each run.
    """
    processes, launcher = os.environ["WORLD_SIZE"], Path(f"/proc/{os.getppid()}/stat")
    on_one_machine = os.environ.get("CROSS_SIZE") == "1" and os.environ.get("LOCAL_SIZE") == processes
    store: torch.distributed.Store
    if processes == "1":
        store = torch.distributed.HashStore()
    elif on_one_machine and launcher.exists():
        started = launcher.read_text().rpartition(")")[2].split()[19]  # ticks since boot: numbers come again
        file = Path(gettempdir()) / f"ds_tft-{os.getppid()}-{started}"
        store = torch.distributed.FileStore(str(file), int(processes))
        if os.environ["RANK"] == "0":
            atexit.register(file.unlink, missing_ok=True)
    else:
        return
    torch.distributed.init_process_group(
        backend, store=store, rank=int(os.environ["RANK"]), world_size=int(processes)
    )


def build_engine(model: nn.Module, config: dict[str, Any]) -> Any:
    """Wraps `model` in a DeepSpeed engine.

    Args:
        model: The model, in fp32 on the CPU; the engine moves and casts it.
        config: A complete DeepSpeed configuration with every `auto` resolved. Its optimizer may be 8-bit Adam,
            which DeepSpeed does not have: it is made here.

    Returns:
        The `DeepSpeedEngine`, its schedule corrected so that the first step has the schedule's first rate.

    Raises:
        ConfigError: The optimizer needs a package that is missing, or that does not work on the device.
    """
    import deepspeed

    make_optimizer, section = None, config.get("optimizer", {})
    if section.get("type") == ADAMW_8BIT:
        make_optimizer = partial(make_adamw_8bit, section["params"])
        config = {name: value for name, value in config.items() if name != "optimizer"}
    with without_warnings():
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=make_optimizer,
            model_parameters=list(model.parameters()),
            config=config,
        )
        if engine.lr_scheduler is not None and hasattr(engine.lr_scheduler, "warmup_num_steps"):
            # DeepSpeed's warm-up schedules spend their first two steps at the lowest rate, usually 0: one for
            # "not started", one for "iteration 0". Two steps in advance, the first update is warm-up step 1.
            engine.lr_scheduler.step()
            engine.lr_scheduler.step()
    if not engine.zero_optimization() and not engine.fp16_enabled():
        _complete_stage_0(engine)
    for module in engine.module.modules():
        if isinstance(module, nn.LSTM):
            module.flatten_parameters()  # the engine moved the weights; packed once here, not in every call
    gc.collect()  # DeepSpeed leaves a copy of the weights in a cycle
    return engine


@contextmanager
def whole_weights(engine: Any) -> Iterator[nn.Module]:
    """Gives the model with all of its weights, also where ZeRO stage 3 spreads them over the processes.

    Args:
        engine: The DeepSpeed engine. Every process must enter this.

    Yields:
        The model, to be read and not changed.
    """
    import deepspeed

    spread = engine.zero_optimization_stage() == 3
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters()), enabled=spread):
        yield engine.module


def _complete_stage_0(engine: Any) -> None:
    """Gives ZeRO stage 0 what the others have: the gradient's norm, and updates left out if it is not finite.

    The engine reads `overflow` and `_global_grad_norm` of its optimizer after each step; torch's own have
    neither.
    """
    optimizer, update, largest_norm = engine.optimizer, engine.optimizer.step, engine.gradient_clipping()

    def step() -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in parameters])
        optimizer._global_grad_norm = norm
        optimizer.overflow = not bool(norm.isfinite())
        if optimizer.overflow:
            return
        if largest_norm:
            nn.utils.clip_grads_with_norm_(parameters, largest_norm, norm)
        update()

    optimizer.overflow = False
    optimizer.step = step
    engine.clip_fp32_gradients = _do_nothing  # the engine would clip before `step` sees the norm


def _do_nothing() -> None:
    """Takes the place of what is done elsewhere."""


@contextmanager
def without_warnings() -> Iterator[None]:
    """Hides DeepSpeed's warnings that say nothing about the run."""
    logger = logging.getLogger("DeepSpeed")

    def keep(record: logging.LogRecord) -> bool:
        return not any(words in record.getMessage() for words in HIDDEN_WARNINGS)

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
