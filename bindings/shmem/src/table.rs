//! The table of calls: one row for each family, from which the functions, the header and the list
//! in `docs/shmem.md` are made. The build script reads this file, too.

/// A type as one family of functions has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeForm {
    /// What stands for it in the names of functions.
    pub name: &'static str,
    /// The type in C; `void` where only a size is known.
    pub c: &'static str,
    /// The basic type in C that it is on this platform: two forms of one such type are one generic.
    pub basic: &'static str,
    /// The type in Rust.
    pub rust: &'static str,
}

/// A family of functions that differ in a type, and in having a context or not.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// The name behind `shmem_`, where `{}` stands for the type. A name that begins with `=` is
    /// whole, and has no `pshmem_` beside it.
    pub name: &'static str,
    /// The name of the generic form in C11 and C++, or empty.
    pub generic: &'static str,
    /// The section of OpenSHMEM 1.6.
    pub section: &'static str,
    /// The version that brought it; that which deprecated it follows a `-`.
    pub since: &'static str,
    /// The types.
    pub types: &'static [TypeForm],
    /// Whether there is a second form with a context in front.
    pub has_context: bool,
    /// The returned type in C, where `T` stands for the type.
    pub returns: &'static str,
    /// The parameters in C, where `T` stands for the type.
    pub parameters: &'static str,
    /// The function in Rust, below the crate.
    pub call: &'static str,
}

/// A call that is not there.
#[derive(Clone, Copy, Debug)]
pub struct Missing {
    /// Its name.
    pub name: &'static str,
    /// The section that describes it, and of which version.
    pub section: &'static str,
    /// Why it is not there.
    pub reason: &'static str,
}

const fn form(name: &'static str, c: &'static str, basic: &'static str, rust: &'static str) -> TypeForm {
    TypeForm { name, c, basic, rust }
}

const FLOAT: TypeForm = form("float", "float", "float", "f32");
const DOUBLE: TypeForm = form("double", "double", "double", "f64");
const LONG_DOUBLE: TypeForm = form("longdouble", "long double", "long double", "LongDouble");
const COMPLEX_F: TypeForm = form("complexf", "SHMEM_COMPLEXF_", "SHMEM_COMPLEXF_", "Complex<f32>");
const COMPLEX_D: TypeForm = form("complexd", "SHMEM_COMPLEXD_", "SHMEM_COMPLEXD_", "Complex<f64>");
const CHAR: TypeForm = form("char", "char", "char", "i8");
const SCHAR: TypeForm = form("schar", "signed char", "signed char", "i8");
const SHORT: TypeForm = form("short", "short", "short", "i16");
const INT: TypeForm = form("int", "int", "int", "i32");
const LONG: TypeForm = form("long", "long", "long", "i64");
const LONG_LONG: TypeForm = form("longlong", "long long", "long long", "i64");
const UCHAR: TypeForm = form("uchar", "unsigned char", "unsigned char", "u8");
const USHORT: TypeForm = form("ushort", "unsigned short", "unsigned short", "u16");
const UINT: TypeForm = form("uint", "unsigned int", "unsigned int", "u32");
const ULONG: TypeForm = form("ulong", "unsigned long", "unsigned long", "u64");
const ULONG_LONG: TypeForm = form("ulonglong", "unsigned long long", "unsigned long long", "u64");
const INT8: TypeForm = form("int8", "int8_t", "signed char", "i8");
const INT16: TypeForm = form("int16", "int16_t", "short", "i16");
const INT32: TypeForm = form("int32", "int32_t", "int", "i32");
const INT64: TypeForm = form("int64", "int64_t", "long", "i64");
const UINT8: TypeForm = form("uint8", "uint8_t", "unsigned char", "u8");
const UINT16: TypeForm = form("uint16", "uint16_t", "unsigned short", "u16");
const UINT32: TypeForm = form("uint32", "uint32_t", "unsigned int", "u32");
const UINT64: TypeForm = form("uint64", "uint64_t", "unsigned long", "u64");
const SIZE: TypeForm = form("size", "size_t", "unsigned long", "u64");
const PTRDIFF: TypeForm = form("ptrdiff", "ptrdiff_t", "long", "i64");

const WHOLE: &[TypeForm] = &[form("", "void", "", "u8")];
const SIZES: &[TypeForm] = &[
    form("8", "void", "", "u8"),
    form("16", "void", "", "u16"),
    form("32", "void", "", "u32"),
    form("64", "void", "", "u64"),
    form("128", "void", "", "u128"),
];
const SIZES_AND_MEM: &[TypeForm] =
    &[SIZES[0], SIZES[1], SIZES[2], SIZES[3], SIZES[4], form("mem", "void", "", "u8")];
