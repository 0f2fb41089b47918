"""DSRL's names, known to Gymnasium. Their packages are imported when an environment is made."""

import sys
from importlib.util import find_spec

import gymnasium

from saformer.data.sources.dsrl import DsrlTask, dsrl_tasks

ENTRY_POINTS = {
    "bullet": "saformer.envs.dsrl.bullet:BulletEnv",
    "navigation": "saformer.envs.dsrl.safety:navigation",
    "velocity": "saformer.envs.dsrl.safety:velocity",
}
"""By suite."""


def require(*packages: str) -> None:
    """Say what is missing and how to get it, rather than fail at an import far below."""
    missing = [name for name in packages if name not in sys.modules and find_spec(name) is None]
    if not missing:
        return
    remedy = "`saformer doctor` prints the two lines that install DSRL's packages"
    if "pybullet" in missing and sys.version_info >= (3, 12):
        remedy = "pybullet has wheels for Python 3.11 on Linux alone: use that, or build it"
    raise ValueError(f"this environment needs {', '.join(missing)}; {remedy}")


def _register(task: DsrlTask) -> None:
    gymnasium.register(
        task.name,
        ENTRY_POINTS[task.suite],
        max_episode_steps=task.horizon,
        disable_env_checker=True,
        kwargs={"name": task.brief},
    )


for _task in dsrl_tasks().values():
    if _task.environment is not None and _task.name not in gymnasium.registry:
        _register(_task)
