"""Millpond itself in the emulated machine, in a control group of version 2 (linux-interop): memory.high, memory.pressure.

The machine where tests run may have version 1 only, and the kernel's own slowing down cannot be had from files in a test."""
import json
import os
import subprocess
import time

from interop_lab import MIB, MILLPOND, Wrong, note
from linux_lab import Guest, until

HIGH, LOWER = 384, 224          # MiB


def control_group(pond):
    """The daemon keeps within memory.high under load, hears of pressure, and follows a limit that becomes lower."""
    program, data = os.path.join(pond.home, "program"), os.path.join(pond.home, "data.img")
    subprocess.run(["strip", "-o", program, MILLPOND], check=True)
    size = os.path.getsize(program)
    for path, length in ((program, -(-size // MIB) * MIB), (data, 3 << 30)):
        with open(path, "ab") as f:
            f.truncate(length)
    drives = [w for path in (program, data) for w in ("-drive", f"if=virtio,format=raw,cache=unsafe,file={path.replace(',', ',,')}")]
    guest = Guest(pond.home, cards=0, memory=1280, more=drives)
    try:
        guest.sh("ip link set lo up")
        guest.sh(f"head -c {size} /dev/vdb > /usr/bin/millpond && chmod +x /usr/bin/millpond && millpond --version", timeout=120)
        guest.sh("mkdir -p /cg && mount -t cgroup2 none /cg && echo +memory > /cg/cgroup.subtree_control && mkdir /cg/pond"
                 f" && echo {HIGH}M > /cg/pond/memory.high")
        guest.sh("export MILLPOND_STATE=/var/lib/millpond; millpond zpool create tank /dev/vdc"
                 " && millpond zfs create -V 1200M -o compression=off tank/v", timeout=120)
        guest.sh("(echo 0 > /cg/pond/cgroup.procs; MILLPOND_STATE=/var/lib/millpond exec setsid millpond serve --nbd 127.0.0.1:10809"
                 " > /tmp/serve.out 2>&1 < /dev/null) & sleep 1")
        until("the daemon is ready", lambda: "ready" in guest.sh("cat /tmp/serve.out"), 60)
        pid = guest.sh("cat /cg/pond/cgroup.procs").split()[0]
        first = memory(guest)
        if "memory.high" not in first["limit_from"]:
            raise Wrong(f"the limit is from {first['limit_from']}")
        if "memory.pressure" not in guest.sh(f"ls -l /proc/{pid}/fd"):
            raise Wrong("the daemon does not listen to memory.pressure")
        guest.sh("nbd-client -N tank/v -b 4096 127.0.0.1 10809 /dev/nbd0", timeout=60)
        load = guest.spawn("fio --name=w --filename=/dev/nbd0 --rw=randrw --bs=64k --size=1000M --iodepth=16 --ioengine=libaio --direct=1"
                           " --verify=crc32c --verify_backlog=256 --time_based --runtime=90 --output-format=json")
        begun, lowered, hits, most, fell = time.time(), None, None, 0, None
        while not load.done.is_set():
            time.sleep(2)
            used = int(guest.sh("cat /cg/pond/memory.current"))
            limit = (HIGH if lowered is None else LOWER) * MIB
            if lowered is None:
                most = max(most, used)
                if time.time() - begun > 45:
                    hits = events(guest)["high"]
                    guest.sh(f"echo {LOWER}M > /cg/pond/memory.high")
                    lowered = time.time()
            elif fell is None and used <= limit:
                fell = time.time() - lowered
        out = load.wait(60, check=False)
        if load.code:
            raise Wrong(f"the load failed: {out[-1500:]}")
        job = json.loads(out[out.index("{"):])["jobs"][0]
        last = memory(guest)
        seen = events(guest)
        pressure = guest.sh("cat /cg/pond/memory.pressure").splitlines()[0]
        print(f"      memory.high {HIGH} MiB: at most {most // MIB} MiB, slowed down {hits} times; lowered to {LOWER} MiB: below it after "
              f"{'never' if fell is None else f'{fell:.0f} s'}, cache {first['arc_target'] // MIB} to {last['arc_target'] // MIB} MiB; {seen}; {pressure}; "
              f"{(job['read']['io_bytes'] + job['write']['io_bytes']) // MIB} MiB moved", flush=True)
        note(json.dumps(last))
        if job["error"] or seen["oom_kill"] != "0" or seen["max"] != "0":
            raise Wrong(f"errors {job['error']}, {seen}")
        if most > HIGH * MIB or hits != "0" or fell is None or fell > 15 or last["cgroup"]["limit"] != LOWER * MIB or last["arc_target"] >= LOWER * MIB:
            raise Wrong(f"the limit was not kept: {most // MIB} MiB, {hits} times slowed down, {fell} s, {last}")
        guest.sh("nbd-client -d /dev/nbd0; sleep 1", timeout=60)
        guest.sh(f"kill -TERM {pid}; for t in $(seq 1 200); do readlink /proc/{pid}/exe > /dev/null || exit 0; sleep 0.2; done; exit 1", timeout=60)
        guest.sh("MILLPOND_STATE=/var/lib/millpond millpond verify -d /dev tank", timeout=300)
    finally:
        guest.stop()


def events(guest):
    return dict(line.split() for line in guest.sh("cat /cg/pond/memory.events").splitlines())


def memory(guest):
    return json.loads(guest.sh("MILLPOND_STATE=/var/lib/millpond millpond memory -j"))["memory"]
