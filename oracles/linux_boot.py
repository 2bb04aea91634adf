"""A machine that has no disk but a LUN (linux-interop).

The LUN gets what an installed system has: a boot sector, a partition with a boot loader (syslinux), kernel and initramfs, and
one with the root file system. The boot loader reads through the firmware; the initramfs finds the iSCSI session that the
firmware booted from in the table it left (iBFT), logs in again, and mounts the root file system."""
import hashlib
import os
import signal
import struct
import subprocess
import time

import guest_kit
import linux_lab
from interop_lab import MIB, Wrong, note
from linux_lab import Guest, tool

BOOT, SYSTEM = (1, 48), (49, 512)          # partitions: where, and how large, in MiB
SYSLINUX = """DEFAULT linux
PROMPT 0
TIMEOUT 1
SERIAL 0 115200
LABEL linux
  KERNEL vmlinuz
  INITRD ibft.gz
  APPEND {words} net.ifnames=0 rdinit=/init
"""


def disk(path):
    """The image of an installed system."""
    boot, system, config = (path + e for e in (".boot", ".system", ".cfg"))
    with open(boot, "wb") as f:
        f.truncate(BOOT[1] * MIB)
    # the boot sector must know where its partition begins
    tool("mkfs.fat", "-F", "16", "-h", str(BOOT[0] * 2048), "-n", "BOOT", boot, stdout=subprocess.DEVNULL)
    with open(config, "w") as f:
        f.write(SYSLINUX.format(words=guest_kit.KERNEL_WORDS))
    for source, name in ((linux_lab.KERNEL, "vmlinuz"), (linux_lab.IBFT, "ibft.gz"), (config, "syslinux.cfg")):
        tool("mcopy", "-i", boot, source, "::" + name)
    tool("syslinux", "--install", boot, env=dict(os.environ, PATH=shims(path) + ":" + os.environ["PATH"], TMPDIR=os.path.dirname(path)))
    linux_lab.file_system(system, SYSTEM[1])
    sector = bytearray(guest_kit.read(os.path.join(linux_lab.ROOT, "usr/lib/SYSLINUX/mbr.bin")).ljust(512, b"\0"))
    for n, (at, size) in enumerate((BOOT, SYSTEM)):
        sector[446 + 16 * n:462 + 16 * n] = struct.pack("<B3sB3sII", 0x80 if n == 0 else 0, b"\xfe\xff\xff", 0x06 if n == 0 else 0x83, b"\xfe\xff\xff", at * 2048, size * 2048)
    sector[510:] = b"\x55\xaa"
    with open(path, "wb") as f:
        f.write(sector)
        for (at, _), part in ((BOOT, boot), (SYSTEM, system)):
            f.seek(at * MIB)
            f.write(guest_kit.read(part))
        f.truncate((SYSTEM[0] + SYSTEM[1] + 1) * MIB)
    for p in (boot, system, config):
        os.unlink(p)


