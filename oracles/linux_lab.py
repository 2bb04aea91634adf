"""An emulated Debian machine that is a client of Millpond (linux-guest, linux-interop): how it is made, booted and told what
to do, the network between the two, and a Millpond whose clients it is.

The guest does what it is told by a line on its second serial port, and answers with one line; so commands reach it whatever
happens to its network. Every network card is a tap device of the host's side, in a network namespace of the test's own."""
import base64
import calendar
import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import guest_kit
from guest_kit import Cpio, die, log, read
from interop_lab import MIB, MILLPOND, Lab, Wrong, note

CACHE = os.path.abspath(os.environ.get("LINUX_GUEST") or os.path.expanduser("~/.cache/linux-guest"))
KERNEL, INITRD, IBFT, IMAGE, VERSION = (os.path.join(CACHE, n) for n in ("vmlinuz", "initrd.gz", "ibft.gz", "root.ext4", "VERSION"))
ROOT = os.path.join(CACHE, "root")
LAYOUT = "1"            # of the image and the initramfs: another number builds them anew
PACKAGES = ["bash", "busybox-static", "coreutils", "dash", "dosfstools", "e2fsprogs", "fio", "gawk", "grep", "iproute2", "kmod", "mount", "mtools",
            "multipath-tools", "nbd-client", "open-iscsi", "procps", "sed", "sg3-utils", "syslinux", "syslinux-common", "udev", "util-linux"]
DRIVERS = ["virtio_pci", "virtio_blk", "virtio_net", "sd_mod", "sg", "iscsi_tcp", "iscsi_ibft", "dm_multipath", "dm_round_robin",
           "dm_service_time", "nbd", "vfat", "nls_ascii", "crc32c_intel"]
EARLY = ["virtio_pci", "virtio_blk"]
# what nobody reads there
USELESS = ["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/perl", "usr/share/perl5", "usr/share/lintian",
           "usr/share/mime", "usr/share/bash-completion", "usr/share/zoneinfo", "usr/lib/python3.11", "boot"]
INITIATOR = "iqn.2026-11.io.millpond.test:guest"

EARLY_INIT = r"""#!/bin/busybox sh
# First process: the drivers that the root file system needs, then its own init.
/bin/busybox --install -s /bin 2>/dev/null
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for m in $(cat /modules/order); do insmod /modules/$m.ko; done
for t in $(seq 1 100); do [ -b /dev/vda ] && break; sleep 0.1; done
mount -t ext4 /dev/vda /root || poweroff -f
for d in proc sys dev; do mount --move /$d /root/$d; done
exec switch_root /root /guest/init
"""

# The machine has no disk but what its firmware found: the boot firmware's table says where (RFC 4173, iBFT).
IBFT_INIT = r"""#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs run /run
for m in virtio_pci virtio_blk virtio_net sd_mod iscsi_tcp iscsi_ibft; do modprobe $m; done
ip link set lo up
if [ -d /sys/firmware/ibft/target0 ]; then
	echo "boot: the firmware's table names $(cat /sys/firmware/ibft/target0/target-name) at $(cat /sys/firmware/ibft/target0/ip-addr)"
	iscsistart -N && iscsistart -b || echo "boot: no session"
fi
for t in $(seq 1 300); do
	for d in /dev/sda2 /dev/vda2; do [ -b $d ] && disk=$d && break 2; done
	sleep 0.1
done
echo "boot: root file system on $disk"
mount -t ext4 $disk /root || { sleep 1; echo o > /proc/sysrq-trigger; }
for d in proc sys dev run; do mount --move /$d /root/$d; done
cd /root && exec switch_root /root /guest/init
"""

