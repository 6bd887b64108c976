"""The forms of the workload compute the same and keep what they say."""

import pytest
import torch
from gpu_parity import distance_to_cpu, distance_to_streaming
from peaks import peak_beside_states
from workload import FORMS, Trial, Workload

CPU = torch.device("cpu")
TINY = Workload(hidden_size=8, batch=2, variables=20, encoder_length=6)


def test_sizes_are_those_of_the_standard_workload():
    size = Workload().size
    assert (size.static_reals, size.observed_reals, size.known_reals) == (5, 210, 10)
    assert (size.encoder_length, size.horizon, size.hidden_size, size.num_heads) == (60, 10, 128, 4)


def test_kept_bytes_fall_from_form_to_form():
    kept = {form: Trial(TINY, form, CPU).kept_bytes() for form in ("plain", "streaming", "checkpointing")}
    assert kept["plain"] > kept["streaming"] > kept["checkpointing"] > 0


def test_offload_moves_what_is_large():
    larger = Workload(hidden_size=16, batch=16, variables=20)
    with_offload, without = Trial(larger, "offload", CPU), Trial(larger, "checkpointing", CPU)
    assert with_offload.host_bytes() > 64 * 2**10
    assert with_offload.kept_bytes() < without.kept_bytes()
    assert without.host_bytes() == 0


def test_a_step_is_timed_in_its_parts_and_learns():
    trial = Trial(TINY, "streaming", CPU)
    before = float(trial.loss().detach())
    for _ in range(5):
        times = trial.step_seconds()
    assert float(trial.loss().detach()) < before
    assert all(part.wall > 0 and part.cpu > 0 for part in times)
    assert times.step.wall == pytest.approx(sum(part.wall for part in times))
    assert trial.evaluation_seconds().wall > 0


def test_peak_leaves_gradients_out():
    """Known sizes: two results of 4 MB live at once, and a gradient of 4 MB that stays."""
    weight = torch.nn.Parameter(torch.ones(1000, 1000))

    def step() -> None:
        weight.grad = None
        first = weight.detach() * 2
        second = first + 1
        del first, second
        (weight * 3).sum().backward()

    step()
    weight.grad = None
    peak = peak_beside_states(step, [weight], CPU)
    assert 8_000_000 <= peak < 8_100_000


@pytest.mark.parametrize("form", FORMS)
def test_forms_agree(form):
    assert distance_to_cpu(form, CPU, TINY) < 1e-5
    if form != "plain":
        assert distance_to_streaming(form, CPU, TINY) == 0.0


def test_forms_that_differ_are_told_apart():
    assert distance_to_streaming("plain", CPU, TINY) > 1e-2, "their dropout masks differ"
