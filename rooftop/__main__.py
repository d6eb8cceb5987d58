"""`python -m rooftop`: the command line."""

import sys

try:
    from rooftop.lab.cli import main
except KeyboardInterrupt:
    sys.exit(130)
main()
