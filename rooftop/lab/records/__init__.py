"""What was measured and checked, as JSON lines."""
