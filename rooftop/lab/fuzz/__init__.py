"""Random calls through the public functions, judged by the contracts. `drafts` draws them, `judge` runs one, `campaign` runs many and
shrinks what fails."""
