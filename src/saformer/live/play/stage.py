"""The stage: one or two lanes that play, in a thread of their own. Pages ask, and are told."""

import queue
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from saformer.live.play.pages import FORMAT
from saformer.live.play.preview import preview
from saformer.live.play.settings import Acting, PlaySettings

if TYPE_CHECKING:  # networks take seconds to import; the page is there before
    from saformer.live.play.company import Company
    from saformer.live.play.learning import Learning
    from saformer.live.play.player import Player

Event = dict[str, Any]
FASTEST = 60.0  # steps per second: no screen shows more
USUAL_SPEED = 20.0
MOST_WAITING = 200  # requests
MEMORY = 0.9  # of the measured speed
LOOK_EVERY = 2.0  # seconds between looks at a run that still learns


@dataclass
class PlayedLane:
    """Of the page: how it acts, and all frames of its present episode."""

    acting: Acting
    limit: list[float]
    about: Event = field(default_factory=dict)
    frames: list[Event] = field(default_factory=list)


class Stage:
    """Lanes of one policy are decided together; all begin with the same seed."""

    def __init__(
        self, runs: tuple[str, ...], settings: PlaySettings, publish: Callable[[Event], None]
    ) -> None:
        self._runs, self._settings, self._publish = runs, settings, publish
        self._requests: queue.Queue[Callable[[], None]] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._live, name="stage", daemon=True)
        self._is_open, self._is_playing, self._is_ready = True, False, False
        self._seed, self._speed, self._measured = settings.seed, USUAL_SPEED, 0.0
        self._last_step = 0.0
        self._lanes: list[PlayedLane] = []
        self._players: list[tuple[Player, list[int]]] = []
        self._company: Company | None = None
        self._learning: Learning | None = None
        self._last_look = 0.0
        self._hint: Event | None = None
        self.failure: str | None = None  # why nothing can be played
        self.when_it_fails: Callable[[], None] = lambda: None

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread, after the step that it is at."""
        self._is_open = False
        self.submit(lambda: None)
        self._thread.join(timeout=10)

    def submit(self, request: Callable[[], None]) -> bool:
        """Have this done between two steps; False if too much is waiting already."""
        try:
            self._requests.put_nowait(request)
        except queue.Full:
            return False
        return True

    # What pages ask, in the stage's own thread.

    def start(self) -> None:
        if all(self._is_over(lane) for lane in range(len(self._lanes))):
            self.reset()
        self._is_playing = True
        self._tell()

    def pause(self) -> None:
        self._is_playing = False
        self._tell()

    def step(self) -> None:
        self._is_playing = False
        self._advance()
        self._tell()

    def reset(self, seed: int | None = None) -> None:
        self._seed = self._seed if seed is None else seed
        self._begin()

    def set_speed(self, speed: float) -> None:
        self._speed = min(speed, FASTEST)
        self._tell()

    def move_limit(self, lane: int, constraint: int, limit: float) -> None:
        own = self._lane(lane)
        if constraint >= len(own.limit):
            raise ValueError(f"there is no constraint {constraint + 1}, but {len(own.limit)}")
        own.limit[constraint] = limit
        player, place = self._player(lane)
        player.move_limit(place, constraint, limit)
        self._publish({"type": "limit", "lane": lane, "limit": own.limit})

    def act(self, lane: int, acting: Acting) -> None:
        """Have a lane act in another way; of another run, its limit begins at that data's p50."""
        assert self._company is not None
        own = self._lane(lane)
        about = self._company.about(acting)  # refuses what cannot be, before anything is changed
        if acting.run != own.acting.run:
            own.limit = list(self._company.limit(acting.run, "p50").values)
        before = own.acting, own.about
        own.acting, own.about = acting, about
        try:
            self._begin()
        except ValueError:
            own.acting, own.about = before
            self._begin()
            raise

    def set_lanes(self, count: int) -> None:
        assert self._company is not None
        del self._lanes[count:]
        while len(self._lanes) < count:
            first = self._lanes[0]
            tight = self._company.limit(first.acting.run, "p20").values
            self._lanes.append(PlayedLane(first.acting, list(tight), first.about))
        self._begin()

    def greet(self, tell: Callable[[Event], None]) -> None:
        """Tell one page all that has been so far."""
        if self._hint is not None and not self._is_ready:
            tell(self._hint)
        if self._is_ready:
            tell(self._whole())
        if self._learning is not None:
            tell(self._learning.event())
        if self.failure is not None:
            tell({"type": "error", "text": self.failure, "final": True})

    def recording(self) -> Event | None:
        """The present episodes, to be played again; None before there are any."""
        if not self._is_ready or len(self._lanes[0].frames) < 2:
            return None
        lanes = [{"about": lane.about, "frames": lane.frames} for lane in self._lanes]
        return {"format": FORMAT, "seed": self._seed, "lanes": lanes}

    # The thread.

    def _live(self) -> None:
        try:
            self._hint = preview(self._runs[0], self._settings.seed)
            if self._hint is not None:
                self._publish(self._hint)
            self._load()
        except Exception as error:  # the page says it, and the terminal
            self.failure = str(error) or type(error).__name__
            self._publish({"type": "error", "text": self.failure, "final": True})
            self.when_it_fails()
        while self._is_open:
            self._attend()
            if self._is_playing:
                self._guarded(self._advance)
            if self._learning is not None and time.monotonic() > self._last_look + LOOK_EVERY:
                self._guarded(self._look)

    def _load(self) -> None:
        from saformer.live.play.company import Company

        settings = self._settings
        self._company = Company(self._runs, device=settings.device)
        acting = Acting(self._runs[0], settings.rule, {}, settings.shield)
        about = self._company.about(acting)
        for text in settings.limits:
            values = self._company.limit(acting.run, text).values
            self._lanes.append(PlayedLane(acting, list(values), about))
        run = self._company.trained(acting.run).run
        if not run.is_done and not run.is_export:
            from saformer.live.play.learning import Learning

            self._learning = Learning(run)
        self._is_playing = True
        self._begin()

    def _begin(self) -> None:
        """New episodes on all lanes, whose policies are made as their settings say."""
        from saformer.data.limits import Limit

        assert self._company is not None
        made: list[tuple[Player, list[int]]] = []
        groups: list[tuple[Acting, list[int]]] = []
        for lane, own in enumerate(self._lanes):
            group = next((lanes for acting, lanes in groups if acting == own.acting), None)
            if group is None:
                groups.append((own.acting, [lane]))
            else:
                group.append(lane)
        for acting, lanes in groups:
            limits = [Limit("moved", tuple(self._lanes[lane].limit)) for lane in lanes]
            made.append((self._company.player(acting, limits, self._seed), lanes))
        firsts = [(lanes, player.begin(self._seed)) for player, lanes in made]
        for player, _ in self._players:
            player.close()
        self._players, self._measured = made, 0.0
        for (player, _), (lanes, frames) in zip(made, firsts, strict=True):
            for lane, frame in zip(lanes, frames, strict=True):
                self._lanes[lane].frames = [frame]
                self._lanes[lane].about = {**self._lanes[lane].about, "scene": player.scene}
        self._is_ready = True
        self._publish(self._whole())

    def _begin_with_newest(self) -> None:
        """Play by what the run has learnt meanwhile; once it has finished, a last time."""
        assert self._company is not None
        assert self._learning is not None
        if self._learning.is_done:
            self._publish(self._learning.event())
            self._learning = None
        for lane in self._lanes:
            lane.about = self._company.about(lane.acting)
        self._begin()

    def _attend(self) -> None:
        """Do what was asked, until the next step is due."""
        while self._is_open:
            due = self._last_step + 1 / self._speed - time.monotonic()
            if self._is_playing and due <= 0 and self._requests.empty():
                return
            try:
                wait = max(due, 0.001) if self._is_playing else self._patience
                request = self._requests.get(timeout=wait)
            except queue.Empty:
                return
            self._guarded(request)

    @property
    def _patience(self) -> float | None:
        """How long to wait for a request while nothing is played."""
        return None if self._learning is None else LOOK_EVERY

    def _look(self) -> None:
        """Tell how the run learns, if it has since the last look."""
        assert self._learning is not None
        self._last_look = time.monotonic()
        event = self._learning.look()
        if event is not None:
            self._publish(event)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Errors are told to the pages; nothing that is asked ends the stage."""
        try:
            work()
        except (ValueError, OSError, RuntimeError, AssertionError) as error:
            self._is_playing = False
            self._publish({"type": "error", "text": str(error) or "not ready yet", "final": False})
        except Exception:
            self._is_playing = False
            traceback.print_exc()
            self._publish({"type": "error", "text": "an error; see the terminal", "final": False})

    def _advance(self) -> None:
        began = time.monotonic()
        frames = list[Event]()
        for player, lanes in self._players:
            for place, frame in player.step().items():
                self._lanes[lanes[place]].frames.append(frame)
                frames.append({**frame, "lane": lanes[place]})
        if not frames:
            self.pause()
            return
        since = began - self._last_step
        if 0 < since < 2:
            rate = 1 / since
            self._measured = MEMORY * self._measured + (1 - MEMORY) * rate or rate
        self._last_step = began
        self._publish({"type": "frames", "frames": frames, "measured": round(self._measured, 1)})
        if all(self._is_over(lane) for lane in range(len(self._lanes))):
            if self._learning is None:
                self.pause()
            else:
                self._begin_with_newest()

    def _is_over(self, lane: int) -> bool:
        player, place = self._player(lane)
        return player.is_over(place)

    def _player(self, lane: int) -> "tuple[Player, int]":
        self._lane(lane)
        return next((p, lanes.index(lane)) for p, lanes in self._players if lane in lanes)

    def _lane(self, lane: int) -> PlayedLane:
        if lane >= len(self._lanes):
            raise ValueError(f"there is no lane {lane + 1}, but {len(self._lanes)}")
        return self._lanes[lane]

    def _status(self) -> Event:
        return {"playing": self._is_playing, "seed": self._seed, "speed": self._speed}

    def _tell(self) -> None:
        self._publish({"type": "status", **self._status()})

    def _whole(self) -> Event:
        lanes = [
            {
                "about": lane.about,
                "limit": lane.limit,
                "past": [_without_pose(frame) for frame in lane.frames[:-1]],
                "frame": lane.frames[-1],
            }
            for lane in self._lanes
        ]
        return {"type": "whole", "runs": list(self._runs), "lanes": lanes, **self._status()}


def _without_pose(frame: Event) -> Event:
    """Enough for plots; traces are drawn from all poses, bodies from the last."""
    return frame if len(frame["pose"]) <= 12 else {**frame, "pose": None}
