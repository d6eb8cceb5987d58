"""What runs in a user's call: contracts, problems, heads, implementations, compilation, launches, dispatch and registration with torch."""
