//! Until an export is chosen: flags, options, metadata contexts, and lists of any length.

use super::*;

#[test]
fn the_server_speaks_first_and_offers_fixed_newstyle_without_zeroes() {
    let mut talk = Talk::new(exports().0);
    talk.settle();
    assert_eq!(talk.said, b"NBDMAGICIHAVEOPT\x00\x03");
}

#[test]
fn go_tells_size_flags_block_sizes_and_what_was_asked_for() {
    let mut talk = hello(exports().0);
    let said = talk.ask(&option(7, &go("tank/vm1", &[1, 2, 99])));
    // has-flags, flush, fua, trim, write-zeroes, multi-conn, cache, fast-zero
    let flags = 0b1101_0110_1101_u16;
    let want = cat(&[
        &answer(7, 3, &cat(&[&[0, 0], &SIZE.to_be_bytes(), &flags.to_be_bytes()])),
        &answer(7, 3, &[0, 3, 0, 0, 0, 1, 0, 0, 0x10, 0, 2, 0, 0, 0]),
        &answer(7, 3, b"\x00\x01tank/vm1"),
        &answer(7, 3, b"\x00\x02a disk"),
        &answer(7, 1, &[]),
    ]);
    assert_eq!(said, want);
    assert_eq!(talk.session.phase(), Phase::Transmission);
}

#[test]
fn a_snapshot_is_read_only_and_df_comes_with_structured_replies() {
    let mut talk = hello(exports().0);
    talk.ask(&option(8, &[]));
    let said = talk.ask(&option(6, &go("tank/vm1@monday", &[])));
    // has-flags, read-only, flush, df, multi-conn, cache
    let flags = 0b0101_1000_0111_u16;
    assert_eq!(said[20 + 10..20 + 12], flags.to_be_bytes());
    assert_eq!(talk.session.phase(), Phase::Handshake, "INFO chooses nothing");
}

#[test]
fn export_name_pads_with_124_zeroes_unless_told_not_to() {
    for (client, padding) in [(1_u8, 124), (3, 0)] {
        let mut talk = Talk::new(exports().0);
        let said = talk.ask(&cat(&[&[0, 0, 0, client], &option(1, b"tank/vm1")]));
        assert_eq!(said.len(), 8 + 2 + padding);
        assert_eq!(said[..8], SIZE.to_be_bytes());
        assert!(said[10..].iter().all(|byte| *byte == 0));
        assert_eq!(talk.ask(&request(0, 0, 7, 4096, 2)), simple(0, 7, &[0xaa; 2]));
    }
}

#[test]
fn export_name_of_nothing_ends_the_connection() {
    let mut talk = hello(exports().0);
    talk.hear(&option(1, b"tank/vm9"));
    assert_eq!(talk.error, Some(ProtocolError::UnknownExport("tank/vm9".into())));
}

#[test]
fn a_client_without_fixed_newstyle_may_only_name_an_export() {
    let mut talk = Talk::new(exports().0);
    talk.hear(&cat(&[&[0, 0, 0, 0], &option(3, &[])]));
    assert_eq!(talk.error, Some(ProtocolError::NotFixed(3)));
}

#[test]
fn unknown_client_flags_and_bad_magic_end_the_connection() {
    let mut talk = Talk::new(exports().0);
    talk.hear(&[0, 0, 0, 7]);
    assert_eq!(talk.error, Some(ProtocolError::ClientFlags(7)));
    let mut talk = hello(exports().0);
    talk.hear(b"IHAVENOT\0\0\0\0\0\0\0\0");
    assert!(matches!(talk.error, Some(ProtocolError::OptionMagic(_))));
    let mut talk = in_transmission(exports().0, "tank/vm1", &[]);
    talk.hear(&[0x25; 28]);
    assert_eq!(talk.error, Some(ProtocolError::RequestMagic(0x2525_2525)));
}

#[test]
fn unknown_and_oversized_options_are_skipped_and_the_next_is_understood() {
    let mut talk = hello(exports().0);
    let said = talk.ask(&option(4242, b"whatever it says"));
    assert_eq!(error_code(&said), rep::ERR_UNSUP);
    let said = talk.ask(&option(5, &[]));
    assert_eq!(error_code(&said), rep::ERR_POLICY, "TLS is not offered");
    let said = talk.ask(&option(3, &vec![1; 300_000]));
    assert_eq!(error_code(&said), rep::ERR_TOO_BIG);
    let said = talk.ask(&option(3, &[]));
    let want = cat(&[
        &answer(3, 2, &cat(&[&name("tank/vm1"), b"a disk"])),
        &answer(3, 2, &name("tank/vm1@monday")),
        &answer(3, 1, &[]),
    ]);
    assert_eq!(said, want);
}

