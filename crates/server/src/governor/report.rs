//! What the control socket shows of memory: the limit, who holds what, what is shed and why.

use ::memory::plan::Stage;
use pool::cache::ArcStats;

use super::{Governor, origin};
use crate::{api::memory as api, ops::Host};

impl Governor {
    /// Adds what it decides to what the ARC counted.
    pub fn tell(&self, stats: &mut ArcStats) {
        let state = self.state.lock();
        let terms = state.plan.terms();
        (stats.c_min, stats.c_max) = (terms.least, terms.cap);
        stats.arc_no_grow = u64::from(!state.verdict.may_grow);
        stats.arc_need_free = state.verdict.lacks;
        stats.memory_throttle_count = state.squeezes;
    }

    /// As of now, what is read outside as of the last look.
    #[must_use]
    pub fn report(&self, host: &Host) -> api::Memory {
        let terms = self.terms();
        let (limit, sight, verdict, shed_since, shed_times) = {
            let state = self.state.lock();
            (state.limit.clone(), state.sight, state.verdict, state.shed_since, state.shed_times)
        };
        let arc = host.cache().stats();
        let mut parts: Vec<api::Part> = Vec::new();
        let mut part =
            |name: String, bytes: u64, most: Option<u64>| parts.push(api::Part { name, bytes, most });
        part("arc data".into(), arc.data_size, None);
        part("arc metadata".into(), arc.metadata_size, None);
        part("arc headers, policies, ghosts".into(), arc.hdr_size, None);
        let (mut scans, mut tiers, mut spaces) = (0, 0, 0);
        for held in host.all() {
            let Some(engine) = held.engine() else { continue };
            let most = Some(engine.limits().dirty_max);
            part(format!("dirty data of {}", held.name()), engine.txgs().dirty(), most);
            let (bytes, most) = engine.write_memory();
            part(format!("parity, copies, writes under way of {}", held.name()), bytes, Some(most));
            scans += engine.scan_memory();
            tiers += engine.second().memory();
            spaces += engine.space_memory();
        }
        part("requests in flight".into(), self.gate.used(), Some(self.gate.max()));
        part("receive buffers, unasked data".into(), self.gate.buffers(), None);
        part("cache devices: index and queue".into(), tiers, None);
        part("scans".into(), scans, None);
        part("what is known of free space".into(), spaces, None);
        part("I/O buffers kept for use again".into(), disk::bytes_idle() as u64, None);
        let counted: u64 = parts.iter().map(|part| part.bytes).sum();
        let resident = self.machine.resident().unwrap_or(sight.resident);
        let rest = resident.saturating_sub(counted);
        let base = self.base.min(rest);
        parts.push(api::Part { name: "the program itself".into(), bytes: base, most: None });
        parts.push(api::Part { name: "not counted elsewhere".into(), bytes: rest - base, most: None });
        let hits = self.cgroup.hits();
        api::Memory {
            limit: limit.bytes,
            limit_from: origin(&limit),
            resident,
            resident_max: self.machine.resident_max().unwrap_or(resident),
            reserve: terms.reserve,
            overhead: verdict.overhead,
            parts,
            arc_size: arc.size,
            arc_target: verdict.target,
            arc_max: terms.cap,
            arc_bound_by: verdict.why.word().to_owned(),
            connections: self.gate.members() as u64,
            waiting: self.gate.waiting() as u64,
            waits: self.gate.waits(),
            shed: verdict.stage.names().iter().map(|name| (*name).to_owned()).collect(),
            shed_why: (verdict.stage > Stage::Nothing).then(|| self.why(verdict.why, &sight)),
            shed_since,
            shed_times,
            cgroup: self.cgroup.room().map(|room| api::Cgroup {
                name: room.bound.cgroup.clone(),
                file: room.bound.file.to_owned(),
                limit: room.bound.bytes,
                used: room.used,
                limit_hits: hits.limit,
                kills: hits.kills,
            }),
            machine_total: self.machine.total().unwrap_or(0),
            machine_available: self.machine.available().unwrap_or(0),
            stall_percent: sight.stall.percent,
            oom_score_adj: self.machine.oom_score(),
            allocator: self.allocator.as_ref().map(|allocator| {
                let (in_use, held) = allocator.in_use().unwrap_or_default();
                api::Allocator { name: allocator.name().to_owned(), in_use, held }
            }),
        }
    }
}