const MEM: &[TypeForm] = &[SIZES_AND_MEM[5]];
const OLD_SIZES: &[TypeForm] = &[SIZES[2], SIZES[3]];
const RMA: &[TypeForm] = &[
    FLOAT,
    DOUBLE,
    LONG_DOUBLE,
    CHAR,
    SCHAR,
    SHORT,
    INT,
    LONG,
    LONG_LONG,
    UCHAR,
    USHORT,
    UINT,
    ULONG,
    ULONG_LONG,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    SIZE,
    PTRDIFF,
];
const AMO: &[TypeForm] =
    &[INT, LONG, LONG_LONG, UINT, ULONG, ULONG_LONG, INT32, INT64, UINT32, UINT64, SIZE, PTRDIFF];
const EXTENDED_AMO: &[TypeForm] = &[
    FLOAT, DOUBLE, INT, LONG, LONG_LONG, UINT, ULONG, ULONG_LONG, INT32, INT64, UINT32, UINT64, SIZE, PTRDIFF,
];
const BITWISE_AMO: &[TypeForm] = &[UINT, ULONG, ULONG_LONG, INT32, INT64, UINT32, UINT64];
const OLD_AMO: &[TypeForm] = &[INT, LONG, LONG_LONG];
const OLD_EXTENDED_AMO: &[TypeForm] = &[FLOAT, DOUBLE, INT, LONG, LONG_LONG];
const WAITED: &[TypeForm] = &[
    SHORT, INT, LONG, LONG_LONG, USHORT, UINT, ULONG, ULONG_LONG, INT32, INT64, UINT32, UINT64, SIZE, PTRDIFF,
];
const OLD_WAITED: &[TypeForm] = &[SHORT, INT, LONG, LONG_LONG];
const BITS: &[TypeForm] =
    &[UCHAR, USHORT, UINT, ULONG, ULONG_LONG, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, SIZE];
const ORDERED: &[TypeForm] = &[
    CHAR,
    SCHAR,
    SHORT,
    INT,
    LONG,
    LONG_LONG,
    PTRDIFF,
    UCHAR,
    USHORT,
    UINT,
    ULONG,
    ULONG_LONG,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    SIZE,
    FLOAT,
    DOUBLE,
    LONG_DOUBLE,
];
const NUMBERS: &[TypeForm] = &[
    CHAR,
    SCHAR,
    SHORT,
    INT,
    LONG,
    LONG_LONG,
    PTRDIFF,
    UCHAR,
    USHORT,
    UINT,
    ULONG,
    ULONG_LONG,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    SIZE,
    FLOAT,
    DOUBLE,
    LONG_DOUBLE,
    COMPLEX_D,
    COMPLEX_F,
];
const OLD_ORDERED: &[TypeForm] = &[SHORT, INT, LONG, LONG_LONG, FLOAT, DOUBLE, LONG_DOUBLE];
const OLD_NUMBERS: &[TypeForm] =
    &[SHORT, INT, LONG, LONG_LONG, FLOAT, DOUBLE, LONG_DOUBLE, COMPLEX_D, COMPLEX_F];

/// One call without types.
const fn plain(
    section: &'static str,
    since: &'static str,
    name: &'static str,
    returns: &'static str,
    parameters: &'static str,
    call: &'static str,
) -> Family {
    Family { name, generic: "", section, since, types: WHOLE, has_context: false, returns, parameters, call }
}

impl Family {
    /// The same with a form for contexts.
    const fn with_context(self) -> Self {
        Self { has_context: true, ..self }
    }

    /// The same for `types`, which `generic` tells apart.
    const fn of(self, types: &'static [TypeForm], generic: &'static str) -> Self {
        Self { types, generic, ..self }
    }
}

/// All families, in the order of the specification.
pub const FAMILIES: &[&[Family]] =
    &[SETUP, MEMORY, TEAMS, CONTEXTS, RMA_CALLS, ATOMICS, SIGNALS, COLLECTIVES, WAITS, ORDERING, LOCKS];

