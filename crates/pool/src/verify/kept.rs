//! What is kept of all that was found wrong. Everything is counted; where a device is wrong throughout, a list of it would take
//! more memory than there is, so only the worst stay in it.

use std::collections::BTreeMap;

use super::{Finding, Kind};

/// So many findings at most, and how many of each kind there were.
pub(super) struct Kept {
    max: usize,
    len: usize,
    findings: BTreeMap<Kind, Vec<Finding>>,
    found: BTreeMap<Kind, u64>,
}

impl Kept {
    /// Nothing was found yet.
    pub(super) fn new(max: usize) -> Self {
        Self { max, len: 0, findings: BTreeMap::new(), found: BTreeMap::new() }
    }

    /// Counts them, and keeps those for which there is room, or for which something less bad makes room.
    pub(super) fn add(&mut self, findings: Vec<Finding>) {
        for finding in findings {
            let kind = finding.kind;
            *self.found.entry(kind).or_default() += 1;
            if self.len < self.max {
                self.len += 1;
            } else {
                let Some(mut least) = self.findings.last_entry().filter(|least| *least.key() > kind) else {
                    continue;
                };
                least.get_mut().pop();
                if least.get().is_empty() {
                    least.remove();
                }
            }
            self.findings.entry(kind).or_default().push(finding);
        }
    }

    /// How many there were of each kind; and those that were kept, the worst first.
    pub(super) fn end(self) -> (BTreeMap<Kind, u64>, Vec<Finding>) {
        let mut findings: Vec<Finding> = self.findings.into_values().flatten().collect();
        findings.sort_by_key(|finding| (finding.kind, finding.at));
        (self.found, findings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(kind: Kind, count: usize) -> Vec<Finding> {
        (0..count).map(|_| Finding { kind, ..Finding::malformed(None, String::new()) }).collect()
    }

    /// Everything behind the ten thousandth problem was counted without its kind: a pool that had lost data besides was said to
    /// be intact.
    #[test]
    fn what_is_worse_is_kept_however_much_there_is_of_what_is_not() {
        const MAX: usize = 10;
        let mut kept = Kept::new(MAX);
        kept.add(all(Kind::Repairable, MAX + 1));
        kept.add(all(Kind::Space, 3));
        kept.add(all(Kind::Lost, 1));
        kept.add(all(Kind::Repairable, 5));
        let (found, findings) = kept.end();
        assert_eq!(found, BTreeMap::from([(Kind::Lost, 1), (Kind::Space, 3), (Kind::Repairable, 16)]));
        let kinds: Vec<Kind> = findings.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [&[Kind::Lost][..], &[Kind::Space; 3], &[Kind::Repairable; 6]].concat());
        let mut kept = Kept::new(MAX);
        kept.add(all(Kind::Repairable, 1));
        kept.add(all(Kind::Lost, MAX + 1));
        let (found, findings) = kept.end();
        assert_eq!(found, BTreeMap::from([(Kind::Lost, MAX as u64 + 1), (Kind::Repairable, 1)]));
        assert!(findings.len() == MAX && findings.iter().all(|finding| finding.kind == Kind::Lost));
    }
}
