"""Puts what `a2rl init` copies into the wheel, as `a2rl/project/`; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["a2rl*"]), "a2rl.project"],
    package_dir={"a2rl.project": "."},
    script_name="setup.py",  # without it, this file counts as a module of a2rl.project
)
