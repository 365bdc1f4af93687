//! The types of the header: results, data types, operators and handles.

use std::ffi::{c_char, c_int};

use shmccl::bootstrap::ProcessMark;

/// What a function returns. `shmcclGetLastError` tells more, with values.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum shmcclResult_t {
    /// It was done, or enqueued.
    shmcclSuccess = 0,
    /// The operating system refused: see the text for the remedy.
    shmcclSystemError = 2,
    /// A bug of this library: please report the text.
    shmcclInternalError = 3,
    /// An argument has a value that the function cannot take. Nothing has changed.
    shmcclInvalidArgument = 4,
    /// The function cannot be called in this kind of job, or at this point of it.
    shmcclInvalidUsage = 5,
    /// Another rank failed in a call that succeeds on all ranks or on none.
    shmcclRemoteError = 6,
    /// Something is left to be done.
    shmcclInProgress = 7,
    /// The heap has no room: start with a larger one.
    shmcclOutOfMemory = 8,
    /// A table of fixed size is full.
    shmcclExhausted = 9,
    /// Ranks are in different calls, or in one call with different arguments.
    shmcclMismatch = 10,
    /// A wait passed its deadline although nobody died. `shmcclGetLastErrorRank` names the rank
    /// that was awaited, where it is one.
    shmcclTimeout = 11,
    /// A rank died or left while it was needed. `shmcclGetLastErrorRank` names it.
    shmcclPeerLost = 12,
    /// The proxy that executes triggers was lost.
    shmcclProxyLost = 13,
    /// The epoch was ended by a rank (`shmcclGetLastErrorRank`), or by the launcher.
    shmcclRevoked = 14,
    /// The other ranks have given this one up.
    shmcclExcluded = 15,
    /// Ranks did not find each other under a unique id.
    shmcclNoMeeting = 16,
    /// Data were damaged on their way.
    shmcclCorrupted = 17,
    /// The operation exists, but not for this type, operator or algorithm.
    shmcclUnsupported = 18,
    /// A signal, or the program's own check, has ended the call.
    shmcclInterrupted = 19,
}

/// The type of elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum shmcclDataType_t {
    /// `int8_t`.
    shmcclInt8 = 0,
    /// `uint8_t`.
    shmcclUint8 = 1,
    /// `int32_t`.
    shmcclInt32 = 2,
    /// `uint32_t`.
    shmcclUint32 = 3,
    /// `int64_t`.
    shmcclInt64 = 4,
    /// `uint64_t`.
    shmcclUint64 = 5,
    /// IEEE 754 binary16.
    shmcclFloat16 = 6,
    /// The upper half of a `float`.
    shmcclBfloat16 = 7,
    /// `float`.
    shmcclFloat32 = 8,
    /// `double`.
    shmcclFloat64 = 9,
    /// 8 bits: sign, 4 of the exponent, 3 of the mantissa; no infinities.
    shmcclFloat8e4m3 = 10,
    /// 8 bits: sign, 5 of the exponent, 2 of the mantissa.
    shmcclFloat8e5m2 = 11,
    /// `int16_t`.
    shmcclInt16 = 12,
    /// `uint16_t`.
    shmcclUint16 = 13,
    /// `bool`: a byte, of which any value but 0 is true.
    shmcclBool = 14,
    /// Two `float`: the real part, then the imaginary one.
    shmcclComplex64 = 15,
    /// Two `double`: the real part, then the imaginary one.
    shmcclComplex128 = 16,
}

/// The operator of a reduction. Values past the last one are made by
/// `shmcclRedOpCreatePreMulSum`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum shmcclRedOp_t {
    /// Adds.
    shmcclSum = 0,
    /// Multiplies.
    shmcclProd = 1,
    /// Takes the least.
    shmcclMin = 2,
    /// Takes the greatest.
    shmcclMax = 3,
    /// Adds, and divides by the number of ranks.
    shmcclAvg = 4,
    /// Keeps the bits that are set in all inputs; of integers and booleans.
    shmcclBitAnd = 5,
    /// Keeps the bits that are set in any input; of integers and booleans.
    shmcclBitOr = 6,
    /// Keeps the bits that are set in an odd number of inputs; of integers and booleans.
    shmcclBitXor = 7,
    /// No operator: makes the type wide enough.
    shmcclMaxRedOp = 0x7fff_ffff,
}

/// A data type as it comes from C, where an enum may hold anything.
pub type DataTypeCode = u32;

/// An operator as it comes from C, where an enum may hold anything.
pub type RedOpCode = u32;

/// A result as it comes from C, where an enum may hold anything.
pub type ResultCode = u32;

/// The id of one meeting: `shmcclGetUniqueId` makes it, and the program hands its 128 bytes to the
/// other ranks in any way.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct shmcclUniqueId {
    /// ASCII text, then zeros.
    pub internal: [c_char; 128],
}

/// A process, as `shmcclGetProcess` names it. The program hands its 64 bytes to other ranks in any
/// way.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct shmcclProcess_t {
    /// ASCII text, then zeros.
    pub internal: [c_char; 64],
}

impl shmcclProcess_t {
    /// Names this process.
    pub(crate) fn own() -> Self {
        const { assert!(ProcessMark::TEXT_LEN < 64) };
        let mut internal = [0; 64];
        for (target, byte) in internal.iter_mut().zip(ProcessMark::own().to_string().bytes()) {
            *target = byte.cast_signed();
        }
        Self { internal }
    }
}

/// A communicator. It is no pointer that can be followed.
#[derive(Debug)]
pub struct shmcclComm(());

/// A stream.
#[derive(Debug)]
pub struct shmcclStream(());

/// An operation that was started.
#[derive(Debug)]
pub struct shmcclRequest(());

/// A window: memory that all ranks of a communicator have registered for puts.
#[derive(Debug)]
pub struct shmcclWindow(());

/// An event: a mark in a stream.
#[derive(Debug)]
pub struct shmcclEvent(());

/// The handle of a communicator. It is checked: one that was freed is an argument error.
pub type shmcclComm_t = *mut shmcclComm;

/// The handle of a stream. Where a function takes one, NULL means: now, in the calling thread.
pub type shmcclStream_t = *mut shmcclStream;

/// The handle of an operation that was started.
pub type shmcclRequest_t = *mut shmcclRequest;

/// The handle of an event.
pub type shmcclEvent_t = *mut shmcclEvent;

/// The handle of a window.
pub type shmcclWindow_t = *mut shmcclWindow;

/// Returns a number of ranks or a rank as C has it.
pub(crate) fn signed(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}
