"""Files without their weights, which are given at load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fusec
from fusec.cli.main import app
from fusec.errors import ArtifactError, OptionError, SignatureError
from fusec.runtime.adapters import load_arrays
from fusec.runtime.artifact import encode_weights

torch = pytest.importorskip("torch")

W = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)


class Net(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    """Tied weights, a buffer in the state, one that is not, and parameters that the call does not read."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words = torch.nn.Embedding(20, 16)
        self.norm = torch.nn.BatchNorm1d(16).eval()
        self.head = torch.nn.Linear(16, 20)
        self.head.weight = self.words.weight
        self.register_buffer("shift", torch.full((20,), 0.5), persistent=False)
        self.unused = torch.nn.Linear(3, 3)
        self.norm.running_mean.normal_()

    def forward(self, ids: Any) -> Any:
        return self.head(self.norm(self.words(ids).mean(1))) + self.shift


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "net.fusec"
    spec = fusec.TensorSpec(("B:1..8", 5), "int64")
    fusec.compile(Net().eval(), spec).save(path, weights=False)
    return path


def safetensors(path: Path, state: dict[str, Any]) -> Path:
    arrays = load_arrays("torch")
    path.write_bytes(encode_weights({name: arrays.to_bytes(t) for name, t in state.items()}))
    return path


def ids() -> Any:
    return torch.randint(20, (3, 5), generator=torch.Generator().manual_seed(1))


def test_another_state_is_another_function(file: Path, tmp_path: Path) -> None:
    for seed in (0, 5):
        net = Net(seed).eval()
        wanted = net(ids()).detach()
        loaded = fusec.load(file, weights=net.state_dict())
        torch.testing.assert_close(loaded(ids()), wanted)
        torch.testing.assert_close(loaded(ids()[:1]), wanted[:1])
        stored = safetensors(tmp_path / "w.safetensors", net.state_dict())
        torch.testing.assert_close(fusec.load(file, weights=stored)(ids()), wanted)
        net.words.weight.data.zero_()  # what was given is copied or packed
        torch.testing.assert_close(loaded(ids()), wanted)


def test_either_name_of_a_tied_weight_will_do(file: Path) -> None:
    net = Net(3).eval()
    for left_out in ("words.weight", "head.weight"):
        state = {name: t for name, t in net.state_dict().items() if name != left_out}
        torch.testing.assert_close(fusec.load(file, weights=state)(ids()), net(ids()).detach())


def test_what_does_not_fit_is_one_error(file: Path) -> None:
    state = Net().state_dict()
    del state["norm.running_var"]
    state["head.bias"] = state["head.bias"].double()
    state["norm.bias"] = state["norm.bias"][:3]
    state["extra"] = torch.ones(2)
    with pytest.raises(SignatureError) as caught:
        fusec.load(file, weights=state)
    text = str(caught.value)
    assert "missing: norm.running_var;" in text
    assert "head.bias is f64[20], needed is f32[20]" in text
    assert "norm.bias is f32[3], needed is f32[16]" in text
    assert text.endswith("not the module's: extra")
    with pytest.raises(ArtifactError, match=r"was saved without its \d weights \(.*head.bias"):
        fusec.load(file)
    with pytest.raises(SignatureError, match=r"head.bias is a list"):
        fusec.load(file, weights={**Net().state_dict(), "head.bias": [1.0]})


def test_files_that_are_no_safetensors(file: Path, tmp_path: Path) -> None:
    pickled = tmp_path / "model.bin"
    torch.save(Net().state_dict(), pickled)
    for path in (pickled, tmp_path / "nothing", Path(__file__)):
        with pytest.raises(SignatureError, match="can't be read as safetensors"):
            fusec.load(file, weights=path)


def test_a_file_of_hugging_faces_kind(file: Path, tmp_path: Path) -> None:
    save_file = pytest.importorskip("safetensors.torch").save_file
    net = Net(7).eval()
    state = {name: t.clone() for name, t in net.state_dict().items() if name != "head.weight"}
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = fusec.load(file, weights=tmp_path / "model.safetensors")
    torch.testing.assert_close(loaded(ids()), net(ids()).detach())


def test_numpy_globals_go_by_their_names(tmp_path: Path) -> None:
    def dense(x: Any) -> Any:
        return np.tanh(x @ W) * 2

    x = np.ones((3, 8), np.float32)
    compiled = fusec.compile(dense, x)
    compiled.save(tmp_path / "with.fusec")
    compiled.save(tmp_path / "f.fusec", weights=False)
    with pytest.raises(SignatureError, match="weights are inside"):
        fusec.load(tmp_path / "with.fusec", weights={"W": W})
    loaded = fusec.load(tmp_path / "f.fusec", weights={"W": W[:, ::-1]})
    np.testing.assert_allclose(loaded(x), np.tanh(x @ W[:, ::-1]) * 2, rtol=1e-5)
    with pytest.raises(ArtifactError, match="loaded from a file"):
        loaded.save(tmp_path / "again.fusec", weights=False)
    loaded.save(tmp_path / "again.fusec")
    np.testing.assert_allclose(fusec.load(tmp_path / "again.fusec")(x), loaded(x))
    with pytest.raises(ArtifactError, match="it reads none"):
        fusec.compile(lambda x: np.exp(x), x).save(tmp_path / "none.fusec", weights=False)


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets.py").write_text("import torch\ntorch.manual_seed(0)\nnet = torch.nn.Linear(4, 3)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    runner = CliRunner()
    arguments = ["compile", "nets:net", "--spec", "input=f32[2, 4]", "-o", "net.fusec", "--no-weights"]
    done = runner.invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "weight bias: f32[3], given at load" in runner.invoke(app, ["inspect", "net.fusec"]).output
    other = torch.nn.Linear(4, 3)
    safetensors(tmp_path / "w.safetensors", dict(other.state_dict()))
    np.save("x.npy", np.ones((2, 4), np.float32))
    run = ["run", "net.fusec", "--inputs", "x.npy", "-o", "y.npz"]
    assert "was saved without its 2 weights" in runner.invoke(app, run).output
    done = runner.invoke(app, [*run, "--weights", "w.safetensors"])
    assert done.exit_code == 0, done.output
    found = np.load("y.npz")["result0"]
    np.testing.assert_allclose(found, other(torch.ones(2, 4)).detach().numpy(), rtol=1e-5)


def test_numpy_arrays_for_a_function_of_pytorch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(6, 4).requires_grad_(False)
    x = torch.randn(3, 6)
    fusec.compile(lambda x: torch.tanh(layer(x)), x).save(tmp_path / "f.fusec")
    found = fusec.load(tmp_path / "f.fusec", library="numpy")(x.numpy())
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, torch.tanh(layer(x)).numpy(), rtol=1e-5, atol=1e-6)
    fusec.compile(lambda x: torch.linalg.qr(x)[0] * 2, x).save(tmp_path / "g.fusec")
    with pytest.raises(ArtifactError, match=r"it calls aten.*qr.*, which NumPy does not have"):
        fusec.load(tmp_path / "g.fusec", library="numpy")
    with pytest.raises(OptionError, match="library='torch'"):
        fusec.load(tmp_path / "f.fusec", library="torch")  # type: ignore[arg-type]
