"""What torchrun says of the processes that it started; without it, one process is alone."""

import os


def size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def is_first() -> bool:
    return size() == 1 or os.environ.get("RANK", "0") == "0"
