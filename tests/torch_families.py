"""Families of Hugging Face models, small and random, and how near a training step of each by CODA
is to one in double precision, beside eager's."""

import statistics
import warnings

import torch

NAMES = ("llama", "llama_biased", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "gpt2", "phi3",
         "olmo2", "mixtral")


def config(family, width=64):
    """Two layers, four heads; the sizes of all else follow `width`."""
    import transformers as t
    small = dict(vocab_size=4 * width, hidden_size=width, intermediate_size=5 * width // 2,
                 num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 max_position_embeddings=256, pad_token_id=None, bos_token_id=None,
                 eos_token_id=None)
    headed = small | {"head_dim": width // 4}
    return {
        "llama": lambda: t.LlamaConfig(**small),
        "llama_biased": lambda: t.LlamaConfig(**small, attention_bias=True, mlp_bias=True,
                                              tie_word_embeddings=True),
        "qwen2": lambda: t.Qwen2Config(**small),
        "qwen3": lambda: t.Qwen3Config(**headed),
        "mistral": lambda: t.MistralConfig(**headed),
        "gemma2": lambda: t.Gemma2Config(**headed),
        "gemma3": lambda: t.Gemma3TextConfig(**headed),
        "gpt2": lambda: t.GPT2Config(
            vocab_size=4 * width, n_embd=width, n_layer=2, n_head=4, n_positions=256,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None,
            eos_token_id=None),
        "phi3": lambda: t.Phi3Config(**small),
        "olmo2": lambda: t.Olmo2Config(**small),
        "mixtral": lambda: t.MixtralConfig(**small, num_local_experts=4),
    }[family]()


def model_of(family, width=64, device="cpu"):
    """(the model in bf16, the same weights in double precision)."""
    import transformers
    # Mixture-of-experts kernels of transformers know no float64.
    options = {"experts_implementation": "eager"} if family == "mixtral" else {}
    make = lambda: transformers.AutoModelForCausalLM.from_config(
        config(family, width), **options).to(device)
    model, exact = make().to(torch.bfloat16), make()
    exact.load_state_dict(model.state_dict())
    return model, exact.double()


def step(model, run, ids):
    """The gradients by name."""
    model.zero_grad()
    run(input_ids=ids, labels=ids).loss.backward()
    return {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}


def errors(got, want):
    """By tensor, relative, by norm."""
    assert got.keys() == want.keys()
    return {n: ((got[n] - want[n]).norm() / (want[n].norm() + 1e-30)).item() for n in want}


def ratios(family, width=64, device="cpu", seeds=5, rows=2, length=24):
    """{tensor: the median over the seeds of the error of its gradient over that of eager's}."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        model, exact = model_of(family, width, device)
        run = torch.compile(model, backend="coda", options={"rest": "eager"})
        found = {}
        for seed in range(seeds):
            generator = torch.Generator().manual_seed(seed)
            ids = torch.randint(0, 4 * width, (rows, length), generator=generator).to(device)
            want = step(exact, exact, ids)
            naive, got = errors(step(model, model, ids), want), errors(step(model, run, ids), want)
            for name in want:
                if naive[name] > 0:
                    found.setdefault(name, []).append(got[name] / naive[name])
    return {n: statistics.median(r) for n, r in found.items()}
