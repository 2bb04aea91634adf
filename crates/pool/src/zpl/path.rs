//! Walking a path, component by component, inside one file system.
//!
//! `..` stops at the root, an absolute link starts again at the root of the *file system*, and links are
//! counted: none of them leads out, and none keeps us for ever.

use std::collections::VecDeque;

use ondisk::zpl::FileKind;

use super::{FileError, FileSystem, Node};
use crate::BoxFuture;

/// Links followed before it is called a loop (Linux's number).
const LINKS_MAX: usize = 40;

/// What to do with a symbolic link at the end of the path. Links before the end are always followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// Go where it points.
    Yes,
    /// The link itself is meant.
    No,
}

impl FileSystem {
    /// The node at `path` below the root. Empty components and `.` mean nothing.
    ///
    /// # Errors
    /// A name that is not there, a component that is no directory, links in a circle, an unreadable block.
    pub fn lookup<'a>(&'a self, path: &'a [u8], follow: Follow) -> BoxFuture<'a, Result<Node, FileError>> {
        Box::pin(async move {
            let mut todo: VecDeque<Vec<u8>> = components(path).collect();
            // The way down, so that `..` goes back up it.
            let mut way = vec![self.root().await?];
            let mut names: Vec<Vec<u8>> = Vec::new();
            let mut links = 0;
            let shown = |names: &[Vec<u8>], last: &[u8]| {
                let mut text = String::new();
                for name in names.iter().map(Vec::as_slice).chain([last]) {
                    text.push('/');
                    text.push_str(&String::from_utf8_lossy(name));
                }
                text
            };
            while let Some(name) = todo.pop_front() {
                if name == b".." {
                    if way.len() > 1 {
                        way.pop();
                        names.pop();
                    }
                    continue;
                }
                let Some(here) = way.last() else {
                    return Err(FileError::NotFound { path: shown(&names, &name) });
                };
                if here.kind() != FileKind::Directory {
                    return Err(FileError::NotDirectory { path: shown(&names, &name) });
                }
                let entry = here.child(&name).await?;
                let entry = entry.ok_or_else(|| FileError::NotFound { path: shown(&names, &name) })?;
                let node = self.node(entry.object).await?;
                if node.kind() == FileKind::Symlink && (follow == Follow::Yes || !todo.is_empty()) {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(FileError::LinkLoop { path: String::from_utf8_lossy(path).into_owned() });
                    }
                    let target = node.target().await?.unwrap_or_default();
                    if target.first() == Some(&b'/') {
                        way.truncate(1);
                        names.clear();
                    }
                    for component in components(&target).collect::<Vec<_>>().into_iter().rev() {
                        todo.push_front(component);
                    }
                    continue;
                }
                way.push(node);
                names.push(name);
            }
            way.pop().ok_or_else(|| FileError::NotFound { path: "/".to_owned() })
        })
    }
}

fn components(path: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".").map(<[u8]>::to_vec)
}
