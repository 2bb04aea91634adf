"""Cases of openzfs-interop about drives: pools that are degraded, in the middle of a resilver, or live on a spare are
handed from Millpond to the module and from the module to Millpond, and must become whole in the other's hands."""
import hashlib
import os
import re
import shutil
import signal
import subprocess
import time

from interop_lab import KIB, MIB, MILLPOND, Wrong, content, note

# what every script of these cases knows
HEAD = r"""
fail() { echo "@fail $*"; exit 1; }
say() { zpool status -v $pool | sed "s/^/@$1 /"; }
hashes() {
	zfs set snapdev=visible $pool || fail snapdev
	for v in $(zfs list -H -o name -t volume -r $pool); do
		for n in $v $(zfs list -H -o name -t snapshot -d 1 $v); do echo "@hash $(hash $n)"; done
	done
}
dmesg=$(dmesg | wc -l)
# a resilver begins some transaction groups after what it is for
resilvered() { for _i in 1 2 3 4 5; do zpool sync $pool; sleep 1; done; zpool wait -t resilver $pool; }
end() { zpool export $pool || fail export; dmesg | tail -n +$((dmesg + 1)) | grep -E 'WARNING|PANIC|VERIFY|BUG' | sed 's/^/@kernel /'; echo @done; }
"""


