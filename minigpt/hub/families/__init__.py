"""The families, a file for those that came of one: importing this enters them into `FAMILIES`."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
