//! Query parameters: those that are known, each once, each bounded.

use axum::extract::Query;
use axum::http::Uri;
use kubewitness_core::status::PHASES;

use super::Problem;

pub(crate) struct Params(Vec<(String, String)>);

impl Params {
    pub(crate) fn read(uri: &Uri, allowed: &[&str]) -> Result<Self, Problem> {
        let hint = || match allowed {
            [] => "It takes no parameters.".to_owned(),
            allowed => format!("It takes {}.", allowed.join(", ")),
        };
        let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|rejection| Problem::invalid(rejection.body_text(), hint()))?;
        for (index, (name, _)) in pairs.iter().enumerate() {
            if !allowed.contains(&name.as_str()) {
                return Err(Problem::invalid(format!("`{name}` is no parameter of {}.", uri.path()), hint()));
            }
            if pairs[..index].iter().any(|(other, _)| other == name) {
                return Err(Problem::invalid(format!("`{name}` is there twice."), "Give it once."));
            }
        }
        Ok(Self(pairs))
    }

    /// An empty text is as good as none: that is what an untouched form sends.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        let (_, value) = self.0.iter().find(|(known, _)| known == name)?;
        Some(value.trim()).filter(|value| !value.is_empty())
    }

    pub(crate) fn owned(&self, name: &str) -> Option<String> {
        self.text(name).map(str::to_owned)
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Problem> {
        self.text(name).map(|text| number(name, text)).transpose()
    }

    /// The number of rows, `usual` where none is asked for.
    pub(crate) fn limit(&self, usual: usize, most: usize) -> Result<usize, Problem> {
        match self.number("limit")? {
            None => Ok(usual),
            Some(limit) if (1..=most as u64).contains(&limit) => Ok(limit as usize),
            Some(limit) => Err(Problem::invalid(
                format!("{limit} is out of bounds."),
                format!("`limit` is from 1 to {most}."),
            )),
        }
    }

    pub(crate) fn phase(&self) -> Result<Option<&'static str>, Problem> {
        let Some(text) = self.text("phase") else { return Ok(None) };
        match PHASES.into_iter().find(|phase| phase.eq_ignore_ascii_case(text)) {
            Some(phase) => Ok(Some(phase)),
            None => {
                let hint = format!("There are {}.", PHASES.join(", "));
                Err(Problem::invalid(format!("`{text}` is no phase."), hint))
            }
        }
    }
}

pub(crate) fn number(name: &str, text: &str) -> Result<u64, Problem> {
    text.parse().map_err(|_| {
        Problem::invalid(
            format!("`{text}` is no number."),
            format!("`{name}` is a whole number that is not negative."),
        )
    })
}
