"""The register of kinds of fleet. A kind is a name and a function that builds a case from a seed."""
import fnmatch
import importlib
import os
import random

REGISTER = {}
HEALTHY = set()


def add(name, build, healthy=False):
    assert name not in REGISTER, name
    REGISTER[name] = build
    if healthy:
        HEALTHY.add(name)


def kind(name, healthy=False, **options):
    """Registers a function of (random numbers, seed, **options) under a name."""
    def register(function):
        add(name, lambda seed: build(function, name, seed, options), healthy)
        return function
    return register


def build(function, name, seed, options):
    text = "%s/%d" % (name, seed)
    return function(random.Random(text), text, **options)


def family(template, rows, healthy=False):
    """Registers one function many times: rows are dicts of options that fill the template of the name."""
    def register(function):
        for options in rows:
            shown = {k: getattr(v, "name", v) or getattr(v, "device", v) for k, v in options.items()}
            name = template.format(**{k: str(v).lower().replace(" ", "-") for k, v in shown.items()})
            kind(name, healthy, **options)(function)
        return function
    return register


def load():
    here = os.path.dirname(os.path.abspath(__file__))
    for file in sorted(os.listdir(here)):
        if file.startswith("kinds_") and file.endswith(".py"):
            importlib.import_module(file[:-3])
    return REGISTER


def chosen(globs, every=1):
    names = sorted(load())
    return [n for n in names if any(fnmatch.fnmatch(n, g) for g in (globs or ["*"]))][::every]


def make(name, seed):
    return REGISTER[name](seed)