const SETUP: &[Family] = &[
    plain("9.1.1", "1.2", "init", "void", "void", "setup::init"),
    plain("9.1.2", "1.2", "my_pe", "int", "void", "world::my_pe"),
    plain("9.1.3", "1.2", "n_pes", "int", "void", "world::n_pes"),
    plain("9.1.4", "1.2", "finalize", "void", "void", "setup::finalize"),
    plain("9.1.5", "1.6", "query_initialized", "void", "int *initialized", "setup::query_initialized"),
    plain("9.1.6", "1.2", "global_exit", "void", "int status", "leaving::global_exit"),
    plain("9.1.7", "1.0", "pe_accessible", "int", "int pe", "world::pe_accessible"),
    plain("9.1.8", "1.0", "addr_accessible", "int", "const void *addr, int pe", "world::addr_accessible"),
    plain("9.1.9", "1.0", "ptr", "void *", "const void *dest, int pe", "world::ptr"),
    plain("9.1.10", "1.6", "team_ptr", "void *", "shmem_team_t team, const void *dest, int pe", "teams::ptr"),
    plain("9.1.11", "1.2", "info_get_version", "void", "int *major, int *minor", "world::version"),
    plain("9.1.12", "1.2", "info_get_name", "void", "char *name", "world::name"),
    plain("9.1.13", "1.0-1.2", "=start_pes", "void", "int npes", "setup::start_pes"),
    plain("9.1.2", "1.0-1.2", "=_my_pe", "int", "void", "world::my_pe"),
    plain("9.1.3", "1.0-1.2", "=_num_pes", "int", "void", "world::n_pes"),
    plain("9.2.1", "1.4", "init_thread", "int", "int requested, int *provided", "setup::init_thread"),
    plain("9.2.2", "1.4", "query_thread", "void", "int *provided", "setup::query_thread"),
];

const MEMORY: &[Family] = &[
    plain("9.3.1", "1.2", "malloc", "void *", "size_t size", "memory::malloc"),
    plain("9.3.2", "1.2", "free", "void", "void *ptr", "memory::free"),
    plain("9.3.3", "1.2", "realloc", "void *", "void *ptr, size_t size", "memory::realloc"),
    plain("9.3.4", "1.2", "align", "void *", "size_t alignment, size_t size", "memory::align"),
    plain(
        "9.3.5",
        "1.5",
        "malloc_with_hints",
        "void *",
        "size_t size, long hints",
        "memory::malloc_with_hints",
    ),
    plain("9.3.6", "1.4", "calloc", "void *", "size_t count, size_t size", "memory::calloc"),
    plain("9.3", "1.0-1.2", "=shmalloc", "void *", "size_t size", "memory::malloc"),
    plain("9.3", "1.0-1.2", "=shfree", "void", "void *ptr", "memory::free"),
    plain("9.3", "1.0-1.2", "=shrealloc", "void *", "void *ptr, size_t size", "memory::realloc"),
    plain("9.3", "1.0-1.2", "=shmemalign", "void *", "size_t alignment, size_t size", "memory::align"),
];

const TEAMS: &[Family] = &[
    plain("9.4.1", "1.5", "team_my_pe", "int", "shmem_team_t team", "teams::my_pe"),
    plain("9.4.2", "1.5", "team_n_pes", "int", "shmem_team_t team", "teams::n_pes"),
    plain(
        "9.4.4",
        "1.5",
        "team_get_config",
        "int",
        "shmem_team_t team, long config_mask, shmem_team_config_t *config",
        "teams::get_config",
    ),
    plain(
        "9.4.5",
        "1.5",
        "team_translate_pe",
        "int",
        "shmem_team_t src_team, int src_pe, shmem_team_t dest_team",
        "teams::translate_pe",
    ),
    plain(
        "9.4.6",
        "1.5",
        "team_split_strided",
        "int",
        "shmem_team_t parent_team, int start, int stride, int size, const shmem_team_config_t *config, \
         long config_mask, shmem_team_t *new_team",
        "teams::split_strided",
    ),
    plain(
        "9.4.7",
        "1.5",
        "team_split_2d",
        "int",
        "shmem_team_t parent_team, int xrange, const shmem_team_config_t *xaxis_config, long xaxis_mask, \
         shmem_team_t *xaxis_team, const shmem_team_config_t *yaxis_config, long yaxis_mask, \
         shmem_team_t *yaxis_team",
        "teams::split_2d",
    ),
    plain("9.4.8", "1.5", "team_destroy", "void", "shmem_team_t team", "teams::destroy"),
];

const CONTEXTS: &[Family] = &[
    plain("9.5.1", "1.4", "ctx_create", "int", "long options, shmem_ctx_t *ctx", "contexts::create"),
    plain(
        "9.5.2",
        "1.5",
        "team_create_ctx",
        "int",
        "shmem_team_t team, long options, shmem_ctx_t *ctx",
        "contexts::create_of_team",
    ),
    plain("9.5.3", "1.4", "ctx_destroy", "void", "shmem_ctx_t ctx", "contexts::destroy"),
    plain("9.5.4", "1.5", "ctx_get_team", "int", "shmem_ctx_t ctx, shmem_team_t *team", "contexts::get_team"),
    plain(
        "9.9.2",
        "1.6",
        "ctx_session_start",
        "void",
        "shmem_ctx_t ctx, long options, const shmem_ctx_session_config_t *config, long config_mask",
        "contexts::session_start",
    ),
    plain("9.9.3", "1.6", "ctx_session_stop", "void", "shmem_ctx_t ctx", "contexts::session_stop"),
];

