//! The query of the page of jobs, and the addresses of related queries.

use axum::http::Uri;
use kubewitness_core::order::{ObjectOrder, UnknownOrder};
use kubewitness_core::story::outcomes;
use kubewitness_core::views::{CauseKind, GoneFilter, ObjectQuery};
use kubewitness_core::{calendar, kinds};

use crate::answer::params::QueryParams;
use crate::answer::{Problem, time};
use crate::pages::parts::encode;

/// Rows of a page.
pub(super) const ROWS: usize = 100;

pub(super) const RANGES: [(&str, &str); 5] = [
    ("", "any time"),
    ("hour", "the last hour"),
    ("day", "the last day"),
    ("week", "the last week"),
    ("custom", "the times below"),
];

const PARAMETERS: [&str; 14] = [
    "kind",
    "namespace",
    "labelSelector",
    "phase",
    "was",
    "cause",
    "search",
    "gone",
    "range",
    "since",
    "until",
    "at",
    "sort",
    "cursor",
];

fn unknown_order(error: &UnknownOrder) -> Problem {
    Problem::invalid_request(format!("{error}."), "Choose an order by a click on the head of its column.")
}

pub(super) struct JobsQuery {
    /// As typed; `all` for every kind.
    pub kind: String,
    pub namespace: Option<String>,
    pub labels: Option<String>,
    pub phase: Option<&'static str>,
    /// A phase in which the objects were.
    pub was: Option<&'static str>,
    /// The cause for which the objects ended badly.
    pub cause: Option<CauseKind>,
    pub search: Option<String>,
    pub gone: GoneFilter,
    pub range: &'static str,
    pub since: Option<String>,
    pub until: Option<String>,
    pub at: Option<String>,
    pub order: ObjectOrder,
    pub cursor: Option<String>,
}

impl JobsQuery {
    pub fn read(uri: &Uri) -> Result<Self, Problem> {
        let params = QueryParams::read(uri, &PARAMETERS)?;
        let range = params.text("range").unwrap_or_default();
        let Some((range, _)) = RANGES.into_iter().find(|(known, _)| *known == range) else {
            return Err(Problem::invalid_request(
                format!("`{range}` is no range of time."),
                "The ranges are hour, day, week, and custom with `since` and `until`.",
            ));
        };
        let since = params.owned_text("since");
        let until = params.owned_text("until");
        let (was, at, cause) =
            (params.parse_phase("was")?, params.owned_text("at"), params.parse_cause("cause")?);
        let is_of_past = was.is_some() || cause.is_some();
        let gone = match params.gone_filter()? {
            // Existing objects have not ended before any time.
            GoneFilter::No if !is_of_past && until.is_some() => GoneFilter::Only,
            // A query about the past includes ended objects, and so does a time of the end.
            GoneFilter::No if is_of_past || !range.is_empty() || since.is_some() || until.is_some() => {
                GoneFilter::Too
            }
            gone => gone,
        };
        let order = match params.text("sort") {
            Some(text) => ObjectOrder::parse(text).map_err(|error| unknown_order(&error))?,
            None => ObjectOrder::default(),
        };
        // A query about the past has its own order.
        let order = if at.is_none() && !is_of_past { order } else { ObjectOrder::default() };
        Ok(Self {
            kind: params.owned_text("kind").unwrap_or_else(|| "Job".into()),
            namespace: params.owned_text("namespace"),
            labels: params.owned_text("labelSelector"),
            phase: params.parse_phase("phase")?,
            was,
            cause,
            search: params.owned_text("search"),
            gone,
            range,
            since,
            until,
            at,
            order,
            cursor: params.owned_text("cursor"),
        })
    }

    pub fn every_kind(&self) -> bool {
        self.kind.eq_ignore_ascii_case("all")
    }

    pub fn is_of_events(&self) -> bool {
        kinds::is_kind("", "Event", &self.kind)
    }

    pub fn may_have_causes(&self) -> bool {
        outcomes::may_have_causes(&self.kind)
    }

    /// False if the column would be empty. A past moment has no causes.
    pub fn shows_causes(&self) -> bool {
        self.may_have_causes() && self.at.is_none()
    }

    /// Why the list is not updated live; `None` if it shows the present.
    pub fn stillness(&self) -> Option<&'static str> {
        if self.at.is_some() {
            Some("a past moment")
        } else if !self.has_order() || self.gone == GoneFilter::Only {
            Some("a list of the past")
        } else {
            self.cursor.is_some().then_some("only the first page follows")
        }
    }

    /// A query about the past has its own order.
    pub fn has_order(&self) -> bool {
        self.at.is_none() && self.was.is_none() && self.cause.is_none()
    }

    /// False if it shows every existing object of the kind.
    pub fn is_narrowed(&self) -> bool {
        self.namespace.is_some()
            || self.labels.is_some()
            || self.phase.is_some()
            || self.search.is_some()
            || self.is_of_time()
    }

    pub fn is_of_time(&self) -> bool {
        self.gone != GoneFilter::No || !self.has_order()
    }

    pub fn object_query(&self, now_ms: u64) -> ObjectQuery {
        let hours = match self.range {
            "hour" => Some(1),
            "day" => Some(24),
            "week" => Some(7 * 24),
            _ => None,
        };
        let since =
            hours.map(|hours: u64| calendar::format_rfc3339(now_ms.saturating_sub(hours * 3_600_000)));
        let typed = |text: &Option<String>| text.as_deref().map(time::normalize_typed_time);
        ObjectQuery {
            kind: Some(self.kind.clone()),
            namespace: self.namespace.clone(),
            label_selector: self.labels.clone(),
            phase: self.phase.map(str::to_owned),
            was: self.was.map(str::to_owned),
            cause: self.cause,
            search: self.search.clone(),
            gone: self.gone,
            since: typed(&self.since).or(since),
            until: typed(&self.until),
            at: typed(&self.at),
            sort: self.sort_word().map(str::to_owned),
            cursor: self.cursor.clone(),
            details: true,
            limit: Some(ROWS),
            ..ObjectQuery::default()
        }
    }

    /// In the form of an address; `None` for the default.
    pub fn sort_word(&self) -> Option<&'static str> {
        Some(self.order.word()).filter(|_| self.order != ObjectOrder::default())
    }

    /// The address of this page with another value of one parameter. It leads to the first page, unless the
    /// parameter is the cursor.
    pub fn address_with(&self, name: &str, value: Option<&str>) -> String {
        let gone = match self.gone {
            GoneFilter::No => None,
            GoneFilter::Too => Some("true"),
            GoneFilter::Only => Some("only"),
        };
        let mut address = String::from("/");
        let pairs = [
            ("kind", Some(self.kind.as_str())),
            ("namespace", self.namespace.as_deref()),
            ("labelSelector", self.labels.as_deref()),
            ("phase", self.phase),
            ("was", self.was),
            ("cause", self.cause.map(CauseKind::as_str)),
            ("search", self.search.as_deref()),
            ("gone", gone),
            ("range", Some(self.range).filter(|range| !range.is_empty())),
            ("since", self.since.as_deref()),
            ("until", self.until.as_deref()),
            ("at", self.at.as_deref()),
            ("sort", self.sort_word()),
            ("cursor", None),
        ];
        for (known, kept) in pairs {
            let value = if known == name { value } else { kept };
            if let Some(value) = value {
                let sign = if address.len() == 1 { '?' } else { '&' };
                address.push_str(&format!("{sign}{known}={}", encode(value)));
            }
        }
        address
    }
}
