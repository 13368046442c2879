//! The order of the objects in a list, across all of its pages.
//!
//! A page number would shift whenever objects come and go. So the next page begins after the position of the
//! last object, which is its value in the order and its uid.

use thiserror::Error;

use crate::state::{Seq, Status};

/// The value that objects are ordered by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OrderKey {
    /// The position of the last change.
    #[default]
    Changed,
    Created,
    Name,
    /// Within a namespace, ordered by name.
    Namespace,
    Phase,
    /// The attempt of the status.
    Restarts,
}

/// The words for the orders. A `-` before a word reverses its order.
pub const ORDERS: [&str; 12] = [
    "changed",
    "created",
    "name",
    "namespace",
    "phase",
    "restarts",
    "-changed",
    "-created",
    "-name",
    "-namespace",
    "-phase",
    "-restarts",
];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectOrder {
    pub by: OrderKey,
    /// Reversed: the oldest change, the oldest object, `z`, or the fewest restarts first.
    pub turned: bool,
}

/// The position of an object in an order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrderPosition {
    /// The key for names and phases. For a namespace it is the namespace, a space, and the name: no name
    /// contains a space, and a space sorts before all characters of names.
    pub text: String,
    /// The second key of a phase: a newer change has a lower number.
    pub number: u64,
    /// Empty if the number alone identifies the object.
    pub uid: String,
}

/// The fields of an object that determine its position.
#[derive(Clone, Copy, Debug)]
pub struct OrderFields<'a> {
    pub seq: Seq,
    /// In seconds; 0 if unknown.
    pub created_s: u32,
    pub namespace: &'a str,
    pub name: &'a str,
    pub status: &'a Status,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is no order: there are {list}, and each with a `-` before it to turn it around", list = ORDERS[..ORDERS.len() / 2].join(", "))]
pub struct UnknownOrder(pub String);

impl ObjectOrder {
    pub fn parse(text: &str) -> Result<Self, UnknownOrder> {
        let (turned, word) = text.strip_prefix('-').map_or((false, text), |word| (true, word));
        let by = match word {
            "changed" => OrderKey::Changed,
            "created" => OrderKey::Created,
            "name" => OrderKey::Name,
            "namespace" => OrderKey::Namespace,
            "phase" => OrderKey::Phase,
            "restarts" => OrderKey::Restarts,
            _ => return Err(UnknownOrder(text.to_owned())),
        };
        Ok(Self { by, turned })
    }

    pub fn word(self) -> &'static str {
        let by = match self.by {
            OrderKey::Changed => 0,
            OrderKey::Created => 1,
            OrderKey::Name => 2,
            OrderKey::Namespace => 3,
            OrderKey::Phase => 4,
            OrderKey::Restarts => 5,
        };
        ORDERS[by + if self.turned { ORDERS.len() / 2 } else { 0 }]
    }

    /// Whether greater values come first. Names and phases ascend; every other order begins with the
    /// greatest.
    pub fn is_descending(self) -> bool {
        matches!(self.by, OrderKey::Changed | OrderKey::Created | OrderKey::Restarts) != self.turned
    }

    pub fn position_of(self, object: &OrderFields<'_>, uid: impl FnOnce() -> String) -> OrderPosition {
        let text = |text: &str| text.to_owned();
        match self.by {
            OrderKey::Changed => OrderPosition { number: object.seq, ..OrderPosition::default() },
            OrderKey::Phase => OrderPosition {
                text: text(&object.status.phase),
                number: u64::MAX - object.seq,
                ..OrderPosition::default()
            },
            OrderKey::Created => {
                OrderPosition { number: object.created_s.into(), uid: uid(), ..OrderPosition::default() }
            }
            OrderKey::Restarts => {
                OrderPosition { number: object.status.attempt.into(), uid: uid(), ..OrderPosition::default() }
            }
            OrderKey::Name => {
                OrderPosition { text: text(object.name), uid: uid(), ..OrderPosition::default() }
            }
            OrderKey::Namespace => {
                let text = format!("{} {}", object.namespace, object.name);
                OrderPosition { text, uid: uid(), ..OrderPosition::default() }
            }
        }
    }

    /// Whether one position precedes another.
    pub fn is_before(self, place: &OrderPosition, other: &OrderPosition) -> bool {
        if self.is_descending() { place > other } else { place < other }
    }
}

