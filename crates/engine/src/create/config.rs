//! The pool's configuration: a list that names all devices, kept in the MOS and, cut to one top-level device each,
//! in labels. Facts: docs/format/labels.md §4, mos.md §4, vdevs.md §1.2.

use ondisk::{
    label::PoolState,
    nvlist::{NvList, Value},
    uberblock::VERSION_FEATURES,
};

use super::{
    plan::{PlannedLeaf, PlannedTop},
    spec::{Shape, Use},
};

/// Who writes to a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its id; 0 if it has none.
    pub id: u64,
    /// Its name.
    pub name: String,
}

/// The top-level devices of a configuration.
pub(crate) fn tops_mut(config: &mut NvList) -> &mut [NvList] {
    match pair_mut(config, "vdev_tree") {
        Some(Value::NvList(root)) => match pair_mut(root, "children") {
            Some(Value::NvListArray(tops)) => tops,
            _ => &mut [],
        },
        _ => &mut [],
    }
}

/// Every device of a configuration, parents first.
pub(crate) fn walk_mut(list: &mut NvList, visit: &mut dyn FnMut(&mut NvList)) {
    visit(list);
    if let Some(Value::NvListArray(children)) = pair_mut(list, "children") {
        children.iter_mut().for_each(|child| walk_mut(child, visit));
    }
}

pub(crate) fn pair_mut<'a>(list: &'a mut NvList, name: &str) -> Option<&'a mut Value> {
    list.pairs.iter_mut().find(|(key, _)| key == name).map(|(_, value)| value)
}

/// The host into a configuration.
pub(crate) fn set_host(config: &mut NvList, host: &Host) {
    match host.id {
        0 => drop(config.remove("hostid")),
        id => config.set("hostid", id),
    }
    config.set("hostname", host.name.as_str());
}

/// The configuration of a new pool without devices.
pub(super) fn new_pool(name: &str, guid: u64, host: &Host, txg: u64) -> NvList {
    let mut config = NvList::new();
    config.set("version", VERSION_FEATURES);
    config.set("name", name);
    config.set("state", PoolState::Active.id());
    config.set("txg", 0_u64);
    config.set("pool_guid", guid);
    config.set("errata", 0_u64);
    set_host(&mut config, host);
    config.set(super::HAS_VDEV_ZAPS, Value::Boolean);
    config.set("vdev_children", 0_u64);
    let mut root = NvList::new();
    root.set("type", "root");
    root.set("id", 0_u64);
    root.set("guid", guid);
    root.set("create_txg", txg);
    root.set("children", Vec::<NvList>::new());
    config.set("vdev_tree", root);
    config.set("features_for_read", NvList::new());
    config
}

/// Object numbers of the ZAPs of one top-level device.
pub(super) struct Zaps {
    pub(super) top: u64,
    pub(super) leaves: Vec<u64>,
}

/// A new top-level device. `guids` are its own and those of its leaves if it is not one itself; they say nothing of
/// `zaps` yet when it is 0.
pub(super) fn top(plan: &PlannedTop, id: u64, guids: &[u64], zaps: &Zaps, txg: u64) -> NvList {
    let mut list = NvList::new();
    let single = plan.shape == Shape::Single;
    list.set(
        "type",
        match plan.shape {
            Shape::Single => leaf_type(&plan.leaves[0]),
            Shape::Mirror => "mirror",
            Shape::Raidz(_) => "raidz",
        },
    );
    list.set("id", id);
    list.set("guid", guids[0]);
    if let Shape::Raidz(parity) = plan.shape {
        list.set("nparity", u64::from(parity));
    }
    if single {
        place(&mut list, &plan.leaves[0]);
    }
    list.set("metaslab_array", 0_u64);
    list.set("metaslab_shift", u64::from(plan.metaslab_shift));
    list.set("ashift", u64::from(plan.ashift));
    list.set("asize", plan.asize);
    list.set("is_log", u64::from(plan.purpose == Use::Log));
    list.set("create_txg", txg);
    let own = |list: &mut NvList, name: &str, object: u64| {
        if object != 0 {
            list.set(name, object);
        }
    };
    if single {
        own(&mut list, "com.delphix:vdev_zap_leaf", zaps.leaves[0]);
        own(&mut list, "com.delphix:vdev_zap_top", zaps.top);
        return list;
    }
    let child = |(i, leaf): (usize, &PlannedLeaf)| {
        let mut list = NvList::new();
        list.set("type", leaf_type(leaf));
        list.set("id", i as u64);
        list.set("guid", guids[i + 1]);
        place(&mut list, leaf);
        list.set("create_txg", txg);
        own(&mut list, "com.delphix:vdev_zap_leaf", zaps.leaves[i]);
        list
    };
    let children: Vec<NvList> = plan.leaves.iter().enumerate().map(child).collect();
    list.set("children", children);
    own(&mut list, "com.delphix:vdev_zap_top", zaps.top);
    list
}

/// A spare or cache device, as the MOS lists it.
pub(super) fn auxiliary(leaf: &PlannedLeaf, guid: u64, txg: u64) -> NvList {
    let mut list = NvList::new();
    list.set("type", leaf_type(leaf));
    list.set("guid", guid);
    place(&mut list, leaf);
    list.set("create_txg", txg);
    list
}

/// Appends a top-level device.
pub(super) fn push_top(config: &mut NvList, top: NvList) {
    if let Some(Value::NvList(root)) = pair_mut(config, "vdev_tree")
        && let Some(Value::NvListArray(tops)) = pair_mut(root, "children")
    {
        tops.push(top);
        let count = tops.len() as u64;
        config.set("vdev_children", count);
    }
}

/// Takes a top-level device out, which leaves a hole, or nothing if it is the last.
pub(super) fn remove_top(config: &mut NvList, id: u64, leaves_nothing: bool, txg: u64) {
    let (mut count, mut holes) = (0, Vec::new());
    if let Some(Value::NvList(root)) = pair_mut(config, "vdev_tree")
        && let Some(Value::NvListArray(tops)) = pair_mut(root, "children")
    {
        if leaves_nothing {
            tops.truncate(id as usize);
        } else if let Some(top) = tops.get_mut(id as usize) {
            *top = hole(id, txg);
        }
        count = tops.len() as u64;
        let is_hole = |top: &&NvList| top.str("type") == Some("hole");
        holes.extend(tops.iter().filter(is_hole).filter_map(|top| top.u64("id")));
    }
    config.set("vdev_children", count);
    if holes.is_empty() {
        config.remove("hole_array");
    } else {
        config.set("hole_array", holes);
    }
}

/// The place of a device that is gone.
fn hole(id: u64, txg: u64) -> NvList {
    let mut list = NvList::new();
    list.set("type", "hole");
    list.set("id", id);
    for name in ["guid", "metaslab_array", "metaslab_shift", "ashift", "asize", "is_log"] {
        list.set(name, 0_u64);
    }
    list.set("is_hole", 1_u64);
    list.set("create_txg", txg);
    list
}

fn leaf_type(leaf: &PlannedLeaf) -> &'static str {
    if leaf.facts.block_device { "disk" } else { "file" }
}

fn place(list: &mut NvList, leaf: &PlannedLeaf) {
    list.set("path", leaf.path.as_str());
    if leaf.facts.block_device {
        // We never partition disks: what was named is used as it is.
        list.set("whole_disk", 0_u64);
    }
}
