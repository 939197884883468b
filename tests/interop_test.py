"""Model folders between CODA and transformers: the same logits, loss and gradients, both ways."""

import json
import subprocess

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 53
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16, "rope_theta": 500.0}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}


def llama(**changes):
    """A small random model of transformers, with weights large enough to be felt."""
    sizes = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                 num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                 initializer_range=0.2)
    torch.manual_seed(5)
    return LlamaForCausalLM(LlamaConfig(**(sizes | changes))).eval()


def evaluate(binary, folder, ids, tmp_path, *options):
    np.save(tmp_path / "ids.npy", ids.numpy())
    run = subprocess.run(
        [str(binary), "evaluate", "--model", str(folder), "--tokens", str(tmp_path / "ids.npy"),
         "--output", str(tmp_path / "out.safetensors"), *options], text=True, capture_output=True)
    assert run.returncode == 0, run.stderr
    return load_file(tmp_path / "out.safetensors")


def random_ids(vocabulary, *shape):
    return torch.randint(0, vocabulary, shape, generator=torch.Generator().manual_seed(3))


def assert_same(model, got, ids, gradients=True):
    """The logits, the loss and every gradient that `coda evaluate --grad` wrote are the model's."""
    model.zero_grad()
    out = model(ids, labels=ids)
    assert torch.allclose(got["logits"], out.logits, rtol=1e-4, atol=1e-4)
    assert abs(got["loss"].item() - out.loss.item()) < 1e-4
    if not gradients:
        return
    out.loss.backward()
    named = {name: weight.grad for name, weight in model.named_parameters()}
    assert {f"grad.{name}" for name in named} == {n for n in got if n.startswith("grad.")}
    for name, gradient in named.items():
        difference = (got[f"grad.{name}"] - gradient).norm()
        assert gradient.norm() > 0 and difference < 1e-4 * gradient.norm(), name


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("rope", [PLAIN, LLAMA3], ids=["plain", "llama3"])
@pytest.mark.parametrize("head_dim", [8, 12])
def test_a_model_that_transformers_wrote_has_its_logits_loss_and_gradients(
        tied, rope, head_dim, binary, tmp_path):
    model = llama(tie_word_embeddings=tied, rope_parameters=rope, head_dim=head_dim)
    model.save_pretrained(tmp_path / "model")
    ids = random_ids(VOCABULARY, 2, 40)
    got = evaluate(binary, tmp_path / "model", ids, tmp_path, "--grad")
    assert_same(model, got, ids)


def test_llama3_scaling_is_felt(binary, tmp_path):
    """Else the test above would pass without it."""
    model = llama(rope_parameters=LLAMA3)
    model.save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": LLAMA3["rope_theta"]}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    ids = random_ids(VOCABULARY, 2, 40)
    got = evaluate(binary, tmp_path / "model", ids, tmp_path)
    assert not torch.allclose(got["logits"], model(ids).logits, rtol=1e-2, atol=1e-2)


def test_the_spelling_of_transformers_4_is_read(binary, tmp_path):
    model = llama(rope_parameters=LLAMA3)
    model.save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    config["rope_scaling"] = scaling
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config))
    ids = random_ids(VOCABULARY, 1, 40)
    assert_same(model, evaluate(binary, tmp_path / "model", ids, tmp_path), ids, gradients=False)


def test_a_sharded_bf16_checkpoint_is_read(binary, tmp_path):
    rounded = llama(tie_word_embeddings=False).to(torch.bfloat16)
    rounded.save_pretrained(tmp_path / "model", max_shard_size="8KB")
    assert (tmp_path / "model" / "model.safetensors.index.json").exists()
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 2
    ids = random_ids(VOCABULARY, 2, 20)
    got = evaluate(binary, tmp_path / "model", ids, tmp_path)
    model = LlamaForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    assert_same(model, got, ids, gradients=False)


def train(binary, folder, tmp_path, *options):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat and the rat ran at the hat.\n" * 60)
    subprocess.run(
        [str(binary), "train", "--data", str(text), "--output", str(folder), "--layers", "2",
         "--width", "32", "--heads", "4", "--seq", "32", "--batch", "4", "--steps", "30",
         *options], check=True, capture_output=True)


@pytest.mark.parametrize("options", [[], ["--tied"], ["--dtype", "bf16"]],
                         ids=["separate", "tied", "bf16"])
def test_what_coda_trained_loads_in_transformers(options, binary, tmp_path):
    train(binary, tmp_path / "model", tmp_path, *options)
    model, info = LlamaForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(info.values()), info
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    ids = torch.tensor([list(b"the cat sat on the mat and the r")])
    got = evaluate(binary, tmp_path / "model", ids, tmp_path, "--grad")
    assert got["loss"].item() < 4.5  # it has learnt something
    assert_same(model, got, ids)
    # And what transformers writes of it comes back.
    model.save_pretrained(tmp_path / "again")
    again = evaluate(binary, tmp_path / "again", ids, tmp_path)
    assert torch.equal(again["logits"], got["logits"])


def test_bf16_products_are_near(binary, tmp_path):
    model = llama()
    model.save_pretrained(tmp_path / "model")
    ids = random_ids(VOCABULARY, 2, 40)
    got = evaluate(binary, tmp_path / "model", ids, tmp_path, "--grad", "--dtype", "bf16")
    want = model(ids, labels=ids)
    want.loss.backward()
    assert abs(got["loss"].item() - want.loss.item()) < 0.05
    error = (got["logits"] - want.logits).norm() / want.logits.norm()
    assert 1e-4 < error < 0.05
    for name, weight in model.named_parameters():
        gradient = got[f"grad.{name}"]
        assert gradient.dtype == torch.float32
        assert (gradient - weight.grad).norm() < 0.1 * weight.grad.norm(), name


