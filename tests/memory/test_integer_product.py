"""Products of codes by integer instructions, and of codes as they are stored, are those in float32, bit by bit.

A CPU runs `torch._int_mm` too, so that everything but the kernel is tried without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from ds_tft.memory import exact_product, integer_product
from ds_tft.memory.exact_product import LARGEST_CODE, LONGEST_SUM, SMALLEST_CODE, exact_bmm, exact_mm
from ds_tft.memory.integer_product import FEW_ROWS, MULTIPLE, integer_mm, takes_integers
from ds_tft.memory.peak import peak_live_bytes
from ds_tft.memory.streaming import stream_variable_selection
from ds_tft.model.fold import build_folded
from ds_tft.model.inputs import ModelInputs, ModelSize
from ds_tft.quantization.attach import Covered, attach_quantisation
from ds_tft.quantization.calibration import calibrate
from ds_tft.quantization.stored import build_stored

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SHAPES = [(17, 16, 16), (40, 225, 450), (33, 7, 1), (17, 1, 225), (20, LONGEST_SUM, 3)]
LENGTHS = [1, 128, LONGEST_SUM, LONGEST_SUM + 1, 3 * LONGEST_SUM + 5]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def draw(*shape: int, smallest: int = SMALLEST_CODE) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(smallest, LARGEST_CODE + 1, shape, generator=generator).float()


def whole(inputs: Tensor, weights: Tensor) -> Tensor:
    return inputs.long() @ weights.long().mT


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Has a CPU take integer instructions, and collects what they multiply."""
    found: list[tuple[Tensor, Tensor]] = []
    product = torch._int_mm

    def record(left: Tensor, right: Tensor) -> Tensor:
        found.append((left, right))
        return product(left, right)

    monkeypatch.setattr(integer_product, "_has_instructions", lambda _: True)
    monkeypatch.setattr(torch, "_int_mm", record)
    yield found
    assert found, "nothing was multiplied by integer instructions"


@pytest.mark.parametrize(("rows", "length", "outputs"), SHAPES)
@pytest.mark.parametrize("stored", [torch.float32, torch.int8], ids=["widened", "stored"])
def test_any_shape_is_that_of_whole_numbers(rows, length, outputs, stored):
    inputs, weights = draw(rows, length), draw(outputs, length, smallest=-LARGEST_CODE)
    result = integer_mm(inputs, weights.to(stored))
    assert result.dtype == torch.int32
    assert torch.equal(result.long(), whole(inputs, weights))


@pytest.mark.parametrize(("rows", "length", "outputs"), SHAPES)
def test_a_gpu_gets_the_layout_that_it_asks_for(rows, length, outputs, calls):
    stored = draw(length, outputs, smallest=-LARGEST_CODE).to(torch.int8).t()  # columns lie together
    exact_mm(draw(rows, 2 * length)[:, ::2], stored)
    ((left, right),) = calls
    assert left.dtype == right.dtype == torch.int8
    assert left.is_contiguous()
    assert right.t().is_contiguous()
    assert len(left) == rows > FEW_ROWS
    assert [left.shape[1] % MULTIPLE, right.shape[1] % MULTIPLE] == [0, 0]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("smallest", [SMALLEST_CODE, 120], ids=["small sums", "sums beyond float32"])
