//! Who gets what there is: no command offers a volume, or what comes of it, to more than had it, or takes it from those who have
//! it without a question.

use engine::dsl::{self, Stored};
use iscsi::{inbox::Inbox, login::Login, pdu::NO_TAG, session::Session};
use pool::{
    ondisk::{
        Order,
        dsl::{DatasetPhys, dataset_flags},
    },
    volume::OpenVolumeError,
};

use super::*;
use crate::ops::Destroy;

/// `-r` cleared what the disk of a guest was offered by, and `-S` took back what a stream had brought: without a question.
#[tokio::test]
async fn to_inherit_below_or_from_a_stream_asks_about_clients_too() {
    const NAME: &str = "tank/a/v";
    let world = World::new().await;
    world.volume(NAME).await;
    world.offer("tank", "none").await;
    world.offer(NAME, "iscsi").await;
    let iqn = iscsi::iqn::for_dataset(NAME);
    let address = listen(&world.serving.targets).await;
    let (_guest, status) = log_in(address, &iqn).await;
    assert_eq!(status, (0, 0));
    let inherit = async |name: &str, recursive: bool, received: bool, force: bool| {
        let (name, property) = (name.to_owned(), property::OFFER.to_owned());
        world.run(Operation::Inherit { name, property, recursive, received, force }).await
    };
    let is_refused = |answer: Result<Answer, Failure>| {
        answer.is_err_and(|why| why.message.contains("1 client uses tank/a/v"))
    };
    assert!(is_refused(inherit("tank/a", true, false, false).await));
    inherit("tank/a", false, false, false).await.expect("it does not reach it");
    // Everything as if nobody had said anything: it is offered then.
    inherit("tank", false, false, false).await.unwrap();
    inherit("tank", true, false, false).await.unwrap();
    let brought =
        Properties::from([("org.millpond:offer$recvd".to_owned(), Stored::Text("none".to_owned()))]);
    world.offer(NAME, "iscsi").await;
    let set = world.engine.run(move |cx| Box::pin(async move { dsl::set(cx, NAME, &brought).await }));
    set.await.unwrap();
    inherit("tank/a", false, true, false).await.expect("nothing was brought there");
    for (name, recursive) in [(NAME, false), ("tank/a", true)] {
        assert!(is_refused(inherit(name, recursive, true, false).await), "{name}");
    }
    assert!(target(&world.serving, &iqn).is_some());
    inherit("tank/a", true, true, true).await.unwrap();
    assert!(target(&world.serving, &iqn).is_none());
}

/// Its refusal said that it would be carried out, and it was, on disk: who was to be kept out came in until somebody changed
/// something else.
#[tokio::test]
async fn an_access_list_that_was_begun_before_a_suspension_holds_after_it() {
    let world = World::with_volumes().await;
    let _observer = world.observed();
    let address = listen(&world.serving.targets).await;
    assert_eq!(log_in(address, TARGET).await.1, (0, 0));
    world.disk.inject(Fault::anywhere(On::Write, Effect::Error(std::io::ErrorKind::TimedOut)));
    let change = ShareChange::Access {
        target: Some(TARGET.to_owned()),
        allow: true,
        initiators: vec!["iqn.other".to_owned()],
        networks: Vec::new(),
    };
    let error = world.run(Operation::Share { pool: "tank".to_owned(), change }).await.unwrap_err();
    assert!(error.message.contains("carried out when the pool is cleared"), "{}", error.message);
    world.disk.heal();
    world.run(Operation::PoolClear { pool: "tank".to_owned(), device: None }).await.unwrap();
    eventually("it is kept out", async || log_in(address, TARGET).await.1 == (2, 2)).await;
}

/// Nobody asked for those of a volume that could not be read at that moment: half a minute later the disk of its host was gone,
/// or had a write cache that the host did not know of.
#[tokio::test]
async fn a_setting_asks_about_clients_of_what_cannot_be_read_too() {
    let world = World::with_volumes().await;
    let set = async |name: &str, text: &str| {
        let properties = vec![(name.to_owned(), text.to_owned())];
        world.run(Operation::Set { name: "tank".to_owned(), properties, force: false }).await
    };
    set(property::WRITE_CACHE, "off").await.unwrap();
    let address = listen(&world.serving.targets).await;
    let (_guest, status) = log_in(address, &iscsi::iqn::for_dataset("tank/b")).await;
    assert_eq!(status, (0, 0));
    world.break_block(&world.root_block("tank/b").await);
    for (name, text, why) in [
        ("volmode", "none", "1 client uses tank/b as it is offered now"),
        (property::OFFER, "none", "1 client uses tank/b as it is offered now"),
        (property::WRITE_CACHE, "on", "1 client uses tank/b and found no write cache"),
    ] {
        let said = set(name, text).await.unwrap_err().message;
        assert!(said.contains(why), "{name}: {said}");
    }
    world.disk.heal();
    let held = world.host.find("tank").unwrap();
    assert_eq!(world.serving.follow(&held).await, Vec::<String>::new());
    assert_eq!(world.serving.clients("tank/b").len(), 1);
}

