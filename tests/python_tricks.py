"""Further programs that try to cheat the sandbox, its watch and its launcher; see `python_attacks.py`."""

from python_attacks import HEAD

# what a process keeps without its first thread, its page or its descriptor
PAGE_TABLES = (
    HEAD
    + """
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
for number in range(45_000):
    # a page of zeros, which is resident nowhere, alone in its gigabyte
    page = libc.mmap(0x100000000000 + number * 2**30, 4096, mmap.PROT_READ, 0x100022, -1, 0)
    ctypes.c_char.from_address(page).value
time.sleep(30)
"""
)

SOCKET_BUFFERS = (
    HEAD
    + """
for _ in range(5):
    if os.fork() == 0:
        break
pairs = []
try:
    while True:
        pairs.append(socket.socketpair())
except OSError:
    pass
for end in sum(pairs, ()):
    end.setblocking(False)
    try:
        while True:
            end.send(b"x" * 65536)
    except BlockingIOError:
        pass
time.sleep(30)
"""
)

DEAD_FIRST_THREAD = (
    HEAD
    + """
import threading
def hold():
    time.sleep(0.2)
    block = b"x" * (60 * 2**20)
    time.sleep(30)
for _ in range(3):
    if os.fork() == 0:
        threading.Thread(target=hold).start()
        # ends this thread and not the process
        libc.syscall(ctypes.c_long(60), ctypes.c_long(0))
time.sleep(30)
"""
)

HOP = """
import os, time
# nobody is there for longer than it takes to hand everything to a child
for _ in range(2):
    if os.fork() == 0:
        blocks = []
        while True:
            if len(blocks) < 150:
                blocks.append(b"x" * 2**20)
            try:
                if os.fork():
                    os._exit(0)
            except OSError:
                pass
time.sleep(30)
"""

HIDE_BEHIND_A_NAME = (
    HEAD
    + """
# a name that is no text and looks like the line that the watch reads; then nobody may look at this process
libc.prctl(15, ctypes.create_string_buffer(b"\\xff) R 1\\nVmRSS: 0"))
libc.prctl(4, 0, 0, 0, 0)
for _ in range(4):
    if os.fork() == 0:
        block = b"x" * (30 * 2**20)
        time.sleep(30)
time.sleep(30)
"""
)

HIDE_TIME = """
import os, signal, time
# children whom nobody waits for: their time is in no account
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("begun", flush=True)
while True:
    try:
        if os.fork() == 0:
            end = time.process_time() + 0.01
            while time.process_time() < end:
                pass
            os._exit(0)
    except OSError:
        pass
"""

SHARED_BY_THE_MACHINE = (
    HEAD
    + """
attempt("asynchronous input", lambda: call(206, 10, ctypes.addressof(ctypes.create_string_buffer(8))))
attempt("write back", lambda: call(162))
attempt("write back a disk", lambda: call(306, os.open("/main.py", os.O_RDONLY)))
attempt("mounts", lambda: call(458, 0, 0, 0, 0))
attempt("mount", lambda: call(457, 0, 0, 0, 0))
for family in (2, 16, 21, 30, 38):
    attempt(f"sockets of family {family}", lambda: socket.socketpair(family, socket.SOCK_STREAM))
attempt("watch files", lambda: call(294, 0))
attempt("watch all files", lambda: call(300, 0, 0))
attempt("set the clock", lambda: time.clock_settime(time.CLOCK_REALTIME, 0))
attempt("set the clock as before", lambda: call(164, ctypes.addressof(ctypes.create_string_buffer(16)), 0))
attempt("bend the clock", lambda: call(159, ctypes.addressof(ctypes.create_string_buffer(b"\\1", 256))))
attempt("name", lambda: call(170, ctypes.addressof(ctypes.create_string_buffer(b"x")), 1))
attempt("real time", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
attempt("priority", lambda: os.nice(-1))
"""
)

