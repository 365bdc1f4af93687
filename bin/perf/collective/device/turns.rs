//! The library and what it is held against, taking turns.

use anyhow::Result;

use super::Limit;
use crate::perf::barrier::Ensemble;
use crate::perf::contest::{Company, Effort, Field, Outcome, Turns, take_turns};
use crate::perf::duet::Duet;
use crate::perf::lane::Lane;

/// What came of all turns.
pub(super) struct Race {
    turns: Turns,
    /// The lanes that are limits.
    limits: std::ops::Range<usize>,
}

impl Race {
    /// What the test with this index has to show against each limit, with so many `wrong` elements; on the rank that leads.
    pub(super) fn outcome(&self, test: usize, wrong: u64) -> Outcome {
        let against = |lane: usize| self.turns.verdict(test, move |samples| samples[lane].clone());
        let alone = || self.turns.verdict(test, |_| Vec::new());
        let verdicts = match self.limits.len() {
            0 => alone().into_iter().collect(),
            _ => self.limits.clone().filter_map(against).collect(),
        };
        Outcome { verdicts, operations: self.turns.operations, wrong }
    }

    /// What was measured.
    pub(super) fn turns(&self) -> &Turns {
        &self.turns
    }
}

/// Lets `lanes` and then `limits` take turns as `field` says: two ranks as a duet, where there is one, and otherwise all.
///
/// # Errors
/// Whatever a lane fails with; a limit that gets elements wrong.
pub(super) fn race<'l>(
    (duet, ensemble): (&mut Option<&mut Duet>, &mut Ensemble),
    mut lanes: Vec<&'l mut dyn Lane>,
    limits: &'l mut [Limit<'_>],
    field: Field,
    effort: Effort,
) -> Result<Race> {
    let company = match duet {
        Some(duet) if ensemble.n_ranks() == 2 => Company::Two(duet),
        _ => Company::All(ensemble),
    };
    let first = lanes.len();
    lanes.extend(limits.iter_mut().map(|(_, lane)| &mut **lane as &mut dyn Lane));
    let turns = take_turns(company, &mut lanes, field, effort)?;
    let wrong: u64 = lanes[first..].iter().map(|lane| lane.wrong()).sum();
    anyhow::ensure!(wrong == 0, "the limit got {wrong} elements wrong");
    Ok(Race { turns, limits: first..lanes.len() })
}
