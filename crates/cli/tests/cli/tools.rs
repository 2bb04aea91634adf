//! `verify`, `image`, `ls`, `cat`, `get` and `dump` on real pools, against what their manifests say.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read as _,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::Path,
};

use fixtures::{Entry, Fixture};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::support::Lab;

/// SHA-256 of a file, in hex.
fn hash(path: &Path) -> String {
    let (mut file, mut sum, mut buf) = (File::open(path).unwrap(), Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buf).unwrap() {
            0 => return hex(sum),
            len => sum.update(&buf[..len]),
        }
    }
}

fn hex(sum: Sha256) -> String {
    sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The fixtures that are in the repository.
fn own() -> impl Iterator<Item = Fixture> {
    let archives = fixtures::repository().join("tests/fixtures/pools");
    fixtures::ALL
        .into_iter()
        .filter(move |name| archives.join(format!("{name}.tar.zst")).exists())
        .map(fixtures::pool)
}

fn dir(fixture: &Fixture) -> &str {
    fixture.dir.to_str().expect("a path in text")
}

#[test]
fn images_hash_to_the_manifest_and_are_sparse() {
    let lab = Lab::empty();
    let mut images = 0;
    for fixture in own() {
        // What a crashed pool's volumes hold is only right after the replay of its logs; snapshots are.
        let crashed = fixture.name.starts_with("crash-");
        for zvol in fixture.manifest.zvols.iter().filter(|zvol| !crashed || zvol.name.contains('@')) {
            let out = lab.path("image");
            let args = ["-d", dir(&fixture), "image", "-f", &zvol.name, "-o", out.to_str().unwrap()];
            lab.run_args("millpond", args).ok();
            let metadata = fs::metadata(&out).unwrap();
            assert_eq!((metadata.len(), hash(&out)), (zvol.size, zvol.sha256.clone()), "{}", zvol.name);
            // The data of each of these volumes is a small part of its size.
            assert!(metadata.blocks() * 512 <= zvol.size, "{}: {} blocks", zvol.name, metadata.blocks());
            images += 1;
        }
    }
    assert!(images > 50, "{images}");
    let left: Vec<_> = fs::read_dir(lab.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.as_bytes().ends_with(b".partial")), "{left:?}");
}

#[test]
fn an_image_to_standard_output_is_whole_and_a_bad_one_leaves_nothing() {
    let fixture = fixtures::pool("single");
    let lab = Lab::empty();
    let zvol = &fixture.manifest.zvols[0];
    let output =
        lab.command("millpond").args(["-d", dir(&fixture), "image", &zvol.name, "-o", "-"]).output().unwrap();
    assert!(output.status.success());
    let mut sum = Sha256::new();
    sum.update(&output.stdout);
    assert_eq!((output.stdout.len() as u64, hex(sum)), (zvol.size, zvol.sha256.clone()));

    let pool = &fixture.manifest.pool;
    for (volume, target, says) in [
        (format!("{pool}/nothing"), "x", "dataset does not exist"),
        (pool.clone(), "x", "is not a volume"),
        (zvol.name.clone(), ".", "it is a directory"),
        (zvol.name.clone(), "no/where", "No such file or directory"),
    ] {
        let error = lab.run_args("millpond", ["-d", dir(&fixture), "image", &volume, "-o", target]).fails(1);
        assert!(error.contains(says), "{volume} to {target}: {error}");
    }
    assert_eq!(fs::read_dir(lab.cwd()).unwrap().count(), 0, "nothing is left behind");
}

