"""Errors of workers, as they report them."""


def last_line(error: str | None) -> str:
    """Return the last line of a worker's error, which may be empty: a worker chooses it.

    Example:
        >>> last_line("ValueError: broken"), last_line(" ")
        ('ValueError: broken', 'no reason given')
    """
    return ((error or "").strip().splitlines() or ["no reason given"])[-1]
