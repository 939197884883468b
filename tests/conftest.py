"""Options and fixtures of the Python tests."""

import shutil
from pathlib import Path

import pytest
import torch

from coda_command import ROOT, Coda


torch.set_num_threads(1)  # tensors here are small


def pytest_addoption(parser):
    parser.addoption("--coda", default=str(ROOT / "build" / "coda"), help="the built command")
    parser.addoption("--update", action="store_true", help="rewrite the outputs shown in docs/")


@pytest.fixture(scope="session")
def binary(request):
    path = Path(request.config.getoption("--coda"))
    if not path.exists():
        pytest.exit(f"{path} is not built: run ./test, or give --coda=PATH", returncode=2)
    return path.resolve()


@pytest.fixture(scope="session")
def coda(binary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("coda")
    yield Coda(binary, folder)
    shutil.rmtree(folder, ignore_errors=True)
