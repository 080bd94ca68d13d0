"""What is played, on what, and through which layers."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from . import _bimetal
from ._bimetal import Error

Value = str | bool | int | float
"""A value that a key can be set to."""

_POLICY = "cache.policy"
# What stands for a policy written in Python where a text must name one.
_STAND_IN = "lru"


class Stack:
    """A stack, as a stack file of the command has it.

    ``Stack("stack.toml")`` reads a file, ``Stack("[cache]\\npolicy = ...")`` takes a text (what has a line end or a ``=``
    is one), and ``Stack(cache={"policy": "lru", "size": "16MiB"}, seed=2)`` has the same keys as arguments. A table
    may also be written as one argument a key with its tables in front: ``Stack(**{"cache.size": "16MiB"})``. The keys
    and what they mean are those of ``docs/stack.md``; sizes have a unit.

    The policy of the page cache may be a class: see :class:`bimetal.Policy`.

    Raises :class:`bimetal.Error` for what the file, the text or the arguments cannot say, and :class:`OSError` if the
    file cannot be read.
    """

    def __init__(self, source: str | os.PathLike[str] | None = None, /, **keys: Any) -> None:
        self._settings: list[tuple[str, str]] = []
        self._policy: tuple[Callable[[int], Any], str] | None = None
        if source is not None and keys:
            raise TypeError("Stack: a file or a text, or keys as arguments; change what a file says with set()")
        later: dict[str, Any] = {}
        if source is None:
            tables, later = self._taken(keys)
            self._source = ("Stack(...)", _toml(tables))
        elif isinstance(source, str) and ("\n" in source or "=" in source):
            self._source = ("stack", source)
        else:
            # It says what is wrong with a file; what is no text is none.
            name = _bimetal.StackText.read(source).name
            with open(source, encoding="utf-8") as file:
                self._source = (name, file.read())
        self._text = _bimetal.StackText.parse(*self._source)
        for key, value in later.items():
            self.set(key, value)

    def _taken(self, keys: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arguments that are tables, with a policy written in Python taken out, and those that are single keys."""
        tables = {key: value for key, value in keys.items() if "." not in key}
        cache = tables.get("cache")
        if isinstance(cache, Mapping) and callable(cache.get("policy")):
            self._policy = _named(cache["policy"])
            tables["cache"] = {**cache, "policy": _STAND_IN}
        return tables, {key: value for key, value in keys.items() if "." in key}

    def set(self, key: str, value: Value | Callable[[int], Any]) -> Stack:
        """Sets a key, its tables in front, and returns the stack: ``stack.set("cache.size", "16MiB")``.

        Raises :class:`bimetal.Error` for a key that there is not or a value that does not fit; then nothing is changed.
        """
        policy = self._policy
        if key == _POLICY or key.startswith(_POLICY + "."):
            policy = None
        if callable(value):
            if key != _POLICY:
                raise TypeError(f"{key}: a class or function can only be {_POLICY}")
            policy, value = _named(value), _STAND_IN
        settings = [(there, text) for there, text in self._settings if there != key]
        settings.append((key, _setting(key, value)))
        self._text.config(_texts(settings))
        self._settings, self._policy = settings, policy
        return self

    def copy(self) -> Stack:
        """Another stack that says the same."""
        other = Stack.__new__(Stack)
        other.__setstate__(self.__getstate__())
        return other

    def __getstate__(self) -> tuple[Any, ...]:
        return self._source, list(self._settings), self._policy

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._source, self._settings, self._policy = state
        self._text = _bimetal.StackText.parse(*self._source)

    def config(self) -> dict[str, Any]:
        """All that it says, with every default filled in that does not depend on who reads it; sizes in bytes."""
        config: dict[str, Any] = json.loads(self._text.config(_texts(self._settings)))
        if self._policy is not None:
            config["cache"]["policy"] = self._policy[1]
        return config

    def __repr__(self) -> str:
        settings = "".join(f".set({key!r}, {text!r})" for key, text in self._settings)
        return f"<bimetal.Stack {self._text.name}{settings}>"


def _named(policy: Callable[[int], Any]) -> tuple[Callable[[int], Any], str]:
    """A policy written in Python, and what reports call it."""
    name = getattr(policy, "__name__", None) or type(policy).__name__
    inner = getattr(policy, "func", None)
    if inner is not None:  # functools.partial
        name = getattr(inner, "__name__", name)
    return policy, f"python:{name}"


def _texts(settings: list[tuple[str, str]]) -> list[str]:
    return [f"{key}={text}" for key, text in settings]


def _setting(key: str, value: Any) -> str:
    """A value as ``--set`` writes it: what has a comma is quoted."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        return f'"{value}"' if "," in value and not value.startswith('"') else value
    if hasattr(value, "item"):  # a number of NumPy
        value = value.item()
    if isinstance(value, (int, float)):
        return _number(value)
    raise TypeError(f"{key}: a value is text, a number, True or False, not {type(value).__name__}")


def _number(value: float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return repr(value)


def _toml(tables: Mapping[str, Any]) -> str:
    """Arguments as TOML: a table a line-up of keys, what is deeper in one line."""
    lines = [f"{_key(key)} = {_toml_value(key, value)}" for key, value in tables.items() if not _is_table(value)]
    for name, table in tables.items():
        if _is_table(table):
            lines.append(f"[{_key(name)}]")
            lines += [f"{_key(key)} = {_toml_value(f'{name}.{key}', value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _key(key: str) -> str:
    plain = key and all(c.isascii() and (c.isalnum() or c in "-_") for c in key)
    return key if plain else json.dumps(key)


def _toml_value(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, (int, float)):
        return _number(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_toml_value(f'{key}.{k}', v)}" for k, v in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml_value(key, item) for item in value) + "]"
    raise Error(f"{key}: {value!r} is a {type(value).__name__}; a value is text, a number, True, False, a table or a list")