class Module:
    """The module's turn with some of a pool's images."""

    def __init__(self, lab, guest, top):
        self.lab, self.guest, self.top, self.put = lab, guest, top, []

    def run(self, body, without=(), cut=False, disks=False):
        """Runs a script. With `cut` the machine's end is a power cut, and the pool is on disks: of files in the machine's
        memory, which the module goes on writing to, there would be no picture of one moment."""
        lab = self.lab
        kept = lab.images
        lab.images = [i for n, i in enumerate(kept) if n not in without]
        try:
            code, text = self.guest(HEAD + body, [lab], self.top, files=not (cut or disks), put=self.put, settings=["pool=" + lab.pool])
        finally:
            lab.images = kept
        lines = text.splitlines()
        bad = [l for l in lines if l.startswith(("@fail", "@kernel"))]
        if code or bad or "@done" not in lines and not cut:
            raise Wrong(f"the module (exit {code}): " + " | ".join(bad) + "\n" + "\n".join(lines[-40:]))
        self.lines = lines
        return self

    def status(self, word="status"):
        return "\n".join(l[len(word) + 2:] for l in self.lines if l.startswith(f"@{word} "))

    def expect(self, word, *patterns):
        for p in patterns:
            if not re.search(p, self.status(word), re.M):
                raise Wrong(f"the module's status has no /{p}/:\n{self.status(word)}")

    def hashes(self):
        got = {l.split()[2]: l.split()[1] for l in self.lines if l.startswith("@hash") and len(l.split()) == 3}
        want = self.lab.want()
        wrong = [n for n in want if got.get(n) != want[n]] + sorted(set(got) - set(want))
        if wrong:
            raise Wrong("the module reads differently: " + ", ".join(wrong))

    def write(self, count=6):
        """Commands that write to the pool's volumes, and the same to our twins."""
        lab = self.lab
        blob = os.path.join(lab.home, f"blob{len(self.put)}.bin")
        data = content(lab.rng, 4 * MIB)
        with open(blob, "wb") as f:
            f.write(data)
        self.put.append(blob)
        sh = []
        for v, twin in sorted(lab.volumes.items()):
            for _ in range(count):
                k = lab.rng.randrange(1, 256) * 4 * KIB
                at = lab.rng.randrange((len(twin) - k) // (4 * KIB)) * 4 * KIB
                src = lab.rng.randrange((len(data) - k) // (4 * KIB)) * 4 * KIB
                twin[at:at + k] = data[src:src + k]
                sh.append(f"dd if=/in/{os.path.basename(blob)} of=$(zvol {v}) bs=4k skip={src >> 12} seek={at >> 12} count={k >> 12} conv=notrunc,fsync status=none || fail dd")
        return "\n".join(sh) + "\n"

    def create(self):
        """A pool of the module's own on the case's images."""
        lab = self.lab
        words = [f"$IMG/{os.path.basename(lab.image(w[1:]))}" if w.startswith("@") else w for w in lab.case.layout.split()]
        sh = [f"zpool create -f -o ashift=12 {lab.pool} {' '.join(words)} || fail create"]
        for name, size, opts in lab.case.volumes:
            v = f"{lab.pool}/{name}"
            lab.volumes[v] = bytearray(size)
            sh.append(f"zfs create -s -V {size} {opts} {v} || fail create")
        return "\n".join(sh) + "\n" + self.write(12)

    def file(self, n):
        return f"$IMG/{os.path.basename(self.lab.images[n])}"


CLEAN = (r"scrub repaired 0B in .* with 0 errors", r"errors: No known data errors")


# -- Millpond's side ----------------------------------------------------------------------
def wait_for(lab, what, test, seconds=120):
    """Until the pool's status passes `test`."""
    end = time.monotonic() + seconds
    while True:
        text = lab.millpond("zpool", "status", lab.pool)
        if test(text):
            return text
        if time.monotonic() > end:
            raise Wrong(f"{what}: not within {seconds} s:\n{text}")
        time.sleep(0.2)


def rest(text):
    """Nothing is being resilvered."""
    return "in progress" not in text and "resilvering" not in text


def whole(text):
    return rest(text) and re.search(r"^ *state: ONLINE", text, re.M) is not None


def away(lab, *numbers):
    aside = os.path.join(lab.home, "away")
    os.makedirs(aside, exist_ok=True)
    for n in numbers:
        os.rename(lab.images[n], os.path.join(aside, os.path.basename(lab.images[n])))


def back(lab, *numbers):
    for n in numbers:
        os.rename(os.path.join(lab.home, "away", os.path.basename(lab.images[n])), lab.images[n])


def fill(lab):
    for name, _, _ in lab.case.volumes:
        lab.fill(name, 0.7)
    first = lab.case.volumes[0][0]
    lab.snapshot(first, "a")
    lab.scatter(first, 20)


def scatter(lab, count=15):
    for name, _, _ in lab.case.volumes:
        lab.scatter(name, count)


def halfway(lab):
    """What is on the disks is a pool with a replacement that has not ended: asked before the module gets it, which may have
    ended it by the time its import returns."""
    zdb = subprocess.run(["zdb", "-e", "-p", lab.dir, "-C", lab.pool], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    if "type: 'replacing'" not in zdb or "resilver_txg" not in zdb:
        raise Wrong("the daemon was killed when the replacement had ended already: this proves nothing")


def take_over(lab):
    """Like a host that has not seen the pool before; served."""
    shutil.rmtree(os.path.join(lab.home, "state"), ignore_errors=True)
    lab.millpond("zpool", "import", "-f", "-d", lab.dir, lab.pool)
    lab.serve()


def finish(lab):
    """Everything is whole again and right: our scrub, our reader, zdb."""
    lab.read_back_live()
    lab.millpond("zpool", "scrub", "-w", lab.pool)
    text = lab.millpond("zpool", "status", "-v", lab.pool)
    for p in CLEAN:
        if not re.search(p, text):
            raise Wrong(f"our scrub is not clean:\n{text}")
    lab.stop()
    lab.millpond("zpool", "export", lab.pool)
    lab.zdb()
    lab.millpond("verify", "-d", lab.dir, lab.pool)
    lab.read_back()


# -- the cases ----------------------------------------------------------------------------
def degraded(lab, module):
    """Two of six are pulled under load; the module takes the degraded pool, writes; we get the two back."""
    lab.create()
    lab.serve()
    fill(lab)
    away(lab, 1, 4)
    wait_for(lab, "two removed devices", lambda text: text.count("REMOVED") == 2 and "DEGRADED" in text)
    scatter(lab)
    lab.stop()
    lab.millpond("zpool", "export", lab.pool)
    work = module.write()
    module.run(f"import $pool -f -N || fail import\nsay first\nhashes\nzpool scrub -w $pool || fail scrub\nsay status\nend", without=(1, 4))
    module.expect("first", r"state: DEGRADED")
    module.expect("status", *CLEAN)
    # the hashes were taken before the module's own writes, which are still to come
    module.run(f"import $pool -f -N || fail import\n{work}\nhashes\nend", without=(1, 4))
    module.hashes()
    back(lab, 1, 4)
    take_over(lab)
    wait_for(lab, "whole again", whole)
    finish(lab)


def offline(lab, module):
    """Taken offline by our administrator, put online by the module's: it must know what the device lacks."""
    lab.create()
    lab.serve()
    fill(lab)
    lab.millpond("zpool", "offline", lab.pool, lab.images[1])
    scatter(lab)
    lab.stop()
    lab.millpond("zpool", "export", lab.pool)
    lab.zdb()
    module.run(f"import $pool -f -N || fail import\nsay first\nzpool online $pool {module.file(1)} || fail online\n"
               "resilvered\nsay second\nhashes\nzpool scrub -w $pool || fail scrub\nsay status\nend")
    module.expect("first", r"OFFLINE", r"state: DEGRADED")
    module.expect("second", r"resilvered \S+ in .* with 0 errors")
    module.expect("status", r"state: ONLINE", *CLEAN)
    module.hashes()
    take_over(lab)
    scatter(lab)
    finish(lab)


def midresilver(lab, module):
    """Killed when a replacement had only just begun: the module brings it to its end."""
    new = lab.image(lab.case.more["new"])
    lab.images.clear()
    lab.create()
    lab.images.append(new)
    lab.serve()
    fill(lab)
    lab.millpond("zpool", "replace", lab.pool, lab.images[1], new)
    lab.stop(signal.SIGKILL)
    lab.zdb("--crashed", "--only", "blocks,spacemaps")
    halfway(lab)
    module.run("import $pool -f -N || fail import\nresilvered\nzpool wait -t replace $pool\nsay second\nhashes\n"
               "zpool scrub -w $pool || fail scrub\nsay status\nend")
    module.expect("second", r"resilvered [1-9]\S+ in .* with 0 errors")
    module.expect("status", r"state: ONLINE", *CLEAN)
    if "replacing" in module.status():
        raise Wrong("the replacement did not end:\n" + module.status())
    module.hashes()
    os.unlink(lab.images[1])
    del lab.images[1]
    take_over(lab)
    scatter(lab)
    finish(lab)


def spare(lab, module):
    """A spare stands in for a pulled device when the module gets the pool; then the device is back."""
    lab.create()
    lab.serve()
    fill(lab)
    away(lab, 1)
    wait_for(lab, "the spare is in use", lambda text: "INUSE" in text and rest(text))
    scatter(lab)
    lab.stop()
    lab.millpond("zpool", "export", lab.pool)
    module.run("import $pool -f -N || fail import\nsay first\nhashes\nzpool scrub -w $pool || fail scrub\nsay status\nend", without=(1,))
    module.expect("first", r"state: DEGRADED", r"spare-\d", r"INUSE")
    module.expect("status", *CLEAN)
    module.hashes()
    back(lab, 1)
    take_over(lab)
    wait_for(lab, "the spare is back", lambda text: whole(text) and "AVAIL" in text)
    finish(lab)


def module_offline(lab, module):
    """Two devices offline by the module's administrator; ours puts them online."""
    script = module.create() + f"zpool offline $pool {module.file(1)} && zpool offline $pool {module.file(3)} || fail offline\n" + module.write()
    module.run(script + "hashes\nend")
    module.hashes()
    take_over(lab)
    text = lab.millpond("zpool", "status", lab.pool)
    if text.count("OFFLINE") != 2:
        raise Wrong(f"not two offline:\n{text}")
    scatter(lab)
    lab.millpond("zpool", "online", lab.pool, lab.images[1], lab.images[3])
    wait_for(lab, "whole again", whole)
    finish(lab)


def module_degraded(lab, module):
    """The module used the pool without two of its devices; we get all of them."""
    module.run(module.create() + "end")
    module.run("import $pool -f -N || fail import\n" + module.write() + "hashes\nend", without=(0, 5))
    module.hashes()
    take_over(lab)
    wait_for(lab, "whole again", whole)
    finish(lab)


def module_midresilver(lab, module):
    """The module's machine is cut off in the middle of a replacement: we bring it to its end."""
    script = module.create() + "echo 1 > $P/zfs_scan_suspend_progress\n"
    is_exported = lab.case.more.get("export")
    new = lab.image(lab.case.more["new"])
    script += f"zpool replace $pool {module.file(1)} $IMG/{os.path.basename(new)} || fail replace\n" + module.write()
    module.run(script + "zpool sync $pool; say first; hashes; " + ("end" if is_exported else "zpool sync $pool; cut"), cut=not is_exported)
    module.expect("first", r"replacing-1", r"resilver in progress")
    module.hashes()
    take_over(lab)
    text = wait_for(lab, "the replacement ends", whole)
    if "replacing" in text:
        raise Wrong(f"the replacement did not end:\n{text}")
    os.unlink(lab.images[1])
    del lab.images[1]
    finish(lab)


def module_spare(lab, module):
    """A spare is in use; our administrator gives it back. On disks: `zpool replace` takes no file for a spare."""
    script = module.create()
    script += f"zpool replace $pool {module.file(1)} {module.file(2)} || fail spare\nresilvered\n" + module.write() + "say first\nhashes\nend"
    module.run(script, disks=True)
    module.expect("first", r"spare-\d", r"INUSE")
    module.hashes()
    take_over(lab)
    if "INUSE" not in lab.millpond("zpool", "status", lab.pool):
        raise Wrong("the spare is not in use here")
    scatter(lab)
    lab.millpond("zpool", "detach", lab.pool, lab.images[2])
    wait_for(lab, "the spare is back", lambda text: whole(text) and "AVAIL" in text)
    finish(lab)


def midreturn(lab, module):
    """Killed when a device had just come back and was being brought up to date: the module does that."""
    lab.create()
    lab.serve()
    lab.millpond("zpool", "offline", lab.pool, lab.images[1])
    fill(lab)
    lab.millpond("zpool", "online", lab.pool, lab.images[1])
    lab.stop(signal.SIGKILL)
    lab.zdb("--crashed", "--degraded", "--only", "blocks,spacemaps")
    config = subprocess.run(["zdb", "-e", "-p", lab.dir, "-C", lab.pool], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    if not re.search(r"^ *DTL: [1-9]", config, re.M):
        raise Wrong("the daemon was killed when the device was whole already: this proves nothing")
    module.run("import $pool -f -N || fail import\nresilvered\nsay second\nhashes\nzpool scrub -w $pool || fail scrub\nsay status\nend")
    module.expect("second", r"resilvered [1-9]\S+ in .* with 0 errors")
    module.expect("status", r"state: ONLINE", *CLEAN)
    module.hashes()
    take_over(lab)
    scatter(lab)
    finish(lab)


def in_time(lab, begin, halt):
    """Begins what `halt` must find still running."""
    for _ in range(30):
        lab.millpond(*begin)
        r = subprocess.run([MILLPOND, *halt], cwd=lab.dir, env=lab.env(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        if r.returncode == 0:
            return
        time.sleep(1)
    raise Wrong(f"{' '.join(begin)} is always over before it can be halted: {r.stdout}")


def scrub(lab, module):
    """A scrub paused here goes on there, and one paused there goes on here; both know where the last one ended."""
    scrubbed = ["zpool", "get", "-H", "-o", "value", "last_scrubbed_txg"]
    lab.create()
    lab.serve()
    fill(lab)
    lab.millpond("zpool", "scrub", "-w", lab.pool)
    ours = lab.millpond(*scrubbed, lab.pool).strip()
    in_time(lab, ["zpool", "scrub", lab.pool], ["zpool", "scrub", "-p", lab.pool])
    lab.stop()
    lab.millpond("zpool", "export", lab.pool)
    lab.zdb()
    get = f"echo @txg $({' '.join(scrubbed)} $pool)\n"
    module.run(f"import $pool -f -N || fail import\nsay first\n{get}zpool scrub -w $pool || fail scrub\nsay second\n{get}hashes\n"
               "echo 1 > $P/zfs_scan_suspend_progress\nzpool scrub $pool && zpool sync $pool && zpool scrub -p $pool || fail pause\n"
               "zpool sync $pool\nsay status\nend")
    module.expect("first", r"scan: scrub paused since")
    module.expect("second", *CLEAN)
    before, after = [l.split()[1] for l in module.lines if l.startswith("@txg ")]
    if before != ours or int(after) <= int(before):
        raise Wrong(f"last scrubbed: {ours} here, {before} there, {after} after its scrub")
    module.expect("status", r"scan: scrub paused since")
    module.hashes()
    take_over(lab)
    text = lab.millpond("zpool", "status", lab.pool)
    if "scrub paused since" not in text:
        raise Wrong(f"the paused scrub is not paused here:\n{text}")
    here = lab.millpond(*scrubbed, lab.pool).strip()
    if here != after:
        raise Wrong(f"last scrubbed: {after} there, {here} here")
    lab.millpond("zpool", "scrub", "-w", lab.pool)
    text = lab.millpond("zpool", "status", lab.pool)
    if not re.search(CLEAN[0], text):
        raise Wrong(f"the scrub did not go on:\n{text}")
    scatter(lab)
    lab.millpond("zpool", "scrub", "-C", "-w", lab.pool)
    if int(lab.millpond(*scrubbed, lab.pool)) <= int(after):
        raise Wrong("a scrub of what is new moved nothing")
    finish(lab)


def errors(lab, module):
    """What is damaged is listed here and there; scrubs of that list, here and there, are told of by both."""
    lab.create()
    lab.serve()
    fill(lab)
    # noise, which no compressor makes smaller: it is found on the disk as it is
    block, slots = 16 * KIB, (3, 700, 900)
    noise = {n: lab.rng.randbytes(block) for n in slots}
    nbd = lab.open("v")
    for n in slots:
        lab.write(nbd, "v", n * block, noise[n])
    nbd.ask(nbd.FLUSH)
    nbd.close()
    lab.stop()
    lab.millpond("zpool", "export", lab.pool)
    with open(lab.images[0], "r+b") as f:
        data = f.read()
        for n in slots:
            at = data.find(noise[n])
            while at >= 0:
                f.seek(at)
                f.write(b"\xee" * 512)
                at = data.find(noise[n], at + 1)
    take_over(lab)
    lab.millpond("zpool", "scrub", "-w", lab.pool)
    lab.millpond("zpool", "scrub", "-e", "-w", lab.pool)
    told = r"scan: scrubbed 3 error block\(s\) in "
    text = lab.millpond("zpool", "status", "-v", lab.pool)
    if not re.search(told, text):
        raise Wrong(f"the scrub of the error log is not told of here:\n{text}")
    lab.stop()
    lab.millpond("zpool", "export", lab.pool)
    blob = os.path.join(lab.home, "blob.bin")
    fresh = lab.rng.randbytes(block * len(slots))
    with open(blob, "wb") as f:
        f.write(fresh)
    module.put.append(blob)
    dd = ""
    for i, n in enumerate(slots):
        lab.volumes[f"{lab.pool}/v"][n * block:(n + 1) * block] = fresh[i * block:(i + 1) * block]
        # direct: whole blocks, of which nothing is read before
        dd += f"dd if=/in/blob.bin of=$(zvol {lab.pool}/v) bs=16k skip={i} seek={n} count=1 oflag=direct conv=notrunc,fsync status=none || fail dd\n"
    # the module scrubs no error log in the old form, so it makes a new one of ours first
    module.run("import $pool -f -N || fail import\nsay first\nzpool set feature@head_errlog=enabled $pool || fail enable\n"
               "zpool scrub -e $pool && zpool wait -t scrub $pool || fail scrub\nsay second\n" + dd + "zpool sync $pool\nzpool scrub -e $pool && zpool wait -t scrub $pool || fail scrub\nsay status\nend")
    for word in ("first", "second"):
        module.expect(word, r"scrub: scrubbed 3 error blocks in ", r"errors: Permanent errors have been detected")
    # what was written anew is no error any more
    module.expect("status", r"scrub: scrubbed 0 error blocks in ", CLEAN[1])
    take_over(lab)
    text = lab.millpond("zpool", "status", "-v", lab.pool)
    if not re.search(r"scan: scrubbed 0 error block\(s\) in [0-9:]+ with 0 errors", text):
        raise Wrong(f"the module's scrub of the error log is not told of here:\n{text}\n{module.status()}")
    finish(lab)


def sweeps(lab, module):
    """Initializing and trimming, suspended here and taken up there, suspended there and taken up here."""
    lab.create()
    lab.serve()
    fill(lab)
    in_time(lab, ["zpool", "initialize", lab.pool], ["zpool", "initialize", "-s", lab.pool])
    lab.stop()
    lab.millpond("zpool", "export", lab.pool)
    lab.zdb()
    module.run("import $pool -f -N || fail import\nzpool status -i $pool | sed 's/^/@first /'\nzpool initialize -w $pool || fail initialize\n"
               "zpool status -i $pool | sed 's/^/@second /'\nzpool trim -w $pool || fail trim\nzpool status -t $pool | sed 's/^/@third /'\n"
               "zpool initialize -u $pool && zpool initialize $pool && zpool initialize -s $pool || fail suspend\nzpool sync $pool\n"
               "hashes\nzpool status -i $pool | sed 's/^/@status /'\nend")
    module.expect("first", r"\(\d+% initialized, suspended, started at")
    module.expect("second", r"\(100% initialized, completed at")
    module.expect("third", r"\(100% trimmed, completed at")
    module.expect("status", r"\(\d+% initialized, suspended, started at")
    module.hashes()
    take_over(lab)
    text = lab.millpond("zpool", "status", "-i", "-t", lab.pool)
    for p in (r"\(\d+% initialized, suspended, started at", r"\(100% trimmed, completed at"):
        if not re.search(p, text):
            raise Wrong(f"not what the module left, /{p}/:\n{text}")
    lab.millpond("zpool", "initialize", "-w", lab.pool)
    text = lab.millpond("zpool", "status", "-i", lab.pool)
    if not re.search(r"\(100% initialized, completed at", text):
        raise Wrong(f"initializing did not go on:\n{text}")
    finish(lab)


def cases(case, vols):
    """The cases: (what to do is in `more`)."""
    return [
        case("drive-degraded", "raidz2 @0 @1 @2 @3 @4 @5", vols("v 16 16K", "w 8 4K"), size=96, drives=degraded),
        case("drive-offline", "mirror @0 @1", vols("v 16 16K", "w 16 8K"), drives=offline),
        case("drive-offline-raidz1", "raidz1 @0 @1 @2", vols("v 16 16K", "w 16 64K"), drives=offline),
        case("drive-midresilver", "mirror @0 @1", vols("v 32 16K", "w 16 8K"), drives=midresilver, new=2),
        case("drive-midresilver-raidz2", "raidz2 @0 @1 @2 @3", vols("v 32 16K", "w 16 8K"), drives=midresilver, new=4),
        case("drive-midreturn", "mirror @0 @1", vols("v 32 16K", "w 16 8K"), drives=midreturn),
        case("drive-midreturn-raidz1", "raidz1 @0 @1 @2", vols("v 32 16K", "w 16 8K"), drives=midreturn),
        case("drive-spare", "mirror @0 @1 spare @2", vols("v 16 16K", "w 16 8K"), drives=spare),
        case("drive-spare-raidz1", "raidz1 @0 @1 @2 spare @3", vols("v 16 16K", "w 16 8K"), drives=spare),
        case("drive-scrub", "mirror @0 @1", vols("v 64 16K", "w 32 8K"), size=256, drives=scrub),
        case("drive-errors", "@0", vols("v 16 16K"), size=96, drives=errors),
        case("drive-sweeps", "mirror @0 @1", vols("v 16 16K"), size=256, drives=sweeps),
        case("drive-module-offline", "raidz2 @0 @1 @2 @3 @4 @5", vols("v 16 16K", "w 8 4K"), size=96, drives=module_offline),
        case("drive-module-degraded", "raidz2 @0 @1 @2 @3 @4 @5", vols("v 16 16K", "w 8 4K"), size=96, drives=module_degraded),
        case("drive-module-midresilver", "mirror @0 @1", vols("v 32 16K"), drives=module_midresilver, new=2),
        case("drive-module-midresilver-raidz1", "raidz1 @0 @1 @2", vols("v 32 16K"), drives=module_midresilver, new=3, export=True),
        case("drive-module-spare", "mirror @0 @1 spare @2", vols("v 16 16K"), drives=module_spare),
    ]
