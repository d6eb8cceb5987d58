"""What is measured and tried of the codecs: synthetic fields, ratios on them, damaged containers."""
