"""A pool under test for openzfs-interop: Millpond's commands and daemon on it, an NBD client that knows exactly what was
acknowledged, and a twin of every volume and snapshot as plain bytes in memory."""
import hashlib
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
GUEST = os.path.join(HERE, "openzfs-guest")
ZDB_CHECK = os.path.join(HERE, "zdb-check")
MILLPOND = os.path.abspath(os.environ.get("MILLPOND") or os.path.join(
    os.environ.get("CARGO_TARGET_DIR") or os.path.join(HERE, "..", "target"), "release", "millpond"))
KIB, MIB = 1 << 10, 1 << 20
VERBOSE = False


class Wrong(Exception):
    """A finding: what is not as it must be."""


def note(*a):
    if VERBOSE:
        print("     ", *a, flush=True)


# -- an NBD client of our own: it must know exactly what was acknowledged ------------------
class Nbd:
    READ, WRITE, DISC, FLUSH, TRIM, ZEROES = 0, 1, 2, 3, 4, 6
    FUA, NO_HOLE = 1, 2

    def __init__(self, port, export):
        self.s = socket.create_connection(("127.0.0.1", port), timeout=120)
        self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.recv(16) != b"NBDMAGICIHAVEOPT":
            raise Wrong("this is no NBD server")
        self.recv(2)
        self.s.sendall(struct.pack(">I", 3))
        name = export.encode()
        body = struct.pack(">I", len(name)) + name + struct.pack(">H", 0)
        self.s.sendall(b"IHAVEOPT" + struct.pack(">II", 7, len(body)) + body)
        self.size = None
        while True:
            _, _, kind, n = struct.unpack(">QIII", self.recv(20))
            data = self.recv(n)
            if kind == 3 and data[:2] == b"\0\0":
                self.size, = struct.unpack(">Q", data[2:10])
            elif kind == 1:
                break
            elif kind & 1 << 31:
                raise Wrong(f"NBD refuses {export}: {data!r}")
        self.cookie = 0

    def recv(self, n):
        b = bytearray()
        while len(b) < n:
            got = self.s.recv(n - len(b))
            if not got:
                raise Wrong("the NBD server hung up")
            b += got
        return bytes(b)

    def ask(self, what, offset=0, length=0, data=b"", flags=0):
        self.cookie += 1
        self.s.sendall(struct.pack(">IHHQQI", 0x25609513, flags, what, self.cookie, offset, length) + data)
        magic, error, cookie = struct.unpack(">IIQ", self.recv(16))
        if magic != 0x67446698 or cookie != self.cookie or error:
            raise Wrong(f"NBD command {what} at {offset}+{length}: error {error}")
        return self.recv(length) if what == self.READ else b""

    def close(self):
        try:
            self.s.sendall(struct.pack(">IHHQQI", 0x25609513, 0, self.DISC, 0, 0, 0))
        except OSError:
            pass
        self.s.close()


