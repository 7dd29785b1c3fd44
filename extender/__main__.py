"""`python -m extender` is `multiarch-extender`."""

from extender.cli.main import main

if __name__ == "__main__":
    main()