REFUSED = [
    ("model_type", "mistral"), ("hidden_act", "gelu"), ("attention_bias", True),
    ("mlp_bias", True), ("sliding_window", 16), ("attention_dropout", 0.1),
    ("pretraining_tp", 2), ("quantization_config", {"bits": 4}), ("attention_multiplier", 2.0),
    ("rope_parameters", {"rope_type": "yarn", "factor": 2.0, "rope_theta": 10000.0}),
    ("rope_scaling", {"type": "linear", "factor": 2.0}),
    ("rope_scaling", {"rope_type": "default", "attention_factor": 2.0}),
    ("rope_scaling", {"rope_type": "llama3"}),
    ("hidden_size", 32.5), ("hidden_size", True), ("hidden_size", -32), ("hidden_size", 2**40),
    ("vocab_size", None), ("head_dim", 7), ("num_key_value_heads", 3), ("rms_norm_eps", "1e-6"),
    ("tie_word_embeddings", 1), ("rope_theta", -1.0),
]


@pytest.mark.parametrize("key, value", REFUSED,
                         ids=[f"{key}-{i}" for i, (key, _) in enumerate(REFUSED)])
def test_configs_of_other_models_are_refused_by_name(key, value, binary, tmp_path):
    llama().save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    if key != "rope_parameters":
        del config["rope_parameters"]
    path.write_text(json.dumps(config | {key: value}))
    np.save(tmp_path / "ids.npy", random_ids(VOCABULARY, 1, 8).numpy())
    run = subprocess.run([str(binary), "evaluate", "--model", str(tmp_path / "model"), "--tokens",
                          str(tmp_path / "ids.npy")], text=True, capture_output=True)
    assert run.returncode in (1, 3)
    assert key in run.stderr and "fix: " in run.stderr, run.stderr


@pytest.mark.parametrize("text, says", [
    ("", "no model's config.json"), ("[]", "no JSON object"), ("{}", "lacks model_type"),
    ('{"model_type": "llama", "x": ' + "[" * 100000 + "]" * 100000 + "}", "nested too deep"),
    ('{"model_type": "\\ud800"}', "no model's config.json"),
])
def test_texts_that_are_no_config_are_refused(text, says, binary, tmp_path):
    (tmp_path / "config.json").write_text(text)
    run = subprocess.run([str(binary), "evaluate", "--model", str(tmp_path), "--tokens", "x.npy"],
                         text=True, capture_output=True)
    assert run.returncode == 1 and says in run.stderr and "fix: " in run.stderr, run.stderr


@pytest.mark.parametrize("ids, says", [
    (np.array([[1, VOCABULARY]]), f"the id {VOCABULARY}"), (np.array([[1, -1]]), "the id -1"),
    (np.array([[1.0, 2.0]]), "token ids are"), (np.array([[1]]), "sequences of 1"),
    (np.zeros((1, 65), np.int64), "sequences of 65"), (np.zeros((0, 8), np.int64), "token ids are"),
    (np.zeros((1, 2, 3), np.int64), "token ids are"),
])
def test_ids_that_the_model_does_not_have_are_refused(ids, says, binary, tmp_path):
    llama().save_pretrained(tmp_path / "model")
    np.save(tmp_path / "ids.npy", ids)
    run = subprocess.run([str(binary), "evaluate", "--model", str(tmp_path / "model"), "--tokens",
                          str(tmp_path / "ids.npy")], text=True, capture_output=True)
    assert run.returncode == 1 and says in run.stderr and "fix: " in run.stderr, run.stderr


def test_an_index_that_leaves_its_folder_and_strange_tensors_are_refused(binary, tmp_path):
    folder = tmp_path / "model"
    llama(tie_word_embeddings=False).save_pretrained(folder, max_shard_size="8KB")
    np.save(tmp_path / "ids.npy", random_ids(VOCABULARY, 1, 8).numpy())
    index = folder / "model.safetensors.index.json"
    good = json.loads(index.read_text())
    name = "model.norm.weight"
    for weight_map, says in [
            (good["weight_map"] | {name: "../x.safetensors"}, "not in its own folder"),
            (good["weight_map"] | {name: "/etc/passwd"}, "not in its own folder"),
            (good["weight_map"] | {name: 3}, "no index"),
            (good["weight_map"] | {name: "gone.safetensors"}, "No such file"),
            ([], "has no tensor")]:
        index.write_text(json.dumps({"weight_map": weight_map}))
        run = subprocess.run([str(binary), "evaluate", "--model", str(folder), "--tokens",
                              str(tmp_path / "ids.npy")], text=True, capture_output=True)
        assert run.returncode == 1 and says in run.stderr, run.stderr
    biased = llama(attention_bias=True)
    biased.save_pretrained(tmp_path / "biased")
    path = tmp_path / "biased" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"attention_bias": False}))
    run = subprocess.run([str(binary), "evaluate", "--model", str(tmp_path / "biased"), "--tokens",
                          str(tmp_path / "ids.npy")], text=True, capture_output=True)
    assert run.returncode == 1 and "k_proj.bias" in run.stderr, run.stderr
