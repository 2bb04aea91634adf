use super::*;
use crate::testdata::padded;

#[test]
fn the_objset_of_a_real_volume_has_six_levels_and_no_accounting() {
    let bytes = padded(include_str!("../../testdata/objset-volume.hex"), 4096);
    let objset = ObjsetPhys::decode(&bytes, Order::Little).unwrap();
    assert_eq!((objset.kind, objset.flags, objset.form), (ObjsetType::Volume, 0, ObjsetForm::Project));
    assert_eq!((objset.meta_dnode.levels, objset.meta_dnode.data_block_bytes()), (6, 16384));
    assert!(objset.user_used.is_none() && objset.group_used.is_none() && objset.project_used.is_none());
    assert_eq!(objset.locate(1), Some((0, 512)));
    assert_eq!(objset.locate(33), Some((1, 512)));
    assert_eq!(objset.locate(0), None);
    assert_eq!(objset.encode(Order::Little).unwrap(), bytes);
}

#[test]
fn the_objset_of_a_real_file_system_accounts_for_users() {
    let bytes = padded(include_str!("../../testdata/objset-filesystem.hex"), 4096);
    let objset = ObjsetPhys::decode(&bytes, Order::Little).unwrap();
    assert_eq!(objset.kind, ObjsetType::FileSystem);
    assert_ne!(objset.flags & flags::USER_ACCOUNTING, 0);
    let user_used = objset.user_used.as_ref().expect("accounting");
    assert!(user_used.object_type.is_zap());
    assert_eq!(objset.encode(Order::Little).unwrap(), bytes);
    let big = objset.encode(Order::Big).unwrap();
    assert_eq!(ObjsetPhys::decode(&big, Order::Big), Ok(objset));
}

#[test]
fn shorter_forms_just_lack_the_later_dnodes() {
    let bytes = padded(include_str!("../../testdata/objset-filesystem.hex"), 4096);
    for form in [ObjsetForm::Plain, ObjsetForm::UserGroup] {
        let objset = ObjsetPhys::decode(&bytes[..form.bytes()], Order::Little).unwrap();
        assert_eq!(objset.form, form);
        assert_eq!(objset.user_used.is_some(), form == ObjsetForm::UserGroup);
        assert!(objset.project_used.is_none());
        assert_eq!(objset.encode(Order::Little).unwrap(), bytes[..form.bytes()]);
    }
    let full = ObjsetPhys::decode(&bytes, Order::Little).unwrap();
    assert!(ObjsetPhys { form: ObjsetForm::Plain, ..full }.encode(Order::Little).is_err());
    for len in [0, 1023, 1025, 8192] {
        assert!(ObjsetPhys::decode(&vec![0; len], Order::Little).is_err(), "{len}");
    }
}

#[test]
fn an_objset_without_a_meta_dnode_or_type_is_none() {
    let good = padded(include_str!("../../testdata/objset-volume.hex"), 4096);
    for (at, value) in [(0, 0), (0, 23), (704, 0), (704, 5)] {
        let mut bytes = good.clone();
        bytes[at] = value;
        assert!(ObjsetPhys::decode(&bytes, Order::Little).is_err(), "byte {at} = {value}");
    }
}
