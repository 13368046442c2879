//! The findings of `doctor`, and how they are printed.

use serde::Serialize;

use super::codes::Code;
use crate::commands::End;
use crate::commands::print::{clean, is_coloured};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Fine,
    Warning,
    Failed,
    /// It could not be looked at, which says nothing about it.
    NotChecked,
}

impl Outcome {
    fn sign(self) -> (&'static str, &'static str) {
        match self {
            Self::Fine => ("✓", "\x1b[32m"),
            Self::Warning => ("!", "\x1b[33m"),
            Self::Failed => ("✗", "\x1b[31m"),
            Self::NotChecked => ("-", ""),
        }
    }
}

#[derive(Debug, Serialize)]
pub struct Finding {
    pub code: &'static str,
    pub outcome: Outcome,
    pub title: &'static str,
    pub detail: String,
    /// What to do; left out where there is nothing to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<&'static str>,
}

#[derive(Debug, Default)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    pub fn add(&mut self, code: &'static Code, outcome: Outcome, detail: impl Into<String>) {
        let remedy = matches!(outcome, Outcome::Warning | Outcome::Failed).then_some(code.remedy);
        let finding = Finding { code: code.code, outcome, title: code.title, detail: detail.into(), remedy };
        self.0.push(finding);
    }

    pub fn end(&self) -> End {
        let any = |outcome| self.0.iter().any(|finding| finding.outcome == outcome);
        match (any(Outcome::Failed), any(Outcome::Warning)) {
            (true, _) => End::Failed,
            (false, true) => End::Warned,
            (false, false) => End::Fine,
        }
    }
}

/// A line for each, and what to do below a sign that is not ✓. A remedy that several have is told once.
pub fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for (place, finding) in findings.iter().enumerate() {
        let (sign, colour) = finding.outcome.sign();
        let sign = match is_coloured() && !colour.is_empty() {
            true => format!("{colour}{sign}\x1b[0m"),
            false => sign.to_owned(),
        };
        text.push_str(&format!("{sign} {} {}: {}\n", finding.code, finding.title, clean(&finding.detail)));
        let is_last =
            !findings[place + 1..].iter().any(|later| later.code == finding.code && later.remedy.is_some());
        if let Some(remedy) = finding.remedy.filter(|_| is_last) {
            text.push_str(&format!("  {remedy}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::codes;
    use super::*;

    #[test]
    fn each_finding_is_a_line_with_its_sign_and_code_and_what_to_do() {
        let mut found = Findings::default();
        assert_eq!(found.end(), End::Fine);
        found.add(&codes::API_SERVER, Outcome::Fine, "https://x, v1.36.0");
        found.add(&codes::FOLDER, Outcome::NotChecked, "no --data");
        assert_eq!(found.end(), End::Fine);
        found.add(&codes::CLOCK, Outcome::Warning, "7 s");
        assert_eq!(found.end(), End::Warned);
        found.add(&codes::RIGHTS, Outcome::Failed, "jobs\u{1b}[2J");
        found.add(&codes::RIGHTS, Outcome::Failed, "pods");
        assert_eq!(found.end(), End::Failed);
        assert_eq!(text(&found.0), include_str!("../golden/doctor.txt"));
    }

    #[test]
    fn programs_get_the_same() {
        let mut found = Findings::default();
        found.add(&codes::FOLDER, Outcome::NotChecked, "no --data");
        let value = serde_json::to_value(&found.0).unwrap();
        assert_eq!(
            value,
            serde_json::json!([{"code": "KW-D006", "outcome": "not-checked", "detail": "no --data",
                "title": codes::FOLDER.title}])
        );
    }
}
