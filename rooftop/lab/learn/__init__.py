"""The ladders as a course: lessons, predictions, questions and puzzles, made of what the tree holds and what is recorded of it."""
