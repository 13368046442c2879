//! Notifies people, in two steps. A call with states notes the news: one key of `kv` for each state, so that
//! calls in several instances never write the same key. A tick moves the notes into the [`OutboxBook`],
//! decides what is due, and sends. No call runs during a tick, so only the tick reads and writes the book. It
//! knows no service: `channels` do.
//!
//! Sending inside a call was rejected: one unreachable recipient would make the state come again for all of
//! them. Notes commit with the progress of the states. From then on the book remembers who still needs the
//! message, so an unreachable recipient repeats nothing for the others, and delays no state.

mod compose;
mod note;
mod order;
pub mod outbox;
mod outbox_limits;
mod outcomes;
mod parts;

use std::collections::BTreeSet;

use kubewitness_sdk::{clock, kv, log};
use serde::de::DeserializeOwned;

use crate::answer::SendAnswer;
use crate::channels;
use crate::config::Config;
use crate::mutes::StoredMutes;
use crate::{facts, report};
pub use note::handle;
use note::{COUNTS, NOTES, NoteCounts, PendingNote};
use outbox::{MessageSending, OutboxBook};

/// The key of the book.
const BOOK: &str = "book";
/// How many counts, and parts of objects, one tick reads; the next tick reads the rest. Each takes two of the
/// 4096 calls to the host that a tick has; notes, messages and reports need theirs. The test of a flood
/// counts them.
const TAKEN_A_TICK: u32 = 128;
/// How many messages one tick sends, and for how long: states wait meanwhile, and a tick has a time limit.
const SENDS: usize = 50;
const SENDING_MS: u64 = 3000;
/// The longest pause that is not reported. The rate limits of services delay a message by up to a minute.
const RATE_MS: u64 = 60_000;

pub fn tick(config: &Config) -> Result<(), String> {
    if config.is_direct() {
        return Ok(());
    }
    let now_ms = clock::now_ms();
    let stored = kv::get(BOOK)?;
    let mut book = match &stored {
        Some(bytes) => facts::read(bytes).map_err(|error| format!("the outbox can't be read: {error}"))?,
        None => OutboxBook::default(),
    };
    book.begin_tick(now_ms);
    take_counts(&mut book)?;
    for (key, heard) in stored_below(parts::PARTS, TAKEN_A_TICK)? {
        book.count_parts(heard);
        kv::delete(&key)?;
    }
    let mut notes: Vec<(String, PendingNote)> = stored_below(NOTES, note::MOST_NOTES)?;
    // An earlier version noted the uid alone.
    for (_, note) in notes.iter_mut().filter(|(_, note)| !note.group.contains('/')) {
        note.group = format!("{}/{}", facts::text(&note.facts, "namespace"), note.group);
    }
    book.remove_muted(config, &StoredMutes::read()?, &mut notes, now_ms);
    note::add_causes(config, &mut notes, now_ms);
    for key in book.take_in(config, now_ms, notes) {
        kv::delete(&key)?;
    }
    if let Some((recipient, _)) = book.crowded.first() {
        let messages: u64 = book.crowded.iter().map(|(_, count)| count).sum();
        let fields = [("first", recipient.as_str()), ("messages", &messages.to_string())];
        log::warn("the outbox is full: messages are counted, and told as a number", &fields);
    }
    send(config, &mut book, now_ms);
    let lost = book.forget_old(config, now_ms);
    if let Some((recipient, title)) = lost.first() {
        let fields = [("first", recipient.as_str()), ("title", title), ("messages", &lost.len().to_string())];
        log::error("messages were given up", &fields);
    }
    book.save_full_channels(config)?;
    let bytes = serde_json::to_vec(&book).map_err(|error| error.to_string())?;
    if stored.as_deref() != Some(&bytes) {
        kv::set(BOOK, &bytes)?;
    }
    // A tick that fails is undone, and the next one would send the same messages again.
    if let Err(error) = report::keep_reports(&book.reports) {
        log::warn(report::UNLISTED, &[("why", &error.text())]);
    }
    Ok(())
}

/// Reads the values that calls have stored below a prefix, with their keys.
fn stored_below<T: DeserializeOwned>(prefix: &str, most: u32) -> Result<Vec<(String, T)>, String> {
    let mut found = Vec::new();
    for key in kv::keys(prefix, most)? {
        let Some(bytes) = kv::get(&key)? else { continue };
        let one = facts::read(&bytes).map_err(|error| format!("the key {key} can't be read: {error}"))?;
        found.push((key, one));
    }
    Ok(found)
}

fn take_counts(book: &mut OutboxBook) -> Result<(), String> {
    let mut old = 0;
    for (key, counts) in stored_below::<NoteCounts>(COUNTS, TAKEN_A_TICK)? {
        old += counts.old;
        book.count(counts);
        kv::delete(&key)?;
    }
    if old > 0 {
        let (old, all) = (old.to_string(), book.old.to_string());
        log::info(
            "states that happened long ago were counted and not told",
            &[("states", &old), ("all", &all)],
        );
    }
    Ok(())
}

/// Sends what is due. After a failure, a channel gets no other message in this tick, so that it does not
/// delay the others.
fn send(config: &Config, book: &mut OutboxBook, begun_ms: u64) {
    let (mut down, mut sent) = (BTreeSet::new(), 0);
    for sending in book.due_sendings(config, begun_ms) {
        let channel = outbox_limits::channel_of(&sending.recipient).to_string();
        if down.contains(&channel) {
            continue;
        }
        let now_ms = clock::now_ms();
        if sent == SENDS || now_ms.saturating_sub(begun_ms) > SENDING_MS {
            return;
        }
        sent += 1;
        let answer = send_message(config, &sending);
        if matches!(answer, SendAnswer::Later { .. }) {
            down.insert(channel);
        }
        book.note_answer(config, &sending, &answer, now_ms);
    }
}

fn send_message(config: &Config, sending: &MessageSending) -> SendAnswer {
    let recipient = sending.recipient.as_str();
    let answer = match config.find_recipient(recipient) {
        Ok((channel, address)) => channels::send(channel, address, &sending.message),
        // The configuration has changed since the message was noted.
        Err(why) => SendAnswer::Refused(why),
    };
    let fields = |why: &'static str, text: &str| {
        log::warn(why, &[("recipient", recipient), ("title", &sending.message.title), ("why", text)]);
    };
    match &answer {
        SendAnswer::Taken | SendAnswer::Later { after_ms: Some(..=RATE_MS), .. } => {}
        SendAnswer::Later { why, .. } | SendAnswer::AddressLater(why) => {
            fields("a message was not taken, and is sent again later", why);
        }
        SendAnswer::Refused(why) => {
            fields("a message was refused, and is not sent again", why);
        }
    }
    answer
}

#[cfg(test)]
mod tests;
