//! Faults that a test injects: what servers, networks and proxies do to a client. A client must survive
//! these, but a real server can't be told to cause them.
//!
//! A fault is armed on one server, for some verb, some resource and some number of requests. It hits the
//! requests that match. Several faults may hit one request. The hook `POST /_sim/faults` and the option
//! `--fault` take it as a JSON document. There `fault` names it, and other members may be
//!
//! - `verb`: `list` (all lists), `list-one` (`limit=1`), `exact` (lists at an exact version), `page` (with a
//!   continue token), `watch`, `get` and so on; left out: the verbs of the table;
//! - `resource`: such as `jobs.batch` or `pods`; left out: any;
//! - `times`: how many requests it hits; left out: 1; 0: until it is disarmed;
//! - `skip`: how many requests it first lets pass;
//! - `oneIn`: hits one request in this many on average, by the server's seed;
//! - `at`: the byte or event at which it happens, or `within`: anywhere up to there, by the server's seed.
//!
//! | fault | verbs | what happens |
//! |---|---|---|
//! | `refuse` `code` `retryAfter` | list, watch | an error of that status; 429 carries Retry-After (1 s unless given) |
//! | `too-large` | list | 504 with cause ResourceVersionTooLarge, retry after 1 s |
//! | `expired` | list, watch | 410 as an HTTP status, whatever the version |
//! | `expired-event` `at` | watch | 410 as an ERROR event before event `at` (0: at once), whatever the version |
//! | `expired-as-status` | watch | a version that is too old gives the HTTP status 410 instead of an ERROR event |
//! | `expired-continue` | page | 410 with a token to go on inconsistently, which is honoured |
//! | `refuse-exact` `code` | exact | exact lists are refused (400 unless given) |
//! | `ignore-exact` | exact | exact lists show what is now |
//! | `refuse-initial-events` `code` | watch | streaming lists are refused (422 unless given) |
//! | `ignore-initial-events` | watch | a streaming list is an ordinary watch: no bookmark ends what exists |
//! | `hang` | list, watch | taken and never answered |
//! | `hang-up` | list, watch | the connection ends without an answer |
//! | `slow` `bytesPerSecond` | watch | the body trickles |
//! | `chunks` `size` | list, watch | the body comes in chunks of that many bytes |
//! | `cut` `at` | watch | the connection breaks after so many bytes |
//! | `end` `at` | watch | the body ends cleanly after so many bytes, also within a frame |
//! | `silent` `at` | watch | after so many bytes (0: after the headers) nothing comes, and nothing closes |
//! | `end-before` `at` | watch | the stream ends cleanly before event `at` |
//! | `duplicate` `at` | watch | event `at` comes twice (0: every event does) |
//! | `swap` `at` | watch | event `at` comes after the next one |
//! | `drop` `at` | watch | event `at` never comes; later bookmarks are ahead of it |
//! | `no-bookmarks` | watch | no bookmarks, but for the one that ends initial events |
//! | `insert` `at` `frame` | watch | before event `at` (0: at once) stands a line: `garbage`, `without-metadata`, or any text |
//! | `insert-item` `item` | list | the first item of the list is not an object: `garbage`, `without-metadata`, or any JSON |
//!
//! Events are counted from 1 within one watch. Bookmarks do not count.

mod parse;

use std::sync::Mutex;

use crate::apiserver::values::ident::RandomSource;
use crate::apiserver::values::lock::locked;
use crate::apiserver::wire::incoming::IncomingRequest;
use crate::apiserver::wire::query::ContinueToken;

/// The most armed faults. More of them mean that a test forgets to disarm.
const MAX_ARMED: usize = 1000;

/// A line that is not JSON.
pub const GARBAGE: &str = "{\"type\":\"MODIFIED\",\"object\":{\"kind\": ?!";

/// An event whose object has no metadata.
pub const WITHOUT_METADATA: &str =
    "{\"type\":\"MODIFIED\",\"object\":{\"kind\":\"Nothing\",\"apiVersion\":\"v1\",\"spec\":{}}}";

/// An item of a list that has no metadata.
pub const ITEM_WITHOUT_METADATA: &str = "{\"spec\":{}}";

/// An item of a list that is no object.
pub const GARBAGE_ITEM: &str = "[\"no\",\"object\"]";

/// A byte or an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultPoint {
    Exactly(u64),
    /// Anywhere from 1 up to this, chosen by the seed.
    Within(u64),
}

/// The fault that happens. The table of the module describes each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultKind {
    Refuse { code: u16, retry_after: Option<u32> },
    TooLarge,
    Expired,
    ExpiredEvent(FaultPoint),
    ExpiredAsStatus,
    ExpiredContinue,
    RefuseExact { code: u16 },
    IgnoreExact,
    RefuseInitialEvents { code: u16 },
    IgnoreInitialEvents,
    Hang,
    HangUp,
    Slow { bytes_per_second: u64 },
    Chunks { size: usize },
    Cut(FaultPoint),
    End(FaultPoint),
    Silent(FaultPoint),
    EndBefore(FaultPoint),
    Duplicate(FaultPoint),
    Swap(FaultPoint),
    Drop(FaultPoint),
    NoBookmarks,
    Insert { at: FaultPoint, frame: String },
    InsertItem { item: String },
}

/// A fault and the requests that it hits. [`InjectedFault::once`] hits one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InjectedFault {
    pub what: FaultKind,
    pub verb: Option<String>,
    pub resource: Option<String>,
    /// The number of requests that it hits; `None`: until it is disarmed.
    pub times: Option<u64>,
    /// How many requests it first lets pass.
    pub skip: u64,
    /// It hits one request in this many on average. 1 and 0 mean every request.
    pub one_in: u64,
}

