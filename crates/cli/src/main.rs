//! `millpond`, and `zpool`, `zfs`, `stmfadm`, `sbdadm`, `arcstat` or `arc_summary` by the name it is called with.
//!
//! Reads the command line, starts the runtime and hands over: `zpool/` and `zfs/` are what OpenZFS's programs
//! of those names do, `serve` is the daemon, the other modules are Millpond's own commands. Each returns its exit
//! code: 0 done, 1 failed, 2 wrong usage.
//!
//! Standard output closed by its reader (`millpond … | head`) ends a command silently.
#![forbid(unsafe_code)]

// First: all others have its `say!`.
#[macro_use]
mod stderr;

mod act;
mod advise;
mod alert;
mod allocator;
mod arc_summary;
mod arcstat;
mod args;
mod ask;
mod bench;
mod cachesim;
mod context;
mod drill;
mod dump;
mod files;
mod get;
mod image;
mod inherited;
mod initiators;
mod json;
mod logged;
mod memory;
mod output;
mod prewarm;
mod progress;
mod properties;
mod repeat;
mod runtime;
mod serve;
mod share;
mod sparse;
mod stmfadm;
mod table;
mod verify;
mod version;
mod zfs;
mod zilstat;
mod zpool;

use std::{
    ffi::OsString,
    io::{self, IsTerminal as _},
    path::Path,
    process::ExitCode,
};

use args::{
    ArcSummaryProgram, ArcstatProgram, Command, Millpond, SbdadmProgram, StmfadmProgram, ZfsProgram,
    ZpoolProgram, anywhere::to_the_front, lacking::not_supported,
};
use clap::{
    CommandFactory as _, Parser,
    error::{ContextKind, ContextValue, ErrorKind},
};
use server::doors::Inherited;

use crate::context::{Context, FAILED, Usage};

/// What a command logs if `MILLPOND_LOG` does not say: errors, and every alert. What went wrong is in its answer.
const LOGGED: &str = "error,millpond::alert=info";
/// And the daemon, whose log is the only place to look afterwards: warnings; and what was given back and taken of memory,
/// alerts, what was found again on cache devices and in intent logs, and who was sent away.
const LOGGED_BY_DAEMON: &str = "warn,millpond=info,engine::second=info,engine::zil=info,server::serving=info,\
                                server::shares=info,rustls=error";
fn main() -> ExitCode {
    let arguments: Vec<OsString> = to_the_front(std::env::args_os().collect());
    let called = arguments.first().map(|path| Path::new(path).file_name().unwrap_or_default().to_os_string());
    let called = called.as_ref().and_then(|name| name.to_str());
    if arguments.len() == 1 && !matches!(called, Some("arcstat" | "arc_summary" | "arc-summary")) {
        // Somebody who types only the name wants to know what there is; where the environment sets an option,
        // clap alone would complain instead.
        let mut program = match called {
            Some("zpool") => ZpoolProgram::command(),
            Some("zfs") => ZfsProgram::command(),
            Some("stmfadm") => StmfadmProgram::command(),
            Some("sbdadm") => SbdadmProgram::command(),
            _ => Millpond::command(),
        };
        say!("{}", program.render_help());
        return ExitCode::from(context::USAGE);
    }
    let (program, globals, command) = match called {
        Some("zpool") => {
            let program: ZpoolProgram = parse(arguments);
            ("zpool", program.globals, Command::Zpool(program.command))
        }
        Some("zfs") => {
            let program: ZfsProgram = parse(arguments);
            ("zfs", program.globals, Command::Zfs(program.command))
        }
        Some("stmfadm") => {
            let program: StmfadmProgram = parse(arguments);
            ("stmfadm", program.globals, Command::Stmfadm(program.command))
        }
        Some("sbdadm") => {
            let program: SbdadmProgram = parse(arguments);
            ("sbdadm", program.globals, Command::Sbdadm(program.command))
        }
        Some("arcstat") => {
            let program: ArcstatProgram = parse(arguments);
            ("arcstat", program.globals, Command::Arcstat(program.args))
        }
        Some("arc_summary" | "arc-summary") => {
            let program: ArcSummaryProgram = parse(arguments);
            ("arc_summary", program.globals, Command::ArcSummary(program.args))
        }
        _ => {
            let program: Millpond = parse(arguments);
            ("millpond", program.globals, program.command)
        }
    };
    // While there is one thread: it changes the environment.
    let inherited = match &command {
        Command::Serve(_) => match inherited::sockets() {
            Ok(sockets) => sockets,
            Err(error) => {
                say!("millpond: {error}");
                return ExitCode::from(FAILED);
            }
        },
        _ => Vec::new(),
    };
    let is_daemon = matches!(command, Command::Serve(_));
    if is_daemon && let Err(error) = stderr::write_in_background() {
        say!("millpond: cannot start: {error}");
        return ExitCode::from(FAILED);
    }
    let (logged, odd) = logged::filter(if is_daemon { LOGGED_BY_DAEMON } else { LOGGED });
    if let Some(odd) = odd {
        say!("millpond: {odd}");
    }
    tracing_subscriber::fmt()
        .with_env_filter(logged)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(|| stderr::Stderr)
        // It would say so where it just could not.
        .log_internal_errors(false)
        .init();
    let runtime = match runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            say!("millpond: cannot start: {error}");
            return ExitCode::from(FAILED);
        }
    };
    let context = Context::new(program, globals);
    let outcome = runtime.block_on(Box::pin(run(command, inherited, &context)));
    // Tasks that read ahead have nobody to read for any more.
    runtime.shutdown_background();
    let code = match outcome {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => match error.downcast::<Usage>() {
            Ok(usage) => {
                say!("{usage}");
                ExitCode::from(context::USAGE)
            }
            Err(error) => {
                say!("{}", sentence(&error));
                ExitCode::from(FAILED)
            }
        },
    };
    stderr::flush(stderr::LAST_WORDS);
    code
}

