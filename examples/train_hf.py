#!/usr/bin/env python3
"""Trains a Hugging Face model with CODA: a tiny random Llama, or any model in a local folder.

    python examples/train_hf.py
    python examples/train_hf.py --model /path/to/checkpoint --data notes.txt
"""

import argparse
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM


def tiny_llama():
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=344, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        bos_token_id=None, eos_token_id=None))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, help="a folder that from_pretrained reads")
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[1] /
                        "docs" / "language.md", help="the text to learn")
    parser.add_argument("--backend", default="coda", help="coda, inductor or eager")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--explain", action="store_true", help="what was fused where, at the end")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    text = options.data.read_text()
    if options.model:
        model = AutoModelForCausalLM.from_pretrained(options.model)
        ids = AutoTokenizer.from_pretrained(options.model)(text, return_tensors="pt").input_ids[0]
    else:
        model, ids = tiny_llama(), torch.tensor(list(text.encode()))
    if device == "cuda":
        model = model.to(device, torch.bfloat16)
    model.config.use_cache = False  # training keeps none
    model.train()
    step = torch.compile(model, backend=options.backend)  # the one line
    optimizer = torch.optim.AdamW(model.parameters(), options.lr)
    generator = torch.Generator().manual_seed(0)
    start = None
    for number in range(1, options.steps + 1):
        at = torch.randint(len(ids) - options.length, (options.batch, 1), generator=generator)
        batch = ids[at + torch.arange(options.length)].to(device)
        loss = step(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == 1:
            loss.item()
            start = time.monotonic()
        if number % max(1, options.steps // 10) == 0 or number == 1:
            said = f"step {number:5d}  loss {loss.item():.4f}"
            if number > 1:
                tokens = (number - 1) * options.batch * options.length
                said += f"  {tokens / (time.monotonic() - start):9.0f} tokens/s"
            print(said, flush=True)
    if options.explain:
        import coda_epilogue
        print(coda_epilogue.explain())


if __name__ == "__main__":
    main()
