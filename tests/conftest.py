"""Settings for all tests: one thread, one seed, and the same hypothesis examples in every run."""

import hypothesis
import pytest
import torch

pytest.register_assert_rewrite(
    "laws", "small_configs", "running", "benchmarking"
)  # so that a failing law shows its numbers
torch.set_num_threads(1)  # the models here are tiny: threads would cost more than they bring
hypothesis.settings.register_profile("course", deadline=None, derandomize=True)
hypothesis.settings.load_profile("course")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test draws the same numbers, alone or among others."""
    torch.manual_seed(1337)