/// What the file system at `path` says of an entry, as the manifest writes it.
fn compare_entry(name: &str, root: &Path, entry: &Entry, is_root: bool) {
    let path = root.join(&entry.path);
    let metadata = match fs::symlink_metadata(&path) {
        Err(error) if entry.kind == "p" => return assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
        other => other.unwrap_or_else(|error| panic!("{name}: {}: {error}", path.display())),
    };
    let kind = match () {
        () if metadata.is_dir() => "d",
        () if metadata.is_symlink() => "l",
        () => "f",
    };
    assert_eq!(kind, entry.kind, "{name}: {}", entry.path);
    if kind == "l" {
        let target = fs::read_link(&path).unwrap();
        return assert_eq!(target.to_str(), entry.target.as_deref(), "{name}: {}", entry.path);
    }
    let mode = u32::from_str_radix(&entry.mode, 8).unwrap();
    assert_eq!(
        metadata.mode() & 0o7777,
        if is_root { mode } else { mode & 0o1777 },
        "{name}: {}",
        entry.path
    );
    assert_eq!(
        format!("{}.{:09}", metadata.mtime(), metadata.mtime_nsec()),
        entry.mtime,
        "{name}: {}",
        entry.path
    );
    if is_root {
        assert_eq!((metadata.uid(), metadata.gid()), (entry.uid, entry.gid), "{name}: {}", entry.path);
    }
    if kind == "f" {
        assert_eq!(Some(metadata.len()), entry.size, "{name}: {}", entry.path);
        assert_eq!(Some(hash(&path)), entry.sha256, "{name}: {}", entry.path);
        if let Some(links) = entry.nlink {
            assert_eq!(metadata.nlink(), links, "{name}: {}", entry.path);
        }
    }
}

#[test]
fn trees_come_out_as_the_manifest_says() {
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    let mut entries_seen = 0;
    for fixture in ["files", "single", "ashift9-raidz1x4"].map(fixtures::pool) {
        let lab = Lab::empty();
        for (number, (name, entries)) in fixture.manifest.filesystems.iter().enumerate() {
            let target = lab.path(&format!("out{number}"));
            let args = ["-d", dir(&fixture), "get", "-o", target.to_str().unwrap(), name, "/"];
            let outcome = lab.run_args("millpond", args);
            let pipes = entries.iter().any(|entry| entry.kind == "p");
            assert_eq!(outcome.code, Some(i32::from(pipes)), "{name}: {}", outcome.stderr);
            for entry in entries {
                compare_entry(name, &target, entry, is_root);
                entries_seen += 1;
            }
            // Never over what is there.
            assert_ne!(lab.run_args("millpond", args).code, None);
            let again = lab.run_args(
                "millpond",
                ["-d", dir(&fixture), "get", "-o", target.join("x/y").to_str().unwrap(), name, "/"],
            );
            assert_eq!(again.code, Some(1));
        }
    }
    assert!(entries_seen > 100, "{entries_seen}");
}

#[test]
fn listings_and_contents_agree_with_the_manifest() {
    let fixture = fixtures::pool("files");
    let lab = Lab::empty();
    for (name, entries) in &fixture.manifest.filesystems {
        let text = lab.run_args("millpond", ["-d", dir(&fixture), "ls", "-R", "-j", name]).ok();
        let listing: Value = serde_json::from_str(&text).unwrap();
        let listed: BTreeMap<&str, &Value> =
            listing["entries"].as_array().unwrap().iter().map(|e| (e["path"].as_str().unwrap(), e)).collect();
        assert_eq!(listed.len(), entries.len() - 1, "{name}: all but the root itself");
        for entry in entries.iter().filter(|entry| entry.path != ".") {
            let found = listed
                .get(format!("/{}", entry.path).as_str())
                .unwrap_or_else(|| panic!("{name}: {}", entry.path));
            let mode = u32::from_str_radix(&entry.mode, 8).unwrap();
            assert_eq!(found["mode"], format!("{mode:o}"), "{name}: {}", entry.path);
            assert_eq!(
                (found["uid"].as_u64(), found["gid"].as_u64()),
                (Some(entry.uid.into()), Some(entry.gid.into()))
            );
            assert_eq!(found["target"].as_str(), entry.target.as_deref());
            assert_eq!(found["mtime"], entry.mtime.as_str());
            if entry.kind == "f" {
                assert_eq!(found["size"].as_u64(), entry.size);
            }
        }
        let files: Vec<&Entry> = entries.iter().filter(|entry| entry.kind == "f").collect();
        for entry in files.iter().step_by(files.len() / 10 + 1) {
            let output = lab
                .command("millpond")
                .args(["-d", dir(&fixture), "cat", name, &entry.path])
                .output()
                .unwrap();
            let mut sum = Sha256::new();
            sum.update(&output.stdout);
            assert_eq!(Some(hex(sum)), entry.sha256, "{name}: {}", entry.path);
        }
    }
    let name = fixture.manifest.filesystems.keys().next().unwrap();
    let long = lab.run_args("millpond", ["-d", dir(&fixture), "ls", "-l", name]).ok();
    assert!(long.lines().all(|line| line.len() > 40 && "dl-pscb".contains(&line[..1])), "{long}");
    for (args, says) in [
        (["cat", name.as_str(), "/"], "is a directory"),
        (["cat", name.as_str(), "/no/such"], "no such file or directory"),
        (["ls", name.as_str(), "/no/such"], "no such file or directory"),
        (["ls", "nopool/fs", "/"], "cannot open 'nopool': no such pool"),
        (["cat", fixture.manifest.pool.as_str(), "/../../etc/passwd"], "no such file or directory"),
    ] {
        let error = lab.run_args("millpond", ["-d", dir(&fixture)].into_iter().chain(args)).fails(1);
        assert!(error.contains(says), "{args:?}: {error}");
    }
}

