"""Kubernetes quantities: amounts such as `4Gi` of bytes or `500m` of a CPU.

Signs are not accepted: no quantity of a job can be negative. Source: "Quantity" in the Kubernetes API reference.
"""

import re
from decimal import ROUND_CEILING, Decimal

PATTERN = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][-+]?[0-9]{1,2})?$"
"""The regular expression of a quantity, for Python, Rust and Go."""

MAX_LENGTH = 32
"""The most characters of a quantity; keeps the number small enough to compute with."""

_FACTORS = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}
_SLOPPY = re.compile(r"^([0-9.]+)\s*([kmgtpe])i?b?(ytes)?$", re.IGNORECASE)


def parse_quantity(text: str) -> Decimal:
    """Parse a quantity into its amount.

    Raises:
        ValueError: The text is not a quantity. The message says what to write instead.
    """
    match = re.fullmatch(PATTERN, text) if len(text) <= MAX_LENGTH else None
    if match is None:
        raise ValueError(f"`{text}` is not a quantity; write {_suggestion(text)}")
    number, suffix = Decimal(match[1]), match[3] or ""
    if suffix in _FACTORS:
        return number * _FACTORS[suffix]
    return number.scaleb(int(suffix[1:]))


def parse_bytes(text: str) -> int:
    """Parse a quantity into a whole number of bytes, rounded up.

    Raises:
        ValueError: The text is not a quantity.

    Example:
        >>> parse_bytes("4Ki")
        4096
    """
    return int(parse_quantity(text).to_integral_value(rounding=ROUND_CEILING))


def _suggestion(text: str) -> str:
    sloppy = _SLOPPY.match(text.strip())
    if sloppy:
        number, unit = sloppy[1], sloppy[2].upper()
        return f"`{number}{unit}i` (powers of 1024) or `{number}{'k' if unit == 'K' else unit}` (powers of 1000)"
    return "a number with an optional unit, such as `4Gi`, `512Mi` or `500m`"
