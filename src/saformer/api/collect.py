"""Make data with a policy and a simulator of one's own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from saformer.api.listener import Listener
from saformer.data.sources.source import Imported
from saformer.files import check_is_new


def collect(
    environment: Any,
    policy: Any,
    out: str | Path,
    *,
    episodes: int = 200,
    criteria: Sequence[Any] = (),
    seed: int = 0,
    horizon: int | None = None,
    listener: Listener | None = None,
) -> Imported:
    """Roll a policy out in a Gymnasium environment; its episodes become a store in `out`.

    Both are given as themselves or by name (module:Name, ./file.py:Name). `environment`: a class, a
    function that makes one, an environment, a Gymnasium id. `policy`: a function that makes an
    action of an observation; or a class whose instances do, made anew for every episode with a
    numpy `Generator`. A step costs what `criteria` say, by default `info["cost"]`. `horizon` ends
    episodes that the environment would not. Ctrl-C ends it; whole episodes are kept.
    """
    from saformer.envs.collect import collect_episodes

    check_is_new(Path(out), "stores")
    listener = listener or Listener()
    how: dict[str, Any] = {"episodes": episodes, "criteria": criteria, "seed": seed}
    how |= {"horizon": horizon, "progress": listener.building}
    collected = collect_episodes(environment, policy, out, **how)
    for note in collected.notes:
        listener.say(f"note: {note}")
    listener.say(f"collected {collected.summary()} in {out}")
    return collected
