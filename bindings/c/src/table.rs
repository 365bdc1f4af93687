//! The table of functions, for adapters that are loaded beside an engine and link to nothing of it.
//!
//! The header gives the table its typed form. Here it is a row of addresses in the same order.

use std::ffi::c_int;

use crate::*;

/// The version of `shmcclTable`. Functions that are added at its end leave it as it is, and make
/// `size` larger.
pub const SHMCCL_TABLE_VERSION: u32 = 1;

#[allow(clippy::cast_possible_truncation, reason = "it is a few hundred bytes")]
const SIZE: u32 = size_of::<shmcclTable>() as u32;

/// Declares the table: its functions, in an order that never changes.
macro_rules! table {
    ($($name:ident)*) => {
        /// The names of its functions, in order.
        pub const TABLE_NAMES: &[&str] = &[$(stringify!($name)),*];

        static TABLE: shmcclTable = shmcclTable {
            size: SIZE,
            version: SHMCCL_TABLE_VERSION,
            functions: [$($name as *const ()),*],
        };
    };
}

/// The functions of the header with the version of their table: see [`shmcclGetTable`].
#[repr(C)]
#[derive(Debug)]
pub struct shmcclTable {
    size: u32,
    version: u32,
    functions: [*const (); TABLE_NAMES.len()],
}

// SAFETY: the addresses are those of functions, and never change.
unsafe impl Sync for shmcclTable {}

table! {
    shmcclGetVersion shmcclGetErrorString shmcclGetLastError shmcclGetLastErrorRank
    shmcclGetUniqueId shmcclCommInit shmcclCommInitRank shmcclCommInitRankConfig shmcclCommInitAll
    shmcclCommCount shmcclCommUserRank shmcclCommJobRank
    shmcclCommSplit shmcclCommDuplicate shmcclCommShrink shmcclCommGrow shmcclCommJoin
    shmcclCommRevoke shmcclCommAbort shmcclCommFinalize shmcclCommDestroy shmcclCommGetAsyncError
    shmcclAllReduce shmcclReduce shmcclBroadcast shmcclAllGather shmcclReduceScatter shmcclAlltoAll
    shmcclAlltoAllv shmcclGather shmcclScatter shmcclSend shmcclRecv shmcclBarrier
    shmcclRedOpCreatePreMulSum shmcclRedOpDestroy
    shmcclGroupStart shmcclGroupEnd
    shmcclStreamCreate shmcclStreamDestroy shmcclStreamSynchronize shmcclStreamQuery
    shmcclSubmit shmcclRequestTest shmcclRequestWait shmcclRequestSource shmcclRequestFree
    shmcclMemAlloc shmcclMemFree shmcclMemLocate shmcclMemAddress
    shmcclCommWindowRegister shmcclCommWindowDeregister shmcclWindowAddress
    shmcclPutSignal shmcclSignal shmcclWaitSignal
    shmcclSetInterruptCheck shmcclCommSetTimeout shmcclCommStagedBytes
    shmcclCommRecover shmcclCommGetRecovery
    shmcclEventCreate shmcclEventDestroy shmcclEventRecord shmcclStreamWaitEvent
    shmcclEventQuery shmcclEventSynchronize shmcclEventElapsedTime
    shmcclCommRegisterPlan shmcclCommDeregisterPlan shmcclCommPlannedCalls
    shmcclRunPlan
    shmcclGetProcess shmcclCommRevokeAwaiting shmcclCommGetStragglers
    shmcclScan shmcclExscan
    shmcclMapStatics shmcclPtr
}

/// Returns the table of functions of this version, which lives as long as the program. For another
/// version it returns NULL, and `shmcclGetLastError` names both.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclGetTable(version: u32) -> *const shmcclTable {
    if version == SHMCCL_TABLE_VERSION {
        return &raw const TABLE;
    }
    let text = format!(
        "table version {version} was asked for, and this is shmccl {} with version {SHMCCL_TABLE_VERSION}: \
         take both from one release",
        env!("CARGO_PKG_VERSION")
    );
    answer::note(&failure::Failure::argument(text));
    std::ptr::null()
}

/// Stores the version of the library: 10000 times the major number, 100 times the minor one, and
/// the patch.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclGetVersion(version: Option<&mut c_int>) -> shmcclResult_t {
    answer::answer(|| {
        let number = |text: &str| text.parse::<c_int>().unwrap_or(0);
        *arguments::required(version, "version")? = 10_000 * number(env!("CARGO_PKG_VERSION_MAJOR"))
            + 100 * number(env!("CARGO_PKG_VERSION_MINOR"))
            + number(env!("CARGO_PKG_VERSION_PATCH"));
        Ok(())
    })
}
