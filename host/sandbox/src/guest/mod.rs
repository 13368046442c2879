//! The controller's side of one instance: its limits, its empty WASI, and the session of the call in
//! progress.
//!
//! Everything that a guest can reach is a field of this state; it can reach nothing else. Memory and time are
//! limited by [`memory`] and [`clock`]. The session exists only during a call, so an instance can't act
//! between calls. It knows no component and calls no guest.

pub mod batch;
pub mod clock;
pub mod memory;
pub mod stderr;

use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::Seq;
use kubewitness_core::config::LimitsSpec;
use kubewitness_core::ports::EffectSession;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::{WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

use crate::bindings::types::Error;
use crate::tally::{CallWork, HostCapability, PluginTally};
use crate::turns::CpuTicket;
use batch::CallStates;
use clock::{HostTime, SharedClock};
use memory::{MemoryBudget, MemoryLimit};
use stderr::StderrTail;

/// The most WASI objects (streams, pollables) that a guest may hold at once.
const RESOURCES: usize = 256;

/// How many random bytes one call of WASI returns.
const RANDOM_BYTES: u64 = 64 * 1024;

pub struct GuestState {
    wasi: WasiCtx,
    table: ResourceTable,
    pub memory: MemoryLimit,
    pub clock: SharedClock,
    /// The ticket with which the call in progress waits for its turns.
    pub seat: Arc<CpuTicket>,
    pub stderr: StderrTail,
    pub config: Arc<str>,
    limits: CallLimits,
    calls: u32,
    /// The work of the call in progress. It is added to the tally once the call has ended.
    pub work: CallWork,
    tally: Arc<PluginTally>,
    session: Option<Box<dyn EffectSession>>,
    /// The states of the call in progress.
    pub batch: Arc<CallStates>,
    /// The document that was read last, and its values if several were asked for: a guest usually reads several
    /// pointers of a document in a row.
    pub read: Option<(Seq, Bytes)>,
    pub parsed: Option<(Seq, serde_json::Value)>,
}

/// The bounds of the calls of one batch.
#[derive(Clone, Copy, Debug)]
struct CallLimits {
    calls: u32,
    bytes: usize,
}

impl GuestState {
    pub fn new(
        limits: &LimitsSpec,
        config: Arc<str>,
        budget: Arc<MemoryBudget>,
        tally: Arc<PluginTally>,
        seat: Arc<CpuTicket>,
    ) -> Self {
        let stderr = StderrTail::default();
        let mut table = ResourceTable::new();
        table.set_max_capacity(RESOURCES);
        let wasi = WasiCtxBuilder::new()
            .stderr(stderr.clone())
            .allow_tcp(false)
            .allow_udp(false)
            .allow_ip_name_lookup(false)
            .max_random_size(RANDOM_BYTES)
            .build();
        Self {
            wasi,
            table,
            memory: MemoryLimit::new(limits.memory.0, budget, Arc::clone(&tally)),
            clock: SharedClock::new(limits.call.0),
            seat,
            stderr,
            config,
            limits: CallLimits {
                calls: limits.host_calls,
                bytes: usize::try_from(limits.host_bytes.0).unwrap_or(usize::MAX),
            },
            calls: 0,
            work: CallWork::default(),
            tally,
            session: None,
            batch: Arc::default(),
            read: None,
            parsed: None,
        }
    }

    pub fn begin_call(&mut self, session: Option<Box<dyn EffectSession>>, batch: CallStates) {
        self.calls = 0;
        self.memory.refused = None;
        self.stderr.clear();
        self.read = None;
        self.parsed = None;
        self.session = session;
        self.batch = Arc::new(batch);
    }

    pub fn end_call(&mut self) -> Option<Box<dyn EffectSession>> {
        let (guest, host) = self.clock.times_of_call();
        self.tally.add_work(&std::mem::take(&mut self.work), guest, host);
        self.session.take()
    }

    /// Counts a call that can't return a refusal. Beyond the limit, such a call has no effect.
    pub fn count(&mut self, capability: HostCapability) -> bool {
        self.work.note_call(capability);
        self.calls = self.calls.saturating_add(1);
        self.calls <= self.limits.calls
    }

    /// Counts one call with its bytes, and returns the session while the guest's time is stopped.
    pub fn open(
        &mut self,
        capability: HostCapability,
        bytes: usize,
    ) -> Result<(&mut dyn EffectSession, HostTime), Error> {
        if !self.count(capability) {
            let most = self.limits.calls;
            return Err(Error::Denied(format!(
                "more than {most} calls to the controller in one batch (limits.hostCalls)"
            )));
        }
        self.check_size(bytes)?;
        self.work.bytes_out += bytes as u64;
        match &mut self.session {
            Some(session) => Ok((&mut **session, self.clock.enter_host())),
            None => Err(Error::Denied("capabilities work while states are handled, not before".to_string())),
        }
    }

    /// Counts an answer of this size, if it is allowed.
    pub fn count_answer(&mut self, bytes: usize) -> Result<(), Error> {
        self.check_size(bytes)?;
        self.work.bytes_in += bytes as u64;
        Ok(())
    }

    /// The most bytes of one call.
    pub fn most_bytes(&self) -> usize {
        self.limits.bytes
    }

    /// Whether an answer or an argument of this size is allowed.
    fn check_size(&self, bytes: usize) -> Result<(), Error> {
        let most = self.most_bytes();
        if bytes > most {
            return Err(Error::TooLarge(format!(
                "{bytes} bytes in one call, over {most} (limits.hostBytes)"
            )));
        }
        Ok(())
    }

    pub fn effect_session(&self) -> Option<&dyn EffectSession> {
        self.session.as_deref()
    }

    /// The bytes that the binding layer may copy out of the guest in one call, before [`Self::check_size`]
    /// checks them. Nested lists take more room here than in the guest, and a guest can pass one text many
    /// times.
    pub fn lifting_fuel(&self) -> usize {
        self.limits.bytes.saturating_mul(4).saturating_add(1 << 20)
    }
}

impl WasiView for GuestState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

#[cfg(test)]
mod tests {
    use wasmtime_wasi::p2::bindings::random::random::Host as _;

    use super::*;
    use crate::turns::CpuTurns;

    impl GuestState {
        pub fn of_test() -> Self {
            let seat = Arc::new(CpuTurns::new(1, || {})).issue_ticket(&"".into());
            Self::new(&LimitsSpec::default(), "".into(), Arc::default(), Arc::default(), seat)
        }
    }

    #[test]
    fn a_guest_holds_no_more_wasi_objects_than_its_bound() {
        let mut guest = GuestState::of_test();
        let WasiCtxView { table, .. } = guest.ctx();
        for held in 0..RESOURCES {
            assert!(table.push(held).is_ok(), "{held}");
        }
        assert!(table.push(RESOURCES).is_err());
    }

    #[test]
    fn one_call_gives_no_more_random_bytes_than_its_bound() {
        let mut guest = GuestState::of_test();
        let WasiCtxView { ctx, .. } = guest.ctx();
        let random = ctx.random();
        assert_eq!(random.get_random_bytes(RANDOM_BYTES).unwrap().len() as u64, RANDOM_BYTES);
        assert!(random.get_random_bytes(RANDOM_BYTES + 1).is_err());
    }
}
