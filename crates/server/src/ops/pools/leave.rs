//! `zpool destroy` and `export`: a pool's life here ends, in order, or by giving up what could not be written.

use engine::engine::Ending;

use crate::{
    host::chain,
    ops::{
        Answer, Failure,
        cx::Cx,
        failure::{PoolError, suspended},
        held::Held,
    },
};

/// `zpool destroy`
pub(crate) async fn destroy(cx: &Cx<'_>, name: &str, force: bool) -> Result<Answer, Failure> {
    let held = cx.host.writable(name).await.map_err(|error| {
        let is_only_remembered = matches!(error, PoolError::Absent(_) | PoolError::Unopenable { .. });
        let mut failure = error.of_pool(name);
        if is_only_remembered {
            failure.message.push_str(&format!("\nto forget it: 'zpool export {name}'"));
        }
        failure
    })?;
    leave(cx, &held, force, &format!("cannot destroy '{name}'"), Ending::Destroy).await
}

/// `zpool export`
pub(crate) async fn export(cx: &Cx<'_>, name: &str, force: bool) -> Result<Answer, Failure> {
    let what = format!("cannot export '{name}'");
    let held = match cx.host.pool(name).await {
        Ok(held) => held,
        Err(PoolError::Missing(hint) | PoolError::Absent(hint)) => {
            return forget(cx, name, &what, hint).await;
        }
        // Likewise: too little of it is left, or another host has it. What its devices say stays as it is.
        Err(PoolError::Unopenable { guid, why }) => {
            let forgotten = cx.host.places().state().forget(&guid.to_string());
            forgotten.map_err(|error| Failure::because(&what, chain(&error)))?;
            let why = why.lines().next().unwrap_or_default();
            let warning = format!(
                "{why}\nit is forgotten, and its devices were not touched; to have it back: 'zpool import {name}'"
            );
            return Ok(Answer { warnings: vec![warning], ..Answer::default() });
        }
        Err(error) => return Err(error.of_pool(name)),
    };
    if let Some(why) = held.suspended() {
        let give_up = format!("to give up what could not be written: 'zpool export -F {name}'");
        return Err(Failure::new(format!("{what}: {}\n{give_up}", suspended(name, &why))));
    }
    spare_clients(cx, &held, force, &what)?;
    if held.engine().is_some() && cx.record.is_some() {
        // The last thing its history tells.
        cx.change(&held, &what, |_| Box::pin(async { Ok(()) })).await?;
    }
    leave(cx, &held, force, &what, Ending::Export).await
}

/// A pool that is imported, and not open: there is nothing to write to, only to forget. But the daemon may be about to open it
/// by itself, and who exports a pool may take it elsewhere at once.
async fn forget(cx: &Cx<'_>, name: &str, what: &str, hint: String) -> Result<Answer, Failure> {
    let state = cx.host.places().state();
    let known = state.pools().map_err(|error| Failure::because(what, chain(&error)))?;
    match state.forget(name) {
        Ok(true) => {}
        Ok(false) => return Err(PoolError::Missing(hint).of_pool(name)),
        Err(error) => return Err(Failure::because(what, chain(&error))),
    }
    let guid = name.parse::<u64>().ok();
    let mut warnings = Vec::new();
    for pool in known.iter().filter(|known| known.name == name || Some(known.guid) == guid) {
        if !cx.host.end_attempt(pool.guid).await {
            warnings.push(format!(
                "'{name}' was just being opened, and its devices do not let go of it yet: import it nowhere before \
                 'fuser -v DEVICE' shows that nobody has them"
            ));
        }
    }
    Ok(Answer { warnings, ..Answer::default() })
}

/// `zpool export -F`: for a pool that cannot be written to any more, and will not be. One that can be loses what is not on
/// its devices yet, and its clients, for nothing.
pub(crate) async fn abandon(cx: &Cx<'_>, name: &str) -> Result<Answer, Failure> {
    let Some(held) = cx.host.find(name) else {
        // A command without a daemon has nothing that waits; and what a daemon is about to open by itself is not suspended.
        let _turn = cx.host.next_turn(name).await?;
        return Box::pin(export(cx, name, true)).await;
    };
    let Some(why) = held.suspended() else {
        return Err(Failure::new(format!(
            "cannot give up '{name}': it is not suspended\nuse 'zpool export {name}', with '-f' even if clients are connected"
        )));
    };
    if let Some(serving) = &cx.host.serving {
        serving.withdraw_pool(&held).await;
        serving.names_are_free();
    }
    let mut warnings = Vec::new();
    if let Some(engine) = held.engine() {
        engine.abandon().await;
        warnings.push(format!("'{name}' was suspended ({why}): what was not flushed is lost"));
    }
    cx.host.release(held.guid());
    let forgotten = cx.host.places().state().forget(&held.guid().to_string());
    warnings.extend(forgotten.err().map(|error| chain(&error)));
    Ok(Answer { warnings, ..Answer::default() })
}

/// A pool with clients stays, unless that is overridden.
fn spare_clients(cx: &Cx<'_>, held: &Held, force: bool, what: &str) -> Result<(), Failure> {
    let is_busy =
        cx.host.serving.as_ref().is_some_and(|serving| !serving.clients_of_pool(held.name()).is_empty());
    if is_busy && !force { Err(Failure::because(what, "pool is busy")) } else { Ok(()) }
}

/// Ends a pool's life here.
async fn leave(cx: &Cx<'_>, held: &Held, force: bool, what: &str, ending: Ending) -> Result<Answer, Failure> {
    spare_clients(cx, held, force, what)?;
    if let Some(serving) = &cx.host.serving {
        serving.withdraw_pool(held).await;
        serving.names_are_free();
    }
    let ended = cx.host.end(held, ending).await;
    ended.map_err(|error| Failure::because(what, chain(&error)))?;
    let forgotten = cx.host.places().state().forget(&held.guid().to_string());
    let mut warnings: Vec<String> = forgotten.err().map(|error| chain(&error)).into_iter().collect();
    // Their locks tell that on this host only.
    let owing = held.engine().map(|engine| engine.owing()).unwrap_or_default();
    warnings.extend(owing.iter().map(|device| {
        format!(
            "{device} owes answers, and what it was given may still land there: use it on no other host before \
             'fuser -v DEVICE' shows that nobody has it"
        )
    }));
    Ok(Answer { warnings, ..Answer::default() })
}
