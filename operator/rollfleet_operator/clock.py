"""Points in time as Kubernetes writes them, and as numbers to compute with (seconds since the epoch)."""

from datetime import UTC, datetime


def format_time(time_s: float) -> str:
    """As RFC 3339 in UTC, to the second."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> float:
    """The inverse of `format_time`; takes fractions of a second too."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
