//! Formats times as people and databases read them.

use jiff::Timestamp;

/// RFC 3339 in UTC, with milliseconds. A time beyond the calendar becomes its last moment.
pub fn rfc3339(ms: u64) -> String {
    let at = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    format!("{:.3}", at.unwrap_or(Timestamp::MAX))
}

/// Reads RFC 3339, as Kubernetes writes times. A time before 1970 is none.
pub fn parse_ms(text: &str) -> Option<u64> {
    text.parse::<Timestamp>().ok()?.as_millisecond().try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_kubernetes_is_read_and_another_text_is_none() {
        assert_eq!(parse_ms("2024-02-29T12:34:56.007Z"), Some(1_709_210_096_007));
        assert_eq!(parse_ms("2024-02-29T13:34:56+01:00"), Some(1_709_210_096_000));
        assert_eq!(["", "now", "1969-12-31T23:59:59Z"].map(parse_ms), [None; 3]);
    }

    #[test]
    fn times_are_written_in_utc_with_milliseconds() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_210_096_007, "2024-02-29T12:34:56.007Z"),
            (1_798_761_599_000, "2026-12-31T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(ms), text);
        }
    }
}
