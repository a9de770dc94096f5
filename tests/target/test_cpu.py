"""CPU targets: names, the host, rates."""

from __future__ import annotations

import pytest

from fusec.codegen.tvm.build import llvm_target
from fusec.errors import TargetError
from fusec.target.cpu import NAMED, cpu_target, host_cpu
from fusec.target.features import features_of


def test_named_targets():
    assert cpu_target("cpu:sapphirerapids").vector_bits == 512
    assert cpu_target("cpu:x86-64-v3").lanes(32) == 8
    assert cpu_target("cpu:x86-64-v3", cores=7).cores == 7
    assert all(t.mcpu == name and t.name == f"cpu:{name}" for name, t in NAMED.items())
    with pytest.raises(TargetError, match="no CPU named 'i486'; known: x86-64, x86-64-v3"):
        cpu_target("cpu:i486")


def test_host():
    host = host_cpu()
    assert cpu_target() is host
    assert host.runs_here
    assert 8 * 1024 <= host.l1 <= host.l2
    assert host.cores >= 1


def machine(monkeypatch, facts):
    host_cpu.cache_clear()
    monkeypatch.setattr("fusec.target.cpu._cpuinfo", lambda: facts)
    monkeypatch.setattr("fusec.target.cpu.allow_tiles", lambda: True)
    try:
        return host_cpu()
    finally:
        host_cpu.cache_clear()


def server(model, *flags, lacks=()):
    known = {*features_of("x86-64"), *features_of(model), *flags} - {*lacks}
    return {"vendor_id": "GenuineIntel", "cpu family": "6", "model": "207", "flags": " ".join(known)}


@pytest.mark.parametrize(
    ("facts", "mcpu", "products"),
    [
        (server("sapphirerapids", "amx_tile", "amx_bf16", "amx_int8"), "sapphirerapids", 5),
        (server("sapphirerapids"), "sapphirerapids", 2),
        (server("sapphirerapids", lacks=["avx512_fp16"]), "icelake-server", 2),
        (server("sapphirerapids", lacks=["avx512vbmi"]), "skylake-avx512", 2),
        (server("skylake-avx512", "avx512_vnni"), "skylake-avx512", 1),
        (server("skylake-avx512", "avx512_vnni", lacks=["avx512vl"]), "x86-64-v3", 0),
        (server("znver5") | {"vendor_id": "AuthenticAMD", "cpu family": "26"}, "znver5", 2),
        (server("znver5", lacks=["avx512ifma"]) | {"vendor_id": "AuthenticAMD", "cpu family": "26"}, "x86-64-v4", 2),
        (server("znver5") | {"vendor_id": "AuthenticAMD", "cpu family": "27"}, "x86-64-v4", 2),
        (server("znver5") | {"vendor_id": "HygonGenuine"}, "x86-64-v4", 2),
    ],
)
def test_what_a_virtual_machine_hides_is_not_used(monkeypatch, facts, mcpu, products):
    host = machine(monkeypatch, facts)
    assert (host.mcpu, len(host.matmul_features)) == (mcpu, products)
    assert {*features_of(mcpu), *host.matmul_features} <= {*facts["flags"].split()}
    switches = set(llvm_target(host).attrs.get("mattr", ()))
    assert len(switches - {"-prefer-256-bit"}) == products


BARE = {"vendor_id": "GenuineIntel", "cpu family": "6", "model": "23", "flags": "fpu sse sse2 ssse3 sse4_1"}


def test_a_host_without_avx2_gets_portable_code(monkeypatch):
    host = machine(monkeypatch, BARE)
    assert (host.mcpu, host.vector_bits, host.has_fma, host.matmul_features) == ("x86-64", 128, False, ())


def test_a_host_that_does_not_tell_is_refused(monkeypatch):
    host_cpu.cache_clear()
    monkeypatch.setattr("fusec.target.cpu._cpuinfo", dict)
    try:
        with pytest.raises(TargetError, match="does not tell this CPU's features"):
            host_cpu()
    finally:
        host_cpu.cache_clear()


def test_peak():
    target = cpu_target("cpu:x86-64-v3", cores=2)
    assert target.peak_flops() == 2 * 8 * 2 * target.frequency * 2
    assert target.peak_flops(64, cores=1) == target.peak_flops() / 4
