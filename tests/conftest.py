"""One process, no network, no compiler: set before torch and DeepSpeed are imported anywhere."""

from ds_tft.training.environment import prepare_environment

prepare_environment()

import os  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402

from ds_tft.training.engine import choose_device, start_process_group  # noqa: E402
from ds_tft.training.environment import ProcessPlace  # noqa: E402

torch.set_num_threads(min(2, os.cpu_count() or 1))


@pytest.fixture(scope="session")
def process_group() -> None:
    """The process group of this one process, which DeepSpeed engines need."""
    start_process_group(choose_device(ProcessPlace(0, 0, 1)))
