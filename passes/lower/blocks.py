# SPDX-License-Identifier: Apache-2.0
"""How GPUs do the blocks of each kind of kernel; maps are done as by default."""

from __future__ import annotations

from fusec.tile.kernel import BlockTraits

ROW_BLOCKS = BlockTraits(prefetch=True)
WALKING_BLOCKS = BlockTraits(prefetch=True, pipelined=True)
GEMM_BLOCKS = BlockTraits(first_fastest=True, tma_stores=True, tma_tiles=True, pairs=False)
SCORES_BLOCKS = BlockTraits(tma_stores=True, tma_tiles=True, pairs=False, splits=True)
ATTENTION_BLOCKS = BlockTraits(tma_stores=True, pairs=False, nan_maximum=False, splits=True)
