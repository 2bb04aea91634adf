//! Encrypted datasets, which other software makes: they are only read here, and yet what is done to their names, below
//! them and with their snapshots must leave them as that software needs them.

use super::*;
use engine::{
    dmu::NewObject,
    mos::{features, zap},
};
use ondisk::{
    dnode::ObjectType,
    dsl::keys::{BOOKMARKS, CRYPTO_KEY, IVSET_GUID},
};

const BOOKMARK_V2: &str = "com.datto:bookmark_v2";

/// The directory of a dataset.
async fn dir_of(cx: &mut Syncer, name: &str) -> u64 {
    let mut dir = cx.places.root_dir;
    for part in name.split('/').skip(1) {
        let map = directory(cx, dir).await.child_map;
        dir = zap::get_u64(&mut cx.mos, map, part).await.unwrap().unwrap();
    }
    dir
}

/// Gives datasets keys as encrypted ones have them: (name, its encryption root).
async fn encrypt(lab: &mut Lab, datasets: &'static [(&'static str, &'static str)]) {
    lab.run(&format!("encrypt {datasets:?}"), false, move |cx| {
        Box::pin(async move {
            let txg = cx.txg;
            features::enable(&mut cx.mos, "com.datto:encryption", txg).await?;
            for (name, root) in datasets {
                let (dir, root) = (dir_of(cx, name).await, dir_of(cx, root).await);
                let key = cx.mos.allocate(NewObject::of(ObjectType::ZAP_METADATA)).await?;
                zap::init(&mut cx.mos, key, 0).await?;
                zap::set_u64(&mut cx.mos, key, "DSL_CRYPTO_ROOT_DDOBJ", root).await?;
                cx.mos.set_type(dir, ObjectType::ZAP_METADATA).await?;
                zap::init(&mut cx.mos, dir, 0).await?;
                zap::set_u64(&mut cx.mos, dir, CRYPTO_KEY, key).await?;
                features::add(&mut cx.mos, "com.delphix:extensible_dataset", 1).await?;
            }
            Ok(())
        })
    })
    .await
    .unwrap();
}

/// A dataset that inherits its key could be renamed out of its encryption root. When the key of that was changed next, in
/// OpenZFS, which goes down from the root, the dataset kept one that nobody could unwrap any more.
#[tokio::test(start_paused = true)]
async fn an_encrypted_dataset_is_not_moved_away_from_its_encryption_root() {
    let mut lab = Lab::new("d0", 12, 31).await;
    for name in ["tank/a", "tank/a/b", "tank/a/b/c", "tank/a/d", "tank/a/d/e", "tank/f", "tank/plain"] {
        lab.filesystem(name, false).await.unwrap();
    }
    let datasets = &[
        ("tank/a", "tank/a"),
        ("tank/a/b", "tank/a"),
        ("tank/a/b/c", "tank/a"),
        ("tank/a/d", "tank/a/d"),
        ("tank/a/d/e", "tank/a/d"),
        ("tank/f", "tank/f"),
    ];
    encrypt(&mut lab, datasets).await;
    let away = "it inherits its encryption key, and must stay below its encryption root";
    for (from, to) in [
        ("tank/a/b", "tank/b"),
        ("tank/a/b", "tank/f/b"),
        ("tank/a/b", "tank/a/d/b"),
        ("tank/a/b/c", "tank/plain/c"),
        ("tank/a/d/e", "tank/a/e"),
    ] {
        assert_eq!(refusal(lab.rename(from, to, false).await), away, "{from} to {to}");
    }
    // Elsewhere below the root, and another name in the same place.
    lab.rename("tank/a/b/c", "tank/a/c", false).await.unwrap();
    lab.rename("tank/a/c", "tank/a/x", false).await.unwrap();
    lab.rename("tank/a/x", "tank/a/b/x", false).await.unwrap();
    // A root goes anywhere, with those that inherit from it.
    lab.rename("tank/a/d", "tank/d", false).await.unwrap();
    lab.rename("tank/d", "tank/f/d", false).await.unwrap();
    lab.rename("tank/a", "tank/plain/a", false).await.unwrap();
    lab.rename("tank/plain/a/b/x", "tank/plain/a/x", false).await.unwrap();
    assert_eq!(refusal(lab.rename("tank/plain/a/b", "tank/b", false).await), away);
    lab.check();
}

