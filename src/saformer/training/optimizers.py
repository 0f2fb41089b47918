"""What clips gradients and makes steps: torch's AdamW or, where Triton can be used, kernels of our
own."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from saformer.agents.agent import Phase
from saformer.training.config import FitConfig


class Optimizer(Protocol):
    """AdamW of one phase, with each model's gradient clipped by itself."""

    found_inf: Tensor
    """on a GPU: where it is set, a step changes nothing"""

    @property
    def state(self) -> Any:
        """Tensors by name, for each parameter."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """One, with the learning rate."""

    def take(self, gradients: Sequence[Tensor]) -> Tensor:
        """Keep gradients, one for each parameter, for the next step; what their norms are before
        clipping: [M]."""

    def step(self) -> None:
        """Move the parameters by the gradients that were taken."""

    def settle(self) -> None:
        """Called when a step was recorded, before it is replayed."""


class PlainAdamW:
    """torch's own."""

    def __init__(self, phase: Phase, config: FitConfig, *, num_models: int, on_gpu: bool) -> None:
        self._parameters, self._num_models, self._bound = (
            phase.parameters,
            num_models,
            config.gradient_clip,
        )
        device, rate = phase.parameters[0].device, phase.learning_rate or config.learning_rate
        self._adamw = torch.optim.AdamW(
            phase.parameters,
            lr=torch.tensor(rate, device=device)
            if on_gpu
            else rate,  # a recorded update can read it
            weight_decay=_decay(phase, config),
            betas=(0.9, 0.999),
            fused=on_gpu,
            capturable=on_gpu,
        )

    @property
    def found_inf(self) -> Tensor:
        """Where it is set, a step changes nothing."""
        found: Tensor = self._adamw.found_inf  # type: ignore[attr-defined]
        return found

    @found_inf.setter
    def found_inf(self, value: Tensor) -> None:
        self._adamw.found_inf = value  # type: ignore[attr-defined]

    @property
    def state(self) -> Any:
        """Tensors by name, for each parameter; none before the first step."""
        return self._adamw.state

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """One, with the learning rate."""
        return self._adamw.param_groups

    def take(self, gradients: Sequence[Tensor]) -> Tensor:
        """Leave clipped gradients on the parameters; what their norms were before: [M]."""
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient.contiguous()  # fused optimisers want the parameter's layout
        return clip_gradients(self._parameters, self._bound, num_models=self._num_models)

    def step(self) -> None:
        """Move the parameters."""
        self._adamw.step()

    def settle(self) -> None:
        """There is nothing to do."""


def optimizer_of(
    phase: Phase, config: FitConfig, device: torch.device, *, num_models: int = 1
) -> Optimizer:
    """AdamW as fast as this device has it."""
    on_gpu = device.type == "cuda"
    if not (
        on_gpu and have_triton(device) and all(p.dtype == torch.float32 for p in phase.parameters)
    ):
        return PlainAdamW(phase, config, num_models=num_models, on_gpu=on_gpu)
    from saformer.kernels.adamw import FusedAdamW  # Triton comes with PyTorch for GPUs

    return FusedAdamW(
        phase.parameters,
        num_models=num_models,
        learning_rate=phase.learning_rate or config.learning_rate,
        weight_decay=_decay(phase, config),
        gradient_clip=config.gradient_clip,
    )


def have_triton(device: torch.device) -> bool:
    """Whether kernels of our own can be run there."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def clip_gradients(parameters: Sequence[nn.Parameter], bound: float, *, num_models: int) -> Tensor:
    """Scale each model's gradient down to a norm of `bound`, and answer what the norms were:
    [M]."""
    if num_models == 1:
        return torch.nn.utils.clip_grad_norm_(parameters, bound)[None]
    rows = [
        parameter.grad.reshape(num_models, -1)
        for parameter in parameters
        if parameter.grad is not None
    ]
    together = torch.cat(
        rows, 1
    )  # there and back is four kernels, where a norm and a product for each are hundreds
    norm = together.norm(dim=1)
    together *= (bound / (norm + 1e-6)).clamp(max=1.0)[:, None]  # as clip_grad_norm_ does it
    torch.split_with_sizes_copy(together, [row.shape[1] for row in rows], 1, out=rows)
    return norm


def _decay(phase: Phase, config: FitConfig) -> float:
    return config.weight_decay if phase.weight_decay is None else phase.weight_decay
