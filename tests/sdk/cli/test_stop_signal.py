"""The first signal stops a command in order; later ones do not interrupt its clean-up."""

import asyncio
import signal

import pytest

from rollfleet.cli.stop_signal import until_signal


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_the_exit_code_is_that_of_the_first_signal(number: signal.Signals, code: int) -> None:
    cleaned = False

    async def work() -> int:
        nonlocal cleaned
        signal.raise_signal(number)
        try:
            await asyncio.Event().wait()
        finally:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(0)
            cleaned = True
        return 0

    assert await until_signal(work()) == code
    assert cleaned
