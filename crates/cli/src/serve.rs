//! `millpond serve`: what the daemon says, as text or as one JSON object a line.

use std::{
    io,
    process::ExitCode,
    sync::{Arc, mpsc},
    thread,
};

use anyhow::Context as _;
use serde_json::json;
use server::{
    certificates::{NbdProof, NbdTls},
    daemon::{self, Config, Event},
    doors::Inherited,
    engine::second::Config as TierConfig,
    governor::MemorySettings,
    host::Settings,
};
use tokio::{sync::oneshot, time::timeout};

use crate::{
    allocator::Jemalloc,
    args::{Serve, TlsMode},
    context::{Context, foreign, print},
    stderr::LAST_WORDS,
};

pub(crate) async fn run(
    args: Serve,
    inherited: Vec<Inherited>,
    context: &Context,
) -> anyhow::Result<ExitCode> {
    let mut tier = TierConfig::default();
    for setting in &args.l2arc {
        tier.set(setting).map_err(|error| context.usage(&["serve"], &format!("--l2arc: {error}")))?;
    }
    let verifies_clients = args.nbd_tls_verify_peer;
    let proof = args
        .nbd_tls_certificates
        .map(|directory| NbdProof::Certificates { directory, verifies_clients })
        .or(args.nbd_tls_psk.map(NbdProof::Keys));
    let config = Config {
        places: context.places(&args.search.search),
        pools: args.pools,
        settings: Settings {
            foreign: foreign(args.force),
            rewind: (&args.rewind).into(),
            replacement: args.arc_policy,
            tier,
            ..Settings::default()
        },
        read_only: args.readonly,
        nbd: args.nbd,
        nbd_tls: proof.map(|proof| NbdTls { proof, is_required: args.nbd_tls == TlsMode::Require }),
        iscsi: args.iscsi,
        socket: context.socket(),
        memory: MemorySettings {
            limit: args.memory_limit,
            arc_max: args.arc_max,
            allocator: Some(Arc::new(Jemalloc::for_a_daemon())),
        },
        alerts: args.alerts,
    };
    let (said, printed) = print_in_background().context("cannot start")?;
    let ended = daemon::serve(config, inherited, Box::new(move |event| tell(&event, args.json, &said))).await;
    // Whoever reads it may rest for ever.
    let _unread = timeout(LAST_WORDS, printed).await;
    ended?;
    Ok(ExitCode::SUCCESS)
}

/// Prints what is sent to the first, in this order; the second is over when all of it is printed, and no more can come.
///
/// As of standard error, nobody waits for whoever reads it: a pipe has room for the addresses of a few hundred volumes, and
/// nobody is served before the last one is said. But nothing is dropped: whoever reads waits for `ready`, and there is not
/// more to say than is served when it begins.
fn print_in_background() -> io::Result<(mpsc::Sender<String>, oneshot::Receiver<()>)> {
    let (said, waiting) = mpsc::channel::<String>();
    let (done, printed) = oneshot::channel();
    // Not a task: it waits in a system call for as long as the reader likes.
    thread::Builder::new().name("said".to_owned()).spawn(move || {
        for text in waiting {
            // Whoever read this may be gone; the daemon is not there for them alone.
            let _closed = print(&text);
        }
        drop(done);
    })?;
    Ok((said, printed))
}

fn tell(event: &Event, as_json: bool, said: &mpsc::Sender<String>) {
    let text = match event {
        Event::Warning(warning) => {
            say!("warning: {warning}");
            return;
        }
        Event::Served(served) => match &served.refused {
            Some(reason) => {
                say!("not served: {reason}");
                match as_json {
                    true => format!(
                        "{}\n",
                        json!({ "event": "refused", "dataset": served.dataset, "reason": reason })
                    ),
                    false => return,
                }
            }
            None if as_json => served
                .urls
                .iter()
                .map(|url| {
                    let object = json!({
                        "event": "served",
                        "dataset": served.dataset,
                        "protocol": url.protocol,
                        "url": url.url,
                        "size": served.size,
                        "block": served.block,
                        "guid": served.guid,
                    });
                    format!("{object}\n")
                })
                .collect(),
            None => served.urls.iter().map(|url| format!("{}\n", url.url)).collect(),
        },
        Event::Ready { socket } if as_json => {
            format!("{}\n", json!({ "event": "ready", "socket": socket, "pid": std::process::id() }))
        }
        Event::Ready { .. } => "ready\n".to_owned(),
        _ => return,
    };
    // The thread is there as long as this can be sent.
    let _sent = said.send(text);
}
