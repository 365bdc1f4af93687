//! The collective calls and messages of a communicator.

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use shmccl::collective::Operation;
use shmccl::comm::{Placement, RegisteredPlan};
use shmccl::reduce::DataType;
use shmccl::{Error, MessageSelector, Rank, StatusHandle};

use crate::call::{NOTHING, UnsubmittedCall};
use crate::comm::Communicator;
use crate::dtype::Dtype;
use crate::error::{closed, exception};
use crate::group::{self, GroupedCall};
use crate::interrupt::detached;
use crate::operand::part::Part;
use crate::operand::{Access, Operand};
use crate::reduce_op::reduce_op;
use crate::stream::Stream;
use crate::whole_number::{counts, rank, some_counts, tag};

type Object<'py> = Bound<'py, PyAny>;

/// What a call has in common with all others.
struct Asked<'a, 'py> {
    comm: &'a Communicator,
    py: Python<'py>,
    dtype: Option<&'static Dtype>,
    stream: Option<&'a Bound<'py, Stream>>,
}

/// What only some calls have.
struct More<'a, 'py> {
    /// The operator of a reduction; a sum, where it is none.
    op: Option<&'a Object<'py>>,
    root: Rank,
    plan: Option<RegisteredPlan>,
}

impl<'a, 'py> More<'a, 'py> {
    const NOTHING: Self = Self { op: None, root: Rank::ZERO, plan: None };

    const fn op(op: Option<&'a Object<'py>>) -> Self {
        Self { op, ..Self::NOTHING }
    }

    const fn root(root: Rank) -> Self {
        Self { root, ..Self::NOTHING }
    }
}

/// How the shape of a result follows from that of an input.
#[derive(Clone, Copy)]
enum Change {
    Same,
    /// A block for each rank.
    Gather,
    /// One block of those for each rank.
    Scatter,
}

impl Change {
    fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
        }
    }
}

impl<'a, 'py> Asked<'a, 'py> {
    #[inline]
    fn new(
        comm: &'a Communicator,
        py: Python<'py>,
        dtype: Option<&Object<'py>>,
        stream: Option<&'a Bound<'py, Stream>>,
    ) -> PyResult<Self> {
        Ok(Self { comm, py, dtype: dtype.map(Dtype::of).transpose()?, stream })
    }