impl InjectedFault {
    pub fn once(what: FaultKind) -> Self {
        InjectedFault { what, verb: None, resource: None, times: Some(1), skip: 0, one_in: 1 }
    }

    pub fn always(what: FaultKind) -> Self {
        InjectedFault { times: None, ..InjectedFault::once(what) }
    }

    pub fn times(self, times: u64) -> Self {
        InjectedFault { times: Some(times), ..self }
    }

    pub fn after(self, skip: u64) -> Self {
        InjectedFault { skip, ..self }
    }

    pub fn one_in(self, one_in: u64) -> Self {
        InjectedFault { one_in, ..self }
    }

    /// Hits only this verb.
    pub fn verb(self, verb: &str) -> Self {
        InjectedFault { verb: Some(verb.to_owned()), ..self }
    }

    /// Hits only this resource, such as `jobs.batch`.
    pub fn on(self, resource: &str) -> Self {
        InjectedFault { resource: Some(resource.to_owned()), ..self }
    }

    fn concerns(&self, request: &IncomingRequest) -> bool {
        let verb = match &self.verb {
            Some(verb) => is(request, verb),
            None => self.what.verbs().iter().any(|verb| is(request, verb)),
        };
        let streaming =
            matches!(self.what, FaultKind::RefuseInitialEvents { .. } | FaultKind::IgnoreInitialEvents);
        verb && (!streaming || request.query.has("sendInitialEvents"))
            && self.resource.as_deref().is_none_or(|resource| resource == resource_of(request))
    }
}

impl FaultKind {
    /// The verbs that it hits by default.
    fn verbs(&self) -> &'static [&'static str] {
        match self {
            FaultKind::TooLarge | FaultKind::InsertItem { .. } => &["list"],
            FaultKind::Refuse { .. }
            | FaultKind::Expired
            | FaultKind::Hang
            | FaultKind::HangUp
            | FaultKind::Chunks { .. } => &["list", "watch"],
            FaultKind::ExpiredContinue => &["page"],
            FaultKind::RefuseExact { .. } | FaultKind::IgnoreExact => &["exact"],
            _ => &["watch"],
        }
    }
}

fn is(request: &IncomingRequest, verb: &str) -> bool {
    let list = request.verb() == "list";
    let query = &request.query;
    match verb {
        "list-one" => list && query.get("limit") == "1",
        "exact" => list && query.get("resourceVersionMatch") == "Exact",
        // A page that continues inconsistently can't expire.
        "page" => {
            list && ContinueToken::parse(query.get("continue")).is_ok_and(|token| token.version.is_some())
        }
        verb => request.verb() == verb,
    }
}

fn resource_of(request: &IncomingRequest) -> String {
    let path = &request.path;
    if path.group.is_empty() { path.resource.clone() } else { format!("{}.{}", path.resource, path.group) }
}

/// The faults of one server.
pub struct ServerFaults {
    armed: Mutex<Vec<InjectedFault>>,
    random: RandomSource,
}

impl ServerFaults {
    pub fn new(armed: Vec<InjectedFault>, seed: Option<u64>) -> Self {
        ServerFaults { armed: Mutex::new(armed), random: RandomSource::new(seed) }
    }

    /// Returns `false` if too many are armed.
    pub fn arm(&self, fault: InjectedFault) -> bool {
        let mut armed = locked(&self.armed);
        let room = armed.len() < MAX_ARMED;
        if room {
            armed.push(fault);
        }
        room
    }

    /// Returns how many were armed.
    pub fn disarm(&self) -> usize {
        std::mem::take(&mut *locked(&self.armed)).len()
    }

    pub fn armed(&self) -> usize {
        locked(&self.armed).len()
    }

    /// The faults that hit a request.
    pub fn draw(&self, request: &IncomingRequest) -> DrawnFaults {
        let mut drawn = Vec::new();
        let mut armed = locked(&self.armed);
        for fault in armed.iter_mut().filter(|fault| fault.concerns(request)) {
            if fault.skip > 0 {
                fault.skip -= 1;
            } else if fault.one_in <= 1 || self.random.next().is_multiple_of(fault.one_in) {
                fault.times = fault.times.map(|times| times.saturating_sub(1));
                drawn.push(fault.what.settled(&self.random));
            }
        }
        armed.retain(|fault| fault.times != Some(0));
        DrawnFaults(drawn)
    }
}

impl FaultKind {
    /// Chooses the position of a fault that may happen anywhere.
    fn settled(&self, random: &RandomSource) -> FaultKind {
        let mut what = self.clone();
        if let FaultKind::ExpiredEvent(at)
        | FaultKind::Cut(at)
        | FaultKind::End(at)
        | FaultKind::Silent(at)
        | FaultKind::EndBefore(at)
        | FaultKind::Duplicate(at)
        | FaultKind::Swap(at)
        | FaultKind::Drop(at)
        | FaultKind::Insert { at, .. } = &mut what
            && let FaultPoint::Within(bound) = *at
        {
            *at = FaultPoint::Exactly(1 + random.next() % bound.max(1));
        }
        what
    }
}

impl FaultPoint {
    pub fn place(self) -> u64 {
        match self {
            FaultPoint::Exactly(at) | FaultPoint::Within(at) => at,
        }
    }
}

/// The faults that hit one request.
#[derive(Debug, Default)]
pub struct DrawnFaults(pub Vec<FaultKind>);
