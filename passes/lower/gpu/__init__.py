"""Groups to tile IR for GPUs: a statement's domain is a block, its extents are powers of two."""
