//! Hours of the day, at an offset from UTC. A guest has no calendar of time zones, so an operator writes the offset.

use serde::{Deserialize, Deserializer, de};

const DAY: u64 = 24 * 60;

/// Hours of the day. They may continue past midnight.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hours {
    /// The first minute, such as `22:00`.
    pub from: Minute,
    /// The minute after the last one, such as `07:00`.
    pub to: Minute,
    /// The offset of the local time from UTC, such as `+08:00`. By default UTC.
    #[serde(default)]
    pub offset: Offset,
    /// The days on which the hours begin. By default every day.
    #[serde(default)]
    pub days: Vec<Day>,
}

/// A day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Day {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

const WEEK: [Day; 7] = [Day::Mon, Day::Tue, Day::Wed, Day::Thu, Day::Fri, Day::Sat, Day::Sun];

impl Hours {
    pub fn contains(&self, at_ms: u64) -> bool {
        let minute = (at_ms / 60_000).saturating_add_signed(self.offset.0);
        let (day, minute) = (minute / DAY, minute % DAY);
        let (from, to) = (self.from.0, self.to.0);
        let begun = match from <= to {
            true => (from..to).contains(&minute).then_some(day),
            false if minute >= from => Some(day),
            // These hours began the day before.
            false => (minute < to).then(|| day.saturating_sub(1)),
        };
        begun.is_some_and(|day| self.days.is_empty() || self.days.contains(&weekday(day)))
    }

    /// The end of the hours that contain this time.
    pub fn end_ms(&self, at_ms: u64) -> u64 {
        let minute = at_ms / 60_000;
        let local = minute.saturating_add_signed(self.offset.0) % DAY;
        (minute + (self.to.0 + DAY - local) % DAY) * 60_000
    }
}

/// 1970 began on a Thursday.
fn weekday(day: u64) -> Day {
    WEEK[(day + 3) as usize % WEEK.len()]
}

/// A minute of the day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Minute(u64);

/// Minutes east of UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offset(i64);

fn clock(text: &str) -> Option<u64> {
    let (hours, minutes) = text.split_once(':')?;
    let two = |text: &str| (text.len() == 2).then(|| text.parse::<u64>().ok()).flatten();
    let (hours, minutes) = (two(hours)?, two(minutes)?);
    (hours < 24 && minutes < 60).then_some(hours * 60 + minutes)
}

impl<'de> Deserialize<'de> for Minute {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || de::Error::custom(format!("`{text}` is no time of day: write one such as \"22:00\""));
        clock(&text).map(Self).ok_or_else(wrong)
    }
}

impl<'de> Deserialize<'de> for Offset {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let sign = match text.as_bytes().first() {
            Some(b'+') => 1,
            Some(b'-') => -1,
            _ => 0,
        };
        let minutes = (sign != 0).then(|| clock(&text[1..])).flatten();
        let wrong =
            || de::Error::custom(format!("`{text}` is no offset from UTC: write one such as \"+08:00\""));
        minutes.map(|minutes| Self(sign * minutes as i64)).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hours(text: &str) -> Hours {
        serde_json::from_str(text).unwrap()
    }

    /// 2026-11-27 was a Friday.
    fn friday(hour: u64, minute: u64) -> u64 {
        (20_784 * DAY + hour * 60 + minute) * 60_000
    }

    #[test]
    fn hours_go_past_midnight_and_belong_to_the_day_on_which_they_begin() {
        let night = hours(r#"{"from": "22:00", "to": "07:00"}"#);
        for (hour, minute, is_night) in
            [(21, 59, false), (22, 0, true), (0, 0, true), (6, 59, true), (7, 0, false)]
        {
            assert_eq!(night.contains(friday(hour, minute)), is_night, "{hour}:{minute}");
        }
        let weekend = hours(r#"{"from": "22:00", "to": "07:00", "days": ["fri", "sat"]}"#);
        assert!(weekend.contains(friday(22, 0)) && weekend.contains(friday(24 + 6, 0)));
        assert!(!weekend.contains(friday(6, 0)), "it began on Thursday");
    }

    #[test]
    fn hours_end_at_their_last_minute_today_or_tomorrow() {
        for (from, to, offset, at, end) in [
            ("22:00", "07:00", "+00:00", friday(23, 30), friday(31, 0)),
            ("22:00", "07:00", "+00:00", friday(6, 59) + 59_999, friday(7, 0)),
            ("09:00", "18:00", "+00:00", friday(9, 0), friday(18, 0)),
            ("22:00", "07:00", "+08:00", friday(15, 0), friday(23, 0)),
            ("22:00", "00:00", "-03:30", friday(2, 0), friday(3, 30)),
        ] {
            let hours = hours(&format!(r#"{{"from": "{from}", "to": "{to}", "offset": "{offset}"}}"#));
            assert!(hours.contains(at) && hours.contains(end - 1) && !hours.contains(end), "{from} {to}");
            assert_eq!(hours.end_ms(at), end, "{from} {to} {offset}");
        }
    }

    #[test]
    fn hours_are_of_their_offset() {
        let shanghai = hours(r#"{"from": "09:00", "to": "18:00", "offset": "+08:00", "days": ["sat"]}"#);
        assert!(shanghai.contains(friday(24 + 1, 0)) && !shanghai.contains(friday(24, 59)));
        let newfoundland = hours(r#"{"from": "09:00", "to": "18:00", "offset": "-03:30"}"#);
        assert!(newfoundland.contains(friday(12, 30)) && !newfoundland.contains(friday(12, 29)));
    }

    #[test]
    fn what_is_no_time_is_refused_with_an_example() {
        for (text, expected) in [
            (r#"{"from": "24:00", "to": "07:00"}"#, "`24:00` is no time of day"),
            (r#"{"from": "7:00", "to": "07:00"}"#, "`7:00` is no time of day"),
            (r#"{"from": "22:00", "to": "07:00", "offset": "8"}"#, "\"+08:00\""),
            (r#"{"from": "22:00", "to": "07:00", "offset": "é8:00"}"#, "is no offset"),
            (r#"{"from": "22:00", "to": "07:00", "days": ["friday"]}"#, "unknown variant"),
        ] {
            let error = serde_json::from_str::<Hours>(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
