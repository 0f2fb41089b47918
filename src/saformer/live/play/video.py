"""Episodes as MP4 or GIF, where something can render and something can write them."""

import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from saformer.data.limits import Limit
from saformer.files import replacing
from saformer.live.play.company import Company
from saformer.live.play.recording import MissingRendererError, Progress, file_name, played
from saformer.live.play.settings import Acting
from saformer.trained import Trained

USUAL_RATE, HIGHEST_RATE = 20.0, 50.0  # pictures per second
RENDERER = (
    "robots need OpenGL: set MUJOCO_GL=egl with a GPU, or MUJOCO_GL=osmesa with its library "
    "(Debian: libosmesa6)"
)


def film(
    trained: Trained,
    limits: Sequence[Limit],
    folder: Path,
    *,
    acting: Acting,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Path]:
    """Play one episode under each limit, as `record` does, and write it as a video.

    MP4 where imageio has FFmpeg, else GIF. MissingRendererError says what is missing.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # Gymnasium's: we say it ourselves
            player = Company.of(acting.run, trained).player(acting, limits, seed, render=True)
        player.begin(seed)
        films = [[player.picture(lane)] for lane in range(len(limits))]
    except Exception as error:  # of MuJoCo, OpenGL or another's environment, each in its own way
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise MissingRendererError(f"nothing is rendered here; {RENDERER} ({reason})") from None
    if films[0][0] is None:
        raise MissingRendererError("this environment renders nothing: use --record instead")
    for step in played(player):
        for lane in step:
            films[lane].append(player.picture(lane))
        if progress:
            progress(max(map(len, films)) - 1, trained.totals.environment.horizon)
    player.close()
    dt = player.scene["dt"]
    rate = min(1 / dt, HIGHEST_RATE) if dt else USUAL_RATE
    folder.mkdir(parents=True, exist_ok=True)
    named = zip(limits, films, strict=True)
    return [write_film(folder / file_name(limit.name), film, rate) for limit, film in named]


def write_film(path: Path, pictures: Sequence[Any], rate: float) -> Path:
    """path.mp4, or path.gif where FFmpeg is missing (pip install imageio-ffmpeg)."""
    from imageio import v3

    is_mp4 = find_spec("imageio_ffmpeg") is not None
    path = path.with_name(f"{path.name}.{'mp4' if is_mp4 else 'gif'}")
    how: dict[str, Any] = {"fps": rate, "plugin": "FFMPEG"} if is_mp4 else {"duration": 1000 / rate}
    with replacing(path) as file:
        file.write(v3.imwrite("<bytes>", pictures, extension=path.suffix, **how))
    return path