def shims(path):
    """syslinux calls mtools by name."""
    folder = path + ".bin"
    os.makedirs(folder, exist_ok=True)
    loader = os.path.realpath(os.path.join(linux_lab.ROOT, "lib64/ld-linux-x86-64.so.2"))
    libs = ":".join(os.path.join(linux_lab.ROOT, d) for d in ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"))
    for name in ("mcopy", "mattrib", "mmove", "mdel"):
        linux_lab.write(f"{folder}/{name}", f"#!/bin/sh\nexec {loader} --library-path {libs} --argv0 {name} {linux_lab.program(name)} \"$@\"\n", 0o755)
    return folder


def put(pond, portal):
    """Writes the image to the volume, over iSCSI as an installer would."""
    image = os.path.join(pond.home, "disk.img")
    disk(image)
    url = f"iscsi://{portal}/{pond.iqn('disk')}/0"
    subprocess.run(["qemu-img", "convert", "-n", "-t", "writeback", "-f", "raw", "-O", "raw", image, url], check=True, timeout=300)
    return image


def use(pond, guest, kind):
    """Reads everything there is, writes, goes on writing while the daemon is killed; all of that must be on the LUN."""
    print(f"      booted from the LUN: {guest.release}, root on " + guest.sh("awk '$2 == \"/\" {print $1, $3}' /proc/mounts").strip(), flush=True)
    if kind not in guest.sh("awk '$2 == \"/\" {print $1}' /proc/mounts"):
        raise Wrong("the root file system is not on the LUN")
    guest.sh("cat /usr/lib/x86_64-linux-gnu/*.so* /lib/x86_64-linux-gnu/*.so* /usr/bin/* > /dev/null 2>&1; true", timeout=300)
    # without it nobody would log in again
    if kind == "/dev/sda":
        guest.sh("mkdir -p /run/lock/iscsi; iscsid && sleep 1 && iscsiadm -m session")
    job = guest.spawn("""fio --name=verify --filename=/root/data --size=24M --rw=randwrite --bs=4k --ioengine=libaio --direct=1 --iodepth=4 \
 --time_based --runtime=25 --verify=crc32c --verify_fatal=1 --verify_backlog=256 --serialize_overlap=1""")
    time.sleep(5)
    pond.stop(signal.SIGKILL)
    begun = pond.serve(portals=["127.0.0.1:3260"])
    note(f"daemon back after {time.time() - begun:.1f} s")
    out = job.wait(200)
    if "err= 0" not in out:
        raise Wrong("fio: " + out[-1000:])
    guest.sh("head -c 3M /dev/urandom > /root/kept && sync")
    want = guest.sh("sha256sum < /root/kept").split()[0]
    said = guest.sh("dmesg")
    bad = [l for l in said.splitlines() if "I/O error" in l or "EXT4-fs error" in l]
    if bad:
        raise Wrong("the guest's kernel complains:\n" + "\n".join(bad[:10]))
    guest.sh("mount -o remount,ro /", timeout=60, check=False)
    guest.stop()
    pond.stop()
    got = os.path.join(pond.home, "after.img")
    pond.millpond("image", "-d", pond.dir, "-o", got, f"{pond.pool}/disk")
    part = got + ".system"
    with open(got, "rb") as f, open(part, "wb") as g:
        f.seek(SYSTEM[0] * MIB)
        g.write(f.read(SYSTEM[1] * MIB))
    subprocess.run(["e2fsck", "-fp", part], check=False, stdout=subprocess.DEVNULL)
    r = subprocess.run(["e2fsck", "-fn", part], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if r.returncode:
        raise Wrong("the root file system is not whole: " + r.stdout[-1000:])
    kept = os.path.join(pond.home, "kept")
    subprocess.run(["debugfs", "-R", f"dump /root/kept {kept}", part], check=True, stderr=subprocess.DEVNULL)
    if hashlib.sha256(guest_kit.read(kept)).hexdigest() != want:
        raise Wrong("what the guest wrote and synced is not on the LUN")


def from_firmware(pond):
    """SeaBIOS, iPXE, DHCP, a script by TFTP that names the LUN: the way of machines without disks."""
    pond.portals = ["127.0.0.1:3260"]
    pond.serve()
    put(pond, "127.0.0.1:3260")
    tftp = os.path.join(pond.home, "tftp")
    linux_lab.write(os.path.join(tftp, "boot.ipxe"),
                    f"#!ipxe\nset initiator-iqn {linux_lab.INITIATOR}\nsanboot iscsi:10.0.2.2::3260:0:{pond.iqn('disk')}\n")
    begun = time.time()
    guest = Guest(pond.home, cards=0, kernel=False, processors=1, boot_time=400, more=[
        "-netdev", f"user,id=u0,tftp={tftp},bootfile=boot.ipxe", "-device", "virtio-net-pci,netdev=u0,bootindex=1"])
    try:
        print(f"      up {time.time() - begun:.0f} s after power on", flush=True)
        use(pond, guest, "/dev/sda")
    finally:
        guest.stop()


def from_qemu(pond):
    """The disk is a virtio disk to the guest, and iSCSI is QEMU's affair."""
    pond.portals = ["127.0.0.1:3260"]
    pond.serve()
    put(pond, "127.0.0.1:3260")
    begun = time.time()
    guest = Guest(pond.home, cards=0, kernel=False, processors=1, boot_time=400, more=[
        "-drive", f"if=virtio,format=raw,cache=none,discard=unmap,file=iscsi://127.0.0.1:3260/{pond.iqn('disk')}/0"])
    try:
        print(f"      up {time.time() - begun:.0f} s after power on", flush=True)
        use(pond, guest, "/dev/vda")
    finally:
        guest.stop()
