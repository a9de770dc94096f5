"""The benchmarks' models, small, compiled ahead of time, saved, and loaded: what eager gives, with caches written."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

import fusec

torch = pytest.importorskip("torch")
EXAMPLES = Path(__file__).parents[1] / "examples"
SINGLE = ("float32", pytest.param("bfloat16", marks=pytest.mark.nightly))
HALF = (pytest.param("float32", marks=pytest.mark.nightly), "bfloat16")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    return importlib.import_module


def near(ours: Any, theirs: Any, dtype: str) -> None:
    bound = 2e-5 if dtype == "float32" else 3e-2
    assert ours.dtype == theirs.dtype
    assert float((ours.double() - theirs.double()).abs().max()) < bound * max(1.0, float(theirs.double().abs().max()))


def saved_and_loaded(module: Any, args: tuple[Any, ...], folder: Path) -> Any:
    with torch.no_grad():
        fusec.compile(module, *args).save(folder / "model.fusec")
    return fusec.load(folder / "model.fusec")


@pytest.mark.parametrize("dtype", SINGLE)
def test_a_layer_of_bert(dtype: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from transformers.models.bert.modeling_bert import BertConfig, BertLayer

    torch.manual_seed(0)
    config = BertConfig(hidden_size=64, num_attention_heads=4, intermediate_size=128, attn_implementation="sdpa")
    layer = BertLayer(config).eval().requires_grad_(False).to(getattr(torch, dtype))
    x = torch.randn(1, 33, 64).to(getattr(torch, dtype))
    made, theirs = saved_and_loaded(layer, (x,), tmp_path)(x), layer(x)
    first = [r[0] if isinstance(r, tuple) else r for r in (made, theirs)]
    near(*first, dtype)


@pytest.mark.parametrize("dtype", HALF)
def test_minilm(dtype: str, example: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    minilm = example("minilm")
    for name, size in (("WIDTH", 48), ("HIDDEN", 96), ("LAYERS", 2), ("WORDS", 100), ("LONGEST", 32)):
        monkeypatch.setattr(minilm, name, size)
    torch.manual_seed(0)
    model = minilm.MiniLM().eval().requires_grad_(False).to(getattr(torch, dtype))
    ids = torch.randint(0, 100, (3, 16))
    mask = (torch.arange(16) < torch.tensor([[16], [7], [1]])).long()
    near(saved_and_loaded(model, (ids, mask), tmp_path)(ids, mask), model(ids, mask), dtype)


@pytest.mark.parametrize("dtype", HALF)
def test_gpt2_with_a_growing_cache(dtype: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from transformers import GPT2Config, GPT2LMHeadModel

    from benchmarks.workloads.gpt2 import Prompt, WithCache

    torch.manual_seed(0)
    config = GPT2Config(n_embd=48, n_layer=2, n_head=3, vocab_size=100, n_positions=32)
    wanted = GPT2LMHeadModel(config).eval().requires_grad_(False).to(getattr(torch, dtype))
    prompt, step = Prompt.__new__(Prompt), WithCache.__new__(WithCache)
    for module in (prompt, step):
        torch.nn.Module.__init__(module)
        module.model = wanted
    ids = torch.randint(0, 100, (1, 7))
    _, past = prompt(ids)
    (tmp_path / "prompt").mkdir()
    ours, kept = saved_and_loaded(prompt, (ids,), tmp_path / "prompt")(ids)
    near(ours, prompt(ids)[0], dtype)
    near(kept[1][0], past[1][0], dtype)
    ours, longer = saved_and_loaded(step, (ids[:, :1], past), tmp_path)(ids[:, :1], kept)
    near(ours, step(ids[:, :1], past)[0], dtype)
    assert longer[0][0].shape[2] == 8


class Given(torch.nn.Module):
    """A module whose buffers are an argument, so that the caller keeps what is written into them."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, ids: Any, places: Any, buffers: dict[str, Any]) -> Any:
        return torch.func.functional_call(self.module, buffers, (ids, places))


@pytest.mark.parametrize("dtype", SINGLE)
def test_gpt2_with_an_allocated_cache(dtype: str, example: Any, tmp_path: Path) -> None:
    gpt2 = example("gpt2")
    config = gpt2.Config(width=48, heads=3, layers=2, words=100, places=16)
    model = gpt2.load(config, getattr(torch, dtype))
    word, place = torch.tensor([[3]]), torch.tensor([0])
    with pytest.raises(fusec.errors.ArtifactError, match="changes its module's buffers"):
        saved_and_loaded(model, (word, place), tmp_path)
    caches = {name: buffer.clone() for name, buffer in model.named_buffers() if "cache" in name}
    loaded = saved_and_loaded(Given(model), (word, place, caches), tmp_path)
    addresses = [cache.data_ptr() for cache in caches.values()]
    for number in range(5):
        place = torch.tensor([number])
        near(loaded(word, place, caches), model(word, place), dtype)
    assert [cache.data_ptr() for cache in caches.values()] == addresses
    near(caches["layers.1.cache.keys"], model.get_buffer("layers.1.cache.keys"), dtype)
