"""Environments of TorchRL over Gymnasium's, composed by hypothesis."""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
import torch
from hypothesis import strategies as st
from tests.sdk.plain_tensors.policies import ACTED, SEEN
from torch import nn
from torchrl.data import Unbounded
from torchrl.envs import (
    CatFrames,
    CatTensors,
    ClipTransform,
    Compose,
    DoubleToFloat,
    DTypeCastTransform,
    EndOfLifeTransform,
    ExcludeTransform,
    GrayScale,
    GymWrapper,
    InitTracker,
    NoopResetEnv,
    ObservationNorm,
    RenameTransform,
    Resize,
    RewardClipping,
    RewardScaling,
    RewardSum,
    SelectTransform,
    SerialEnv,
    SignTransform,
    SqueezeTransform,
    StepCounter,
    TensorDictPrimer,
    ToTensorImage,
    TransformedEnv,
    UnsqueezeTransform,
    VecNorm,
    VecNormV2,
)
from torchrl.envs.transforms import RNDTransform

BOX = gymnasium.spaces.Box(-3.0, 3.0, (SEEN,))
SPACES: dict[str, gymnasium.Space[Any]] = {
    "box": BOX,
    "double": gymnasium.spaces.Box(-3.0, 3.0, (SEEN,), np.float64),
    "dict": gymnasium.spaces.Dict(observation=BOX, pixels=gymnasium.spaces.Box(0, 255, (4, 4, 3), np.uint8)),
    "state": gymnasium.spaces.Dict(state=BOX),
}
GAINS: list[Callable[[float], Any]] = [
    float,
    np.float64,
    np.float32,
    int,
    lambda value: 0,
    lambda value: np.array(value),
]
FLAGS: list[Callable[[bool], Any]] = [bool, np.bool_]


class Varied(gymnasium.Env[Any, Any]):
    """Returns values of many types, some of them views of memory that it goes on to use."""

    def __init__(self, kind: str, gain: Callable[[float], Any], flag: Callable[[bool], Any], discrete: bool) -> None:
        self.observation_space = SPACES[kind]
        self.action_space = gymnasium.spaces.Discrete(ACTED) if discrete else gymnasium.spaces.Box(-0.5, 2.0, (ACTED,))
        self._kind, self._gain, self._flag, self._kept = kind, gain, flag, np.zeros(2 * SEEN)

    def _seen(self) -> Any:
        if self._kind == "double":
            self._kept[:] = self.np_random.normal(size=2 * SEEN)
            return self._kept[::-2] if self.np_random.random() < 0.5 else self._kept[:SEEN]
        observation = self.observation_space.sample()
        return {"state": observation["state"]} if self._kind == "state" else observation

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._left = int(self.np_random.integers(1, 6))
        return self._seen(), {}

    def lives(self) -> int:
        return self._left // 2

    def step(self, action: Any) -> Any:
        self._left -= 1
        gained = self._gain(float(np.sum(action)) + self.np_random.normal())
        ends = self._flag(self._left == 0 and bool(self.np_random.random() < 0.5))
        return self._seen(), gained, ends, self._flag(self._left == 0 and not ends), {}


OBS = ["observation"]
CHAIN: list[Callable[[], Any]] = [
    partial(StepCounter, 3),
    StepCounter,
    RewardSum,
    InitTracker,
    partial(DTypeCastTransform, torch.float32, torch.float64, OBS, ["double"]),
    partial(ClipTransform, OBS, low=-1, high=1),
    partial(ClipTransform, in_keys_inv=["action"], low=-0.1, high=0.1),
    partial(RewardClipping, -1, 1),
    partial(RewardScaling, 2.0, 3.0),
    partial(ObservationNorm, 1.0, 2.0, OBS, standard_normal=True),
    lambda: Compose(UnsqueezeTransform(-1, in_keys=OBS, out_keys=["wide"]), SqueezeTransform(-1, in_keys=["wide"])),
    partial(SignTransform, OBS),
    partial(CatFrames, 2, -1, OBS, ["framed"]),
    partial(VecNorm, OBS),
    partial(VecNorm, new_api=False),
    partial(VecNormV2, OBS, decay=0.9),
    partial(VecNormV2, ["observation", "reward"], ["normal", "gain"]),
    partial(NoopResetEnv, 2),
    lambda: TensorDictPrimer({"memo": Unbounded((2,))}, random=True),
    partial(CatTensors, OBS, "joined", del_keys=False),
    partial(RenameTransform, OBS, ["seen"], create_copy=True),
    lambda: Compose(UnsqueezeTransform(-1, in_keys=OBS, out_keys=["high"]), RenameTransform(["high"], ["renamed"])),
    partial(ExcludeTransform, "pixels"),
    partial(EndOfLifeTransform, eol_attribute="unwrapped.lives"),
    lambda: RNDTransform(nn.Linear(SEEN, 2), nn.Linear(SEEN, 2)),
    partial(SelectTransform, "observation", "step_count"),
]


PIXELS = ["pixels"]
IMAGES: list[Callable[[], Any]] = [partial(ToTensorImage, in_keys=PIXELS)]
if find_spec("torchvision"):
    IMAGES += [partial(GrayScale, in_keys=PIXELS), partial(Resize, 2, 3, in_keys=PIXELS)]


def single(kind: str, gain: Any, flag: Any, discrete: bool, skip: int, chain: list[Callable[[], Any]]) -> Any:
    env = GymWrapper(Varied(kind, gain, flag, discrete), frame_skip=skip)
    first = {"double": [DoubleToFloat], "dict": IMAGES}.get(kind, [])
    return TransformedEnv(env, Compose(*(make() for make in (*first, *chain)))) if chain or first else env


@st.composite
def makers(draw: Any) -> Callable[[], Any]:
    """Draw a function that makes an environment."""
    chains = st.lists(st.sampled_from(CHAIN), max_size=4, unique=True)
    kind, gain, flag = (draw(st.sampled_from(each)) for each in (sorted(SPACES), GAINS, FLAGS))
    make = partial(single, kind, gain, flag, draw(st.booleans()), draw(st.sampled_from([1, 1, 2])), draw(chains))
    if not draw(st.integers(0, 2)):
        inner, outer = make, draw(st.lists(st.sampled_from(CHAIN), max_size=2, unique=True))
        return lambda: TransformedEnv(SerialEnv(2, inner), Compose(*(each() for each in outer)))
    return make
