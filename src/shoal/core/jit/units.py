"""Compilation units: machine code that is emitted once, and called by its name.

Numba links the code of every callee into every caller, then optimises and emits all of it, at each level of
calls again. Here a function is a *part*, which is typed and translated once and optimised only within the
units that it belongs to, or a *unit*, which is emitted once and called by its symbol. What Python calls is an
*entry*, a small unit that unpacks the arguments, made when Python first calls the function.

A symbol is named after a hash of all that its function reaches, as is its file in the cache: code with the
same name is the same code, in every process.
"""

import contextlib
import copy
import gc
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numba
from llvmlite import binding, ir

from shoal.core.jit import cache
from shoal.core.jit.reach import Reach

core: Any = numba.core
typed, untyped = core.typed_passes, core.untyped_passes

LARGE = 1500
"""Instructions, those of its parts included, from which on a function is a unit."""
PASSES: tuple[Any, ...] = (
    *(untyped.TranslateByteCode, untyped.FixupArgs, untyped.IRProcessing, untyped.GenericRewrites),
    *(untyped.InlineInlinables, untyped.ReconstructSSA, typed.NopythonTypeInference, typed.PreLowerStripPhis),
    *(typed.IRLegalization, typed.NativeLowering, typed.NoPythonBackend),
)
"""Those of Numba's passes that our own functions need, which have no closures and compute no whole arrays."""
ENVIRONMENT = "_ZN08NumbaEnv"
"""How the name begins of a variable through which a function finds Python's objects."""
UNRESOLVED = ".numba.unresolved$"
"""How Numba marks a function that is called before it is compiled: two functions that call each other."""
HIDDEN = "shoal."
"""How the names of functions begin that are called within one library only."""
FOREIGN = "numba.dynamic.globals.shoal"
"""A global variable with such a name tells Numba that the code makes no sense to another process."""
lock: Any = core.compiler_lock.global_compiler_lock
_libraries: dict[str, "Library"] = {}
_memory: dict[str, dict[Any, Any]] = {}


# Code


