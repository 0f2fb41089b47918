"""Frames of openpi's clients: msgpack, with arrays as maps of their bytes, type and shape.

An array is {b"__ndarray__": True, b"data": bytes, b"dtype": "<f4", b"shape": [...]}, a number of
NumPy's {b"__npgeneric__": True, b"data": number, b"dtype": "<f4"}. No type but numbers is read.
"""

import math
import re
from typing import Any

import msgpack
import numpy as np

from saformer.live.serve.messages import RefusedError

NUMBER_TYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248])")


def packed(content: dict[str, Any]) -> bytes:
    """A frame; lists of numbers become arrays, of float32 where they are actions."""
    arrays = {name: _as_array(name, value) for name, value in content.items()}
    frame: bytes = msgpack.packb(arrays, default=_plain_array)
    return frame


def unpacked(frame: bytes) -> Any:
    """What a frame holds, with lists in the place of arrays, or a refusal."""
    try:
        return msgpack.unpackb(frame, object_hook=_list_of_array, strict_map_key=False)
    except RefusedError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise RefusedError(f"this frame is not msgpack that can be read ({reason[:80]})") from None


def _as_array(name: str, value: Any) -> Any:
    if not isinstance(value, list) or any(isinstance(each, str) for each in value):
        return value
    return np.array(value, dtype=np.float32 if name.startswith("action") else np.float64)


def _plain_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        described = {b"dtype": value.dtype.str, b"shape": value.shape}
        return {b"__ndarray__": True, b"data": value.tobytes(), **described}
    raise TypeError(f"{type(value).__name__} cannot be sent")


def _list_of_array(entries: dict[Any, Any]) -> Any:
    if b"__ndarray__" not in entries and b"__npgeneric__" not in entries:
        return entries
    data, kind = entries.get(b"data"), entries.get(b"dtype")
    if not isinstance(kind, str) or not NUMBER_TYPE.fullmatch(kind):
        raise RefusedError(
            f"an array of type {str(kind)[:20]!r} was sent: send numbers, such as '<f4'"
        )
    if b"__ndarray__" not in entries:
        return data
    dtype, shape = np.dtype(kind), entries.get(b"shape")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise RefusedError("the shape of an array must be a list of whole numbers")
    if not isinstance(data, bytes) or len(data) != math.prod(shape) * dtype.itemsize:
        raise RefusedError(
            f"the bytes of an array do not fit its shape {str(shape)[:40]} of {kind}"
        )
    return np.frombuffer(data, dtype=dtype).reshape(shape).tolist()