#[test]
fn without_tls_nothing_is_told_where_it_is_required_and_what_was_said_before_it_is_forgotten() {
    let mut talk = Talk::new(exports().0);
    talk.session.offer_tls(true);
    talk.hear(&[0, 0, 0, 3]);
    for number in [3, 6, 7, 8, 9, 10, 11, 4242] {
        let said = talk.ask(&option(number, &[]));
        assert_eq!(error_code(&said), rep::ERR_TLS_REQD, "option {number}");
    }
    assert_eq!(error_code(&talk.ask(&option(5, b"x"))), rep::ERR_INVALID);
    assert_eq!(talk.ask(&option(5, &[])), answer(5, 1, &[]));
    assert_eq!(talk.session.phase(), Phase::Securing);
    assert!(!talk.session.wants_bytes(), "what comes now is for TLS");
    talk.session.secured();
    assert_eq!(error_code(&talk.ask(&option(5, &[]))), rep::ERR_INVALID, "it is on already");
    assert_eq!(talk.ask(&option(8, &[])), answer(8, 1, &[]));

    // Structured replies that were agreed on in the clear are not agreed on any more.
    let mut talk = hello(exports().0);
    talk.session.offer_tls(false);
    assert_eq!(talk.ask(&option(8, &[])), answer(8, 1, &[]));
    assert_eq!(talk.ask(&option(5, &[])), answer(5, 1, &[]));
    talk.session.secured();
    assert_eq!(talk.ask(&option(8, &[])), answer(8, 1, &[]), "not ERR_INVALID: it was forgotten");

    // Nor is an export that was chosen without it, and there is no reply to say so.
    let mut talk = Talk::new(exports().0);
    talk.session.offer_tls(true);
    talk.hear(&[0, 0, 0, 3]);
    talk.hear(&option(1, b"tank/vm1"));
    assert_eq!(talk.error, Some(ProtocolError::NotSecured));
}

#[test]
fn bytes_in_the_clear_behind_starttls_end_the_connection() {
    let mut talk = hello(exports().0);
    talk.session.offer_tls(true);
    let injected = option(7, &cat(&[&name("tank/vm1"), &[0, 0]]));
    talk.hear(&cat(&[&option(5, &[]), &injected]));
    assert_eq!(talk.error, Some(ProtocolError::Injected(injected.len())));
}

#[test]
fn malformed_options_get_err_invalid_and_cost_nothing_else() {
    let mut talk = hello(exports().0);
    for (number, data) in [
        (3, b"x".to_vec()),
        (8, b"x".to_vec()),
        (11, b"x".to_vec()),
        (7, vec![]),
        (7, vec![0, 0, 0, 200, 1, 2]),
        (7, cat(&[&name("tank/vm1"), &[0, 2, 0, 1]])),
        (7, cat(&[&name("tank/vm1"), &[0, 0, 0]])),
        (6, cat(&[&[0, 0, 0, 1, 0xff], &[0, 0]])),
        (7, go(&"n".repeat(4097), &[])),
    ] {
        let said = talk.ask(&option(number, &data));
        assert_eq!(error_code(&said), rep::ERR_INVALID, "option {number} {data:?}");
    }
    assert_eq!(error_code(&talk.ask(&option(7, &go("nothing", &[])))), rep::ERR_UNKNOWN);
    assert_eq!(error_code(&talk.ask(&option(7, &go("", &[])))), rep::ERR_UNKNOWN, "there is no default");
}

#[test]
fn abort_is_acknowledged_and_ends_the_session() {
    let mut talk = hello(exports().0);
    assert_eq!(talk.ask(&option(2, &[])), answer(2, 1, &[]));
    assert_eq!(talk.session.phase(), Phase::Leaving);
    assert!(talk.session.is_idle());
}