const MOVE: &str = "T *dest, const T *source, size_t nelems, int pe";
const STRIDED: &str = "T *dest, const T *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int pe";
const BLOCKS: &str =
    "T *dest, const T *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe";

const fn rma(
    section: &'static str,
    since: &'static str,
    name: &'static str,
    parameters: &'static str,
    call: &'static str,
) -> Family {
    plain(section, since, name, "void", parameters, call).with_context()
}

const RMA_CALLS: &[Family] = &[
    rma("9.6.1.1", "1.0", "{}_put", MOVE, "rma::put").of(RMA, "put"),
    rma("9.6.1.1", "1.0", "put{}", MOVE, "rma::put").of(SIZES_AND_MEM, ""),
    rma("9.6.1.2", "1.0", "{}_p", "T *dest, T value, int pe", "rma::p").of(RMA, "p"),
    rma("9.6.1.3", "1.0", "{}_iput", STRIDED, "rma::iput").of(RMA, "iput"),
    rma("9.6.1.3", "1.0", "iput{}", STRIDED, "rma::iput").of(SIZES, ""),
    rma("9.6.1.4", "1.6", "{}_ibput", BLOCKS, "rma::ibput").of(RMA, "ibput"),
    rma("9.6.1.4", "1.6", "ibput{}", BLOCKS, "rma::ibput").of(SIZES, ""),
    rma("9.6.1.5", "1.0", "{}_get", MOVE, "rma::get").of(RMA, "get"),
    rma("9.6.1.5", "1.0", "get{}", MOVE, "rma::get").of(SIZES_AND_MEM, ""),
    plain("9.6.1.6", "1.0", "{}_g", "T", "const T *source, int pe", "rma::g").with_context().of(RMA, "g"),
    rma("9.6.1.7", "1.0", "{}_iget", STRIDED, "rma::iget").of(RMA, "iget"),
    rma("9.6.1.7", "1.0", "iget{}", STRIDED, "rma::iget").of(SIZES, ""),
    rma("9.6.1.8", "1.6", "{}_ibget", BLOCKS, "rma::ibget").of(RMA, "ibget"),
    rma("9.6.1.8", "1.6", "ibget{}", BLOCKS, "rma::ibget").of(SIZES, ""),
    rma("9.6.2.1", "1.3", "{}_put_nbi", MOVE, "rma::put").of(RMA, "put_nbi"),
    rma("9.6.2.1", "1.3", "put{}_nbi", MOVE, "rma::put").of(SIZES_AND_MEM, ""),
    rma("9.6.2.2", "1.3", "{}_get_nbi", MOVE, "rma::get").of(RMA, "get_nbi"),
    rma("9.6.2.2", "1.3", "get{}_nbi", MOVE, "rma::get").of(SIZES_AND_MEM, ""),
];

const ORDERING: &[Family] = &[
    plain("9.12.1", "1.0", "fence", "void", "void", "rma::fence").with_context(),
    plain("9.12.2", "1.0", "quiet", "void", "void", "rma::quiet").with_context(),
    plain("9.12.3", "1.6", "pe_quiet", "void", "const int *target_pes, size_t npes", "rma::pe_quiet")
        .with_context(),
    plain("10", "1.2", "pcontrol", "void", "int level, ...", "world::pcontrol"),
];

const TEAM_MOVE: &str = "shmem_team_t team, T *dest, const T *source, size_t nelems";
const TEAM_REDUCE: &str = "shmem_team_t team, T *dest, const T *source, size_t nreduce";
const TEAM_ROOTED: &str = "shmem_team_t team, T *dest, const T *source, size_t nelems, int PE_root";
const TEAM_STRIDED: &str =
    "shmem_team_t team, T *dest, const T *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems";
const SET_MOVE: &str =
    "T *dest, const T *source, size_t nelems, int PE_start, int logPE_stride, int PE_size, long *pSync";
const SET_ROOTED: &str = "T *dest, const T *source, size_t nelems, int PE_root, int PE_start, int logPE_stride, \
                          int PE_size, long *pSync";
const SET_STRIDED: &str = "T *dest, const T *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int PE_start, \
                           int logPE_stride, int PE_size, long *pSync";
const SET_REDUCE: &str = "T *dest, const T *source, int nreduce, int PE_start, int logPE_stride, int PE_size, \
                          T *pWrk, long *pSync";

