"""Which processor to use."""

import os

import torch


def pick_device(name: str = "auto") -> torch.device:
    """The named device, or the best there is."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"unknown device {name!r}; try auto, cpu, cuda or cuda:1") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"there is no device {name!r}: torch finds no CUDA GPU; use cpu or auto")
    return device


def device_description() -> str:
    """The best there is, for people."""
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()} (cuda)"
    return f"cpu, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
