//! Times for people, in UTC.

use kubewitness_core::calendar::{date_and_time, parse_rfc3339_ms};

/// `2026-11-20T13:45:11Z`, to the second.
pub(crate) fn rfc3339_seconds(ms: u64) -> String {
    let (date, time) = date_and_time(ms);
    format!("{date}T{time}Z")
}

/// `2026-11-20 13:45:11`.
pub(crate) fn readable_time(ms: u64) -> String {
    let (date, time) = date_and_time(ms);
    format!("{date} {time}")
}

/// `13:45:11`.
pub(crate) fn clock_time(ms: u64) -> String {
    date_and_time(ms).1
}

/// `850 ms`, `12 s`, `3 m 20 s`, `2 h 5 m`, `4 d 3 h`.
pub(crate) fn duration_text(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{seconds} s"),
        60..3600 => format!("{} m {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// The same, rounded to one unit: `12 s`, `3 m`, `2 h`, `4 d`.
pub(crate) fn age_text(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} m", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Normalizes what people type or a browser's field sends to RFC 3339: a date, perhaps with a time of day,
/// and UTC if no zone is given. Other text stays unchanged, so that the refusal can quote it.
pub(crate) fn normalize_typed_time(text: &str) -> String {
    let text = text.trim().replacen(' ', "T", 1);
    let tries = [text.clone(), format!("{text}Z"), format!("{text}:00Z"), format!("{text}T00:00:00Z")];
    tries.into_iter().find(|text| parse_rfc3339_ms(text).is_some()).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_type_them() {
        for text in [
            "2026-11-20 13:45",
            "2026-11-20T13:45",
            "2026-11-20 13:45:00",
            " 2026-11-20T13:45:00Z ",
            "2026-11-20T14:45:00+01:00",
        ] {
            assert_eq!(parse_rfc3339_ms(&normalize_typed_time(text)), Some(1_795_182_300_000), "{text}");
        }
        assert_eq!(normalize_typed_time("2026-11-20"), "2026-11-20T00:00:00Z");
        assert_eq!(normalize_typed_time("yesterday"), "yesterday");
    }

    #[test]
    fn an_age_has_one_unit() {
        let ages = [999, 59_000, 60_000, 3_599_000, 7_200_000, 90_000_000].map(age_text);
        assert_eq!(ages, ["0 s", "59 s", "1 m", "59 m", "2 h", "1 d"]);
    }

    #[test]
    fn dates_follow_the_calendar() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
            (1_795_182_311_000, "2026-11-20T13:45:11Z"),
        ] {
            assert_eq!(rfc3339_seconds(ms), text);
        }
        assert_eq!(readable_time(1_795_182_311_000), "2026-11-20 13:45:11");
    }

    #[test]
    fn spans_have_two_units_at_most() {
        let texts: Vec<_> = [0, 850, 12_000, 200_000, 7_500_000, 356_400_000].map(duration_text).into();
        assert_eq!(texts, ["0 ms", "850 ms", "12 s", "3 m 20 s", "2 h 5 m", "4 d 3 h"]);
    }
}
