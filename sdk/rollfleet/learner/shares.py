"""Puts the shares of several workers together into one batch, in mode Sync."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from rollfleet.data.batch import MASK, check_alike, join, pad
from rollfleet.errors import JobInvalid
from rollfleet_api.job import CatResults

if TYPE_CHECKING:
    from tensordict import TensorDict


def together(shares: Sequence["TensorDict"], how: CatResults) -> "TensorDict":
    """One batch of the shares `[envs, T]` of the workers, in their order.

    A share that was cut short is padded to the longest: with zeros, trajectory id -1, and False in
    `("collector", "mask")`, which all shares then have.

    Args:
        shares: One of each worker, at least one.
        how: `Envs`: `[all envs, T]`. `Time`: `[envs, workers * T]`. `Stack`: `[workers, envs, T]`.

    Raises:
        JobInvalid: They differ in a key, dtype or shape, or in the number of environments where these must be alike.
    """
    if how is CatResults.ENVS:
        return join(shares)
    steps = max(share.shape[-1] for share in shares)
    if any(share.shape[-1] < steps for share in shares) or len({MASK in share.keys(True) for share in shares}) > 1:
        shares = [pad(share, steps) for share in shares]
    check_alike(shares)
    if len({share.shape[0] for share in shares}) > 1:
        raise JobInvalid(
            f"workers with {', '.join(str(share.shape[0]) for share in shares)} environments cannot be put together "
            f"along {how.value.lower()}; write cat_results 'envs', or trajs_per_batch 0"
        )
    if how is CatResults.TIME:
        return torch.cat(list(shares), dim=1)
    return torch.stack(list(shares), dim=0)
