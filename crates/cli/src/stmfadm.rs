//! `stmfadm` and `sbdadm`, as Proxmox's "ZFS over iSCSI" calls them over ssh: what they print is read by regular
//! expressions on the other side, so it is as COMSTAR's programs print it.

use std::{fmt::Write as _, process::ExitCode};

use server::{
    api::share::{PoolShares, ShareList, Volume},
    ops::{Failure, LuChange, Operation},
    pool::props::parse,
};

use crate::{
    act::Act,
    args::{Sbdadm, Stmfadm},
    ask::Ask,
    context::{Context, print},
};

/// Where COMSTAR has the devices of volumes.
const BASE: &str = "/dev/zvol/rdsk";

/// One call.
struct Call {
    program: &'static str,
    pools: Vec<PoolShares>,
    /// There are pools that did not answer.
    is_partial: bool,
    act: Act,
}

/// A logical unit, by whichever name it has.
struct Lu<'a> {
    guid: &'a str,
    source: String,
    volume: &'a Volume,
}

pub(crate) async fn stmfadm(command: Stmfadm, context: &Context) -> anyhow::Result<ExitCode> {
    let mut call = Call::new("stmfadm", context).await?;
    let done = match command {
        Stmfadm::CreateLu { properties, size, path } => call
            .create(&properties, size.as_deref(), &path)
            .await
            .map(|(guid, _)| format!("Logical unit created: {guid}\n")),
        Stmfadm::DeleteLu { guids } => call.delete(&guids).await.map(|()| String::new()),
        Stmfadm::ImportLu { path } => {
            call.import(&path).await.map(|guid| format!("Logical unit imported: {guid}\n"))
        }
        Stmfadm::ModifyLu { properties, size, file, name } => {
            call.modify(&properties, size.as_deref(), file, &name).await.map(|()| String::new())
        }
        Stmfadm::AddView { help: _, host_group, target_group, lun, guid } => {
            call.add_view(host_group, target_group, lun, &guid).await.map(|()| String::new())
        }
        Stmfadm::RemoveView { guid, all: _, entries } => {
            call.remove_view(&guid, &entries).await.map(|()| String::new())
        }
        Stmfadm::ListView { guid } => call.list_view(&guid),
        Stmfadm::ListLu { verbose, guids } => call.list(verbose, &guids),
    };
    call.finish(done).await
}

pub(crate) async fn sbdadm(command: Sbdadm, context: &Context) -> anyhow::Result<ExitCode> {
    let mut call = Call::new("sbdadm", context).await?;
    let done = match command {
        Sbdadm::CreateLu { size, path } => match call.create(&[], size.as_deref(), &path).await {
            Ok((guid, volume)) => {
                Ok(format!("\nCreated the following LU:\n\n{}", call.created(&guid, &volume, &path)))
            }
            Err(failure) => Err(failure),
        },
        Sbdadm::DeleteLu { guid } => call.delete(&[guid]).await.map(|()| String::new()),
        Sbdadm::ImportLu { path } => {
            call.import(&path).await.map(|guid| format!("\nImported the following LU:\n\n{guid}\n"))
        }
        Sbdadm::ModifyLu { size, guid } => {
            call.modify(&[], Some(&size), false, &guid).await.map(|()| String::new())
        }
        Sbdadm::ListLu => Ok(call.table()),
    };
    call.finish(done).await
}

/// The base and the dataset's name of a device's path.
fn volume_of(path: &str) -> Result<(&str, &str), Failure> {
    for base in [BASE, "/dev/zvol/dsk", "/dev/zvol"] {
        let name = path.strip_prefix(base).and_then(|rest| rest.strip_prefix('/'));
        if let Some(name) = name.filter(|name| name.contains('/')) {
            return Ok((base, name));
        }
    }
    match path.starts_with('/') || !path.contains('/') {
        true => Err(Failure::because(path, format_args!("not the device of a volume: {BASE}/POOL/VOLUME"))),
        false => Ok((BASE, path)),
    }
}

/// What `-p` says of a logical unit.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wish {
    guid: Option<String>,
    write_cache: Option<bool>,
    /// Bytes of a logical block.
    block: Option<u64>,
}

/// Properties of COMSTAR that change nothing of what hosts may do and what becomes of their data.
const LABELS: [&str; 8] = ["alias", "host-id", "meta", "mgmt-url", "oui", "pid", "serial", "vid"];

/// Reads `-p`. What is not known is refused: left out unseen, it might have been what protects the data.
fn properties(words: &[String]) -> Result<Wish, Failure> {
    let mut wish = Wish::default();
    for word in words {
        let Some((name, value)) = word.split_once('=') else {
            return Err(Failure::because(word, "not PROPERTY=VALUE"));
        };
        match name {
            "guid" => wish.guid = Some(value.to_owned()),
            "wcd" => wish.write_cache = Some(!is_true(name, value)?),
            "blk" => wish.block = Some(bytes(value)?),
            "wp" => {
                if is_true(name, value)? {
                    return Err(Failure::because(
                        word,
                        "a logical unit is protected with its volume\n'zfs set readonly=on POOL/VOLUME' does that, at once",
                    ));
                }
            }
            name if LABELS.contains(&name) => {}
            _ => return Err(Failure::because(word, "no such property of logical units")),
        }
    }
    Ok(wish)
}

