"""DDP and FSDP2 with two processes on the CPU (gloo): the losses of one process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).resolve().parent / "torch_distributed_worker.py"


def losses(kind, folder):
    output = folder / f"{kind}.json"
    command = [sys.executable]
    if kind != "alone":
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*command, str(WORKER), kind, str(output)], capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(output.read_text())


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return losses("alone", tmp_path_factory.mktemp("alone"))


@pytest.mark.parametrize("kind, bound", [("ddp", 1e-4), ("fsdp", 1e-4), ("fsdp-mixed", 2e-2)])
def test_two_processes_are_as_one(kind, bound, alone, tmp_path):
    assert losses(kind, tmp_path) == pytest.approx(alone, rel=bound)
    assert alone[-1] < alone[0]