# what a program may do to whoever lets it run: the first process of its namespace, and itself
STOP = (
    HEAD
    + """
import signal
for pid in (1, os.getppid()):
    os.kill(pid, signal.SIGSTOP)
if os.fork() == 0:
    # vfork: its parent waits for a child that never goes on
    libc.syscall(ctypes.c_long(58))
    time.sleep(60)
print("begun", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""
)

ADOPT = (
    HEAD
    + """
# children of children become this one's, not the first process's
libc.prctl(36, 1, 0, 0, 0)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        libc.prctl(1, 0, 0, 0, 0)
        while True:
            time.sleep(1)
    os._exit(0)
os.wait()
print("left one behind", flush=True)
os._exit(0)
"""
)

TERMINAL = (
    HEAD
    + """
for number in (0, 1, 2):
    attempt(f"type {number}", lambda: fcntl.ioctl(number, 0x5412, b"x"))
attempt("terminal", lambda: open("/dev/tty"))
attempt("console", lambda: open("/dev/console"))
attempt("pseudo terminal", lambda: os.openpty())
"""
)

PRIVILEGES = (
    HEAD
    + """
import shutil, subprocess
capabilities = ctypes.create_string_buffer(24)
asked = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
call(125, ctypes.addressof(asked), ctypes.addressof(capabilities))
print("capabilities:", capabilities.raw == bytes(24))
print("no new privileges:", libc.prctl(39, 0, 0, 0, 0))
shutil.copy("/python/bin/python3", "own")
os.chmod("own", 0o6755)
told = subprocess.run(["./own", "-S", "-c", "import os; print(os.geteuid(), os.getegid())"], env={**os.environ,
    "PYTHONHOME": "/python"}, capture_output=True, text=True)
print("own program:", told.stdout.strip() or told.stderr)
attempt("own device", lambda: os.fchmod(0, 0))
attempt("own device's owner", lambda: os.fchown(0, 1000, 1000))
"""
)

EXHAUST = (
    HEAD
    + """
import resource
attempt("arguments", lambda: os.execv(sys.executable, ["x" * 100_000] * 100))
attempt("one argument", lambda: os.execv(sys.executable, ["x" * 2**18]))
attempt("descriptors", lambda: [os.dup(1) for _ in range(1000)])
os.closerange(3, 1000)
attempt("sparse file", lambda: os.truncate(os.open("sparse", os.O_CREAT | os.O_RDWR), 2**40))
attempt("sparse file's end", lambda: os.pwrite(os.open("sparse", os.O_RDWR), b"x", 2**40))
attempt("reserve", lambda: os.posix_fallocate(os.open("sparse", os.O_RDWR), 0, 2**24))
attempt("timers", lambda: [call(222, 1, 0, ctypes.addressof(ctypes.create_string_buffer(8))) for _ in range(1000)])
attempt("lock memory", lambda: call(151, 1))
print("core:", resource.getrlimit(resource.RLIMIT_CORE))
child = os.fork()
if child == 0:
    os.abort()
print("dumped:", os.WCOREDUMP(os.waitpid(child, 0)[1]))
"""
)

DEEP_TREE = """
import os
while True:
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
"""

ATTRIBUTES = """
import os
open("x", "w").close()
# a kernel that keeps no attributes here says so
try:
    for number in range(10**6):
        os.setxattr("x", f"user.{number % 100}", os.urandom(1) * 40_000)
        if number % 100 == 99:
            os.rename("x", f"x{number}")
            open("x", "w").close()
except OSError:
    for number in range(10**6):
        os.symlink("y" * 4000, f"{number}")
"""

OUTPUT = """
import fcntl, os, time
os.write(1, b"a\\xff\\xe2\\x82")
fcntl.fcntl(1, fcntl.F_SETFL, os.O_NONBLOCK)
os.close(1)
os.close(2)
time.sleep(0.3)
os._exit(7)
"""

INPUT = (
    HEAD
    + """
attempt("read", lambda: sys.stdin.read())
attempt("read on", lambda: os.read(0, 1))
attempt("read output", lambda: os.read(1, 1))
attempt("write", lambda: os.write(0, b"x"))
attempt("seek", lambda: os.lseek(1, 0, 0))
"""
)

SHADOW = b"raise SystemExit('taken in')\n"
"""Content of files that are named like modules."""

# programs that look as if they had ended well: code, exit status
ENDINGS = {
    "signal after the output": ("import os\nprint(57, flush=True)\nos.kill(os.getpid(), 9)", 137),
    "zero by a child": (
        "import os\nif os.fork() == 0:\n    print(57, flush=True)\n    os._exit(0)\nos.wait()\nos._exit(1)", 1,
    ),
    "crash": ("import ctypes\nprint(57, flush=True)\nctypes.string_at(0)", 139),
    "text": ("import sys\nprint(57)\nsys.exit('0')", 1),
    "minus one": ("import sys\nprint(57)\nsys.exit(-1)", 255),
    "exit of the interpreter": ("import os\nprint(57, flush=True)\nos._exit(3)", 3),
    "processor time": ("import os, resource\nprint(57, flush=True)\nos.kill(os.getpid(), 24)", 152),
}  # fmt: skip
