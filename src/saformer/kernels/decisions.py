"""A model as a policy should compute it: by kernels where a GPU and the sizes allow it."""

import copy
import warnings
from functools import cache

import torch
from torch import Tensor, nn

from saformer.core.batch import Dimensions, WindowBatch
from saformer.core.history import Prompt
from saformer.core.model import Prefix, SaFormer
from saformer.core.transformer import TrunkConfig
from saformer.kernels.sizes import fits_kernels, have_triton

TOLERANCE = 1e-4  # how far a rehearsal may be off: beyond float32's rounding something is wrong


class FusedSaFormer(SaFormer):
    """The same weights, read by kernels, which draw and bound too; it cannot be trained."""

    def __init__(self, plain: SaFormer) -> None:
        from saformer.kernels import decision_modules

        nn.Module.__init__(self)
        tensors = {id(tensor): tensor for tensor in (*plain.parameters(), *plain.buffers())}
        shared = copy.deepcopy(plain, tensors)
        self.dimensions, self.normalizer = shared.dimensions, shared.normalizer
        self.actor, self.critic = shared.actor, shared.critic
        for part in (self.actor, self.critic):
            part.add_module("embedding", decision_modules.DecisionEmbedding(part.embedding))
            part.add_module("trunk", decision_modules.DecisionTrunk(part.trunk))
        for bound in ("action_low", "action_high"):
            self.register_buffer(bound, plain.get_buffer(bound))
        self._draw_returns = decision_modules.draw_returns
        self._draw_actions = decision_modules.draw_actions

    def sample_returns(self, prefix: Prefix, noise: Tensor) -> tuple[Tensor, Tensor]:
        return self._draw_returns(prefix.return_to_go, noise, self.normalizer)

    def sample_actions(self, prefix: Prefix, return_to_go: Tensor,
                       noise: Tensor) -> tuple[Tensor, Tensor]:  # fmt: skip
        normalized = self.normalizer.normalize("return_to_go", return_to_go)
        state = prefix.state[:, None].expand(-1, normalized.shape[1], -1)
        values = {"return_to_go": normalized, "state": state}
        tokens = self._branches(self.actor, prefix, values)
        bounds = self.get_buffer("action_low"), self.get_buffer("action_high")
        outputs = self.actor.trunk.branch(tokens, prefix.actor)
        return self._draw_actions(outputs, self.actor.action_head, noise, self.normalizer, bounds)


def fastest(model: SaFormer) -> SaFormer:
    """The model as a policy should compute it, with the same weights: itself, or its fused form.
    Where kernels should work and do not, a warning says why in one line."""
    parameters, config = list(model.parameters()), model.actor.trunk.config
    device = parameters[0].device
    fits = fits_kernels(config) and all(part.dtype == torch.float32 for part in parameters)
    if not (fits and _has_kernels(device)):
        return model
    problem = _rehearsed(model.dimensions, config, device)
    if problem:
        message = f"decisions are computed without kernels of our own ({problem}): they are slower"
        warnings.warn(message, stacklevel=2)
        return model
    return FusedSaFormer(model.eval())


def _has_kernels(device: torch.device) -> bool:
    return have_triton(device) and torch.cuda.get_device_capability(device) >= (8, 0)  # for tf32


@cache
def _rehearsed(dimensions: Dimensions, config: TrunkConfig, device: torch.device) -> str | None:
    """What is wrong with fused decisions of a model of this size; builds the kernels."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        plain = SaFormer(dimensions, config).to(device).eval()
    try:
        fused = FusedSaFormer(plain)
        for sizes in ((1, 1, 3), (64, 128, 19)):  # few rows and many: other tiles
            pairs = zip(_decide(fused, *sizes), _decide(plain, *sizes), strict=True)
            off = [((a - b).abs() / (1 + b.abs())).max().item() for a, b in pairs]
            if not all(difference <= TOLERANCE for difference in off):  # nor NaN
                return f"they are off by {', '.join(f'{difference:.1g}' for difference in off)}"
    # a compiler, a driver, a GPU that nobody has met yet: all of it leads to the plain way
    except Exception as error:
        return f"{type(error).__name__}: {next(iter(str(error).splitlines()), 'no reason given')}"
    return None


@torch.inference_mode()
def _decide(model: SaFormer, lanes: int, candidates: int, steps: int) -> tuple[Tensor, ...]:
    """All that is computed for a decision, of made-up pasts that begin with a step of padding."""
    device, sizes = model.get_buffer("action_low").device, model.dimensions
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    time = torch.arange(steps, device=device).expand(lanes, -1)
    limit = noise(lanes, sizes.constraints)
    widths = sizes.constraints, 1, sizes.state, sizes.action
    columns = [*(noise(lanes, steps, width) for width in widths), time, time > 0]
    past = WindowBatch(limit, *columns)
    remaining, state = noise(lanes, sizes.constraints), noise(lanes, sizes.state)
    prefix = model.prefill(Prompt(past, remaining, state, time[:, -1] + 1))
    return_to_go, return_density = model.sample_returns(prefix, noise(lanes, candidates))
    action_noise = noise(lanes, candidates, sizes.action)
    action, action_density = model.sample_actions(prefix, return_to_go, action_noise)
    forecast = model.forecast(prefix, action)
    return return_to_go, return_density, action, action_density, forecast.mean
