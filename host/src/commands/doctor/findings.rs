//! The findings of `doctor`, and how they are printed.

use serde::Serialize;

use super::codes::DoctorCode;
use crate::commands::CommandEnd;
use crate::commands::print::{clean_line, is_coloured};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingOutcome {
    Fine,
    Warning,
    Failed,
    /// It could not be checked, which says nothing about it.
    NotChecked,
}

impl FindingOutcome {
    fn sign_and_colour(self) -> (&'static str, &'static str) {
        match self {
            Self::Fine => ("✓", "\x1b[32m"),
            Self::Warning => ("!", "\x1b[33m"),
            Self::Failed => ("✗", "\x1b[31m"),
            Self::NotChecked => ("-", ""),
        }
    }
}

#[derive(Debug, Serialize)]
pub struct DoctorFinding {
    pub code: &'static str,
    pub outcome: FindingOutcome,
    pub title: &'static str,
    pub detail: String,
    /// The remedy; left out if there is nothing to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<&'static str>,
}

#[derive(Debug, Default)]
pub struct DoctorFindings(pub Vec<DoctorFinding>);

impl DoctorFindings {
    pub fn add(&mut self, code: &'static DoctorCode, outcome: FindingOutcome, detail: impl Into<String>) {
        let remedy =
            matches!(outcome, FindingOutcome::Warning | FindingOutcome::Failed).then_some(code.remedy);
        let finding =
            DoctorFinding { code: code.code, outcome, title: code.title, detail: detail.into(), remedy };
        self.0.push(finding);
    }

    pub fn command_end(&self) -> CommandEnd {
        let any = |outcome| self.0.iter().any(|finding| finding.outcome == outcome);
        match (any(FindingOutcome::Failed), any(FindingOutcome::Warning)) {
            (true, _) => CommandEnd::Failed,
            (false, true) => CommandEnd::Warned,
            (false, false) => CommandEnd::Fine,
        }
    }
}

/// One line for each finding, and the remedy below every sign that is not ✓. A remedy for several findings is
/// printed once.
pub fn text(findings: &[DoctorFinding]) -> String {
    let mut text = String::new();
    for (place, finding) in findings.iter().enumerate() {
        let (sign, colour) = finding.outcome.sign_and_colour();
        let sign = match is_coloured() && !colour.is_empty() {
            true => format!("{colour}{sign}\x1b[0m"),
            false => sign.to_owned(),
        };
        text.push_str(&format!(
            "{sign} {} {}: {}\n",
            finding.code,
            finding.title,
            clean_line(&finding.detail)
        ));
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
        let mut found = DoctorFindings::default();
        assert_eq!(found.command_end(), CommandEnd::Fine);
        found.add(&codes::API_SERVER, FindingOutcome::Fine, "https://x, v1.36.0");
        found.add(&codes::FOLDER, FindingOutcome::NotChecked, "no --data");
        assert_eq!(found.command_end(), CommandEnd::Fine);
        found.add(&codes::CLOCK, FindingOutcome::Warning, "7 s");
        assert_eq!(found.command_end(), CommandEnd::Warned);
        found.add(&codes::RIGHTS, FindingOutcome::Failed, "jobs\u{1b}[2J");
        found.add(&codes::RIGHTS, FindingOutcome::Failed, "pods");
        assert_eq!(found.command_end(), CommandEnd::Failed);
        assert_eq!(text(&found.0), include_str!("../golden/doctor.txt"));
    }

    #[test]
    fn programs_get_the_same() {
        let mut found = DoctorFindings::default();
        found.add(&codes::FOLDER, FindingOutcome::NotChecked, "no --data");
        let value = serde_json::to_value(&found.0).unwrap();
        assert_eq!(
            value,
            serde_json::json!([{"code": "KW-D006", "outcome": "not-checked", "detail": "no --data",
                "title": codes::FOLDER.title}])
        );
    }
}
