"""Plain values and arrays as JSON: the arguments and results of calls. Reading them executes nothing.

An array is `{"array": [dtype, shape, its bytes, compressed by zlib, in base64]}`.
"""

import base64
import json
import math
import re
import zlib
from typing import Any

import numpy as np
from torch import Tensor

from rollfleet.errors import MessageCorrupt, MessageTooLarge

MAX_ARRAY_BYTES = 1 << 26  # of all arrays of a text: a hostile sender's few bytes may decompress to that many
_DTYPE = re.compile(r"[<>|]([biufc][0-9]{1,2})")


def to_json(value: object, *, max_bytes: int) -> str:
    """Encode None, numbers, text, lists, dicts and arrays; tensors become arrays, and tuples lists.

    Raises:
        TypeError: It holds another kind of value, or a dict with keys other than text.
        MessageTooLarge: It is longer than `max_bytes`.

    Example:
        >>> from_json(to_json({"level": 3, "image": np.zeros((2, 2))}, max_bytes=1000))["image"].shape
        (2, 2)
    """
    try:
        text = json.dumps(value, default=_plain, separators=(",", ":"))
        _check_keys(value)
    except TypeError as error:
        raise TypeError(str(error)) from None  # Python 3.14 adds a note, and the last line of an error is what is shown
    if len(text) > max_bytes:
        raise MessageTooLarge(len(text), max_bytes, "value")
    return text


def from_json(text: str) -> Any:
    """Decode a value.

    Raises:
        MessageCorrupt: `to_json` did not make this text.
    """
    try:
        return json.loads(text, object_hook=_Arrays().decoded)
    except (ValueError, TypeError, zlib.error, RecursionError) as error:
        raise MessageCorrupt(f"no plain value: {error}") from error


def _check_keys(value: object) -> None:
    """Refuse keys that JSON turns into text: the receiver would not find them."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"a dict has the key {key!r}, and keys are text: write {str(key)!r}")
        value = list(value.values())
    for each in value if isinstance(value, list | tuple) else ():
        _check_keys(each)


def _plain(value: object) -> object:
    array = value.numpy(force=True) if isinstance(value, Tensor) else value
    if isinstance(array, np.generic):
        return array.item()
    if isinstance(array, np.ndarray) and _DTYPE.fullmatch(array.dtype.str):
        data = base64.b64encode(zlib.compress(array.tobytes(), level=1)).decode()
        return {"array": [array.dtype.str, array.shape, data]}
    raise TypeError(f"{type(value).__name__} is no number, text, list, dict or array")


class _Arrays:
    """The arrays of one text."""

    def __init__(self) -> None:
        self._left = MAX_ARRAY_BYTES

    def decoded(self, found: dict[str, Any]) -> Any:
        """Return an array if these are its parts, else the dict itself."""
        match found:
            case {"array": [str(name), list(shape), str(data)]} if len(found) == 1 and _DTYPE.fullmatch(name):
                pass
            case _:  # of the sender's own
                return found
        if any(type(size) is not int or size < 0 for size in shape):
            raise ValueError(f"an array of shape {shape!r:.100}")
        dtype = np.dtype(name)
        self._left -= (nbytes := dtype.itemsize * math.prod(shape))
        if self._left < 0:
            raise ValueError(f"arrays of more than {MAX_ARRAY_BYTES} bytes")
        raw = zlib.decompressobj().decompress(base64.b64decode(data), nbytes + 1)
        return np.frombuffer(raw, dtype).reshape(shape).copy()
