//! What the real OpenZFS printed about each fixture when it was made, we print too: `zpool status` to the letter,
//! `zpool list -v`, `zfs get all` and `zpool get all` in everything that is not of the moment.

use std::{collections::BTreeMap, fs, os::unix::fs::symlink};

use fixtures::Fixture;

use crate::support::Lab;

/// Space that a pool imported read-only reported as nothing, and what each import makes up anew.
const POOL_MOMENT: [&str; 6] = ["load_guid", "cachefile", "free", "allocated", "capacity", "fragmentation"];

/// The fixture's images where its maker had them: in a directory `img`, under the names of its pool.
fn as_made(fixture: &Fixture) -> Lab {
    let lab = Lab::empty();
    fs::create_dir(lab.cwd().join("img")).unwrap();
    // Damaged copies of a pool carry the damage in their names; the pool still remembers the names it was made with.
    let status = fixture.manifest.zpool_status.as_deref().unwrap_or_default();
    let made: Vec<&str> = status.split_whitespace().filter_map(|word| word.strip_prefix("img/")).collect();
    let images = fixture.images();
    for (i, image) in images.iter().enumerate() {
        let own = image.file_name().unwrap().to_str().unwrap();
        let name = made.get(i).copied().filter(|_| made.len() == images.len()).unwrap_or(own);
        symlink(fs::canonicalize(image).unwrap(), lab.cwd().join("img").join(name)).unwrap();
    }
    lab
}

fn print(lab: &Lab, line: &str) -> String {
    let outcome = lab.run(line);
    assert_eq!(outcome.code, Some(0), "{line}: {}", outcome.stderr);
    outcome.stdout
}

#[test]
fn zpool_status_is_as_openzfs_printed_it() {
    let mut compared = 0;
    for fixture in fixtures::all() {
        let Some(theirs) = &fixture.manifest.zpool_status else { continue };
        // Disks were taken away or damaged after it was printed: there is more to say now.
        if !fixture.manifest.absent.is_empty() || !fixture.manifest.damage.is_empty() {
            continue;
        }
        let ours = print(&as_made(&fixture), "-d img zpool status");
        // It does not say whose logs hold more than what is shown.
        let (logs, ours): (Vec<&str>, Vec<&str>) =
            ours.trim_end().lines().partition(|line| line.starts_with("   log: "));
        assert_eq!(ours.join("\n"), theirs.trim_end(), "{}", fixture.name);
        assert_eq!(!logs.is_empty(), fixture.name.starts_with("crash-"), "{}: {logs:?}", fixture.name);
        compared += 1;
    }
    eprintln!("{compared} pools");
    assert!(compared >= 15);
}

/// The first column, the size, and the last two: health and altroot. What lies between is of the moment.
fn fixed_cells(line: &str) -> Vec<&str> {
    let cells: Vec<&str> = line.split('\t').collect();
    match cells.len() {
        0 | 1 => line.split_whitespace().take(1).collect(),
        n => {
            let name = cells.iter().position(|cell| !cell.is_empty()).unwrap();
            vec![cells[name], cells[name + 1], cells[n - 2], cells[n - 1]]
        }
    }
}

#[test]
fn zpool_list_v_is_as_openzfs_printed_it() {
    let mut compared = 0;
    for fixture in fixtures::all() {
        let Some(theirs) = &fixture.manifest.zpool_list_v else { continue };
        if !fixture.manifest.absent.is_empty() {
            continue;
        }
        let ours = print(&as_made(&fixture), "-d img zpool list -Hpv");
        let ours: Vec<Vec<&str>> = ours.lines().map(fixed_cells).collect();
        let theirs: Vec<Vec<&str>> = theirs.trim_end().lines().map(fixed_cells).collect();
        assert_eq!(ours, theirs, "{}", fixture.name);
        compared += 1;
    }
    assert!(compared >= 15);
}

#[test]
fn zpool_get_all_is_as_openzfs_printed_it() {
    let mut compared = 0;
    for fixture in fixtures::all() {
        if fixture.manifest.zpool_get.is_empty() {
            continue;
        }
        let text = print(&as_made(&fixture), "-d img zpool get -Hp all");
        let mut seen = 0;
        for line in text.lines() {
            let cells: Vec<&str> = line.split('\t').collect();
            let [_, name, value, source] = cells[..] else { panic!("{line:?} has not four cells") };
            let theirs = &fixture.manifest.zpool_get[name];
            seen += 1;
            let degraded = name == "health" && !fixture.manifest.absent.is_empty();
            if !POOL_MOMENT.contains(&name) && !degraded {
                assert_eq!(
                    (value, source),
                    (theirs.value.as_str(), theirs.source.as_str()),
                    "{} {name}",
                    fixture.name
                );
            }
        }
        assert_eq!(seen, fixture.manifest.zpool_get.len(), "{}", fixture.name);
        compared += seen;
    }
    eprintln!("{compared} properties");
    assert!(compared > 1000);
}

#[test]
fn zfs_get_all_is_as_openzfs_printed_it() {
    let mut compared = 0;
    let mut wrong = Vec::new();
    for fixture in fixtures::all() {
        // Crashed pools are read without replay; their manifest is of after it.
        if fixture.manifest.zfs_get.is_empty() || fixture.name.starts_with("crash-") {
            continue;
        }
        let text = print(&as_made(&fixture), "-d img zfs get -rHp all");
        let mut ours: BTreeMap<(&str, &str), (&str, &str)> = BTreeMap::new();
        for line in text.lines() {
            let cells: Vec<&str> = line.split('\t').collect();
            let [dataset, name, value, source] = cells[..] else { panic!("{line:?} has not four cells") };
            ours.insert((dataset, name), (value, source));
        }
        for (dataset, properties) in &fixture.manifest.zfs_get {
            for (name, theirs) in properties {
                let ours = ours.remove(&(dataset.as_str(), name.as_str()));
                if ours != Some((theirs.value(), theirs.source())) {
                    wrong.push(format!("{}: {dataset} {name}: {ours:?}, should be {theirs:?}", fixture.name));
                }
                compared += 1;
            }
        }
        let bookmarks = ours.into_keys().filter(|(dataset, _)| !dataset.contains('#')).collect::<Vec<_>>();
        assert_eq!(bookmarks, [], "{}: more than OpenZFS printed", fixture.name);
    }
    eprintln!("{compared} properties");
    assert!(wrong.is_empty(), "{} of {compared} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared > 5000);
}
