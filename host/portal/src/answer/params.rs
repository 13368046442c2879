//! Reads query parameters. It refuses unknown and repeated ones, and limits each value.

use std::fmt::Display;
use std::str::FromStr;

use axum::extract::Query;
use axum::http::Uri;
use kubewitness_core::status::PHASES;
use kubewitness_core::views::{CauseKind, GoneFilter};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::{Problem, codes};

pub(crate) struct QueryParams(Vec<(String, String)>);

impl QueryParams {
    pub(crate) fn read(uri: &Uri, allowed: &[&str]) -> Result<Self, Problem> {
        let hint = || match allowed {
            [] => "It takes no parameters.".to_owned(),
            allowed => format!("It takes {}.", allowed.join(", ")),
        };
        let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|rejection| Problem::invalid_request(rejection.body_text(), hint()))?;
        for (index, (name, _)) in pairs.iter().enumerate() {
            if !allowed.contains(&name.as_str()) {
                let message = format!("`{name}` is no parameter of {}.", uri.path());
                return Err(Problem::with_code(codes::UNKNOWN_PARAMETER, message, hint()));
            }
            if pairs[..index].iter().any(|(other, _)| other == name) {
                let message = format!("`{name}` is there twice.");
                return Err(Problem::with_code(codes::UNKNOWN_PARAMETER, message, "Give it once."));
            }
        }
        Ok(Self(pairs))
    }

    /// An empty text counts as absent, because an untouched form sends it.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        let (_, value) = self.0.iter().find(|(known, _)| known == name)?;
        Some(value.trim()).filter(|value| !value.is_empty())
    }

    pub(crate) fn owned_text(&self, name: &str) -> Option<String> {
        self.text(name).map(str::to_owned)
    }

    pub(crate) fn optional_number(&self, name: &str) -> Result<Option<u64>, Problem> {
        self.text(name).map(|text| parse_number(name, text)).transpose()
    }

    /// The start of a part of a list.
    pub(crate) fn parse_cursor<C: FromStr>(&self, name: &str) -> Result<Option<C>, Problem> {
        self.text(name).map(|text| text.parse().map_err(|_| Problem::no_cursor(text))).transpose()
    }

    /// The number of rows, with `usual` as the default.
    pub(crate) fn row_limit(&self, usual: usize, most: usize) -> Result<usize, Problem> {
        match self.optional_number("limit")? {
            None => Ok(usual),
            Some(limit) if (1..=most as u64).contains(&limit) => Ok(limit as usize),
            Some(limit) => Err(Problem::invalid_request(
                format!("{limit} is out of bounds."),
                format!("`limit` is from 1 to {most}."),
            )),
        }
    }

    /// `true` or `false`; false if absent.
    pub(crate) fn is_true(&self, name: &str) -> Result<bool, Problem> {
        match self.text(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(other) => Err(Problem::invalid_request(
                format!("`{other}` is neither true nor false."),
                format!("`{name}` is one of them."),
            )),
        }
    }

    pub(crate) fn gone_filter(&self) -> Result<GoneFilter, Problem> {
        match self.text("gone") {
            None | Some("false") => Ok(GoneFilter::No),
            Some("true") => Ok(GoneFilter::Too),
            Some("only") => Ok(GoneFilter::Only),
            Some(other) => Err(Problem::invalid_request(
                format!("`{other}` is not known for `gone`."),
                "Use `true` to include objects that are gone, or `only` to list only them.",
            )),
        }
    }

    /// The same parameters with another value for one of them, for a link.
    pub(crate) fn link_with(&self, name: &str, value: &str) -> String {
        let others = self.0.iter().filter(|(known, value)| known != name && !value.trim().is_empty());
        let others = others.map(|(name, value)| (name.as_str(), value.as_str()));
        let pairs = others.chain([(name, value)]).filter(|(_, value)| !value.is_empty());
        let encoded =
            pairs.map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)));
        encoded.collect::<Vec<_>>().join("&")
    }

    /// The address of the next part of an API answer.
    pub(crate) fn next(&self, uri: &Uri, cursor: Option<impl Display>) -> Option<String> {
        cursor.map(|cursor| format!("{}?{}", uri.path(), self.link_with("cursor", &cursor.to_string())))
    }

    pub(crate) fn parse_cause(&self, name: &str) -> Result<Option<CauseKind>, Problem> {
        let Some(text) = self.text(name) else { return Ok(None) };
        CauseKind::parse(text).map(Some).ok_or_else(|| {
            let known = CauseKind::ALL.map(CauseKind::as_str).join(", ");
            Problem::invalid_request(format!("`{text}` is no cause."), format!("The causes are {known}."))
        })
    }

    pub(crate) fn parse_phase(&self, name: &str) -> Result<Option<&'static str>, Problem> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match PHASES.into_iter().find(|phase| phase.eq_ignore_ascii_case(text)) {
            Some(phase) => Ok(Some(phase)),
            None => {
                let hint = format!("The phases are {}.", PHASES.join(", "));
                Err(Problem::invalid_request(format!("`{text}` is no phase."), hint))
            }
        }
    }
}

pub(crate) fn parse_number(name: &str, text: &str) -> Result<u64, Problem> {
    text.parse().map_err(|_| {
        Problem::invalid_request(
            format!("`{text}` is no number."),
            format!("`{name}` is a whole number that is not negative."),
        )
    })
}
