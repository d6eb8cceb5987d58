"""The pages, and the tables in README and docs, made of the records."""
