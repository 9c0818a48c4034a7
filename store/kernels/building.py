"""From the kernels' source to object code: numba for the types, LLVM for this machine's processor.

Takes half a minute, imports numba, and is done by :mod:`store.kernels.compiling` alone.
"""

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numba
import numba.core.types

from . import source_casts, source_chunks, source_decode, source_words
from .image import RUNTIME
from .interface import ARGUMENTS, RESULTS, VARIANTS, symbol

types: Any = numba.core.types
cfunc: Any = numba.cfunc  # numba's own annotations know only a part of what it takes

_WORDS = {1: types.uint8, 2: types.uint16, 4: types.uint32, 8: types.uint64}
_OPTIMISATION = 3


def build() -> bytes:
    """All kernels for all widths, as one object file for this processor, which :mod:`store.kernels.linking` takes.

    Raises:
        RuntimeError: the code would need something at run time that other processes lack.
        Exception: whatever numba and LLVM raise where they do not work.
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=_features(),
        opt=_OPTIMISATION,
        reloc="pic",
        codemodel="small",
    )
    together = llvm.parse_assembly("")
    for name, width_bytes in VARIANTS:
        together.link_in(_compiled(name, width_bytes, machine))
    return bytes(machine.emit_object(together))


def _features() -> str:
    features: str = llvm.get_host_cpu_features().flatten()
    # LLVM shuns the widest vectors for fear of lower clocks; kernels are a quarter faster with them.
    return features + ",-prefer-256-bit" if "+avx512f" in features else features


def _compiled(name: str, width_bytes: int, machine: Any) -> Any:
    """One kernel for one width as a module of its own, with nothing else visible from outside."""
    function = cfunc(_signature(name, width_bytes), nopython=True, error_model="numpy")(_source(name))
    # numba links what a kernel calls beside it; only once that is inlined LLVM sees that nothing is ever raised.
    module = llvm.parse_assembly(function._library.get_llvm_str())  # noqa: SLF001 - numba has no other door to it
    for defined in _defined(module):
        if defined.name == function.native_name:
            defined.name = symbol(name, width_bytes)
        else:
            defined.linkage = "internal"
    _optimise(module, machine)
    needed = {one.name for one in module.functions if one.is_declaration and not one.name.startswith("llvm.")}
    if not needed.issubset(RUNTIME):
        raise RuntimeError(f"kernel {name} would need {sorted(needed.difference(RUNTIME))}")
    return module


def _source(name: str) -> Callable[..., object]:
    sources = {**vars(source_casts), **vars(source_decode), **vars(source_chunks), **vars(source_words)}
    source: Callable[..., object] = sources[name]
    return source


def _defined(module: Any) -> list[Any]:
    return [one for one in (*module.functions, *module.global_variables) if not one.is_declaration]


def _optimise(module: Any, machine: Any) -> None:
    options = llvm.create_pipeline_tuning_options(speed_level=_OPTIMISATION)
    options.loop_vectorization = options.slp_vectorization = True
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)


def _signature(name: str, width_bytes: int) -> Any:
    integer = types.int64
    kinds = {
        "w": types.CPointer(_WORDS[width_bytes]),
        "b": types.CPointer(types.uint8),
        "c": types.CPointer(types.int64),
        "t": types.CPointer(types.int32),
        "p": types.CPointer(types.CPointer(types.uint8)),
        "i": integer,
    }
    result = types.uint64 if name in RESULTS else types.void
    return result(*(kinds[letter] for letter in ARGUMENTS[name].split()))
