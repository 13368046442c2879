//! Parses faults from JSON documents.

use serde_json::Value;

use super::{
    FaultKind, FaultPoint, GARBAGE, GARBAGE_ITEM, ITEM_WITHOUT_METADATA, InjectedFault, WITHOUT_METADATA,
};

impl InjectedFault {
    /// The error says what is wrong with the document or the fault.
    pub fn parse(document: &Value) -> Result<Self, String> {
        let text = |name: &str| document[name].as_str().map(str::to_owned);
        let what = what(document)?;
        let number = |name: &str| number(document, name);
        Ok(InjectedFault {
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

fn what(document: &Value) -> Result<FaultKind, String> {
    let needed = |name: &str| number(document, name)?.ok_or_else(|| format!("{name} is missing"));
    let code = |default: u16| -> Result<u16, String> {
        let code = number(document, "code")?.unwrap_or(default.into());
        u16::try_from(code).ok().filter(|c| (400..600).contains(c)).ok_or_else(|| format!("code {code}"))
    };
    let at = || -> Result<FaultPoint, String> {
        Ok(match (number(document, "at")?, number(document, "within")?) {
            (Some(at), None) => FaultPoint::Exactly(at),
            (None, Some(within)) => FaultPoint::Within(within),
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
            FaultKind::Refuse { code: code(503)?, retry_after }
        }
        "too-large" => FaultKind::TooLarge,
        "expired" => FaultKind::Expired,
        "expired-event" => FaultKind::ExpiredEvent(at()?),
        "expired-as-status" => FaultKind::ExpiredAsStatus,
        "expired-continue" => FaultKind::ExpiredContinue,
        "refuse-exact" => FaultKind::RefuseExact { code: code(400)? },
        "ignore-exact" => FaultKind::IgnoreExact,
        "refuse-initial-events" => FaultKind::RefuseInitialEvents { code: code(422)? },
        "ignore-initial-events" => FaultKind::IgnoreInitialEvents,
        "hang" => FaultKind::Hang,
        "hang-up" => FaultKind::HangUp,
        "slow" => FaultKind::Slow { bytes_per_second: needed("bytesPerSecond")? },
        "chunks" => FaultKind::Chunks { size: usize::try_from(needed("size")?).unwrap_or(usize::MAX) },
        "cut" => FaultKind::Cut(at()?),
        "end" => FaultKind::End(at()?),
        "silent" => FaultKind::Silent(at()?),
        "end-before" => FaultKind::EndBefore(at()?),
        "duplicate" => FaultKind::Duplicate(at()?),
        "swap" => FaultKind::Swap(at()?),
        "drop" => FaultKind::Drop(at()?),
        "no-bookmarks" => FaultKind::NoBookmarks,
        "insert" => FaultKind::Insert { at: at()?, frame: named("frame", GARBAGE, WITHOUT_METADATA)? },
        "insert-item" => FaultKind::InsertItem { item: named("item", GARBAGE_ITEM, ITEM_WITHOUT_METADATA)? },
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
        let fault = InjectedFault::always(FaultKind::Cut(FaultPoint::Within(100)))
            .verb("watch")
            .on("pods")
            .after(2)
            .one_in(3);
        assert_eq!(InjectedFault::parse(&document), Ok(fault));
        let refused = InjectedFault::parse(&json!({"fault": "refuse", "code": 429, "retryAfter": 2}));
        assert_eq!(refused, Ok(InjectedFault::once(FaultKind::Refuse { code: 429, retry_after: Some(2) })));
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
            assert_eq!(InjectedFault::parse(&document).unwrap_err(), why);
        }
    }
}
