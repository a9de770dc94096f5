"""The device header compiles for Hopper without a GPU."""

import pytest

from fusec.codegen.cuda.header import NAMES, headers, wgmma_shapes
from fusec.codegen.cuda.nvrtc import compile_source, has_nvrtc

KERNEL = """
#include "fragment.cuh"
#include "softmax.cuh"
#include "tma.cuh"
#include "wgmma.cuh"
using namespace fusec;

extern "C" __global__ void __launch_bounds__(128) everything(const __grid_constant__ TensorMap map, float* out) {
    extern __shared__ __align__(1024) char tile[];
    __shared__ Barrier full;
    prefetch_map(&map);
    if (threadIdx.x == 0) {
        full.init(1);
        fence_barrier_init();
    }
    cluster_sync();
    if (warp_id() == 0 && elect_one()) {
        full.arrive_expecting(5 * 1024);
        load_tile(tile, &map, full, 0, 0);
        load_tile(tile, &map, full, 0, 0, 1);
        load_tile_multicast(tile, &map, full, 3, 0, 0);
    }
    full.wait(0);
    full.arrive_at(cluster_rank() ^ 1);
    float d[COLUMNS / 2];
    u32 a[4] = {bf16::pack(1.0f, 2.0f), 0, 0, 0};
    raise_registers<200>();
    wgmma_fence();
    Wgmma<COLUMNS>::shared<KIND>(d, describe_k_major(tile), step_k<false>(describe_k_major(tile), 1), 0);
    Wgmma<COLUMNS>::shared<bf16, true, true>(d, describe_transposed(tile, 8192), describe_transposed(tile, 8192), 1);
    Wgmma<COLUMNS>::registers<KIND>(d, a, describe_k_major(tile), 1);
    wgmma_commit();
    wgmma_wait<0>();
    float sum = 0.0f;
    for (int i = 0; i < COLUMNS / 2; ++i) sum += d[i];
    out[threadIdx.x] = quad_sum(sum) + quad_max(sum);
    store_matrices(swizzled(shared_address(tile), fragment_row(), 0), a[0], a[1], a[2], a[3]);
    fence_async_shared();
    named_sync(1, 128);
    store_tile(&map, tile, 0, 0);
    store_commit();
    store_wait_read<0>();
    store_wait_all();
}
"""


@pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC")
@pytest.mark.parametrize("kind", ["bf16", "f16", "tf32"])
@pytest.mark.parametrize("columns", [8, 64, 256])
def test_every_operation_compiles(kind: str, columns: int) -> None:
    text = KERNEL.replace("COLUMNS", str(columns)).replace("KIND", kind)
    assert compile_source(text, "sm_90a", shapes=[columns]).code.startswith(b"\x7fELF")


def test_files_by_name() -> None:
    assert set(headers()) == {*NAMES, "wgmma_shapes.cuh"}


def test_shapes() -> None:
    text = wgmma_shapes([64, 16, 64])
    assert text.count("struct Wgmma<") == 2
    assert '"{%0, %1, %2, %3, %4, %5, %6, %7}, "\n                "%8, %9, p, 1, 1, %11, %12; }"' in text
    with pytest.raises(ValueError, match="no shape of 12 columns"):
        wgmma_shapes([12])


EIGHT_BITS = """
#include "wgmma.cuh"
using namespace fusec;

extern "C" __global__ void __launch_bounds__(128) multiply(float* out) {
    extern __shared__ __align__(1024) char tile[];
    NUMBER d[COLUMNS / 2];
    wgmma_fence();
    Wgmma<COLUMNS>::shared<KIND>(d, describe_k_major(tile), step_k<false>(describe_k_major(tile), 1), 0);
    wgmma_commit();
    wgmma_wait<0>();
    keep_here(d);
    NUMBER sum = 0;
    for (int i = 0; i < COLUMNS / 2; ++i) sum += d[i];
    f8e4m3 a(sum);
    f8e5m2 b(sum);
    out[threadIdx.x] = float(a) + float(b);
}
"""


@pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC")
@pytest.mark.parametrize("kind", ["f8e4m3", "f8e5m2", "f8e4m3_f8e5m2", "f8e5m2_f8e4m3", "s8"])
def test_products_of_8_bits_compile(kind: str) -> None:
    number = "int" if kind == "s8" else "float"
    text = EIGHT_BITS.replace("COLUMNS", "64").replace("KIND", kind).replace("NUMBER", number)
    assert compile_source(text, "sm_90a", shapes=[64]).code.startswith(b"\x7fELF")


def test_integers_have_no_narrow_shapes() -> None:
    assert "m64n16k32.s32.s8.s8" in wgmma_shapes([16])
    assert "m64n24k32.f32.e4m3.e5m2" in wgmma_shapes([24])
    assert "s8.s8" not in wgmma_shapes([24])
