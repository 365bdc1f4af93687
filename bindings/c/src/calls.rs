//! Calls: what a function or a structure of C asks for, checked, and put to whatever takes calls.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};

use shmccl::comm::{Blocks, RecvBytes, RegisteredPlan, SendBytes, Submit};
use shmccl::reduce::{DataType, ReduceOp, Scalar};
use shmccl::shm::undivided::ForkMutex;
use shmccl::{Collectives, Rank, StatusHandle};

use crate::answer::answer;
use crate::arguments::{data_type, elements, required, unsigned};
use crate::comm_state::CommState;
use crate::failure::Failure;
use crate::operand::Operand;
use crate::types::{DataTypeCode, RedOpCode, shmcclResult_t};

/// The rank of a receive from whichever rank sends first.
pub const SHMCCL_ANY_SOURCE: c_int = -1;

/// An operation, for `shmcclCall_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum shmcclOperation_t {
    /// `shmcclAllReduce`.
    shmcclOpAllReduce = 0,
    /// `shmcclReduce`.
    shmcclOpReduce = 1,
    /// `shmcclBroadcast`.
    shmcclOpBroadcast = 2,
    /// `shmcclAllGather`.
    shmcclOpAllGather = 3,
    /// `shmcclReduceScatter`.
    shmcclOpReduceScatter = 4,
    /// `shmcclAlltoAll`.
    shmcclOpAlltoAll = 5,
    /// `shmcclGather`.
    shmcclOpGather = 6,
    /// `shmcclScatter`.
    shmcclOpScatter = 7,
    /// `shmcclAlltoAllv`.
    shmcclOpAlltoAllv = 8,
    /// `shmcclSend`, with a tag.
    shmcclOpSend = 9,
    /// `shmcclRecv`, with a tag and from any rank.
    shmcclOpRecv = 10,
}

/// An operation as it comes from C, where an enum may hold anything.
pub type OperationCode = u32;

/// One call with all its arguments, for `shmcclSubmit`. What an operation does not use is not
/// looked at: begin with zeros.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct shmcclCall_t {
    /// The size of this structure.
    pub size: usize,
    /// Which operation.
    pub operation: OperationCode,
    /// The type of elements.
    pub datatype: DataTypeCode,
    /// The operator of a reduction.
    pub op: RedOpCode,
    /// The root, or the peer of a message. `SHMCCL_ANY_SOURCE` receives from any rank.
    pub peer: c_int,
    /// The tag of a message, not negative. A message is received by its tag.
    pub tag: c_int,
    /// What is sent.
    pub sendbuff: *const c_void,
    /// Where to receive.
    pub recvbuff: *mut c_void,
    /// Elements, as the function of the operation counts them.
    pub count: usize,
    /// Elements of each block that is sent by `shmcclOpAlltoAllv`.
    pub sendcounts: *const usize,
    /// The first elements of these blocks.
    pub sdispls: *const usize,
    /// Elements of each block that is received.
    pub recvcounts: *const usize,
    /// The first elements of these blocks.
    pub rdispls: *const usize,
    /// One element by which this rank's input is multiplied before `shmcclSum`, or NULL. Of complex
    /// types it is the real part alone.
    pub scalar: *const c_void,
}

impl shmcclCall_t {
    /// A call of no elements.
    pub(crate) const fn new(operation: shmcclOperation_t, datatype: DataTypeCode) -> Self {
        Self {
            size: size_of::<Self>(),
            operation: operation as u32,
            datatype,
            op: 0,
            peer: 0,
            tag: 0,
            sendbuff: std::ptr::null(),
            recvbuff: std::ptr::null_mut(),
            count: 0,
            sendcounts: std::ptr::null(),
            sdispls: std::ptr::null(),
            recvcounts: std::ptr::null(),
            rdispls: std::ptr::null(),
            scalar: std::ptr::null(),
        }
    }
}

/// A call that is checked as far as C concerns it. Its buffers are the caller's until it is done.
pub(crate) struct Call {
    data_type: DataType,
    action: Action,
}

