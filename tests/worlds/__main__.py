"""`python -m tests.worlds`: see `run`."""

import sys

from tests.worlds.run import main

sys.exit(main())
