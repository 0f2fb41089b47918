"""The same decisions, computed by kernels of our own where a GPU and the sizes allow it."""
