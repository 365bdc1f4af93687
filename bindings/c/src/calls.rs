//! Calls: what a function or a structure of C asks for, checked, and submitted to whatever takes
//! calls.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};

use shmccl::collective::Operation;
use shmccl::comm::{Buffers, CollectiveCall, OwnedCall, Placement, RegisteredPlan};
use shmccl::reduce::{DataType, ReduceOp, Scalar};
use shmccl::shm::undivided::ForkMutex;
use shmccl::{MessageSelector, Rank, StatusHandle};

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
    /// `shmcclScan`.
    shmcclOpScan = 11,
    /// `shmcclExscan`.
    shmcclOpExscan = 12,
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

/// Declares which operation of the engine each one of the header is.
macro_rules! operations {
    ($($code:ident $operation:ident,)+) => {
        /// The operations: their names in the header, their codes, and what they are to the engine.
        pub const OPERATIONS: &[(&str, shmcclOperation_t, Operation)] =
            &[$((stringify!($code), shmcclOperation_t::$code, Operation::$operation)),+];
    };
}

operations! {
    shmcclOpAllReduce AllReduce, shmcclOpReduce Reduce, shmcclOpBroadcast Broadcast,
    shmcclOpAllGather AllGather, shmcclOpReduceScatter ReduceScatter, shmcclOpAlltoAll AllToAll,
    shmcclOpGather Gather, shmcclOpScatter Scatter, shmcclOpAlltoAllv AllToAllV,
    shmcclOpSend Send, shmcclOpRecv Recv, shmcclOpScan Scan, shmcclOpExscan ExScan,
}

/// Checks `asked` of the communicator of `state`, as far as C concerns it. Its buffers are the
/// caller's until it is done.
///
/// # Safety
/// The pointers of `asked` are as the header says of its operation. Its buffers are the call's
/// until it is done.
pub(crate) unsafe fn check(state: &CommState, asked: &shmcclCall_t) -> Result<OwnedCall, Failure> {
    let known = OPERATIONS.iter().find(|(_, code, _)| *code as OperationCode == asked.operation);
    let unknown = || format!("operation is {}, which is no shmcclOperation_t", asked.operation);
    let operation = match known.ok_or_else(|| Failure::argument(unknown()))?.2 {
        Operation::Recv if asked.peer == SHMCCL_ANY_SOURCE => Operation::RecvAny,
        operation => operation,
    };
    // SAFETY: the caller's duties are the same.
    unsafe { Reader::new(state, asked, operation) }?.call()
}

/// Checks a call by `plan`. Its buffers, both of `count` elements, are those of `asked`.
///
/// # Safety
/// Those of [`check`].
pub(crate) unsafe fn check_planned(
    state: &CommState,
    asked: &shmcclCall_t,
    plan: RegisteredPlan,
) -> Result<OwnedCall, Failure> {
    // SAFETY: the caller's duties are the same.
    let mut call = unsafe { Reader::new(state, asked, Operation::RunPlan) }?.call()?;
    call.call.plan = Some(plan);
    Ok(call)
}

/// Reads the arguments of a call, whose pointers are as the header says of its operation.
struct Reader<'a> {
    state: &'a CommState,
    asked: &'a shmcclCall_t,
    operation: Operation,
    data_type: DataType,
}

impl<'a> Reader<'a> {
    /// # Safety
    /// As for [`check`].
    unsafe fn new(
        state: &'a CommState,
        asked: &'a shmcclCall_t,
        operation: Operation,
    ) -> Result<Self, Failure> {
        Ok(Self { state, asked, operation, data_type: data_type(asked.datatype)? })
    }

