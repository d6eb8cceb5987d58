"""Hand in a kernel, get a verdict and a place: docs/judge.md. `judging.judge` and `board.Board` are for other programs as well."""
