"""Whether the GPU computes what the CPU does, and whether recomputing changes anything there."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from workload import Workload, attach_form, build_model, draw_batch, loss_of

SMALL = Workload(hidden_size=64, batch=8)
LEAST_SHARE = 1e-3
"""A gradient smaller than this share of the largest one is compared with that: some are nothing but rounding."""


def distance_to_cpu(form: str, device: torch.device, workload: Workload = SMALL) -> float:
    """Returns how far loss and gradients of a form on a device are from those of the plain form on the CPU.

    Args:
        form: A form of workload.py.
        device: The GPU.
        workload: Sizes. Dropout is off: the devices draw other masks.

    Returns:
        The largest distance of the loss and the gradients of the parameters, relative to their norms.
    """
    without_dropout = replace(workload, dropout=0.0)
    expected = loss_and_gradients(without_dropout, "plain", torch.device("cpu"))
    return _distance(loss_and_gradients(without_dropout, form, device), expected)


def distance_to_streaming(form: str, device: torch.device, workload: Workload = SMALL) -> float:
    """Returns the same between a form and the streaming one on one device, with dropout.

    It is 0 where all operations of the device give the same result each time.
    """
    return _distance(
        loss_and_gradients(workload, form, device), loss_and_gradients(workload, "streaming", device)
    )


def loss_and_gradients(workload: Workload, form: str, device: torch.device) -> dict[str, Tensor]:
    """Returns loss and gradients by parameter, on the CPU; weights and batch are the same on all devices."""
    model = build_model(workload, torch.device("cpu")).to(device).train()
    attach_form(model, form, device)
    torch.manual_seed(2)  # dropout
    batch = draw_batch(model.size, workload.batch, device)
    # The LSTMs without TF32, which rounds to 10 bits, and the same each time.
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        loss = loss_of(model, *batch)
        loss.backward()
    found = {"loss": loss.detach().cpu()}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        found[name] = parameter.grad.cpu()
    return found


def _distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Returns the largest relative distance of two tensors of one name."""
    least = LEAST_SHARE * max(float(tensor.norm()) for tensor in expected.values())
    return max(
        float((found[name] - tensor).norm()) / max(float(tensor.norm()), least)
        for name, tensor in expected.items()
    )