/// The same where the list of volumes cannot be read to its end.
#[tokio::test]
async fn a_setting_is_refused_while_it_cannot_be_found_out_whose_clients_it_reaches() {
    const NAME: &str = "tank/lab/v";
    let world = World::new().await;
    world.volume(NAME).await;
    // A list of few names is in the pointer to it, and cannot be lost.
    for name in [LETTERS.to_owned(), LETTERS.chars().rev().collect()] {
        world.volume(&format!("tank/lab/{name}")).await;
    }
    let address = listen(&world.serving.targets).await;
    let (_guest, status) = log_in(address, &iscsi::iqn::for_dataset(NAME)).await;
    assert_eq!(status, (0, 0));
    let children = world.dataset("tank/lab").await.unwrap().dir().phys().child_map;
    let map = world.engine.view().mos().object(children).await.unwrap();
    world.break_block(&first_block(&map).await);
    let properties = vec![("volmode".to_owned(), "none".to_owned())];
    let close = Operation::Set { name: "tank".to_owned(), properties, force: false };
    let said = world.run(close).await.unwrap_err().message;
    assert!(said.contains("whether clients of 'tank/lab/v' would be cut off"), "{said}");
    assert!(said.contains("cannot open 'tank/lab': I/O error"), "{said}");
}

/// They have not the LUN of the volume that they come from, and were offered to everybody: all that it held when the snapshot
/// was made.
#[tokio::test]
async fn what_is_cloned_or_promoted_is_no_more_open_than_the_volume_it_comes_from() {
    let world = World::with_volumes().await;
    let share = |change| Operation::Share { pool: "tank".to_owned(), change };
    let allow = ShareChange::Access {
        target: Some(TARGET.to_owned()),
        allow: true,
        initiators: vec!["iqn.2026-11.test:client".to_owned()],
        networks: Vec::new(),
    };
    world.run(share(allow)).await.unwrap();
    world.snapshot(&["tank/a@s", "tank/b@s"]).await;
    let clone = async |snapshot: &str, name: &str, offer: Option<&str>| {
        let properties = offer.map(|offer| (property::OFFER.to_owned(), offer.to_owned()));
        let properties = properties.into_iter().collect();
        let (snapshot, name) = (snapshot.to_owned(), name.to_owned());
        let said = world.run(Operation::Clone { snapshot, name, properties, parents: false }).await.unwrap();
        said.warnings.concat()
    };
    let is_open = |name: &str| target(&world.serving, &iscsi::iqn::for_dataset(name)).is_some();
    let said = clone("tank/a@s", "tank/closed", None).await;
    assert!(said.contains("closed is offered to nobody") && said.contains("offer= tank/closed"), "{said}");
    assert!(!is_open("tank/closed") && !is_open("tank/a@s"));
    assert_eq!(clone("tank/b@s", "tank/plain", None).await, "");
    assert!(is_open("tank/plain") && is_open("tank/b@s"));
    // Somebody says so, for it or for where it is; what is said of all of the pool is said of no clone.
    assert_eq!(clone("tank/a@s", "tank/open", Some("all")).await, "");
    world.volume("tank/lab/x").await;
    world.offer("tank/lab", "iscsi").await;
    assert_eq!(clone("tank/a@s", "tank/lab/open", None).await, "");
    world.offer("tank", "iscsi").await;
    assert_ne!(clone("tank/a@s", "tank/closed2", None).await, "");
    assert_eq!(
        ["tank/open", "tank/lab/open", "tank/closed", "tank/closed2"].map(is_open),
        [true, true, false, false]
    );
    // A LUN of its own it can have.
    let (target_name, volume) = (TARGET.to_owned(), "tank/closed".to_owned());
    world.run(share(ShareChange::LunAdd { target: target_name, volume, lun: Some(1) })).await.unwrap();
    assert!(target(&world.serving, TARGET).unwrap().unit(1).is_some());

    let promote = async |name: &str| {
        let answer = world.run(Operation::Promote { name: name.to_owned() }).await.unwrap();
        answer.warnings.concat()
    };
    let said = promote("tank/open").await;
    assert!(said.contains("tank/open@s is offered to nobody"), "{said}");
    assert!(is_open("tank/open") && !is_open("tank/open@s"));
    assert!(target(&world.serving, TARGET).unwrap().unit(0).is_some(), "what it came from is a LUN still");
    assert_eq!(promote("tank/plain").await, "");
    assert!(is_open("tank/plain@s"));
}

