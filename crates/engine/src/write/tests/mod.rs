//! What is written is read back by the pool's reader, with every set of leaves missing that redundancy allows.
//!
//! The bench is a pool of memory disks and free space that a test cuts as it likes; the reader is another
//! `PoolIo` without cache over the same disks.

mod bench;
mod direct;
mod failures;
mod gangs;
mod memory;
mod places;
mod rules;

/// The writer lives in a task of any runtime, behind references too.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<crate::write::BlockWriter>();
    shared::<crate::write::BlockWriter<bench::Space>>();
};
