import pytest

from ds_tft.config.batch import BatchSizes, check_fills, resolve_batch
from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.errors import ConfigError


def settings(total, micro, accumulation):
    given = {
        "train_batch_size": total,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
    }
    return DeepSpeedSettings(**{name: "auto" if value is None else value for name, value in given.items()})


def resolve(total, micro, accumulation, world_size, flag):
    sizes = resolve_batch(settings(total, micro, accumulation), world_size, flag)
    assert sizes.global_batch == sizes.micro_batch * sizes.accumulation * sizes.world_size
    return sizes


@pytest.mark.parametrize(
    ("total", "micro", "accumulation", "world_size", "flag", "expected"),
    [
        (None, None, None, 1, None, (32, 32, 1)),
        (None, None, None, 4, None, (32, 8, 1)),
        (64, None, None, 1, None, (64, 64, 1)),
        (64, None, None, 2, None, (64, 32, 1)),
        (None, 8, None, 1, None, (8, 8, 1)),
        (None, 8, None, 2, None, (16, 8, 1)),
        (None, None, 4, 1, None, (32, 8, 4)),
        (64, 8, None, 1, None, (64, 8, 8)),
        (64, 8, None, 2, None, (64, 8, 4)),
        (64, None, 4, 1, None, (64, 16, 4)),
        (None, 8, 4, 1, None, (32, 8, 4)),
        (None, 8, 4, 2, None, (64, 8, 4)),
        (64, 8, 4, 2, None, (64, 8, 4)),
        (None, None, None, 1, 48, (48, 48, 1)),
        (None, None, 4, 1, 48, (48, 12, 4)),
        (None, 8, None, 1, 48, (48, 8, 6)),
        (None, 8, None, 2, 48, (48, 8, 3)),
        (64, 8, 8, 1, 48, (48, 8, 6)),
        (64, None, 4, 2, 48, (48, 6, 4)),
        (7, 2, 2, 1, 8, (8, 2, 4)),
    ],
)
def test_any_part_determines_the_rest(total, micro, accumulation, world_size, flag, expected):
    sizes = resolve(total, micro, accumulation, world_size, flag)
    assert (sizes.global_batch, sizes.micro_batch, sizes.accumulation) == expected


@pytest.mark.parametrize(
    ("total", "micro", "accumulation", "world_size", "flag", "message"),
    [
        (7, 2, 2, 1, None,
         "train_batch_size: 7 is not train_micro_batch_size_per_gpu 2 x "
         "gradient_accumulation_steps 2 x 1 process "
         "= 4; remove one of the three, or write train_batch_size 4"),
        (64, 8, 1, 1, None,
         "train_batch_size: 64 is not train_micro_batch_size_per_gpu 8 x "
         "gradient_accumulation_steps 1 x 1 process "
         "= 8, and would fit 8 processes; remove one of the three, or write train_batch_size 8"),
        (30, 8, None, 1, None,
         "train_batch_size: 30 is not a multiple of train_micro_batch_size_per_gpu 8 x 1 "
         "process; use 24 or 32"),
        (30, None, 4, 2, None,
         "train_batch_size: 30 is not a multiple of gradient_accumulation_steps 4 x 2 "
         "processes; use 24 or 32"),
        (5, None, None, 2, None, "train_batch_size: 5 is not a multiple of 2 processes; use 4 or 6"),
        (None, None, None, 3, None,
         "the default batch size: 32 is not a multiple of 3 processes; use 30 or 33"),
        (None, None, 5, 1, None,
         "the default batch size: 32 is not a multiple of gradient_accumulation_steps 5 x 1 "
         "process; use 30 or 35"),
        (None, 8, None, 1, 4,
         "--batch-size: 4 is not a multiple of train_micro_batch_size_per_gpu 8 x 1 process; use 8"),
        (None, 8, None, 2, 20,
         "--batch-size: 20 is not a multiple of train_micro_batch_size_per_gpu 8 x 2 processes; "
         "use 16 or 32"),
        (None, None, None, 1, 0, "--batch-size: expected 1 or more, got 0; give windows per update"),
    ],
)  # fmt: skip
def test_sizes_that_contradict_or_do_not_divide(total, micro, accumulation, world_size, flag, message):
    with pytest.raises(ConfigError) as caught:
        resolve(total, micro, accumulation, world_size, flag)
    assert str(caught.value) == message


def test_what_the_flag_replaced_is_said():
    assert resolve(64, 8, 8, 1, 48).notes == (
        "train_batch_size: 64 (DeepSpeed JSON) -> 48 (--batch-size)",
        "gradient_accumulation_steps: 8 (DeepSpeed JSON) -> 6 (--batch-size)",
    )
    assert resolve(64, 8, 8, 1, 64).notes == ()
    assert resolve(None, None, 4, 1, 64).notes == ()


def test_sizes_read_as_a_sentence():
    sizes = resolve(64, 8, None, 2, None)
    assert str(sizes) == "64 windows per update = micro-batch 8 x accumulation 4 x 2 processes"


@pytest.mark.parametrize(("total", "windows"), [(32, 1), (200, 100), (100, 100), (10, 100)])
def test_an_update_may_have_some_empty_places(total, windows):
    check_fills(BatchSizes(global_batch=total, micro_batch=total, accumulation=1, world_size=1), windows)


@pytest.mark.parametrize(("total", "windows"), [(33, 1), (201, 100), (10**12, 100)])
def test_an_update_of_mostly_empty_places_is_refused(total, windows):
    sizes = BatchSizes(global_batch=total, micro_batch=total, accumulation=1, world_size=1)
    with pytest.raises(
        ConfigError, match=rf"--batch-size .*: an epoch has {windows} windows, got {total} per"
    ):
        check_fills(sizes, windows)
