"""Runs that many chapters of faults begin with: trained once, and copied before they are changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from stopping import furnished, train


@pytest.fixture(scope="session")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped or disturbed: twelve steps, checkpoints of the steps 8 and 12."""
    folder = furnished(tmp_path_factory.mktemp("straight"))
    assert train(folder).code == 0
    return folder


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of eight steps."""
    folder = furnished(tmp_path_factory.mktemp("trained"))
    assert train(folder, "training.max_steps=8").code == 0
    return folder


@pytest.fixture
def home(trained: Path, tmp_path: Path) -> Path:
    """A folder with a run `small`, to be changed."""
    return Path(shutil.copytree(trained, tmp_path / "home"))
