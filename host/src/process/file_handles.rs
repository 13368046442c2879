//! Raises the limit of open files to what the system allows, and reserves some file handles that clients
//! can't use.

use anyhow::{Context, Result};
use kubewitness_portal::ListenerBounds;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{info, warn};

/// The handles reserved for the journal, granted databases, plugins, configuration and connections to the API
/// server. With ten sources and ten plugins they use about half of it.
const RESERVE: u64 = 256;
/// The connections of a listener however few handles exist: a probe, a page, a command.
const FEWEST: usize = 16;
/// The portal's share of the handles for clients.
const PORTAL: (u64, u64) = (4, 5);

/// Limits for the portal and for the health port that leave the reserve free.
pub fn for_clients() -> (ListenerBounds, ListenerBounds) {
    let limit = raise_limit().unwrap_or_else(|error| {
        warn!("{error:#}; going on with {} file handles", limit_text(soft_limit()));
        soft_limit()
    });
    let (portal, health) = share_handles(limit);
    if portal.connections < ListenerBounds::PORTAL.connections
        || health.connections < ListenerBounds::HEALTH.connections
    {
        info!(
            "the limit of open files is {}: the portal takes {} connections at once (otherwise {}), the health port \
             {} (otherwise {}). More need a higher hard limit, such as `ulimit -Hn` or LimitNOFILE has it",
            limit_text(limit),
            portal.connections,
            ListenerBounds::PORTAL.connections,
            health.connections,
            ListenerBounds::HEALTH.connections,
        );
    }
    if limit.is_some_and(|limit| limit < RESERVE) {
        warn!(
            "fewer than {RESERVE} files may be open: the journal, databases and sources may fail to open theirs"
        );
    }
    (portal, health)
}

fn share_handles(limit: Option<u64>) -> (ListenerBounds, ListenerBounds) {
    let free = limit.unwrap_or(u64::MAX).saturating_sub(RESERVE);
    let portal = free / PORTAL.1 * PORTAL.0;
    (cap_bounds(ListenerBounds::PORTAL, portal), cap_bounds(ListenerBounds::HEALTH, free - portal))
}

fn cap_bounds(bounds: ListenerBounds, handles: u64) -> ListenerBounds {
    let handles = usize::try_from(handles).unwrap_or(usize::MAX).saturating_sub(ListenerBounds::SPARE);
    let connections = bounds.connections.min(handles).max(FEWEST);
    ListenerBounds { connections, of_one_peer: bounds.of_one_peer.min(connections), ..bounds }
}

/// The soft limit exists for programs that use `select`; the hard one applies here.
fn raise_limit() -> Result<Option<u64>> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        setrlimit(Resource::Nofile, raised).context("raising the limit of open files to the hard one")?;
    }
    Ok(limit.maximum)
}

fn soft_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

fn limit_text(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".into(), |limit| limit.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_have_what_the_reserve_leaves() {
        for limit in [None, Some(1 << 20), Some(4096)] {
            assert_eq!(share_handles(limit), (ListenerBounds::PORTAL, ListenerBounds::HEALTH), "{limit:?}");
        }
        for limit in 416..2000 {
            let (portal, health) = share_handles(Some(limit));
            let all = portal.connections + health.connections + 2 * ListenerBounds::SPARE;
            assert!(all as u64 <= limit - RESERVE, "{limit}: {all} connections");
            assert!(portal.connections > 2 * health.connections && health.of_one_peer >= FEWEST, "{limit}");
        }
    }

    #[test]
    fn where_there_is_nothing_to_share_a_probe_still_finds_a_place() {
        let (portal, health) = share_handles(Some(64));
        assert_eq!((portal.connections, health.connections), (FEWEST, FEWEST));
    }

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        assert_eq!(raise_limit().unwrap(), soft_limit());
        assert_eq!(soft_limit(), getrlimit(Resource::Nofile).maximum);
    }
}
