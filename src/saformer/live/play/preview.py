"""The first picture, before any network is loaded: the environment as its episode begins.

Importing torch takes seconds; this needs none of it.
"""

import json
from typing import Any

from saformer.data.store import EnvironmentSpec
from saformer.envs.costed import make
from saformer.files import validated
from saformer.live.play.scene import scene_of
from saformer.live.play.settings import FIRST_SEED
from saformer.runs.pretrained import folder_of


def preview(run: str, seed: int) -> dict[str, Any] | None:
    """Scene and first pose of an export's environment; None where its description does not say
    enough or is damaged: loading the run says what is wrong."""
    path = folder_of(run) / "export.json"
    try:
        plain = json.loads(path.read_bytes())["environment"]
        environment = make(validated(EnvironmentSpec, plain, path, "copy the export again"), ())
    except (OSError, ValueError, KeyError, TypeError, ModuleNotFoundError):
        return None
    state, scene = environment.reset(seed=FIRST_SEED + seed)[0], scene_of(environment)
    first = {"type": "preview", "run": run, "scene": scene.plain(), "pose": scene.pose(state)}
    environment.close()
    return first
