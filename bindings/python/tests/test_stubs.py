"""The stubs name what the compiled module has, with the same parameters."""

import ast
import inspect
import pathlib

import shmccl
from shmccl import _core

STUBS = ast.parse((pathlib.Path(shmccl.__file__).parent / "_core.pyi").read_text())


def parameters(node):
    names = [argument.arg for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]]
    return [name for name in names if name != "self"]


def public(names):
    return {name for name in names if not name.startswith("_")}


def test_the_stubs_have_the_same_classes_and_functions():
    stubs = {node.name for node in STUBS.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    assert stubs == public(vars(_core))


def test_the_stubs_have_the_same_methods_with_the_same_parameters():
    for stub in [node for node in STUBS.body if isinstance(node, ast.ClassDef)]:
        kind = getattr(_core, stub.name)
        methods = {node.name: node for node in stub.body if isinstance(node, ast.FunctionDef)}
        fields = {node.target.id for node in stub.body if isinstance(node, ast.AnnAssign)}
        assert public(methods) | fields == public(vars(kind)), stub.name
        for name in public(methods):
            found = inspect.getattr_static(kind, name)
            if callable(found) or isinstance(found, staticmethod):
                found = [name for name in inspect.signature(getattr(kind, name)).parameters if name != "self"]
                assert found == parameters(methods[name]), f"{stub.name}.{name}"
