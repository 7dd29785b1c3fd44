"""Records `make demo` as an SVG file, from what the command prints."""

import io
import os
import subprocess
import sys

from rich.console import Console
from rich.text import Text

COLUMNS = 108
_SECONDS = 60
# Replaces Rich's own frame, which loads a web font from another host.
_FRAME = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>What make demo prints</title>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace }}
.{unique_id}-matrix {{ font-size: {char_height}px; line-height: {line_height}px }}
.{unique_id}-title {{ font-family: system-ui, Arial, sans-serif; font-size: 18px; font-weight: bold }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix" xml:space="preserve">
{matrix}
</g>
</g>
</svg>
"""


def record_demo() -> str:
    """Returns the SVG file's text. Its ports and times differ from run to run.

    Raises CalledProcessError if the demo fails.
    """
    done = subprocess.run(
        [sys.executable, "-m", "testbed.demo"],
        env={**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)},
        check=True,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for line in done.stdout.splitlines():
        console.print(Text.from_ansi(line.rstrip()))
    drawn = console.export_svg(title="make demo", code_format=_FRAME, unique_id="demo")
    return "\n".join(line.rstrip() for line in drawn.splitlines()) + "\n"
