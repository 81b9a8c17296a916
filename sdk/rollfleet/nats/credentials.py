"""Reads the content of a credentials file. nats-py reads the file at each connection: it may have been renewed."""

import base64
import json
import re

from rollfleet.errors import ConnectionFailed


def of_another_job(credentials: bytes, job: str) -> ConnectionFailed:
    """Return the error of credentials, the content of their file, that are not for `job`. It names both jobs."""
    try:
        payload = credentials.partition(b"USER JWT")[2].split(b".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
        found = re.search(r"(?:^| )rollfleet\.([a-z0-9-]+)\.([a-z0-9-]+)\.", " ".join(claims["nats"]["sub"]["allow"]))
    except (IndexError, KeyError, TypeError, ValueError):  # written by another program than the operator
        found = None
    own = found and f"{found[1]}/{found[2]}"
    return ConnectionFailed(
        f"these credentials are for {own or 'another job'}, you asked for {job}: "
        f"{f'connect to {own!r}, or ' if own else ''}use the credentials of {job}"
    )
