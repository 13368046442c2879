//! Writes messages: about one object with its parts, and about many objects.

use serde_json::Value;

use super::note::PendingNote;
use crate::channels::{Message, Tone};
use crate::config::Config;
use crate::decide::MUTE;
use crate::decide::is_own;
use crate::facts::{self, Facts, clip_text, outcomes, text};
use crate::{report, template};

/// Limits for texts of operators and of objects.
const TITLE_BYTES: usize = 256;
const TEXT_BYTES: usize = 1024;
/// How many kinds of parts, and objects of a digest, are listed.
const PARTS_LISTED: usize = 5;
const OBJECTS_LISTED: usize = 10;

pub fn tone_of(phase: &str) -> Tone {
    match phase {
        "Succeeded" => Tone::Good,
        "Failed" => Tone::Bad,
        _ => Tone::Neutral,
    }
}

/// A message about `lead`, with the other states of its group that came within the settle time.
/// `counted` are parts without a note.
pub fn compose_one(
    config: &Config,
    lead: &PendingNote,
    others: &[PendingNote],
    counted: Vec<((String, String), u64)>,
) -> Message {
    let facts = &lead.facts;
    let is_parts = !is_own(facts, &lead.group);
    let own = config.title.as_ref().map(|title| facts::one_line(&template::fill_text(title, facts)));
    // If the object lacks every value of the configured title, the standard title is used.
    let title = match (own.filter(|title| !title.trim().is_empty()), is_parts) {
        (Some(title), _) => title,
        (None, false) => report::title(facts),
        (None, true) => of_parts(lead, others),
    };
    let mut lines = match &config.text {
        Some(own) => vec![template::fill_text(own, facts)],
        None => standard_texts(facts),
    };
    lines.extend(part_lines(others, counted));
    let lines: Vec<_> = lines.into_iter().filter(|line| !line.is_empty()).collect();
    Message {
        id: text(facts, "id").to_string(),
        title: clip_text(&facts::one_line(&title), TITLE_BYTES),
        text: format!(
            "{}\n{}",
            clip_text(&facts::clean_text(&lines.join("\n")), TEXT_BYTES),
            how_to_mute(config, lead, is_parts)
        ),
        link: link(config, facts),
        tone: tone_of(text(facts, "phase")),
        at_ms: kubewitness_sdk::time::parse(text(facts, "observedAt")).unwrap_or(lead.heard_ms),
        facts: facts.clone(),
    }
}

/// The cause, the object's own message, and the duration.
fn standard_texts(facts: &Facts) -> Vec<String> {
    let (reason, message) = (text(facts, "reason"), text(facts, "message"));
    let why = match (reason, message) {
        ("", message) => message.to_string(),
        (reason, "") => reason.to_string(),
        (reason, message) => format!("{reason}: {message}"),
    };
    let code = exit_code(facts).map(|code| format!("Exit code {code}"));
    let attempt = facts.get("attempt").and_then(Value::as_u64).filter(|attempt| *attempt > 0);
    let since = match text(facts, "previousPhase") {
        "" => format!("Since {}", text(facts, "observedAt")),
        previous => format!("Since {}, before that {previous}", text(facts, "observedAt")),
    };
    vec![
        text(facts, outcomes::WHY).to_string(),
        why,
        code.unwrap_or_default(),
        attempt.map(|attempt| format!("Attempt {attempt}")).unwrap_or_default(),
        since,
    ]
}

/// The number of occurrences of each text, in order of appearance. A list, because there are few, and each
/// kind of map adds 10 KB to the component.
fn count_each<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<(T, u64)> {
    let mut counts: Vec<(T, u64)> = Vec::new();
    for one in all {
        match counts.iter_mut().find(|(known, _)| *known == one) {
            Some((_, count)) => *count += 1,
            None => counts.push((one, 1)),
        }
    }
    counts
}

/// The kind of a part, and how it ended.
pub fn end_of_part(facts: &Facts) -> (String, String) {
    let of = |name| text(facts, name);
    let reason = if of("reason").is_empty() { String::new() } else { format!(" ({})", of("reason")) };
    let code = exit_code(facts).map(|code| format!(", exit code {code}")).unwrap_or_default();
    (of("kind").to_string(), format!("{}{reason}{code}", of("phase")))
}

fn exit_code(facts: &Facts) -> Option<i64> {
    facts.get("exitCode").and_then(Value::as_i64)
}

