"""`python -P -m a2rl.bundle`: the process that audits a bundle. See a2rl/bundle/confined.py."""

import sys

from a2rl.bundle.confined import main

if __name__ == "__main__":
    main(sys.stdin, sys.stdout)