INIT = r"""#!/bin/sh
# The guest's only service: lines '@NUMBER SCRIPT' (base64) come in, lines '@NUMBER STATUS OUTPUT' go out.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C
mountpoint -q /run || mount -t tmpfs run /run
mount -t tmpfs tmp /tmp; mkdir -p /dev/pts /run/lock /mnt /var/lib/iscsi
mount -t devpts pts /dev/pts
ip link set lo up
for m in $(cat /guest/modules); do modprobe $m 2>/dev/null || echo "guest: no $m" > /dev/ttyS0; done
/lib/systemd/systemd-udevd --daemon
udevadm trigger --action=add; udevadm settle --timeout=30
stty -F /dev/ttyS1 raw -echo
exec 3<>/dev/ttyS1
echo "@0 0 $(uname -r | base64 -w0)" >&3
while read -r number script <&3; do
	(
		echo "$script" | base64 -d > /tmp/script.$number
		sh /tmp/script.$number > /tmp/out.$number 2>&1 < /dev/null 3>&-
		code=$?
		flock /tmp/lock sh -c "echo \"$number $code \$(base64 -w0 < /tmp/out.$number)\" >&3"
	) &
done
"""


# -- making it ------------------------------------------------------------------------------
def program(name):
    """Where the unpacked tree has a program; links there are meant from its root."""
    for d in ("sbin", "bin", "usr/sbin", "usr/bin"):
        path = os.path.join(ROOT, d, name)
        while os.path.islink(path):
            path = os.path.normpath(os.path.join(ROOT if os.readlink(path)[0] == "/" else os.path.dirname(path), os.readlink(path).lstrip("/")))
        if os.path.exists(path):
            return path
    raise Wrong(f"{ROOT} has no {name}")


