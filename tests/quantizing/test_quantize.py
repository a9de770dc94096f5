from __future__ import annotations

import json
import re
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fusec
from fusec.calibrated import LayerReport, QuantizationReport
from fusec.cli.inspect import describe_file
from fusec.errors import ArtifactError, OptionError
from fusec.page.gather import gather_file
from fusec.page.noise import noise_table
from fusec.page.write import write_page


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 8)).eval()


def _data(count: int = 3) -> list[torch.Tensor]:
    draws = torch.Generator().manual_seed(1)
    return [torch.randn(16, 64, generator=draws) for _ in range(count)]


LEAST = {"int8": 25.0, "fp8": 20.0, "int8-weights": 35.0, "int4-weights": 14.0}


@pytest.mark.parametrize("scheme", LEAST)
def test_schemes(scheme: Any) -> None:
    model, data = _model(), _data()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = fusec.quantize(model, data, scheme)
    report: Any = made.quantization
    assert report.decibels > LEAST[scheme]
    assert all(LEAST[scheme] - 3 < layer.decibels < 80 for layer in report.layers)
    assert [layer.name for layer in report.layers] == ["0", "2", "4"]
    assert not any(isinstance(m, nn.Linear) for m in made.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    x = _data(4)[-1]
    with torch.no_grad():
        wanted, exact = made(x), model(x)
        found = fusec.jit(made, fallback="error")(x)
    assert float((found - wanted).norm() / wanted.norm()) < 1e-2  # a value may be rounded to the next byte
    assert float((wanted - exact).norm() / exact.norm()) < 10 ** (-(LEAST[scheme] - 2) / 20)


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy", "mse"])
def test_methods(method: Any) -> None:
    report: Any = fusec.quantize(_model(), _data(), "int8", method).quantization
    assert report.decibels > 25
    assert f"int8 by {method}: {report.decibels:.1f} dB" in str(report)
    assert all(f" {layer.name} " in str(report) for layer in report.layers)


def test_the_worst_layers_stay_in_float_as_the_budget_allows() -> None:
    model = _model()
    with torch.no_grad():
        model[2].weight[:, 0] = 40.0  # all the others of a row have few digits left
    report: Any = fusec.quantize(model, _data()).quantization
    worst = min(report.layers, key=lambda layer: layer.decibels)
    share = worst.weights / sum(layer.weights for layer in report.layers)
    made = fusec.quantize(model, _data(), budget=share + 0.01)
    after: Any = made.quantization
    assert [layer.name for layer in after.layers if layer.kept] == [worst.name]
    assert type(made.get_submodule(worst.name)) is nn.Linear
    assert after.decibels > report.decibels
    assert "kept in float" in str(after)
    unchanged: Any = fusec.quantize(model, _data(), budget=1.0).quantization
    assert unchanged.decibels == inf


def test_calls_with_several_arguments_and_results() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 8)

        def forward(self, x: torch.Tensor, *, times: torch.Tensor) -> dict[str, Any]:
            return {"y": self.layer(x) * times, "n": times}

    batch = {"x": torch.randn(4, 64), "times": torch.tensor(2.0)}
    report: Any = fusec.quantize(Two(), [batch, batch]).quantization
    assert report.decibels > 25


def test_rows_that_are_no_groups_stay_in_float() -> None:
    made = fusec.quantize(nn.Sequential(nn.Linear(64, 40), nn.Linear(40, 8)), _data(), "int4-weights")
    report: Any = made.quantization
    assert [layer.reason for layer in report.layers] == ["", "rows of 40 are no groups of 32"]
    assert type(made.get_submodule("1")) is nn.Linear