/// Reads the command line; what is wrong with it is said, and ends the program.
fn parse<P: Parser>(arguments: Vec<OsString>) -> P {
    P::try_parse_from(&arguments).unwrap_or_else(|mut error| {
        // clap's line is the name it was called by and the bare number.
        if error.kind() == ErrorKind::DisplayVersion {
            let code = match context::print(version::LINE) {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => FAILED,
                _ => 0,
            };
            std::process::exit(code.into());
        }
        if error.kind() == ErrorKind::InvalidSubcommand
            && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
            && let Some(sentence) = not_supported(P::command().get_name(), &arguments, word)
        {
            say!("{sentence}");
            std::process::exit(FAILED.into());
        }
        // That an option that is not known could be given as a name helps nobody: no pool and no dataset is called so.
        if error.kind() == ErrorKind::UnknownArgument {
            error.remove(ContextKind::Suggested);
        }
        error.exit()
    })
}

async fn run(command: Command, inherited: Vec<Inherited>, context: &Context) -> anyhow::Result<ExitCode> {
    match command {
        Command::Zpool(command) => zpool::run(command, context).await,
        Command::Zfs(command) => zfs::run(command, context).await,
        Command::Status(args) => zpool::status::run(args, zpool::status::About::Everything, context).await,
        Command::Serve(args) => serve::run(args, inherited, context).await,
        Command::Share(args) => share::run(args, context).await,
        Command::Initiators(args) => initiators::run(args, context).await,
        Command::Stmfadm(command) => stmfadm::stmfadm(command, context).await,
        Command::Sbdadm(command) => stmfadm::sbdadm(command, context).await,
        Command::Alert(args) => alert::run(args, context).await,
        Command::Zilstat(args) => zilstat::run(args, context).await,
        Command::Arcstat(args) => arcstat::run(args, context).await,
        Command::ArcSummary(args) => arc_summary::run(args, context).await,
        Command::Advise(args) => advise::run(args, context).await,
        Command::Prewarm(args) => prewarm::run(args, context).await,
        Command::Memory(args) => memory::run(args, context).await,
        Command::Verify(args) => verify::run(args, context).await,
        Command::Image(args) => image::run(args, context).await,
        Command::Ls(args) => files::ls(args, context).await,
        Command::Cat(args) => files::cat(args, context).await,
        Command::Get(args) => files::get(args, context).await,
        Command::Dump(args) => dump::run(args, context).await,
        Command::Cachesim(args) => cachesim::run(args, context).await,
        Command::Bench(args) => bench::run(args).await,
        Command::Drill(args) => drill::run(args, context).await,
        Command::Version(args) => version::run(&args, "millpond"),
    }
}

/// The error and its causes, each said once: some errors quote their cause in the middle of a longer text.
fn sentence(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// Whether the reader of standard output went away: it has seen enough, and that is no failure.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}
