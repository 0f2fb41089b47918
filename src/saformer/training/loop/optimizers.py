"""Clipping and steps: torch's AdamW or, where Triton can be used, kernels of our own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from saformer.agents.agent import Phase
from saformer.kernels.sizes import have_triton
from saformer.training.loop.config import FitConfig


class Optimizer(Protocol):
    """AdamW of one phase, with each model's gradient clipped by itself."""

    found_inf: Tensor  # on a GPU: where it is set, a step changes nothing
    state: Any  # tensors by name, for each parameter; may be empty before the first step
    param_groups: list[dict[str, Any]]  # one, with the learning rate

    def take(self, gradients: Sequence[Tensor]) -> Tensor:
        """Hold a gradient for each parameter for the next step; their norms [M] before clipping."""

    def step(self) -> Any: ...

    def settle(self) -> None:
        """Called when a step was recorded, before it is replayed."""


class PlainAdamW(torch.optim.AdamW):
    """torch's own; gradients wait on the parameters."""

    found_inf: Tensor

    def __init__(self, phase: Phase, config: FitConfig, *, num_models: int, on_gpu: bool) -> None:
        self._parameters, self._num_models = phase.parameters, num_models
        self._bound = config.gradient_clip
        rate: float | Tensor = phase.learning_rate or config.learning_rate
        if on_gpu:  # where a recorded update can read it
            rate = torch.tensor(rate, device=phase.parameters[0].device)
        options: Any = {"weight_decay": _decay(phase, config), "fused": on_gpu}
        super().__init__(phase.parameters, rate, capturable=on_gpu, **options)

    def take(self, gradients: Sequence[Tensor]) -> Tensor:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient.contiguous()  # fused optimisers want the parameter's layout
        return clip_gradients(self._parameters, self._bound, num_models=self._num_models)

    def settle(self) -> None:
        pass


def optimizer_of(
    phase: Phase, config: FitConfig, device: torch.device, *, num_models: int = 1
) -> Optimizer:
    """AdamW as fast as this device has it."""
    in_float32 = all(parameter.dtype == torch.float32 for parameter in phase.parameters)
    if not (have_triton(device) and in_float32):
        return PlainAdamW(phase, config, num_models=num_models, on_gpu=device.type == "cuda")
    from saformer.kernels.updates import FusedAdamW  # Triton comes with PyTorch for GPUs

    rate, decay = phase.learning_rate or config.learning_rate, _decay(phase, config)
    options = {"learning_rate": rate, "weight_decay": decay, "gradient_clip": config.gradient_clip}
    return FusedAdamW(phase.parameters, num_models=num_models, **options)


def clip_gradients(parameters: Sequence[nn.Parameter], bound: float, *, num_models: int) -> Tensor:
    """Scale each model's gradient down to a norm of `bound`; the norms before: [M]."""
    if num_models == 1:
        return torch.nn.utils.clip_grad_norm_(parameters, bound)[None]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    rows = [gradient.reshape(num_models, -1) for gradient in gradients]
    # there and back is four kernels, where a norm and a product for each are hundreds
    together = torch.cat(rows, 1)
    norm = together.norm(dim=1)
    together *= (bound / (norm + 1e-6)).clamp(max=1.0)[:, None]  # as clip_grad_norm_ does it
    torch.split_with_sizes_copy(together, [row.shape[1] for row in rows], 1, out=rows)
    return norm


def _decay(phase: Phase, config: FitConfig) -> float:
    return config.weight_decay if phase.weight_decay is None else phase.weight_decay
