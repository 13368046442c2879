//! One instance of a component and its calls, each on the guest's clock. It distinguishes how a call ended:
//! by time, by memory, by an exit, or by a trap.

use std::sync::Arc;

use kubewitness_core::config::{Bytes, LimitsSpec};
use kubewitness_core::ports::{CallError, EffectSession};
use wasmtime::{Store, Trap, UpdateDeadline};

use crate::bindings::ticks::Occasion;
use crate::bindings::types::{FieldError, State, Verdict};
use crate::capability::clip_error_text;
use crate::component::{ComponentDescription, InstanceExports, PluginComponent};
use crate::guest::GuestState;
use crate::guest::batch::CallStates;
use crate::guest::clock::{SharedClock, TimeUp, run_timed};
use crate::guest::memory::GrowthRefusal;
use crate::tally::PluginTally;
use crate::turns::CpuTicket;

pub struct GuestInstance {
    store: Store<GuestState>,
    exports: InstanceExports,
    limits: LimitsSpec,
    /// Batches and ticks that it has handled.
    pub batches: u32,
}

impl GuestInstance {
    pub async fn new(
        component: &PluginComponent,
        config: Arc<str>,
        limits: &LimitsSpec,
        tally: Arc<PluginTally>,
        seat: Arc<CpuTicket>,
    ) -> Result<Self, CallError> {
        let guest =
            GuestState::new(limits, config, component.sandbox_engine().memory_budget(), tally, seat.clone());
        let (clock, fuel) = (guest.clock.clone(), guest.lifting_fuel());
        let mut store = Store::new(component.sandbox_engine().wasm_engine(), guest);
        store.limiter(|guest| &mut guest.memory);
        store.set_hostcall_fuel(fuel);
        store.epoch_deadline_callback(|context| {
            context.data().clock.note_tick()?;
            Ok(UpdateDeadline::Yield(1))
        });
        // An instance that returns from the host without a turn yields at once, and waits for a turn.
        store.call_hook(|mut context, hook| {
            if hook.exiting_host() && !context.data().seat.has_turn() {
                context.set_epoch_deadline(0);
            }
            Ok(())
        });
        store.set_epoch_deadline(1);
        let begun = flatten_result(run_timed(clock, seat, component.instantiate_in(&mut store)).await);
        store.data_mut().end_call();
        match begun {
            Ok(exports) => Ok(Self { store, exports, limits: limits.clone(), batches: 0 }),
            Err(error) => Err(call_error_of(store.data(), limits, &error)),
        }
    }

    /// Sets the ticket with which the next call waits for its turns.
    pub fn attach_ticket(&mut self, seat: Arc<CpuTicket>) {
        self.store.data_mut().seat = seat;
    }

    pub async fn call_describe(&mut self) -> Result<ComponentDescription, CallError> {
        let (clock, seat) = self.begin_call(None, CallStates::default());
        let call = self.exports.handler.kubewitness_plugin_handler().call_describe(&mut self.store);
        let answer = flatten_result(run_timed(clock, seat, call).await);
        let answer = self.end_call(answer).1?;
        Ok(answer.into())
    }

    /// The faults that the guest finds in a configuration.
    pub async fn check(&mut self, config: &str) -> Result<Vec<FieldError>, CallError> {
        let (clock, seat) = self.begin_call(None, CallStates::default());
        let call = self.exports.handler.kubewitness_plugin_handler().call_check(&mut self.store, config);
        let answer = flatten_result(run_timed(clock, seat, call).await);
        Ok(self.end_call(answer).1?.err().unwrap_or_default())
    }

    /// Delivers states within a session, and returns the session in any case.
    pub async fn call_handle(
        &mut self,
        session: Box<dyn EffectSession>,
        batch: CallStates,
        states: &[State<'_>],
    ) -> (Option<Box<dyn EffectSession>>, Result<Vec<Verdict>, CallError>) {
        self.batches += 1;
        let (clock, seat) = self.begin_call(Some(session), batch);
        self.store.data_mut().work.note_handed(states);
        let call = self.exports.handler.kubewitness_plugin_handler().call_handle(&mut self.store, states);
        let answer = flatten_result(run_timed(clock, seat, call).await);
        self.end_call(answer)
    }

    /// One tick within a session. An error reported by the plugin fails the tick like a trap, but keeps the
    /// instance.
    pub async fn call_tick(
        &mut self,
        session: Box<dyn EffectSession>,
        due_ms: u64,
    ) -> (Option<Box<dyn EffectSession>>, Result<Result<(), String>, CallError>) {
        self.batches += 1;
        let (clock, seat) = self.begin_call(Some(session), CallStates::default());
        let Some(ticker) = &self.exports.ticker else {
            let error = CallError::Protocol("it exports no `ticker`".into());
            return (self.store.data_mut().end_call(), Err(error));
        };
        let occasion = Occasion { due_ms, extra: &[] };
        let call = ticker.kubewitness_plugin_ticker().call_tick(&mut self.store, occasion);
        let answer = flatten_result(run_timed(clock, seat, call).await);
        self.end_call(answer)
    }

    fn begin_call(
        &mut self,
        session: Option<Box<dyn EffectSession>>,
        batch: CallStates,
    ) -> (SharedClock, Arc<CpuTicket>) {
        self.store.data_mut().begin_call(session, batch);
        self.store.set_epoch_deadline(1);
        let guest = self.store.data();
        (guest.clock.clone(), guest.seat.clone())
    }

    fn end_call<T>(
        &mut self,
        answer: wasmtime::Result<T>,
    ) -> (Option<Box<dyn EffectSession>>, Result<T, CallError>) {
        let answer = answer.map_err(|error| call_error_of(self.store.data(), &self.limits, &error));
        (self.store.data_mut().end_call(), answer)
    }
}

/// Treats a call that used up its time asleep like one that computed.
fn flatten_result<T>(call: Result<wasmtime::Result<T>, TimeUp>) -> wasmtime::Result<T> {
    call.unwrap_or_else(|up| Err(up.into()))
}

fn call_error_of(guest: &GuestState, limits: &LimitsSpec, error: &wasmtime::Error) -> CallError {
    if error.is::<TimeUp>() {
        return CallError::Timeout { limit_ms: u64::try_from(limits.call.0.as_millis()).unwrap_or(u64::MAX) };
    }
    match guest.memory.refused {
        Some(GrowthRefusal::Instance) => return CallError::Memory { limit_bytes: limits.memory.0 },
        Some(GrowthRefusal::All(most)) => {
            return CallError::Unavailable(format!(
                "all plugins together may hold {}, and this one wanted more (`spec.limits.plugins.totalMemory` of the \
                 host's settings)",
                Bytes(most as u64)
            ));
        }
        None => {}
    }
    let mut text = match (error.downcast_ref::<wasmtime_wasi::I32Exit>(), error.downcast_ref::<Trap>()) {
        (Some(exit), _) => format!("it exited with {}", exit.0),
        (None, Some(trap)) => trap.to_string(),
        (None, None) => error.root_cause().to_string(),
    };
    let stderr_text = guest.stderr.text();
    if !stderr_text.is_empty() {
        text = format!("{text}; it said: {stderr_text}");
    }
    clip_error_text(&mut text);
    CallError::Trap(text)
}