/// What nobody may have of the volume is of no concern to a clone of which somebody says who may, and was read all the same.
#[tokio::test]
async fn a_clone_whose_offer_is_given_is_made_though_it_cannot_be_read_whose_the_volume_is() {
    let world = World::with_volumes().await;
    world.snapshot(&["tank/a@s"]).await;
    let view = world.engine.view();
    let properties = view.directory().get_u64("pool_props").await.unwrap().unwrap();
    world.break_block(&first_block(&view.mos().object(properties).await.unwrap()).await);
    let clone = async |name: &str, properties| {
        let (snapshot, name) = ("tank/a@s".to_owned(), name.to_owned());
        world.run(Operation::Clone { snapshot, name, properties, parents: false }).await
    };
    let said = clone("tank/closed", Vec::new()).await.unwrap_err().message;
    assert!(said.starts_with("cannot create 'tank/closed': "), "{said}");
    clone("tank/open", vec![(property::OFFER.to_owned(), "all".to_owned())]).await.unwrap();
}

/// What discovery names.
fn discovered(serving: &Serving) -> String {
    let mut header = Header::new(op::LOGIN | 0x40);
    (header.0[1], header.0[8]) = (0x87, 0x80);
    let (mut login, mut out) = (Login::default(), Outbox::default());
    let who = b"InitiatorName=iqn.test\0SessionType=Discovery\0";
    login.handle(&header, who, &serving.targets, &mut out).unwrap();
    let accepted = login.finish(1, &mut out).unwrap();
    let targets = Arc::clone(&serving.targets);
    let mut session = Session::new(accepted, targets, ([127, 0, 0, 1], 3260).into(), Outbox::default());
    let (mut asked, mut inbox) = (Outbox::default(), Inbox::default());
    let mut header = Header::new(op::TEXT | 0x40);
    header.set(20, NO_TAG);
    asked.push(header, b"SendTargets=All\0");
    inbox.extend(&asked.drain());
    session.handle_bytes(&mut inbox).unwrap();
    String::from_utf8_lossy(&session.outbox().drain()).into_owned()
}

/// A host that logs in to all that is named had every snapshot as a disk, and what somebody is logged in to cannot be destroyed.
#[tokio::test]
async fn discovery_names_no_target_that_is_a_snapshots_own() {
    let world = World::with_volumes().await;
    world.snapshot(&["tank/b@s"]).await;
    let [volume, snapshot] = ["tank/b", "tank/b@s"].map(iscsi::iqn::for_dataset);
    let named = discovered(&world.serving);
    assert!([TARGET, &volume].iter().all(|iqn| named.contains(&format!("TargetName={iqn}\0"))), "{named}");
    assert!(!named.contains(&snapshot), "{named}");
    let address = listen(&world.serving.targets).await;
    assert_eq!(log_in(address, &snapshot).await.1, (0, 0), "who knows its name");
}