/// Such as `Pod: 3 Failed (OOMKilled), exit code 137`.
fn part_lines(others: &[PendingNote], mut more: Vec<((String, String), u64)>) -> Vec<String> {
    more.extend(count_each(others.iter().map(|note| end_of_part(&note.facts))));
    let counts = more.into_iter().take(PARTS_LISTED);
    counts.map(|((kind, what), count)| format!("{kind}: {count} {what}")).collect()
}

/// The title if only parts are reported, such as `Job vision/train: 64 × Pod Failed`.
fn of_parts(lead: &PendingNote, others: &[PendingNote]) -> String {
    let facts = &lead.facts;
    let of = |name| text(facts, name);
    let same = |note: &&PendingNote| ["kind", "phase"].iter().all(|name| text(&note.facts, name) == of(name));
    let count = 1 + others.iter().filter(same).count();
    let (kind, name) = (of("ownerKind"), of("ownerName"));
    format!("{kind} {}/{name}: {count} × {} {}", of("namespace"), of("kind"), of("phase"))
}

/// How to mute the object. The documents of parts lack their owner's annotations, so an owner is muted in the
/// controller's list. The controller may not know an owner whose kind has no subscription.
fn how_to_mute(config: &Config, lead: &PendingNote, is_parts: bool) -> String {
    let of = |name| text(&lead.facts, name);
    let namespace =
        if of("namespace").is_empty() { String::new() } else { format!(" -n {}", of("namespace")) };
    if lead.stands_in {
        return format!(
            "To hear no more of it: annotate its Pods with {MUTE}=true, or kubewitness mute{namespace}"
        );
    }
    let page = if is_parts || config.portal.is_empty() { "" } else { "mute it on its page, or " };
    let command = match is_parts {
        true => format!("kubewitness mute {}/{}{namespace}", lower(of("ownerKind")), of("ownerName")),
        false => {
            let kind = resource(of("group"), of("kind"));
            format!("kubectl annotate {kind} {}{namespace} {MUTE}=true", of("name"))
        }
    };
    format!("To hear no more of it: {page}{command}")
}

/// A kind with its group, as `kubectl` distinguishes kinds of the same name.
fn resource(group: &str, kind: &str) -> String {
    let group = if ["", "batch", "apps"].contains(&group) { String::new() } else { format!(".{group}") };
    lower(kind) + &group
}

fn lower(kind: &str) -> String {
    kind.to_ascii_lowercase()
}

fn link(config: &Config, facts: &Facts) -> String {
    if config.portal.is_empty() {
        return String::new();
    }
    let seq = facts.get("seq").and_then(Value::as_u64).unwrap_or_default();
    format!("{}/objects/{}?state={seq}", config.portal.trim_end_matches('/'), text(facts, "uid"))
}

/// One message about many objects. `more` is the number of outcomes that were counted and not kept, and
/// `before` the number of earlier digests without any message.
pub fn compose_digest(
    config: &Config,
    recipient: &str,
    messages: &[&Message],
    (more, before): (u64, u64),
    now_ms: u64,
) -> Message {
    let phases = count_each(messages.iter().map(|message| text(&message.facts, "phase").to_string()));
    let phases: Vec<_> = phases.into_iter().map(|(phase, count)| format!("{count} {phase}")).collect();
    let all = messages.len() as u64 + more;
    let mut lines: Vec<_> =
        messages.iter().take(OBJECTS_LISTED).map(|message| message.title.clone()).collect();
    if all > lines.len() as u64 {
        lines.push(format!("… and {} more", all - lines.len() as u64));
    }
    let page = match config.portal.as_str() {
        "" => String::new(),
        portal => format!(", or mute a namespace on {}/mutes", portal.trim_end_matches('/')),
    };
    lines.push(format!("To hear no more of one: annotate it with {MUTE}=true{page}"));
    let bad = messages.iter().any(|message| message.tone == Tone::Bad);
    // Receivers drop a message whose id they have already.
    let first = messages.first().map_or_else(|| before.to_string(), |message| message.id.clone());
    let facts = [("digest".to_string(), Value::from(all)), ("phase".to_string(), phases.join(", ").into())];
    Message {
        id: format!("digest/{recipient}/{}/{all}/{first}", messages.len()),
        title: match phases.is_empty() {
            true => format!("{all} outcomes"),
            false => format!("{all} outcomes: {}", phases.join(", ")),
        },
        text: lines.join("\n"),
        link: config.portal.clone(),
        tone: if bad { Tone::Bad } else { Tone::Neutral },
        at_ms: messages.first().map_or(now_ms, |message| message.at_ms),
        facts: facts::map(facts),
    }
}
