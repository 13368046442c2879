//! The book's reports about each message, by recipient: its result, or until when it waits.

use kubewitness_sdk::time::rfc3339;

use super::note::PendingNote;
use super::outbox::{MessageSending, OutboxBook};
use crate::answer::SendAnswer;
use crate::config::Config;
use crate::facts::text;
use crate::report::{self, Report};

impl OutboxBook {
    pub(super) fn report_notes<'n>(
        &mut self,
        config: &Config,
        notes: impl Iterator<Item = &'n PendingNote>,
        what: (&'static str, &str),
        now_ms: u64,
    ) {
        for note in notes {
            let of =
                |to: &String| Report::of(config, &note.facts, to, what, report::title(&note.facts), now_ms);
            self.reports.extend(note.to.iter().map(of));
        }
    }

    /// Reports once for each message until when its recipient gets nothing. Messages in quiet hours have such
    /// a report already.
    pub(super) fn report_pause(&mut self, config: &Config, to: &str, until_ms: u64, now_ms: u64) {
        let why =
            format!("until {}: its recipient has had as many messages as `digest` allows", rfc3339(until_ms));
        for outgoing in
            self.outbox.iter().filter(|outgoing| outgoing.since_ms == now_ms && outgoing.to.contains(to))
        {
            let facts = &outgoing.message.facts;
            if !config.is_held(to, text(facts, "phase"), now_ms) {
                let title = outgoing.message.title.clone();
                self.reports.push(Report::of(config, facts, to, ("waiting", &why), title, now_ms));
            }
        }
    }

    /// `next_ms` is the time of the next try, if there is one.
    pub(super) fn report_answer(
        &mut self,
        config: &Config,
        sending: &MessageSending,
        answer: &SendAnswer,
        next_ms: u64,
        now_ms: u64,
    ) {
        // The text of a digest and a service's answer to it also concern objects that a reader of this report
        // may not see.
        let (result, why) = match Report::result(answer) {
            ("sent", _) if sending.is_digest => ("sent", "within a digest"),
            (result, _) if sending.is_digest => (result, "the digest was not taken, and the log says why"),
            alone => alone,
        };
        let again = if result == "waiting" { format!("until {}: ", rfc3339(next_ms)) } else { String::new() };
        let why = again + why;
        for outgoing in self.outbox.iter().filter(|outgoing| sending.tells.contains(&outgoing.message.id)) {
            let (facts, title) = (&outgoing.message.facts, outgoing.message.title.clone());
            let report = Report::of(config, facts, &sending.recipient, (result, &why), title, now_ms);
            self.reports.push(report);
        }
    }
}