#[test]
fn everything_can_be_dumped() {
    let lab = Lab::empty();
    for fixture in own() {
        let pool = &fixture.manifest.pool;
        let text = lab.run_args("millpond", ["-d", dir(&fixture), "dump", "-f", pool]).ok();
        assert!(
            text.contains("Dataset mos [META]:") && text.contains("rootbp: DVA[0]=<"),
            "{}: {text}",
            fixture.name
        );
        let all = ["-d", dir(&fixture), "dump", "-f", "-C", "-uu", "-DDD", "-mmm", "-i", "-H", "-j", pool];
        let lines = lab.run_args("millpond", all).ok();
        let mut sections: BTreeMap<String, u64> = BTreeMap::new();
        for line in lines.lines() {
            let document: Value =
                serde_json::from_str(line).unwrap_or_else(|e| panic!("{}: {e}: {line}", fixture.name));
            *sections.entry(document["section"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        for section in
            ["config", "uberblock", "dataset", "object", "block", "vdev", "metaslab", "segment", "history"]
        {
            assert!(
                sections.get(section).is_some_and(|count| *count > 0),
                "{}: no {section}: {sections:?}",
                fixture.name
            );
        }
        assert!(!sections.contains_key("error"), "{}: {sections:?}", fixture.name);
        let image = &fixture.images()[0];
        let labels = lab.run_args("millpond", ["dump", "-l", image.to_str().unwrap()]).ok();
        assert_eq!(labels.matches("checksum: good").count(), 4, "{}", fixture.name);
        assert!(labels.contains(&format!("name: {pool}")), "{labels}");
    }
    let noise = lab.path("noise");
    fs::write(&noise, vec![7; 70 << 20]).unwrap();
    let error = lab.run_args("millpond", ["dump", "-l", noise.to_str().unwrap()]).fails(1);
    assert!(error.contains("has no valid label"), "{error}");
}

#[test]
fn verify_counts_and_says_what_is_wrong_by_its_exit_code() {
    let lab = Lab::empty();
    let fixture = fixtures::pool("mirror2");
    let text = lab.run_args("millpond", ["-d", dir(&fixture), "verify", "-f", &fixture.manifest.pool]).ok();
    assert!(text.contains("all right: every copy of every block verifies"), "{text}");

    let copy = fixture.copy();
    let image = copy.path().join(&fixture.manifest.images[1].file);
    let mut bytes = fs::read(&image).unwrap();
    let end = bytes.len() - (512 << 10);
    for page in bytes[4 << 20..end].chunks_mut(4096).filter(|page| page.iter().any(|byte| *byte != 0)) {
        page[100] ^= 1;
    }
    fs::write(&image, bytes).unwrap();
    let outcome = lab.run_args(
        "millpond",
        ["-d", copy.path().to_str().unwrap(), "verify", "-f", "-j", &fixture.manifest.pool],
    );
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(
        (&report["clean"], &report["intact"]),
        (&Value::Bool(false), &Value::Bool(true)),
        "one side is whole"
    );
    let problems = report["problems"].as_array().unwrap();
    assert!(problems.len() > 500 && problems.iter().all(|problem| problem["kind"] == "repairable"));
    assert!(problems.iter().any(|problem| problem["path"].is_string()), "files are named");
    let guilty = image.file_name().unwrap().to_str().unwrap();
    let evidence = problems.iter().flat_map(|problem| problem["evidence"].as_array().unwrap());
    assert!(evidence.clone().count() > 500);
    evidence.for_each(|one| assert!(one["device"].as_str().unwrap().ends_with(guilty), "{one}"));
}