const fn team(
    section: &'static str,
    name: &'static str,
    parameters: &'static str,
    call: &'static str,
) -> Family {
    plain(section, "1.5", name, "int", parameters, call)
}

const fn set(
    section: &'static str,
    name: &'static str,
    parameters: &'static str,
    call: &'static str,
) -> Family {
    plain(section, "1.0-1.5", name, "void", parameters, call)
}

const COLLECTIVES: &[Family] = &[
    plain("9.10.1", "1.0", "barrier_all", "void", "void", "sync::barrier_all"),
    set(
        "9.10.2",
        "barrier",
        "int PE_start, int logPE_stride, int PE_size, long *pSync",
        "active_sets::barrier",
    ),
    team("9.10.3", "team_sync", "shmem_team_t team", "teams::sync"),
    set("9.10.3", "sync", "int PE_start, int logPE_stride, int PE_size, long *pSync", "active_sets::sync"),
    plain("9.10.4", "1.4", "sync_all", "void", "void", "sync::sync_all"),
    team("9.10.5", "{}_alltoall", TEAM_MOVE, "collectives::alltoall").of(RMA, "alltoall"),
    team("9.10.5", "alltoall{}", TEAM_MOVE, "collectives::alltoall").of(MEM, ""),
    set("9.10.5", "alltoall{}", SET_MOVE, "active_sets::alltoall").of(OLD_SIZES, ""),
    team("9.10.6", "{}_alltoalls", TEAM_STRIDED, "collectives::alltoalls").of(RMA, "alltoalls"),
    team("9.10.6", "alltoalls{}", TEAM_STRIDED, "collectives::alltoalls").of(MEM, ""),
    set("9.10.6", "alltoalls{}", SET_STRIDED, "active_sets::alltoalls").of(OLD_SIZES, ""),
    team("9.10.7", "{}_broadcast", TEAM_ROOTED, "collectives::broadcast").of(RMA, "broadcast"),
    team("9.10.7", "broadcast{}", TEAM_ROOTED, "collectives::broadcast").of(MEM, ""),
    set("9.10.7", "broadcast{}", SET_ROOTED, "active_sets::broadcast").of(OLD_SIZES, ""),
    team("9.10.8", "{}_collect", TEAM_MOVE, "collectives::collect").of(RMA, "collect"),
    team("9.10.8", "collect{}", TEAM_MOVE, "collectives::collect").of(MEM, ""),
    set("9.10.8", "collect{}", SET_MOVE, "active_sets::collect").of(OLD_SIZES, ""),
    team("9.10.8", "{}_fcollect", TEAM_MOVE, "collectives::fcollect").of(RMA, "fcollect"),
    team("9.10.8", "fcollect{}", TEAM_MOVE, "collectives::fcollect").of(MEM, ""),
    set("9.10.8", "fcollect{}", SET_MOVE, "active_sets::fcollect").of(OLD_SIZES, ""),
    team("9.10.9", "{}_and_reduce", TEAM_REDUCE, "reduce::of_team::<And,T>").of(BITS, "and_reduce"),
    team("9.10.9", "{}_or_reduce", TEAM_REDUCE, "reduce::of_team::<Or,T>").of(BITS, "or_reduce"),
    team("9.10.9", "{}_xor_reduce", TEAM_REDUCE, "reduce::of_team::<Xor,T>").of(BITS, "xor_reduce"),
    team("9.10.9", "{}_max_reduce", TEAM_REDUCE, "reduce::of_team::<Max,T>").of(ORDERED, "max_reduce"),
    team("9.10.9", "{}_min_reduce", TEAM_REDUCE, "reduce::of_team::<Min,T>").of(ORDERED, "min_reduce"),
    team("9.10.9", "{}_sum_reduce", TEAM_REDUCE, "reduce::of_team::<Plus,T>").of(NUMBERS, "sum_reduce"),
    team("9.10.9", "{}_prod_reduce", TEAM_REDUCE, "reduce::of_team::<Times,T>").of(NUMBERS, "prod_reduce"),
    set("9.10.9", "{}_and_to_all", SET_REDUCE, "active_sets::reduce::<And,T>").of(OLD_WAITED, ""),
    set("9.10.9", "{}_or_to_all", SET_REDUCE, "active_sets::reduce::<Or,T>").of(OLD_WAITED, ""),
    set("9.10.9", "{}_xor_to_all", SET_REDUCE, "active_sets::reduce::<Xor,T>").of(OLD_WAITED, ""),
    set("9.10.9", "{}_max_to_all", SET_REDUCE, "active_sets::reduce::<Max,T>").of(OLD_ORDERED, ""),
    set("9.10.9", "{}_min_to_all", SET_REDUCE, "active_sets::reduce::<Min,T>").of(OLD_ORDERED, ""),
    set("9.10.9", "{}_sum_to_all", SET_REDUCE, "active_sets::reduce::<Plus,T>").of(OLD_NUMBERS, ""),
    set("9.10.9", "{}_prod_to_all", SET_REDUCE, "active_sets::reduce::<Times,T>").of(OLD_NUMBERS, ""),
    plain("9.10.10", "1.6", "{}_sum_inscan", "int", TEAM_MOVE, "reduce::inscan").of(NUMBERS, "sum_inscan"),
    plain("9.10.10", "1.6", "{}_sum_exscan", "int", TEAM_MOVE, "reduce::exscan").of(NUMBERS, "sum_exscan"),
];

