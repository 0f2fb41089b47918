"""Triton kernels: optional, and behind a few functions.

`decisions.fastest` computes a policy's decisions, `training.fuse` a pack's transformers,
`adamw.FusedAdamW` its steps. Modules that import Triton are imported only where there is a GPU.
"""
