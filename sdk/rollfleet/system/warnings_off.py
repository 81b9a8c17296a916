"""Workers say nothing of what their libraries warn of, unless somebody asks: each would say it again."""

import warnings


def be_quiet() -> None:
    """Leave out warnings from now on, in this process."""
    import gymnasium

    warnings.simplefilter("ignore")
    gymnasium.logger.min_level = gymnasium.logger.ERROR