class Library(core.codegen.JITCodeLibrary):  # type: ignore[misc]
    """The code of a part, a unit or an entry."""

    def __init__(self, codegen: Any, key: str) -> None:
        super().__init__(codegen, key)
        self.enable_object_caching()
        self.key = key
        self.is_unit = False
        self.is_saved = False
        self.size = 0  # instructions
        self.uses_python = False
        self.environment: Any = None
        self.symbol = ""

    def add_linking_library(self, library: Any) -> None:
        """Note what the code calls; unlike Numba, do not emit it."""
        if not isinstance(library, Library):
            library._ensure_finalized()
        if library not in self._linking_libraries:
            self._linking_libraries.append(library)

    def add_ir_module(self, ir_module: Any) -> None:
        """Take in translated code."""
        for block in (block for each in ir_module.functions for block in each.blocks):
            self.size += len(block.instructions)
            for value in (value for each in block.instructions for value in each.operands):
                if isinstance(value, ir.GlobalVariable) and value.name.startswith(ENVIRONMENT):
                    self.uses_python = True
        super().add_ir_module(ir_module)

    def reached(self) -> tuple[list["Library"], list["Library"]]:
        """The parts that belong to this code, and the units that it or they call."""
        parts: list[Library] = []
        units: list[Library] = []
        waiting, seen = [self], {self}
        while waiting:
            for library in waiting.pop()._linking_libraries:
                if isinstance(library, Library) and library not in seen:
                    seen.add(library)
                    (units if library.is_unit else parts).append(library)
                    if not library.is_unit:
                        waiting.append(library)
        return parts, units

    def must_be_unit(self) -> bool:
        """Whether the code needs a variable of its own, or is called by functions that it calls itself."""
        return self.uses_python or self._is_bound() or self.symbol in self._codegen._rtlinker._unresolved

    def _is_bound(self) -> bool:
        """Whether the code makes sense to this process only."""
        variables = [each.name for each in self._final_module.global_variables]
        return any(name.startswith((UNRESOLVED, "numba.dynamic.globals")) for name in variables)

    def total_size(self) -> int:
        return self.size + sum(part.size for part in self.reached()[0])

    def absorb(self) -> None:
        """Take in those of Numba's own functions that the code calls."""
        module = self._final_module
        own = {each.name for each in module.functions if not each.is_declaration}
        for library in self._linking_libraries:
            if not isinstance(library, Library):
                offered = library._get_module_for_linking()
                wanted = {each.name for each in module.functions if each.is_declaration}
                if any(each.name in wanted for each in offered.functions if not each.is_declaration):
                    module.link_in(offered, preserve=True)
        self._hide(own)

    def _hide(self, visible: set[str]) -> None:
        """Make functions internal, so that unused ones vanish; but Numba looks for NRT's own by name.

        They get other names, too. Numba numbers its functions anew in each process, so namesakes may differ;
        and LLVM's engine, asked for a function of one module, would find its namesake in another.
        """
        for each in list(self._final_module.functions):
            if not each.is_declaration and each.name not in visible and not each.name.startswith("NRT_"):
                each.linkage = "internal"
                each.name = HIDDEN + each.name.removeprefix(HIDDEN)

    def emit(self, symbol: str) -> None:
        """Make this a unit: link its parts into it, optimise, and generate machine code."""
        for part in self.reached()[0]:
            self._final_module.link_in(part._final_module, preserve=True)
        self._hide({symbol})
        self._optimize_final_module()
        self.finish()
        self.is_unit, self.symbol = True, symbol

    def finish(self) -> None:
        """Hand the code to LLVM's engine."""
        _alive.append(self)  # the engine keeps the code, even if it is interrupted here, and asks for this
        self._finalize_final_module()

    def set_environment(self, description: Any, constants: Any) -> None:
        """Let a unit find the Python objects that it uses: to print, or to raise with values."""
        self.environment = core.lowering.Environment.from_fndesc(description)
        self.environment.consts[:] = constants
        self._codegen.set_env(description.env_name, self.environment)

    def can_be_saved(self) -> bool:
        """Whether another process could use the code, and all that it calls."""
        return not self._is_bound() and all(
            each.is_saved for libraries in self.reached() for each in libraries
        )

    # For functions that Numba itself compiles, and that call ours

    def finalize(self) -> None:
        """Nothing: a part is not emitted."""

    def _get_module_for_linking(self) -> Any:
        """The code of parts; units are found by their symbols, but by this process alone."""
        module = binding.parse_assembly(f'@"{FOREIGN}" = common global i8 0')
        for library in [] if self.is_unit else [self, *self.reached()[0]]:
            module.link_in(library._final_module, preserve=True)
            for name in [each.name for each in library._final_module.functions if not each.is_declaration]:
                module.get_function(name).linkage = "linkonce_odr"
        return module


_alive: list[Library] = []


class Saved(NamedTuple):
    """A library in the cache."""

    symbol: str
    is_unit: bool
    uses_python: bool
    size: int
    code: bytes  # machine code of a unit, bitcode of a part
    calls: list[str]  # keys of other libraries
    rest: bytes  # what is needed to call it, pickled


def save(library: Library, rest: Any) -> None:
    """Write a library to the cache, if other processes can use it."""
    if not library.can_be_saved():
        return
    code, calls = library._compiled_object, library.reached()[1]
    if not library.is_unit:
        code = library._final_module.as_bitcode()
        calls = [each for each in library._linking_libraries if isinstance(each, Library)]
    keys = [each.key for each in calls]
    try:
        packed = pickle.dumps(rest)
    except (pickle.PicklingError, AttributeError, TypeError):  # it involves a class that has no name
        return
    kind = library.symbol, library.is_unit, library.uses_python, library.size
    library.is_saved = cache.save(library.key, Saved(*kind, code, keys, packed))


def load(codegen: Any, key: str) -> tuple[Library, Any] | None:
    """Load a library and all that it calls; None, and nothing is loaded, if anything is missing.

    That comes first, because LLVM ends the process if it finds a symbol undefined.
    """
    found: dict[str, Saved] = {}
    if not _gather(key, found):
        return None
    try:
        rest = pickle.loads(found[key].rest)
    except Exception:  # of a class that is no longer there, for example
        return None
    for name, saved in found.items():
        if name not in _libraries:
            _libraries[name] = _revive(codegen, name, saved)
    return _libraries[key], rest


