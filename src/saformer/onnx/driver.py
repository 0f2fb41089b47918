"""Drives one machine by an exported graph. Needs onnxruntime and numpy; torch is never imported."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

GRAPH, MANIFEST = "policy.onnx", "policy.json"
LARGEST = 2.0**100  # as `core.budget`, whose torch is not needed here
Arrays = dict[str, NDArray[Any]]


class GraphDriver:
    """One episode after another on one machine: `reset`, then `act` and `observe` in turn.

    It does in Python what `examples/onnx` does in C++: feed a graph with what it remembers."""

    def __init__(self, folder: str | Path, *, seed: int = 0, threads: int = 1) -> None:
        import onnxruntime

        graph, self.manifest = (Path(folder) / GRAPH).read_bytes(), _manifest(Path(folder))
        if hashlib.sha256(graph).hexdigest() != self.manifest["sha256"]:
            raise ValueError(f"{folder}/{GRAPH} is not what {MANIFEST} describes: copy both again")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(graph, options)
        self._outputs = [port["name"] for port in self.manifest["outputs"]]
        self._random = np.random.default_rng(seed)
        self._inputs: Arrays = {}
        self._has_acted = False  # and what that cost is to be observed

    def reset(self, limit: ArrayLike) -> None:
        """Begin an episode under a limit, one number for each constraint."""
        ports = self.manifest["inputs"]
        inputs: Arrays = {p["name"]: np.zeros(p["shape"], p["dtype"]) for p in ports}
        inputs["limit"] = _numbers("limit", limit, inputs["limit"], least=0)
        self._inputs, self._has_acted = inputs, False

    @property
    def limit(self) -> NDArray[np.float64]:
        """[C]; may be moved between decisions."""
        limits: NDArray[np.float64] = self._known("limit")
        return limits[0]

    @limit.setter
    def limit(self, limit: ArrayLike) -> None:
        self._put("limit", limit, least=0)

    def act(self, state: ArrayLike, noise: Arrays | None = None) -> Arrays:
        """All outputs for a state [S]; `action` [1, A] is what to execute. Noise, unless given:
        `return_noise` and `action_noise`, drawn anew."""
        if self._has_acted:
            raise ValueError("it has acted, but nobody said what that cost: call observe first")
        self._put("limit", self.limit, least=0)  # which may have been written into
        self._put("state", state)
        for name in ("return_noise", "action_noise"):
            shape = self._inputs[name].shape
            drawn = self._random.standard_normal(shape) if noise is None else noise[name]
            self._put(name, drawn)
        found = self._session.run(self._outputs, self._inputs)
        decision: Arrays = dict(zip(self._outputs, found, strict=True))
        if not np.isfinite(decision["action"]).all():
            raise ValueError("this state and limit lead to no action that is a number")
        self._inputs["memory"], self._inputs["executed"] = (
            decision["next_memory"],
            decision["action"],
        )
        self._has_acted = True
        return decision

    def observe(self, cost: ArrayLike, action: ArrayLike | None = None) -> None:
        """What the last action cost, [C]; `action` [A] if another was executed in its place."""
        if not self._has_acted:
            raise ValueError("it has not acted since it was last observed: call act first")
        if action is not None:
            self._put("executed", action)
        self._put("cost", cost, least=0)
        self._has_acted = False

    def _put(self, name: str, value: ArrayLike, least: float = -LARGEST) -> None:
        self._inputs[name] = _numbers(name, value, self._known(name), least)

    def _known(self, name: str) -> NDArray[Any]:
        if not self._inputs:
            raise ValueError("no episode has begun: call reset(limit) first")
        return self._inputs[name]


def _numbers(name: str, value: Any, own: NDArray[Any], least: float) -> NDArray[Any]:
    """In the shape and type of `own`, all from `least` to 1e30."""
    try:
        given = np.asarray(value, dtype=own.dtype)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be numbers of shape {own.shape}, got {value!r}") from None
    if given.size != own.size:
        raise ValueError(f"{name} must have shape {own.shape}, got {given.shape}")
    if not ((given >= least) & (given <= LARGEST)).all():
        raise ValueError(f"{name} must be numbers from {least:g} to {LARGEST:g}, got {given}")
    return given.reshape(own.shape)


def _manifest(folder: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    return manifest
