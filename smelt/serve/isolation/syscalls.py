"""System calls by number for the seccomp filters: x86-64 and 64-bit Arm.

`WORKER` is all that a worker needs once its interpreter runs; `HARMFUL` is what the compiler process is denied. None:
the machine has no such call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Numbers: TypeAlias = tuple[int | None, int | None]  # x86-64, 64-bit Arm

WORKER: Mapping[str, Numbers] = {
    # memory
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216), "madvise": (28, 233),
    "brk": (12, 214), "mincore": (27, 232), "mlock": (149, 228), "munlock": (150, 229), "msync": (26, 227),
    "get_mempolicy": (239, 236), "mbind": (237, 235), "membarrier": (324, 283),
    # files; Landlock says which, and `open` and `openat` are further restricted to reading
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "fstat": (5, 80), "lseek": (8, 62), "pread64": (17, 67),
    "preadv": (295, 69), "preadv2": (327, 286), "readv": (19, 65), "writev": (20, 66), "access": (21, None),
    "faccessat": (269, 48), "newfstatat": (262, 79), "statx": (332, 291), "stat": (4, None), "lstat": (6, None),
    "readlink": (89, None), "readlinkat": (267, 78), "getcwd": (79, 17), "getdents64": (217, 61), "dup": (32, 23),
    "fcntl": (72, 25), "ftruncate": (77, 46), "memfd_create": (319, 279), "fadvise64": (221, 223),
    "statfs": (137, 43), "fstatfs": (138, 44), "umask": (95, 166),
    # the socket that it was given
    "sendmsg": (46, 211), "recvmsg": (47, 212), "sendto": (44, 206), "recvfrom": (45, 207), "shutdown": (48, 210),
    "getsockopt": (55, 209), "getsockname": (51, 204), "getpeername": (52, 205), "poll": (7, None),
    "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72),
    # threads and time
    "futex": (202, 98), "futex_waitv": (449, 449), "set_robust_list": (273, 99), "get_robust_list": (274, 100),
    "rseq": (334, 293), "set_tid_address": (218, 96), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "sched_setaffinity": (203, 122), "sched_getparam": (143, 121), "sched_getscheduler": (145, 120),
    "getcpu": (309, 168), "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153),
    "getrusage": (98, 165),
    # the process itself
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "getpid": (39, 172), "gettid": (186, 178), "getppid": (110, 173), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "getresuid": (118, 148), "getresgid": (120, 150),
    "getpgid": (121, 155), "getrandom": (318, 278), "uname": (63, 160), "sysinfo": (99, 179),
    "getrlimit": (97, 163), "arch_prctl": (158, None), "exit": (60, 93), "exit_group": (231, 94),
    "restart_syscall": (219, 128),
}  # fmt: skip

NEWER = 435  # calls from here on are said to be absent, so that libraries do without them

# Calls that are allowed with some arguments only; `sandbox` says which.
OPEN: Numbers = (2, None)
OPENAT: Numbers = (257, 56)
CLONE: Numbers = (56, 220)
IOCTL: Numbers = (16, 29)
PRCTL: Numbers = (157, 167)
TGKILL: Numbers = (234, 131)
PRLIMIT: Numbers = (302, 261)

HARMFUL: Mapping[str, Numbers] = {
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "accept": (43, 202),
    "accept4": (288, 242), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "bpf": (321, 280), "perf_event_open": (298, 241), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "mount": (165, 40), "umount2": (166, 39), "unshare": (272, 97), "setns": (308, 268), "chroot": (161, 51),
    "pivot_root": (155, 41), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "userfaultfd": (323, 282),
    "open_by_handle_at": (304, 265), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "kcmp": (312, 272),
    "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430), "fsmount": (432, 432),
    "mount_setattr": (442, 442), "clock_settime": (227, 112), "settimeofday": (164, 170),
}  # fmt: skip

LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT, CAPSET = 444, 445, 446, (126, 91)
