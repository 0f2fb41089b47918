"""What is drawn of an environment: MuJoCo's bodies, or else the state as traces.

Nothing here renders: a page gets the shapes once and where the bodies are at every step, from
MuJoCo's own model and data, and draws them itself.
"""

from typing import Any

import numpy as np

SHAPES = {2: "sphere", 3: "capsule", 4: "ellipsoid", 5: "cylinder", 6: "box"}
"""By MuJoCo's number of a geom's type; planes are the floor, and others are not drawn."""
VISIBLE_GROUPS = 3  # MuJoCo shows the groups 0 to 2
MOST_TRACES = 12


class BodyScene:
    """A MuJoCo environment: bodies that move, with geoms fixed to them."""

    def __init__(self, model: Any, data: Any, dt: float | None) -> None:
        self._data, self._dt = data, dt
        geoms = [g for g in range(model.ngeom) if _is_drawn(model, g)]
        self._bodies = sorted({int(model.geom_bodyid[g]) for g in geoms})
        index = {body: place for place, body in enumerate(self._bodies)}
        self._geoms = [
            {
                "shape": SHAPES[int(model.geom_type[g])],
                "body": index[int(model.geom_bodyid[g])],
                "size": _short(model.geom_size[g]),
                "at": _short(model.geom_pos[g]),
                "turn": _short(model.geom_quat[g]),
                "colour": _short(model.geom_rgba[g][:3]),
            }
            for g in geoms
        ]
        moving = [body for body in self._bodies if body > 0]
        self._follow = index[moving[0]] if moving else 0

    def plain(self) -> dict[str, Any]:
        """What does not change: shapes, which body the camera follows, seconds of a step."""
        return {"kind": "bodies", "geoms": self._geoms, "follow": self._follow, "dt": self._dt}

    def pose(self, state: Any) -> list[float]:
        """Position and quaternion of each body, one after the other."""
        rows = np.concatenate([self._data.xpos, self._data.xquat], axis=1)[self._bodies]
        return _short(rows.ravel())


class TraceScene:
    """Any other environment: each entry of its state over time."""

    def __init__(self, num_states: int) -> None:
        self._count = min(num_states, MOST_TRACES)
        self._left_out = num_states - self._count

    def plain(self) -> dict[str, Any]:
        names = [f"state[{number}]" for number in range(self._count)]
        return {"kind": "traces", "names": names, "left_out": self._left_out, "dt": None}

    def pose(self, state: Any) -> list[float]:
        return _short(np.asarray(state)[: self._count])


Scene = BodyScene | TraceScene


def scene_of(environment: Any) -> Scene:
    """The scene of a Gymnasium environment."""
    bare = environment.unwrapped
    model, data = getattr(bare, "model", None), getattr(bare, "data", None)
    if all(hasattr(model, name) for name in ("geom_type", "geom_bodyid")) and data is not None:
        dt = getattr(bare, "dt", None)
        return BodyScene(model, data, None if dt is None else float(dt))
    return TraceScene(environment.observation_space.shape[0])


def _is_drawn(model: Any, geom: int) -> bool:
    is_seen = model.geom_group[geom] < VISIBLE_GROUPS and model.geom_rgba[geom][3] > 0
    return bool(is_seen and int(model.geom_type[geom]) in SHAPES)


def _short(values: Any) -> list[float]:
    """Numbers with as many digits as a drawing needs."""
    rounded: list[float] = np.round(np.asarray(values, dtype=np.float64), 3).tolist()
    return rounded
