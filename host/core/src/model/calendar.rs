//! Formats and parses times for people, in UTC. `jiff` does the arithmetic.

use jiff::Timestamp;

/// The time as RFC 3339 with milliseconds.
pub fn format_rfc3339(ms: u64) -> String {
    format!("{:.3}", timestamp_at(ms))
}

/// Parses the output of [`format_rfc3339`]; `None` for any other form.
pub fn parse(text: &str) -> Option<u64> {
    let ms = parse_rfc3339_ms(text)?;
    // Other offsets, precisions and signs name a moment as well, but [`format_rfc3339`] never writes them.
    (format_rfc3339(ms) == text).then_some(ms)
}

/// The moment of any RFC 3339 text, such as Kubernetes writes; `None` before 1970.
pub fn parse_rfc3339_ms(text: &str) -> Option<u64> {
    u64::try_from(text.parse::<Timestamp>().ok()?.as_millisecond()).ok()
}

/// Date and time of day, to the second: `2026-11-20` and `13:45:11`.
pub fn date_and_time(ms: u64) -> (String, String) {
    let at = timestamp_at(ms);
    (at.strftime("%Y-%m-%d").to_string(), at.strftime("%H:%M:%S").to_string())
}

/// A time beyond the calendar becomes its last moment.
fn timestamp_at(ms: u64) -> Timestamp {
    i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::{date_and_time, format_rfc3339, parse};

    #[test]
    fn what_was_written_is_read_back_and_nothing_else() {
        for ms in [0, 1, 951_782_400_123, 951_868_800_000, 1_795_179_599_999, 4_107_542_400_000] {
            assert_eq!(parse(&format_rfc3339(ms)), Some(ms));
        }
        for text in [
            "",
            "now",
            "2026-11-20",
            "2026-02-30T00:00:00.000Z",
            "2026-11-20T13:45:11Z",
            "+026-11-20T13:45:11.000Z",
            "1969-12-31T23:59:59.000Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn known_moments_are_written_right() {
        assert_eq!(format_rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(format_rfc3339(951_782_400_123), "2000-02-29T00:00:00.123Z");
        assert_eq!(format_rfc3339(1_795_179_599_999), "2026-11-20T12:59:59.999Z");
        assert_eq!(date_and_time(1_795_179_599_999), ("2026-11-20".into(), "12:59:59".into()));
    }

    #[test]
    fn a_moment_beyond_the_calendar_is_its_last() {
        assert!(format_rfc3339(u64::MAX).starts_with("9999-12-30T"), "{}", format_rfc3339(u64::MAX));
    }
}
