"""Make the environment: a venv with the pinned versions. `python scripts/environment.py FOLDER [--triton VERSION]`.

Where an NVIDIA driver answers, torch comes with CUDA as the registry has it; else the CPU build of constraints.txt."""

import argparse
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--triton", help="another version of Triton than the pinned one")
    given = parser.parse_args()
    if sys.version_info < (3, 11):
        sys.exit(f"rooftop needs Python 3.11 or later; this is {sys.version.split()[0]} (make run PYTHON=python3.12)")
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {line.partition("==")[0]: line for line in constraints if line and not line.startswith("#")}
    if has_driver():  # a CUDA build of torch, which brings the Triton and NVIDIA libraries that belong to it
        pins = {name: line for name, line in pins.items() if name not in ("torch", "triton") and not name.startswith("nvidia-cuda")}
    if given.triton:
        pins["triton"] = f"triton=={given.triton}"
    if not (given.folder / "bin" / "python").exists():
        print(f"making {given.folder} with Python {sys.version.split()[0]}", flush=True)
        venv.create(given.folder, with_pip=True)
    merged = given.folder / "constraints.txt"
    merged.write_text("\n".join(pins.values()) + "\n", encoding="utf-8")
    pip = [str(given.folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", str(merged)]
    # torch first and exactly: a range would let the resolver choose a build with CUDA where there is no GPU. compat: the clone is on the path, by a .pth
    # file; setuptools' other way, a finder, comes after the path, so that in the folder above a clone named rooftop `import rooftop` finds that folder.
    own = ["--config-settings", "editable_mode=compat", "-e", f"{ROOT}[dev]"]
    for step in (*([pins[n]] for n in ("torch", "triton") if n in pins), own):
        print(f"installing {step[-1].replace(str(ROOT), 'rooftop')}", flush=True)
        if subprocess.run([*pip, *step], check=False).returncode:
            newer = sys.version_info >= (3, 13)
            hint = f". The pinned versions are for Python 3.11 and 3.12, this is {sys.version.split()[0]}: make run PYTHON=python3.12" if newer else ""
            sys.exit(f"pip could not install {step[-1]}; its own message stands above{hint}")


def has_driver() -> bool:
    """Whether a driver answers: nvidia-smi is there and lists a GPU."""
    smi = shutil.which("nvidia-smi")
    return smi is not None and subprocess.run([smi, "-L"], capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    main()
