"""Families at the sizes that people train, as an H200 would run them: every kernel of every region
is planned on the fast path. Nothing is allocated: tensors are meta."""

import os
import subprocess
import sys

import pytest
import torch

from coda_epilogue import backend, native, normalise, regions
from coda_epilogue.blocks import FEW_FLOPS, SLOW, RegionFunction

transformers = pytest.importorskip("transformers")


def config(kind, vocabulary, width, hidden, heads, keys, **options):
    return lambda: getattr(transformers, kind)(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=hidden, num_hidden_layers=3,
        num_attention_heads=heads, num_key_value_heads=keys, max_position_embeddings=4096,
        use_cache=False, bos_token_id=None, eos_token_id=None, pad_token_id=None, **options)


# With the kernels of a middle layer, forward and backward, where one region holds all of it.
MODELS = {
    "llama_1b": (config("LlamaConfig", 128256, 2048, 8192, 32, 8), (4, 9)),
    "llama_8b": (config("LlamaConfig", 128256, 4096, 14336, 32, 8), (4, 9)),
    "qwen2_7b": (config("Qwen2Config", 151936, 3584, 18944, 28, 4), (4, 9)),
    "qwen3_8b": (config("Qwen3Config", 151936, 4096, 12288, 32, 8, head_dim=128), (4, 10)),
    "mistral_7b": (config("MistralConfig", 32768, 4096, 14336, 32, 8, head_dim=128), (4, 9)),
    "gemma3_4b": (config("Gemma3TextConfig", 262144, 2560, 10240, 8, 4, head_dim=256), (6, 10)),
    "phi3_mini": (config("Phi3Config", 32064, 3072, 8192, 32, 32), (4, 9)),
    "olmo2_7b": (config("Olmo2Config", 100352, 4096, 11008, 32, 32), (7, 11)),
    "gpt2_xl": (lambda: transformers.GPT2Config(
        vocab_size=50257, n_embd=1600, n_layer=3, n_head=25, n_positions=1024, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False), None),
}


def functions(made, length):
    """The regions of a training forward, as the backend finds them on a GPU, each with which of its
    parameters have gradients."""
    found = []

    def seen(graph_module, inputs):
        graph_module = normalise.normalised(graph_module, inputs)
        blocks, _ = regions.find(graph_module, backend.slow_on_a_gpu)
        found.extend((RegionFunction(b), [s.node.meta["learned"] for s in b.inputs])
                     for b in blocks)
        return lambda *_: pytest.fail("nothing is to run")

    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(made).to(torch.bfloat16)
        ids = torch.zeros(2, length, dtype=torch.int64)
        positions = torch.arange(length)[None]
    torch._dynamo.reset()
    try:
        torch.compile(model, backend=seen)(input_ids=ids, labels=ids, position_ids=positions)
    except BaseException as stop:
        assert found, stop
    return found


@pytest.mark.parametrize("name", MODELS)
def test_every_kernel_is_on_the_fast_path(name):
    made, layer = MODELS[name]
    found = functions(made(), 1024)
    counts = {}
    for function, learned in found:
        metas = [s.of(s.node.meta["val"]) for s in function.block.inputs]
        needs = tuple(learned)
        halves = function.rewritten(needs, function.expected, metas)
        sizes = function.sizes_of(metas)
        kernels = []
        for half in (halves["forward"], halves["backward"]):
            notes = native.planned(half["text"], half["name"], sizes, metas[0].device)
            slow = [n for n in notes if n[1].startswith(SLOW) and n[2] > FEW_FLOPS]
            assert not slow, slow[0]
            kernels.append(len(notes))
        counts.setdefault(function.text, []).append(tuple(kernels))
    if layer:
        assert [layer] * 2 in counts.values(), counts.values()


SECOND = """
import torch
from coda_epilogue import native
half = native.rewrite(\"\"\"coda 1
block b(x: bf16[M, K], w: bf16[N, K]) -> (y: bf16[M, N]) {
  y = x @ w
}
\"\"\")["forward"]
sizes = (("K", 256), ("M", 256), ("N", 256))
print(native.planned(half["text"], half["name"], sizes, torch.device("cuda", 1)))
try:
    native._use(torch.device("cuda", 0))
except Exception as error:
    print(error)
"""


@pytest.mark.skipif(torch.version.cuda is not None, reason="PyTorch asks the false driver for more")
def test_planning_for_the_second_gpu_is_not_settling_on_the_first(binary):
    fake = binary.parent / "tests" / "fake_driver"
    environment = os.environ | {"LD_LIBRARY_PATH": str(fake)}
    ran = subprocess.run([sys.executable, "-c", SECOND], env=environment, capture_output=True,
                         text=True)
    assert "gemm 128x" in ran.stdout, ran.stderr
    assert "runs kernels on GPU 1, and was asked for GPU 0" in ran.stdout
