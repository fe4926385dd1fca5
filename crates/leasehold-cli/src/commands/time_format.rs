//! Times of day as people read them, in the zone of this machine.

use leasehold::lease::Timestamp;

fn zoned(timestamp: Timestamp) -> jiff::Zoned {
    let timestamp = jiff::Timestamp::try_from(timestamp.to_system_time()).unwrap_or_default();
    timestamp.to_zoned(jiff::tz::TimeZone::system())
}

/// `02:00:00`, with the date if it was on another day than `now`.
pub(crate) fn time_of_day(timestamp: Timestamp, now: Timestamp) -> String {
    let (time, now) = (zoned(timestamp), zoned(now));
    let format = if time.date() == now.date() { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" };
    time.strftime(format).to_string()
}

/// `02:00:00.114`
pub(crate) fn exact(timestamp: Timestamp) -> String {
    zoned(timestamp).strftime("%H:%M:%S%.3f").to_string()
}
