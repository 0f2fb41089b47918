"""Where one episode of a log ends and another begins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from saformer.data.logs.files import LogBlock
from saformer.data.logs.mapping import LogMapping


class Segmenter:
    """Follows a log block by block and numbers its episodes. Survey and import each follow it anew,
    alike."""

    def __init__(self, mapping: LogMapping) -> None:
        self._mapping = mapping
        self._file: Path | None = None
        self._episode: object = None
        self._time = np.nan
        self._ended = False
        self.num_episodes = 0

    def begins(self, block: LogBlock) -> NDArray[np.bool_]:
        """[n] where another episode begins. Call once per block, in order."""
        begins = np.zeros(len(block), dtype=bool)
        new_file = block.file != self._file
        if block.episode is not None:
            before = np.concatenate([[self._episode], block.episode[:-1]])
            begins |= block.episode != before
            begins[0] |= new_file and self._mapping.episodes_per_file
        if self._mapping.gap is not None and block.time is not None:
            passed = np.diff(block.time, prepend=self._time)
            begins |= (passed > self._mapping.gap) | (passed < 0)
        if block.episode is None and self._mapping.gap is None:
            ended = block.terminated | block.truncated
            begins |= np.concatenate([[self._ended], ended[:-1]])
            begins[0] |= new_file
        begins[0] |= self._file is None
        self._remember(block)
        self.num_episodes += int(begins.sum())
        return begins

    def _remember(self, block: LogBlock) -> None:
        self._file = block.file
        self._ended = bool(block.terminated[-1] or block.truncated[-1])
        if block.episode is not None:
            self._episode = block.episode[-1]
        if block.time is not None:
            self._time = float(block.time[-1])
