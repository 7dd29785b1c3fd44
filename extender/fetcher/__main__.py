"""`python -m extender.fetcher DESCRIPTOR`: a fetcher for the service that has the socket's other end."""

import sys

from extender.fetcher.fetcher_process import run

if __name__ == "__main__":
    run(int(sys.argv[1]))
