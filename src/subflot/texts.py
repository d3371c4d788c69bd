"""The small text files of a run: what is written can be read again."""

import json
import math
from typing import Any

from subflot.errors import SubflotError


def toml_value(value: Any) -> str:
    """Write a value as TOML.

    Example:
        >>> toml_value(("one two", float("inf"), 3, True))
        '["one two", inf, 3, true]'
    """
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, float):
        return repr(value)
    # The escapes of JSON are TOML's too, but it knows no pairs of surrogates, and escapes DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def check_writable(key: str, value: Any) -> None:
    """Refuse a setting that could not be written and read again as it is."""
    for one in value if isinstance(value, tuple | list) else (value,):
        if isinstance(one, float) and math.isnan(one):
            raise SubflotError(f"{key} is {one}", hint="give a number")
        if isinstance(one, str):
            try:
                one.encode()
            except UnicodeEncodeError:
                raise SubflotError(f"{key} is {one!r}, which is no text", hint="UTF-8 is") from None
