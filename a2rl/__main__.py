"""`python -m a2rl` is `a2rl`."""

from a2rl.cli import main

if __name__ == "__main__":
    main()
