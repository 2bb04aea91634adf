#!/usr/bin/env python3
"""Makes a pool with one large, full volume, quickly: the subject of the verify benchmark.

    benches/mkpool.py IMAGE [--data-size 2560M] [--volblocksize 16K] [any option of docs/format/mkpool.py]

docs/format/mkpool.py does the work. Added here: trees of any depth, and content made of a few hundred
distinct blocks of random bytes, so that their checksums are computed once. The image is sparse and four
times as large as its data, because that writer keeps each copy of metadata in its own third of the device.
"""
import functools, os, random, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'docs', 'format'))
import mkpool

DISTINCT = 256


def size_of(text):
    units = {'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


class Content:
    """A volume's bytes, block by block."""

    def __init__(self, size, block):
        rng = random.Random(1)
        self.size, self.block = size // block * block, block
        self.blocks = [rng.randbytes(block) for _ in range(DISTINCT)]

    def __len__(self):
        return self.size

    def __getitem__(self, part):
        number = part.start // self.block
        # No two neighbours alike, and no period that matches an indirect block.
        return self.blocks[(number * 7 + number // 1000) % DISTINCT]


class Volume(mkpool.Obj):
    """An object with as many levels as its blocks need."""

    def plan(self, pool, meta_copies, data_copies):
        self.holes = []
        self.d = {i: pool.alloc(self.blksz, data_copies) for i in range(self.nb)}
        self.l1, self.tree, count = [], [], self.nb
        while count > self.nblkptr:
            count = -(-count // (1 << (self.ibs - 7)))
            self.tree.append([pool.alloc(1 << self.ibs, meta_copies) for _ in range(count)])
            self.l1 += self.tree[-1]
        self.levels = 1 + len(self.tree)
        self.used = sum(s for v in list(self.d.values()) + self.l1 for _, s in v)

    def dnode(self, pool):
        pointers = [pool.bp(self.d[i], self.data[i * self.blksz:], self.typ, 0, 1) for i in range(self.nb)]
        fills, fan = [1] * self.nb, 1 << (self.ibs - 7)
        for level, places in enumerate(self.tree, 1):
            above, above_fills = [], []
            for i, place in enumerate(places):
                block = b''.join(pointers[i * fan:(i + 1) * fan])
                fill = sum(fills[i * fan:(i + 1) * fan])
                above.append(pool.bp(place, block.ljust(1 << self.ibs, b'\0'), self.typ, level, fill))
                above_fills.append(fill)
            pointers, fills = above, above_fills
        pointers += [bytes(128)] * (self.nblkptr - len(pointers))
        head = mkpool.struct.pack('<8BHHB3xQQ32x', self.typ, self.ibs, self.levels, self.nblkptr, 0, 0, 0, 1,
                                  self.blksz >> 9, 0, 0, self.nb - 1, self.used)
        return (head + b''.join(pointers)).ljust(512, b'\0')


def take(option, default):
    """The value of an option of ours, removed from the command line."""
    if option not in sys.argv:
        return default
    at = sys.argv.index(option)
    value = sys.argv[at + 1]
    del sys.argv[at:at + 2]
    return value


def main():
    data_size = size_of(take('--data-size', '2560M'))
    block = size_of(take('--volblocksize', '16K'))
    content = Content(data_size, block)
    plain = mkpool.Obj
    mkpool.Obj = lambda typ, data=b'', *rest, **named: (
        Volume(typ, content, block) if typ == 23 else plain(typ, data, *rest, **named))
    mkpool.fletcher4 = functools.lru_cache(maxsize=4 * DISTINCT)(mkpool.fletcher4)
    # A third, rounded down to metaslabs, must hold the data and one copy of the metadata.
    size = (data_size * 4 + (256 << 20)) >> 20
    sys.argv += ['--volblocksize', str(block), '--volsize', str(len(content))]
    if '--size' not in sys.argv:
        sys.argv += ['--size', f'{size}M']
    mkpool.main()


if __name__ == '__main__':
    main()
