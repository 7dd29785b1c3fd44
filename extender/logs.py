"""How log events become lines on standard error: JSON for machines, or columns for a person.

An event is a constant `noun.past_verb`; what varies are fields. Importing this configures nothing.
"""

import logging
import sys
from typing import Literal

import structlog

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logs(level: Literal["debug", "info", "warning", "error"], form: Literal["json", "console"]) -> None:
    """From now on every event of `level` and above is a line on standard error."""
    last = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            structlog.processors.format_exc_info,
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