#[test]
fn meta_contexts_come_after_structured_replies_and_only_base_allocation_exists() {
    let mut talk = hello(exports().0);
    let early = talk.ask(&option(10, &queries("tank/vm1", &["base:allocation"])));
    assert_eq!(error_code(&early), rep::ERR_INVALID);
    talk.ask(&option(8, &[]));
    let listed = cat(&[&answer(9, 4, b"\0\0\0\0base:allocation"), &answer(9, 1, &[])]);
    for texts in [&[][..], &["base:"], &["base:allocation"], &["x-other:thing", "base:allocation"]] {
        assert_eq!(talk.ask(&option(9, &queries("tank/vm1", texts))), listed, "{texts:?}");
    }
    for texts in [&["qemu:dirty-bitmap:b"][..], &["base:other"]] {
        assert_eq!(talk.ask(&option(9, &queries("tank/vm1", texts))), answer(9, 1, &[]), "{texts:?}");
    }
    for texts in [&[][..], &["base:"], &["base:other"]] {
        assert_eq!(talk.ask(&option(10, &queries("tank/vm1", texts))), answer(10, 1, &[]), "{texts:?}");
    }
    assert_eq!(error_code(&talk.ask(&option(9, &queries("tank/vm1", &["nocolon"])))), rep::ERR_INVALID);
    assert_eq!(error_code(&talk.ask(&option(9, &queries("gone", &[])))), rep::ERR_UNKNOWN);
    let mut lying = queries("tank/vm1", &["base:allocation"]);
    lying[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
    assert_eq!(error_code(&talk.ask(&option(10, &lying))), rep::ERR_INVALID);
}

#[test]
fn a_selection_holds_for_its_export_only_and_a_failed_one_drops_it() {
    let set = option(10, &queries("tank/vm1", &["base:allocation"]));
    let drops: [&[u8]; 3] = [
        &option(7, &go("tank/vm1@monday", &[])),
        &cat(&[&option(10, &queries("gone", &["base:allocation"])), &option(7, &go("tank/vm1", &[]))]),
        &cat(&[&option(10, &queries("tank/vm1", &[])), &option(7, &go("tank/vm1", &[]))]),
    ];
    for after in drops {
        let mut talk = hello(exports().0);
        talk.ask(&cat(&[&option(8, &[]), &set, after]));
        assert_eq!(chunk_errno(&talk.ask(&request(0, 7, 1, 0, 4096))), 22);
    }
}

#[test]
fn negotiation_of_headers_has_an_order() {
    let mut talk = hello(exports().0);
    assert_eq!(talk.ask(&option(8, &[])), answer(8, 1, &[]));
    assert_eq!(error_code(&talk.ask(&option(8, &[]))), rep::ERR_INVALID);
    assert_eq!(talk.ask(&option(11, &[])), answer(11, 1, &[]));
    assert_eq!(error_code(&talk.ask(&option(11, &[]))), rep::ERR_INVALID);
    assert_eq!(error_code(&talk.ask(&option(8, &[]))), rep::ERR_EXT_HEADER_REQD);
    talk.hear(&option(1, b"tank/vm1"));
    assert!(talk.error.is_some(), "EXPORT_NAME is over once extended headers are in use");
}

#[test]
fn a_client_that_never_reads_the_export_list_cannot_make_it_pile_up() {
    let registry = Arc::new(Registry::new());
    for n in 0..1000 {
        let volume = Arc::new(MemVolume::new("v", 4096, 4096));
        registry.insert(&format!("{n:0>200}"), "", volume).unwrap();
    }
    let mut session = Session::new(registry, Limits::default(), Gate::new(1 << 30));
    session.handle_bytes(FLAGS);
    session.poll_request().unwrap();
    while session.wants_bytes() {
        session.handle_bytes(&option(3, &[]));
        session.poll_request().unwrap();
    }
    assert!(session.output_len() < 2 * HANDSHAKE_OUT);
}

/// Many that came and chose nothing took the shares of those that have requests, and hosts of iSCSI had narrow windows.
#[test]
fn who_has_chosen_no_export_has_no_share_of_the_gate() {
    let gate = Gate::new(1 << 30);
    let mut session = Session::new(exports().0, Limits::default(), Arc::clone(&gate));
    session.known_as(&Client::new(None, "somebody"));
    let mut talk = Talk { session, said: Vec::new(), error: None };
    talk.ask(FLAGS);
    talk.ask(&option(3, &[]));
    assert_eq!(gate.members(), 0);
    talk.ask(&option(7, &go("tank/vm1", &[])));
    assert_eq!((talk.session.phase(), gate.members()), (Phase::Transmission, 1));
    drop(talk);
    assert_eq!(gate.members(), 0);
}

/// Lists are told in parts; whatever their length, nothing is left out or told twice.
#[test]
fn a_list_of_any_length_is_told_whole_and_once() {
    for count in [0_usize, 1, 63, 64, 65, 128, 200] {
        let registry = Arc::new(Registry::new());
        let mut want = Vec::new();
        for n in 0..count {
            let volume = Arc::new(MemVolume::new("v", 4096, 4096));
            let export = format!("tank/{n:0>3}");
            registry.insert(&export, "d", volume).unwrap();
            want.extend(answer(3, 2, &cat(&[&name(&export), b"d"])));
        }
        want.extend(answer(3, 1, &[]));
        let mut talk = hello(registry);
        assert!(talk.ask(&option(3, &[])) == want, "{count} exports");
        assert_eq!(error_code(&talk.ask(&option(3, &[1]))), rep::ERR_INVALID, "a list takes no data");
    }
}

#[test]
fn a_stranger_costs_little_and_an_option_of_any_length_is_still_read() {
    let mut talk = hello(exports().0);
    talk.hear(&option(7, &go("tank/none", &[])));
    assert!(talk.session.rx.capacity() <= RX_STRANGER, "{}", talk.session.rx.capacity());
    let text = "x".repeat(4000) + ":";
    let long = queries("tank/vm1", &[text.as_str(); 8]);
    assert!(long.len() > 7 * RX_STRANGER && long.len() < OPTION_MAX);
    assert_eq!(talk.ask(&option(8, &[])), answer(8, 1, &[]));
    assert_eq!(talk.ask(&option(10, &long)), answer(10, 1, &[]));
    let mut said = talk.ask(&option(7, &go("tank/vm1", &[])));
    assert_eq!(said.split_off(said.len() - 20), answer(7, 1, &[]));
}
