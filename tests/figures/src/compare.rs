//! The figures that moved between two runs, and the check that they moved no more than the gate lets pass.

use std::fmt;

use crate::catalog::{Figure, FigureGuard, figure_of};
use crate::store::{FigureStore, RunRecords};

/// A figure beside what the repository keeps of it.
#[derive(Debug, PartialEq)]
pub struct FigureMove {
    pub figure: &'static Figure,
    pub old: Option<f64>,
    pub new: f64,
}

/// Why the gate fails.
#[derive(Debug, PartialEq)]
pub struct GuardViolation {
    moved: FigureMove,
    limit: f64,
}

pub fn moves(store: &FigureStore, recorded: &RunRecords) -> Vec<FigureMove> {
    let of = |(name, new): (&String, &f64)| {
        let (_, figure) = figure_of(name)?;
        Some(FigureMove { figure, old: store.value(name), new: *new })
    };
    recorded.figures.iter().filter_map(of).collect()
}

/// Those of the moves that are too far. A figure that the repository does not have yet may be anything.
pub fn violations(moves: Vec<FigureMove>) -> Vec<GuardViolation> {
    moves.into_iter().filter_map(FigureMove::violation).collect()
}

impl FigureMove {
    fn ratio(&self) -> Option<f64> {
        self.old.filter(|old| *old != 0.0).map(|old| self.new / old)
    }

    fn violation(self) -> Option<GuardViolation> {
        let ratio = self.ratio()?;
        let limit = match self.figure.guard {
            FigureGuard::Floor(share) if ratio < share => share,
            FigureGuard::Within(share) if ratio > 1.0 + share => 1.0 + share,
            FigureGuard::Within(share) if ratio < 1.0 - share => 1.0 - share,
            FigureGuard::None | FigureGuard::Floor(_) | FigureGuard::Within(_) => return None,
        };
        Some(GuardViolation { moved: self, limit })
    }
}

/// A row: name, old, new and ratio.
impl fmt::Display for FigureMove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = self.figure.unit;
        let old = self.old.map_or("-".into(), |old| unit.text(old));
        let ratio = self.ratio().map_or("new".into(), |ratio| format!("× {ratio:.2}"));
        write!(
            f,
            "{:<28} {old:>12} {:>12} {:<12} {ratio:>8}",
            self.figure.name,
            unit.text(self.new),
            unit.name()
        )
    }
}

impl fmt::Display for GuardViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FigureMove { figure, old, new } = &self.moved;
        let (unit, old) = (figure.unit, old.unwrap_or_default());
        write!(
            f,
            "{}: {} {} now, {} in the repository: × {:.3}, and × {:.2} is the limit ({})",
            figure.name,
            unit.text(*new),
            unit.name(),
            unit.text(old),
            new / old,
            self.limit,
            figure.what
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::machine::MeasuredRun;

    /// Returns the gate's words where the repository has the first value and the run the second.
    fn said(name: &str, old: f64, new: f64) -> Vec<String> {
        let recorded = |value| RunRecords {
            run: MeasuredRun::default(),
            figures: BTreeMap::from([(name.to_owned(), value)]),
        };
        let mut store = FigureStore::default();
        store.take(&recorded(old));
        violations(moves(&store, &recorded(new))).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_ratio_may_rise_and_fall_by_a_quarter() {
        assert_eq!(said("pipeline.gate.ratio", 0.8, 0.61), [""; 0]);
        assert_eq!(said("pipeline.gate.ratio", 0.8, 5.0), [""; 0]);
        let [one] = &said("pipeline.gate.ratio", 0.8, 0.59)[..] else { panic!("it fell too far") };
        assert!(one.starts_with("pipeline.gate.ratio: 0.59 times now, 0.80 in the repository"), "{one}");
    }

    #[test]
    fn a_count_may_move_by_a_twentieth_up_or_down() {
        assert_eq!(said("instructions.frame", 10_000.0, 10_499.0), [""; 0]);
        assert_eq!(said("instructions.frame", 10_000.0, 9_501.0), [""; 0]);
        let [up] = &said("instructions.frame", 10_000.0, 10_600.0)[..] else { panic!("it rose too far") };
        assert!(up.contains("10,600 instructions now, 10,000 in the repository: × 1.060"), "{up}");
        assert_eq!(said("instructions.frame", 10_000.0, 9_000.0).len(), 1);
    }

    #[test]
    fn what_ci_does_not_measure_may_be_anything() {
        assert_eq!(said("latency.p99", 1.0, 50.0), [""; 0]);
    }
}