def content(rng, n):
    """Part noise, part text, part zeroes: every compressor, holes and embedded blocks get some."""
    out = bytearray()
    while len(out) < n:
        k = rng.choice((512, 4096, 8192, 65536))
        kind = rng.randrange(4)
        if kind == 0:
            out += rng.randbytes(k)
        elif kind == 1:
            out += (b"line %06d of some text that repeats itself\n" % rng.randrange(1000000) * (k // 40 + 1))[:k]
        elif kind == 2:
            out += bytes(k)
        else:
            out += rng.randbytes(k // 2) + bytes(k // 2)
    return bytes(out[:n])


# -- a pool under test --------------------------------------------------------------------
class Lab:
    def __init__(self, case, top):
        self.case, self.pool = case, case.name.replace("-", "_")
        self.home = os.path.join(top, case.name)
        self.dir = os.path.join(self.home, "images")
        os.makedirs(self.dir)
        # short: the path of a Unix socket has 107 bytes at most
        self.sockets = tempfile.mkdtemp(prefix="mpi-")
        self.rng = random.Random(case.name)
        self.volumes, self.snapshots = {}, {}
        # what a volume may hold instead: a write was on its way at the kill, and nobody knows whether it arrived
        self.instead = {}
        self.listing = None
        self.daemon = None
        self.images = []

    def env(self):
        e = {k: v for k, v in os.environ.items() if not k.startswith(("MILLPOND_", "ZPOOL_"))}
        return dict(e, MILLPOND_STATE=os.path.join(self.home, "state"), MILLPOND_SOCKET=os.path.join(self.sockets, "s"))

    def millpond(self, *args, check=True):
        r = subprocess.run([MILLPOND, *args], cwd=self.dir, env=self.env(), stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True, timeout=600, stdin=subprocess.DEVNULL)
        note("millpond", *args, f"-> {r.returncode}", r.stderr.strip())
        if check and r.returncode:
            raise Wrong(f"millpond {' '.join(args)}: exit {r.returncode}: {r.stdout[-1500:]}{r.stderr[-1500:]}")
        return r.stdout

    def create(self):
        words = []
        for w in self.case.layout.split():
            if w.startswith("@"):
                self.images.append(os.path.join(self.dir, f"{self.pool}-{w[1:]}"))
                w = self.images[-1]
            words.append(w)
        self.millpond("zpool", "create", "--size", f"{self.case.size}M", *self.case.create.split(), self.pool, *words)
        for name, size, opts in self.case.volumes:
            self.millpond("zfs", "create", "-s", "-V", str(size), *opts.split(), f"{self.pool}/{name}")
            self.volumes[f"{self.pool}/{name}"] = bytearray(size)

    def serve(self, *more):
        self.err = open(os.path.join(self.home, "serve.err"), "ab")
        self.daemon = subprocess.Popen([MILLPOND, "serve", "-d", self.dir, "--nbd", "127.0.0.1:0", *more, self.pool], cwd=self.dir,
                                       env=self.env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.err, text=True)
        self.port = None
        for line in self.daemon.stdout:
            m = re.match(r"nbd://127\.0\.0\.1:(\d+)/", line)
            if m:
                self.port = int(m.group(1))
            if line.strip() == "ready":
                return
        raise Wrong("the daemon did not start: " + open(self.err.name).read()[-1500:])

    def stop(self, how=signal.SIGTERM):
        if not self.daemon:
            return
        self.daemon.send_signal(how)
        try:
            code = self.daemon.wait(120)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            self.daemon.wait()
            code = "none within 120 s"
        self.daemon.stdout.close()
        self.daemon = None
        if how == signal.SIGTERM and code != 0:
            raise Wrong(f"the daemon ended with {code}: " + open(self.err.name).read()[-1500:])

    def open(self, volume):
        return Nbd(self.port, f"{self.pool}/{volume}")

    # what clients do; the twin in memory follows
    def write(self, nbd, volume, offset, data, flags=0):
        nbd.ask(Nbd.WRITE, offset, len(data), data, flags)
        self.volumes[f"{self.pool}/{volume}"][offset:offset + len(data)] = data

    def zero(self, nbd, volume, offset, n, flags=0):
        nbd.ask(Nbd.ZEROES, offset, n, b"", flags)
        self.volumes[f"{self.pool}/{volume}"][offset:offset + n] = bytes(n)

    def trim(self, nbd, volume, offset, n, flags=0):
        """Discarded bytes may keep their content where they are no whole block, so the client zeroes what it discards."""
        nbd.ask(Nbd.ZEROES, offset, n, b"", 0)
        nbd.ask(Nbd.TRIM, offset, n, b"", flags)
        self.volumes[f"{self.pool}/{volume}"][offset:offset + n] = bytes(n)

    def fill(self, volume, share=0.5):
        nbd = self.open(volume)
        size = nbd.size
        at = 0
        while at < size:
            n = min(self.rng.choice((64 * KIB, 256 * KIB, MIB)), size - at)
            if self.rng.random() < share:
                self.write(nbd, volume, at, content(self.rng, n))
            at += n
        nbd.ask(Nbd.FLUSH)
        nbd.close()

    def scatter(self, volume, count, flags=0, grain=512):
        nbd = self.open(volume)
        for _ in range(count):
            n = self.rng.choice((1, 2, 7, 8, 16, 32, 100)) * grain
            at = self.rng.randrange((nbd.size - n) // grain + 1) * grain
            self.write(nbd, volume, at, self.rng.randbytes(n), flags)
        nbd.ask(Nbd.FLUSH)
        nbd.close()

    def snapshot(self, volume, snap):
        self.millpond("zfs", "snapshot", f"{self.pool}/{volume}@{snap}")
        self.snapshots[f"{self.pool}/{volume}@{snap}"] = bytes(self.volumes[f"{self.pool}/{volume}"])

    def clone(self, volume, snap, new):
        self.millpond("zfs", "clone", f"{self.pool}/{volume}@{snap}", f"{self.pool}/{new}")
        self.volumes[f"{self.pool}/{new}"] = bytearray(self.snapshots[f"{self.pool}/{volume}@{snap}"])

    def rename(self, volume, new):
        self.millpond("zfs", "rename", f"{self.pool}/{volume}", f"{self.pool}/{new}")
        self.volumes[f"{self.pool}/{new}"] = self.volumes.pop(f"{self.pool}/{volume}")

    def rollback(self, volume, snap):
        self.millpond("zfs", "rollback", "-r", f"{self.pool}/{volume}@{snap}")
        self.volumes[f"{self.pool}/{volume}"] = bytearray(self.snapshots[f"{self.pool}/{volume}@{snap}"])

    def promote(self, clone, origin):
        """The clone, of the newest snapshot of its origin, takes all of the origin's snapshots over."""
        self.millpond("zfs", "promote", f"{self.pool}/{clone}")
        for s in [s for s in self.snapshots if s.startswith(f"{self.pool}/{origin}@")]:
            self.snapshots[f"{self.pool}/{clone}@{s.split('@')[1]}"] = self.snapshots.pop(s)

    def destroy(self, volume):
        self.millpond("zfs", "destroy", "-r", f"{self.pool}/{volume}")
        del self.volumes[f"{self.pool}/{volume}"]
        for s in [s for s in self.snapshots if s.startswith(f"{self.pool}/{volume}@")]:
            del self.snapshots[s]

    def grow(self, volume, size):
        self.millpond("zfs", "set", f"volsize={size}", f"{self.pool}/{volume}")
        self.volumes[f"{self.pool}/{volume}"].extend(bytes(size - len(self.volumes[f"{self.pool}/{volume}"])))

    def want(self):
        return {n: hashlib.sha256(b).hexdigest() for n, b in [*self.volumes.items(), *self.snapshots.items()]}

    def compare(self, got, who):
        want = self.want()
        wrong = [n for n in want if got.get(n) != want[n]]
        if wrong or set(got) != set(want):
            extra = sorted(set(got) - set(want))
            raise Wrong(f"{who}: content differs of: " + ", ".join(f"{n} ({'missing' if n not in got else 'hash'})" for n in wrong)
                        + (f"; not expected: {extra}" if extra else ""))

    def read_back(self):
        """Every volume and snapshot through `millpond image`, first difference named."""
        for n, b in [*self.volumes.items(), *self.snapshots.items()]:
            path = os.path.join(self.home, "raw")
            if os.path.exists(path):
                os.unlink(path)
            self.millpond("image", "-f", "-d", self.dir, "-o", path, n)
            with open(path, "rb") as f:
                got = f.read()
            if got != bytes(b):
                bad = [i for i in range(0, max(len(b), len(got)), 512) if got[i:i + 512] != b[i:i + 512]]
                raise Wrong(f"millpond reads {n} differently at {len(bad)} sectors, first {bad[0]:#x}, last {bad[-1]:#x}")

    def read_back_live(self):
        for name, twin in self.volumes.items():
            nbd = Nbd(self.port, name)
            got = b"".join(nbd.ask(Nbd.READ, at, min(MIB, nbd.size - at)) for at in range(0, nbd.size, MIB))
            nbd.close()
            if got != bytes(twin):
                bad = [i for i in range(0, len(twin), 512) if got[i:i + 512] != twin[i:i + 512]]
                raise Wrong(f"after Millpond's own replay {name} differs at {len(bad)} sectors, first {bad[0]:#x}, last {bad[-1]:#x}")

    def image(self, n):
        path = os.path.join(self.dir, f"{self.pool}-{n}")
        if path not in self.images:
            with open(path, "wb") as f:
                f.truncate(self.case.size * MIB)
            self.images.append(path)
        return path

    def zdb(self, *opts):
        r = subprocess.run([ZDB_CHECK, *opts, self.dir, self.pool], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        note("zdb-check", *opts, f"-> {r.returncode}", r.stdout.strip())
        if r.returncode:
            raise Wrong(f"zdb-check {' '.join(opts)}: {r.stdout.strip()[-1500:]}")

    def logs(self):
        """zdb's listing of the intent logs: how many records they hold."""
        r = subprocess.run(["zdb", "-e", "-p", self.dir, "-iiii", self.pool], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        with open(os.path.join(self.home, "zdb-i"), "w") as f:
            f.write(r.stdout)
        return len(re.findall(r"^\s+TX_\w+\s+len", r.stdout, re.M))

    def done(self):
        if self.daemon:
            self.daemon.kill()
            self.daemon.wait()
        shutil.rmtree(self.sockets, ignore_errors=True)
