//! E-mail, through a granted mail server. Each person gets a separate message.

use kubewitness_sdk::mail;

use super::{Message, plain_text};
use crate::answer::SendAnswer;
use crate::config::Channel;
use crate::facts::{self, clip_text};

/// The host accepts 512 bytes.
const SUBJECT_BYTES: usize = 200;

pub fn send(channel: &Channel, address: &str, message: &Message) -> SendAnswer {
    let letter = mail_letter(address, message);
    match mail::send(channel.granted_name(), &letter) {
        Ok(refusals) => match refusals.first() {
            None => SendAnswer::Taken,
            Some(refusal) if refusal.permanent => SendAnswer::Refused(refusal.reason.clone()),
            Some(refusal) => SendAnswer::AddressLater(refusal.reason.clone()),
        },
        Err(error) => error.into(),
    }
}

fn mail_letter(address: &str, message: &Message) -> mail::Message {
    mail::Message {
        to: vec![address.to_string()],
        subject: clip_text(&facts::one_line(&message.title), SUBJECT_BYTES),
        text: format!("{}\n", plain_text(message)),
        html: None,
        // A person who gets the message twice sees it once.
        id: format!("{}/{address}", message.id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channels::tests::sample;

    #[test]
    fn a_letter_is_one_persons_and_its_subject_is_one_line() {
        let letter = mail_letter("ada@example.com", &Message { title: "Job a\r\nBcc: x".into(), ..sample() });
        assert_eq!(
            (letter.to, letter.subject.as_str()),
            (vec!["ada@example.com".to_string()], "Job a  Bcc: x")
        );
        let text = "OOMKilled: <2 of 8> pods & *all*\nExit code 137\nhttps://kw.example.com/objects/uid-train?state=7\n";
        assert_eq!(
            (letter.text.as_str(), letter.id.as_str()),
            (text, "jobs/0/batch/Job/uid-train/7/ada@example.com")
        );
    }
}
