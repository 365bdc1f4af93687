//! Calls that are put together, and executed together.

use super::Communicator;
use super::collectives::{Standing, Submit};
use crate::collective::group::{self, Share};
use crate::collective::{Call, Manner};
use crate::error::{Error, Result};

/// Takes calls, of one communicator or several, and executes them at its end.
///
/// ```no_run
/// # use shmccl::{Collectives, Communicator, Group, Result};
/// # fn exchange(row: &mut Communicator, column: &mut Communicator) -> Result<()> {
/// let (mine, mut theirs, mut sum) = ([1_u32; 8], [0; 8], [0; 8]);
/// let (left, right) = (row.left(), row.right());
/// let mut group = Group::start();
/// let (row, column) = (group.join(row), group.join(column));
/// group.on(row).send(&mine, right)?;
/// group.on(row).recv(&mut theirs, left)?;
/// group.on(column).all_reduce(&mine, &mut sum, &shmccl::reduce::ReduceOp::Sum)?;
/// group.end()
/// # }
/// ```
///
/// The rules are those of NCCL. Sends and receives of a group never wait for each other, whatever their order: all move at once.
/// Between two ranks, what is sent first is received first. Operations of all ranks are executed in the order in which they
/// were put in, which is the same on all ranks of a communicator, before sends and receives; of several communicators each
/// rank may put in what it likes first. Small ones that follow each other cost little more than one.
///
/// Calls of a group are independent: none reads what another one of it writes. An argument that is wrong is an error of the call,
/// which is not put in then; everything else is one of [`Group::end`]. A group that is dropped executes nothing.
#[derive(Debug)]
pub struct Group<'a> {
    /// Starts that have not ended.
    depth: u32,
    parties: Vec<Party<'a>>,
}

/// A communicator in a group, and its calls.
#[derive(Debug)]
struct Party<'a> {
    comm: &'a mut Communicator,
    calls: Vec<Call<'a>>,
}

/// Names a communicator that has joined a [`Group`].
#[derive(Clone, Copy, Debug)]
pub struct Joined {
    index: usize,
    standing: Standing,
    manner: Manner,
}

/// Puts the calls of one communicator into a group: see [`Group::on`].
#[derive(Debug)]
pub struct OnGroup<'g, 'a> {
    group: &'g mut Group<'a>,
    joined: Joined,
}

impl<'a> Group<'a> {
    /// Starts a group, of nothing yet.
    #[must_use]
    pub const fn start() -> Self {
        Self { depth: 1, parties: Vec::new() }
    }

    /// Starts a group within this one, whose [`Group::end`] only counts: for a function that groups calls of its own, whether
    /// its caller does so too or not.
    pub const fn nest(&mut self) {
        self.depth = self.depth.saturating_add(1);
    }

    /// Has `comm` join. It makes its calls through the group until the end, by the name that is returned.
    pub fn join(&mut self, comm: &'a mut Communicator) -> Joined {
        let joined = Joined { index: self.parties.len(), standing: comm.standing(), manner: comm.manner };
        self.parties.push(Party { comm, calls: Vec::with_capacity(SOME) });
        joined
    }

    /// Takes the calls of `joined`.
    pub const fn on<'g>(&'g mut self, joined: Joined) -> OnGroup<'g, 'a> {
        OnGroup { group: self, joined }
    }

    /// Ends what was started last. The outermost end executes all calls, and returns when they are done.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when a rank sends itself what it does not receive, or the other way round: nothing has been
    /// executed then. [`Error::Unavailable`] when everything has ended already. Otherwise those of the calls; those that end the
    /// epoch leave it open how far the others have come.
    pub fn end(&mut self) -> Result<()> {
        self.depth = self.depth.checked_sub(1).ok_or(ENDED)?;
        if self.depth > 0 {
            return Ok(());
        }
        let mut shares = Vec::with_capacity(self.parties.len());
        for Party { comm, calls } in std::mem::take(&mut self.parties) {
            if !calls.is_empty() {
                let manner = comm.manner;
                shares.push(Share { engine: comm.engine()?, manner, calls });
            }
        }
        group::run(&mut shares)
    }
}

/// Calls of a communicator for which there is room without asking for more.
const SOME: usize = 16;

/// What is wrong with a call after the end.
const ENDED: Error = Error::Unavailable { operation: "a call in a group", needs: "one that has not ended" };

/// A call of a group waits for its end.
impl<'a> Submit<'a> for OnGroup<'_, 'a> {
    fn standing(&self) -> Standing {
        self.joined.standing
    }

    fn submit(&mut self, call: Call<'a>) -> Result<()> {
        if let (Some(algorithm), false) = (self.joined.manner.algorithm, call.operation.is_by_messages()) {
            algorithm.check(call.operation)?;
        }
        let party = self.group.parties.get_mut(self.joined.index).ok_or(ENDED)?;
        party.calls.push(call);
        Ok(())
    }
}