    #[inline]
    fn operand(&self, object: &Object<'py>, access: Access) -> PyResult<Operand<'py>> {
        Operand::of(object, access, self.dtype)
    }

    #[inline]
    fn root(&self, root: u32) -> PyResult<Rank> {
        Rank::new(root, self.comm.shared.size).map_err(|error| exception(self.py, &Error::from(error)))
    }

    fn is(&self, root: Rank) -> bool {
        self.comm.shared.rank == root
    }

    /// Makes a new array for the result of a call with the input `x`.
    #[cold]
    fn result(&self, x: &Object<'py>, change: Change) -> PyResult<Object<'py>> {
        let results = self.py.import(intern!(self.py, "shmccl._results"))?;
        results.call_method1(intern!(self.py, "like"), (x, change.name(), self.comm.shared.size))
    }

    /// Makes a call with an input and an output, of one type.
    #[inline]
    fn run(
        &self,
        operation: Operation,
        send: Option<&Object<'py>>,
        recv: Option<&Object<'py>>,
        more: More<'_, 'py>,
    ) -> PyResult<()> {
        let output = recv.map(|recv| self.operand(recv, Access::Write)).transpose()?;
        let is_same = matches!((send, recv), (Some(send), Some(recv)) if send.is(recv));
        let input = match send {
            Some(send) if !is_same => Some(self.operand(send, Access::Read)?),
            _ => None,
        };
        let first =
            input.as_ref().or(output.as_ref()).ok_or_else(|| PyValueError::new_err("there is no array"))?;
        let dtype = first.dtype;
        if let (Some(input), Some(output)) = (&input, &output) {
            check_types(input, output)?;
        }
        let data_type = dtype.data_type();
        let recv_bytes = output.as_ref().map_or(NOTHING, Operand::bytes);
        let send_bytes = if is_same { recv_bytes } else { input.as_ref().map_or(NOTHING, Operand::bytes) };
        let placement = Placement { send: send_bytes, recv: recv_bytes };
        let mut call = self.call(operation, data_type, placement, false)?;
        if operation.reduces() {
            call.op = Some(reduce_op(more.op, data_type)?);
        }
        (call.root, call.plan) = (more.root, more.plan);
        self.issue(call, [send, recv])
        // The operands live until here.
    }

    /// Makes a call whose result goes to `out`, or to a new array. Returns that.
    #[inline]
    fn run_into(
        &self,
        out: Option<Object<'py>>,
        operation: Operation,
        x: &Object<'py>,
        change: Change,
        more: More<'_, 'py>,
    ) -> PyResult<Object<'py>> {
        let out = out.map_or_else(|| self.result(x, change), Ok)?;
        self.run(operation, Some(x), Some(&out), more)?;
        Ok(out)
    }

    #[inline]
    fn call(
        &self,
        operation: Operation,
        data_type: DataType,
        placement: Placement,
        are_apart: bool,
    ) -> PyResult<UnsubmittedCall> {
        let shared = &self.comm.shared;
        // SAFETY: the operands of the caller hold the bytes until the call is done, or the objects
        // are kept behind it. The program leaves them alone from when it is submitted, as the
        // manual says.
        unsafe {
            UnsubmittedCall::new(operation, data_type, placement, &shared.places, shared.rank, are_apart)
        }
    }

    /// Makes one end of a message.
    fn message(
        &self,
        operation: Operation,
        operand: &Operand<'py>,
        peer: Rank,
        tag: u32,
    ) -> PyResult<UnsubmittedCall> {
        let placement = match operation {
            Operation::Send => Placement { send: operand.bytes(), recv: NOTHING },
            _ => Placement { send: NOTHING, recv: operand.bytes() },
        };
        let mut message = self.call(operation, operand.dtype.data_type(), placement, false)?;
        (message.root, message.tag) = (peer, tag);
        Ok(message)
    }

    /// Makes `call`, adds it to the open group, or enqueues it.
    #[inline]
    fn issue(&self, call: UnsubmittedCall, objects: [Option<&Object<'py>>; 2]) -> PyResult<()> {
        let shared = &self.comm.shared;
        if self.stream.is_some() || group::is_open(shared) {
            return self.defer(call, objects);
        }
        shared.with(self.py, |comm| call.submit(comm, &shared.places))
    }

    #[cold]
    fn defer(&self, call: UnsubmittedCall, objects: [Option<&Object<'py>>; 2]) -> PyResult<()> {
        let (py, shared) = (self.py, &self.comm.shared);
        let kept = objects.into_iter().flatten().map(keep).collect::<PyResult<Vec<_>>>()?;
        if group::is_open(shared) {
            if self.stream.is_some() {
                return Err(PyValueError::new_err("within a group, name the stream where the group is made"));
            }
            group::push(shared, GroupedCall { call, kept });
            return Ok(());
        }
        let Some(stream) = self.stream.map(|stream| stream.get()) else { return Ok(()) };
        let done = detached(py, || {
            // In this order, as in groups.
            let (mut comm, mut stream) = (shared.turn()?, stream.turn()?);
            let (Some(comm), Some(stream)) = (comm.as_mut(), stream.as_mut()) else { return Ok(None) };
            let stream = stream.used_by(std::slice::from_ref(shared));
            call.submit(&mut stream.on(comm), &shared.places).map(Some)
        });
        stream.keep(py, kept)?;
        done?.ok_or_else(|| closed("communicator or stream"))
    }
}

/// Makes one end of a message of bytes, to be started.
///
/// # Errors
/// Those of [`Operand::of`].
pub fn message_of_bytes(
    comm: &Communicator,
    operation: Operation,
    object: &Object<'_>,
    peer: Rank,
    tag: u32,
) -> PyResult<GroupedCall> {
    let asked = Asked { comm, py: object.py(), dtype: Some(Dtype::bytes()), stream: None };
    let access = if operation == Operation::Send { Access::Read } else { Access::Write };
    let operand = asked.operand(object, access)?;
    let call = asked.message(operation, &operand, peer, tag)?;
    Ok(GroupedCall { call, kept: vec![keep(object)?] })
}

/// Refuses an input and an output of different types.
fn check_types(input: &Operand<'_>, output: &Operand<'_>) -> PyResult<()> {
    let (from, to) = (input.dtype.name, output.dtype.name);
    if from == to {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "the input is of {from}, and the output of {to}; pass arrays of one type, or name it with dtype="
    )))
}

/// Returns what keeps the memory of `object` where it is.
fn keep(object: &Object<'_>) -> PyResult<Py<PyAny>> {
    if let Ok(part) = object.cast_exact::<Part>() {
        return keep(part.get().owner.bind(object.py()));
    }
    // An exported buffer can be neither moved nor resized. Tensors and the rest do not move.
    match PyMemoryView::from(object) {
        Ok(view) => Ok(view.into_any().unbind()),
        Err(_) => Ok(object.clone().unbind()),
    }
}

#[pymethods]
impl Communicator {
    /// Combines the arrays of all ranks, element by element. Returns the result, which is `out`
    /// where that is given; `out=x` replaces the input.
    #[pyo3(signature = (x, op=None, out=None, *, dtype=None, stream=None))]
    fn all_reduce<'py>(
        &self,
        py: Python<'py>,
        x: &Object<'py>,
        op: Option<&Object<'py>>,
        out: Option<Object<'py>>,
        dtype: Option<&Object<'py>>,
        stream: Option<&Bound<'py, Stream>>,
    ) -> PyResult<Object<'py>> {
        let asked = Asked::new(self, py, dtype, stream)?;
        asked.run_into(out, Operation::AllReduce, x, Change::Same, More::op(op))
    }

    /// Combines the arrays of all ranks up to this one, element by element. Returns the result.
    #[pyo3(signature = (x, op=None, out=None, *, dtype=None, stream=None))]
    fn scan<'py>(
        &self,
        py: Python<'py>,
        x: &Object<'py>,
        op: Option<&Object<'py>>,
        out: Option<Object<'py>>,
        dtype: Option<&Object<'py>>,
        stream: Option<&Bound<'py, Stream>>,
    ) -> PyResult<Object<'py>> {
        let asked = Asked::new(self, py, dtype, stream)?;
        asked.run_into(out, Operation::Scan, x, Change::Same, More::op(op))
    }

    /// Combines the arrays of all ranks before this one, element by element. Returns the result;
    /// None on the first rank, whose `out` stays as it is.
    #[pyo3(signature = (x, op=None, out=None, *, dtype=None, stream=None))]
    fn exscan<'py>(
        &self,
        py: Python<'py>,
        x: &Object<'py>,
        op: Option<&Object<'py>>,
        out: Option<Object<'py>>,
        dtype: Option<&Object<'py>>,
        stream: Option<&Bound<'py, Stream>>,
    ) -> PyResult<Option<Object<'py>>> {
        let asked = Asked::new(self, py, dtype, stream)?;
        let out = asked.output(!asked.is(Rank::ZERO), x, out, Change::Same)?;
        asked.run(Operation::ExScan, Some(x), out.as_ref(), More::op(op))?;
        Ok(out)
    }

    /// Combines the arrays of all ranks into the result of `root`. Returns None on other ranks.
    #[pyo3(signature = (x, op=None, root=0, out=None, *, dtype=None, stream=None))]
    #[expect(clippy::too_many_arguments, reason = "the parameters of Python")]
    fn reduce<'py>(
        &self,
        py: Python<'py>,
        x: &Object<'py>,
        op: Option<&Object<'py>>,
        #[pyo3(from_py_with = rank)] root: u32,
        out: Option<Object<'py>>,
        dtype: Option<&Object<'py>>,
        stream: Option<&Bound<'py, Stream>>,
    ) -> PyResult<Option<Object<'py>>> {
        let asked = Asked::new(self, py, dtype, stream)?;
        let root = asked.root(root)?;
        let out = asked.output(asked.is(root), x, out, Change::Same)?;
        asked.run(Operation::Reduce, Some(x), out.as_ref(), More { root, ..More::op(op) })?;
        Ok(out)
    }

    /// Copies the root's array to that of every other rank. Returns it.
    #[pyo3(signature = (x, root=0, *, dtype=None, stream=None))]
    fn broadcast<'py>(
        &self,
        py: Python<'py>,
        x: Object<'py>,
        #[pyo3(from_py_with = rank)] root: u32,
        dtype: Option<&Object<'py>>,
        stream: Option<&Bound<'py, Stream>>,
    ) -> PyResult<Object<'py>> {
        let asked = Asked::new(self, py, dtype, stream)?;
        let root = asked.root(root)?;
        asked.run(Operation::Broadcast, Some(&x), Some(&x), More::root(root))?;
        Ok(x)
    }

    /// Collects the arrays of all ranks, in the order of the ranks. The result has one row for each
    /// rank.
    #[pyo3(signature = (x, out=None, *, dtype=None, stream=None))]
    fn all_gather<'py>(
        &self,
        py: Python<'py>,
        x: &Object<'py>,
        out: Option<Object<'py>>,
        dtype: Option<&Object<'py>>,
        stream: Option<&Bound<'py, Stream>>,
    ) -> PyResult<Object<'py>> {
        let asked = Asked::new(self, py, dtype, stream)?;
        asked.run_into(out, Operation::AllGather, x, Change::Gather, More::NOTHING)
    }

    /// Combines the arrays of all ranks, which have a block for each rank. Returns this rank's
    /// block: `x[rank]` where x has one row for each rank, and else that part of the rows.
    #[pyo3(signature = (x, op=None, out=None, *, dtype=None, stream=None))]
    fn reduce_scatter<'py>(
        &self,
        py: Python<'py>,
        x: &Object<'py>,
        op: Option<&Object<'py>>,
        out: Option<Object<'py>>,
        dtype: Option<&Object<'py>>,
        stream: Option<&Bound<'py, Stream>>,
    ) -> PyResult<Object<'py>> {
        let asked = Asked::new(self, py, dtype, stream)?;
        asked.run_into(out, Operation::ReduceScatter, x, Change::Scatter, More::op(op))
    }

    /// Sends block r of the array to rank r. Returns the blocks that come from all ranks, in their
    /// order.
    #[pyo3(signature = (x, out=None, *, dtype=None, stream=None))]
    fn all_to_all<'py>(
        &self,
        py: Python<'py>,
        x: &Object<'py>,
        out: Option<Object<'py>>,
        dtype: Option<&Object<'py>>,
        stream: Option<&Bound<'py, Stream>>,
    ) -> PyResult<Object<'py>> {
        let asked = Asked::new(self, py, dtype, stream)?;
        asked.run_into(out, Operation::AllToAll, x, Change::Same, More::NOTHING)
    }

    /// Does what a registered plan of sendrecv does, by its name. Returns the array of the rank
    /// that the plan has for this one.
    #[pyo3(signature = (name, x, out=None, *, dtype=None, stream=None))]
    fn run_plan<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        x: &Object<'py>,
        out: Option<Object<'py>>,
        dtype: Option<&Object<'py>>,
        stream: Option<&Bound<'py, Stream>>,
    ) -> PyResult<Object<'py>> {
        let asked = Asked::new(self, py, dtype, stream)?;
        let plan = self.shared.with(py, |comm| comm.plan(name))?;
        let more = More { plan: Some(plan), ..More::NOTHING };
        asked.run_into(out, Operation::RunPlan, x, Change::Same, more)
    }

    /// Sends `sent[r]` elements of `x` to rank r, and takes `received[r]` from it into `out`.
    /// Blocks follow each other, or begin at `sent_at` and `received_at`.
    #[pyo3(signature = (x, sent, out, received, *, sent_at=None, received_at=None, dtype=None, stream=None))]
    #[expect(clippy::too_many_arguments, reason = "the parameters of Python")]
    fn all_to_all_v<'py>(
        &self,
        py: Python<'py>,
        x: &Object<'py>,
        #[pyo3(from_py_with = counts)] sent: Vec<usize>,
        out: Object<'py>,
        #[pyo3(from_py_with = counts)] received: Vec<usize>,
        #[pyo3(from_py_with = some_counts)] sent_at: Option<Vec<usize>>,
        #[pyo3(from_py_with = some_counts)] received_at: Option<Vec<usize>>,
        dtype: Option<&Object<'py>>,
        stream: Option<&Bound<'py, Stream>>,
    ) -> PyResult<Object<'py>> {
        let asked = Asked::new(self, py, dtype, stream)?;
        let output = asked.operand(&out, Access::Write)?;
        let input = if x.is(&out) { None } else { Some(asked.operand(x, Access::Read)?) };
        let data_type = output.dtype.data_type();
        input.as_ref().map_or(Ok(()), |input| check_types(input, &output))?;
        let send = input.as_ref().unwrap_or(&output).bytes();
        let (sent_at, received_at) =
            (sent_at.unwrap_or_else(|| behind(&sent)), received_at.unwrap_or_else(|| behind(&received)));
        let are_apart = sent != received || sent_at != received_at;
        let placement = Placement { send, recv: output.bytes() };
        let mut call = asked.call(Operation::AllToAllV, data_type, placement, are_apart)?;
        call.blocks = Some(Box::new([sent, sent_at, received, received_at]));
        asked.issue(call, [Some(x), Some(&out)])?;
        Ok(out)
    }

    /// Collects the arrays of all ranks on `root`, in the order of the ranks. Returns None on other
    /// ranks.
    #[pyo3(signature = (x, root=0, out=None, *, dtype=None, stream=None))]
    fn gather<'py>(
        &self,
        py: Python<'py>,
        x: &Object<'py>,
        #[pyo3(from_py_with = rank)] root: u32,
        out: Option<Object<'py>>,
        dtype: Option<&Object<'py>>,
        stream: Option<&Bound<'py, Stream>>,
    ) -> PyResult<Option<Object<'py>>> {
        let asked = Asked::new(self, py, dtype, stream)?;
        let root = asked.root(root)?;
        let out = asked.output(asked.is(root), x, out, Change::Gather)?;
        asked.run(Operation::Gather, Some(x), out.as_ref(), More::root(root))?;
        Ok(out)
    }

    /// Sends block r of the root's array to rank r. Other ranks pass None for `x`, and an `out`.
    #[pyo3(signature = (x, root=0, out=None, *, dtype=None, stream=None))]
    fn scatter<'py>(
        &self,
        py: Python<'py>,
        x: Option<&Object<'py>>,
        #[pyo3(from_py_with = rank)] root: u32,
        out: Option<Object<'py>>,
        dtype: Option<&Object<'py>>,
        stream: Option<&Bound<'py, Stream>>,
    ) -> PyResult<Object<'py>> {
        let asked = Asked::new(self, py, dtype, stream)?;
        let root = asked.root(root)?;
        let x = if asked.is(root) { x } else { None };
        let out = match (out, x) {
            (Some(out), _) => out,
            (None, Some(x)) => asked.result(x, Change::Scatter)?,
            (None, None) => {
                return Err(PyValueError::new_err("scatter: pass out= on ranks other than the root"));
            }
        };
        asked.run(Operation::Scatter, x, Some(&out), More::root(root))?;
        Ok(out)
    }

    /// Sends the array to `peer`, which receives as many elements with the same `tag`.
    #[pyo3(signature = (x, peer, *, tag=0, dtype=None, stream=None))]
    fn send<'py>(
        &self,
        py: Python<'py>,
        x: &Object<'py>,
        #[pyo3(from_py_with = rank)] peer: u32,
        #[pyo3(from_py_with = tag)] tag: u32,
        dtype: Option<&Object<'py>>,
        stream: Option<&Bound<'py, Stream>>,
    ) -> PyResult<()> {
        let asked = Asked::new(self, py, dtype, stream)?;
        let input = asked.operand(x, Access::Read)?;
        let call = asked.message(Operation::Send, &input, asked.root(peer)?, tag)?;
        asked.issue(call, [Some(x), None])
    }

    /// Receives from `peer` into the array. Returns it.
    #[pyo3(signature = (out, peer, *, tag=0, dtype=None, stream=None))]
    fn recv<'py>(
        &self,
        py: Python<'py>,
        out: Object<'py>,
        #[pyo3(from_py_with = rank)] peer: u32,
        #[pyo3(from_py_with = tag)] tag: u32,
        dtype: Option<&Object<'py>>,
        stream: Option<&Bound<'py, Stream>>,
    ) -> PyResult<Object<'py>> {
        let asked = Asked::new(self, py, dtype, stream)?;
        let output = asked.operand(&out, Access::Write)?;
        let call = asked.message(Operation::Recv, &output, asked.root(peer)?, tag)?;
        asked.issue(call, [None, Some(&out)])?;
        Ok(out)
    }

    /// Receives into the array from whichever other rank sends first with this `tag`, or with any
    /// where that is None. Returns that rank.
    #[pyo3(signature = (out, *, tag=Some(0), dtype=None))]
    fn recv_any<'py>(
        &self,
        py: Python<'py>,
        out: &Object<'py>,
        #[pyo3(from_py_with = any_tag)] tag: Option<u32>,
        dtype: Option<&Object<'py>>,
    ) -> PyResult<u32> {
        if group::is_open(&self.shared) {
            return Err(PyValueError::new_err(
                "recv_any returns who has sent, so it does not go into a group",
            ));
        }
        let asked = Asked::new(self, py, dtype, None)?;
        let output = asked.operand(out, Access::Write)?;
        let status = StatusHandle::default();
        let mut call = asked.message(Operation::RecvAny, &output, Rank::ZERO, 0)?;
        call.selected = Some((MessageSelector { source: None, tag }, status.clone()));
        asked.issue(call, [None, Some(out)])?;
        Ok(status.get().map_or(0, |status| status.source.get()))
    }
}

/// Takes a tag, or None for any.
fn any_tag(object: &Object<'_>) -> PyResult<Option<u32>> {
    if object.is_none() { Ok(None) } else { tag(object).map(Some) }
}

impl<'py> Asked<'_, 'py> {
    /// Returns the output of a call, if this rank gets one.
    fn output(
        &self,
        is_there: bool,
        x: &Object<'py>,
        out: Option<Object<'py>>,
        change: Change,
    ) -> PyResult<Option<Object<'py>>> {
        match out {
            _ if !is_there => Ok(None),
            Some(out) => Ok(Some(out)),
            None => self.result(x, change).map(Some),
        }
    }
}

/// Returns where blocks begin that follow each other.
fn behind(counts: &[usize]) -> Vec<usize> {
    counts.iter().scan(0, |next, count| Some(std::mem::replace(next, *next + count))).collect()
}
