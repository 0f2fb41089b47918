"""Episodes recorded for others to watch: pages that play by themselves, and videos."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from saformer.api.listener import Listener
from saformer.data.limits import Limit
from saformer.evaluation.evaluate import Evaluation
from saformer.evaluation.settings import EvaluateSettings
from saformer.files import write_atomically
from saformer.live.play.company import Company
from saformer.live.play.pages import FORMAT, finite, recorded_page
from saformer.live.play.player import Player
from saformer.live.play.settings import Acting, RecordSettings
from saformer.runs.run import RECORDINGS
from saformer.trained import Trained

Progress = Callable[[int, int], None]


class MissingRendererError(ValueError):
    """Nothing here can render a video; the message says what to install."""


def record(
    trained: Trained,
    limits: Sequence[Limit],
    folder: Path,
    *,
    acting: Acting,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Path]:
    """Play one episode under each limit, all at once, and write a page for each into the folder.

    They begin as the first episode that `evaluate` judges with this seed does, but an episode that
    is decided beside others draws other proposals: it is one more, not the same.
    """
    company = Company.of(acting.run, trained)
    player, about = company.player(acting, limits, seed), company.about(acting)
    about["scene"] = player.scene
    frames = [[frame] for frame in player.begin(seed)]
    for step in played(player):
        for lane, frame in step.items():
            frames[lane].append(frame)
        if progress:
            progress(max(map(len, frames)) - 1, about["horizon"])
    player.close()
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for limit, own in zip(limits, frames, strict=True):
        recording = {"format": FORMAT, "seed": seed, "lanes": [{"about": about, "frames": own}]}
        path = folder / f"{file_name(limit.name)}.html"
        title = f"{about['task']} under {limit}"
        write_atomically(path, recorded_page(finite(recording), title))
        paths.append(path)
    return paths


def played(player: Player) -> Iterator[dict[int, dict[str, Any]]]:
    """The frames of each step, until every lane is over."""
    while step := player.step():
        yield step


def file_name(limit: str) -> str:
    """A limit as part of a file's name."""
    return "".join(letter if letter.isalnum() or letter in ".-" else "+" for letter in limit)


def record_beside(
    trained: Trained,
    wanted: RecordSettings,
    judged: Evaluation,
    settings: EvaluateSettings,
    listener: Listener,
) -> list[Path]:
    """What was asked to be watched of an evaluation, under the limits that its policy was told, in
    recordings/ beside it. Where no video can be made, it is said why."""
    from saformer.live.play.video import film

    limits = [verdict.limit for verdict in judged.verdicts]
    if judged.margins:
        told = zip(limits, judged.margins, strict=True)
        limits = [Limit(each.name, _less(each.values, margin)) for each, margin in told]
    acting = Acting(
        str(trained.path),
        settings.rule,
        dict(settings.options),
        shield=settings.shield or settings.both,
        floor=settings.floor,
        may_end=settings.may_end,
    )
    folder, paths = trained.findings.path / RECORDINGS, list[Path]()
    how: dict[str, Any] = {"acting": acting, "seed": 1000 * settings.seed}
    for is_wanted, make in ((wanted.record, record), (wanted.video, film)):
        if is_wanted:
            try:
                paths += make(trained, limits, folder, progress=listener.evaluating, **how)
            except MissingRendererError as error:
                listener.say(f"no video: {error}")
    for path in paths:
        listener.say(f"an episode to watch: {path}")
    return paths


def _less(values: Sequence[float], margin: float) -> tuple[float, ...]:
    return tuple((1 - margin) * value for value in values)
