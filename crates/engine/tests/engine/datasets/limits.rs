//! Quotas and reservations: kept, and refused before anything is changed where they cannot be.

use engine::mos::{features, zap};

use super::*;

#[tokio::test(start_paused = true)]
async fn limits_and_reservations_are_kept_and_add_up() {
    let mut lab = Lab::new("d0", 12, 7).await;
    lab.filesystem("tank/a", false).await.unwrap();
    lab.create("tank/a/v", Properties::new()).await.unwrap();
    lab.write("tank/a/v", 0..20).await;
    let small = "size is less than current used or reserved space";
    assert_eq!(refusal(lab.set("tank/a", &[("quota", 4096)]).await), small);
    lab.set("tank/a", &[("reservation", 8 << 20)]).await.unwrap();
    lab.check();
    assert_eq!(refusal(lab.set("tank/a", &[("quota", 4 << 20)]).await), small);
    lab.set("tank/a/v", &[("refreservation", 2 << 20)]).await.unwrap();
    lab.check();
    lab.write("tank/a/v", 10..60).await;
    lab.check();
    lab.snapshot(&["tank/a/v@s"]).await.unwrap();
    lab.check();
    lab.write("tank/a/v", 0..60).await;
    lab.check();
    assert_eq!(refusal(lab.set("tank/a", &[("reservation", 1 << 40)]).await), "out of space");
    assert_eq!(refusal(lab.set("tank/a/v", &[("refreservation", 1 << 40)]).await), "out of space");
    lab.set("tank/a", &[("reservation", 0)]).await.unwrap();
    lab.set("tank/a/v", &[("refreservation", 0)]).await.unwrap();
    lab.check();
    assert_eq!(lab.number("tank/a", "usedbychildren").await, lab.number("tank/a/v", "used").await);
}

#[tokio::test(start_paused = true)]
async fn more_bytes_than_signed_numbers_hold_are_refused_and_change_nothing() {
    let mut lab = Lab::new("d0", 12, 21).await;
    let thick = dsl::default_refreservation(SIZE, BLOCK, 1, BLOCK.into());
    lab.create("tank/v", props(&[("refreservation", thick)])).await.unwrap();
    lab.write("tank/v", 0..8).await;
    let used = lab.number("tank", "used").await;
    let too_large = "volume size exceeds limit for this system";
    assert_eq!(refusal(lab.set("tank/v", &[("volsize", 10 << 60)]).await), too_large);
    assert_eq!(refusal(lab.set("tank/v", &[("volsize", 1 << 62)]).await), "out of space");
    for bytes in [1 << 63, u64::MAX] {
        for name in ["refreservation", "reservation", "quota", "refquota"] {
            let refused = refusal(lab.set("tank/v", &[(name, bytes)]).await);
            assert_eq!(refused, "numeric value is too large", "{name}");
            let created = refusal(lab.create("tank/w", props(&[(name, bytes)])).await);
            assert_eq!(created, "numeric value is too large", "{name}");
        }
    }
    assert_eq!(lab.number("tank/v", "volsize").await, SIZE);
    assert_eq!(lab.number("tank/v", "refreservation").await, thick);
    lab.check();
    assert!(lab.number("tank", "used").await.abs_diff(used) < 1 << 20);
}

