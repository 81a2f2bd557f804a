"""The families of models, one file for related ones. Importing this package adds them to `FAMILIES`."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