impl OrderPosition {
    /// The time of a change or of an end.
    pub fn at_seq(seq: Seq) -> Self {
        Self { number: seq, ..Self::default() }
    }

    /// The position as the cursor of a page: a number, a uid, and a text with arbitrary characters.
    pub fn as_page_cursor(&self) -> String {
        match (&*self.text, &*self.uid) {
            ("", "") => self.number.to_string(),
            (text, uid) => format!("{}/{uid}/{text}", self.number),
        }
    }

    pub fn parse(cursor: &str) -> Option<Self> {
        let mut parts = cursor.splitn(3, '/');
        let number = parts.next()?.parse().ok()?;
        let mut text = || parts.next().unwrap_or_default().to_owned();
        Some(Self { number, uid: text(), text: text() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_has_a_word_and_another_word_is_told_with_those_that_there_are() {
        for word in ORDERS {
            let order = ObjectOrder::parse(word).unwrap();
            assert_eq!((order.turned, order.word()), (word.starts_with('-'), word));
        }
        assert_eq!(ObjectOrder::parse("changed").unwrap(), ObjectOrder::default());
        for wrong in ["", "-", "--name", "queued", "Name"] {
            let error = ObjectOrder::parse(wrong).unwrap_err().to_string();
            assert!(
                error.contains("there are changed, created, name, namespace, phase, restarts"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_place_comes_back_from_its_cursor_whatever_the_name_is() {
        let places = [
            OrderPosition::at_seq(7),
            OrderPosition { text: "a/b c".into(), number: 0, uid: "u-1".into() },
            OrderPosition { text: "Running".into(), number: u64::MAX, uid: String::new() },
            OrderPosition { text: "a b".into(), number: 0, uid: "u-2".into() },
        ];
        for place in places {
            assert_eq!(OrderPosition::parse(&place.as_page_cursor()), Some(place));
        }
        assert_eq!(OrderPosition::parse("ended-7"), None);
    }

    #[test]
    fn the_newest_comes_first_and_names_ascend_unless_the_order_is_turned() {
        let before = |order: &str, a: &OrderPosition, b: &OrderPosition| {
            ObjectOrder::parse(order).unwrap().is_before(a, b)
        };
        assert!(before("changed", &OrderPosition::at_seq(2), &OrderPosition::at_seq(1)));
        assert!(before("-created", &OrderPosition::at_seq(1), &OrderPosition::at_seq(2)));
        let named = |name: &str| OrderPosition { text: name.into(), ..OrderPosition::default() };
        assert!(before("name", &named("a"), &named("b")) && before("-name", &named("b"), &named("a")));
        let status = Status { phase: "Failed".into(), ..Status::default() };
        let of = |seq| {
            let placed = OrderFields { seq, created_s: 0, namespace: "n", name: "x", status: &status };
            ObjectOrder { by: OrderKey::Phase, turned: false }.position_of(&placed, String::new)
        };
        assert!(before("phase", &of(9), &of(8)), "within a phase the newest change comes first");
        let in_namespace = |namespace, name| {
            let placed = OrderFields { seq: 1, created_s: 0, namespace, name, status: &status };
            ObjectOrder { by: OrderKey::Namespace, turned: false }.position_of(&placed, String::new)
        };
        let wanted = [("a", "x"), ("a", "z"), ("a-b", "y"), ("a.b", "y"), ("ab", "a")];
        let places = wanted.map(|(namespace, name)| in_namespace(namespace, name));
        assert!(places.is_sorted_by(|a, b| before("namespace", a, b)), "{places:?}");
    }
}
