"""Two of everything at once, in one folder.

One of them at least finishes; the other does too, or says in a line that the first is at work or
was there before. What is left belongs to one of them, whole.
"""

from __future__ import annotations

import time

import numpy as np

from scripts.attack.campaign import Campaign
from scripts.attack.kills import different, drawn_verb, repeated, undisturbed
from scripts.attack.process import Process
from scripts.attack.world import VERBS, command, copy, world

REFUSALS = ("is being written by process", "are never overwritten", "already holds a run")
REFUSALS += ("is being made by another process",)


def attempt(seed: int) -> str | None:
    """Two processes, the second a little later; then the command once more."""
    rng = np.random.default_rng(seed)
    name = drawn_verb(rng)
    verb = VERBS[name]
    expected, seconds, _ = undisturbed(name)
    folder = copy("folder", verb.words)
    processes = []
    for number in range(2):
        call = lambda words=verb.words: command(words)  # noqa: E731
        processes.append(Process(call, folder, world().parent / f"said{number}"))
        time.sleep(rng.uniform(0, 0.5 * seconds))
    ends = [process.wait() for process in processes]
    left = [pid for process in processes for pid in process.left()]
    if left:
        return f"{name}: {len(left)} processes were left"
    for ended in ends:
        said = " ".join(ended.said.split())
        if ended.problem or (ended.code and not any(word in said for word in REFUSALS)):
            return f"{name}: {ended.problem or said[-400:]}"
    if all(ended.code for ended in ends):
        return f"{name}: both were refused: {' '.join(ends[0].said.split())[-300:]}"
    process = Process(lambda: command(repeated(verb, folder)), folder, world().parent / "said")
    problem = process.wait().problem or different(verb, folder, expected)
    return f"{name}: {problem}" if problem else None


CAMPAIGN = Campaign("two at once", 200, attempt)