#[tokio::test(start_paused = true)]
async fn limits_given_together_have_to_fit_each_other() {
    let mut lab = Lab::new("d0", 12, 22).await;
    lab.create("tank/v", Properties::new()).await.unwrap();
    lab.write("tank/v", 0..8).await;
    let full = "out of space";
    assert_eq!(refusal(lab.set("tank/v", &[("quota", 4 << 20), ("reservation", 8 << 20)]).await), full);
    assert_eq!(refusal(lab.set("tank/v", &[("quota", 4 << 20), ("refreservation", 8 << 20)]).await), full);
    assert_eq!(refusal(lab.set("tank/v", &[("refquota", 4 << 20), ("refreservation", 8 << 20)]).await), full);
    for name in ["quota", "refquota", "reservation", "refreservation"] {
        assert_eq!(lab.limit("tank/v", name).await, 0, "{name}");
    }
    // What fits is done, whichever of them were in the way of each other before.
    lab.set("tank/v", &[("quota", 4 << 20), ("reservation", 4 << 20)]).await.unwrap();
    lab.set("tank/v", &[("quota", 8 << 20), ("reservation", 6 << 20), ("refreservation", 7 << 20)])
        .await
        .unwrap();
    lab.check();
    lab.set("tank/v", &[("quota", 4 << 20), ("reservation", 3 << 20), ("refreservation", 2 << 20)])
        .await
        .unwrap();
    lab.check();
    lab.set("tank/v", &[("refquota", 3 << 20)]).await.unwrap();
    assert_eq!(refusal(lab.set("tank/v", &[("refreservation", 4 << 20)]).await), full);
    let created = lab.create("tank/w", props(&[("refquota", 1 << 20), ("refreservation", 2 << 20)])).await;
    assert_eq!(refusal(created), full);
}

#[tokio::test(start_paused = true)]
async fn snapshots_of_many_thick_volumes_keep_within_the_quota_above_them_together() {
    let mut lab = Lab::new("d0", 12, 23).await;
    lab.filesystem("tank/a", false).await.unwrap();
    for name in ["tank/a/v", "tank/a/w"] {
        lab.create(name, props(&[("refreservation", 512 << 10)])).await.unwrap();
        lab.write(name, 0..64).await;
    }
    // One of them could set its reservation aside anew, both cannot.
    let used = lab.number("tank/a", "used").await;
    lab.set("tank/a", &[("quota", used + (768 << 10))]).await.unwrap();
    assert_eq!(refusal(lab.snapshot(&["tank/a/v@s", "tank/a/w@s"]).await), "out of space");
    lab.check();
    lab.set("tank/a", &[("quota", used + (1280 << 10))]).await.unwrap();
    lab.snapshot(&["tank/a/v@s", "tank/a/w@s"]).await.unwrap();
    lab.check();
    assert!(lab.number("tank/a", "used").await <= used + (1280 << 10));
}

#[tokio::test(start_paused = true)]
async fn what_moves_out_of_a_reservation_has_to_be_there_outside() {
    let mut lab = Lab::new("d0", 12, 24).await;
    lab.filesystem("tank/p", false).await.unwrap();
    let huge = lab.running.engine.txgs().available() - (4 << 20);
    lab.create("tank/p/v", props(&[("refreservation", 8 << 20)])).await.unwrap();
    // All the room there is, and the volume's lies within it.
    lab.set("tank/p", &[("reservation", huge)]).await.unwrap();
    assert_eq!(refusal(lab.rename("tank/p/v", "tank/v", false).await), "out of space");
    lab.set("tank/p", &[("reservation", huge - (8 << 20))]).await.unwrap();
    lab.rename("tank/p/v", "tank/v", false).await.unwrap();
    lab.check();
}

/// A reservation of a volume right below the root, as a stream would have brought it.
async fn receive(lab: &mut Lab, volume: &'static str, bytes: u64) {
    let brought = lab.run("receive", false, move |cx| {
        Box::pin(async move {
            let dir = cx.places.root_dir;
            let map = directory(cx, dir).await.child_map;
            let dir = zap::get_u64(&mut cx.mos, map, volume).await?.unwrap();
            let props = directory(cx, dir).await.props;
            zap::set_u64(&mut cx.mos, props, "refreservation$recvd", bytes).await?;
            Ok(())
        })
    });
    brought.await.unwrap();
}

