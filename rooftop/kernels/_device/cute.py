"""Where the CuTe DSL kernels import `cute` and `cutlass` from. In the process that compiles them these are the real modules; elsewhere
placeholders, so that the files, with decorators and annotations, can be imported without the language."""

from typing import Any

from rooftop.core.backends.present import language


class Absent:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self._name}.{name}")

    def __call__(self, function: Any, *rest: Any, **more: Any) -> Any:
        if rest or more or not callable(function) or isinstance(function, Absent):
            raise AttributeError(
                f"{self._name} is there only while a kernel is compiled; use it inside kernels, to decorate and to annotate alone"
            )
        return function

    def __repr__(self) -> str:
        return self._name


cute: Any = language("cute", Absent("cute"))
cutlass: Any = language("cutlass", Absent("cutlass"))
