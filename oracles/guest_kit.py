"""What both emulated machines share (openzfs-guest, linux-guest): packages from Debian's archive, unpacked and never
installed; initramfs archives; the way QEMU is called."""
import glob
import gzip
import importlib.machinery
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = os.path.basename(sys.argv[0])


def log(*a):
    print(NAME + ":", *a, file=sys.stderr, flush=True)


def die(msg, code=2):
    log("error:", msg)
    sys.exit(code)


def out(cmd, **kw):
    return subprocess.run(cmd, check=True, stdout=subprocess.PIPE, text=True, **kw).stdout


def read(path):
    with open(path, "rb") as f:
        return f.read()


def quote(s):
    return "'" + s.replace("'", "'\\''") + "'"


# -- Debian's archive -----------------------------------------------------------------------
def archive(cache):
    """apt with install-openzfs-tools' private source list: this machine's own, with contrib and backports."""
    loader = importlib.machinery.SourceFileLoader("tools", os.path.join(HERE, "install-openzfs-tools"))
    tools = importlib.util.module_from_spec(importlib.util.spec_from_loader("tools", loader))
    sys.dont_write_bytecode = True
    loader.exec_module(tools)
    opts = tools.private_apt(cache, tools.codename()) + ["-o", "Dir::Cache=" + os.path.join(cache, "apt", "cache")]
    os.makedirs(os.path.join(cache, "apt", "cache", "archives", "partial"), exist_ok=True)
    log("reading the archive's lists")
    subprocess.run(["apt-get", *opts, "-qq", "update"], check=True)
    return opts


def newest(apt, pkg):
    for line in out(["apt-cache", *apt, "madison", pkg]).splitlines():
        f = [x.strip() for x in line.split("|")]
        if len(f) > 2 and "Packages" in f[2]:
            return f[1]
    die(f"the archive offers no {pkg}")


def field(apt, pkg, name):
    txt = out(["apt-cache", *apt, "show", "--no-all-versions", pkg])
    m = re.search(rf"^{name}: (.*)$", txt, re.M)
    return m.group(1) if m else ""


def kernel_release(apt):
    """The stable suite's cloud kernel."""
    image = re.search(r"linux-image-(\S+-cloud-amd64)", field(apt, "linux-image-cloud-amd64", "Depends"))
    if not image:
        die("the archive offers no linux-image-cloud-amd64 (only amd64 is supported)")
    return image.group(1)


def unpack(debs, root):
    """Every package of the folder `debs` into `root`."""
    for deb in sorted(glob.glob(debs + "/*.deb")):
        subprocess.run(["dpkg", "-x", deb, root], check=True)


def install_missing(apt, programs, others=()):
    """Installs packages, given as (package, program), of which the program is missing, and `others`. Needs root."""
    miss = [p for p, t in programs if not shutil.which(t)] + list(others)
    if miss:
        if os.geteuid():
            die("install these first, or run as root: " + " ".join(miss))
        log("installing", *miss)
        subprocess.run(["apt-get", *apt, "install", "-y", "-qq", "--no-install-recommends", *miss], check=True,
                       stdout=subprocess.DEVNULL, env=dict(os.environ, DEBIAN_FRONTEND="noninteractive"))


# -- initramfs ------------------------------------------------------------------------------
class Cpio:
    """An initramfs archive ('newc'), written by hand: the kernel reads several of them one after the other."""

    def __init__(self):
        self.data, self.ino, self.seen = bytearray(), 0, set()

    def entry(self, name, mode, body=b""):
        self.ino += 1
        head = [self.ino, mode, 0, 0, 1, 0, len(body), 0, 0, 0, 0, len(name) + 1, 0]
        self.data += b"070701" + b"".join(b"%08X" % x for x in head) + name.encode() + b"\0"
        self.data += b"\0" * (-len(self.data) % 4) + body
        self.data += b"\0" * (-len(self.data) % 4)

    def folder(self, name):
        if name and name not in self.seen:
            self.folder(os.path.dirname(name))
            self.seen.add(name)
            self.entry(name, stat.S_IFDIR | 0o755)

    def file(self, name, body, mode=0o755):
        if name in self.seen:
            return
        self.folder(os.path.dirname(name))
        self.seen.add(name)
        self.entry(name, stat.S_IFREG | mode, body)

    def close(self):
        self.entry("TRAILER!!!", 0)
        return bytes(self.data)

    def save(self, path, level=6):
        with open(path + ".tmp", "wb") as f:
            f.write(gzip.compress(self.close(), level))
        os.replace(path + ".tmp", path)


def add_program(c, path, folder, own_libs, place="lib64"):
    """A program with the libraries it loads, in `place`: the loader finds them in lib/x86_64-linux-gnu, or through LD_LIBRARY_PATH."""
    c.file(f"{folder}/{os.path.basename(path)}", read(path))
    env = dict(os.environ, LD_LIBRARY_PATH=own_libs)
    for lib in re.findall(r"(/\S+) \(0x", out(["ldd", path], env=env)):
        name = os.path.basename(lib)
        # the loader itself has its fixed place
        c.file(("lib64/" if name.startswith("ld-") else place + "/") + name, read(lib))


def module_order(drivers, folders):
    """(name, file) of `drivers` and what they depend on, dependencies first."""
    files = {os.path.basename(p)[:-3].replace("-", "_"): p
             for d in folders for p in glob.glob(d + "/**/*.ko", recursive=True)}
    order = []

    def add(name):
        name = name.replace("-", "_")
        if name in order or name not in files:
            return
        deps = re.search(rb"\0depends=([^\0]*)\0", b"\0" + read(files[name]))
        for d in (deps.group(1).decode().split(",") if deps else []):
            add(d)
        order.append(name)

    for d in drivers:
        add(d)
    missing = [d for d in drivers if d.replace("-", "_") not in order]
    if missing:
        die("no such driver: " + " ".join(missing), 1)
    return [(n, files[n]) for n in order]


# -- QEMU -----------------------------------------------------------------------------------
# The kernel's test of its timer fails when the machine below is busy.
KERNEL_WORDS = "no_timer_check console=ttyS0 panic=-1 oops=panic loglevel=5 mitigations=off nokaslr"


def machine(memory, processors=2):
    """QEMU's own translator: no KVM, no privilege."""
    return ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "Nehalem", "-smp", str(processors), "-m", str(memory),
            "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
