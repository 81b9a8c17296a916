"""How the operator gets in to the API server: as the pod's service account, else as a kubeconfig says."""

import kopf

from rollfleet_operator.errors import ApiError


def login() -> kopf.ConnectionInfo:
    """Where the API server is, and with what one gets in. Reads the files anew each time: tokens are rotated.

    Raises:
        ApiError: There is neither a service account nor a kubeconfig.
    """
    settings = kopf.OperatorSettings()
    found = kopf.login_with_service_account(settings=settings) or kopf.login_with_kubeconfig(settings=settings)
    if found is None:
        raise ApiError(0, "NoCredentials", "neither a service account nor a kubeconfig is here; set KUBECONFIG")
    return found
