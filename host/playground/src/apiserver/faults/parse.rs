//! Parses faults from JSON documents.

use serde_json::Value;

use super::{At, Fault, GARBAGE, GARBAGE_ITEM, ITEM_WITHOUT_METADATA, WITHOUT_METADATA, What};

impl Fault {
    /// The error says what is wrong with the document or the fault.
    pub fn parse(document: &Value) -> Result<Self, String> {
        let text = |name: &str| document[name].as_str().map(str::to_owned);
        let what = what(document)?;
        let number = |name: &str| number(document, name);
        Ok(Fault {
            what,
            verb: text("verb"),
            resource: text("resource"),
            times: Some(number("times")?.unwrap_or(1)).filter(|times| *times > 0),
            skip: number("skip")?.unwrap_or(0),
            one_in: number("oneIn")?.unwrap_or(1),
        })
    }
}

fn number(document: &Value, name: &str) -> Result<Option<u64>, String> {
    match &document[name] {
        Value::Null => Ok(None),
        value => value.as_u64().map(Some).ok_or_else(|| format!("{name} cannot be {value}: a number")),
    }
}

fn what(document: &Value) -> Result<What, String> {
    let needed = |name: &str| number(document, name)?.ok_or_else(|| format!("{name} is missing"));
    let code = |default: u16| -> Result<u16, String> {
        let code = number(document, "code")?.unwrap_or(default.into());
        u16::try_from(code).ok().filter(|c| (400..600).contains(c)).ok_or_else(|| format!("code {code}"))
    };
    let at = || -> Result<At, String> {
        Ok(match (number(document, "at")?, number(document, "within")?) {
            (Some(at), None) => At::Exactly(at),
            (None, Some(within)) => At::Within(within),
            (None, None) => return Err("at or within is missing".to_owned()),
            (Some(_), Some(_)) => return Err("at or within, not both".to_owned()),
        })
    };
    let named = |name: &str, garbage: &str, bare: &str| match document[name].as_str() {
        Some("garbage") => Ok(garbage.to_owned()),
        Some("without-metadata") => Ok(bare.to_owned()),
        Some(text) => Ok(text.to_owned()),
        None => Err(format!("{name} is missing: garbage, without-metadata, or a text")),
    };
    Ok(match document["fault"].as_str().unwrap_or_default() {
        "refuse" => {
            let retry_after = number(document, "retryAfter")?.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
            What::Refuse { code: code(503)?, retry_after }
        }
        "too-large" => What::TooLarge,
        "expired" => What::Expired,
        "expired-event" => What::ExpiredEvent(at()?),
        "expired-as-status" => What::ExpiredAsStatus,
        "expired-continue" => What::ExpiredContinue,
        "refuse-exact" => What::RefuseExact { code: code(400)? },
        "ignore-exact" => What::IgnoreExact,
        "refuse-initial-events" => What::RefuseInitialEvents { code: code(422)? },
        "ignore-initial-events" => What::IgnoreInitialEvents,
        "hang" => What::Hang,
        "hang-up" => What::HangUp,
        "slow" => What::Slow { bytes_per_second: needed("bytesPerSecond")? },
        "chunks" => What::Chunks { size: usize::try_from(needed("size")?).unwrap_or(usize::MAX) },
        "cut" => What::Cut(at()?),
        "end" => What::End(at()?),
        "silent" => What::Silent(at()?),
        "end-before" => What::EndBefore(at()?),
        "duplicate" => What::Duplicate(at()?),
        "swap" => What::Swap(at()?),
        "drop" => What::Drop(at()?),
        "no-bookmarks" => What::NoBookmarks,
        "insert" => What::Insert { at: at()?, frame: named("frame", GARBAGE, WITHOUT_METADATA)? },
        "insert-item" => What::InsertItem { item: named("item", GARBAGE_ITEM, ITEM_WITHOUT_METADATA)? },
        other => return Err(format!("no fault is called {other:?}")),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_name_faults() {
        let document = json!({
            "fault": "cut", "within": 100, "verb": "watch", "resource": "pods", "times": 0, "skip": 2, "oneIn": 3,
        });
        let fault = Fault::always(What::Cut(At::Within(100))).verb("watch").on("pods").after(2).one_in(3);
        assert_eq!(Fault::parse(&document), Ok(fault));
        let refused = Fault::parse(&json!({"fault": "refuse", "code": 429, "retryAfter": 2}));
        assert_eq!(refused, Ok(Fault::once(What::Refuse { code: 429, retry_after: Some(2) })));
    }

    #[test]
    fn documents_that_make_no_sense_say_why() {
        for (document, why) in [
            (json!({"fault": "nap"}), "no fault is called \"nap\""),
            (json!({"fault": "cut"}), "at or within is missing"),
            (json!({"fault": "cut", "at": "x"}), "at cannot be \"x\": a number"),
            (json!({"fault": "slow"}), "bytesPerSecond is missing"),
            (json!({"fault": "refuse", "code": 200}), "code 200"),
        ] {
            assert_eq!(Fault::parse(&document).unwrap_err(), why);
        }
    }
}