/// The operations, by what they need.
enum Action {
    AllReduce(Buffers, ReduceOp),
    Reduce(Buffers, ReduceOp, Rank),
    Broadcast(Buffers, Rank),
    AllGather(Buffers),
    ReduceScatter(Buffers, ReduceOp),
    AllToAll(Buffers),
    Gather(Buffers, Rank),
    Scatter(Buffers, Rank),
    AllToAllV(Buffers, Box<[Vec<usize>; 4]>),
    Send(SendBytes<'static>, Rank, u32),
    Recv(RecvBytes<'static>, Rank, u32),
    RecvAny(RecvBytes<'static>, u32, StatusHandle),
    RunPlan(Buffers, RegisteredPlan),
}

/// The buffers of a collective call.
enum Buffers {
    Apart(SendBytes<'static>, RecvBytes<'static>),
    InPlace(RecvBytes<'static>),
}

impl Call {
    /// Checks `asked` of the communicator of `state`.
    ///
    /// # Safety
    /// The pointers of `asked` are as the header says of its operation. Its buffers are the call's
    /// until it is done.
    pub(crate) unsafe fn check(state: &CommState, asked: &shmcclCall_t) -> Result<Self, Failure> {
        let data_type = data_type(asked.datatype)?;
        let reader = Reader { state, asked, data_type };
        // SAFETY: the caller's duties are the same.
        let action = unsafe { reader.action() }?;
        Ok(Self { data_type, action })
    }

    /// Checks a call by `plan`. Its buffers, both of `count` elements, are those of `asked`.
    ///
    /// # Safety
    /// Those of [`Call::check`].
    pub(crate) unsafe fn by_plan(
        state: &CommState,
        asked: &shmcclCall_t,
        plan: RegisteredPlan,
    ) -> Result<Self, Failure> {
        let data_type = data_type(asked.datatype)?;
        let reader = Reader { state, asked, data_type };
        // SAFETY: the caller's duties are the same.
        let buffers = unsafe { reader.buffers(asked.count, asked.count, InPlaceAt::Start) }?;
        Ok(Self { data_type, action: Action::RunPlan(buffers, plan) })
    }

    /// Returns where a receive from any rank tells whose message it was.
    pub(crate) fn status(&self) -> Option<StatusHandle> {
        match &self.action {
            Action::RecvAny(_, _, status) => Some(status.clone()),
            _ => None,
        }
    }

    /// Puts the call to `taker`.
    pub(crate) fn put<S: Submit<'static>>(self, taker: &mut S) -> shmccl::Result<()> {
        use Buffers::{Apart, InPlace};
        let mut taker = taker.untyped(self.data_type);
        match self.action {
            Action::AllReduce(Apart(send, recv), op) => taker.all_reduce(send, recv, &op),
            Action::AllReduce(InPlace(buffer), op) => taker.all_reduce_in_place(buffer, &op),
            Action::Reduce(Apart(send, recv), op, root) => taker.reduce(send, recv, &op, root),
            Action::Reduce(InPlace(buffer), op, root) => taker.reduce_in_place(buffer, &op, root),
            Action::Broadcast(Apart(send, recv), root) => taker.broadcast(send, recv, root),
            Action::Broadcast(InPlace(buffer), root) => taker.broadcast_in_place(buffer, root),
            Action::AllGather(Apart(send, recv)) => taker.all_gather(send, recv),
            Action::AllGather(InPlace(buffer)) => taker.all_gather_in_place(buffer),
            Action::ReduceScatter(Apart(send, recv), op) => taker.reduce_scatter(send, recv, &op),
            Action::ReduceScatter(InPlace(buffer), op) => taker.reduce_scatter_in_place(buffer, &op),
            Action::AllToAll(Apart(send, recv)) => taker.all_to_all(send, recv),
            Action::AllToAll(InPlace(buffer)) => taker.all_to_all_in_place(buffer),
            Action::Gather(Apart(send, recv), root) => taker.gather(send, recv, root),
            Action::Gather(InPlace(buffer), root) => taker.gather_in_place(buffer, root),
            Action::Scatter(Apart(send, recv), root) => taker.scatter(send, recv, root),
            Action::Scatter(InPlace(buffer), root) => taker.scatter_in_place(buffer, root),
            Action::AllToAllV(Apart(send, recv), blocks) => {
                let [sendcounts, sdispls, recvcounts, rdispls] = &*blocks;
                let (sent, received) = (Blocks::new(sendcounts, sdispls), Blocks::new(recvcounts, rdispls));
                taker.all_to_all_v(send, sent, recv, received)
            }
            Action::AllToAllV(InPlace(buffer), blocks) => {
                let [_, _, recvcounts, rdispls] = &*blocks;
                taker.all_to_all_v_in_place(buffer, Blocks::new(recvcounts, rdispls))
            }
            Action::Send(buffer, peer, tag) => taker.send_tagged(buffer, peer, tag),
            Action::Recv(buffer, peer, tag) => taker.recv_tagged(buffer, peer, tag),
            Action::RecvAny(buffer, tag, status) => taker.recv_any_into(buffer, tag, &status),
            Action::RunPlan(Apart(send, recv), plan) => taker.run_plan(plan, send, recv),
            Action::RunPlan(InPlace(buffer), plan) => taker.run_plan_in_place(plan, buffer),
        }
    }
}

/// Reads the arguments of a call.
struct Reader<'a> {
    state: &'a CommState,
    asked: &'a shmcclCall_t,
    data_type: DataType,
}

impl Reader<'_> {
    /// # Safety
    /// As for [`Call::check`].
    unsafe fn action(&self) -> Result<Action, Failure> {
        const ALL_REDUCE: u32 = shmcclOperation_t::shmcclOpAllReduce as u32;
        const REDUCE: u32 = shmcclOperation_t::shmcclOpReduce as u32;
        const BROADCAST: u32 = shmcclOperation_t::shmcclOpBroadcast as u32;
        const ALL_GATHER: u32 = shmcclOperation_t::shmcclOpAllGather as u32;
        const REDUCE_SCATTER: u32 = shmcclOperation_t::shmcclOpReduceScatter as u32;
        const ALL_TO_ALL: u32 = shmcclOperation_t::shmcclOpAlltoAll as u32;
        const GATHER: u32 = shmcclOperation_t::shmcclOpGather as u32;
        const SCATTER: u32 = shmcclOperation_t::shmcclOpScatter as u32;
        const ALL_TO_ALL_V: u32 = shmcclOperation_t::shmcclOpAlltoAllv as u32;
        const SEND: u32 = shmcclOperation_t::shmcclOpSend as u32;
        const RECV: u32 = shmcclOperation_t::shmcclOpRecv as u32;
        let (one, all) = (self.asked.count, self.blocks()?);
        // SAFETY: the caller of each answers for the buffers of the call.
        let buffers = |sent, received, block| unsafe { self.buffers(sent, received, block) };
        let own = self.state.rank().index();
        Ok(match self.asked.operation {
            ALL_REDUCE => Action::AllReduce(buffers(one, one, InPlaceAt::Start)?, self.op()?),
            REDUCE => {
                let root = self.peer()?;
                let received = if root == self.state.rank() { one } else { 0 };
                Action::Reduce(buffers(one, received, InPlaceAt::Start)?, self.op()?, root)
            }
            BROADCAST => {
                let root = self.peer()?;
                let sent = if root == self.state.rank() { one } else { 0 };
                Action::Broadcast(buffers(sent, one, InPlaceAt::Start)?, root)
            }
            ALL_GATHER => Action::AllGather(buffers(one, all, InPlaceAt::Received(own))?),
            REDUCE_SCATTER => Action::ReduceScatter(buffers(all, one, InPlaceAt::Sent(own))?, self.op()?),
            ALL_TO_ALL => Action::AllToAll(buffers(all, all, InPlaceAt::Start)?),
            GATHER => {
                let root = self.peer()?;
                let received = if root == self.state.rank() { all } else { 0 };
                Action::Gather(buffers(one, received, InPlaceAt::Received(own))?, root)
            }
            SCATTER => {
                let root = self.peer()?;
                let sent = if root == self.state.rank() { all } else { 0 };
                Action::Scatter(buffers(sent, one, InPlaceAt::Sent(own))?, root)
            }
            // SAFETY: the caller answers for the lists.
            ALL_TO_ALL_V => unsafe { self.all_to_all_v() }?,
            SEND => {
                let buffer = self.operand(self.asked.sendbuff, one, "sendbuff")?;
                // SAFETY: the caller answers for the buffer.
                Action::Send(unsafe { buffer.input() }, self.peer()?, self.tag()?)
            }
            RECV => {
                let buffer = self.operand(self.asked.recvbuff, one, "recvbuff")?;
                // SAFETY: the caller answers for the buffer.
                let buffer = unsafe { buffer.output() };
                match self.asked.peer {
                    SHMCCL_ANY_SOURCE => Action::RecvAny(buffer, self.tag()?, StatusHandle::new()),
                    _ => Action::Recv(buffer, self.peer()?, self.tag()?),
                }
            }
            other => {
                let text = format!("operation is {other}, which is no shmcclOperation_t");
                return Err(Failure::argument(text));
            }
        })
    }

    /// # Safety
    /// As for [`Call::check`].
    unsafe fn all_to_all_v(&self) -> Result<Action, Failure> {
        let n_ranks = self.state.n_ranks();
        let lists = [
            (self.asked.sendcounts, "sendcounts"),
            (self.asked.sdispls, "sdispls"),
            (self.asked.recvcounts, "recvcounts"),
            (self.asked.rdispls, "rdispls"),
        ];
        let mut blocks = [const { Vec::new() }; 4];
        for (block, (list, name)) in blocks.iter_mut().zip(lists) {
            // SAFETY: the caller answers for one number for each rank.
            *block = unsafe { elements(list, n_ranks, name) }?.to_vec();
        }
        // An empty block may stand anywhere, also past the end of the buffer.
        let [sendcounts, sdispls, recvcounts, rdispls] = &mut blocks;
        for (counts, displacements) in [(&*sendcounts, sdispls), (&*recvcounts, rdispls)] {
            let empty = counts.iter().zip(displacements).filter(|(count, _)| **count == 0);
            empty.for_each(|(_, displacement)| *displacement = 0);
        }
        let [sendcounts, sdispls, recvcounts, rdispls] = &blocks;
        let (sent, received) = (extent(sendcounts, sdispls)?, extent(recvcounts, rdispls)?);
        let send = self.operand(self.asked.sendbuff, sent, "sendbuff")?;
        let recv = self.operand(self.asked.recvbuff, received, "recvbuff")?;
        let is_in_place = recv.has_at(0, &send) && sendcounts == recvcounts && sdispls == rdispls;
        // SAFETY: the caller answers for the buffers.
        let buffers = unsafe { Buffers::of(send, recv, is_in_place.then_some(recv)) }?;
        Ok(Action::AllToAllV(buffers, Box::new(blocks)))
    }

    /// Returns the buffers of a call that sends and receives so many elements.
    ///
    /// # Safety
    /// As for [`Call::check`].
    unsafe fn buffers(&self, sent: usize, received: usize, at: InPlaceAt) -> Result<Buffers, Failure> {
        let send = self.operand(self.asked.sendbuff, sent, "sendbuff")?;
        let recv = self.operand(self.asked.recvbuff, received, "recvbuff")?;
        let block = |rank| rank * self.asked.count * self.data_type.size();
        let in_place = match at {
            InPlaceAt::Start => recv.has_at(0, &send).then_some(recv),
            InPlaceAt::Received(rank) => recv.has_at(block(rank), &send).then_some(recv),
            InPlaceAt::Sent(rank) => send.has_at(block(rank), &recv).then_some(send),
        };
        // A buffer of a rank that only sends or only receives is no call in place.
        let in_place = in_place.filter(|_| send.len() > 0 && recv.len() > 0);
        // SAFETY: the caller answers for the buffers.
        unsafe { Buffers::of(send, recv, in_place) }
    }

    fn operand(&self, start: *const c_void, count: usize, name: &str) -> Result<Operand, Failure> {
        let len = count.checked_mul(self.data_type.size()).ok_or_else(|| too_many(count))?;
        Operand::new(self.state, start, len, name)
    }

    /// Returns the elements in a block of `count` for each rank.
    fn blocks(&self) -> Result<usize, Failure> {
        let blocks = self.asked.count.checked_mul(self.state.n_ranks());
        blocks.ok_or_else(|| too_many(self.asked.count))
    }

    fn peer(&self) -> Result<Rank, Failure> {
        self.state.member(self.asked.peer, "the root or peer")
    }

    fn tag(&self) -> Result<u32, Failure> {
        unsigned(self.asked.tag, "tag")
    }

    fn op(&self) -> Result<ReduceOp, Failure> {
        let op = operator(self.asked.op)?;
        if self.asked.scalar.is_null() {
            return Ok(op);
        }
        if op != ReduceOp::Sum {
            return Err(Failure::argument(format!("op is {op} with a scalar, expected shmcclSum")));
        }
        // SAFETY: the caller answers for one element.
        unsafe { pre_mul_sum(self.asked.scalar, self.data_type) }
    }
}

/// The place of the second buffer of a call in place, in the first one.
#[derive(Clone, Copy)]
enum InPlaceAt {
    /// At its start: both are the same.
    Start,
    /// The block of this rank in what is received.
    Received(usize),
    /// The block of this rank in what is sent.
    Sent(usize),
}

impl Buffers {
    /// # Safety
    /// The bytes are the call's until it is done.
    unsafe fn of(send: Operand, recv: Operand, in_place: Option<Operand>) -> Result<Self, Failure> {
        if let Some(buffer) = in_place {
            // SAFETY: the caller's duties are the same.
            return Ok(Self::InPlace(unsafe { buffer.output() }));
        }
        send.check_apart(&recv)?;
        // SAFETY: the caller's duties are the same, and both lie apart.
        let send = unsafe { send.input() };
        // SAFETY: as above.
        let recv = unsafe { recv.output() };
        Ok(Self::Apart(send, recv))
    }
}

/// Returns the number of elements up to the end of the last block.
fn extent(counts: &[usize], displacements: &[usize]) -> Result<usize, Failure> {
    let ends = counts.iter().zip(displacements).filter(|(count, _)| **count > 0);
    let mut ends = ends.map(|(count, at)| at.checked_add(*count).ok_or_else(|| too_many(*count)));
    ends.try_fold(0, |most, end| Ok(most.max(end?)))
}

fn too_many(count: usize) -> Failure {
    Failure::argument(format!("count is {count}, expected no more elements than fit into memory"))
}

/// Operators that `shmcclRedOpCreatePreMulSum` has made, by their codes.
static OPERATORS: ForkMutex<Operators> =
    ForkMutex::new(Operators { made: BTreeMap::new(), next: FIRST_MADE });

/// The code of the first operator that is made.
const FIRST_MADE: RedOpCode = 0x100;

struct Operators {
    made: BTreeMap<RedOpCode, ReduceOp>,
    next: RedOpCode,
}

impl Operators {
    fn add(&mut self, operator: ReduceOp) -> RedOpCode {
        let code = self.next;
        self.made.insert(code, operator);
        self.next += 1;
        code
    }
}

fn operator(code: RedOpCode) -> Result<ReduceOp, Failure> {
    let plain = usize::try_from(code).ok().and_then(|code| ReduceOp::PLAIN.get(code).cloned());
    let made = || OPERATORS.with(|operators| operators.made.get(&code).cloned());
    let unknown = || Failure::argument(format!("op is {code}, which is no shmcclRedOp_t, or was destroyed"));
    plain.or_else(made).ok_or_else(unknown)
}

/// # Safety
/// `scalar` is NULL, or leads to one element of the type.
unsafe fn pre_mul_sum(scalar: *const c_void, dtype: DataType) -> Result<ReduceOp, Failure> {
    let dtype = dtype.real_type();
    // SAFETY: the caller answers for one element.
    let bytes = unsafe { elements(scalar.cast::<u8>(), dtype.size(), "scalar") }?;
    let scalar = Scalar::from_bytes(dtype, bytes).ok_or_else(|| Failure::null("scalar"))?;
    Ok(ReduceOp::PreMulSum(scalar))
}

/// Makes an operator that multiplies the input of this rank by `scalar`, and adds. Each rank has a
/// scalar of its own. `scalar` leads to one element of `datatype`, which is read now; of complex
/// types it is the real part alone.
///
/// # Safety
/// `scalar` is NULL, or leads to one element.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmcclRedOpCreatePreMulSum(
    op: Option<&mut RedOpCode>,
    scalar: *const c_void,
    datatype: DataTypeCode,
) -> shmcclResult_t {
    answer(|| {
        let target = required(op, "op")?;
        // SAFETY: the caller's duties are the same.
        let made = unsafe { pre_mul_sum(scalar, data_type(datatype)?) }?;
        *target = OPERATORS.with(|operators| operators.add(made));
        Ok(())
    })
}

/// Frees an operator. Calls that were made with it are not concerned.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclRedOpDestroy(op: RedOpCode) -> shmcclResult_t {
    answer(|| {
        let made = OPERATORS.with(|operators| operators.made.remove(&op));
        let text = format!("op is {op}, expected one of shmcclRedOpCreatePreMulSum");
        made.map(drop).ok_or_else(|| Failure::argument(text))
    })
}
