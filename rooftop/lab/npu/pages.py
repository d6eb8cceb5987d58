from pathlib import Path
def outdated() -> list[Path]: return []
def update() -> list[Path]: return []
