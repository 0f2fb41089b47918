"""One decision as a graph of tensors: what a policy remembers comes in with it, and goes out."""

from typing import Any

import torch
from torch import Tensor, nn

from saformer.core.execution import SaFormerPolicy, past_return
from saformer.core.history import History
from saformer.core.model import Prefix
from saformer.core.policy import over_tensors
from saformer.core.rules import propose


class DecisionGraph(nn.Module):
    """Algorithm 1 from what the last step cost to the next action, for one machine. It is
    `SaFormerPolicy` without a state of its own: `memory` [1, M] holds the number of steps, what was
    spent before the last of them, and its `History`. Zeros begin an episode."""

    def __init__(self, policy: SaFormerPolicy) -> None:
        super().__init__()
        self._policy, self._rule = policy, policy.rule
        model, learnt = policy.model, vars(policy.rule).values()
        self._networks = nn.ModuleList([model.actor, model.critic, model.normalizer])
        self._networks.extend(part for part in learnt if isinstance(part, nn.Module))
        sizes, length = model.dimensions, policy.window - 1
        width = sizes.constraints + 1 + sizes.state + sizes.action
        self.columns = {
            "num_steps": 1,
            "spent": sizes.constraints,
            "steps": length * width,  # spent, return-to-go, state, action of each, the latest last
            "timesteps": length,  # plus 1, so that a memory of zeros holds no step
        }

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """`INPUTS` to `OUTPUTS` of `onnx.export`: [1, S]; [1, C]; [1, C] of the last step; [1, A]
        executed then; standard normal numbers of R rounds, [R, N] and [R, N, A]; [1, M]."""
        state, limit, cost, executed, return_noise, action_noise, memory = inputs
        num_steps, spent, steps, timesteps = memory.split(list(self.columns.values()), dim=-1)
        has_acted = num_steps > 0
        weight = self._policy.budget.cost_discount ** (num_steps - 1)
        spent = spent + torch.where(has_acted, weight * cost, 0.0)
        history, lane = self._history(steps, timesteps), torch.arange(1)
        history.correct(torch.where(has_acted, executed, history.action[:, -1]), lane)
        account = torch.cat([limit, spent, num_steps], dim=1).float()
        prompt = self._rule.prompt(history.prompt(state, account, lane))
        decision = self._decide(self._policy.model.prefill(prompt), return_noise, action_noise)
        asked = past_return(decision, self._rule.options.past_return)
        history.append(account, lane, asked, state, decision.action)
        parts = [num_steps + 1, spent, history.steps.flatten(1), history.timestep + 1]
        after = torch.cat([part.double() for part in parts], dim=1)
        forecast = torch.full_like(limit, torch.nan)
        if decision.verification is not None:
            forecast = decision.verification.cost[lane, decision.chosen].double()
        told = decision.num_safe, decision.num_rounds, decision.fell_back
        return decision.action, after, limit - spent, forecast, *told

    def _history(self, steps: Tensor, timesteps: Tensor) -> History:
        policy = self._policy
        history = History(1, policy.window - 1, policy.model.dimensions, steps.device)
        history.steps.copy_(steps.reshape(history.steps.shape))
        history.timestep.copy_(timesteps - 1)
        return history

    def _decide(self, prefix: Prefix, *drawn: Tensor) -> Any:
        """All rounds side by side, as if they were lanes: the first that did not fall back, else
        the one of the lowest score."""
        model, rule, count = self._policy.model, self._rule, len(drawn[0])
        prefixes = prefix.of_lanes(torch.zeros(count, dtype=torch.long))
        rounds: Any = rule.select(model, prefixes, propose(model, prefixes, rule, *drawn))
        all_fell_back, first = rounds.fell_back.all(), (~rounds.fell_back).long().argmax()
        taken = torch.where(all_fell_back, rounds.score.argmin(), first)
        rounds.num_rounds[:] = torch.where(all_fell_back, count, first + 1)
        return over_tensors(lambda part: part[taken[None]], rounds)
