from rooftop.lab.cli import main

main()
