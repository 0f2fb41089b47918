"""What a step costs, decided in hindsight: functions of the data, never of the method."""

from saformer.criteria.named import (
    above,
    criterion,
    energy,
    joint_torque,
    logged,
    outside_box,
    torque,
)
from saformer.criteria.step import CostCriterion, Step

__all__ = ["CostCriterion", "Step", "above", "criterion", "energy", "joint_torque", "logged"]
__all__ += ["outside_box", "torque"]
