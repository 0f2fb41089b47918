"""The ways of acting that tables compare: a name, and options of the policy."""

from typing import Any

from saformer.api.judge import REFERENCE

Options = tuple[tuple[str, Any], ...]
"""Names and values; by a digest of them an evaluation is found again."""
WITHOUT_CRITIC: Options = (("rule", "none"),)
BY_MEANS: Options = (*WITHOUT_CRITIC, ("candidates", 1))
ELSE_THE_MEAN: Options = (("rule", "paper"), ("fallback", "mean"))
PROPOSED: dict[str, Options] = {
    "ours": (),
    "the mean": BY_MEANS,
    "the paper's rule": (("rule", "paper"),),
    "the paper's rule, else the mean": ELSE_THE_MEAN,
    "no critic": WITHOUT_CRITIC,
}
"""Of one model: whatever is executed is a proposal, unmodified."""
ABLATED: dict[str, Options] = {
    "critic": (),
    "no critic": WITHOUT_CRITIC,
    "means alone": BY_MEANS,
}
"""The first of the candidates is the mean of both heads."""
PUBLISHED: dict[str, Options] = {
    "as published": (),
    "as published, else the mean": ELSE_THE_MEAN,
    "as published, no critic": WITHOUT_CRITIC,
    "as published, the mean": BY_MEANS,
}
"""Of another model, with the paper's losses."""
CDT, BC_SAFE, SHIELDED = "CDT", "BC-Safe", "ours, expected action + shield"
IN_SHIELD: Options = (("rule", "feasible"), ("candidates", 1))
"""As policies act in a shield by default."""
COMPARED = (*PROPOSED, *PUBLISHED, CDT, BC_SAFE, SHIELDED, REFERENCE)
"""With and without a shield."""
