"""Which limit to ask for while exploring, to end below the one that is wanted."""

from __future__ import annotations


def attenuation_factors(attenuation: float, floor: float) -> tuple[float, ...]:
    """alpha, alpha^2, ... down to the floor, which is the last; they never compound to zero.

    A limit that is explored again and again goes through them in turn and then begins anew, so that
    what was collected last is neither all near the limit nor all far below it.
    """
    if not 0 < attenuation <= 1:
        raise ValueError(
            f"attenuation must lie in (0, 1], got {attenuation}; 0.95 asks for 5% less"
        )
    if not 0 < floor <= attenuation:
        raise ValueError(
            f"floor must lie in (0, attenuation = {attenuation}], got {floor}: lower the floor "
            "or raise the attenuation"
        )
    factors = [attenuation]
    while attenuation < 1 and factors[-1] > floor:
        factors.append(max(floor, factors[-1] * attenuation))
    return tuple(factors)
