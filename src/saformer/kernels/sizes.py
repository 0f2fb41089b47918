"""Which models the kernels can compute; needs no Triton."""

from __future__ import annotations

from typing import Any

from saformer.core.transformer import Trunk, TrunkConfig

WIDTHS = (32, 64, 128)
NARROWEST_HEAD = 16
"""What tensor cores multiply at least."""
LONGEST_WINDOW = 128
"""Tokens: attention of a training window stays on the chip as a whole."""


def fits_kernels(config: TrunkConfig) -> bool:
    """Whether a trunk of this size can be computed by kernels."""
    return config.width in WIDTHS and config.width // config.heads >= NARROWEST_HEAD


def can_fuse(agent: Any) -> bool:
    """Whether kernels can train all transformers of an agent's `model`, on its `config.window`."""
    modules = agent.model.modules()
    networks = [part for part in modules if isinstance(getattr(part, "trunk", None), Trunk)]
    return bool(networks) and all(
        len(network.embedding.layout) * agent.config.window <= LONGEST_WINDOW
        and fits_kernels(network.trunk.config)
        for network in networks
    )
