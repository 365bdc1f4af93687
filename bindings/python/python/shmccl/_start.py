"""How the processes of `launch` start: whether fresh ones find what they are given, and how they take it."""

import ast
import io
import multiprocessing.context
import multiprocessing.process
import multiprocessing.spawn
import os
import pickle
import sys
import types
from multiprocessing.reduction import ForkingPickler


class _References(pickle.Pickler):
    """Pickles into nothing, and notes the functions and classes that a fresh process has to find."""

    def __init__(self):
        super().__init__(_Nowhere(), pickle.HIGHEST_PROTOCOL)
        self.found = []

    def reducer_override(self, value):
        if isinstance(value, type | types.FunctionType):
            self.found.append(value)
        return NotImplemented


class _Nowhere(io.RawIOBase):
    def write(self, data):
        return len(data)


def missing(work):
    """Returns why a fresh process does not find all of `work`; None where it does."""
    references = _References()
    try:
        references.dump(work)
    except RuntimeError:
        # Locks and queues go along with a process that starts, and not otherwise.
        return None
    except Exception as error:
        return f"what it is given cannot be pickled ({error})"
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    if path is not None and _module_of(main) is None and not os.path.exists(path):
        return f"this program is no file that a fresh process could run ({path})"
    names = None
    for value in references.found:
        module = getattr(value, "__module__", None)
        if module != "__main__":
            if getattr(sys.modules.get(module), "__spec__", main) is None:
                return f"the module {module} of {value.__qualname__} is no file that a fresh process could import"
            continue
        names = _names_of(main) if names is None else names
        name = value.__qualname__.split(".")[0]
        if name not in names and "*" not in names:
            return f"{value.__qualname__} is not at the top of a file, so that a fresh process would not find it"
    return None


def _module_of(main):
    """Returns the name by which `python -m` has found the program; None for a path."""
    return getattr(getattr(main, "__spec__", None), "name", None)


def _names_of(main):
    """Returns the names that the program has in a fresh process, where `__name__` is not "__main__"."""
    path, module = getattr(main, "__file__", None), _module_of(main)
    # The module `__main__` of a package is left out there.
    if path is None or module is not None and module.split(".")[-1] == "__main__":
        return set()
    try:
        with open(path, "rb") as source:
            statements = ast.parse(source.read()).body
    except (OSError, SyntaxError, ValueError):
        return set()
    return set(_bound(statements)) - set(_bound(_guarded(statements)))


def _guarded(statements):
    return [inner for statement in statements if _is_guard(statement) for inner in statement.body]


def _is_guard(statement):
    """Returns whether it is `if __name__ == "__main__":`."""
    if not (isinstance(statement, ast.If) and isinstance(statement.test, ast.Compare)):
        return False
    compared = ast.unparse(statement.test).replace('"', "'")
    return compared in ("__name__ == '__main__'", "'__main__' == __name__")


def _bound(statements):
    """Gives the names that `statements` bind; `*` where they may be any."""
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.split(".")[0] for alias in statement.names)
        elif _is_guard(statement):
            yield from _bound(statement.orelse)
        else:
            yield from _bound_within(statement)


def _bound_within(statement):
    for node in ast.iter_child_nodes(statement):
        if isinstance(node, ast.stmt):
            yield from _bound([node])
        elif isinstance(node, ast.excepthandler | ast.match_case):
            yield from _bound(node.body)
        else:
            stored = (inner for inner in ast.walk(node) if isinstance(inner, ast.Name))
            yield from (inner.id for inner in stored if isinstance(inner.ctx, ast.Store))


class Work:
    """What a rank does, on its way to the process: it is unpacked there by the rank's own code, which tells failures."""

    def __init__(self, work):
        self._work = work
        self._program = sys.modules["__main__"]
        self._main = None

    def __reduce__(self):
        # Within the start of a process, where locks and queues can be pickled.
        hidden, sys.modules["__main__"] = sys.modules["__main__"], self._program
        try:
            return _Packed, (bytes(ForkingPickler.dumps(self._work)), self._main)
        finally:
            sys.modules["__main__"] = hidden

    def begin(self, process):
        """Starts `process`. In a fresh one the program is run as the work is unpacked, and not before."""
        if isinstance(process, multiprocessing.context.ForkProcess):
            process.start()
            return
        self._main = multiprocessing.spawn.get_preparation_data("")
        # What has no file is not run before.
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            process.start()
        finally:
            sys.modules["__main__"] = self._program

    def unpacked(self):
        return self._work


class _Packed:
    """The work of a fresh process."""

    def __init__(self, work, main):
        self._work, self._main = work, main

    def unpacked(self):
        """Runs the program as far as a fresh process does, and unpacks the work."""
        process = multiprocessing.process.current_process()
        process._inheriting = True
        try:
            if "init_main_from_name" in self._main:
                multiprocessing.spawn._fixup_main_from_name(self._main["init_main_from_name"])
            elif "init_main_from_path" in self._main:
                multiprocessing.spawn._fixup_main_from_path(self._main["init_main_from_path"])
            return pickle.loads(self._work)
        finally:
            del process._inheriting