fn is_true(name: &str, value: &str) -> Result<bool, Failure> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(Failure::because(name, format_args!("'{value}' is neither true nor false"))),
    }
}

fn bytes(text: &str) -> Result<u64, Failure> {
    parse::number(text).map_err(|error| Failure::because(text, error))
}

const HEAD: &str = "              GUID                    DATA SIZE           SOURCE\n\
                    --------------------------------  -------------------  ----------------\n";

fn line(guid: &str, size: u64, source: &str) -> String {
    format!("{guid:<32}  {size:<19}  {source}\n")
}

impl Call {
    async fn new(program: &'static str, context: &Context) -> anyhow::Result<Self> {
        let act = Act::new(context).await?;
        let answer = Ask::new(context).await?.shares().await?;
        answer.failures.iter().for_each(|failure| say!("{failure}"));
        let ShareList { pools, silent } = answer.found;
        // Said, and no failure: whoever asks for a unit of another pool asks for all (Proxmox does).
        silent.iter().for_each(|silent| say!("{}", silent.problem));
        Ok(Self { program, pools, is_partial: !silent.is_empty(), act })
    }

    async fn finish(mut self, done: Result<String, Failure>) -> anyhow::Result<ExitCode> {
        let printed = match done {
            Ok(text) => print(&text),
            Err(failure) => {
                let message = format!("{}: {}", self.program, failure.message);
                self.act.refuse(Failure { message, ..failure });
                Ok(())
            }
        };
        self.act.finish_printed(printed).await
    }

