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


TENSOR_PARALLEL = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
mesh = init_device_mesh("cpu", (2,))
layer = nn.Linear(8, 8, bias=False)
layer.weight = nn.Parameter(distribute_tensor(layer.weight.data, mesh, [Shard(0)]))
torch.compile(layer, backend="coda")(distribute_tensor(torch.randn(4, 8), mesh, [Shard(0)]))
"""


def test_tensor_parallelism_is_refused_with_what_to_do_instead():
    done = subprocess.run([sys.executable, "-c", TENSOR_PARALLEL], capture_output=True, text=True,
                          timeout=200)
    assert done.returncode != 0 and "fix: shard with fully_shard" in done.stderr


# Weights that fill several of DDP's buckets, 1 MiB the first.
WHOLE = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from coda_epilogue import native, report
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.gate, self.up = nn.RMSNorm(384), nn.Linear(384, 1024), nn.Linear(384, 1024)
        self.down = nn.Linear(1024, 384)
    def forward(self, x):
        n = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(n)) * self.up(n))
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Layer(), Layer()
    def forward(self, x):
        return self.second(self.first(x))
model = Model()
x = torch.randn(8, 384)
torch.compile(model, backend="coda")(x)
assert native._alone()
torch._dynamo.reset()
dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
wrapped = DistributedDataParallel(model, bucket_cap_mb=2)
torch.compile(wrapped, backend="coda")(x)
assert not native._alone()
for each in report.GRAPHS:
    print(str(each).splitlines()[0])
"""


def test_ddp_cuts_no_graph():
    done = subprocess.run([sys.executable, "-c", WHOLE], capture_output=True, text=True,
                          timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    alone, under_ddp = done.stdout.splitlines()
    assert alone == under_ddp
