"""The ways of acting that tables compare: a name, and options of the policy."""

from typing import Any

from saformer.api.judge import REFERENCE

Options = tuple[tuple[str, Any], ...]
"""Names and values; by a digest of them an evaluation is found again."""
WITHOUT_CRITIC: Options = (("rule", "none"),)
PROPOSED: dict[str, Options] = {
    "ours": (),
    "the paper's rule": (("rule", "paper"),),
    "no critic": WITHOUT_CRITIC,
}
"""Of one model: whatever is executed is a proposal, unmodified."""
ABLATED: dict[str, Options] = {
    "critic": (),
    "no critic": WITHOUT_CRITIC,
    "means alone": (*WITHOUT_CRITIC, ("candidates", 1)),
}
"""The first of the candidates is the mean of both heads."""
PUBLISHED_ROW, CDT, SHIELDED = "as published", "CDT", "ours, expected action + shield"
IN_SHIELD: Options = (("rule", "feasible"), ("candidates", 1))
"""As policies act in a shield by default."""
COMPARED = (*PROPOSED, PUBLISHED_ROW, CDT, SHIELDED, REFERENCE)
"""With and without a shield."""