    fn call(&self) -> Result<OwnedCall, Failure> {
        let operation = self.operation;
        let is_open = operation == Operation::RecvAny;
        let (mut root, mut tag) = (Rank::ZERO, 0);
        if operation.has_root() || operation.has_peer() && !is_open {
            root = self.state.member(self.asked.peer, "the root or peer")?;
        }
        if operation.has_peer() {
            tag = unsigned(self.asked.tag, "tag")?;
        }
        let op = if operation.reduces() { Some(self.op()?) } else { None };
        let selected =
            is_open.then(|| (MessageSelector { source: None, tag: Some(tag) }, StatusHandle::new()));
        let (buffers, blocks) = if operation == Operation::AllToAllV {
            let (buffers, blocks) = self.all_to_all_v()?;
            (buffers, Some(Box::new(blocks)))
        } else {
            let (sent, received) =
                operation.parts(self.state.rank().index(), root.index(), self.state.n_ranks() as u64);
            let (sent, received) = (self.elements(sent)?, self.elements(received)?);
            (self.buffers(sent, received, true)?, None)
        };
        let call = CollectiveCall { root, tag, ..CollectiveCall::new(operation, self.data_type, buffers) };
        Ok(OwnedCall { call, op, blocks, selected })
    }

    fn all_to_all_v(&self) -> Result<(Buffers<'static>, [Vec<usize>; 4]), Failure> {
        let n_ranks = self.state.n_ranks();
        let lists = [
            (self.asked.sendcounts, "sendcounts"),
            (self.asked.sdispls, "sdispls"),
            (self.asked.recvcounts, "recvcounts"),
            (self.asked.rdispls, "rdispls"),
        ];
        let mut blocks = [const { Vec::new() }; 4];
        for (block, (list, name)) in blocks.iter_mut().zip(lists) {
            // SAFETY: the maker of the reader answers for one number for each rank.
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
        let are_same = sendcounts == recvcounts && sdispls == rdispls;
        let buffers = self.buffers(sent, received, are_same)?;
        Ok((buffers, blocks))
    }

    /// Returns the buffers of a call that sends and receives so many elements, and that may be in
    /// place.
    fn buffers(&self, sent: usize, received: usize, may_replace: bool) -> Result<Buffers<'static>, Failure> {
        let send = self.operand(self.asked.sendbuff, sent, "sendbuff")?;
        let recv = self.operand(self.asked.recvbuff, received, "recvbuff")?;
        let (rank, n_ranks) = (self.state.rank(), u32::try_from(self.state.n_ranks()).unwrap_or(u32::MAX));
        let placement = Placement { send: send.range(), recv: recv.range() };
        match placement.is_in_place(self.operation, self.data_type, rank, n_ranks) {
            Ok(true) if may_replace => {
                let buffer = if send.range() == placement.longer() { send } else { recv };
                // SAFETY: the maker of the reader answers for the buffer.
                Ok(Buffers::in_place(unsafe { buffer.output() }))
            }
            // The engine looks at two buffers in the heap.
            Ok(true) | Err(_) if !(send.is_in_heap() && recv.is_in_heap()) => {
                let text = "sendbuff and recvbuff overlap in part, expected two buffers or a call in place";
                Err(Failure::argument(text.into()))
            }
            _ => {
                // SAFETY: the maker of the reader answers for the buffers.
                let send = unsafe { send.input() };
                // SAFETY: as above, and they lie apart.
                Ok(Buffers::Apart(send, unsafe { recv.output() }))
            }
        }
    }

    fn operand(&self, start: *const c_void, count: usize, name: &str) -> Result<Operand, Failure> {
        let len = count.checked_mul(self.data_type.size()).ok_or_else(|| too_many(count))?;
        Operand::new(self.state, start, len, name)
    }

    /// Returns the elements of so many blocks.
    fn elements(&self, blocks: u64) -> Result<usize, Failure> {
        let blocks = usize::try_from(blocks).ok().and_then(|blocks| self.asked.count.checked_mul(blocks));
        blocks.ok_or_else(|| too_many(self.asked.count))
    }

    fn op(&self) -> Result<ReduceOp, Failure> {
        let op = operator(self.asked.op)?;
        if self.asked.scalar.is_null() {
            return Ok(op);
        }
        if op != ReduceOp::Sum {
            return Err(Failure::argument(format!("op is {op} with a scalar, expected shmcclSum")));
        }
        // SAFETY: the maker of the reader answers for one element.
        unsafe { pre_mul_sum(self.asked.scalar, self.data_type) }
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
