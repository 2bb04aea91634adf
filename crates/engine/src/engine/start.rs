//! How an engine begins: a pool that was created or opened is taken over, its first transaction group is synced, and what runs
//! beside the syncing task is started.
//!
//! The order is what matters here. Nothing is written before other hosts had their say. The first group says on the labels who
//! has the pool, and claims what logs refer to; only then is there a state that clients can be shown, and only then are logs
//! replayed.

use std::sync::{Arc, atomic::AtomicU64};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use pool::Pool;

use super::{Conduct, Ending, Engine, Helper, Options, Shared, conduct::on_suspension, task};
use crate::{
    BoxFuture, EngineError,
    devices::{self, Sweeps, watch},
    dsl,
    ear::EngineEar,
    events::Events,
    heal,
    open::{multihost::Heartbeats, rivals},
    prewarm::Prewarm,
    scan::{self, Ground},
    second::{self, Second},
    sync::{Syncer, Work},
    txg::Txgs,
    zil::{log::Means, replay},
};

impl Engine {
    /// Takes over a pool that was created or opened. Its first transaction group is synced before this returns,
    /// so that labels say who has it. With `multihost` on, that takes some seconds more for a pool that was opened: another
    /// host may be about to take it over as well.
    ///
    /// # Errors
    /// It cannot be written to, or another host takes it over.
    pub fn start(syncer: Syncer, options: Options) -> BoxFuture<'static, Result<Arc<Self>, EngineError>> {
        Self::start_caching(syncer, options, second::Config::default())
    }

    /// The same, with a second tier of the cache that works like `tier` from the beginning.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_caching(
        mut syncer: Syncer,
        options: Options,
        tier: second::Config,
    ) -> BoxFuture<'static, Result<Arc<Self>, EngineError>> {
        Box::pin(async move {
            let events = Events::new(options.clock);
            syncer.events = Arc::clone(&events);
            devices::opened(&syncer.io.tree());
            scan::open(&mut syncer).await?;
            let unheld = dsl::release_temporary(&mut syncer).await;
            // What lies on cache devices may be of the future that was given up.
            let is_rewound =
                syncer.view.as_ref().is_some_and(|view| view.uberblock().txg < view.newest_uberblock().txg);
            let mut heartbeats = Heartbeats::default();
            syncer.out.suspension().heed(heartbeats.alive());
            rivals::exclude(&mut syncer, &mut heartbeats, options.now).await?;
            let first = syncer.txg;
            let done = syncer.sync_txg(first, (options.now)(), Work::default()).await?;
            let Some(view) = syncer.view.clone() else {
                return Err(EngineError::Unsupported("the pool has no state to look at".into()));
            };
            let txgs = Txgs::new(first + 1, options.limits);
            txgs.set_supply(done.supply);
            syncer.out.alloc.log_space().set_promises(Arc::clone(&txgs));
            let conduct = Conduct::of(&view).await.unwrap_or_default();
            let second = Second::new(view.io(), is_rewound, tier, syncer.out.suspension());
            second.follow(|| Arc::clone(&view));
            let shared = Shared::new(&syncer, options, txgs, view, second, events);
            shared.conduct_is(conduct);
            report_data(&shared, &mut syncer);
            if done.more_to_do.is_some() {
                shared.txgs.wake();
            }
            heartbeats.committed(&syncer, options.now);
            begin_suspending(&shared, &syncer, &heartbeats);
            let crashed = std::mem::take(&mut syncer.crashed);
            let engine = Self::run_beside(shared, syncer, heartbeats);
            match replay::replay(&engine, crashed).await {
                Ok(replayed) => *engine.shared.replayed.lock() = replayed,
                Err(error) => {
                    // Whoever starts it has nothing that could be cleared: a suspended pool would keep its devices for good.
                    if engine.end(Ending::Close).await.is_err() {
                        engine.abandon().await;
                    }
                    return Err(error);
                }
            }
            // Not in the first group: what fails on the way of that would keep the pool from being opened, each time.
            for object in unheld {
                let destroyed =
                    engine.run(move |cx| Box::pin(async move { dsl::destroy_deferred(cx, object).await }));
                if let Err(error) = destroyed.await {
                    let pool = engine.view();
                    tracing::warn!(pool = pool.name(), object, %error, "a snapshot that nobody holds any more is not destroyed");
                }
            }
            Ok(engine)
        })
    }

    /// Starts the task that syncs, and what goes on beside it.
    fn run_beside(shared: Arc<Shared>, syncer: Syncer, heartbeats: Heartbeats) -> Arc<Self> {
        let ground = Arc::new(ground(&shared, &syncer));
        let (asks, asked) = watch::asks();
        let reports = syncer.out.reports();
        let task = tokio::spawn(task::run(Arc::clone(&shared), Box::new(syncer), heartbeats));
        let helpers = vec![
            Helper(tokio::spawn(scan::run(Arc::clone(&ground)))),
            Helper(tokio::spawn(heal::run(Arc::clone(&ground), Arc::clone(&shared.ear)))),
        ];
        let engine = Arc::new(Self {
            shared,
            task: tokio::sync::Mutex::new(Some(task)),
            asks,
            watch: Mutex::default(),
            helpers: Mutex::new(helpers),
            prewarm: Prewarm::new(ground),
            owing: Mutex::default(),
        });
        *engine.watch.lock() = Some(tokio::spawn(watch::run(Arc::downgrade(&engine), asked, reports)));
        engine
    }
}

