"""The workbench: what things are (spec, registry, head, compile, records) and what is done to them (check, bench, report)."""