const ONE: &str = "T *dest, T value, int pe";
const ONE_FETCHED: &str = "T *fetch, T *dest, T value, int pe";

const fn amo(
    section: &'static str,
    since: &'static str,
    name: &'static str,
    returns: &'static str,
    parameters: &'static str,
    call: &'static str,
) -> Family {
    plain(section, since, name, returns, parameters, call).with_context()
}

const fn old(
    section: &'static str,
    name: &'static str,
    returns: &'static str,
    parameters: &'static str,
    call: &'static str,
) -> Family {
    plain(section, "1.0-1.4", name, returns, parameters, call)
}

const ATOMICS: &[Family] = &[
    amo("9.7.1.1", "1.4", "{}_atomic_fetch", "T", "const T *source, int pe", "atomics::fetch")
        .of(EXTENDED_AMO, "atomic_fetch"),
    old("9.7.1.1", "{}_fetch", "T", "const T *source, int pe", "atomics::fetch")
        .of(OLD_EXTENDED_AMO, "fetch"),
    amo("9.7.1.2", "1.4", "{}_atomic_set", "void", ONE, "atomics::set").of(EXTENDED_AMO, "atomic_set"),
    old("9.7.1.2", "{}_set", "void", ONE, "atomics::set").of(OLD_EXTENDED_AMO, "set"),
    amo(
        "9.7.1.3",
        "1.4",
        "{}_atomic_compare_swap",
        "T",
        "T *dest, T cond, T value, int pe",
        "atomics::compare_swap",
    )
    .of(AMO, "atomic_compare_swap"),
    old("9.7.1.3", "{}_cswap", "T", "T *dest, T cond, T value, int pe", "atomics::compare_swap")
        .of(OLD_AMO, "cswap"),
    amo("9.7.1.4", "1.4", "{}_atomic_swap", "T", ONE, "atomics::swap").of(EXTENDED_AMO, "atomic_swap"),
    old("9.7.1.4", "{}_swap", "T", ONE, "atomics::swap").of(OLD_EXTENDED_AMO, "swap"),
    amo("9.7.1.5", "1.4", "{}_atomic_fetch_inc", "T", "T *dest, int pe", "atomics::fetch_inc")
        .of(AMO, "atomic_fetch_inc"),
    old("9.7.1.5", "{}_finc", "T", "T *dest, int pe", "atomics::fetch_inc").of(OLD_AMO, "finc"),
    amo("9.7.1.6", "1.4", "{}_atomic_inc", "void", "T *dest, int pe", "atomics::inc").of(AMO, "atomic_inc"),
    old("9.7.1.6", "{}_inc", "void", "T *dest, int pe", "atomics::inc").of(OLD_AMO, "inc"),
    amo("9.7.1.7", "1.4", "{}_atomic_fetch_add", "T", ONE, "atomics::fetch_add").of(AMO, "atomic_fetch_add"),
    old("9.7.1.7", "{}_fadd", "T", ONE, "atomics::fetch_add").of(OLD_AMO, "fadd"),
    amo("9.7.1.8", "1.4", "{}_atomic_add", "void", ONE, "atomics::add").of(AMO, "atomic_add"),
    old("9.7.1.8", "{}_add", "void", ONE, "atomics::add").of(OLD_AMO, "add"),
    amo("9.7.1.9", "1.4", "{}_atomic_fetch_and", "T", ONE, "atomics::fetch_and")
        .of(BITWISE_AMO, "atomic_fetch_and"),
    amo("9.7.1.10", "1.4", "{}_atomic_and", "void", ONE, "atomics::and").of(BITWISE_AMO, "atomic_and"),
    amo("9.7.1.11", "1.4", "{}_atomic_fetch_or", "T", ONE, "atomics::fetch_or")
        .of(BITWISE_AMO, "atomic_fetch_or"),
    amo("9.7.1.12", "1.4", "{}_atomic_or", "void", ONE, "atomics::or").of(BITWISE_AMO, "atomic_or"),
    amo("9.7.1.13", "1.4", "{}_atomic_fetch_xor", "T", ONE, "atomics::fetch_xor")
        .of(BITWISE_AMO, "atomic_fetch_xor"),
    amo("9.7.1.14", "1.4", "{}_atomic_xor", "void", ONE, "atomics::xor").of(BITWISE_AMO, "atomic_xor"),
    amo(
        "9.7.2.1",
        "1.5",
        "{}_atomic_fetch_nbi",
        "void",
        "T *fetch, const T *source, int pe",
        "atomics::fetch_nbi",
    )
    .of(EXTENDED_AMO, "atomic_fetch_nbi"),
    amo(
        "9.7.2.2",
        "1.5",
        "{}_atomic_compare_swap_nbi",
        "void",
        "T *fetch, T *dest, T cond, T value, int pe",
        "atomics::compare_swap_nbi",
    )
    .of(AMO, "atomic_compare_swap_nbi"),
    amo("9.7.2.3", "1.5", "{}_atomic_swap_nbi", "void", ONE_FETCHED, "atomics::swap_nbi")
        .of(EXTENDED_AMO, "atomic_swap_nbi"),
    amo(
        "9.7.2.4",
        "1.5",
        "{}_atomic_fetch_inc_nbi",
        "void",
        "T *fetch, T *dest, int pe",
        "atomics::fetch_inc_nbi",
    )
    .of(AMO, "atomic_fetch_inc_nbi"),
    amo("9.7.2.5", "1.5", "{}_atomic_fetch_add_nbi", "void", ONE_FETCHED, "atomics::fetch_add_nbi")
        .of(AMO, "atomic_fetch_add_nbi"),
    amo("9.7.2.6", "1.5", "{}_atomic_fetch_and_nbi", "void", ONE_FETCHED, "atomics::fetch_and_nbi")
        .of(BITWISE_AMO, "atomic_fetch_and_nbi"),
    amo("9.7.2.7", "1.5", "{}_atomic_fetch_or_nbi", "void", ONE_FETCHED, "atomics::fetch_or_nbi")
        .of(BITWISE_AMO, "atomic_fetch_or_nbi"),
    amo("9.7.2.8", "1.5", "{}_atomic_fetch_xor_nbi", "void", ONE_FETCHED, "atomics::fetch_xor_nbi")
        .of(BITWISE_AMO, "atomic_fetch_xor_nbi"),
];

