//! Who a logical unit is to a host: the NAA name and the serial number, both made of guids alone.
//!
//! Multipath software merges disks by these names, so they must be equal on every path, after every
//! restart, rename and import elsewhere, and different for every two volumes, clones included. The
//! dataset's guid gives the low 64 bits as they are; the pool's guid is folded into the 36 bits that the
//! format leaves before them, because a received snapshot keeps its guid in another pool.
//!
//! ```text
//!   6 | OUI 24 bits | pool guid folded to 36 bits | dataset guid 64 bits        NAA 6h, SPC-4 §7.8.6.6
//! ```

use block::Identity;

/// An NAA IEEE Registered Extended name.
pub type Naa = [u8; 16];

/// The one target port group, and the one relative target port in it.
pub const PORT_GROUP: u16 = 1;

/// A locally administered company id (bit 1 of its first byte), so that it is nobody's: `0A-4D-50`.
const OUI: u128 = 0x0a_4d50;

/// The NAA name of a volume.
pub fn naa(identity: &Identity) -> Naa {
    // Two odd multiplications and a fold: every bit of the guid reaches the 36 that are kept.
    let mixed = identity.pool_guid.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed.wrapping_shr(29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let pool = u128::from(mixed.wrapping_shr(28));
    let name = (0x6_u128.wrapping_shl(124))
        | OUI.wrapping_shl(100)
        | pool.wrapping_shl(64)
        | u128::from(identity.guid);
    name.to_be_bytes()
}

/// The unit serial number: the name's digits after the OUI.
pub(crate) fn serial(naa: &Naa) -> String {
    const DIGITS: u32 = 25; // 36 + 64 bits
    let low = u128::from_be_bytes(*naa) & 1_u128.wrapping_shl(DIGITS.wrapping_mul(4)).wrapping_sub(1);
    format!("{low:025x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(guid: u64, pool_guid: u64) -> Identity {
        Identity { name: "tank/vm1".into(), guid, pool_guid }
    }

    #[test]
    fn the_name_is_stable_for_ever() {
        let name = naa(&identity(0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210));
        let hex: String = name.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(&hex[..7], "60a4d50");
        assert_eq!(&hex[16..], "0123456789abcdef");
        assert_eq!(serial(&name), hex[7..]);
        let renamed =
            Identity { name: "tank/other".into(), ..identity(0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210) };
        assert_eq!(naa(&renamed), name);
        // Hosts have this value in their configuration: changing it loses their disks.
        assert_eq!(hex, "60a4d503373e00760123456789abcdef");
    }

    #[test]
    fn the_same_snapshot_in_two_pools_is_two_disks() {
        assert_ne!(naa(&identity(1, 1)), naa(&identity(1, 2)));
        assert_ne!(naa(&identity(1, 1)), naa(&identity(2, 1)));
    }
}
