//! Flag values that clap does not know: durations, moments and secrets. They are independent of commands,
//! journals and clusters.

mod zone;

use std::net::SocketAddr;

use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::config::{Duration, QuantityError};
use thiserror::Error;

pub use zone::ZoneArg;

/// The hexadecimal digits of a position's mark.
const MARK_DIGITS: usize = 12;

/// Why a flag does not take a text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum FlagValueError {
    #[error(
        "a position is a whole number, such as 1234: `kubewitness timeline` and `kubewitness deadletters list` show them"
    )]
    NoPosition,
    #[error(
        "a position is a whole number, such as 1234, or `position` of a line of `tap`, such as 1234-0a1b2c3d4e5f"
    )]
    NoStreamPosition,
    #[error("write a whole number, such as 1000")]
    NoNumber,
    #[error("write how many dead letters are meant, such as 243: `--dry-run` counts them")]
    NoCount,
    #[error("write an address and a port, such as 127.0.0.1:8787, 0.0.0.0:8787 or [::1]:8787")]
    NoAddress,
    #[error("write a whole number from {low} to {high}")]
    NumberOutside { low: u64, high: u64 },
    #[error("{0} ago is before 1970: write a shorter time, such as 2h or 30d")]
    LongAgo(String),
    #[error("write a time such as '2026-11-24 03:00' or 2026-11-24T03:00:00Z, or how long ago, such as 2h")]
    NoTime,
    #[error(
        "the clocks were set on this day, so this time comes twice or not at all: write it with its offset, such as \
         2026-10-25T02:30:00+02:00"
    )]
    AmbiguousTime,
    #[error("write a time after 1970")]
    EarlyTime,
    #[cfg(feature = "playground")]
    #[error("write a number above 0, at most 100000")]
    NoRate,
    #[error("write NAME=VALUE, such as gpus=2")]
    NoPair,
    #[error("has no name before `=`: write NAME=VALUE")]
    NoName,
}

/// A value that may contain a password: it is never printed.
#[derive(Clone)]
pub struct SecretArg(pub String);

impl std::str::FromStr for SecretArg {
    type Err = std::convert::Infallible;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

impl std::fmt::Debug for SecretArg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

/// A position of the journal.
pub(super) fn parse_position(text: &str) -> Result<u64, FlagValueError> {
    text.parse().map_err(|_| FlagValueError::NoPosition)
}

/// A position of the live stream: `SEQ`, or `SEQ-MARK` with the digest of the state there. The controller
/// compares a mark, and can't compare a bare number.
pub(super) fn parse_stream_position(text: &str) -> Result<String, FlagValueError> {
    let (seq, mark) = text.split_once('-').map_or((text, None), |(seq, mark)| (seq, Some(mark)));
    let is_mark = |mark: &str| {
        mark.len() == MARK_DIGITS
            && mark.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    match seq.parse::<u64>() {
        Ok(_) if mark.is_none_or(is_mark) => Ok(text.to_owned()),
        _ => Err(FlagValueError::NoStreamPosition),
    }
}

/// The number of dead letters that an action is meant for.
pub(super) fn parse_count(text: &str) -> Result<u64, FlagValueError> {
    text.parse().map_err(|_| FlagValueError::NoCount)
}

/// An address to listen on, with its port. A name is none: it could mean several addresses.
pub(super) fn parse_listen_address(text: &str) -> Result<SocketAddr, FlagValueError> {
    text.parse().map_err(|_| FlagValueError::NoAddress)
}

/// A whole number between two limits, both included.
pub(super) fn whole_number_between<T: TryFrom<u64>>(
    low: u64,
    high: u64,
) -> impl Fn(&str) -> Result<T, FlagValueError> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| (low..=high).contains(number));
        number.and_then(|number: u64| T::try_from(number).ok()).ok_or(match high {
            u64::MAX => FlagValueError::NoNumber,
            high => FlagValueError::NumberOutside { low, high },
        })
    }
}

/// The same without an upper bound.
pub(super) fn any_number<T: TryFrom<u64>>(text: &str) -> Result<T, FlagValueError> {
    whole_number_between(0, u64::MAX)(text)
}

pub(super) fn parse_duration(text: &str) -> Result<Duration, QuantityError> {
    text.parse()
}

/// A moment, or an age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MomentArg {
    At(u64),
    Ago(Duration),
}

impl MomentArg {
    pub fn as_unix_ms(self) -> u64 {
        match self {
            Self::At(ms) => ms,
            Self::Ago(ago) => SystemClock::default().now_ms().saturating_sub(ago.0.as_millis() as u64),
        }
    }
}

pub(super) fn parse_moment(text: &str) -> Result<MomentArg, FlagValueError> {
    if let Ok(ago) = text.parse::<Duration>() {
        let now = u128::from(SystemClock::default().now_ms());
        return match ago.0.as_millis() <= now {
            true => Ok(MomentArg::Ago(ago)),
            false => Err(FlagValueError::LongAgo(text.to_owned())),
        };
    }
    ZoneArg::local_zone().read(text).map(MomentArg::At)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_refused_with_advice() {
        for told in ["x", "", "-1", "1.5", "99999999999999999999"].map(parse_position) {
            assert!(told.unwrap_err().to_string().contains("`kubewitness deadletters list`"));
        }
        for position in ["0", "7", "7-0a1b2c3d4e5f"] {
            assert_eq!(parse_stream_position(position), Ok(position.to_owned()));
        }
        for wrong in ["x", "", "-1", "7-", "7-0a", "7-0a1b2c3d4e5g", "-0a1b2c3d4e5f"] {
            assert_eq!(parse_stream_position(wrong), Err(FlagValueError::NoStreamPosition), "{wrong}");
        }
        assert_eq!((parse_position("7"), any_number::<usize>("0")), (Ok(7), Ok(0)));
        assert_eq!(any_number::<u64>("x"), Err(FlagValueError::NoNumber));
        let limit = whole_number_between::<u32>(1, 100);
        assert_eq!((limit("1"), limit("100")), (Ok(1), Ok(100)));
        for wrong in ["0", "101", "x"] {
            assert_eq!(
                limit(wrong).unwrap_err().to_string(),
                "write a whole number from 1 to 100",
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_moment_is_a_date_or_so_long_ago() {
        assert_eq!(parse_moment("1970-01-01T00:01:00Z"), Ok(MomentArg::At(60_000)));
        assert_eq!(parse_moment("1970-01-01T00:01:00.250Z"), Ok(MomentArg::At(60_250)));
        assert!(matches!(parse_moment("2h"), Ok(MomentArg::Ago(_))));
        assert!(parse_moment("yesterday").is_err() && parse_moment("").is_err());
        assert!(matches!(parse_moment("99999999999h"), Err(FlagValueError::LongAgo(_))));
    }
}
