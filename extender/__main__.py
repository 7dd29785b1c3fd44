"""`python -m extender` is `multiarch-extender`. A frozen program is its own interpreter, by which a fetcher starts."""

import sys

from extender.cli.main import main

if __name__ == "__main__":
    if getattr(sys, "frozen", False) and sys.argv[1:3] == ["-m", "extender.fetcher"]:
        from extender.fetcher.fetcher_process import run  # nothing else here needs what it imports

        run(int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
