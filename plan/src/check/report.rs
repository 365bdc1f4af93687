//! What a check has found.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::json;

use crate::escape::escaped;
use crate::problem::Place;

/// The most findings of a class that are kept.
const MAX_FINDINGS: usize = 200;

/// What kind of thing was found. The worst come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FindingKind {
    /// Blocks wait for each other, or for what nobody does.
    Deadlock,
    /// A result is not that of the collective.
    Value,
    /// Two accesses in no order, on every executor.
    Race,
    /// A channel or semaphore is left with more or less than it began with.
    Unbalanced,
    /// Two accesses in no order where a block is many threads, as on a GPU.
    RaceOnGpu,
    /// Some message makes an operation reach beyond scratch, and is refused.
    OutOfBounds,
    /// It depends on the schedule, or is too large, and was not decided.
    Undecided,
    /// A source of the proxy may be overwritten after the launch.
    MissingFlush,
    /// Data are ordered by relaxed signals only.
    RelaxedOrder,
    /// Ranks combine in different orders, so floats may differ in their last bits.
    UnequalOrder,
    /// The format does not say what the result should be.
    Unchecked,
}

impl FindingKind {
    /// Returns the name, as in a report.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Deadlock => "deadlock",
            Self::Race => "race",
            Self::Value => "value",
            Self::Unbalanced => "unbalanced",
            Self::RaceOnGpu => "race-gpu",
            Self::OutOfBounds => "out of bounds",
            Self::Undecided => "undecided",
            Self::MissingFlush => "missing flush",
            Self::RelaxedOrder => "relaxed signals only",
            Self::UnequalOrder => "order of reduction",
            Self::Unchecked => "unchecked",
        }
    }

    /// Returns whether a plan with such a finding is not proved right.
    #[must_use]
    pub fn is_error(self) -> bool {
        self <= Self::Undecided
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What kind of thing it is.
    pub kind: FindingKind,
    /// What is wrong, with both sites and the bytes.
    pub what: String,
    /// What would mend it.
    pub remedy: String,
    /// The operations that are part of it.
    pub places: Vec<Place>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It may name what the plan says it computes.
        write!(f, "{}: {}", self.kind.name(), escaped(&self.what))?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "; {}", self.remedy) }
    }
}

/// What was found for one class of sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassReport {
    /// Which sizes.
    pub about: String,
    /// The bytes of a chunk that stand for them.
    pub chunk: usize,
    /// The message with such chunks, which findings speak of.
    pub message: u64,
    /// The largest message that is too small for the class, where there is one.
    pub above: Option<u64>,
    /// What was found.
    pub findings: Vec<Finding>,
}

impl ClassReport {
    pub(super) fn add(&mut self, finding: Finding) {
        if self.findings.len() < MAX_FINDINGS && !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }

    pub(super) fn extend(&mut self, findings: impl IntoIterator<Item = Finding>) {
        findings.into_iter().for_each(|finding| self.add(finding));
    }

    /// Returns the worst kind of finding.
    #[must_use]
    pub fn worst(&self) -> Option<FindingKind> {
        self.findings.iter().map(|finding| finding.kind).min()
    }

    /// Returns the name of the worst error, or `clean`.
    #[must_use]
    pub fn verdict(&self) -> &'static str {
        verdict(self.worst())
    }

    /// Returns the kinds of findings that are no errors, each once.
    #[must_use]
    pub fn notes(&self) -> BTreeSet<FindingKind> {
        self.findings.iter().map(|finding| finding.kind).filter(|kind| !kind.is_error()).collect()
    }
}

/// Names the worst of what was found, if that is an error.
fn verdict(worst: Option<FindingKind>) -> &'static str {
    worst.filter(|kind| kind.is_error()).map_or("clean", FindingKind::name)
}

fn names(kinds: &BTreeSet<FindingKind>) -> Vec<&'static str> {
    kinds.iter().map(|kind| kind.name()).collect()
}

/// What was found in a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    /// The name of the algorithm.
    pub name: String,
    /// The name of its collective.
    pub collective: String,
    /// How many ranks.
    pub ranks: usize,
    /// The report of each class of sizes, the smallest first.
    pub classes: Vec<ClassReport>,
}

impl CheckReport {
    /// Returns whether the plan is proved right at all sizes that were checked.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        !self.classes.iter().any(|class| class.worst().is_some_and(FindingKind::is_error))
    }

    /// Returns whether a size was left undecided, and nothing wrong was found in any.
    #[must_use]
    pub fn is_undecided(&self) -> bool {
        self.worst() == Some(FindingKind::Undecided)
    }

    /// Returns the largest message up to which all are right, where only longer ones are not.
    #[must_use]
    pub fn right_up_to(&self) -> Option<u64> {
        let wrong = self.classes.iter().filter(|class| class.worst().is_some_and(FindingKind::is_error));
        wrong.map(|class| class.above).min()?
    }

    /// Returns the first finding of the worst kind, if that is an error.
    pub(crate) fn first_error(&self) -> Option<&Finding> {
        let findings = self.classes.iter().flat_map(|class| &class.findings);
        findings.filter(|finding| finding.kind.is_error()).min_by_key(|finding| finding.kind)
    }

    /// Returns the worst error of any class, or the worst note, or nothing.
    #[must_use]
    pub fn worst(&self) -> Option<FindingKind> {
        self.classes.iter().filter_map(ClassReport::worst).min()
    }

    /// Returns the name of the worst error of any class, or `clean`.
    #[must_use]
    pub fn verdict(&self) -> &'static str {
        verdict(self.worst())
    }

    /// Returns the kinds of findings of any class that are no errors, each once.
    #[must_use]
    pub fn notes(&self) -> BTreeSet<FindingKind> {
        self.classes.iter().flat_map(ClassReport::notes).collect()
    }

    /// Returns the report in JSON.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let finding = |finding: &Finding| {
            json!({
                "kind": finding.kind.name(),
                "error": finding.kind.is_error(),
                "what": finding.what,
                "remedy": finding.remedy,
                "places": finding.places.iter().map(Place::to_json).collect::<Vec<_>>(),
            })
        };
        let class = |class: &ClassReport| {
            json!({
                "sizes": class.about,
                "chunk": class.chunk,
                "message": class.message,
                "verdict": class.verdict(),
                "notes": names(&class.notes()),
                "findings": class.findings.iter().map(finding).collect::<Vec<_>>(),
            })
        };
        json!({
            "name": self.name,
            "collective": self.collective,
            "ranks": self.ranks,
            "clean": self.is_clean(),
            "verdict": self.verdict(),
            "right_up_to": self.right_up_to(),
            "notes": names(&self.notes()),
            "classes": self.classes.iter().map(class).collect::<Vec<_>>(),
        })
    }
}