/// What was created below an encrypted parent was in clear text, though nobody had asked for that.
#[tokio::test(start_paused = true)]
async fn what_is_made_below_an_encrypted_parent_is_in_clear_text_only_if_asked_for() {
    let mut lab = Lab::new("d0", 12, 32).await;
    lab.filesystem("tank/a", false).await.unwrap();
    lab.create("tank/v", Properties::new()).await.unwrap();
    lab.snapshot(&["tank/v@s"]).await.unwrap();
    encrypt(&mut lab, &[("tank/a", "tank/a")]).await;
    let refused =
        "its parent is encrypted, and encryption is not supported; encryption=off stores it in clear text";
    assert_eq!(refusal(lab.create("tank/a/v", Properties::new()).await), refused);
    assert_eq!(refusal(lab.filesystem("tank/a/f", false).await), refused);

    let refused =
        "its missing parents would be encrypted, which is not supported; create them with encryption=off";
    assert_eq!(refusal(lab.filesystem("tank/a/x/f", true).await), refused);
    let off = props(&[("encryption", 2)]);
    let new = NewVolume {
        name: "tank/a/x/v".into(),
        size: SIZE,
        block: BLOCK,
        properties: off.clone(),
        parents: true,
    };
    let create =
        lab.run("create -p", false, move |cx| Box::pin(async move { dsl::create_volume(cx, &new).await }));
    assert_eq!(refusal(create.await), refused);
    let clone = lab.run("clone -p", false, |cx| {
        Box::pin(async move { dsl::clone(cx, "tank/v@s", "tank/a/x/c", &Properties::new(), true).await })
    });
    assert_eq!(refusal(clone.await), refused);
    let rename = lab.run("rename -p", false, |cx| {
        Box::pin(async move { dsl::rename(cx, "tank/v", "tank/a/x/v", true, false).await })
    });
    assert_eq!(refusal(rename.await), refused);

    lab.create("tank/a/v", off.clone()).await.unwrap();
    lab.run("create -o encryption=off", false, move |cx| {
        Box::pin(async move { dsl::create_filesystem(cx, "tank/a/f", &off, false).await })
    })
    .await
    .unwrap();
    // Below one that is not encrypted nothing has to be said, nor of a clone, which has what its origin has.
    lab.filesystem("tank/a/f/x/y", true).await.unwrap();
    lab.clone("tank/v@s", "tank/a/c").await.unwrap();
    lab.run("look", false, |cx| {
        Box::pin(async move {
            let dir = dir_of(cx, "tank/a/f").await;
            let props = directory(cx, dir).await.props;
            assert_eq!(zap::get_u64(&mut cx.mos, props, "encryption").await?, None, "a key says it, or none");
            Ok(())
        })
    })
    .await
    .unwrap();
    lab.check();
}

/// The identity of a snapshot's initialisation vectors.
async fn vectors(lab: &Lab, snapshot: &str) -> Option<u64> {
    let object = lab.number(snapshot, "objsetid").await;
    let look = lab.running.engine.run(move |cx| {
        Box::pin(async move {
            let found = zap::get_u64(&mut cx.mos, object, IVSET_GUID).await?;
            Ok::<_, OpError>(found)
        })
    });
    look.await.unwrap()
}

/// The words of a bookmark.
async fn words(lab: &Lab, dataset: &'static str, bookmark: &'static str) -> Vec<u64> {
    let look = lab.running.engine.run(move |cx| {
        Box::pin(async move {
            let dir = dir_of(cx, dataset).await;
            let head = directory(cx, dir).await.head_dataset;
            let map = zap::get_u64(&mut cx.mos, head, BOOKMARKS).await?.unwrap();
            let value = zap::get(&mut cx.mos, map, bookmark.into()).await?.unwrap();
            Ok::<_, OpError>(value.integers().collect::<Vec<u64>>())
        })
    });
    look.await.unwrap()
}

/// Without an identity of its initialisation vectors OpenZFS calls a snapshot damaged (errata 4), and takes no raw
/// increment from it, nor from its bookmark.
#[tokio::test(start_paused = true)]
async fn snapshots_and_bookmarks_of_encrypted_datasets_say_which_vectors_they_have() {
    let mut lab = Lab::new("d0", 12, 33).await;
    lab.create("tank/v", Properties::new()).await.unwrap();
    lab.create("tank/w", Properties::new()).await.unwrap();
    encrypt(&mut lab, &[("tank/v", "tank/v")]).await;
    lab.snapshot(&["tank/v@a", "tank/w@a"]).await.unwrap();
    lab.snapshot(&["tank/v@b"]).await.unwrap();
    let (a, b) = (vectors(&lab, "tank/v@a").await.unwrap(), vectors(&lab, "tank/v@b").await.unwrap());
    assert!(a != 0 && b != 0 && a != b);
    assert_eq!(vectors(&lab, "tank/w@a").await, None);
    lab.check();

    lab.bookmark("tank/v@a", "tank/v#a").await.unwrap();
    lab.bookmark("tank/v#a", "tank/v#again").await.unwrap();
    lab.bookmark("tank/w@a", "tank/w#a").await.unwrap();
    for name in ["a", "again"] {
        let words = words(&lab, "tank/v", name).await;
        assert_eq!(words[3..], [0, 0, 0, 0, 0, 0, 0, 0, a], "{name}");
    }
    assert_eq!(words(&lab, "tank/w", "a").await.len(), 3);
    assert_eq!(lab.feature(BOOKMARK_V2).await, 2);
    lab.check();
    lab.destroy_snapshot("tank/v@a", false).await.unwrap();
    lab.destroy_bookmark("tank/v#a").await.unwrap();
    assert_eq!(lab.feature(BOOKMARK_V2).await, 1);
    lab.destroy_bookmark("tank/v#again").await.unwrap();
    assert_eq!(lab.feature(BOOKMARK_V2).await, 0);
    lab.check();
}
