"""A mapping for a log that comes without one: guessed from its header and first rows, to be
edited."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from saformer.criteria.expression import column_expression
from saformer.data.logs.cells import NUMBER, AmbiguousDateError, arrow, read_numbers, time_style
from saformer.data.logs.columns import LogColumns
from saformer.data.logs.files import SAMPLE_ROWS, LogFile, Sample, find_files, sample_of
from saformer.data.logs.frames import log_sources
from saformer.data.logs.mapping import LogMapping
from saformer.data.sources.names import default_name
from saformer.files import write_atomically

NUM_ROWS = 10
WRITTEN = ("delimiter", "decimal", "encoding", "na", "words", "time_format")
"""What a mapping says of how a log is written, not of which column is what."""
TIME_OF_DAY = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?( ?[AaPp][Mm])?|\d{1,2}\.\d{2}\.\d{2}")
NAMES = {
    "time": r"time|date|stamp|zeit|datum|uhr",
    "episode": r"^(episode|run|batch|cycle|trip|shift)([ _-]?(id|no|number|nr))?$",
    "terminated": r"^(terminated|done|tripped|failed)$",
    "truncated": r"^truncated$",
    "reward": r"reward|profit|revenue|yield|score|comfort",
    "cost": r"cost|kosten|power|leistung|energ|kwh|\bkw\b|consum|verbrauch|emission|wear|"
    r"€|\$|\beur\b",
    "price": r"price|preis|tarif",
    "action": r"set.?point|soll|\bsp\b|command|\bcmd|control|action|valve|ventil|pump|damper|"
    r"klappe|\bfan\b|heater|duty|mode\b|modus|switch",
    "identity": r"^(id|index|no|nr|number|unnamed.*)$|[ _-]id$",
}
"""How columns of each kind are usually called, in any letters."""


@dataclass(frozen=True)
class Proposal:
    """A mapping as a TOML file, each line with its reason."""

    sources: tuple[str, ...]
    lines: tuple[str, ...]

    def write(self) -> str:
        """To a new file in the present folder, named after the first source; returns what there is
        to be said of it."""
        path, text = Path(f"{default_name(self.sources[0])}-mapping.toml"), "\n".join(self.lines)
        if path.exists():
            advice = f"use it with --mapping {path}, or remove it to have another proposed"
            raise FileExistsError(f"{path} exists: {advice}")
        write_atomically(path, f"{text}\n")
        again = f"saformer data import {shlex.join(self.sources)} --mapping {path}"
        return f"{text}\n\nwritten to {path}: edit it, then:\n{again} --check"


def propose_mapping(sources: Sequence[str], mapping: LogMapping | None = None) -> Proposal | None:
    """What the columns of the first log may be; None if they are called as usual or the mapping
    says it, or if these are no logs."""
    logs, mapping, usual = log_sources(sources), mapping or LogMapping(), LogMapping()
    says = {field.name for field in fields(mapping)} - set(WRITTEN)
    if logs is None or any(getattr(mapping, name) != getattr(usual, name) for name in says):
        return None
    file = find_files(logs)[0]
    sample = sample_of(file, mapping, SAMPLE_ROWS)
    try:
        LogColumns.of(mapping, sample.names)
    except ValueError:
        return Proposal(tuple(map(str, logs)), tuple(_Guess(sample, file, mapping).lines()))
    return None


class _Guess:
    """Which column is what, by its name and by what the first rows hold."""

    def __init__(self, sample: Sample, file: LogFile, how: LogMapping) -> None:
        self._all, self._file, self._how = sample, file, how
        self._sample = sample = replace(sample, rows=sample.rows[:NUM_ROWS])
        self._left = sample.names  # columns that are nothing yet
        how = replace(how, decimal=how.decimal or sample.decimal)
        self._values = {
            n: read_numbers(n, arrow().array(sample.column(n)), how) for n in sample.names
        }
        counts = {name: bad.count for name, (_, bad) in self._values.items() if bad is not None}
        self._words = [name for name in counts if 2 * counts[name] > len(sample.rows)]

    def lines(self) -> Iterator[str]:
        """Of the file."""
        yield f"# A proposal for {self._file}, guessed from its header and first rows: edit it."
        for name in WRITTEN:
            if (given := getattr(self._how, name)) != getattr(LogMapping, name):
                yield f"{name} = {_quoted(given)}  # as you said"
        yield from self._time()
        for part in ("episode", "terminated", "truncated"):
            for name in self._take(part, most=1):
                yield f"{part} = {_quoted(name)}  # by its name"
        clocks, identities = self._take("time"), self._take("identity")
        words = [name for name in self._left if name in self._words]
        self._left = [name for name in self._left if name not in words]
        reward, prices = self._take("reward", most=1), self._named("price")
        cost = sorted(self._named("cost"), key=prices.__contains__)  # what one pays, not how dear
        action = self._take("action")
        kept = [name for name in self._left if name not in cost[:1]] or self._left
        yield _list("state", kept, "all other columns of numbers: what the action depends on")
        why = "by their names" if action else "none could be guessed: what does the machine decide?"
        yield _list("action", action, why)
        yield from self._reward(reward, kept)
        yield from self._cost(cost)
        if any(np.isnan(self._values[name][0]).any() for name in (*kept, *action, *cost[:1])):
            yield 'fill = "forward"  # some values are missing'
        others = [*clocks, *identities, *words]
        if others:
            yield f"# left out: {', '.join(others)} (clocks, numbers of rows, words)"
        for name in words:
            if re.search(NAMES["action"], name, re.IGNORECASE):
                example = self._example(name)
                yield f"# {name} may be an action: say what its words are, words = [{example}]"

    def _time(self) -> Iterator[str]:
        clock = next((name for name in self._left if self._is_time_of_day(name)), None)
        for name in self._left:
            is_named = re.search(NAMES["time"], name, re.IGNORECASE) is not None
            if name == clock or (name not in self._words and not is_named):
                continue
            texts = self._all.times(name, clock)
            try:
                style = self._how.time_format or time_style(texts, name)
                how = f"{texts[0]!r} is written as {style}"
            except AmbiguousDateError as error:
                style, how = "", str(error)
            except ValueError:
                continue
            if style == NUMBER and not is_named:
                continue
            self._left = [each for each in self._left if each not in (name, clock)]
            yield f"time = {_quoted(name)}  # {how}"
            if clock is not None:
                yield f"time_of_day = {_quoted(clock)}  # beside its date"
            if style != NUMBER and not self._named("episode"):
                yield 'episode = "day"  # or hour, week, a column; or episode_length = 96'
            return

    def _is_time_of_day(self, name: str) -> bool:
        return all(TIME_OF_DAY.fullmatch(text.strip()) for text in self._sample.column(name))

    def _named(self, part: str) -> list[str]:
        names = [name for name in self._left if re.search(NAMES[part], name, re.IGNORECASE)]
        return [n for n in names if part in ("time", "episode", "identity") or n not in self._words]

    def _take(self, part: str, most: int | None = None) -> list[str]:
        names = self._named(part)[:most]
        self._left = [name for name in self._left if name not in names]
        return names

    def _reward(self, named: Sequence[str], state: Sequence[str]) -> Iterator[str]:
        if named:
            yield f"reward = {_quoted(named[0])}  # by its name"
        elif state:
            middle = f"{np.nanmean(self._values[state[0]][0]):.4g}"
            text = f"-abs({column_expression(state[0])} - {middle})"
            yield f"reward = {_quoted(text)}  # A GUESS: what is good? A column or an expression"

    def _cost(self, named: Sequence[str]) -> Iterator[str]:
        if not named:
            yield '# cost = "..."  # a column or an expression; else the sum of the actions\' sizes'
            return
        text, is_signed = column_expression(named[0]), (self._values[named[0]][0] < 0).any()
        text = f"abs({text})" if is_signed else text
        why = "of either sign, and costs are not" if is_signed else "a column or an expression"
        yield f"cost = {_quoted(text)}  # by its name; {why}"

    def _example(self, name: str) -> str:
        words = dict.fromkeys(text for text in self._sample.column(name) if text)
        return ", ".join(_quoted(f"{word}={index}") for index, word in enumerate(words))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _list(name: str, names: Sequence[str], why: str) -> str:
    return f"{name} = [{', '.join(map(_quoted, names))}]  # {why}"