impl Shared {
    /// What clients see from here on is `view`, and what they may take `txgs` knows.
    fn new(
        syncer: &Syncer,
        options: Options,
        txgs: Arc<Txgs>,
        view: Arc<Pool>,
        second: Second,
        events: Arc<Events>,
    ) -> Arc<Self> {
        let means = Means {
            txgs: Arc::clone(&txgs),
            space: Arc::clone(syncer.out.alloc.log_space()),
            direct: syncer.out.direct(),
            ahead: syncer.out.ahead(),
            suspension: syncer.out.suspension(),
        };
        let ear = EngineEar::new(syncer.out.reports());
        syncer.io.listen(Arc::clone(&ear) as Arc<dyn pool::Ear>);
        Arc::new(Self {
            txgs,
            logs: Arc::clone(&syncer.logs),
            means,
            options,
            tasks: Mutex::default(),
            volumes: Mutex::default(),
            view: ArcSwap::new(view),
            shrinking: ArcSwap::default(),
            source: syncer.out.source(),
            clients_source: syncer.out.clients_source(),
            ending: Mutex::new(None),
            failed: Mutex::new(None),
            suspension: syncer.out.suspension(),
            targets: syncer.out.targets(),
            conduct: ArcSwap::default(),
            numbers: AtomicU64::new(0),
            statistics: Mutex::default(),
            replayed: Mutex::default(),
            events,
            sweeps: Sweeps::default(),
            ear,
            scans: Arc::clone(&syncer.scans),
            second,
            bits: Arc::clone(syncer.out.alloc.bits()),
            held: syncer.out.held(),
        })
    }
}

/// Data that was handed to the devices is dirty no more.
fn report_data(shared: &Shared, syncer: &mut Syncer) {
    let txgs = Arc::downgrade(&shared.txgs);
    syncer.out.on_data_written(Arc::new(move |txg, bytes| {
        if let Some(txgs) = txgs.upgrade() {
            txgs.undirty(txg, bytes);
        }
    }));
}

/// From here on there is somebody who has a suspended pool tried again.
fn begin_suspending(shared: &Arc<Shared>, syncer: &Syncer, heartbeats: &Heartbeats) {
    let txgs = Arc::downgrade(&shared.txgs);
    let wake = Box::new(move || {
        if let Some(txgs) = txgs.upgrade() {
            txgs.wake();
        }
    });
    shared.suspension.begin(on_suspension(shared, &syncer.name), wake, heartbeats.alive());
}

/// What scans and heals work with.
fn ground(shared: &Arc<Shared>, syncer: &Syncer) -> Ground {
    let (view, suspended) = (Arc::downgrade(shared), Arc::downgrade(shared));
    Ground {
        view: Box::new(move || view.upgrade().map(|shared| shared.view.load_full())),
        is_suspended: Box::new(move || {
            suspended
                .upgrade()
                .is_none_or(|shared| shared.failed.lock().is_some() || shared.suspension.is_on())
        }),
        suspension: Arc::clone(&shared.suspension),
        txgs: Arc::clone(&shared.txgs),
        events: Arc::clone(&shared.events),
        scans: Arc::clone(&shared.scans),
        horizon: Arc::clone(syncer.out.alloc.horizon()),
        reports: syncer.out.reports(),
    }
}
