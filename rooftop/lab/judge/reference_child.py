"""The process in which a reference of the judge's own runs: it draws inputs and says what is right. No submission is ever loaded here."""

from __future__ import annotations

import base64
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rooftop.core.child import Jobs


def held(t: Any) -> dict[str, Any]:
    from rooftop.core.spec import dtype_of

    import torch  # isort: skip

    t = t.detach().contiguous()
    data = base64.b64encode(t.reshape(-1).view(torch.uint8).numpy().tobytes()).decode() if t.numel() else ""
    return {"dtype": dtype_of(t.dtype), "shape": list(t.shape), "data": data}


def _smaller(names: dict[str, Any], most: int) -> dict[str, int]:
    """Halves the whole numbers of a file that its get_inputs and get_init_inputs name, the largest first, until a draw has at most `most`
    elements."""
    import torch

    used = {n for f in ("get_inputs", "get_init_inputs") if f in names for n in names[f].__code__.co_names}
    sizes = {n: v for n, v in names.items() if n in used and type(v) is int and v > 1}
    before = dict(sizes)
    while True:
        with torch.device("meta"):
            count = sum(t.numel() for t in names["get_inputs"]() if isinstance(t, torch.Tensor))
        largest = max(sizes, key=lambda n: sizes[n], default="")
        if count <= most or not largest or sizes[largest] < 2:
            return {n: v for n, v in sizes.items() if v != before[n]}
        sizes[largest] //= 2
        names.update(sizes)


class Reference:
    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.sizes: dict[str, int] = {}

    def answer(self, job: Mapping[str, Any]) -> dict[str, Any]:
        import torch

        from rooftop.core.backends.python_files import load_file

        if not self.names:
            self.names = vars(load_file(Path(job["kernel"])))
            if "get_inputs" not in self.names:
                raise ValueError(f"{job['kernel']} has no get_inputs(), which returns the arguments of a call as a list")
            self.sizes = _smaller(self.names, job["most"])
        torch.set_grad_enabled(False)
        torch.manual_seed(job["drawn"])
        arguments = list(self.names["get_inputs"]())
        if job["swap"]:
            for t in arguments:
                if isinstance(t, torch.Tensor) and t.is_floating_point() and t.numel() > 3:
                    flat = t.reshape(-1)
                    flat[[1, -2]] = flat[[-2, 1]].clone()
        made = list(self.names["get_init_inputs"]()) if "get_init_inputs" in self.names else []
        torch.manual_seed(job["seed"])
        function, state = self._function(job["function"], made)
        same = self._run(function, [_copy(a) for a in arguments])
        wide = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else _copy(a) for a in arguments]
        exact = self._run(function.double() if hasattr(function, "double") else function, wide)
        return {
            "arguments": [held(a) if isinstance(a, torch.Tensor) else a for a in arguments], "exact": [held(t) for t in exact],
            "same": [held(t) for t in same], "state": {n: held(t) for n, t in state.items()}, "made": made, "sizes": self.sizes,
        }

    def _function(self, name: str, made: list[Any]) -> tuple[Any, dict[str, Any]]:
        if name:
            if not callable(self.names.get(name)):
                raise ValueError(f"there is no function {name} in the reference")
            return self.names[name], {}
        if not inspect.isclass(self.names.get("Model")):
            raise ValueError("the reference has no class Model: name its function, as in FILE.py:NAME")
        model = self.names["Model"](*made).eval()
        return model, {n: t.clone() for n, t in model.state_dict().items()}

    def _run(self, function: Any, arguments: list[Any]) -> list[Any]:
        import torch

        made = function(*arguments)
        found = list(made) if isinstance(made, tuple | list) else [made]
        if not found or not all(isinstance(t, torch.Tensor) for t in found):
            raise ValueError("the reference returns something else than tensors")
        return found


def _copy(value: Any) -> Any:
    return value.clone() if hasattr(value, "clone") else value


def main() -> None:
    sys.path.append(str(Path.cwd()))
    reference = Reference()
    jobs = Jobs()
    for job in jobs:
        try:
            said = reference.answer(job)
        except BaseException as error:
            said = {"error": f"the reference raises {type(error).__name__}: {error}"}
        jobs.answer(said)


if __name__ == "__main__":
    main()
