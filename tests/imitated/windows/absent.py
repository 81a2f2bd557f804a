"""What Python has on Linux and not on Windows: modules, and names in modules."""

import re

MODULES = (
    "fcntl",
    "grp",
    "posix",
    "pty",
    "pwd",
    "resource",
    "syslog",
    "termios",
    "tty",
    "_posixsubprocess",
)
OF_OS = """
    chown chroot confstr copy_file_range ctermid environb eventfd\\w* fchdir fchmod fchown fdatasync fork\\w* fpathconf
    fstatvfs fwalk get_blocking getegid getenvb geteuid getgid getgrouplist getgroups getloadavg getpgid getpgrp
    getpriority getrandom getresgid getresuid getsid getuid getxattr initgroups killpg lchown listxattr lockf login_tty
    major makedev memfd_create minor mkfifo mknod nice openpty pathconf pidfd_open pipe2 posix_\\w+ pread\\w* pwrite\\w*
    readv removexattr register_at_fork sched_\\w+ sendfile set_blocking setegid seteuid setgid setgroups setpgid setpgrp
    setpriority setregid setresgid setresuid setreuid setsid setuid setxattr spawn[lv]pe? splice statvfs sync sysconf
    tcgetpgrp tcsetpgrp ttyname uname wait wait3 wait4 waitid writev
    (CLD|EFD|EX|GRND|MFD|POSIX|PRIO|RTLD|RWF|SCHED|SPLICE|ST|XATTR)_\\w+ P_(ALL|PID|PGID|PIDFD) W[A-Z]{3,} F_[TU]?LOCK
    F_TEST O_(?!(RDONLY|WRONLY|RDWR|APPEND|CREAT|EXCL|TRUNC|BINARY)$)\\w+ SEEK_(DATA|HOLE)
"""
OF_SIGNAL = """
    SIG(?!(ABRT|FPE|ILL|INT|SEGV|TERM|BREAK)$)[A-Z]\\w+ SIG_(BLOCK|UNBLOCK|SETMASK) ITIMER_\\w+ alarm getitimer pause
    pidfd_\\w+ pthread_\\w+ setitimer siginterrupt sigpending sigtimedwait sigwait\\w*
"""
NAMES = {
    module: re.compile("|".join(patterns.split()))
    for module, patterns in {
        "os": OF_OS,
        "signal": OF_SIGNAL,
        "time": "CLOCK_\\w+ clock_\\w+ pthread_\\w+ tzset",
        "select": "E?POLL\\w+ e?poll PIPE_BUF",
    }.items()
}


def is_absent(module: str, name: str) -> bool:
    """Whether a module of Python lacks a name on Windows."""
    return module in NAMES and NAMES[module].fullmatch(name) is not None
