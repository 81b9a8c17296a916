"""The first signal stops a program in order, a later one has its own reaction."""

import signal

import pytest

from rollfleet.cli.stop_signal import StopSignal


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_exit_code_is_that_of_the_first_signal(number: signal.Signals, code: int) -> None:
    calls: list[str] = []
    stop = StopSignal(lambda: calls.append("first"), lambda: calls.append("later"))
    assert (stop.number, stop.exit_code) == (None, 0)
    signal.raise_signal(number)
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGTERM)
    assert calls == ["first", "later", "later"]
    assert (stop.number, stop.exit_code) == (number, code)
