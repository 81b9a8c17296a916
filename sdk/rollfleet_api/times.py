"""Times as Kubernetes writes them, and as seconds since the epoch."""

from datetime import UTC, datetime


def format_time(time_s: float) -> str:
    """Format seconds since the epoch as RFC 3339 in UTC, to the second."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> float:
    """Parse RFC 3339, the inverse of `format_time`; fractions of a second are accepted too."""
    return datetime.fromisoformat(text).timestamp()