/// Those that came before the one that was refused had another reservation by then, and no record said so.
#[tokio::test(start_paused = true)]
async fn received_reservations_come_back_into_effect_for_all_datasets_or_for_none() {
    let mut lab = Lab::new("d0", 12, 26).await;
    for name in ["tank/v", "tank/w"] {
        lab.create(name, props(&[("refreservation", 1 << 20)])).await.unwrap();
    }
    let much = lab.running.engine.txgs().available() / 3 * 2;
    // Too much for one of them, then for both together.
    for (of_v, of_w, fits) in [(4 << 20, 1 << 40, false), (much, much, false), (4 << 20, 4 << 20, true)] {
        receive(&mut lab, "v", of_v).await;
        receive(&mut lab, "w", of_w).await;
        let back = lab.run("inherit -r -S refreservation", false, |cx| {
            Box::pin(async move {
                let names = ["tank/v".to_owned(), "tank/w".to_owned()];
                dsl::inherit_all(cx, &names, "refreservation", true).await
            })
        });
        let back = back.await;
        assert_eq!(back.is_ok(), fits, "{back:?}");
        for (name, received) in [("tank/v", of_v), ("tank/w", of_w)] {
            let now = if fits { received } else { 1 << 20 };
            assert_eq!(lab.number(name, "refreservation").await, now, "{name}");
        }
        lab.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_received_reservation_that_comes_back_into_effect_is_set_aside() {
    let mut lab = Lab::new("d0", 12, 25).await;
    lab.create("tank/v", props(&[("refreservation", 1 << 20)])).await.unwrap();
    for (received, fits) in [(1u64 << 40, false), (4 << 20, true)] {
        receive(&mut lab, "v", received).await;
        let back = lab
            .run("inherit -S refreservation", false, |cx| {
                Box::pin(async move { dsl::inherit(cx, "tank/v", "refreservation", true).await })
            })
            .await;
        assert_eq!(back.is_ok(), fits, "{back:?}");
        let now = if fits { received } else { 1 << 20 };
        assert_eq!(lab.number("tank/v", "refreservation").await, now);
        // What is set aside is what the reservation says.
        lab.check();
    }
    lab.run("inherit refreservation", false, |cx| {
        Box::pin(async move { dsl::inherit(cx, "tank/v", "refreservation", false).await })
    })
    .await
    .unwrap();
    assert_eq!(lab.limit("tank/v", "refreservation").await, 0);
    lab.check();
}

/// OpenZFS counts only below what has a limit. What came there from elsewhere was counted as one dataset without snapshots, and
/// what went of it later was taken off what was there before.
#[tokio::test(start_paused = true)]
async fn what_was_never_counted_is_counted_where_it_comes() {
    const LIMITS: &str = "com.joyent:filesystem_limits";
    let mut lab = Lab::new("d0", 12, 27).await;
    for name in ["tank/b", "tank/b/x", "tank/b/x/y", "tank/b/x/z"] {
        lab.filesystem(name, false).await.unwrap();
    }
    lab.snapshot(&["tank/b/x@s", "tank/b/x/y@s", "tank/b/x/z@s"]).await.unwrap();
    lab.snapshot(&["tank/b/x/y@t"]).await.unwrap();
    let activate = lab.run("activate filesystem_limits", false, |cx| {
        Box::pin(async move {
            let txg = cx.txg;
            features::enable(&mut cx.mos, LIMITS, txg).await?;
            features::add(&mut cx.mos, LIMITS, 1).await?;
            Ok(())
        })
    });
    activate.await.unwrap();
    // New ones are counted.
    for name in ["tank/a", "tank/a/own"] {
        lab.filesystem(name, false).await.unwrap();
    }
    lab.snapshot(&["tank/a/own@s"]).await.unwrap();
    let counts = async |lab: &Lab, name: &str| {
        (lab.limit(name, "filesystem_count").await, lab.limit(name, "snapshot_count").await)
    };
    assert_eq!(counts(&lab, "tank/a").await, (1, 1));
    lab.rename("tank/b/x", "tank/a/x", false).await.unwrap();
    for (name, expected) in [("tank/a", (4, 5)), ("tank/a/x", (2, 4)), ("tank/a/x/y", (0, 2))] {
        assert_eq!(counts(&lab, name).await, expected, "{name}");
    }
    lab.destroy_snapshot("tank/a/x/z@s", false).await.unwrap();
    lab.destroy("tank/a/x/z").await.unwrap();
    assert_eq!(counts(&lab, "tank/a").await, (3, 4));
    lab.rename("tank/a/x", "tank/b/x", false).await.unwrap();
    assert_eq!(counts(&lab, "tank/a").await, (1, 1));
    lab.settle().await;
    lab.check();
}
