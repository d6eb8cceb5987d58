"""`python -m rooftop`: the command line."""

from rooftop.lab.cli import main

main()
