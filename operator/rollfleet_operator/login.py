"""Login to the API server: as the pod's ServiceAccount, else with a kubeconfig."""

import kopf

from rollfleet_operator.errors import ApiError


def login() -> kopf.ConnectionInfo:
    """Return the API server's address and credentials. It reads the files each time: tokens are rotated.

    Raises:
        ApiError: Neither a ServiceAccount nor a kubeconfig was found.
    """
    settings = kopf.OperatorSettings()
    found = kopf.login_with_service_account(settings=settings) or kopf.login_with_kubeconfig(settings=settings)
    if found is None:
        raise ApiError(0, "NoCredentials", "neither a ServiceAccount nor a kubeconfig was found; set KUBECONFIG")
    return found
