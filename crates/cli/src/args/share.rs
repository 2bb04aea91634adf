//! `millpond share`, `millpond initiators`, and the programs of COMSTAR that others call.

use std::path::PathBuf;

use clap::{ArgAction, ArgGroup, Args, Subcommand, builder::RangedI64ValueParser};
use server::shares::LUN_MAX;

/// A LUN, as high as hosts can say it.
fn lun() -> RangedI64ValueParser<u16> {
    RangedI64ValueParser::new().range(0..=i64::from(LUN_MAX))
}

/// `millpond share`
#[derive(Debug, Args)]
#[command(after_help = "\
Without any settings every volume and snapshot is a target of its own, with one LUN 0, open to \
whoever reaches the server, and an NBD export. With 'share target create' and 'share lun add' \
volumes become LUNs of targets with access lists and CHAP, and nothing else. All of it is kept in \
the pool, goes where the pool goes, and takes effect at once.")]
pub(crate) struct Share {
    /// Of this pool, where its name does not follow from the rest
    #[arg(long, value_name = "POOL", global = true)]
    pub(crate) pool: Option<String>,
    #[command(subcommand)]
    pub(crate) command: ShareCommand,
}

/// What `millpond share` does.
#[derive(Debug, Subcommand)]
pub(crate) enum ShareCommand {
    /// Show targets with their LUNs
    List(ShareList),
    /// Create, destroy and change targets
    #[command(subcommand, arg_required_else_help = true)]
    Target(ShareTarget),
    /// Add volumes to targets, remove them
    #[command(subcommand, arg_required_else_help = true)]
    Lun(ShareLun),
    /// Addresses to listen at besides those of 'serve --iscsi', in portal groups
    #[command(subcommand, arg_required_else_help = true)]
    Portal(SharePortal),
    /// Who may log in, or discover: by name of the initiator and by network
    #[command(subcommand, arg_required_else_help = true)]
    Access(ShareAccess),
    /// Credentials of CHAP: those of initiators, and, for mutual CHAP, the target's
    #[command(subcommand, arg_required_else_help = true)]
    Chap(ShareChap),
    /// Set options of a volume, or of all volumes below a file system
    Set(ShareSet),
}

/// `millpond share list`
#[derive(Debug, Args)]
pub(crate) struct ShareList {
    /// Access, credentials (without secrets), portal groups and options, too
    #[arg(short = 'v')]
    pub(crate) verbose: bool,
    /// One tab between fields and no header, for scripts
    #[arg(short = 'H', conflicts_with = "verbose")]
    pub(crate) scripted: bool,
    /// JSON
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
    /// Pools, targets or volumes; everything if none is named
    #[arg(value_name = "POOL|TARGET|VOLUME")]
    pub(crate) names: Vec<String>,
}

/// `millpond share target`
#[derive(Debug, Subcommand)]
pub(crate) enum ShareTarget {
    /// Create a target without LUNs, open to everybody
    Create {
        /// iSCSI name, for example iqn.2026-11.com.example:vms
        #[arg(value_name = "TARGET")]
        target: String,
    },
    /// Destroy a target; its volumes are offered to nobody then if not everybody could use it
    Destroy {
        /// Although initiators are logged in: they are cut off
        #[arg(short = 'f')]
        force: bool,
        /// iSCSI name
        #[arg(value_name = "TARGET")]
        target: String,
    },
    /// Change a target
    #[command(group = ArgGroup::new("setting").args(["groups", "default"]).required(true).multiple(true))]
    Set {
        /// Only through portals of these groups; 'all': through every portal
        #[arg(long, value_name = "TAG,…|all")]
        groups: Option<String>,
        /// Where 'stmfadm add-view' puts LUNs that name no target group: on or off
        #[arg(long, value_name = "on|off", value_parser = on_off)]
        default: Option<bool>,
        /// iSCSI name
        #[arg(value_name = "TARGET")]
        target: String,
    },
}

