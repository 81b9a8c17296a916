"""An episode of one environment as a GIF."""

from math import ceil
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.vector import VectorWrapper

from rollfleet.envs.factory import VectorEnv
from rollfleet.errors import RollfleetError

DEFAULT_FPS = 30  # of an environment that names none
SHORTEST_MS = 20  # viewers show a shorter picture for 100 ms


class GifRecorder(VectorWrapper):
    """Takes a picture of the first environment, which renders arrays, after each step, until `save`."""

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        self._images: list[Any] | None = []

    def step(self, actions: Any) -> Any:
        """Step the environments.

        Raises:
            RollfleetError: They make no pictures, or a package is missing for it.
        """
        outcome = self.env.step(actions)
        if self._images is not None:
            self._images.append(self._picture())
        return outcome

    def save(self, path: Path, frames: int) -> None:
        """Write the first pictures as a GIF at the environment's speed, and take no more.

        Raises:
            OSError: The file cannot be written.
        """
        frame_ms = 1000 / self.metadata.get("render_fps", DEFAULT_FPS)
        every = ceil(SHORTEST_MS / frame_ms)
        first, *rest = (self._images or [])[:frames:every]
        duration_ms = 10 * round(every * frame_ms / 10)  # a GIF counts hundredths of a second
        first.save(path, format="GIF", save_all=True, append_images=rest, duration=duration_ms, loop=0)
        self._images = None

    def _picture(self) -> Any:
        try:
            from PIL import Image

            rendered: Any = self.env.render()
        except (ImportError, gymnasium.error.Error) as error:
            raise RollfleetError(f"no picture of the environment: {error}; pip install 'rollfleet[local]'") from error
        except NotImplementedError:
            rendered = None
        if rendered is None or rendered[0] is None:
            raise RollfleetError("this environment makes no pictures; play without --gif")
        return Image.fromarray(rendered[0]).quantize(method=Image.Quantize.FASTOCTREE)  # a third of the memory
