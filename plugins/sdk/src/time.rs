//! Formats times as people and databases read them.

use jiff::Timestamp;

/// RFC 3339 in UTC, with milliseconds. A time beyond the calendar becomes its last moment.
pub fn rfc3339(ms: u64) -> String {
    let at = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    format!("{:.3}", at.unwrap_or(Timestamp::MAX))
}

/// Reads a time as Kubernetes writes it: RFC 3339 in UTC, with any fraction. Anything else, and a time before 1970, is none.
///
/// The calendar's own parser knows every form of time and its errors, and would double a small plugin.
pub fn parse_ms(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize| -> Option<u64> {
        let digits = bytes.get(from..to)?;
        let is_number = digits.iter().all(u8::is_ascii_digit);
        is_number.then(|| digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
    };
    let marks = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if !marks.iter().all(|(place, mark)| bytes.get(*place) == Some(mark)) {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let millis = match bytes.get(19..)? {
        [b'Z'] => 0,
        [b'.', fraction @ .., b'Z'] if !fraction.is_empty() && fraction.iter().all(u8::is_ascii_digit) => {
            let three = fraction.iter().chain(b"00").take(3);
            three.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
        }
        _ => return None,
    };
    let is_in_range = year >= 1970 && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !is_in_range || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let seconds = (days_since_1970(year, month, day) * 24 + hour) * 3600 + minute * 60 + second;
    Some(seconds * 1000 + millis)
}

/// The year begins in March here, so that the day of a leap year is its last.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days_before_month = (153 * month + 2) / 5;
    year * 365 + year / 4 - year / 100 + year / 400 + days_before_month + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_kubernetes_is_read_and_another_text_is_none() {
        assert_eq!(parse_ms("2024-02-29T12:34:56.007Z"), Some(1_709_210_096_007));
        assert_eq!(parse_ms("2024-02-29T12:34:56.007891Z"), Some(1_709_210_096_007));
        assert_eq!(parse_ms("2024-02-29T12:34:56.5Z"), Some(1_709_210_096_500));
        for wrong in [
            "",
            "now",
            "1969-12-31T23:59:59Z",
            "2024-13-01T00:00:00Z",
            "2024-01-01T24:00:00Z",
            "2024-01-01T00:00:00",
            "2024-01-01T00:00:00.Z",
            "2024-01-01T00:00:00+01:00",
            "2024-01-01T00:00:0üZ",
            "+024-01-01T00:00:00Z",
        ] {
            assert_eq!(parse_ms(wrong), None, "{wrong}");
        }
        for ms in (0..4_200_000_000_000).step_by(86_399_999 * 7) {
            assert_eq!(parse_ms(&rfc3339(ms)), Some(ms), "what the calendar writes is read");
        }
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
