"""What every test starts from: where the repository is, and how hypothesis searches."""

import os
import signal
import sys
from pathlib import Path

import hypothesis
import pytest

# No deadline: a slow example on a busy machine proves nothing. In CI the search is the same each time, so that a
# failure is the change's fault; on a desk it keeps exploring.
hypothesis.settings.register_profile("desk", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "desk")

# A process that a test starts finds the tests' own environments and policies by name. At the end of the path, never at
# its front: the repository's folder `operator` has the name of a module of the standard library.
sys.path.append(str(Path(__file__).parents[1]))

# A job in the background of a shell that is a script ignores Ctrl-C, and so would each program that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).parents[1]