/// `millpond share lun`
#[derive(Debug, Subcommand)]
pub(crate) enum ShareLun {
    /// Make a volume or snapshot a LUN of a target: it stays that until it is removed
    Add {
        /// iSCSI name
        #[arg(value_name = "TARGET")]
        target: String,
        /// Volume, or snapshot of one
        #[arg(value_name = "VOLUME")]
        volume: String,
        /// Its number, the lowest that is free without
        #[arg(value_name = "LUN", value_parser = lun())]
        lun: Option<u16>,
    },
    /// Take a LUN away; the volume is offered to nobody then if not everybody could use the target
    Remove {
        /// iSCSI name
        #[arg(value_name = "TARGET")]
        target: String,
        /// The volume, or its number
        #[arg(value_name = "VOLUME|LUN")]
        disk: String,
    },
}

/// `millpond share portal`
#[derive(Debug, Subcommand)]
pub(crate) enum SharePortal {
    /// Listen at an address
    Add {
        /// Although initiators are logged in there in another group
        #[arg(short = 'f')]
        force: bool,
        /// Portal group tag: portals of one group are one target port. Keep it the same wherever the pool goes
        #[arg(long, value_name = "TAG", default_value_t = 1)]
        group: u16,
        /// Address, with its port if that is not 3260
        #[arg(value_name = "ADDR[:PORT]")]
        address: String,
    },
    /// No longer listen there; sessions are asked to log out
    Remove {
        /// Although initiators are logged in there that would be in another group
        #[arg(short = 'f')]
        force: bool,
        /// Address, with its port if that is not 3260
        #[arg(value_name = "ADDR[:PORT]")]
        address: String,
    },
    /// Show portals
    List {
        /// One tab between fields and no header, for scripts
        #[arg(short = 'H')]
        scripted: bool,
        /// JSON
        #[arg(short = 'j', long = "json")]
        json: bool,
    },
}

/// `millpond share access`
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Both must fit: the initiator's name one of the names, and its address one of the networks. As long \
as nobody is named, everybody may. Whoever takes the last one away locks everybody out; '*' lets \
everybody in again.")]
pub(crate) enum ShareAccess {
    /// Let them in; from the first one on, nobody else
    Allow(ShareWhom),
    /// Let them in no longer; their sessions end at once
    Deny(ShareWhom),
}

/// Whom, and to what.
#[derive(Debug, Args)]
pub(crate) struct ShareWhom {
    /// Initiators of this name; one that ends in '*': all that begin so (repeatable)
    #[arg(long = "initiator", value_name = "IQN")]
    pub(crate) initiators: Vec<String>,
    /// Initiators with an address in this network (repeatable)
    #[arg(long = "network", value_name = "CIDR")]
    pub(crate) networks: Vec<String>,
    #[command(flatten)]
    pub(crate) what: ShareWhat,
}

/// A target, or discovery.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct ShareWhat {
    /// Discovery, which all targets of the server share, and not a target
    #[arg(long)]
    pub(crate) discovery: bool,
    /// iSCSI name
    #[arg(value_name = "TARGET")]
    pub(crate) target: Option<String>,
}

/// `millpond share chap`
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Secrets have 12 to 255 bytes. They are asked for, or read from the first line of a file or of \
standard input (the target's from the second), and never shown again. In the pool they are in clear \
text: whoever has its devices has them.")]
pub(crate) enum ShareChap {
    /// Ask initiators for a credential; one more, or another secret for a name that is there
    Set(ShareChapSet),
    /// Forget the credential of a name, or all: without any nobody is asked
    Clear {
        /// Only of this name
        #[arg(long, value_name = "NAME")]
        user: Option<String>,
        #[command(flatten)]
        what: ShareWhat,
    },
}

/// `millpond share chap set`
#[derive(Debug, Args)]
pub(crate) struct ShareChapSet {
    /// Name that the initiator uses
    #[arg(long, value_name = "NAME")]
    pub(crate) user: String,
    /// File whose first line is its secret; '-' for standard input, as without
    #[arg(long, value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,
    /// Mutual CHAP: name that the target uses
    #[arg(long, value_name = "NAME")]
    pub(crate) mutual_user: Option<String>,
    /// File whose first line is the target's secret
    #[arg(long, value_name = "FILE", requires = "mutual_user")]
    pub(crate) mutual_secret_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) what: ShareWhat,
}

