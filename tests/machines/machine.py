"""What the small virtual machines of the tests have in common: where their images and their state are, how
they boot, run commands and end. Used by siw-peer and nic-lab."""
import fcntl
import hashlib
import json
import os
import pathlib
import select
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

SLOTS = 8  # commands that can run at once in one machine
PROGRAM = pathlib.Path(sys.argv[0]).name


def variable(what):
    """A setting of this program, such as SIW_PEER_STATE."""
    return os.environ.get(PROGRAM.upper().replace("-", "_") + "_" + what)


def cache_dir():
    d = variable("CACHE")
    if d:
        return pathlib.Path(d)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(base) / PROGRAM


def state_dir(name=None):
    d = pathlib.Path(variable("STATE") or "/run/" + PROGRAM)
    return d / name if name else d


def die(msg, code=1):
    print(PROGRAM + ": " + msg, file=sys.stderr)
    sys.exit(code)


def ip(netns, *args, check=True):
    cmd = ["ip"] + (["-n", netns] if netns else []) + [str(a) for a in args]
    r = subprocess.run(cmd, capture_output=True, text=True)
    if check and r.returncode:
        die("%s: %s" % (" ".join(cmd), r.stderr.strip()))
    return r


def make_tap(netns, tap, mtu, bridge, *options):
    """Brings a tap device up. Returns whether it was made here, that is, did not exist."""
    if len(tap) > 15:
        die("tap name %r is longer than 15 characters" % tap)
    made = ip(netns, "link", "show", "dev", tap, check=False).returncode != 0
    if made:
        ip(netns, "tuntap", "add", "dev", tap, "mode", "tap", *options)
    ip(netns, "link", "set", "dev", tap, "mtu", mtu)
    if bridge:
        ip(netns, "link", "set", "dev", tap, "master", bridge)
    ip(netns, "link", "set", "dev", tap, "up")
    return made


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def mac(prefix, text):
    d = digest(text)
    return prefix + ":".join(d[i:i + 2] for i in (0, 2, 4))


def load(name, code=1):
    try:
        return json.loads((state_dir(name) / "state.json").read_text())
    except (OSError, ValueError):
        die("no machine named %r" % name, code)


def alive(st):
    """Is the recorded process still that machine's QEMU?"""
    try:
        cmdline = pathlib.Path("/proc/%d/cmdline" % st["pid"]).read_bytes()
    except OSError:
        return False
    return st["uuid"].encode() in cmdline


# ---- start ------------------------------------------------------------------
def prepare(name):
    """The folder of a machine that is not running, after removing what an ended one has left."""
    sd = state_dir(name)
    if (sd / "state.json").exists():
        if alive(load(name)):
            die("%r is already running" % name)
        stop(load(name))
    elif sd.exists():
        shutil.rmtree(sd)
    for f in ("vmlinux", "initramfs.cpio"):
        if not (cache_dir() / f).exists():
            die("%s is missing: run build-image first" % (cache_dir() / f))
    return sd


def options(sd, cmdline):
    """QEMU's options for what every machine has: kernel, console, random numbers, ports for commands."""
    made = ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-bios", "qboot.rom",
            "-kernel", str(cache_dir() / "vmlinux"), "-initrd", str(cache_dir() / "initramfs.cpio"),
            "-append", "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable random.trust_cpu=on "
                       "net.ifnames=0 " + cmdline,
            "-chardev", "file,id=con,path=%s" % (sd / "console.log"), "-serial", "chardev:con",
            "-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng",
            "-device", "virtio-serial-pci,max_ports=%d" % (SLOTS + 1)]
    for k in range(SLOTS):
        made += ["-chardev", "socket,id=x%d,path=%s,server=on,wait=off" % (k, sd / ("x%d" % k)),
                 "-device", "virtserialport,nr=%d,chardev=x%d,name=exec.%d" % (k + 1, k, k)]
    return made


def boot(sd, qemu, netns, taps, wait, env=None, **state):
    """Starts QEMU and waits until the machine is ready. Returns the seconds that it took."""
    name = sd.name
    d = digest(PROGRAM + " " + name)
    uuid = "-".join(("51750000", d[:4], d[4:8], d[8:12], d[12:24]))
    cmd = qemu + ["-uuid", uuid, "-name", PROGRAM + "-" + name]
    if netns:
        cmd = ["nsenter", "--net=/run/netns/" + netns] + cmd
    t0 = time.time()
    with open(sd / "qemu.log", "wb") as log:
        p = subprocess.Popen(cmd, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                             start_new_session=True)
    st = dict(name=name, pid=p.pid, uuid=uuid, netns=netns, taps=taps, **state)
    (sd / "state.json").write_text(json.dumps(st))
    while True:
        con = ""
        if (sd / "console.log").exists():
            con = (sd / "console.log").read_text(errors="replace")
        if PROGRAM + ": FAILED" in con or "Kernel panic" in con:
            why = [x for x in con.splitlines() if "FAILED" in x or "panic" in x]
            stop(st)
            die("the machine did not come up: " + "; ".join(why))
        if PROGRAM + ": ready" in con:
            return time.time() - t0
        if p.poll() is not None:
            err = (sd / "qemu.log").read_text(errors="replace").strip()
            stop(st)
            die("QEMU ended: " + err)
        if time.time() - t0 > wait:
            stop(st)
            die("not ready after %d s; console:\n%s" % (wait, con[-2000:]))
        time.sleep(0.05)