class _Odd(nn.Module):
    """A layer that is called by its parameter's name and has two names, and one that most calls go past."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.again, self.other = self.first, nn.Linear(64, 8)

    def forward(self, x: torch.Tensor, *, further: bool = False) -> torch.Tensor:
        y = self.again(self.first(input=x))
        return self.other(y) if further else y


@pytest.mark.parametrize("scheme", ["int8", "int8-weights"])
def test_a_layer_is_the_same_wherever_it_stands(scheme: Any) -> None:
    made = fusec.quantize(_Odd(), _data(), scheme)
    assert not isinstance(made.get_submodule("first"), nn.Linear)
    assert made.get_submodule("first") is made.get_submodule("again")


def test_layers_without_a_range_stay_in_float() -> None:
    """A scale of nothing would make all of their results the same."""
    model = _Odd()
    made = fusec.quantize(model, _data(), "int8")
    report: Any = made.quantization
    assert [layer.reason for layer in report.layers] == ["", "no batch reaches it"]
    x = _data(1)[0]
    with torch.no_grad():
        found, wanted = made(x, further=True), model(x, further=True)
    assert float((found - wanted).norm() / wanted.norm()) < 0.05
    for value in (float("inf"), float("nan")):
        report = fusec.quantize(_model(), [*_data(1), torch.full((2, 64), value)]).quantization
        assert report.layers[0].reason == "its input is not finite"


def test_a_model_that_is_one_layer() -> None:
    made = fusec.quantize(nn.Linear(64, 8), _data())
    assert not isinstance(made, nn.Linear)
    report: Any = made.quantization
    assert 25 < report.decibels < 80


def test_it_is_saved_ahead_of_time(tmp_path: Path) -> None:
    made, x = fusec.quantize(_model(), _data()), _data()[0]
    with torch.no_grad():
        fusec.compile(made, x).save(tmp_path / "m.fusec")
        found, wanted = fusec.load(tmp_path / "m.fusec")(x), made(x)
    assert float((found - wanted).norm() / wanted.norm()) < 1e-2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scheme": "int2"}, "'int8', 'fp8', 'int8-weights' or 'int4-weights'"),
        ({"method": "best"}, "'minmax', 'percentile', 'entropy' or 'mse'"),
        ({"budget": 2}, "a share of the weights"),
        ({"data": []}, "no batch"),
        ({"model": nn.ReLU()}, "no nn.Linear"),
    ],
)
def test_what_can_not_be(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        fusec.quantize(**{"model": _model(), "data": _data(1), **options})


def test_digits_are_read_as_well() -> None:
    """A small network of convolutions on scikit-learn's scanned digits."""
    datasets = pytest.importorskip("sklearn.datasets")
    found = datasets.load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(found.target)
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(512, 10)),
    )
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for start in range(0, 3600, 120):
        at = torch.arange(start, start + 120) % 1200
        loss = nn.functional.cross_entropy(model(images[at]), labels[at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    test, wanted = images[1200:], labels[1200:]
    schemes: tuple[Any, ...] = ("int8", "fp8")
    with torch.no_grad():
        before = model(test).argmax(1)
        assert float((before == wanted).float().mean()) > 0.85
        for scheme in schemes:
            after = fusec.quantize(model, [images[:200]], scheme, "mse")(test).argmax(1)
            assert float((after == before).float().mean()) >= 0.98


def test_the_noise_goes_along_into_files_and_pages(tmp_path: Path) -> None:
    model = nn.Sequential(_model(), nn.Tanh()).eval()
    made = fusec.quantize(model, _data(), budget=0.5)
    report: Any = made.quantization
    kept = {layer.name for layer in report.layers if layer.kept}
    assert len(kept) == 1
    compiled: Any = fusec.compile(nn.Sequential(made), _data()[0])
    compiled.save(tmp_path / "small.fusec")
    loaded: Any = fusec.load(tmp_path / "small.fusec")
    assert loaded.quantization == compiled.quantization == report
    for text in (compiled.explain(), loaded.explain(), describe_file(tmp_path / "small.fusec")):
        assert str(report).strip() in text
    write_page(gather_file(tmp_path / "small.fusec"), tmp_path / "file.html")
    compiled.write_report(tmp_path / "compiled.html")
    for page in ("file.html", "compiled.html"):
        table = re.search(r'<table class="kernels noise">.*?</table>', (tmp_path / page).read_text(), re.S)
        assert table is not None
        rows = re.findall(r'<tr class="row( kept)?"><td>(.*?)</td>.*?([\d.]+) dB', table[0])
        assert [float(decibels) for *_, decibels in rows] == sorted(round(x.decibels, 1) for x in report.layers)
        assert {name for mark, name, _ in rows if mark} == kept


def test_a_calibrations_record() -> None:
    layers = (
        LayerReport("a", 3, -inf, inf, inf, kept=False, reason="no batch reaches it"),
        LayerReport("b<c>", 4, 0, 1, 2.5, True),
    )
    report = QuantizationReport("fp8", "mse", layers, -inf)
    assert QuantizationReport.from_json(json.loads(json.dumps(report.to_json()))) == report
    assert [layer.name for layer in report.worst_first()] == ["b<c>", "a"]
    assert "b&lt;c&gt;" in "".join(noise_table(report))
    for damaged in ({}, [], {**report.to_json(), "layers": [{}]}, {**report.to_json(), "decibels": "x"}):
        with pytest.raises(ArtifactError, match="record of the calibration"):
            QuantizationReport.from_json(damaged)


def test_functions_without_a_calibration() -> None:
    compiled = fusec.compile(_model(), _data()[0])
    assert compiled.quantization is None
    assert "dB" not in compiled.explain()


def test_a_function_is_refused() -> None:
    with pytest.raises(OptionError, match="takes a module, not function"):
        fusec.quantize(lambda x: x, _data())  # type: ignore[arg-type]