def _gather(key: str, found: dict[str, Saved]) -> bool:
    """Read the entry of a library after those of all that it calls."""
    if key in found:
        return True
    saved = cache.load(key)
    if saved is None or not all(name in _libraries or _gather(name, found) for name in saved.calls):
        return False
    found[key] = saved
    return True


def _revive(codegen: Any, key: str, saved: Saved) -> Library:
    library = Library(codegen, key)
    library.symbol, library.size, library.is_unit, library.is_saved = (
        saved.symbol,
        saved.size,
        saved.is_unit,
        True,
    )
    for name in saved.calls:
        library.add_linking_library(_libraries[name])
    if not saved.is_unit:
        library._final_module = binding.parse_bitcode(saved.code)
        return library
    library._set_compiled_object(saved.code)
    library.finish()
    codegen._engine._defined_symbols.add(saved.symbol)
    if saved.uses_python:
        library.set_environment(*pickle.loads(saved.rest)[:2])
    return library


# Numba's compiler


class Memory:
    """Numba's typing, which finds once what `a[i]` or `x + y` means for given types, not at every place."""

    def __init__(self, context: Any, flags: Any) -> None:
        self._context = context
        self._found = _memory.setdefault(flags.summary(), {})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def resolve_function_type(self, function: Any, args: Any, kws: Any) -> Any:
        """The signature of a call."""
        if not isinstance(function, core.types.Function):
            return self._context.resolve_function_type(function, args, kws)
        call = function, tuple(args), tuple(kws.items())
        if (found := self._found.get(call)) is None:
            found = self._found[call] = self._context.resolve_function_type(function, args, kws)
        return found


class Compiler(core.compiler.CompilerBase):  # type: ignore[misc]
    """Numba's compiler, up to LLVM's language, with names of our own."""

    def __init__(self, key: str, context: Any, target: Any, library: Any, *more: Any) -> None:
        args, return_type, flags, variables = more
        super().__init__(Memory(context, flags), target, library, args, return_type, flags, variables)
        flags.no_compile = True
        self.state.library = Library(target.codegen(), key)

    def compile_extra(self, function: Any) -> Any:
        """Compile a function under the name of its key instead of a number of this process."""
        identity = core.bytecode.FunctionIdentity.from_function(function)
        identity.unique_id = self.state.library.key.rpartition("-")[2]
        identity.unique_name = f"{identity.func_qualname}${identity.unique_id}"
        self.state.func_id = identity
        untyped.ExtractByteCode().run_pass(self.state)
        self.state.lifted, self.state.lifted_from = (), None
        return self._compile_bytecode()

    def _compile_core(self) -> Any:
        state = self.state
        if state.func_id.modname.partition(".")[0] != "shoal":
            return super()._compile_core()
        # Numba checks and tidies up between any two passes, which takes as long as the passes do.
        with core.targetconfig.ConfigStack().enter(state.flags.copy()):
            for each in PASSES:
                each().run_pass(state)
        state.pipeline = None
        return state.cr

    def define_pipelines(self) -> list[Any]:
        """All passes of Numba, for functions of other packages."""
        return [core.compiler.DefaultPassBuilder.define_nopython_pipeline(self.state)]


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """One thread compiles, without garbage collection: there is much to traverse and little to free."""
    with lock, _interrupts:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()


class _Interrupts:
    """Ctrl-C between two functions, instead of at any moment: some moments Numba does not survive."""

    def __init__(self) -> None:
        self._depth = 0
        self._handler: Any = None  # the one that is put off
        self._waiting = False

    def __enter__(self) -> None:
        if self._depth == 0 and threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler = handler
                signal.signal(signal.SIGINT, self._put_off)
        self._depth += 1
        try:
            self._deliver()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            try:
                self._deliver()
            finally:
                self._handler = None

    def _put_off(self, number: int, frame: Any) -> None:
        self._waiting = True

    def _deliver(self) -> None:
        if self._waiting:
            self._waiting = False
            self._handler(signal.SIGINT, None)


_interrupts = _Interrupts()

if hasattr(os, "register_at_fork"):  # a child in which nobody could ever release the lock would hang
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


# What the decorators make of a function