def tool(*args, **kw):
    """Runs a program that was unpacked, not installed, with its own libraries."""
    path = program(args[0])
    libs = ":".join(os.path.join(ROOT, d) for d in ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"))
    loader = os.path.realpath(os.path.join(ROOT, "lib64/ld-linux-x86-64.so.2"))
    subprocess.run([loader, "--library-path", libs, "--argv0", args[0], path, *args[1:]], check=True, **kw)


def install(force=False):
    os.makedirs(CACHE, exist_ok=True)
    ours = f"layout {LAYOUT}"
    if not force and os.path.exists(VERSION) and open(VERSION).read().splitlines()[-1] == ours and shutil.which("qemu-system-x86_64"):
        log(open(VERSION).readline().strip(), "is there, in", CACHE)
        return
    begun = time.time()
    apt = guest_kit.archive(CACHE)
    release = guest_kit.kernel_release(apt)
    debs = os.path.join(CACHE, "debs")
    for d in (debs, ROOT):
        shutil.rmtree(d, ignore_errors=True)
    os.makedirs(os.path.join(debs, "partial"))
    os.makedirs(ROOT)
    # nothing counts as installed, so that everything these need comes as well
    status = os.path.join(CACHE, "apt", "status")
    open(status, "w").close()
    log("fetching", release, *PACKAGES)
    subprocess.run(["apt-get", *apt, "-o", "Dir::State::status=" + status, "-o", "Dir::Cache::archives=" + debs, "-o", "APT::Install-Recommends=false",
                    "-qq", "-y", "--download-only", "install", f"linux-image-{release}", *PACKAGES, "initramfs-tools-"],
                   check=True, stdout=subprocess.DEVNULL)
    guest_kit.unpack(debs, ROOT)
    files = {"qemu-block-extra": "/usr/lib/*/qemu/block-iscsi.so", "ipxe-qemu": "/usr/lib/ipxe/qemu/pxe-virtio.rom"}
    guest_kit.install_missing(apt, [("qemu-system-x86", "qemu-system-x86_64"), ("qemu-utils", "qemu-img"), ("e2fsprogs", "mke2fs"), ("iproute2", "ip")],
                              [p for p, f in files.items() if not glob.glob(f)])
    shutil.copyfile(glob.glob(ROOT + "/boot/vmlinuz-*")[0], KERNEL)
    modules = guest_kit.module_order(DRIVERS, [f"{ROOT}/lib/modules/{release}/kernel"])
    early = Cpio()
    for d in ("proc", "sys", "dev", "root"):
        early.folder(d)
    early.file("init", EARLY_INIT.encode())
    early.file("bin/busybox", read(ROOT + "/bin/busybox"))
    for n, p in guest_kit.module_order(EARLY, [f"{ROOT}/lib/modules/{release}/kernel"]):
        early.file(f"modules/{n}.ko", read(p))
    early.file("modules/order", " ".join(n for n, _ in guest_kit.module_order(EARLY, [f"{ROOT}/lib/modules/{release}/kernel"])).encode())
    early.save(INITRD)
    kept = {p for _, p in modules}
    for p in glob.glob(f"{ROOT}/lib/modules/{release}/**/*.ko", recursive=True):
        if p not in kept:
            os.unlink(p)
    for d in USELESS:
        shutil.rmtree(os.path.join(ROOT, d), ignore_errors=True)
    tool("depmod", "-b", ROOT, release)
    write(ROOT + "/guest/init", INIT, 0o755)
    write(ROOT + "/guest/modules", " ".join(DRIVERS))
    write(ROOT + "/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
    write(ROOT + "/etc/group", "root:x:0:\ndisk:x:6:\ntty:x:5:\nkmem:x:15:\ninput:x:101:\nlp:x:7:\nvideo:x:44:\naudio:x:29:\ncdrom:x:24:\ntape:x:26:\ndialout:x:20:\nkvm:x:102:\nrender:x:103:\nsgx:x:104:\n")
    write(ROOT + "/etc/iscsi/initiatorname.iscsi", f"InitiatorName={INITIATOR}\n", 0o600)
    write(ROOT + "/etc/hostname", "guest\n")
    write(ROOT + "/etc/fstab", "")
    if not os.path.lexists(ROOT + "/usr/bin/awk"):
        os.symlink("gawk", ROOT + "/usr/bin/awk")
    for d in ("mnt", "root", "run", "tmp", "proc", "sys", "dev", "var/lib/iscsi"):
        os.makedirs(os.path.join(ROOT, d), exist_ok=True)
    file_system(IMAGE, 512)
    ibft(release)
    shutil.rmtree(debs)
    with open(VERSION, "w") as f:
        f.write(f"Debian's {release} with open-iscsi, multipath-tools, fio\n{ours}\n")
    log(f"ready after {time.time() - begun:.0f} s")


def write(path, text, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, mode)


def file_system(path, mib):
    """The guest's root file system, as an image of ext4."""
    with open(path, "wb") as f:
        f.truncate(mib * MIB)
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-L", "guest", "-d", ROOT, path], check=True)


def ibft(release):
    """The initramfs of a machine whose only disk is a LUN: logs in as the boot firmware did."""
    c = Cpio()
    for d in ("proc", "sys", "dev", "root", "run", "tmp", "etc/iscsi"):
        c.folder(d)
    c.file("init", IBFT_INIT.encode())
    libs = ":".join(os.path.join(ROOT, d) for d in ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"))
    for name in ("dash", "iscsistart", "kmod", "ip", "mount", "switch_root", "cat", "seq", "sleep"):
        guest_kit.add_program(c, program(name), "bin", libs, place="lib/x86_64-linux-gnu")
    c.file("bin/sh", read(program("dash")))
    c.file("bin/modprobe", read(program("kmod")))
    c.file("etc/iscsi/initiatorname.iscsi", f"InitiatorName={INITIATOR}\n".encode())
    for p in glob.glob(f"{ROOT}/lib/modules/{release}/**/*", recursive=True):
        if os.path.isfile(p):
            c.file(os.path.relpath(p, ROOT), read(p), 0o644)
    c.save(IBFT)


# -- the network between the two ------------------------------------------------------------
def own_network():
    """Goes on in a network namespace of its own, where tap devices can be had and nobody else listens."""
    if os.environ.get("MILLPOND_OWN_NETWORK") == "1":
        # whoever ends this ends its machines as well
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return
    how = ["unshare", "--net", "--mount"] + ([] if os.geteuid() == 0 else ["--user", "--map-root-user"])
    if subprocess.run([*how, "true"], stderr=subprocess.DEVNULL).returncode:
        die("this needs a network namespace (unshare --net), and none can be had here")
    os.environ["MILLPOND_OWN_NETWORK"] = "1"
    os.execvp("unshare", [*how, sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:]])


def address(card, guest=False):
    return f"10.71.{card}.{2 if guest else 1}"


def taps(count):
    for n in range(count):
        # not in /sys, which may be that of the namespace this one was made in
        if subprocess.run(["ip", "link", "show", f"tap{n}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
            subprocess.run(["ip", "link", "set", f"tap{n}", "up"], check=True)
            continue
        subprocess.run(["ip", "tuntap", "add", "dev", f"tap{n}", "mode", "tap"], check=True)
        subprocess.run(["ip", "addr", "add", address(n) + "/24", "dev", f"tap{n}"], check=True)
        subprocess.run(["ip", "link", "set", f"tap{n}", "up"], check=True)


# -- the machine ----------------------------------------------------------------------------
class Job:
    """A script that runs in the guest."""

    def __init__(self, script):
        self.script, self.done, self.code, self.out = script, threading.Event(), None, ""

    def wait(self, timeout=60, check=True):
        if not self.done.wait(timeout):
            raise Wrong(f"the guest is not done after {timeout} s with: {self.script.strip()[:200]}")
        if check and self.code:
            raise Wrong(f"the guest: exit {self.code}: {self.script.strip()[:200]}: {self.out.strip()[:800]} … {self.out.strip()[-300:]}")
        return self.out


def until(what, condition, limit):
    begun = time.time()
    while True:
        if condition():
            return time.time() - begun
        if time.time() - begun > limit:
            raise Wrong(f"not within {limit} s: {what}")
        time.sleep(0.2)


class Guest:
    """Boots; ends with `stop`. `cards` network cards on tap devices, `more` further words for QEMU."""

    def __init__(self, top, cards=2, memory=768, more=(), kernel=True, boot_time=240, processors=2):
        self.work = tempfile.mkdtemp(prefix="lg-")
        self.console_path = os.path.join(top, "console")
        cmd = guest_kit.machine(memory, processors)
        if kernel:
            # the image stays as it is: each guest starts from the same
            image = IMAGE.replace(",", ",,")
            cmd += ["-kernel", KERNEL, "-initrd", INITRD, "-append", guest_kit.KERNEL_WORDS + " net.ifnames=0 rdinit=/init",
                    "-drive", f"if=virtio,format=raw,snapshot=on,cache=unsafe,file={image}"]
        cmd += ["-chardev", f"file,id=console,path={self.console_path}", "-serial", "chardev:console",
                "-chardev", f"socket,id=agent,path={self.work}/agent,server=on,wait=off", "-serial", "chardev:agent",
                "-chardev", f"socket,id=qmp,path={self.work}/qmp,server=on,wait=off", "-mon", "chardev=qmp,mode=control"]
        for n in range(cards):
            cmd += ["-netdev", f"tap,id=n{n},ifname=tap{n},script=no,downscript=no",
                    "-device", f"virtio-net-pci,netdev=n{n},id=card{n},mac=52:54:00:71:00:{n:02x},romfile="]
        self.qemu_err = open(os.path.join(top, "qemu.err"), "ab")
        self.jobs, self.number, self.lock = {}, 0, threading.Lock()
        begun = time.time()
        self.qemu = subprocess.Popen([*cmd, *more], stdin=subprocess.DEVNULL, stdout=self.qemu_err, stderr=self.qemu_err, cwd=self.work,
                                     env=dict(os.environ, TMPDIR=self.work))
        try:
            self.agent = self.connect("agent")
            self.qmp = self.connect("qmp").makefile("rw")
            self.qmp.readline()
            self.tell_qemu("qmp_capabilities")
            up = self.jobs[0] = Job("boot")
            threading.Thread(target=self.listen, daemon=True).start()
            self.release = up.wait(boot_time).strip()
        except Wrong as e:
            self.stop()
            raise Wrong(f"the guest did not boot ({e}); its console ends with:\n" + self.console()[-3000:]) from None
        note(f"the guest ({self.release}) is up after {time.time() - begun:.0f} s")
        for n in range(cards):
            self.sh(f"ip link set eth{n} up; ip addr add {address(n, guest=True)}/24 dev eth{n}")

    def connect(self, name):
        path = os.path.join(self.work, name)
        for _ in range(200):
            s = socket.socket(socket.AF_UNIX)
            try:
                s.connect(path)
                return s
            except OSError:
                s.close()
                if self.qemu.poll() is not None:
                    break
                time.sleep(0.05)
        raise Wrong("QEMU did not start: " + open(self.qemu_err.name).read()[-1000:])

    def tell_qemu(self, what, **arguments):
        self.qmp.write(json.dumps({"execute": what, "arguments": arguments}) + "\n")
        self.qmp.flush()
        while True:
            answer = json.loads(self.qmp.readline() or '{"error": "gone"}')
            if "error" in answer:
                raise Wrong(f"QEMU: {what}: {answer['error']}")
            if "return" in answer:
                return answer["return"]

    def listen(self):
        for line in self.agent.makefile("r", errors="replace"):
            m = re.match(r"@(\d+) (\d+) ?(\S*)\s*$", line)
            job = self.jobs.pop(int(m.group(1)), None) if m else None
            if job:
                job.code, job.out = int(m.group(2)), base64.b64decode(m.group(3)).decode("utf-8", "replace")
                job.done.set()
        for job in list(self.jobs.values()):
            job.code, job.out = 125, "the guest is gone"
            job.done.set()

    def spawn(self, script):
        with self.lock:
            self.number += 1
            job = self.jobs[self.number] = Job(script)
            self.agent.sendall(f"@{self.number} {base64.b64encode(script.encode()).decode()}\n".encode())
        return job

    def sh(self, script, timeout=60, check=True):
        out = self.spawn(script).wait(timeout, check)
        note("guest:", script.strip().replace("\n", "; ")[:150], "->", out.strip()[-300:].replace("\n", " | "))
        return out

    def cable(self, card, is_in):
        """Pulls the cable of a card, or puts it in: the guest's kernel sees no carrier."""
        self.tell_qemu("set_link", name=f"card{card}", up=is_in)

    def console(self):
        return open(self.console_path, errors="replace").read() if os.path.exists(self.console_path) else ""

    def die(self):
        self.qemu.kill()
        self.qemu.wait()

    def stop(self):
        if self.qemu.poll() is None:
            self.qemu.kill()
        self.qemu.wait()
        self.qemu_err.close()
        shutil.rmtree(self.work, ignore_errors=True)


# -- the Millpond whose client it is --------------------------------------------------------
class Pond(Lab):
    """A pool on image files and its daemon, which listens on as many portals as there are cards. Content is the guest's matter."""

    def __init__(self, case, top, portals):
        super().__init__(case, top)
        self.pool = "tank"
        self.portals = [f"{address(n)}:3260" for n in range(portals)]

    def create(self):
        super().create()
        self.volumes = dict.fromkeys(self.volumes)

    def serve(self, wait=True, portals=None):
        """Starts the daemon. Gives the time it was started."""
        words = [w for p in portals or self.portals for w in ("--iscsi", p)]
        self.err = open(os.path.join(self.home, "serve.err"), "ab")
        begun = time.time()
        self.daemon = subprocess.Popen([MILLPOND, "serve", "-d", self.dir, "--nbd", f"{(portals or self.portals)[0].split(':')[0]}:10809", *words, self.pool],
                                       cwd=self.dir, env=dict(self.env(), MILLPOND_LOG="info", NO_COLOR="1"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=self.err, text=True)
        if wait:
            for line in self.daemon.stdout:
                if line.strip() == "ready":
                    note(f"daemon ready after {time.time() - begun:.2f} s")
                    return begun
            raise Wrong("the daemon did not start: " + open(self.err.name).read()[-1500:])
        return begun

    def iqn(self, volume):
        return f"iqn.2026-11.io.millpond:{self.pool}:{volume}"

    def logins(self):
        """When initiators logged in, by our clock."""
        found = re.findall(r"^(\S+)\.(\d+)Z +INFO .*logged in", self.log(), re.M)
        return [calendar.timegm(time.strptime(day, "%Y-%m-%dT%H:%M:%S")) + float("0." + part) for day, part in found]

    def log(self):
        return open(self.err.name, errors="replace").read()
