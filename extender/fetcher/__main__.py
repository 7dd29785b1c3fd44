"""`python -m extender.fetcher DESCRIPTOR PARENT`: a fetcher for the process that has the socket's other end."""

import sys

import extender.logs  # noqa: F401 - before all that logs
from extender.fetcher.fetcher_process import run

if __name__ == "__main__":
    run(int(sys.argv[1]), int(sys.argv[2]))
