"""Programs that try to leave the sandbox, each printing how far it came.

`attempt(name, function)` prints `name: ` and the result, or the name of the error. System calls are numbered as on
x86_64.
"""

HEAD = """
import ctypes, errno, fcntl, mmap, os, socket, struct, sys, time
def attempt(name, function):
    try:
        print(f"{name}: {function()!r}")
    except OSError as error:
        print(f"{name}: {errno.errorcode[error.errno]}")
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(argument) for argument in arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result
"""

WRITE_OUTSIDE = (
    HEAD
    + """
for path in ("/x", "/main.py", "/dev/x", "/tmp/x", "/etc/x", "/python/x", "/python/bin/python3", os.__file__):
    attempt(path, lambda: open(path, "w"))
attempt("mkdir", lambda: os.mkdir("/x"))
attempt("unlink", lambda: os.unlink("/main.py"))
attempt("chmod", lambda: os.chmod("/python/bin/python3", 0o777))
attempt("chmod device", lambda: os.chmod("/dev/null", 0))
attempt("utime", lambda: os.utime("/python/bin/python3", (0, 0)))
attempt("rename", lambda: os.rename("/scratch", "/old"))
attempt("remount", lambda: call(165, 0, 0, 0, 0x1020, 0))
"""
)

LOOK_AROUND = (
    HEAD
    + """
print(sorted(os.environ))
for folder, folders, names in os.walk("/"):
    if not folder.startswith("/python/"):
        print(folder, sorted(folders), sorted(names))
print([number for number in range(300) if os.path.exists(f"/proc/{number}")])
print(os.getuid(), os.getpid() < 10, os.uname().nodename)
for number in range(3, 300):
    try:
        os.fstat(number)
        print("open:", number)
    except OSError:
        pass
"""
)


def read_paths(paths: list[str]) -> str:
    """Tries to read files by their whole paths, and through a link in the scratch folder."""
    return (
        HEAD
        + f"""
for number, path in enumerate({paths!r}):
    attempt("read", lambda: open(path).read())
    attempt("list", lambda: os.listdir(os.path.dirname(path)))
    os.symlink(path, f"link{{number}}")
    attempt("link", lambda: open(f"link{{number}}").read())
"""
    )


def reach_process(pid: int) -> str:
    """Tries to signal, trace and read a process of the machine."""
    return (
        HEAD
        + f"""
buffer = ctypes.create_string_buffer(8)
vector = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(buffer), 8))
attempt("trace", lambda: call(101, 16, {pid}, 0, 0))
attempt("read memory", lambda: call(310, {pid}, ctypes.addressof(vector), 1, ctypes.addressof(vector), 1, 0))
attempt("signal", lambda: os.kill({pid}, 0))
attempt("handle", lambda: os.pidfd_open({pid}))
"""
    )


def reach_sockets(port: int, abstract_name: str, path: str) -> str:
    """Tries to reach listeners of the machine."""
    return (
        HEAD
        + f"""
def connect(family, kind, address):
    with socket.socket(family, kind) as it:
        it.settimeout(1)
        it.connect(address)
    return "connected"
attempt("tcp", lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", {port})))
attempt("abstract", lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, "\\0" + {abstract_name!r}))
attempt("path", lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, {path!r}))
attempt("udp", lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 53)))
attempt("link", lambda: connect(socket.AF_NETLINK, socket.SOCK_RAW, (0, 0)))
"""
    )


ESCAPE = (
    HEAD
    + """
attempt("hard link", lambda: os.link("/python/bin/python3", "/scratch/python3"))
attempt("hard link of the program", lambda: os.link("/main.py", "/scratch/main.py"))
os.symlink("/", "root")
attempt("through a link", lambda: open("root/x", "w"))
attempt("upwards", lambda: open("../../../../../../x", "w"))
attempt("disk", lambda: os.mknod("disk", 0o60666, os.makedev(8, 0)))
attempt("memory device", lambda: os.mknod("mem", 0o20666, os.makedev(1, 1)))
attempt("devices", lambda: sorted(os.listdir("/dev")))
for path in ("/dev/mem", "/dev/sda", "/dev/shm/x", "/dev/tty", "/dev/fd/0", "/proc/self/root", "/sys/kernel"):
    attempt(path, lambda: open(path, "rb"))
attempt("trace the parent", lambda: call(101, 16, os.getppid(), 0, 0))
attempt("trace me", lambda: call(101, 0, 0, 0, 0))
attempt("chroot", lambda: os.chroot("/scratch"))
attempt("root", lambda: os.setuid(0))
attempt("mount", lambda: call(165, 0, 0, 0, 0, 0))
attempt("pivot", lambda: call(155, 0, 0))
attempt("unshare", lambda: call(272, 0x10000000))
attempt("clone", lambda: call(56, 0x10000000 | 17, 0, 0, 0, 0))
attempt("clone3", lambda: call(435, 0, 0))
attempt("join", lambda: call(308, 0, 0))
attempt("handle", lambda: call(304, 0, 0, 0))
attempt("keyring", lambda: call(250, 0, 0, 0))
attempt("bpf", lambda: call(321, 0, 0, 0))
attempt("io_uring", lambda: call(425, 1, 0))
attempt("raise limit", lambda: libc.setrlimit(6, (ctypes.c_ulong * 2)(10**4, 10**4)))
attempt("niceness", lambda: os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - 1))
"""
)

