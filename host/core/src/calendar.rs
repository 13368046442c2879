//! Times as people read them, in UTC.

/// RFC 3339 with milliseconds.
pub fn rfc3339(ms: u64) -> String {
    let (date, time) = parts(ms);
    format!("{date}T{time}.{:03}Z", ms % 1000)
}

/// The moment that [`rfc3339`] wrote; `None` for a text in any other form.
pub fn parse(text: &str) -> Option<u64> {
    let number = |from: usize, to: usize| {
        let part = text.get(from..to)?;
        part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse::<u64>().ok())?
    };
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second, ms) = (number(11, 13)?, number(14, 16)?, number(17, 19)?, number(20, 23)?);
    let shifted = if month <= 2 { year.checked_sub(1)? } else { year };
    let (era, year_of_era) = (shifted / 400, shifted % 400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day.checked_sub(1)?;
    let days = era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let seconds = days.checked_sub(719_468)? * 86_400 + hour * 3600 + minute * 60 + second;
    let moment = seconds * 1000 + ms;
    // Days and hours that no calendar has, and signs out of place, would not come out as they are.
    (rfc3339(moment) == text).then_some(moment)
}

/// Date and time of day, to the second: `2026-11-20` and `13:45:11`.
pub fn parts(ms: u64) -> (String, String) {
    let seconds = ms / 1000;
    let (year, month, day) = date(seconds / 86_400);
    let rest = seconds % 86_400;
    let time = format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    (format!("{year:04}-{month:02}-{day:02}"), time)
}

/// The Gregorian date of a day since 1970. Years are counted from March, in eras of 400 years, so
/// that the leap day is the last of its year.
fn date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::{parse, rfc3339};

    #[test]
    fn what_was_written_is_read_back_and_nothing_else() {
        for ms in [0, 1, 951_782_400_123, 951_868_800_000, 1_795_179_599_999, 4_107_542_400_000] {
            assert_eq!(parse(&rfc3339(ms)), Some(ms));
        }
        for text in [
            "",
            "now",
            "2026-11-20",
            "2026-02-30T00:00:00.000Z",
            "2026-11-20T13:45:11Z",
            "+026-11-20T13:45:11.000Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn known_moments_are_written_right() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_400_123), "2000-02-29T00:00:00.123Z");
        assert_eq!(rfc3339(1_795_179_599_999), "2026-11-20T12:59:59.999Z");
    }
}
