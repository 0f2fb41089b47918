"""The trials of Eq. 5's balance learn from the terms that they name."""

import pytest
from scripts.balance import BALANCES

from saformer.core.objectives import actor_nll


@pytest.mark.parametrize("balance", BALANCES)
def test_a_balance_changes_the_to_go_terms_alone(agent, batch, balance):
    """Seen to fail when the script imports a name that is gone, as it did, and when a weight falls
    on the action's term too. A trunk that is only read changes gradients, not values."""
    window = agent.model.normalizer.window(batch)
    published = actor_nll(agent.model.actor(window), window)
    terms = BALANCES[balance](agent, batch)
    same = {name for name in terms if terms[name].mean().item() == published[name].mean().item()}
    assert same == (set(published) if balance in {"1 (paper)", "detached"} else {"action"})