/// A volume that nobody was to have because of an `offer` above it was open to everybody as soon as it was renamed.
#[tokio::test]
async fn what_is_renamed_is_no_more_open_than_it_was() {
    let world = World::new().await;
    for name in ["tank/lab/x", "tank/lab/sub/y", "tank/lab/z", "tank/lab/all", "tank/dark/v", "tank/open/o"] {
        world.volume(name).await;
    }
    world.offer("tank/lab", "none").await;
    world.offer("tank/lab/all", "all").await;
    world.offer("tank/open", "iscsi").await;
    let properties = vec![("volmode".to_owned(), "none".to_owned())];
    world.run(Operation::Set { name: "tank/dark".to_owned(), properties, force: false }).await.unwrap();
    let rename = async |from: &str, to: &str| {
        let (from, to) = (from.to_owned(), to.to_owned());
        let rename = Operation::Rename { from, to, parents: true, recursive: false };
        world.run(rename).await.unwrap().warnings.concat()
    };
    let is_open = |name: &str| target(&world.serving, &iscsi::iqn::for_dataset(name)).is_some();
    // What is set on what is renamed, or below it, goes with it.
    assert_eq!(rename("tank/lab/all", "tank/all").await, "");
    assert_eq!(rename("tank/lab", "tank/more/lab").await, "");
    assert_eq!(["tank/all", "tank/more/lab/x"].map(is_open), [true, false]);
    let said = rename("tank/more/lab/x", "tank/x").await;
    assert!(said.contains("tank/x is offered to nobody") && said.contains("offer= tank/x"), "{said}");
    let said = rename("tank/more/lab/sub", "tank/new/sub").await;
    assert!(said.contains("tank/new/sub/y is offered to nobody"), "{said}");
    assert_ne!(rename("tank/dark/v", "tank/v").await, "");
    assert_eq!(["tank/x", "tank/new/sub/y", "tank/v"].map(is_open), [false; 3]);
    // Somebody said so for where it is now.
    assert_eq!(rename("tank/more/lab/z", "tank/open/z").await, "");
    let said = rename("tank/open/o", "tank/o").await;
    assert!(said.contains("tank/o is offered over iSCSI only") && said.contains("was tank/open/o"), "{said}");
    assert!(is_open("tank/open/z") && is_open("tank/o"));
}

/// As long as it could not be read it was taken for no volume: nothing closed it, and everybody had it when it could be.
#[tokio::test]
async fn what_is_renamed_while_it_cannot_be_read_is_no_more_open_than_it_was() {
    let world = World::new().await;
    world.volume("tank/lab/sub/v").await;
    world.offer("tank/lab", "none").await;
    // As long as it is open, the pool stops when it is to follow its new name and cannot be read.
    let world = world.restarted().await;
    world.break_block(&world.root_block("tank/lab/sub/v").await);
    let (from, to) = ("tank/lab/sub".to_owned(), "tank/sub".to_owned());
    let rename = Operation::Rename { from, to, parents: false, recursive: false };
    let said = world.run(rename).await.unwrap().warnings.concat();
    assert!(said.contains("tank/sub/v is offered to nobody"), "{said}");
    world.disk.heal();
    let held = world.host.find("tank").unwrap();
    assert_eq!(world.serving.follow(&held).await, Vec::<String>::new());
    assert!(world.serving.entries.lock().contains_key("tank/sub/v"));
    assert!(target(&world.serving, &iscsi::iqn::for_dataset("tank/sub/v")).is_none());
}

/// OpenZFS destroys it at its next import, with all that clients wrote to it, and until then it was neither what it comes from
/// nor what was sent.
#[tokio::test]
async fn what_was_received_in_part_only_is_offered_to_nobody() {
    let world = World::with_volumes().await;
    world.snapshot(&["tank/b@s"]).await;
    // What a stream of a clone begins with.
    let clone = world.engine.run(|cx| {
        Box::pin(async move { dsl::clone(cx, "tank/b@s", "tank/part", &Properties::new(), false).await })
    });
    clone.await.unwrap();
    let part = world.dataset("tank/part").await.unwrap().object();
    let mark = world.engine.run(move |cx| {
        Box::pin(async move {
            let mut phys = DatasetPhys::decode(&cx.mos.bonus(part).await?, Order::Little).unwrap();
            phys.flags |= dataset_flags::INCONSISTENT;
            cx.mos.set_bonus(part, &phys.encode(Order::Little)).await?;
            Ok(())
        })
    });
    mark.await.unwrap();
    let held = world.host.find("tank").unwrap();
    assert_eq!(world.serving.follow(&held).await, Vec::<String>::new());
    let listed = world.serving.list().served;
    let refused = listed.iter().find(|served| served.dataset == "tank/part");
    let why = refused.and_then(|served| served.refused.as_deref());
    assert!(why.is_some_and(|why| why.contains("in part only")), "{listed:?}");
    let is_open = |name: &str| target(&world.serving, &iscsi::iqn::for_dataset(name)).is_some();
    assert!(is_open("tank/b") && is_open("tank/b@s") && !is_open("tank/part"));
    // To be read it is no better.
    let opened = world.dataset("tank/part").await.unwrap().open_volume().await;
    assert!(matches!(opened, Err(OpenVolumeError::Partial(_))));
    let promote = Operation::Promote { name: "tank/part".to_owned() };
    assert!(world.run(promote).await.is_err());
    let destroy = Destroy { name: "tank/part".to_owned(), ..Destroy::default() };
    world.run(Operation::Destroy(destroy)).await.unwrap();
}