const PUT_SIGNAL: &str =
    "T *dest, const T *source, size_t nelems, uint64_t *sig_addr, uint64_t signal, int sig_op, int pe";
const SIGNAL: &str = "uint64_t *sig_addr, uint64_t signal, int pe";

const SIGNALS: &[Family] = &[
    rma("9.8.1", "1.5", "{}_put_signal", PUT_SIGNAL, "signals::put_signal").of(RMA, "put_signal"),
    rma("9.8.1", "1.5", "put{}_signal", PUT_SIGNAL, "signals::put_signal").of(SIZES_AND_MEM, ""),
    rma("9.8.2", "1.5", "{}_put_signal_nbi", PUT_SIGNAL, "signals::put_signal").of(RMA, "put_signal_nbi"),
    rma("9.8.2", "1.5", "put{}_signal_nbi", PUT_SIGNAL, "signals::put_signal").of(SIZES_AND_MEM, ""),
    rma("9.8.3", "1.6", "signal_add", SIGNAL, "signals::add"),
    plain("9.8.4", "1.5", "signal_fetch", "uint64_t", "const uint64_t *sig_addr", "signals::fetch"),
    rma("9.8.5", "1.6", "signal_set", SIGNAL, "signals::set"),
];

const WAITS: &[Family] = &[
    plain(
        "9.11.1",
        "1.0",
        "{}_wait_until",
        "void",
        "volatile T *ivar, int cmp, T cmp_value",
        "waits::wait_until",
    )
    .of(WAITED, "wait_until"),
    plain(
        "9.11.1",
        "1.0-1.4",
        "wait_until",
        "void",
        "volatile long *ivar, int cmp, long cmp_value",
        "waits::wait_until",
    ),
    plain("9.11.1", "1.0-1.4", "{}_wait", "void", "volatile T *ivar, T cmp_value", "waits::wait")
        .of(OLD_WAITED, ""),
    plain("9.11.1", "1.0-1.4", "wait", "void", "volatile long *ivar, long cmp_value", "waits::wait"),
    plain(
        "9.11.2",
        "1.5",
        "{}_wait_until_all",
        "void",
        "volatile T *ivars, size_t nelems, const int *status, int cmp, T cmp_value",
        "waits::wait_until_all",
    )
    .of(WAITED, "wait_until_all"),
    plain(
        "9.11.3",
        "1.5",
        "{}_wait_until_any",
        "size_t",
        "volatile T *ivars, size_t nelems, const int *status, int cmp, T cmp_value",
        "waits::wait_until_any",
    )
    .of(WAITED, "wait_until_any"),
    plain(
        "9.11.4",
        "1.5",
        "{}_wait_until_some",
        "size_t",
        "volatile T *ivars, size_t nelems, size_t *indices, const int *status, int cmp, T cmp_value",
        "waits::wait_until_some",
    )
    .of(WAITED, "wait_until_some"),
    plain(
        "9.11.5",
        "1.5",
        "{}_wait_until_all_vector",
        "void",
        "volatile T *ivars, size_t nelems, const int *status, int cmp, const T *cmp_values",
        "waits::wait_until_all_vector",
    )
    .of(WAITED, "wait_until_all_vector"),
    plain(
        "9.11.6",
        "1.5",
        "{}_wait_until_any_vector",
        "size_t",
        "volatile T *ivars, size_t nelems, const int *status, int cmp, const T *cmp_values",
        "waits::wait_until_any_vector",
    )
    .of(WAITED, "wait_until_any_vector"),
    plain(
        "9.11.7",
        "1.5",
        "{}_wait_until_some_vector",
        "size_t",
        "volatile T *ivars, size_t nelems, size_t *indices, const int *status, int cmp, const T *cmp_values",
        "waits::wait_until_some_vector",
    )
    .of(WAITED, "wait_until_some_vector"),
    plain("9.11.8", "1.4", "{}_test", "int", "volatile T *ivar, int cmp, T cmp_value", "waits::test")
        .of(WAITED, "test"),
    plain(
        "9.11.9",
        "1.5",
        "{}_test_all",
        "int",
        "volatile T *ivars, size_t nelems, const int *status, int cmp, T cmp_value",
        "waits::test_all",
    )
    .of(WAITED, "test_all"),
    plain(
        "9.11.10",
        "1.5",
        "{}_test_any",
        "size_t",
        "volatile T *ivars, size_t nelems, const int *status, int cmp, T cmp_value",
        "waits::test_any",
    )
    .of(WAITED, "test_any"),
    plain(
        "9.11.11",
        "1.5",
        "{}_test_some",
        "size_t",
        "volatile T *ivars, size_t nelems, size_t *indices, const int *status, int cmp, T cmp_value",
        "waits::test_some",
    )
    .of(WAITED, "test_some"),
    plain(
        "9.11.12",
        "1.5",
        "{}_test_all_vector",
        "int",
        "volatile T *ivars, size_t nelems, const int *status, int cmp, const T *cmp_values",
        "waits::test_all_vector",
    )
    .of(WAITED, "test_all_vector"),
    plain(
        "9.11.13",
        "1.5",
        "{}_test_any_vector",
        "size_t",
        "volatile T *ivars, size_t nelems, const int *status, int cmp, const T *cmp_values",
        "waits::test_any_vector",
    )
    .of(WAITED, "test_any_vector"),
    plain(
        "9.11.14",
        "1.5",
        "{}_test_some_vector",
        "size_t",
        "volatile T *ivars, size_t nelems, size_t *indices, const int *status, int cmp, const T *cmp_values",
        "waits::test_some_vector",
    )
    .of(WAITED, "test_some_vector"),
    plain(
        "9.11.15",
        "1.5",
        "signal_wait_until",
        "uint64_t",
        "uint64_t *sig_addr, int cmp, uint64_t cmp_value",
        "signals::wait_until",
    ),
];

const LOCKS: &[Family] = &[
    plain("9.13.1", "1.0", "set_lock", "void", "long *lock", "signals::locks::set"),
    plain("9.13.1", "1.0", "clear_lock", "void", "long *lock", "signals::locks::clear"),
    plain("9.13.1", "1.0", "test_lock", "int", "long *lock", "signals::locks::test"),
];

/// Calls that are not there: the header makes an error of each.
pub const MISSING: &[Missing] = &[
    cache("shmem_set_cache_inv"),
    cache("shmem_clear_cache_inv"),
    cache("shmem_set_cache_line_inv"),
    cache("shmem_clear_cache_line_inv"),
    cache("shmem_udcflush"),
    cache("shmem_udcflush_line"),
];

const fn cache(name: &'static str) -> Missing {
    Missing {
        name,
        section: "8.11 of OpenSHMEM 1.3, not in 1.6",
        reason: "caches of one machine are coherent",
    }
}
