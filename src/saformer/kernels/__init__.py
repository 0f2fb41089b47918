"""Triton kernels, optional: only where there is a GPU is a module imported that needs Triton."""
