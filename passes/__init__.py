"""The passes: from a captured graph to a graph of kernels."""
