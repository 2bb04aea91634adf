//! The device tree in the configuration, rearranged: a device gets a parent, a parent another child, a child leaves.
//!
//! What belongs to the place of a top-level device (its space maps, its size) moves to whoever stands in that place.
//! Facts: docs/format/vdevs.md §1.2, §8.

use ondisk::nvlist::{NvList, Value};

use crate::create::config::{pair_mut, tops_mut, walk_mut};

/// Pairs of a top-level device that stay in its place.
const OF_TOPS: [&str; 9] = [
    "metaslab_array",
    "metaslab_shift",
    "ashift",
    "asize",
    "is_log",
    "removing",
    "non_allocating",
    "alloc_bias",
    "com.delphix:vdev_zap_top",
];

/// The top-level devices of a configuration.
pub(super) fn tops(config: &NvList) -> Vec<&NvList> {
    let root = config.nvlist("vdev_tree");
    root.and_then(|root| root.nvlist_array("children")).unwrap_or_default().iter().collect()
}

/// Changes the list of device `guid`. False if there is none.
pub(crate) fn edit(config: &mut NvList, guid: u64, change: impl FnOnce(&mut NvList)) -> bool {
    let mut change = Some(change);
    for top in tops_mut(config) {
        walk_mut(top, &mut |list| {
            // Once: what it becomes may have the device below it.
            if list.u64("guid") == Some(guid)
                && guid != 0
                && let Some(change) = change.take()
            {
                change(list);
            }
        });
    }
    change.is_none()
}

/// Puts a new interior device of `kind` in the place of device `guid`, which becomes its first child, and `beside` its
/// second.
pub(super) fn wrap(config: &mut NvList, guid: u64, kind: &str, own_guid: u64, mut beside: NvList) -> bool {
    edit(config, guid, |list| {
        let mut first = std::mem::take(list);
        list.flags = first.flags;
        list.set("type", kind);
        list.set("id", first.u64("id").unwrap_or(0));
        list.set("guid", own_guid);
        move_place(&mut first, list);
        if let Some(txg) = first.u64("create_txg") {
            list.set("create_txg", txg);
        }
        first.set("id", 0_u64);
        beside.set("id", 1_u64);
        list.set("children", vec![first, beside]);
    })
}

/// Makes `child` the last child of device `guid`.
pub(super) fn append(config: &mut NvList, guid: u64, mut child: NvList) -> bool {
    edit(config, guid, |list| {
        if let Some(Value::NvListArray(children)) = pair_mut(list, "children") {
            child.set("id", children.len() as u64);
            children.push(child);
        }
    })
}

/// Takes child `guid` out of interior device `parent`, whose place the last one left takes.
pub(super) fn take_out(config: &mut NvList, parent: u64, guid: u64) -> bool {
    edit(config, parent, |list| {
        let Some(Value::NvListArray(children)) = pair_mut(list, "children") else { return };
        children.retain(|child| child.u64("guid") != Some(guid));
        for (child, id) in children.iter_mut().zip(0_u64..) {
            child.set("id", id);
        }
        if children.len() == 1
            && let Some(mut last) = children.pop()
        {
            last.set("id", list.u64("id").unwrap_or(0));
            move_place(list, &mut last);
            *list = last;
        }
    })
}

fn move_place(from: &mut NvList, to: &mut NvList) {
    for name in OF_TOPS {
        if let Some(value) = from.remove(name) {
            to.set(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(word: &str, id: u64, guid: u64) -> NvList {
        let mut list = NvList::new();
        list.set("type", word);
        list.set("id", id);
        list.set("guid", guid);
        list.set("create_txg", 4_u64);
        list
    }

    fn pool(top: NvList) -> NvList {
        let mut root = NvList::new();
        root.set("children", vec![device("hole", 0, 0), top]);
        let mut config = NvList::new();
        config.set("vdev_tree", root);
        config
    }

    fn draw(list: &NvList) -> String {
        let children: Vec<String> =
            list.nvlist_array("children").unwrap_or_default().iter().map(draw).collect();
        let place = if list.contains("asize") { "*" } else { "" };
        let id = list.u64("id").unwrap();
        let name = format!("{}{place}{}#{id}", list.str("type").unwrap(), list.u64("guid").unwrap());
        if children.is_empty() { name } else { format!("{name}({})", children.join(" ")) }
    }

    #[test]
    fn places_pass_from_one_to_the_other() {
        let mut disk = device("disk", 1, 10);
        disk.set("asize", 1_u64);
        disk.set("com.delphix:vdev_zap_top", 7_u64);
        disk.set("com.delphix:vdev_zap_leaf", 8_u64);
        let mut config = pool(disk);
        let top = |config: &NvList| draw(tops(config)[1]);
        assert!(wrap(&mut config, 10, "mirror", 20, device("disk", 9, 11)));
        assert_eq!(top(&config), "mirror*20#1(disk10#0 disk11#1)");
        assert!(tops(&config)[1].contains("com.delphix:vdev_zap_top"));
        assert!(append(&mut config, 20, device("disk", 9, 12)));
        assert!(wrap(&mut config, 11, "replacing", 21, device("disk", 9, 13)));
        assert_eq!(top(&config), "mirror*20#1(disk10#0 replacing21#1(disk11#0 disk13#1) disk12#2)");
        assert!(take_out(&mut config, 20, 10));
        assert_eq!(top(&config), "mirror*20#1(replacing21#0(disk11#0 disk13#1) disk12#1)");
        assert!(take_out(&mut config, 20, 12));
        assert_eq!(top(&config), "replacing*21#1(disk11#0 disk13#1)");
        assert!(take_out(&mut config, 21, 11));
        assert_eq!(top(&config), "disk*13#1");
        assert!(!take_out(&mut config, 21, 13) && !append(&mut config, 0, device("disk", 0, 1)));
    }
}