/// `millpond share set`
#[derive(Debug, Args)]
#[command(after_help = "\
  offer=auto            a target of its own, and NBD, until it has a LUN; then only that (default)
  offer=all             the same, and NBD although it has a LUN
  offer=iscsi|nbd|none  one of the two besides its LUN, or neither
  block=512|4096        logical block: 512 bytes with physical ones of 4 KiB (512e), or 4 KiB (4Kn)
  write-cache=on|off    whether initiators find the write cache on; off, every write is stable
                        before it is answered (iSCSI only; for NBD 'zfs set sync=always'). It comes
                        on again when nobody is logged in who found it off, or with -f
  thin-threshold=auto|none|SIZE|PERCENT
                        hosts are warned when so little room is left (a share: of its size); auto:
                        less than a tenth, or than what it may still ask for

An empty value (block=) means: as above it. Options are inherited; 'share set offer=none tank' \
offers nothing of tank but what was made a LUN.")]
pub(crate) struct ShareSet {
    /// Although clients lose their disk or export, or get a write cache unawares
    #[arg(short = 'f')]
    pub(crate) force: bool,
    /// Options with their values, then a dataset
    #[arg(required = true, value_name = "OPTION=VALUE… DATASET")]
    pub(crate) words: Vec<String>,
}

fn on_off(text: &str) -> Result<bool, &'static str> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("on or off"),
    }
}

/// `millpond initiators`
#[derive(Debug, Args)]
#[command(after_help = "\
Without INTERVAL: totals since each of them logged in. With it: what happens per second, every \
INTERVAL seconds, COUNT times or until interrupted.

  READS WRITES READ WRITTEN   commands of each kind but those refused at once, and their bytes
  MEM                         of the reads, those that were answered from memory at once, percent
  AVG P99                     from a read or write to its answer or abort; of all but those
  QUEUE                       commands under way: now, or with INTERVAL on average
  RES                         persistent reservations: 'reg' registered, 'HOLDS' holds one

Below them the portals with what came and went through each: paths that share the load evenly have \
like numbers. At last who has registered for a persistent reservation and is not logged in.")]
pub(crate) struct Initiators {
    /// Target, portal group, ISID, credential, reservation and time of login, too
    #[arg(short = 'v')]
    pub(crate) verbose: bool,
    /// One tab between fields, no header and no portals, for scripts
    #[arg(short = 'H', conflicts_with = "verbose")]
    pub(crate) scripted: bool,
    /// Exact numbers: bytes and microseconds
    #[arg(short = 'p')]
    pub(crate) exact: bool,
    /// JSON, one object a line, always with totals
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
    /// Seconds between reports, and how many
    #[arg(value_name = "INTERVAL [COUNT]")]
    pub(crate) words: Vec<String>,
}

