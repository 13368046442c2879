//! Identities and times: random uids and name suffixes, RFC 3339 texts, ages for people.
//!
//! The operating system seeds the random numbers, but they are no cryptography: a simulator's uids and tokens
//! must be unique, not secret.

use crate::calendar;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::apiserver::values::lock::locked;

/// The letters of a generated name, without vowels and lookalikes.
const SUFFIX_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: usize = 5;

/// A source of random numbers (SplitMix64).
pub struct RandomSource(Mutex<u64>);

impl RandomSource {
    /// The same seed gives the same sequence. Without a seed, the operating system provides one.
    pub fn new(seed: Option<u64>) -> Self {
        RandomSource(Mutex::new(seed.unwrap_or_else(|| RandomState::new().hash_one(0x6b75_6265_u64))))
    }

    pub fn next(&self) -> u64 {
        let mut state = locked(&self.0);
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A version 4 UUID.
    pub fn uid(&self) -> String {
        let (a, b) = (self.next(), self.next());
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            a >> 32,
            (a >> 16) & 0xffff,
            a & 0xfff,
            0x8000 | (b >> 48) & 0x3fff,
            b & 0xffff_ffff_ffff
        )
    }

    /// The suffix for a `generateName`.
    pub fn suffix(&self) -> String {
        let mut bits = self.next();
        let mut text = String::with_capacity(SUFFIX_LENGTH);
        for _ in 0..SUFFIX_LENGTH {
            let at = usize::try_from(bits % SUFFIX_LETTERS.len() as u64).unwrap_or(0);
            text.push(char::from(SUFFIX_LETTERS[at]));
            bits /= SUFFIX_LETTERS.len() as u64;
        }
        text
    }

    pub fn token(&self) -> String {
        format!("{:016x}{:016x}", self.next(), self.next())
    }
}

/// Seconds since 1970.
pub fn unix_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// The present time in the form of metadata: UTC, whole seconds.
pub fn now() -> String {
    rfc3339(unix_now())
}

pub fn rfc3339(unix: i64) -> String {
    let (days, second) = (unix.div_euclid(86_400), unix.rem_euclid(86_400));
    let (year, month, day) = calendar::date(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// The seconds since 1970 of an RFC 3339 text. Fractions are dropped, and offsets are applied.
pub fn parse_rfc3339(text: &str) -> Option<i64> {
    let (date, rest) = text.split_once(['T', 't'])?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let clock = rest.get(..8)?;
    let mut clock = clock.splitn(3, ':').map(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let zone = rest.get(8..)?.trim_start_matches(|c: char| c == '.' || c.is_ascii_digit());
    let offset = match zone {
        "Z" | "z" => 0,
        _ => {
            let sign = if zone.starts_with('-') { -1 } else { 1 };
            let (hours, minutes) = zone.get(1..)?.split_once(':')?;
            sign * (hours.parse::<i64>().ok()? * 3600 + minutes.parse::<i64>().ok()? * 60)
        }
    };
    let valid =
        (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second < 61;
    valid.then(|| days_from_civil(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset)
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let y = year - i64::from(month <= 2);
    let era = y.div_euclid(400);
    let yoe = y.rem_euclid(400);
    let mp = (month + 9) % 12;
    let doy = (153 * mp + 2) / 5 + day - 1;
    era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719_468
}

/// A duration as in a table column: at most two units, and coarser the longer it is.
pub fn human_duration(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        s if s < 0 => "0s".to_owned(),
        s if s < 120 => format!("{s}s"),
        s if minutes < 10 => two(minutes, 'm', s % 60, 's'),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, 'h', minutes % 60, 'm'),
        _ if hours < 48 => format!("{hours}h"),
        _ if days < 8 => two(days, 'd', hours % 24, 'h'),
        _ if days < 730 => format!("{days}d"),
        _ => two(days / 365, 'y', days % 365, 'd'),
    }
}

fn two(large: i64, large_unit: char, small: i64, small_unit: char) -> String {
    if small == 0 {
        format!("{large}{large_unit}")
    } else {
        format!("{large}{large_unit}{small}{small_unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_the_way_to_text_and_back() {
        for unix in [0, 951_827_696, 1_795_171_720, 4_102_444_799] {
            assert_eq!(parse_rfc3339(&rfc3339(unix)), Some(unix));
        }
        assert_eq!(rfc3339(1_795_171_720), "2026-11-20T10:48:40Z");
        assert_eq!(parse_rfc3339("2026-11-20T12:48:40.123456+02:00"), Some(1_795_171_720));
        assert_eq!(parse_rfc3339("yesterday"), None);
    }

    #[test]
    fn uids_are_version_four_and_differ() {
        let random = RandomSource::new(None);
        let (a, b) = (random.uid(), random.uid());
        assert_ne!(a, b);
        assert_eq!((a.len(), a.as_bytes()[14]), (36, b'4'));
    }

    #[test]
    fn a_seed_repeats_the_sequence() {
        assert_eq!(RandomSource::new(Some(7)).uid(), RandomSource::new(Some(7)).uid());
    }

    #[test]
    fn ages_get_coarser() {
        assert_eq!(human_duration(13), "13s");
        assert_eq!(human_duration(125), "2m5s");
        assert_eq!(human_duration(3 * 86_400), "3d");
    }
}
