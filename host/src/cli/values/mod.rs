//! Values of flags that clap does not know: durations, moments and secrets. They know no command, no journal and no
//! cluster.

mod zone;

use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::config::Duration;

pub use zone::Zone;

/// A value that may hold a password: it is never printed.
#[derive(Clone)]
pub struct Secret(pub String);

impl std::str::FromStr for Secret {
    type Err = std::convert::Infallible;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    text.parse()
}

/// A moment, or so long ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    At(u64),
    Ago(Duration),
}

impl Moment {
    pub fn ms(self) -> u64 {
        match self {
            Self::At(ms) => ms,
            Self::Ago(ago) => SystemClock::default().now_ms().saturating_sub(ago.0.as_millis() as u64),
        }
    }
}

pub(super) fn moment(text: &str) -> Result<Moment, String> {
    if let Ok(ago) = text.parse::<Duration>() {
        let now = u128::from(SystemClock::default().now_ms());
        return match ago.0.as_millis() <= now {
            true => Ok(Moment::Ago(ago)),
            false => Err(format!("{text} ago is before 1970: write a shorter time, such as 2h or 30d")),
        };
    }
    Zone::here().read(text).map(Moment::At)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_date_or_so_long_ago() {
        assert_eq!(moment("1970-01-01T00:01:00Z"), Ok(Moment::At(60_000)));
        assert_eq!(moment("1970-01-01T00:01:00.250Z"), Ok(Moment::At(60_250)));
        assert!(matches!(moment("2h"), Ok(Moment::Ago(_))));
        assert!(moment("yesterday").is_err() && moment("").is_err());
        assert!(moment("99999999999h").unwrap_err().contains("before 1970"));
    }
}
