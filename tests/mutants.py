"""Mistakes on purpose: each must be caught by the test that claims to catch it.

`pytest tests/test_mutants.py` applies them one at a time to a copy of the package and runs the named tests.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """Replace `old` by `new` in one file of the package; `tests` must then fail."""

    name: str
    file: str
    old: str
    new: str
    tests: str


OBJECTIVES, EXECUTION, FIT = "core/objectives.py", "core/execution.py", "training/fit.py"

MUTANTS = (
    Mutant("mean over padding", OBJECTIVES, "valid.sum(1))", "torch.full_like(valid.sum(1), valid.shape[1]))",
           "tests/paper/test_objectives.py::test_mean_counts_valid_steps_only"),
    Mutant("eq 2 averaged", OBJECTIVES, "((action - predicted) ** 2).sum(-1)", "((action - predicted) ** 2).mean(-1)",
           "tests/paper/test_objectives.py::test_eq_2_squared_action_error"),
    Mutant("eq 5 sign of the log-deviation", "core/gaussian.py", "- self.log_deviation - 0.5", "+ self.log_deviation - 0.5",
           "tests/paper/test_objectives.py::test_eq_5_three_likelihoods"),
    Mutant("eq 6 not squared", OBJECTIVES, "((cost_to_go - forecast) ** 2)", "(cost_to_go - forecast).abs()",
           "tests/paper/test_objectives.py::test_eq_6_squared_forecast_error"),
    Mutant("eq 7 falling penalised", OBJECTIVES, "(forecast[:, 1:] - forecast[:, :-1])", "(forecast[:, :-1] - forecast[:, 1:])",
           "tests/paper/test_objectives.py::test_eq_7_penalises_a_forecast_that_rises"),
    Mutant("eq 7 pairs into padding", OBJECTIVES, "valid[:, 1:] & valid[:, :-1]", "valid[:, :-1]",
           "tests/paper/test_objectives.py::test_eq_7_ignores_pairs_that_reach_into_padding"),
    Mutant("eq 7 detached", OBJECTIVES, "rise = (forecast", "forecast = forecast.detach()\n    rise = (forecast",
           "tests/contracts/test_agents.py::test_each_loss_term_reaches_its_module_and_no_other"),
    Mutant("eq 8 sign", OBJECTIVES, "negative_log_likelihood - temperature", "negative_log_likelihood + temperature",
           "tests/paper/test_objectives.py::test_eq_8_lagrangian_and_its_dual"),
    Mutant("eq 8 not detached", OBJECTIVES, "temperature.detach() * (entropy", "temperature * (entropy",
           "tests/paper/test_objectives.py::test_eq_8_each_loss_reaches_its_own_side_only"),
    Mutant("eq 9 averaged", "core/gaussian.py", "math.e)).sum(-1)", "math.e)).mean(-1)",
           "tests/paper/test_objectives.py::test_eq_9_entropy_is_summed_over_dimensions"),
    Mutant("eq 3 reads the return itself", "core/actor.py", 'ACTOR_LAYOUT.at("cost_to_go", outputs)', 'ACTOR_LAYOUT.at("return_to_go", outputs)',
           "tests/paper/test_actor_and_critic.py::test_eq_3_4_each_head_sees_the_tokens_before_it"),
    Mutant("critic reads before the action", "core/critic.py", 'CRITIC_LAYOUT.at("action", outputs)', 'CRITIC_LAYOUT.at("state", outputs)',
           "tests/paper/test_actor_and_critic.py::test_eq_6_critic_sees_states_and_actions_alone"),
    Mutant("narrow perceptron", "core/transformer.py", "4 * config.width", "2 * config.width",
           "tests/paper/test_actor_and_critic.py::test_paper_sized_model_has_1_46_million_parameters"),
    Mutant("unsafe not masked", EXECUTION, "wanted.masked_fill(~safe, -torch.inf).argmax(1)", "wanted.argmax(1)",
           "tests/paper/test_algorithm_1.py::test_selects_the_highest_return_among_the_safe"),
    Mutant("strictly below", EXECUTION, "self.cost <= self.remaining", "self.cost < self.remaining",
           "tests/paper/test_algorithm_1.py::test_a_forecast_equal_to_what_remains_is_safe"),
    Mutant("fallback ignored", EXECUTION, "torch.where(fell_back, _fallback(candidates, verification, fallback), chosen)", "chosen",
           "tests/paper/test_algorithm_1.py::test_falls_back_when_nothing_is_safe"),
    Mutant("one constraint is enough", EXECUTION, ").all(-1)", ").any(-1)",
           "tests/paper/test_algorithm_1.py::test_every_constraint_must_hold"),
    Mutant("limit lowered by spending", "core/budget.py", "self.spent[lanes] +=", "self.limit[lanes] -=",
           "tests/paper/test_algorithm_1.py::test_budget_is_derived_from_the_limit"),
    Mutant("every step discounted alike", "core/budget.py", "self.cost_discount ** self.num_steps[lanes]", "self.cost_discount ** (0 * self.num_steps[lanes])",
           "tests/paper/test_algorithm_1.py::test_discounted_budget_counts_from_the_start_of_the_episode"),
    Mutant("rounds not counted", EXECUTION, "index_add(0, lanes, torch.ones_like(lanes))", "clone()",
           "tests/paper/test_algorithm_1.py::test_resampling_is_bounded_and_reported"),
    Mutant("candidate 0 sampled", EXECUTION, "return_noise[:, 0], action_noise[:, 0] = 0, 0", "pass",
           "tests/paper/test_algorithm_1.py::test_candidate_0_is_the_mean_and_temperature_spreads_the_rest"),
    Mutant("actions unbounded", "core/model.py", 'raw.clamp(self.get_buffer("action_low"), self.get_buffer("action_high"))', "raw",
           "tests/paper/test_algorithm_1.py::test_actions_stay_within_bounds_and_are_verified_as_executed"),
    Mutant("risk ignored", EXECUTION, "cost = risk(forecast)", "cost = forecast.mean",
           "tests/paper/test_algorithm_1.py::test_risk_reads_the_forecast"),
    Mutant("past keeps the first limit", "core/history.py", "limit[:, None] - self.spent[lanes]", "9.0 - self.spent[lanes]",
           "tests/paper/test_algorithm_1.py::test_moving_the_limit_moves_the_past_with_it"),
    Mutant("all lanes forget", "core/history.py", "self.valid[lanes] = False", "self.valid[:] = False",
           "tests/paper/test_algorithm_1.py::test_lanes_can_be_begun_anew"),
    Mutant("wrong return remembered", EXECUTION, '"highest": proposed.amax(1)', '"highest": proposed[:, 0]',
           "tests/paper/test_algorithm_1.py::test_which_return_enters_the_past"),
    Mutant("ascent", FIT, "loss.backward()", "(-loss).backward()",
           "tests/paper/test_algorithm_2.py::test_an_update_descends_on_both_losses"),
    Mutant("no clipping", FIT, "phase.parameters, self.config.gradient_clip", "phase.parameters, 1e9",
           "tests/paper/test_algorithm_2.py::test_gradients_are_clipped"),
    Mutant("no causal mask", "core/transformer.py", "is_causal=allowed is None", "is_causal=False",
           "tests/contracts/test_agents.py::test_future_content_is_irrelevant"),
    Mutant("policy keeps dropout", EXECUTION, "self._model = model.eval()", "self._model = model",
           "tests/contracts/test_agents.py::test_a_policy_acts_without_dropout"),
    Mutant("branches see each other", "core/transformer.py", "on_own @ own_value", "on_own @ own_value.mean(2, keepdim=True)",
           "tests/contracts/test_equivalences.py::test_shared_past_equals_the_full_forward"),
    Mutant("padding visible", "core/transformer.py", "to_past.masked_fill(~valid[:, None, None], -torch.inf)", "to_past",
           "tests/contracts/test_equivalences.py::test_branches_equal_separate_sequences_to_1e_5"),
    Mutant("one token too far", "core/tokens.py", "self.kinds.index(kind) ::", "self.kinds.index(kind) + 1 ::",
           "tests/contracts/test_equivalences.py::test_trunk_with_dts_layout_is_a_decision_transformer"),
    Mutant("a cost of nothing overruns nothing left", EXECUTION, "self.cost <= self.remaining", "self.cost < self.remaining",
           "tests/contracts/test_equivalences.py::test_a_second_constraint_of_zero_cost_changes_no_decision"),
    Mutant("limit not normalised", "core/normalizer.py", 'for kind in KINDS})', 'for kind in KINDS if kind != "limit"})',
           "tests/contracts/test_equivalences.py::test_scaling_rewards_costs_and_limits_changes_no_decision"),
    Mutant("window's random state lost", FIT, 'self.generator.set_state(random["windows"])', "pass",
           "tests/training/test_resume.py::test_interrupt_saves_and_resume_goes_on_bit_for_bit"),
    Mutant("dropout's random state lost", FIT, 'torch.set_rng_state(random["torch"])', "pass",
           "tests/training/test_resume.py::test_interrupt_saves_and_resume_goes_on_bit_for_bit"),
    Mutant("optimiser lost", FIT, '_restore_optimizer(optimizer, checkpoint.groups.get(f"optimizer.{name}", {}))', "pass",
           "tests/training/test_resume.py::test_interrupt_saves_and_resume_goes_on_bit_for_bit"),
    Mutant("evaluation disturbs training", FIT, "        if not training:\n            torch.set_rng_state(state)", "",
           "tests/training/test_resume.py::test_evaluating_does_not_disturb_training"),
    Mutant("bad loss not saved", FIT, "                _save(trainer, run)\n                raise", "                raise",
           "tests/training/test_resume.py::test_a_loss_that_is_not_finite_saves_and_says_where"),
    Mutant("window into the next trajectory", "data/sampling.py", "valid=steps <= last", "valid=steps >= 0",
           "tests/data/test_sampling.py::test_windows_are_consecutive_steps_padded_at_the_end"),
    Mutant("costs before bounds", "data/relabel.py", 'np.clip(store.columns["action"], low, high, dtype=np.float32)', 'store.columns["action"]',
           "tests/data/test_relabel_and_limits.py::test_costs_and_what_is_to_come"),
    Mutant("frontier beyond the limit", "data/limits.py", "data.episode_return[within]", "data.episode_return",
           "tests/data/test_relabel_and_limits.py::test_frontier_is_the_mean_of_the_five_best_within_the_limit"),
    Mutant("every episode must be within", "evaluation/verdict.py", "bool((mean_cost <=", "bool((costs.max(0) <=",
           "tests/evaluation/test_verdict.py::test_eq_1_a_limit_is_met_by_the_mean"),
    Mutant("checkpoint written in place", "runs/checkpoint.py", "    save_file(tensors, unfinished, metadata)", "    path.write_bytes(b'')\n    save_file(tensors, unfinished, metadata)",
           "tests/runs/test_checkpoints.py::test_a_death_while_saving_leaves_the_old_checkpoint"),
    Mutant("workers share a stream", "envs/behaviours.py", "np.random.SeedSequence(chunk.seed)", "0",
           "tests/envs/test_envs.py::test_a_build_does_not_depend_on_the_number_of_workers"),
)  # fmt: skip
