"""`coda generate`: what it chooses, what it writes, and how it ends."""

import os
import random
import signal
import subprocess

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def save_llama(folder, vocabulary):
    torch.manual_seed(5)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        initializer_range=0.2, eos_token_id=None, bos_token_id=None)).eval()
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def by_bytes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytes")
    save_llama(folder, 256)
    return folder


@pytest.fixture(scope="module")
def by_ids(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ids")
    return folder, save_llama(folder, 53)


def generate(binary, folder, *options):
    return subprocess.run([str(binary), "generate", "--model", str(folder), *options],
                          capture_output=True, timeout=60)


def shown(data):
    """What may be shown of bytes, by Python's decoder."""
    control = lambda c: (ord(c) < 0x20 or 0x7f <= ord(c) < 0xa0) and c not in "\n\t"
    return "".join("?" if control(c) else c for c in data.decode(errors="replace"))


def test_output_is_valid_utf8_whatever_the_bytes_are(binary, by_bytes):
    draw = random.Random(1)
    texts = ["grüß €5 😀\n\ttab".encode(), b"\xe2\x82", b"\xe2\x28\xa1", b"\xf0\x9f\x98",
             b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x1b[31mred\x7f\x9b",
             b"\xc2\x9b31m", b"\xff\xfe", b"\xf0\x8f\xbf\xbf", b"\xe2\xe2\x82\xac\xf0\xe2"]
    pieces = [bytes([b]) for b in range(1, 256)] + ["é".encode(), "€".encode(), "😀".encode()]
    texts.append(b"".join(draw.choices(pieces, k=3000)))
    for text in texts:
        run = generate(binary, by_bytes, "--prompt", text, "--bytes", "0")
        assert run.returncode == 0, run.stderr
        assert run.stdout.decode() == shown(text) + "\n"
    # An untrained model writes every byte there is.
    generate(binary, by_bytes, "--bytes", "300", "--temperature", "5", "--top-k",
             "0").stdout.decode()


def test_greedy_ids_are_those_of_transformers(binary, by_ids):
    folder, model = by_ids
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    want = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=30,
                          pad_token_id=0)[0, len(prompt):].tolist()
    options = ["--prompt-ids", ",".join(map(str, prompt)), "--tokens", "30"]
    got = generate(binary, folder, *options, "--temperature", "0")
    assert [int(i) for i in got.stdout.split()] == want
    # So they are where nothing else is probable enough.
    for choice in (["--top-p", "0"], ["--top-k", "1"]):
        assert generate(binary, folder, *options, *choice).stdout == got.stdout
    drawn = [generate(binary, folder, *options, "--top-p", "0.9", "--seed", s).stdout
             for s in ("1", "1", "2")]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_model_of_other_tokens_wants_ids(binary, by_ids):
    folder, _ = by_ids
    run = generate(binary, folder, "--prompt", "the")
    assert run.returncode == 1 and run.stdout == b""
    assert b"has 53 tokens" in run.stderr and b"--prompt-ids" in run.stderr
    for ids in ("1,53", "-1"):
        run = generate(binary, folder, "--prompt-ids", ids)
        assert run.returncode == 1 and run.stdout == b"", run.stderr
        assert b"ids from 0 to 52" in run.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_text(number, binary, by_bytes):
    with subprocess.Popen([str(binary), "generate", "--model", str(by_bytes), "--bytes",
                           "100000000"], stdout=subprocess.PIPE) as run:
        assert os.read(run.stdout.fileno(), 1)  # text comes while it is written
        run.send_signal(number)
        rest = run.stdout.read()
        assert run.wait(timeout=30) == 128 + number
        assert rest.endswith(b"\n")


@pytest.mark.parametrize("ignored", [False, True])
def test_a_closed_pipe_ends_the_text(ignored, binary, by_bytes):
    ignore = (lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN)) if ignored else None
    with subprocess.Popen([str(binary), "generate", "--model", str(by_bytes), "--bytes",
                           "100000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          preexec_fn=ignore, restore_signals=not ignored) as run:
        os.read(run.stdout.fileno(), 1)
        run.stdout.close()
        assert run.wait(timeout=30) == (128 + signal.SIGPIPE if ignored else -signal.SIGPIPE)
        assert run.stderr.read() == b""


def test_a_full_disk_is_an_error(binary, by_bytes):
    with open("/dev/full", "w") as full:
        run = subprocess.run([str(binary), "generate", "--model", str(by_bytes)], stdout=full,
                             stderr=subprocess.PIPE, timeout=30)
    assert run.returncode == 1 and b"No space left" in run.stderr
