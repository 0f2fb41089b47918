"""The block of memory in which the actions and results of lanes lie; without torch or Gymnasium."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

LaneRows = NDArray[np.void]
"""[L] rows of `lane_dtype`, over a block of memory."""


def lane_dtype(state: int, action: int, constraints: int) -> np.dtype[Any]:
    """A lane's row in the block; the arguments are widths."""
    fields: dict[str, Any] = {
        "state": (np.float32, (state,)),  # the present one
        "action": (np.float32, (action,)),  # to be executed
        "reward": np.float64,  # of the last step, as are the following
        "cost": (np.float64, (constraints,)),
        "terminated": np.bool_,
        "truncated": np.bool_,
        "active": np.bool_,  # whether the lane is to be stepped
    }
    return np.dtype(list(fields.items()), align=True)
