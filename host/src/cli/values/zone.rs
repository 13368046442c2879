//! The reader's time zone. People write and read times in it, as with `date`.

use std::path::Path;
use std::sync::OnceLock;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use kubewitness_core::{calendar, files};

use super::FlagValueError;

const ZONES: &str = "/usr/share/zoneinfo";
const OF_THIS_MACHINE: &str = "/etc/localtime";
/// The largest zone of the database has some 4 KiB.
const ZONE_BYTES: u64 = 64 * 1024;

pub struct ZoneArg(TimeZone);

impl ZoneArg {
    /// The time zone of `TZ`, or of this machine, or UTC.
    pub fn local_zone() -> &'static Self {
        static HERE: OnceLock<ZoneArg> = OnceLock::new();
        HERE.get_or_init(|| Self::of(std::env::var("TZ").ok().as_deref()))
    }

    /// Reads `TZ` as the C library does: a name, a file or a rule. An unreadable value means UTC.
    fn of(tz: Option<&str>) -> Self {
        let zone = match tz.map(|tz| tz.strip_prefix(':').unwrap_or(tz)) {
            None => in_file(Path::new(OF_THIS_MACHINE)),
            Some("") => None,
            Some(path) if path.starts_with('/') => in_file(Path::new(path)),
            Some(name) if name.contains("..") => None,
            Some(name) => in_file(&Path::new(ZONES).join(name)).or_else(|| TimeZone::posix(name).ok()),
        };
        Self(zone.unwrap_or(TimeZone::UTC))
    }

    /// A time with a zone, or in this zone, in milliseconds.
    pub(super) fn read(&self, text: &str) -> Result<u64, FlagValueError> {
        let text = text.trim();
        if let Some(ms) = calendar::parse_rfc3339_ms(text) {
            return Ok(ms);
        }
        let local: DateTime = text.parse().map_err(|_| FlagValueError::NoTime)?;
        let zoned = self.0.to_ambiguous_zoned(local).unambiguous();
        let zoned = zoned.map_err(|_| FlagValueError::AmbiguousTime)?;
        u64::try_from(zoned.timestamp().as_millisecond()).map_err(|_| FlagValueError::EarlyTime)
    }

    /// For example `2026-11-24 04:00:12 (03:00:12Z)`: with the time in UTC, and with its date if that
    /// differs.
    pub fn show_time(&self, ms: u64) -> String {
        let at = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        let at = at.unwrap_or(Timestamp::MAX);
        let local: Zoned = at.to_zoned(self.0.clone());
        let utc = at.to_zoned(TimeZone::UTC);
        if local.datetime() == utc.datetime() {
            return utc.strftime("%Y-%m-%d %H:%M:%SZ").to_string();
        }
        let beside = if local.date() == utc.date() { "%H:%M:%SZ" } else { "%Y-%m-%d %H:%M:%SZ" };
        format!("{} ({})", local.strftime("%Y-%m-%d %H:%M:%S"), utc.strftime(beside))
    }

    /// The same for a time from the API. A word in its place, such as `never`, stays unchanged.
    pub fn show_text(&self, at: &str) -> String {
        calendar::parse(at).map_or_else(|| at.to_owned(), |ms| self.show_time(ms))
    }
}

fn in_file(path: &Path) -> Option<TimeZone> {
    TimeZone::tzif("local", &files::read(path, ZONE_BYTES).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Central Europe, as a rule, so that no test depends on the files of this machine.
    fn berlin() -> ZoneArg {
        ZoneArg::of(Some("CET-1CEST,M3.5.0,M10.5.0/3"))
    }

    #[test]
    fn a_time_without_a_zone_is_the_readers() {
        let at = |text: &str| berlin().read(text).map(calendar::format_rfc3339);
        for (text, expected) in [
            ("2026-11-24 03:00", "2026-11-24T02:00:00.000Z"),
            ("2026-07-24T03:00:30", "2026-07-24T01:00:30.000Z"),
            ("2026-11-24", "2026-11-23T23:00:00.000Z"),
            ("2026-11-24T03:00:00Z", "2026-11-24T03:00:00.000Z"),
            (" 2026-11-24 03:00:00+05:30 ", "2026-11-23T21:30:00.000Z"),
        ] {
            assert_eq!(at(text).as_deref(), Ok(expected), "{text}");
        }
        for text in ["yesterday", "", "2026-02-30", "1960-01-01"] {
            assert!(at(text).is_err(), "{text}");
        }
        for set in ["2026-10-25 02:30", "2026-03-29 02:30"] {
            assert_eq!(at(set), Err(FlagValueError::AmbiguousTime), "{set}");
        }
    }

    #[test]
    fn a_time_is_shown_with_that_of_utc_beside_it() {
        let at = |text: &str| berlin().show_time(calendar::parse_rfc3339_ms(text).unwrap());
        assert_eq!(at("2026-11-24T03:00:12.900Z"), "2026-11-24 04:00:12 (03:00:12Z)");
        assert_eq!(at("2026-11-24T23:30:00Z"), "2026-11-25 00:30:00 (2026-11-24 23:30:00Z)");
        assert_eq!(berlin().show_text("2026-11-24T03:00:12.900Z"), "2026-11-24 04:00:12 (03:00:12Z)");
        assert_eq!(berlin().show_text("never"), "never");
        assert_eq!(ZoneArg::of(Some("")).show_time(0), "1970-01-01 00:00:00Z");
        assert!(ZoneArg::of(Some("")).show_time(u64::MAX).starts_with("9999-12-30"));
    }

    #[test]
    fn what_is_no_zone_is_utc() {
        for tz in ["Nowhere/Atall", "/etc/hostname", "../../etc/localtime"] {
            assert_eq!(
                ZoneArg::of(Some(tz)).read("2026-11-24 03:00"),
                ZoneArg::of(Some("")).read("2026-11-24 03:00")
            );
        }
    }
}
