"""`rooftop serve`: the judge, the board and the ladders in a browser."""
