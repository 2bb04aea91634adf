//! What real file systems hold, against what OpenZFS says they hold: every entry of every file system and
//! snapshot with its attributes, content and extended attributes.

use std::collections::BTreeMap;

use fixtures::Entry;
use ondisk::zpl::FileKind;
use pool::{
    import::open,
    zpl::{FileError, FileSystem, Follow, Node},
};
use sha2::{Digest, Sha256};

use crate::support::{anyhow, candidate};

/// Bytes of one read: no multiple of any record, so that edges are met.
const READ: usize = 300_001;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

async fn sha256(node: &Node) -> String {
    let mut hash = Sha256::new();
    let mut offset = 0;
    loop {
        let part = node.read(offset, READ).await.unwrap();
        hash.update(&part);
        offset += part.len() as u64;
        if part.len() < READ {
            assert_eq!(offset, node.stat().size);
            return hex(&hash.finalize());
        }
    }
}

/// Every difference between a node and what the manifest says of it.
async fn compare(path: &str, node: &Node, expected: &Entry) -> Vec<String> {
    let mut wrong = Vec::new();
    let stat = node.stat();
    let mut check = |what: &str, ours: String, theirs: String| {
        if ours != theirs {
            wrong.push(format!("{path}: {what} is {ours}, not {theirs}"));
        }
    };
    let kind = match node.kind() {
        FileKind::Regular => "f",
        FileKind::Directory => "d",
        FileKind::Symlink => "l",
        FileKind::Fifo => "p",
        _ => "other",
    };
    check("kind", kind.into(), expected.kind.clone());
    if kind != "l" {
        check("mode", format!("{:04o}", stat.mode & 0o7777), expected.mode.clone());
    }
    check("uid", stat.uid.to_string(), expected.uid.to_string());
    check("gid", stat.gid.to_string(), expected.gid.to_string());
    check("mtime", format!("{}.{:09}", stat.mtime.0, stat.mtime.1), expected.mtime.clone());
    if let Some(size) = expected.size {
        check("size", stat.size.to_string(), size.to_string());
    }
    if let Some(nlink) = expected.nlink {
        check("nlink", stat.links.to_string(), nlink.to_string());
    }
    if let Some(target) = &expected.target {
        let ours = node.target().await.unwrap().expect("a link has a target");
        check("target", String::from_utf8(ours).unwrap(), target.clone());
    }
    if let Some(sum) = &expected.sha256 {
        check("sha256", sha256(node).await, sum.clone());
    }
    let ours: BTreeMap<String, String> = node
        .xattrs()
        .await
        .unwrap()
        .into_iter()
        .map(|(name, value)| {
            (String::from_utf8(name).unwrap(), format!("{}:{:016x}", value.len(), fnv1a(&value)))
        })
        .collect();
    check("xattrs", format!("{ours:?}"), format!("{:?}", expected.xattrs));
    wrong
}

/// Every node of a file system by path, the root as `.`.
async fn walk(fs: &FileSystem) -> BTreeMap<String, Node> {
    let mut found = BTreeMap::new();
    let mut todo = vec![(String::new(), fs.root().await.unwrap())];
    while let Some((path, node)) = todo.pop() {
        if node.kind() == FileKind::Directory {
            for entry in node.entries().await.unwrap() {
                let child = fs.node(entry.object).await.unwrap();
                assert_eq!(child.kind(), entry.kind, "{path}: the directory knows the kind");
                let name = String::from_utf8(entry.name).unwrap();
                todo.push((if path.is_empty() { name } else { format!("{path}/{name}") }, child));
            }
        }
        found.insert(if path.is_empty() { ".".to_owned() } else { path }, node);
    }
    found
}

#[tokio::test]
async fn every_file_is_what_openzfs_says_it_is() {
    let (mut files, mut wrong) = (0, Vec::new());
    for fixture in fixtures::all() {
        if fixture.manifest.filesystems.is_empty() {
            continue;
        }
        let pool = open(&candidate(&fixture.dir).await, &anyhow()).await;
        let pool = pool.unwrap_or_else(|error| panic!("{}: {error}", fixture.name));
        for (name, entries) in &fixture.manifest.filesystems {
            // The manifest of a crashed pool shows it after the replay of its logs, which does not happen here:
            // unreplayed, each file system is what its snapshot `@before` is, which is compared.
            if fixture.name.starts_with("crash-") && !name.contains('@') {
                continue;
            }
            let dataset = pool.dsl().await.unwrap().lookup(name).await.unwrap();
            let fs = FileSystem::open(dataset.objset().await.unwrap()).await.unwrap();
            let nodes = walk(&fs).await;
            let listed: Vec<&str> = nodes.keys().map(String::as_str).collect();
            let mut expected: Vec<&str> = entries.iter().map(|entry| entry.path.as_str()).collect();
            expected.sort_unstable();
            assert_eq!(listed, expected, "{name}");
            for entry in entries {
                let path = format!("{}: {name}/{}", fixture.name, entry.path);
                wrong.extend(compare(&path, &nodes[&entry.path], entry).await);
                files += 1;
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differences, the first of them:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
    assert!(files > 4000, "the repository's own fixtures have more files than {files}");
}

#[tokio::test]
async fn paths_stay_inside_the_file_system() {
    let fixture = fixtures::pool("single");
    let pool = open(&candidate(&fixture.dir).await, &anyhow()).await.unwrap();
    let dataset = pool.dsl().await.unwrap().lookup("psingle/fs@s1").await.unwrap();
    let fs = FileSystem::open(dataset.objset().await.unwrap()).await.unwrap();
    let root = fs.root().await.unwrap();
    for path in ["", "/", ".", "../..", "/../.", "//"] {
        assert_eq!(
            fs.lookup(path.as_bytes(), Follow::Yes).await.unwrap().number(),
            root.number(),
            "{path:?}"
        );
    }
    let missing = fs.lookup(b"no/such", Follow::Yes).await.unwrap_err();
    assert_eq!(missing.to_string(), "/no: no such file or directory");
    let file = fixture.manifest.filesystems["psingle/fs@s1"].iter().find(|entry| entry.kind == "f").unwrap();
    let below = fs.lookup(format!("{}/x", file.path).as_bytes(), Follow::Yes).await.unwrap_err();
    assert!(matches!(below, FileError::NotDirectory { .. }), "{below}");
    for link in fixture.manifest.filesystems["psingle/fs@s1"].iter().filter(|entry| entry.kind == "l") {
        let node = fs.lookup(link.path.as_bytes(), Follow::No).await.unwrap();
        assert_eq!(node.kind(), FileKind::Symlink, "{}", link.path);
        // Whatever it points to, following it ends: at a node of this file system, or in an error.
        if let Ok(end) = fs.lookup(link.path.as_bytes(), Follow::Yes).await {
            assert_ne!(end.kind(), FileKind::Symlink);
        }
    }
    let volume = pool.dsl().await.unwrap().lookup("psingle/v1").await.unwrap();
    let error = FileSystem::open(volume.objset().await.unwrap()).await.unwrap_err();
    assert!(matches!(error, FileError::NotFileSystem), "{error}");
}