/// `stmfadm`
#[derive(Debug, Subcommand)]
pub(crate) enum Stmfadm {
    /// Make a volume a logical unit; prints its name
    CreateLu {
        /// guid=32 hexadecimal digits, wcd=true|false (write cache disabled), blk=BYTES (must be the volume's), wp=false
        /// (repeatable)
        #[arg(short = 'p', long = "lu-prop", value_name = "PROPERTY=VALUE")]
        properties: Vec<String>,
        /// Size: must be the volume's
        #[arg(short = 's', long = "size", value_name = "SIZE")]
        size: Option<String>,
        /// /dev/zvol/rdsk/POOL/VOLUME
        #[arg(value_name = "PATH")]
        path: String,
    },
    /// Delete logical units: no host sees them any more, their volumes stay
    DeleteLu {
        /// Names
        #[arg(required = true, value_name = "GUID")]
        guids: Vec<String>,
    },
    /// Make a volume the logical unit again that it was
    ImportLu {
        /// /dev/zvol/rdsk/POOL/VOLUME
        #[arg(value_name = "PATH")]
        path: String,
    },
    /// Change a logical unit
    ModifyLu {
        /// wcd=true|false; blk=BYTES (must be the volume's), wp=false (repeatable)
        #[arg(short = 'p', long = "lu-prop", value_name = "PROPERTY=VALUE")]
        properties: Vec<String>,
        /// Size: must be what the volume has by now
        #[arg(short = 's', long = "size", value_name = "SIZE")]
        size: Option<String>,
        /// It is given by its path
        #[arg(short = 'f', long = "file")]
        file: bool,
        /// Name
        #[arg(value_name = "GUID|PATH")]
        name: String,
    },
    /// Give a logical unit a LUN
    #[command(disable_help_flag = true)]
    AddView {
        /// Print help
        #[arg(long, action = ArgAction::Help)]
        help: Option<bool>,
        /// Host groups are not known here: see 'millpond share access'
        #[arg(short = 'h', long = "host-group", value_name = "GROUP")]
        host_group: Option<String>,
        /// Target, by its iSCSI name; without, the pool's default or only one
        #[arg(short = 't', long = "target-group", value_name = "TARGET")]
        target_group: Option<String>,
        /// Number
        #[arg(short = 'n', long = "lun", value_name = "LUN", value_parser = lun())]
        lun: Option<u16>,
        /// Name
        #[arg(value_name = "GUID")]
        guid: String,
    },
    /// Take the LUN of a logical unit away
    RemoveView {
        /// Name
        #[arg(short = 'l', long = "lu-name", value_name = "GUID", required = true)]
        guid: String,
        /// Of every host
        #[arg(short = 'a', long = "all")]
        all: bool,
        /// Numbers of views: there is only 0
        #[arg(value_name = "ENTRY")]
        entries: Vec<u16>,
    },
    /// Show the LUN of a logical unit
    ListView {
        /// Name
        #[arg(short = 'l', long = "lu-name", value_name = "GUID", required = true)]
        guid: String,
    },
    /// Show logical units
    ListLu {
        /// All that is known of them
        #[arg(short = 'v', long = "verbose")]
        verbose: bool,
        /// Names; all if none is given
        #[arg(value_name = "GUID")]
        guids: Vec<String>,
    },
}

/// `sbdadm`
#[derive(Debug, Subcommand)]
#[expect(clippy::enum_variant_names, reason = "these are its words")]
pub(crate) enum Sbdadm {
    /// Make a volume a logical unit
    CreateLu {
        /// Size: must be the volume's
        #[arg(short = 's', long = "size", value_name = "SIZE")]
        size: Option<String>,
        /// /dev/zvol/rdsk/POOL/VOLUME
        #[arg(value_name = "PATH")]
        path: String,
    },
    /// Delete a logical unit: no host sees it any more, its volume stays
    DeleteLu {
        /// Name
        #[arg(value_name = "GUID")]
        guid: String,
    },
    /// Make a volume the logical unit again that it was
    ImportLu {
        /// /dev/zvol/rdsk/POOL/VOLUME
        #[arg(value_name = "PATH")]
        path: String,
    },
    /// Check that a logical unit has the size its volume has by now
    ModifyLu {
        /// Size
        #[arg(short = 's', long = "size", value_name = "SIZE")]
        size: String,
        /// Name
        #[arg(value_name = "GUID")]
        guid: String,
    },
    /// Show logical units with sizes and volumes
    ListLu,
}
