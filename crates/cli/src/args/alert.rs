//! `millpond alert` and its options.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// `millpond alert`
#[derive(Debug, Args)]
#[command(after_help = "\
The daemon watches its pools and tells whoever was added here: by mail, by an HTTP request, by syslog. Its own log \
has every alert in any case. Without a daemon these commands read and change the same files.")]
pub(crate) struct Alert {
    /// The file that says who is told, if the daemon was given one with --alerts
    #[arg(long, value_name = "FILE")]
    pub(crate) alerts: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: AlertCommand,
}

/// What `millpond alert` does.
#[derive(Debug, Subcommand)]
pub(crate) enum AlertCommand {
    /// Tell somebody more
    #[command(subcommand, arg_required_else_help = true)]
    Add(AlertAdd),
    /// Tell somebody no longer
    Remove {
        /// What it was called when it was added
        name: String,
    },
    /// Show who is told
    List(AlertShow),
    /// Send a test, and say what the other side answered
    Test {
        /// Only this one; all if none is named
        name: Option<String>,
        /// JSON
        #[arg(short = 'j', long = "json")]
        json: bool,
    },
    /// Show what is wrong now, and whether alerts can be delivered
    Status(AlertShow),
    /// Show what was wrong, and what was told
    History {
        #[command(flatten)]
        show: AlertShow,
        /// Only the last so many
        #[arg(short = 'n', value_name = "COUNT")]
        last: Option<usize>,
    },
    /// Say where a disk sits, so that alerts name the place
    Label {
        /// Serial number, name in /dev/disk/by-id, or path
        disk: String,
        /// For example 'bay 3'; without it, the label is removed
        place: Option<String>,
    },
}

/// How to show.
#[derive(Debug, Args)]
pub(crate) struct AlertShow {
    /// One tab between fields and no header, for scripts
    #[arg(short = 'H')]
    pub(crate) scripted: bool,
    /// JSON
    #[arg(short = 'j', long = "json")]
    pub(crate) json: bool,
}

/// By what.
#[derive(Debug, Subcommand)]
pub(crate) enum AlertAdd {
    /// Send mail through a mail server
    Smtp(AddSmtp),
    /// POST JSON to a URL
    Webhook(AddWebhook),
    /// Write to syslog, here or elsewhere
    Syslog(AddSyslog),
}

/// What every sink has.
#[derive(Debug, Args)]
pub(crate) struct AddAny {
    /// What to call it
    pub(crate) name: String,
    /// Only what is at least so bad
    #[arg(long, value_enum, default_value_t = LeastSeverity::Info)]
    pub(crate) min_severity: LeastSeverity,
    /// Only of this pool (repeatable); all if none is named
    #[arg(long = "pool", value_name = "POOL")]
    pub(crate) pools: Vec<String>,
    /// How long alerts are collected into one message
    #[arg(long, value_name = "SECONDS", default_value_t = 15)]
    pub(crate) digest: u64,
    /// Messages per hour at most; what comes meanwhile is in the next
    #[arg(long, value_name = "COUNT", default_value_t = 30)]
    pub(crate) per_hour: u32,
}

/// How bad.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LeastSeverity {
    /// Everything
    Info,
    /// Not what is only good to know
    Warning,
    /// Only what cannot wait
    Critical,
}

/// How a connection to a mail server is protected.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum MailSecurity {
    /// STARTTLS, required
    Starttls,
    /// TLS from the first byte
    Tls,
    /// In the clear
    None,
}

/// How one logs in to a mail server.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum MailAuth {
    /// AUTH PLAIN
    Plain,
    /// AUTH LOGIN
    Login,
}

/// `millpond alert add smtp`
#[derive(Debug, Args)]
pub(crate) struct AddSmtp {
    #[command(flatten)]
    pub(crate) any: AddAny,
    /// Mail server, with its port if that is not the usual one
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) server: String,
    /// Protection of the connection
    #[arg(long, value_enum, default_value_t = MailSecurity::Starttls)]
    pub(crate) security: MailSecurity,
    /// Who logs in; nobody does without
    #[arg(long, requires = "password_file")]
    pub(crate) user: Option<String>,
    /// File whose first line is the password; '-' for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// Only this way of logging in (default: what the server offers)
    #[arg(long, value_enum)]
    pub(crate) auth: Option<MailAuth>,
    /// Sender
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) from: String,
    /// Recipient (repeatable)
    #[arg(long, value_name = "ADDRESS", required = true)]
    pub(crate) to: Vec<String>,
    /// Certificates (PEM) to trust besides the system's
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// How long the server may take for each step
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) timeout: u64,
}

/// `millpond alert add webhook`
#[derive(Debug, Args)]
pub(crate) struct AddWebhook {
    #[command(flatten)]
    pub(crate) any: AddAny,
    /// https://… or http://…; '-' reads it from standard input, for URLs that are secrets
    #[arg(long)]
    pub(crate) url: String,
    /// Header for each request (repeatable)
    #[arg(long = "header", value_name = "NAME: VALUE")]
    pub(crate) headers: Vec<String>,
    /// File with headers, one a line, for those that are secrets
    #[arg(long, value_name = "FILE")]
    pub(crate) header_file: Option<PathBuf>,
    /// File whose first line is the key of the signature in X-Millpond-Signature-256; '-' for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,
    /// Certificates (PEM) to trust besides the system's
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// How long a request may take
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) timeout: u64,
}

/// `millpond alert add syslog`
#[derive(Debug, Args)]
pub(crate) struct AddSyslog {
    #[command(flatten)]
    pub(crate) any: AddAny,
    /// unix:/dev/log, udp://HOST:514 or tcp://HOST:601
    #[arg(long, default_value = "unix:/dev/log")]
    pub(crate) target: String,
    /// daemon, user, local0 … local7
    #[arg(long, default_value = "daemon")]
    pub(crate) facility: String,
}
