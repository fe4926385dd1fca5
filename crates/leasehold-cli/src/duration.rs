//! Lengths of time as people type and read them: `30s`, `1h30m`, `.2`, `3m12s`.

use std::{fmt, time::Duration};

/// The longest length accepted: a century, so that adding it to any clock stays in range.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Reads a length: a bare number is seconds, otherwise `500ms`, `30s`, `5m`, `2h`, `1d`, or several in a row.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let invalid = || format!("'{text}' is no length of time; write 30 (seconds), 500ms, 30s, 5m, 2h or 1d");
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(invalid());
    }
    let mut total = Duration::ZERO;
    let mut rest = trimmed;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let is_whole_text = number.len() == trimmed.len();
        let scale = match unit {
            "" if is_whole_text => 1.0,
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86400.0,
            _ => return Err(invalid()),
        };
        let number: f64 = number.parse().map_err(|_| invalid())?;
        let part = Duration::try_from_secs_f64(number * scale).map_err(|_| too_long(text))?;
        total = total.checked_add(part).filter(|total| *total <= LONGEST).ok_or_else(|| too_long(text))?;
        rest = tail;
    }
    Ok(total)
}

fn too_long(text: &str) -> String {
    format!("'{text}' is too long: at most 100 years")
}

/// A length as people say it: `350ms`, `4s`, `3m12s`, `2h05m`, `6d02h`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brief(pub(crate) Duration);

impl fmt::Display for Brief {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let text = match seconds {
            0 => format!("{}ms", self.0.as_millis()),
            1..60 => format!("{seconds}s"),
            60..3600 if seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
            60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
            3600..86400 if seconds % 3600 < 60 => format!("{}h", seconds / 3600),
            3600..86400 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
            _ => format!("{}d{:02}h", seconds / 86400, seconds % 86400 / 3600),
        };
        f.pad(&text)
    }
}

/// A measured length, with tenths while they matter: `0.2ms`, `41.2s`, then as [`Brief`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured(pub(crate) Duration);

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0.as_millis() {
            0..10 => format!("{:.1}ms", self.0.as_secs_f64() * 1000.0),
            10..1000 => format!("{}ms", self.0.as_millis()),
            1000..60_000 => format!("{:.1}s", self.0.as_secs_f64()),
            _ => Brief(self.0).to_string(),
        };
        f.pad(&text)
    }
}

/// Whole milliseconds, for JSON.
pub(crate) fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_number_is_seconds_and_units_are_units() {
        for (text, millis) in [
            ("0", 0),
            (".2", 200),
            ("0.2", 200),
            ("30", 30_000),
            ("2.5", 2500),
            ("500ms", 500),
            ("30s", 30_000),
            (" 5m ", 300_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
            ("1.5h", 5_400_000),
            ("1h30m", 5_400_000),
            ("3m12s", 192_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_the_ways_to_write_it() {
        for text in ["", " ", "-1", "+1", "1e3", "inf", "nan", "s", "5 m", "5x", "5min", "1.2.3", "1m30", "١s", "0x10"]
        {
            let refusal = parse(text).expect_err(text);
            assert!(refusal.contains("500ms"), "{refusal}");
        }
        for text in ["99999999999999999999", "1000000d"] {
            assert!(parse(text).expect_err(text).contains("too long"), "{text}");
        }
    }

    #[test]
    fn lengths_read_as_people_say_them() {
        for (millis, brief) in [
            (0, "0ms"),
            (350, "350ms"),
            (4000, "4s"),
            (60_000, "1m"),
            (192_000, "3m12s"),
            (7_500_000, "2h05m"),
            (7_200_000, "2h"),
            (525_600_000, "6d02h"),
        ] {
            assert_eq!(Brief(Duration::from_millis(millis)).to_string(), brief);
        }
        assert_eq!(Measured(Duration::from_millis(41_230)).to_string(), "41.2s");
        assert_eq!(Measured(Duration::from_micros(430)).to_string(), "0.4ms");
    }
}
