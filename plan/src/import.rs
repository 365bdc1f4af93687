//! MSCCL's XML as a plan.
//!
//! A block of an XML file talks to one peer each way over a channel, two-sided: what it sends waits
//! in a fifo until it is received. The plan has a *mailbox* for each: slots in the receiver's
//! scratch, a memory channel that signals data one way and credits the other. A sender waits for a
//! credit before it uses a slot again, and for all credits before it ends, so each launch finds the
//! mailboxes empty. Dependences between blocks become semaphores, one for each pair of steps.
//!
//! Tried by `plans imported::`.

mod lowering;
mod xml;

use std::path::Path;

use crate::check::{CheckReport, FindingKind, check};
use crate::plan::ExecutionPlan;
use crate::problem::{Place, Problem, RefusedPlan};
use crate::read::load;

/// The slots of a mailbox that are tried one after the other: a program may need more to not wait
/// for itself.
const SLOTS: &[usize] = &[2, 8, usize::MAX];

/// A plan that was imported, and what its check has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The plan.
    pub plan: ExecutionPlan,
    /// What was found in it.
    pub report: CheckReport,
}

/// Imports a file.
///
/// # Errors
/// Why it cannot be read, or is no program of MSCCL.
pub fn import_file(path: &Path) -> Result<Imported, RefusedPlan> {
    let name = path.display().to_string();
    let refuse = |what| RefusedPlan { file: name.clone(), problems: vec![Problem::new(Place::PLAN, what)] };
    let text = load(path).map_err(refuse)?;
    import(&name, &text)
}

/// Imports the text of the file called `file`.
///
/// # Errors
/// What is wrong with it.
pub fn import(file: &str, text: &[u8]) -> Result<Imported, RefusedPlan> {
    let refuse = |problems| RefusedPlan { file: file.to_owned(), problems };
    let one = |what: String| refuse(vec![Problem::new(Place::PLAN, what)]);
    let text = std::str::from_utf8(text).map_err(|_| one("no UTF-8; save it as UTF-8".to_owned()))?;
    let algorithm = xml::parse(text).map_err(one)?;
    let mut last = None;
    for &slots in SLOTS {
        let plan = lowering::lower(&algorithm, slots).map_err(one)?;
        let report = check(&plan, None).map_err(refuse)?;
        let is_stuck = report.worst() == Some(FindingKind::Deadlock);
        last = Some(Imported { plan, report });
        if !is_stuck {
            break;
        }
    }
    last.ok_or_else(|| one("no program; name a file of MSCCL".to_owned()))
}
