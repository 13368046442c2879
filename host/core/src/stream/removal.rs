//! How a reader removes the messages that it has read.

/// The first server version whose restart repeats a partial purge exactly. Earlier servers in a cluster
/// instead remove everything that the stream had at the time, read or not.
const REPEATS_PURGES: [u32; 3] = [2, 9, 18];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageRemoval {
    /// One purge for each partition.
    Purge,
    /// Every message by its number.
    Each,
}

impl MessageRemoval {
    /// The removal that loses no messages on a server of this version, for a stream with this many replicas.
    /// A single replica repeats nothing at a restart. An unreadable version counts as an early one.
    pub fn for_server(version: &str, copies: usize) -> Self {
        let is_early = parse_version(version).is_none_or(|version| version < REPEATS_PURGES);
        if is_early && copies > 1 { Self::Each } else { Self::Purge }
    }
}

/// A preview counts as the version before it.
fn parse_version(text: &str) -> Option<[u32; 3]> {
    let release = text.split(['-', '+']).next()?;
    let mut parts = release.trim_start_matches('v').split('.').map(|part| part.parse().ok());
    let version = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_of_early_servers_is_spared_purges() {
        for early in ["2.8.4", "2.9.10", "2.9.17", "v2.9.9", "1.10.0", "", "2.10", "2.x.1", "2.10.1.1", "-"] {
            assert_eq!(MessageRemoval::for_server(early, 3), MessageRemoval::Each, "{early}");
            assert_eq!(MessageRemoval::for_server(early, 1), MessageRemoval::Purge, "{early}");
        }
        for later in ["2.9.18", "2.9.25", "2.10.0", "2.12.0-preview.1", "2.15.2+build", "3.0.0"] {
            assert_eq!(MessageRemoval::for_server(later, 3), MessageRemoval::Purge, "{later}");
        }
    }
}
