"""Transformers of M models as a handful of Triton kernels, forwards and backwards: bfloat16, on a
GPU.

`trunk` has the modules that take the place of `core`'s, `block` and `embedding` the operators that
they are made of, the `*_kernels` what runs. Imported only where Triton is: it comes with PyTorch
for GPUs.
"""