    fn all(&self) -> impl Iterator<Item = Lu<'_>> {
        let volumes =
            self.pools.iter().flat_map(|pool| &pool.volumes).filter(|volume| !volume.name.contains('@'));
        volumes.filter_map(|volume| match &volume.lu {
            Some(lu) if lu.deleted => None,
            Some(lu) => Some(Lu { guid: &lu.guid, source: lu.source.clone(), volume }),
            // It got its LUN from 'millpond share'.
            None => volume.target.as_ref().map(|_| Lu {
                guid: &volume.naa,
                source: format!("{BASE}/{}", volume.name),
                volume,
            }),
        })
    }

    fn find(&self, guid: &str) -> Result<Lu<'_>, Failure> {
        let found = self.all().find(|lu| lu.guid.eq_ignore_ascii_case(guid));
        found.ok_or_else(|| match self.is_partial {
            true => Failure::because(guid, "logical unit not found in the pools that answer"),
            false => Failure { not_found: true, ..Failure::because(guid, "logical unit not found") },
        })
    }

    fn volume(&self, name: &str) -> Option<&Volume> {
        self.pools.iter().flat_map(|pool| &pool.volumes).find(|volume| volume.name == name)
    }

    /// Refuses blocks of another size than hosts find.
    fn check_block(&self, volume: &str, wanted: Option<u64>) -> Result<(), Failure> {
        match (self.volume(volume), wanted) {
            (Some(has), Some(wanted)) if u64::from(has.block) != wanted => Err(Failure::because(
                &format!("blk={wanted}"),
                format_args!(
                    "blocks of {volume} have {} bytes\n'millpond share set block=512|4096 {volume}' changes that",
                    has.block
                ),
            )),
            _ => Ok(()),
        }
    }

    async fn change(&mut self, volume: String, change: LuChange) -> Result<Vec<String>, Failure> {
        let answer = self.act.run(Operation::Lu { volume, change }).await?;
        answer.warnings.iter().for_each(|warning| say!("warning: {warning}"));
        Ok(answer.lines)
    }

    async fn create(
        &mut self,
        words: &[String],
        size: Option<&str>,
        path: &str,
    ) -> Result<(String, String), Failure> {
        let (base, volume) = volume_of(path)?;
        let Wish { guid, write_cache, block } = properties(words)?;
        self.check_block(volume, block)?;
        if let Some(size) = size {
            let size = bytes(size)?;
            if self.volume(volume).is_some_and(|has| has.size != size) {
                return Err(Failure::because(path, "a logical unit is as large as its volume"));
            }
        }
        let change = LuChange::Create { base: base.to_owned(), guid, write_cache };
        let lines = self.change(volume.to_owned(), change).await?;
        Ok((lines.concat(), volume.to_owned()))
    }

    fn created(&self, guid: &str, volume: &str, path: &str) -> String {
        format!("{HEAD}{}", line(guid, self.volume(volume).map_or(0, |volume| volume.size), path))
    }

    async fn delete(&mut self, guids: &[String]) -> Result<(), Failure> {
        for guid in guids {
            let volume = self.find(guid)?.volume.name.clone();
            self.change(volume, LuChange::Delete).await?;
        }
        Ok(())
    }

    async fn import(&mut self, path: &str) -> Result<String, Failure> {
        let (base, volume) = volume_of(path)?;
        let lines = self.change(volume.to_owned(), LuChange::Import { base: base.to_owned() }).await?;
        Ok(lines.concat())
    }

    async fn modify(
        &mut self,
        words: &[String],
        size: Option<&str>,
        file: bool,
        name: &str,
    ) -> Result<(), Failure> {
        let volume = match file {
            true => volume_of(name)?.1.to_owned(),
            false => self.find(name)?.volume.name.clone(),
        };
        let Wish { guid, write_cache, block } = properties(words)?;
        if guid.is_some() {
            return Err(Failure::because("guid", "a logical unit keeps its name"));
        }
        self.check_block(&volume, block)?;
        let size = size.map(bytes).transpose()?;
        self.change(volume, LuChange::Modify { size, write_cache }).await.map(drop)
    }

    async fn add_view(
        &mut self,
        host_group: Option<String>,
        target: Option<String>,
        lun: Option<u16>,
        guid: &str,
    ) -> Result<(), Failure> {
        if let Some(group) = host_group {
            return Err(Failure::because(
                &group,
                "host groups are not known here\nleave out --host-group (in Proxmox: comstar_hg) and say who may use the \
                 target with 'millpond share access allow'",
            ));
        }
        let volume = self.find(guid)?.volume.name.clone();
        self.change(volume, LuChange::View { target, lun }).await.map(drop)
    }

    async fn remove_view(&mut self, guid: &str, entries: &[u16]) -> Result<(), Failure> {
        if let Some(entry) = entries.iter().find(|entry| **entry != 0) {
            return Err(Failure::because(guid, format_args!("view entry {entry} not found")));
        }
        let lu = self.find(guid)?;
        if lu.volume.lun.is_none() {
            return Err(Failure::because(guid, "no views found"));
        }
        let volume = lu.volume.name.clone();
        self.change(volume, LuChange::Unview).await.map(drop)
    }

    fn list_view(&self, guid: &str) -> Result<String, Failure> {
        let lu = self.find(guid)?;
        let Some((target, lun)) = lu.volume.target.as_ref().zip(lu.volume.lun) else {
            return Err(Failure::because(guid, "no views found"));
        };
        Ok(format!(
            "View Entry: 0\n    Host group   : All\n    Target Group : {target}\n    LUN          : {lun}\n"
        ))
    }

    fn list(&self, verbose: bool, guids: &[String]) -> Result<String, Failure> {
        let chosen: Vec<Lu<'_>> = match guids {
            [] => self.all().collect(),
            guids => guids.iter().map(|guid| self.find(guid)).collect::<Result<_, _>>()?,
        };
        let mut out = String::new();
        let mut say = |text: String| writeln!(out, "{text}").expect("a String takes any text");
        for lu in chosen {
            say(format!("LU Name: {}", lu.guid));
            if verbose {
                say("    Operational Status: Online".to_owned());
                say("    Provider Name     : millpond".to_owned());
                say(format!("    Alias             : {}", lu.source));
                say(format!("    View Entry Count  : {}", u8::from(lu.volume.lun.is_some())));
                say(format!("    Data File         : {}", lu.source));
                say(format!("    Size              : {}", lu.volume.size));
                say(format!("    Block Size        : {}", lu.volume.block));
                let cache = if lu.volume.write_cache { "Enabled" } else { "Disabled" };
                say(format!("    Writeback Cache   : {cache}"));
                say("    Access State      : Active".to_owned());
            }
        }
        Ok(out)
    }

    fn table(&self) -> String {
        let lines: Vec<String> = self.all().map(|lu| line(lu.guid, lu.volume.size, &lu.source)).collect();
        match lines.len() {
            0 => String::new(),
            count => format!("\nFound {count} LU(s)\n\n{HEAD}{}", lines.concat()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_volumes() {
        assert_eq!(volume_of("/dev/zvol/rdsk/tank/vm/disk").unwrap(), ("/dev/zvol/rdsk", "tank/vm/disk"));
        assert_eq!(volume_of("/dev/zvol/tank/v").unwrap(), ("/dev/zvol", "tank/v"));
        assert_eq!(volume_of("tank/v").unwrap(), (BASE, "tank/v"));
        for wrong in ["/dev/sda", "tank", "/dev/zvol/rdsk"] {
            assert!(volume_of(wrong).is_err(), "{wrong}");
        }
    }

    /// Protection against writing was left out without a word, as was everything with a typing error.
    #[test]
    fn properties_that_mean_something_are_heeded_or_refused() {
        let words =
            ["wcd=true", "guid=6001", "blk=512", "wp=false", "alias=x", "serial=1"].map(str::to_owned);
        let wish = Wish { guid: Some("6001".to_owned()), write_cache: Some(false), block: Some(512) };
        assert_eq!(properties(&words).unwrap(), wish);
        for wrong in ["wcd=perhaps", "wp=perhaps", "wp=true", "wdc=true", "nonsense=1", "wcd", "blk=big"] {
            assert!(properties(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
        assert_eq!(bytes("33554432K").unwrap(), 34_359_738_368);
    }
}