HIDDEN_MEMORY = (
    HEAD
    + """
attempt("memfd", lambda: os.memfd_create("x"))
attempt("segment", lambda: call(29, 0, 2**20, 0o1600))
attempt("queue", lambda: call(68, 0, 0o1600))
attempt("lock", lambda: call(149, ctypes.addressof(ctypes.create_string_buffer(2**20)), 2**20))
# shared and anonymous: of MAP_SHARED, of MAP_SHARED_VALIDATE, and as Python does
for flags in (0x21, 0x23):
    attempt(f"shared {flags}", lambda: call(9, 0, 2**20, 3, flags, -1, 0))
attempt("shared by Python", lambda: mmap.mmap(-1, 2**20))
attempt("huge pages", lambda: call(9, 0, 2**21, 3, 0x40022, -1, 0))
reading, writing = os.pipe()
byte = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(ctypes.create_string_buffer(1)), 1))
attempt("pages in a pipe", lambda: call(278, writing, ctypes.addressof(byte), 1, 0))
attempt("larger pipe", lambda: fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 2**20))
attempt("larger socket", lambda: socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20))
attempt("rules", lambda: call(444, ctypes.addressof(ctypes.create_string_buffer(b"\\1", 8)), 8, 0))
"""
)

FORK_BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""

COUNT_FORKS = """
import os, time
count = 0
try:
    while count < 100:
        if os.fork() == 0:
            time.sleep(30)
        count += 1
except OSError as error:
    print(count, type(error).__name__)
"""

COUNT_THREADS = """
import threading, time
count = 0
try:
    while count < 100:
        threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        count += 1
except RuntimeError as error:
    print(count, type(error).__name__, flush=True)
"""

ALLOCATE = "blocks = [bytearray(b'x' * (100 * 2**20)) for _ in range(50)]"

ALLOCATE_IN_CHILDREN = """
import os, time
for _ in range(5):
    if os.fork() == 0:
        block = b"x" * (30 * 2**20)
        time.sleep(30)
time.sleep(30)
"""

BURN_IN_CHILDREN = """
import os
for _ in range(3):
    if os.fork() == 0:
        break
while True:
    pass
"""

FILL_SCRATCH = """
import errno, os
written = 0
try:
    for number in range(1000):
        with open(f"{number}", "wb", buffering=0) as file:
            while file.tell() < 2**20:
                written += file.write(b"x" * 2**16)
except OSError as error:
    print(written, errno.errorcode[error.errno])
"""

MANY_FILES = """
for number in range(10**6):
    open(f"{number}", "w").close()
"""

OUTLIVE = """
import os, signal, time
for number in range(1, 64):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            time.sleep(1)
    os._exit(0)
print("left one behind", flush=True)
"""

FLOOD = """
import os
os.fork()
while True:
    os.write(1, b"x" * 65536)
    os.write(2, b"y" * 65536)
"""

KILL_ALL = """
import os, signal
for pid in (os.getppid(), 1):
    os.kill(pid, signal.SIGKILL)
print("they live", flush=True)
try:
    os.kill(-1, signal.SIGKILL)
except ProcessLookupError:
    print("nobody else is there", flush=True)
os.killpg(0, signal.SIGKILL)
"""

FOOL_GRADER = """
import json, os
for name in ("answer", "answer.txt", "truth", "success", "result.json", "conftest.py", "sitecustomize.py"):
    with open(name, "w") as file:
        file.write(json.dumps({"success": 1.0, "is_success": True, "reward": 1e6}))
for name in os.listdir():
    os.chmod(name, 0o777)
print(json.dumps({"reward_terms": {"success": 1.0}, "terminated": True, "is_success": True}))
print("right")
"""

OVERWRITE_FILES = """
import os
for name in os.listdir():
    open(name, "w").write("1\\n")
    print(name)
"""