# ---- stop -------------------------------------------------------------------
def stop(st):
    if alive(st):
        os.kill(st["pid"], signal.SIGTERM)
        for _ in range(100):
            try:
                os.waitpid(st["pid"], os.WNOHANG)
            except ChildProcessError:
                pass
            if not alive(st):
                break
            time.sleep(0.05)
        else:
            os.kill(st["pid"], signal.SIGKILL)
    for tap in st["taps"]:
        ip(st["netns"], "link", "del", "dev", tap, check=False)
    shutil.rmtree(state_dir(st["name"]), ignore_errors=True)


def cmd_stop(a):
    for name in a.name:
        stop(load(name))


# ---- exec -------------------------------------------------------------------
def frame(kind, data=b""):
    return kind + struct.pack(">I", len(data)) + data


class Slot:
    """A connection to one of the machine's command slots, held alone."""

    def __init__(self, name, first=0):
        for _ in range(100):
            for k in range(first, SLOTS):
                lock = open(state_dir(name) / ("x%d.lock" % k), "w")
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    lock.close()
                    continue
                self.index, self.lock = k, lock
                self.sock = socket.socket(socket.AF_UNIX)
                self.sock.connect(str(state_dir(name) / ("x%d" % k)))
                self.buf = b""
                return
            time.sleep(0.1)
        die("all %d command slots of %r are busy" % (SLOTS, name), 125)

    def frames(self, timeout):
        r, _, _ = select.select([self.sock], [], [], timeout)
        if not r:
            return
        data = self.sock.recv(65536)
        if not data:
            die("the machine has gone", 125)
        self.buf += data
        while len(self.buf) >= 5:
            n = struct.unpack(">I", self.buf[1:5])[0]
            if len(self.buf) < 5 + n:
                return
            kind, body, self.buf = self.buf[:1], self.buf[5:5 + n], self.buf[5 + n:]
            yield kind, body


def cmd_exec(a):
    st = load(a.name, 125)
    if not alive(st):
        die("%r is not running" % a.name, 125)
    argv = a.cmd[1:] if a.cmd[:1] == ["--"] else a.cmd
    if not argv:
        die("nothing to execute", 125)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    nonce = os.urandom(8)
    request = frame(b"R", nonce + shlex.join(argv).encode())
    if not a.stdin:
        request += frame(b"E")
    slot = Slot(a.name)
    slot.sock.sendall(request)
    started = False
    t0 = tried = time.time()

    def feed():
        while True:
            data = os.read(0, 32768)
            slot.sock.sendall(frame(b"I", data) if data else frame(b"E"))
            if not data:
                return

    while True:
        now = time.time()
        if a.timeout and now - t0 > a.timeout:
            die("timed out after %g s: %s" % (a.timeout, shlex.join(argv)), 124)
        if not started and now - tried > 5:
            slot.sock.close()
            if slot.index + 1 == SLOTS:
                die("the machine does not answer", 125)
            slot = Slot(a.name, slot.index + 1)
            slot.sock.sendall(request)
            tried = now
        for kind, body in slot.frames(0.2):
            if kind == b"A" and body == nonce:
                started = True
                if a.stdin:
                    threading.Thread(target=feed, daemon=True).start()
            elif not started:
                continue
            elif kind in b"Oe":
                fd, view = (1 if kind == b"O" else 2), memoryview(body)
                while view:
                    view = view[os.write(fd, view):]
            elif kind == b"X":
                slot.sock.close()
                os._exit(struct.unpack(">I", body)[0] & 0xff)


# ---- log, list --------------------------------------------------------------
def cmd_log(a):
    load(a.name)
    sys.stdout.write((state_dir(a.name) / "console.log").read_text(errors="replace"))


def cmd_list(a):
    for d in sorted(state_dir().glob("*/state.json")):
        st = json.loads(d.read_text())
        print("%s %s pid %d netns %s: %s" % (
            st["name"], "up" if alive(st) else "dead", st["pid"], st["netns"] or "-", st["text"]))


def add_commands(sub):
    """The commands exec, log, stop and list."""
    p = sub.add_parser("exec", help="run a command in the machine; its exit code becomes ours "
                                    "(124: timed out, 125: could not be run)")
    p.add_argument("-i", "--stdin", action="store_true", help="pass on standard input")
    p.add_argument("-t", "--timeout", type=float, metavar="SECONDS")
    p.add_argument("name")
    p.add_argument("cmd", nargs="...")
    p.set_defaults(func=cmd_exec)

    p = sub.add_parser("log", help="print the console")
    p.add_argument("name")
    p.set_defaults(func=cmd_log)
    p = sub.add_parser("stop", help="end machines, remove their tap devices")
    p.add_argument("name", nargs="+")
    p.set_defaults(func=cmd_stop)
    sub.add_parser("list", help="list the machines").set_defaults(func=cmd_list)


def run(parser):
    a = parser.parse_args()
    try:
        a.func(a)
    except KeyboardInterrupt:
        sys.exit(130)
