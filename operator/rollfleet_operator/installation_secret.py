"""The Secret with the key of an installation. The chart creates it empty, so that it belongs to the release.

It is filled once, and made immutable, so that no upgrade can empty it.
"""

import base64
from typing import Final

from rollfleet_operator.api import Api
from rollfleet_operator.errors import ApiError
from rollfleet_operator.installation_key import InstallationKey

FILE: Final = "key"


async def installation_key(api: Api, key_secret: str, *, entropy: bytes) -> InstallationKey:
    """Return the key in a Secret, `namespace/name`; `entropy` becomes the key of one that is empty.

    Raises:
        ApiError: The Secret does not exist, or may not be read or written, or another client was faster (409).
    """
    namespace, _, name = key_secret.partition("/")
    secret = await api.get("Secret", namespace, name)
    if secret is None:
        raise ApiError(404, "NotFound", f"Secret {key_secret} does not exist: the chart creates it")
    if kept := (secret.get("data") or {}).get(FILE):
        return InstallationKey(base64.b64decode(kept))
    patch = {
        "metadata": {"resourceVersion": secret["metadata"]["resourceVersion"]},
        "data": {FILE: base64.b64encode(entropy).decode()},
        "immutable": True,
    }
    await api.patch("Secret", namespace, name, patch)
    return InstallationKey(entropy)
