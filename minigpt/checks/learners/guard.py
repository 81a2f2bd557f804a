"""What a checked program may not do: change files outside its folder, start processes, send, take all memory or time.

Python reports what it does by audit events; the writers of torch and others that report nothing are wrapped. Where
Linux has Landlock, the kernel refuses too, whichever library writes (`system/limits.py`). Nothing can be undone: guard
a process that does nothing else.

This stops accidents and pranks. It is no sandbox for untrusted code: what C code does by itself is refused where there
is Landlock alone, and there not UDP and the permissions of files. Windows has no limits of time and memory either.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

from minigpt.system.limits import landlock, limit_resources, start_no_process
from minigpt.system.machine import folder_path

STARTS = {"os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "os.system",
          "subprocess.Popen", "pty.spawn", "_winapi.CreateProcess"}  # fmt: skip
SENDS = {"os.kill", "os.killpg", "signal.pthread_kill", "socket.connect", "socket.bind", "socket.sendto",
         "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname"}  # fmt: skip
CHANGES = {"os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink",
           "os.truncate", "os.utime", "os.setxattr", "shutil.move", "shutil.rmtree", "sqlite3.connect"}  # fmt: skip
REFUSED = {
    **dict.fromkeys(STARTS, "start processes"),
    **dict.fromkeys(SENDS, "send signals or use the network"),
    **dict.fromkeys(("resource.setrlimit", "resource.prlimit"), "change its limits"),
}
WITHOUT_FOLDER = {"os.truncate", "os.setxattr"}  # the last argument of the other CHANGES may be an open folder
WRITERS = (  # they write without an audit event; an argument that is a path must lie in the folder
    "torch._C:PyTorchFileWriter", "torch.jit:save", "torch.jit:ScriptModule.save", "torch:from_file",
    "torch.jit:RecursiveScriptModule.save", "torch:UntypedStorage.from_file", "torch.distributed:FileStore",
    "torch.autograd.profiler:profile.export_chrome_trace", "torch.profiler:ExecutionTraceObserver.register_callback",
    "safetensors:serialize_file", "safetensors.torch:serialize_file", "os:mkfifo", "os:mknod",
)  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
OUTSIDE = "a checked file may not write outside its own folder"


def guard(folder: Path, processor_seconds: int, memory: int) -> None:
    """Confine this process to a folder, and to so much time and so many bytes more than now, from now on."""
    root = os.path.realpath(folder)
    limit_resources(processor_seconds, memory)
    for place in WRITERS:
        with suppress(ImportError, AttributeError):  # this version has no such writer
            wrap(place, root)
    start_no_process(lambda: refuse("start processes"))  # as multiprocessing does, without an audit event
    landlock(root)
    sys.addaudithook(hook(root))


def refuse(action: str) -> NoReturn:
    """Raises PermissionError."""
    raise PermissionError(f"a checked file may not {action}")


def check_inside(root: str, path: Any, base: str = ".") -> None:
    """Raises PermissionError for a path that leads out of the folder."""
    place = os.path.realpath(os.path.join(os.fsencode(base), os.fsencode(path)))
    if not place.startswith(os.fsencode(root + os.sep)) and place != os.fsencode(os.devnull):
        raise PermissionError(OUTSIDE)


def hook(root: str) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that raises PermissionError for what no checked file needs. Python cannot remove audit hooks."""

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & WRITING and not isinstance(path, int):
                check_inside(root, path)
        elif event in CHANGES:
            if event == "sqlite3.connect" and arguments[0] in ("", ":memory:"):
                return
            last = -1 if event in WITHOUT_FOLDER else arguments[-1]
            base = folder_path(last) if isinstance(last, int) and last >= 0 else "."
            for path in arguments:
                if isinstance(path, (str, bytes, os.PathLike)):
                    check_inside(root, path, base)
        elif event in REFUSED:
            refuse(REFUSED[event])

    return look


def wrap(place: str, root: str) -> None:
    """Let a function check each argument that is a path. Raises ImportError or AttributeError if there is none."""
    name = place.replace(":", ".").rpartition(".")[2]
    owner = pkgutil.resolve_name(place.removesuffix(name).rstrip(".:"))
    function = getattr(owner, name)

    @wraps(function, updated=())
    def checked(*arguments: Any, **named: Any) -> Any:
        for one in (*arguments, *named.values()):
            if isinstance(one, (str, bytes, os.PathLike)):
                check_inside(root, one)
        return function(*arguments, **named)

    is_method = isinstance(owner, type) and hasattr(function, "__code__")
    setattr(owner, name, checked if is_method or not isinstance(owner, type) else staticmethod(checked))