def test_instructions_give_the_bits_of_float32(length, smallest, monkeypatch, calls):
    inputs, weights = draw(40, length, smallest=smallest), draw(50, length, smallest=max(smallest, -127))
    found = exact_mm(inputs, weights)
    monkeypatch.setattr(integer_product, "_has_instructions", lambda _: False)
    assert torch.equal(found, exact_mm(inputs, weights))
    assert found.dtype == torch.float32
    assert len(calls) == -(-length // LONGEST_SUM)


def test_few_rows_no_inputs_and_a_cpu_are_left_to_float32(monkeypatch):
    assert not takes_integers(draw(64, 64))
    monkeypatch.setattr(integer_product, "_has_instructions", lambda _: True)
    assert takes_integers(draw(FEW_ROWS + 1, 1))
    assert not takes_integers(draw(FEW_ROWS, 64))
    assert not takes_integers(torch.empty(64, 0))
    assert torch.equal(exact_mm(torch.empty(64, 0), torch.empty(3, 0)), torch.zeros(64, 3))


SIZE = ModelSize(
    static_reals=2,
    observed_reals=3,
    known_reals=2,
    encoder_length=6,
    horizon=3,
    hidden_size=8,
    num_heads=2,
    dropout=0.0,
)


def inputs_of(batch: int) -> ModelInputs:
    generator = torch.Generator().manual_seed(0)

    def reals(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, generator=generator)

    def none(*shape: int) -> Tensor:
        return torch.zeros(batch, *shape, 0, dtype=torch.int64)

    history, all_steps = SIZE.encoder_length, SIZE.encoder_length + SIZE.horizon
    return ModelInputs(
        reals(SIZE.static_reals),
        none(),
        reals(history, SIZE.observed_reals),
        none(history),
        reals(all_steps, SIZE.known_reals),
        none(all_steps),
        torch.full((batch,), history),
    )


def test_a_model_forecasts_the_same_bits_with_instructions(monkeypatch, calls):
    torch.manual_seed(0)
    model, inputs = build_folded(SIZE), inputs_of(20)
    stream_variable_selection(model)
    quantisation = attach_quantisation(model, Covered.all_of(model))
    calibrate(model, quantisation, [inputs], "percentile", 99.9)
    stored = build_stored(SIZE, Covered.all_of(model), model.state_dict())
    quantisation.turn(weights=True, inputs=True)
    with torch.no_grad():
        found = [stored(inputs), model(inputs)]
        monkeypatch.setattr(integer_product, "_has_instructions", lambda _: False)
        expected = stored(inputs)
    assert all(torch.equal(one, expected) for one in found)
    assert len(calls) > 20, "linear layers, selection weights and attention of two models"


@pytest.mark.parametrize(
    ("stored", "matrices", "parts"),
    [
        (torch.int8, 4, [4, 4, 1]),
        (torch.int8, 9, [9]),
        (torch.int8, 0.5, [1] * 9),
        (torch.float32, 4, [9]),
    ],
    ids=["four at a time", "all at once", "larger than a part", "nothing to widen"],
)
def test_a_stack_of_stored_codes_is_widened_in_parts(stored, matrices, parts, monkeypatch):
    inputs, weights = draw(9, 5, 64), draw(9, 64, 32, smallest=-LARGEST_CODE)
    found, seen, multiply = torch.full((9, 5, 32), torch.nan), [], exact_product._floating_bmm
    monkeypatch.setattr(exact_product, "WIDENED_BYTES", int(matrices * 64 * 32 * 4))
    monkeypatch.setattr(
        exact_product, "_floating_bmm", lambda *given: (seen.append(len(given[1])), multiply(*given))
    )
    exact_bmm(inputs, weights.to(stored), found)
    assert seen == parts
    assert torch.equal(found.long(), torch.bmm(inputs.long(), weights.long()))


def test_a_stack_of_stored_codes_is_never_widened_whole():
    inputs, weights = draw(64, 5, 128), draw(64, 128, 256).to(torch.int8)
    out = torch.empty(64, 5, 256)
    peak = peak_live_bytes(lambda: exact_bmm(inputs, weights, out), CPU)
    assert peak < 2.1 * exact_product.WIDENED_BYTES < weights.numel() * 4 / 2


@pytest.fixture(params=["older name", "newer name"])
def tf32(request: pytest.FixtureRequest) -> Iterator[Callable[[], bool]]:
    """Allows TF32 in one of the two ways, and says whether it is on."""
    matmul, older = torch.backends.cuda.matmul, request.param == "older name"
    if not older and not hasattr(matmul, "fp32_precision"):
        pytest.skip("a torch before 2.9")
    if older:
        matmul.allow_tf32 = True
    else:
        matmul.fp32_precision = "tf32"
    yield lambda: matmul.allow_tf32 if older else matmul.fp32_precision == "tf32"
    if older:
        matmul.allow_tf32 = False
    else:
        matmul.fp32_precision = "ieee"


def test_tf32_is_off_on_a_gpu_meanwhile(tf32):
    def fail() -> None:
        with exact_product._full_precision(CUDA):
            assert not tf32()
            assert not torch.backends.cuda.matmul.allow_tf32, "torch refuses where two settings differ"
            raise ZeroDivisionError

    assert tf32()
    with exact_product._full_precision(CPU):
        assert tf32()
    with pytest.raises(ZeroDivisionError):
        fail()
    assert tf32()


def test_what_is_off_stays_off():
    before = torch.backends.cuda.matmul.allow_tf32
    with exact_product._full_precision(CUDA):
        assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cuda.matmul.allow_tf32 == before


@needs_gpu
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("rows", [FEW_ROWS, FEW_ROWS + 1, 200])
def test_a_gpu_gives_the_bits_of_a_cpu(rows, length, tf32):
    inputs, weights = draw(rows, length), draw(50, length, smallest=-LARGEST_CODE)
    expected = exact_mm(inputs, weights)
    for stored in (torch.float32, torch.int8):
        found = exact_mm(inputs.to(CUDA), weights.to(CUDA, stored))
        assert torch.equal(found.cpu(), expected)


@needs_gpu
@pytest.mark.parametrize("length", LENGTHS)
def test_a_gpu_gives_the_bits_of_a_cpu_for_a_stack(length, tf32):
    inputs, weights = draw(3, 40, length), draw(3, length, 50, smallest=-LARGEST_CODE)
    expected = torch.empty(3, 40, 50)
    exact_bmm(inputs, weights, expected)
    for stored in (torch.float32, torch.int8):
        found = torch.empty_like(expected, device=CUDA)
        exact_bmm(inputs.to(CUDA), weights.to(CUDA, stored), found)
        assert torch.equal(found.cpu(), expected)


@needs_gpu
def test_a_gpu_takes_integer_instructions(monkeypatch):
    inputs, weights = draw(64, 225).to(CUDA), draw(450, 225, smallest=-LARGEST_CODE).to(CUDA)
    if torch.cuda.get_device_capability() < integer_product.CAPABILITY:
        pytest.skip("an older GPU")
    found = exact_mm(inputs, weights)
    assert takes_integers(inputs)
    monkeypatch.setattr(integer_product, "_has_instructions", lambda _: False)
    assert torch.equal(found, exact_mm(inputs, weights))
