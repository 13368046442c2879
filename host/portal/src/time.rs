//! Times for people, in UTC.

/// `2026-11-20T13:45:11Z`, to the second.
pub(crate) fn rfc3339(ms: u64) -> String {
    let (date, time) = parts(ms);
    format!("{date}T{time}Z")
}

/// `2026-11-20 13:45:11`.
pub(crate) fn readable(ms: u64) -> String {
    let (date, time) = parts(ms);
    format!("{date} {time}")
}

/// `13:45:11`.
pub(crate) fn clock(ms: u64) -> String {
    parts(ms).1
}

/// `850 ms`, `12 s`, `3 m 20 s`, `2 h 5 m`, `4 d 3 h`.
pub(crate) fn span(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{seconds} s"),
        60..3600 => format!("{} m {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

fn parts(ms: u64) -> (String, String) {
    let seconds = ms / 1000;
    let (year, month, day) = civil(seconds / 86_400);
    let rest = seconds % 86_400;
    let time = format!("{:02}:{:02}:{:02}", rest / 3600, rest % 3600 / 60, rest % 60);
    (format!("{year:04}-{month:02}-{day:02}"), time)
}

/// The Gregorian date of a day since 1970. Years are counted from March, so that the leap day
/// is the last of its year.
fn civil(days: u64) -> (u64, u64, u64) {
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
    use super::*;

    #[test]
    fn dates_follow_the_calendar() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
            (1_795_182_311_000, "2026-11-20T13:45:11Z"),
        ] {
            assert_eq!(rfc3339(ms), text);
        }
        assert_eq!(readable(1_795_182_311_000), "2026-11-20 13:45:11");
    }

    #[test]
    fn spans_have_two_units_at_most() {
        let told: Vec<_> = [0, 850, 12_000, 200_000, 7_500_000, 356_400_000].map(span).into();
        assert_eq!(told, ["0 ms", "850 ms", "12 s", "3 m 20 s", "2 h 5 m", "4 d 3 h"]);
    }
}
