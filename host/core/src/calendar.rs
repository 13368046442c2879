//! Times as people read them, in UTC.

/// RFC 3339 with milliseconds.
pub fn rfc3339(ms: u64) -> String {
    let (date, time) = parts(ms);
    format!("{date}T{time}.{:03}Z", ms % 1000)
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
    use super::rfc3339;

    #[test]
    fn known_moments_are_written_right() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_400_123), "2000-02-29T00:00:00.123Z");
        assert_eq!(rfc3339(1_795_179_599_999), "2026-11-20T12:59:59.999Z");
    }
}
