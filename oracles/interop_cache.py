"""Cases of openzfs-interop about cache devices: what Millpond wrote to one is found again and used by the module, and what
the module left on it by Millpond. A cache device may lie about anything and nobody is harmed, so what is asked is more than
that the bytes are right: the log blocks must have been understood, and blocks must have come from the device."""
import json
import os
import re
import socket
import subprocess
import time

from interop_drives import finish
from interop_lab import MIB, Wrong

SMALL = ("--arc-max", "24M", "--l2arc", "l2arc_rebuild_blocks_min_l2size=0")


def arcstats(lab):
    """The daemon's counters."""
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(os.path.join(lab.sockets, "s"))
        s.sendall(b"GET /v1/arc HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        text = b"".join(iter(lambda: s.recv(1 << 16), b""))
    return json.loads(text.split(b"\r\n\r\n", 1)[1])["stats"]


def read_all(lab, pause=0.0):
    """Every volume over NBD, compared; slowly enough for the cache device to take what leaves memory."""
    for name, twin in sorted(lab.volumes.items()):
        nbd = lab.open(name.split("/", 1)[1])
        for at in range(0, len(twin), MIB):
            n = min(MIB, len(twin) - at)
            if nbd.ask(nbd.READ, at, n) != twin[at:at + n]:
                raise Wrong(f"{name} at {at}: not what was written")
            time.sleep(pause)
        nbd.close()


def zdb_of_cache(image):
    """How many log blocks zdb finds on a cache device; all must be right."""
    text = subprocess.run(["zdb", "-l", image], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    valid = re.search(r"(\d+) with valid cksum", text) or re.search(r"with valid cksum\D*(\d+)", text)
    invalid = re.search(r"(\d+) with invalid cksum", text) or re.search(r"with invalid cksum\D*(\d+)", text)
    if not valid or not invalid or int(valid.group(1)) == 0 or int(invalid.group(1)) != 0:
        raise Wrong(f"zdb does not agree with the log blocks:\n{text[-3000:]}")
    return int(valid.group(1))


def warm(lab, module):
    """Our warm cache device, used by the module; then the module's, used by us."""
    lab.create()
    lab.serve(*SMALL)
    for name, _, _ in lab.case.volumes:
        lab.fill(name, 0.9)
    for _ in range(3):
        read_all(lab, 0.05)
    time.sleep(1)
    stats = arcstats(lab)
    if stats["l2_log_blk_count"] == 0 or stats["l2_hits"] == 0:
        raise Wrong(f"nothing is on the cache device: this proves nothing: {stats}")
    # by the daemon: a command would take the device into use by the usual settings, under which it is too small
    lab.millpond("zpool", "export", lab.pool)
    lab.stop()
    log_blocks = zdb_of_cache(lab.images[2])
    module.run("echo 0 > $P/l2arc_rebuild_blocks_min_l2size\n"
               "stat() { grep \"^$1 \" /proc/spl/kstat/zfs/arcstats | sed 's/.* //'; }\n"
               "import $pool -f -N || fail import\n"
               "for _i in 1 2 3 4 5 6 7 8 9 10; do [ \"$(stat l2_rebuild_success)\" -gt 0 ] && break; sleep 1; done\n"
               "hashes\n"
               "echo \"@cache $(stat l2_rebuild_success) $(stat l2_rebuild_log_blks) $(stat l2_rebuild_bufs) $(stat l2_hits) $(stat l2_cksum_bad) $(stat l2_rebuild_cksum_lb_errors)\"\n"
               "sleep 5\nend")
    module.hashes()
    success, blocks, bufs, hits, bad, bad_logs = (int(n) for n in module.status("cache").split())
    if not success or not bufs or not hits or bad or bad_logs or blocks < log_blocks - 1:
        raise Wrong(f"the module does not make use of our cache device, of which zdb knows {log_blocks} log blocks: "
                    f"rebuilt {success}, log blocks {blocks}, blocks {bufs}, hits {hits}, wrong {bad}, wrong log blocks {bad_logs}")
    lab.serve(*SMALL)
    time.sleep(1)
    stats = arcstats(lab)
    if not stats["l2_rebuild_success"] or not stats["l2_rebuild_bufs"]:
        raise Wrong(f"what the module left on the cache device is not used: {stats}")
    read_all(lab)
    stats = arcstats(lab)
    if not stats["l2_hits"] or stats["l2_cksum_bad"]:
        raise Wrong(f"after the module: {stats['l2_hits']} hits, {stats['l2_cksum_bad']} wrong")
    finish(lab)


def cases(Case, vols):
    return [Case("cache-warm", "mirror @0 @1 cache @2", vols("v 48 16K -o compression=off", "w 16 8K"), size=192, drives=warm)]