class Kernel(core.registry.CPUDispatcher):  # type: ignore[misc]
    """A compiled function."""

    def __init__(self, py_func: Any, locals: Any = None, targetoptions: Any = None) -> None:
        super().__init__(
            py_func, locals, {"nopython": True, "no_cpython_wrapper": True, **(targetoptions or {})}
        )
        self._entries: dict[Any, Any] = {}
        self._is_called = False

    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        with lock:  # until `compile` has read the flag
            self._is_called = True
            try:
                return super()._compile_for_args(*args, **kws)
            finally:
                self._is_called = False

    def compile(self, sig: Any) -> Any:
        """Load or compile the function for these types; return the entry to Python, or else a handle."""
        with _compiling():
            is_called, self._is_called = self._is_called, False
            args = tuple(core.sigutils.normalize_signature(sig)[0])
            if args not in self.overloads:
                self.overloads[args] = self._load_or_compile(args)
            if is_called and args not in self._entries:
                entry = self._entries[args] = self._make_entry(self.overloads[args])
                self._insert([arg._code for arg in args], entry, False)
            return self._entries[args] if is_called else self.overloads[args].entry_point

    def _load_or_compile(self, args: Any) -> Any:
        self.targetctx.refresh()  # which prepares Numba's runtime, the first time
        reach = Reach(self.py_func, args)
        options = sorted(self.targetoptions.items())
        name = f"{self.py_func.__module__}.{self.py_func.__qualname__}"
        key = cache.key(name, f"{reach.digest} {options}", self.targetctx.codegen().magic_tuple())
        loaded = load(self.targetctx.codegen(), key)
        counts = self._cache_misses if loaded is None else self._cache_hits
        counts[args] += 1
        if loaded is not None:
            return self._take(args, *loaded)
        details = {"dispatcher": self, "args": args, "return_type": None, "reach": reach}
        with self._compiling_counter, core.event.trigger_event("numba:compile", data=details):
            self._compiler.pipeline_class = partial(Compiler, key)
            result = self._compiler.compile(args, None)
            library, description, constants = result.library, result.fndesc, result.environment.consts
            library.symbol = description.llvm_func_name
            library.absorb()
            if library.must_be_unit() or library.total_size() >= LARGE:
                library.emit(library.symbol)
            if library.uses_python:
                library.set_environment(description, constants)
            rest = _portable(description), constants, result.signature.return_type
            save(library, rest)
            _libraries[key] = library
        return self._take(args, library, rest)

    def _take(self, args: Any, library: Library, rest: Any) -> Any:
        """Let compiled code call a library's function."""
        description, _, return_type = rest
        description.argtypes, description.restype = args, return_type
        description.global_dict = self.py_func.__globals__
        environment = core.lowering.Environment.from_fndesc(description)
        context, handle = self.targetctx, object()
        context.insert_user_function(handle, description, [library])
        return core.compiler.compile_result(
            typing_context=context.typing_context,
            target_context=context,
            entry_point=handle,
            library=library,
            signature=core.typing.signature(return_type, *args),
            objectmode=False,
            lifted=(),
            fndesc=description,
            environment=environment,
            reload_init=(),
        )

    def _make_entry(self, result: Any) -> Any:
        description, environment = result.fndesc, result.environment
        key = f"{result.library.key}-entry"
        loaded = load(self.targetctx.codegen(), key)
        if loaded is None:
            flags = core.compiler.Flags()
            self.targetdescr.options.parse_as_flags(flags, self.targetoptions)
            context = core.compiler._make_subtarget(self.targetctx, flags)
            library = Library(context.codegen(), key)
            with core.targetconfig.ConfigStack().enter(flags), context.push_code_library(library):
                library.add_linking_library(result.library)
                context.create_cpython_wrapper(
                    library, description, environment, None, release_gil=flags.release_gil
                )
                context.post_lowering(None, library)
            library.absorb()
            library.emit(description.llvm_cpython_wrapper_name)
            save(library, (_portable(description), environment.consts))
            _libraries[key] = library
        return self.targetctx.get_executable(_libraries[key], description, environment)


def _portable(description: Any) -> Any:
    """A description without what the process that loads it knows better: types, and the module's names."""
    kept = copy.copy(description)
    kept.typemap = kept.calltypes = kept.argtypes = kept.restype = kept.global_dict = None
    return kept
