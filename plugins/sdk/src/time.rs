//! Formats times as people and databases read them, and reads them back.

use jiff::Timestamp;
use jiff::civil::DateTime;

/// RFC 3339 in UTC, with milliseconds. A time beyond the calendar becomes its last moment.
pub fn rfc3339(ms: u64) -> String {
    let at = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    format!("{:.3}", at.unwrap_or(Timestamp::MAX))
}

/// Milliseconds since 1970 of a time in RFC 3339, as Kubernetes writes them. `None` for another text, and for a time
/// before 1970. The calendar's own parser knows many more forms, and would double a small component.
pub fn parse(text: &str) -> Option<u64> {
    let (date, rest) = text.split_at_checked(10)?;
    let (clock, rest) = rest.strip_prefix('T')?.split_at_checked(8)?;
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(clock, ':')?;
    let at = |number: i16| i8::try_from(number).ok();
    let time = DateTime::new(year, at(month)?, at(day)?, at(hour)?, at(minute)?, at(second)?, 0).ok()?;
    let digits = rest.strip_prefix('.').map_or(0, |rest| rest.bytes().take_while(u8::is_ascii_digit).count());
    let (fraction, zone) = if digits > 0 { rest[1..].split_at(digits) } else { ("0", rest) };
    let fraction: i64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    let ms = time.duration_since(DateTime::constant(1970, 1, 1, 0, 0, 0, 0)).as_secs() * 1000 + fraction;
    u64::try_from(ms - minutes_east(zone)? * 60_000).ok()
}

/// `Z`, or an offset such as `+02:00`.
fn minutes_east(zone: &str) -> Option<i64> {
    if zone == "Z" {
        return Some(0);
    }
    let sign = if zone.starts_with('+') { 1 } else { -1 };
    let [hours, minutes] = numbers(zone.strip_prefix(['+', '-'])?, ':')?;
    (hours < 24 && minutes < 60).then(|| sign * (i64::from(hours) * 60 + i64::from(minutes)))
}

/// Numbers without signs, of four digits at most.
fn numbers<const N: usize>(text: &str, between: char) -> Option<[i16; N]> {
    let number = |part: &str| {
        let plain = (1..=4).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
        if plain { part.parse().ok() } else { None }
    };
    let numbers: Option<Vec<i16>> = text.split(between).map(number).collect();
    numbers?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn times_are_read_with_their_zone() {
        assert_eq!(parse("2026-11-25T21:00:00Z"), Some(1_795_640_400_000));
        assert_eq!(parse("2026-11-25T23:00:00.5+02:00"), Some(1_795_640_400_500));
        assert_eq!(parse("2026-11-25T21:00:00.123456Z"), Some(1_795_640_400_123));
        assert_eq!(parse("2026-11-25T15:30:00-05:30"), Some(1_795_640_400_000));
        for text in [
            "",
            "2026-11-25",
            "2026-11-25T21:00:00",
            "1969-12-31T23:59:59Z",
            "2026-02-30T00:00:00Z",
            "2026-11-25T24:00:00Z",
            "2026-11-25T21:00:00.Z",
            "2026-11-25T21:00:00+2",
            "2026-11-25T21:00:00+02:00Z",
            "2026-11-25T+1:00:00Z",
            "2026-11-25T21:00:0éZ",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
