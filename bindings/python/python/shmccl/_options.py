"""Reads what users write for options."""

import re

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def byte_count(text):
    """Returns a number of bytes: a number, or a text such as "256M" or "1GiB"."""
    if isinstance(text, bool) or isinstance(text, int) and text < 0:
        raise ValueError(f'heap= takes a number of bytes, such as 268435456, "256M" or "1G", and not {text!r}')
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"\s*(\d+)\s*([kmgt]?)(?:i?b)?\s*", str(text), re.IGNORECASE)
    if not match:
        raise ValueError(f"{text!r} is no number of bytes; write one such as 268435456, \"256M\" or \"1G\"")
    return int(match[1]) * _UNITS[match[2].lower()]
