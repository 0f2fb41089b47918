"""Where kernels can run, and which models they can compute; needs no Triton."""

import importlib.util
from typing import Any

import torch

from saformer.core.transformer import Trunk, TrunkConfig

WIDTHS = (32, 64, 128)
NARROWEST_HEAD = 16  # tensor cores multiply no less
LONGEST_WINDOW = 128  # tokens: attention of a training window stays on the chip as a whole


def have_triton(device: torch.device) -> bool:
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def fits_kernels(config: TrunkConfig) -> bool:
    return config.width in WIDTHS and config.width // config.heads >= NARROWEST_HEAD


def can_fuse(agent: Any) -> bool:
    """Whether kernels can train all transformers of an agent's `model`, on its `config.window`."""
    networks = [m for m in agent.model.modules() if isinstance(getattr(m, "trunk", None), Trunk)]
    windows = [len(network.embedding.layout) * agent.config.window for network in networks]
    fit = all(fits_kernels(network.trunk.config) for network in networks)
    return bool(networks) and fit and max(windows) <= LONGEST_WINDOW
