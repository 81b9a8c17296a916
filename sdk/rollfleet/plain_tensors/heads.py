"""Samples and log-probabilities without an object for a distribution: the arithmetic of torch and TorchRL, in order."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.distributions import AffineTransform, Categorical, ComposeTransform, Distribution, Independent, Normal
from torch.nn.functional import one_hot, softplus

from rollfleet.data.tensor_tree import key_of
from rollfleet.plain_tensors.known import changed
from rollfleet.plain_tensors.transforms import Values

Act: TypeAlias = Callable[[Values], object]
Choice: TypeAlias = tuple[Tensor, ...] | None
"""A sample, and its log-probability if it is due; None: the parameters are unusual."""

_BUILT_OF = (AffineTransform, Categorical, ComposeTransform, Independent, Normal)
_LOG_TWO, _LOG_ROOT = math.log(2), math.log(math.sqrt(2 * math.pi))


def head(module: Any, sizes: torch.Size, how: str | None, own: Act) -> Act | None:
    """Return what a probabilistic module does to the values of a step; None: it is unusual.

    `how`: the name of an InteractionType. `own`: does the same with TorchRL's own code.
    """
    kind, given, names = module.distribution_class, module.distribution_kwargs, [str(key) for key in module.dist_keys]
    name = f"{getattr(kind, '__module__', '').partition('.')[0]}.{getattr(kind, '__name__', '')}"
    translate, parameters, options = FAST.get(name, (None, [], {}))
    scored, drawn = module.return_log_prob, how == "random"
    if (
        translate is None
        or not (drawn or how == "deterministic")
        or sorted(names) != parameters
        or (scored and not (drawn and type(module).__name__ == "SafeProbabilisticModule"))
        or any(each is not None for each in (module.num_samples, module._generator, module._generator_key))
        or any(map(changed, (kind, *_BUILT_OF)))
        or Distribution._validate_args
        or type(given) is not dict
        or any(each not in options or options[each] not in (..., value) for each, value in given.items())
        or len(module.dist_sample_keys) != 1
    ):
        return None
    choose: Callable[..., Choice] = translate(kind.__name__, given, drawn, scored)
    keys = dict(zip(names, map(key_of, module.in_keys), strict=True))
    reads, writes = [keys[each] for each in parameters], [key_of(each) for each in module.out_keys]

    def act(values: Values) -> object:
        found = choose(*[values[key] for key in reads])
        return own(values) if found is None else values.update(zip(writes, found, strict=True))

    return act


def _normal(kind: str, given: dict[str, Any], drawn: bool, scored: bool) -> Callable[..., Choice]:
    """Translate IndependentNormal, Normal, and TanhNormal, whose samples stay within bounds."""
    squashed, summed = kind == "TanhNormal", kind != "Normal"
    low, high = (torch.as_tensor(given.get(*each), device="cpu") for each in (("low", -1.0), ("high", 1.0)))
    valid, whole = bool((high > low).all()), bool((high == 1.0).all() and (low == -1.0).all())
    centre, half = (high + low) / 2, (high - low) / 2
    jacobian = torch.abs(half).log()

    def choose(loc: Tensor, scale: Tensor) -> Choice:
        fits = whole or not half.ndim or half.shape == loc.shape[-half.ndim :]
        if loc.shape != scale.shape or loc.dtype is not scale.dtype or not (loc.is_cpu and loc.ndim and valid and fits):
            return None
        sample = before = loc + torch.randn(loc.shape, dtype=loc.dtype, device="cpu") * scale if drawn else loc
        if squashed:
            limit = 1.0 - torch.finfo(loc.dtype).resolution
            sample = torch.tanh(before).clamp(-limit, limit)
            sample = sample if whole else centre + half * sample
        if not scored:
            return (sample,)
        score = (before - loc).square().neg() / (2 * scale.square()) - scale.log() - _LOG_ROOT
        if summed:
            score = score.sum(-1)
        if squashed:
            change = 2 * (_LOG_TWO - before - softplus(-2 * before))
            score = score - (change if whole else change + jacobian.expand(change.shape)).sum(-1)
        return sample, score

    return choose


def _categorical(kind: str, given: dict[str, Any], drawn: bool, scored: bool) -> Callable[..., Choice]:
    """Translate Categorical, and OneHotCategorical, whose samples are one-hot."""
    hot = kind == "OneHotCategorical"

    def choose(logits: Tensor) -> Choice:
        if not logits.ndim or logits.shape[-1] == 1:
            return None
        logits = logits - logits.logsumexp(dim=-1, keepdim=True)
        if hot and not drawn:
            return ((logits == logits.max(-1, True)[0]).to(torch.long),)
        odds = torch.softmax(logits, -1)
        if not drawn:
            return (odds.argmax(-1),)
        index = torch.multinomial(odds.reshape(-1, odds.shape[-1]), 1, True).T.reshape(odds.shape[:-1])
        sample = one_hot(index, odds.shape[-1]) if hot else index
        return (sample, logits.gather(-1, index.unsqueeze(-1)).squeeze(-1)) if scored else (sample,)

    return choose


_BOUNDS = {"low": ..., "high": ..., "upscale": ..., "tanh_loc": False, "event_dims": 1, "safe_tanh": True}

FAST: dict[str, tuple[Callable[..., Any], list[str], dict[str, Any]]] = {
    "torchrl.TanhNormal": (_normal, ["loc", "scale"], _BOUNDS),
    "torchrl.IndependentNormal": (_normal, ["loc", "scale"], {"upscale": ..., "tanh_loc": ..., "event_dim": 1}),
    "torch.Normal": (_normal, ["loc", "scale"], {}),
    "torch.Categorical": (_categorical, ["logits"], {}),
    "torchrl.OneHotCategorical": (_categorical, ["logits"], {}),
    "tensordict.OneHotCategorical": (_categorical, ["logits"], {}),
}
"""By class: the translation, its parameters, and the options that it knows, each with the value that it must have, or
`...`: any."""
