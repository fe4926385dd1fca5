//! Whatever a file holds, reading it as a record succeeds or fails; it never panics.
//!
//! Set `PROPTEST_CASES=1000000` to try a million files.

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::lease::Moment;

const BOOT: &str = "af6a1eea-ff87-4241-97a5-630c4705d8e1";

fn header_line() -> impl Strategy<Value = String> {
    (1..4_u32, "[xy]", any::<bool>(), any::<u64>(), 0..5_u32).prop_map(|(version, name, same_boot, fence, entries)| {
        let boot = if same_boot { BOOT } else { "another" };
        let rest = format!("\"boot\":\"{boot}\",\"last_fence\":{fence},\"entries\":{entries}");
        format!("{{\"v\":{version},\"oldest_reader\":2,\"resource\":\"{name}\",{rest}}}\n")
    })
}

fn entry_line() -> impl Strategy<Value = String> {
    let times = (any::<u64>(), any::<u64>(), any::<u64>(), 0..3_u8, any::<u32>(), any::<u32>());
    times.prop_map(|(end, asked, fence, id, units, capacity)| {
        let grant = if id == 0 { String::new() } else { format!(",\"grant\":{{\"fence\":{fence},\"acquired_at\":{asked}}}") };
        format!(
            "{{\"owner\":\"3541b102-31d0-45f4-a91c-b1e09fd32402\",\"deadline\":{end},\"entry\":{{\"id\":\
             \"75eff429-97e2-43dd-a804-7504c48d2c7{id}\",\"claim\":{{\"mode\":\"permit\",\"units\":{units},\"capacity\":\
             {capacity}}},\"holder\":\"h\",\"ttl\":{{\"secs\":30,\"nanos\":0}},\"expiry\":\"by_clock\",\"expires_at\":{end},\
             \"asked_at\":{asked},\"renewed_at\":{asked}{grant}}}}}\n"
        )
    })
}

/// A file with one byte changed, or cut off, or neither.
fn damaged(whole: Vec<u8>, at: prop::sample::Index, byte: Option<u8>, is_cut: bool) -> Vec<u8> {
    let mut bytes = whole;
    let at = at.index(bytes.len().max(1));
    if let (Some(byte), Some(place)) = (byte, bytes.get_mut(at)) {
        *place = byte;
    }
    if is_cut {
        bytes.truncate(at);
    }
    bytes
}

proptest! {
    #[test]
    fn no_file_panics(
        header in header_line(),
        entries in vec(entry_line(), 0..4),
        at in any::<prop::sample::Index>(),
        byte in any::<Option<u8>>(),
        is_cut in prop::bool::weighted(0.2),
        noise in vec(any::<u8>(), 0..200),
    ) {
        let times = Times { now: Moment::from_micros(1 << 40), wall: Timestamp::from_micros(1 << 50), boot: BOOT };
        let path = Path::new("records/x.json");
        let whole = [vec![header], entries].concat().concat().into_bytes();
        for bytes in [&damaged(whole, at, byte, is_cut), &noise] {
            drop(record(bytes, path, &times, Record::default()));
        }
    }
}
