//! Holds the lists of operations, data types and operators that other languages and programs have
//! against those of the engine.
//!
//! [`TYPES`], [`OPERATORS`] and [`CALLS`] say how each place spells what the engine has. What a
//! place leaves out on purpose stands beside the place, with the reason. A line of a failure names
//! the file and the name that is missing there.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use shmccl::collective::Operation;
use shmccl::comm::CollectiveCall;
use shmccl::reduce::{DataType, ReduceOp};

const HEADER: &str = "bindings/c/include/shmccl.h";
const C_CALLS: &str = "bindings/c/src/calls.rs";
const NCCL: &str = "bindings/c/include/nccl_compat.h";
const DTYPES: &str = "bindings/python/src/dtype.rs";
const STUBS: &str = "bindings/python/python/shmccl/_core.pyi";
const NUMBERS: &str = "bindings/python/src/table_numbers.rs";
const TORCH: &str = "bindings/python/python/shmccl/torch";
const POOL: &str = "bindings/grpc/proto/shmccl/v1/pool.proto";
const SIMULATOR: &str = "bindings/grpc/proto/gpu_sim.proto";
const PERF_FLAGS: &str = "bin/perf/flags/collective.rs";

/// How a data type is spelt: in C, by NumPy and torch, in the pool's protocol, by torch in C++.
const TYPES: [(DataType, [&str; 4]); 17] = [
    (DataType::I8, ["Int8", "int8", "INT8", "kChar"]),
    (DataType::U8, ["Uint8", "uint8", "UINT8", "kByte"]),
    (DataType::I32, ["Int32", "int32", "INT32", "kInt"]),
    (DataType::U32, ["Uint32", "uint32", "UINT32", "kUInt32"]),
    (DataType::I64, ["Int64", "int64", "INT64", "kLong"]),
    (DataType::U64, ["Uint64", "uint64", "UINT64", "kUInt64"]),
    (DataType::F16, ["Float16", "float16", "FLOAT16", "kHalf"]),
    (DataType::Bf16, ["Bfloat16", "bfloat16", "BFLOAT16", "kBFloat16"]),
    (DataType::F32, ["Float32", "float32", "FLOAT32", "kFloat"]),
    (DataType::F64, ["Float64", "float64", "FLOAT64", "kDouble"]),
    (DataType::F8E4M3, ["Float8e4m3", "float8_e4m3fn", "FLOAT8E4M3", "kFloat8_e4m3fn"]),
    (DataType::F8E5M2, ["Float8e5m2", "float8_e5m2", "FLOAT8E5M2", "kFloat8_e5m2"]),
    (DataType::I16, ["Int16", "int16", "INT16", "kShort"]),
    (DataType::U16, ["Uint16", "uint16", "UINT16", "kUInt16"]),
    (DataType::Bool, ["Bool", "bool", "BOOL", "kBool"]),
    (DataType::Complex64, ["Complex64", "complex64", "COMPLEX64", "kComplexFloat"]),
    (DataType::Complex128, ["Complex128", "complex128", "COMPLEX128", "kComplexDouble"]),
];

/// How an operator is spelt: in C, in Python and by `perf`, in protocols, by torch.
const OPERATORS: [(ReduceOp, [&str; 4]); 8] = [
    (ReduceOp::Sum, ["Sum", "sum", "SUM", "SUM"]),
    (ReduceOp::Prod, ["Prod", "prod", "PROD", "PRODUCT"]),
    (ReduceOp::Min, ["Min", "min", "MIN", "MIN"]),
    (ReduceOp::Max, ["Max", "max", "MAX", "MAX"]),
    (ReduceOp::Avg, ["Avg", "avg", "AVG", "AVG"]),
    (ReduceOp::BitAnd, ["BitAnd", "band", "BAND", "BAND"]),
    (ReduceOp::BitOr, ["BitOr", "bor", "BOR", "BOR"]),
    (ReduceOp::BitXor, ["BitXor", "bxor", "BXOR", "BXOR"]),
];

/// How an operation that moves data is spelt: in C, in Python, in the pool's protocol. They stand
/// in the order of their codes in C. The tests of `perf` follow from the engine's own list.
const CALLS: [(Operation, [&str; 3]); 13] = [
    (Operation::AllReduce, ["OpAllReduce", "all_reduce", "ALL_REDUCE"]),
    (Operation::Reduce, ["OpReduce", "reduce", "REDUCE"]),
    (Operation::Broadcast, ["OpBroadcast", "broadcast", "BROADCAST"]),
    (Operation::AllGather, ["OpAllGather", "all_gather", "ALL_GATHER"]),
    (Operation::ReduceScatter, ["OpReduceScatter", "reduce_scatter", "REDUCE_SCATTER"]),
    (Operation::AllToAll, ["OpAlltoAll", "all_to_all", "ALL_TO_ALL"]),
    (Operation::Gather, ["OpGather", "gather", "GATHER"]),
    (Operation::Scatter, ["OpScatter", "scatter", "SCATTER"]),
    (Operation::AllToAllV, ["OpAlltoAllv", "all_to_all_v", "ALL_TO_ALL_V"]),
    (Operation::Send, ["OpSend", "send", "SEND"]),
    (Operation::Recv, ["OpRecv", "recv", "RECV"]),
    (Operation::Scan, ["OpScan", "scan", "SCAN"]),
    (Operation::ExScan, ["OpExscan", "exscan", "EXSCAN"]),
];

/// The operations that are no calls with a buffer and a type, or are another one's form.
const OTHER_OPERATIONS: [(Operation, &str); 17] = [
    (Operation::Barrier, "it has no buffers: a function of its own, or an all-reduce of nothing"),
    (Operation::Split, "it makes a communicator"),
    (Operation::Finalize, "it ends a communicator"),
    (Operation::Duplicate, "it makes a communicator"),
    (Operation::Alloc, "it takes memory"),
    (Operation::Free, "it gives memory back"),
    (Operation::SetChannelKind, "it is a setting"),
    (Operation::SwitchChannel, "it opens a channel"),
    (Operation::RegisterAlgorithm, "it is a setting"),
    (Operation::Group, "it is made of other calls"),
    (Operation::Grow, "it makes a communicator"),
    (Operation::Checkpoint, "it writes files"),
    (Operation::Restore, "it reads files"),
    (Operation::SetTuning, "it is a setting"),
    (Operation::Prepare, "it moves nothing"),
    (Operation::RecvAny, "it is a receive that names no rank"),
    (Operation::RunPlan, "it is called by the name of a plan"),
];

const UNKNOWN_TO_NCCL: &str = "nccl.h has no such name";
const UNKNOWN_TO_THE_POOL: &str = "the coordinator has no such call";

/// What NCCL's header lacks.
const NOT_IN_NCCL: [(&str, &str); 8] = [
    ("Int16", UNKNOWN_TO_NCCL),
    ("Uint16", UNKNOWN_TO_NCCL),
    ("Bool", UNKNOWN_TO_NCCL),
    ("Complex64", UNKNOWN_TO_NCCL),
    ("Complex128", UNKNOWN_TO_NCCL),
    ("BitAnd", UNKNOWN_TO_NCCL),
    ("BitOr", UNKNOWN_TO_NCCL),
    ("BitXor", UNKNOWN_TO_NCCL),
];

/// What the protocol of the pool leaves out.
const NOT_IN_THE_POOL: [(&str, &str); 3] =
    [("ALL_TO_ALL_V", UNKNOWN_TO_THE_POOL), ("SEND", UNKNOWN_TO_THE_POOL), ("RECV", UNKNOWN_TO_THE_POOL)];

/// What the protocol of the simulator leaves out, which is given: it is not this project's.
const NOT_IN_THE_SIMULATOR: [(&str, &str); 4] = [
    ("AVG", "the protocol is given, and keeps its number"),
    ("BAND", "the protocol is given"),
    ("BOR", "the protocol is given"),
    ("BXOR", "the protocol is given"),
];

/// What the backend of torch does by other operations.
const NOT_IN_TORCH: [(&str, &str); 3] = [
    ("OpAlltoAll", "it is an all-to-all of blocks of any length"),
    ("OpScan", "no call of c10d is one"),
    ("OpExscan", "no call of c10d is one"),
];

const NOTHING: [(&str, &str); 0] = [];

/// A place that has a list.
struct Place<'a> {
    file: &'a str,
    /// The names that stand there.
    found: BTreeSet<String>,
    /// The names that the engine has not; `None` where other things stand between those of the
    /// list.
    more: Option<&'a [&'a str]>,
    /// Spellings that it does without, with the reason.
    left_out: &'a [(&'a str, &'a str)],
}

impl Place<'_> {
    /// Returns which of the engine's names, each with its spelling, are missing there, and which
    /// are there that the engine has not.
    fn differences<T: Display>(&self, spelt: impl Iterator<Item = (T, &'static str)>) -> Vec<String> {
        let (file, mut failed, mut known) = (self.file, Vec::new(), BTreeSet::new());
        for (name, spelling) in spelt {
            known.insert(spelling);
            let is_left_out = self.left_out.iter().any(|(left_out, _)| *left_out == spelling);
            match self.found.contains(spelling) {
                false if !is_left_out => {
                    failed.push(format!("{file}: {spelling} is missing, which is {name}"))
                }
                true if is_left_out => {
                    failed.push(format!("{file}: {spelling} is there, and told as left out"))
                }
                _ => {}
            }
        }
        let Some(more) = self.more else { return failed };
        let strange = self.found.iter().map(String::as_str).filter(|name| !known.contains(name));
        let strange = strange.filter(|name| !more.contains(name));
        failed.extend(strange.map(|name| format!("{file}: {name} is nothing of the engine's")));
        failed
    }
}

#[test]
fn every_place_has_the_data_types_of_the_engine() {
    let mut failed = Vec::new();
    for dtype in DataType::ALL.into_iter().filter(|dtype| TYPES.iter().all(|(known, _)| known != dtype)) {
        failed.push(format!("tests/lists.rs: no spelling of {dtype}"));
    }
    let (header, torch) = (read(HEADER), torch_sources());
    let flags = read(PERF_FLAGS);
    let tested = between(PERF_FLAGS, &flags, "const TYPES: ", "];");
    let debug: Vec<_> = TYPES.iter().map(|(dtype, _)| format!("{dtype:?}")).collect();
    let tested = names_after(tested, "DataType::");
    failed.extend(
        debug
            .iter()
            .filter(|name| !tested.contains(*name))
            .map(|name| format!("{PERF_FLAGS}: {name} is missing")),
    );
    let dtypes = read(DTYPES);
    let dtypes = between(DTYPES, &dtypes, "pub static ALL", "];");
    let (shim_file, shim) = holding(&torch, ".cpp .hpp", "shmcclDataType_t> types{");
    let shim = between(shim_file, shim, "shmcclDataType_t> types{", "};");
    let places = [
        (0, exact(HEADER, members(c_enum(&header, "shmcclDataType_t")), &NOTHING)),
        (0, some(NCCL, names_after(&read(NCCL), " shmccl"), &NOT_IN_NCCL)),
        (1, exact(DTYPES, names_after(dtypes, "name: \""), &NOTHING)),
        (2, exact(POOL, proto_enum(POOL, "DataType"), &NOT_IN_THE_POOL)),
        (3, exact(shim_file, names_after(shim, "{at::"), &NOTHING)),
        (0, exact(shim_file, names_after(shim, ", shmccl"), &NOTHING)),
    ];
    for (column, place) in places {
        failed.extend(place.differences(TYPES.iter().map(|(dtype, names)| (dtype, names[column]))));
    }
    let (file, source) = holding(&torch, ".py", "\nTYPES = {");
    if !between(file, source, "\nTYPES = {", "}").contains("_table.TYPES") {
        failed.push(format!("{file}: TYPES is a list of its own"));
    }
    let codes = c_enum(&header, "shmcclDataType_t");
    for (dtype, names) in TYPES {
        failed.extend(wrong_code(codes, names[0], dtype.code().into()));
    }
    assert!(failed.is_empty(), "\n{}", failed.join("\n"));
}

#[test]
fn every_place_has_the_operators_of_the_engine() {
    let mut failed = Vec::new();
    for op in ReduceOp::PLAIN.into_iter().filter(|op| OPERATORS.iter().all(|(known, _)| known != op)) {
        failed.push(format!("tests/lists.rs: no spelling of {op}"));
    }
    let (header, stubs, flags, torch) = (read(HEADER), read(STUBS), read(PERF_FLAGS), torch_sources());
    let literal = between(STUBS, &stubs, "\nOp: TypeAlias = Literal[", "]");
    let tested = between(PERF_FLAGS, &flags, "const OPERATORS: ", ";\n");
    let (shim_file, shim) = holding(&torch, ".cpp .hpp", "shmcclRedOp_t> ops{");
    let shim = between(shim_file, shim, "shmcclRedOp_t> ops{", "};");
    let (fallback_file, fallback) = holding(&torch, ".py", "\nOPERATORS = {");
    let fallback = between(fallback_file, fallback, "\nOPERATORS = {", "\n}");
    let mut in_c = exact(HEADER, members(c_enum(&header, "shmcclRedOp_t")), &NOTHING);
    in_c.more = Some(&["MaxRedOp"]);
    let mut in_simulator = exact(SIMULATOR, proto_enum(SIMULATOR, "ReduceOp"), &NOT_IN_THE_SIMULATOR);
    in_simulator.more = Some(&["WRITE"]);
    let mut in_shim = exact(shim_file, names_after(shim, "{Op::"), &NOTHING);
    in_shim.more = Some(&["PREMUL_SUM"]);
    let mut in_fallback = exact(fallback_file, names_after(fallback, "(ReduceOp."), &NOTHING);
    in_fallback.more = Some(&["PREMUL_SUM"]);
    let places = [
        (0, in_c),
        (0, some(NCCL, names_after(&read(NCCL), " shmccl"), &NOT_IN_NCCL)),
        (1, exact(STUBS, names_after(literal, "\""), &NOTHING)),
        (0, some(NUMBERS, names_after(&read(NUMBERS), " shmccl"), &NOTHING)),
        (1, exact(PERF_FLAGS, names_after(tested, "\""), &NOTHING)),
        (2, exact(POOL, proto_enum(POOL, "Operator"), &NOT_IN_THE_POOL)),
        (2, in_simulator),
        (3, in_shim),
        (0, exact(shim_file, names_after(shim, ", shmccl"), &NOTHING)),
        (3, in_fallback),
    ];
    for (column, place) in places {
        failed.extend(place.differences(OPERATORS.iter().map(|(op, names)| (op, names[column]))));
    }
    let codes = c_enum(&header, "shmcclRedOp_t");
    for (code, op) in (0..).zip(ReduceOp::PLAIN) {
        let names = OPERATORS.iter().find(|(known, _)| *known == op).map(|(_, names)| names[0]);
        failed.extend(names.and_then(|name| wrong_code(codes, name, code)));
    }
    assert!(failed.is_empty(), "\n{}", failed.join("\n"));
}

#[test]
fn every_place_has_the_operations_of_the_engine() {
    let mut failed = Vec::new();
    for operation in Operation::ALL {
        let known = CALLS.iter().filter(|(known, _)| *known == operation).count()
            + OTHER_OPERATIONS.iter().filter(|(known, _)| *known == operation).count();
        if known != 1 {
            failed.push(format!("tests/lists.rs: {operation} stands in {known} tables of operations"));
        }
    }
    let (header, torch) = (read(HEADER), torch_sources());
    let shim: String =
        torch.iter().filter(|(file, _)| !file.ends_with(".py")).map(|(_, text)| &**text).collect();
    let calls = read(C_CALLS);
    let in_c = between(C_CALLS, &calls, "\noperations! {", "\n}");
    let mut in_pool = exact(POOL, proto_enum(POOL, "Collective"), &NOT_IN_THE_POOL);
    in_pool.more = Some(&["COLLECTIVE_UNSPECIFIED"]);
    let places = [
        (0, exact(HEADER, members(c_enum(&header, "shmcclOperation_t")), &NOTHING)),
        (1, some(STUBS, names_after(&read(STUBS), "    def "), &NOTHING)),
        (0, exact(C_CALLS, names_after(in_c, "shmccl"), &NOTHING)),
        (2, in_pool),
        (0, some(TORCH, names_after(&shim, "shmccl"), &NOT_IN_TORCH)),
    ];
    if !read(NUMBERS).contains("= OPERATIONS.iter()") {
        failed.push(format!("{NUMBERS}: the operations are a list of its own"));
    }
    let missing = CALLS.iter().filter(|(call, _)| !CollectiveCall::OPERATIONS.contains(call));
    failed.extend(missing.map(|(call, _)| format!("src/comm/calls/call.rs: {call} is missing")));
    let codes = c_enum(&header, "shmcclOperation_t");
    failed.extend((0..).zip(CALLS).filter_map(|(code, (_, names))| wrong_code(codes, names[0], code)));
    for (column, place) in places {
        failed.extend(place.differences(CALLS.iter().map(|(call, names)| (call, names[column]))));
    }
    assert!(failed.is_empty(), "\n{}", failed.join("\n"));
}

/// A place where nothing but the list stands.
fn exact<'a>(file: &'a str, found: BTreeSet<String>, left_out: &'a [(&'a str, &'a str)]) -> Place<'a> {
    Place { file, found, more: Some(&[]), left_out }
}

/// A place where the names of the list stand among others.
fn some<'a>(file: &'a str, found: BTreeSet<String>, left_out: &'a [(&'a str, &'a str)]) -> Place<'a> {
    Place { file, found, more: None, left_out }
}

fn path_of(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

fn read(file: &str) -> String {
    std::fs::read_to_string(path_of(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Returns the sources of the backend of torch, each with its path.
fn torch_sources() -> Vec<(String, String)> {
    let (mut found, mut folders) = (Vec::new(), vec![TORCH.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(path_of(&folder)).unwrap_or_else(|error| panic!("{folder}: {error}")) {
            let entry = entry.unwrap();
            let name = format!("{folder}/{}", entry.file_name().display());
            if entry.file_type().unwrap().is_dir() {
                folders.push(name);
            } else if [".py", ".cpp", ".hpp"].iter().any(|end| name.ends_with(end)) {
                let text = read(&name);
                found.push((name, text));
            }
        }
    }
    found.sort();
    found
}

/// Returns the source, of those whose names end so, in which `text` stands.
fn holding<'a>(sources: &'a [(String, String)], ends: &str, text: &str) -> (&'a str, &'a str) {
    let mut fitting = sources.iter().filter(|(file, _)| ends.split(' ').any(|end| file.ends_with(end)));
    let found = fitting.find(|(_, source)| source.contains(text));
    let (file, source) = found.unwrap_or_else(|| panic!("{TORCH}: {} is missing", text.trim()));
    (file, source)
}

/// Returns what stands in `text` between `start` and `end`.
fn between<'a>(file: &str, text: &'a str, start: &str, end: &str) -> &'a str {
    let (_, behind) = text.split_once(start).unwrap_or_else(|| panic!("{file}: {} is missing", start.trim()));
    behind.split_once(end).map_or(behind, |(inside, _)| inside)
}

/// Returns the words that follow each `prefix` in `text`.
fn names_after(text: &str, prefix: &str) -> BTreeSet<String> {
    let word = |rest: &str| {
        rest.split(|char: char| !char.is_alphanumeric() && char != '_').next().map(str::to_owned)
    };
    text.split(prefix).skip(1).filter_map(word).filter(|word| !word.is_empty()).collect()
}

/// Returns the members of an enum of the header.
fn c_enum<'a>(header: &'a str, name: &str) -> &'a str {
    let end = header.find(&format!("}} {name};")).unwrap_or_else(|| panic!("{HEADER}: {name} is missing"));
    let start = header[..end].rfind("enum").unwrap_or(end);
    &header[start..end]
}

/// Returns the names of the members of an enum of the header.
fn members(lines: &str) -> BTreeSet<String> {
    let member = |line: &str| Some(line.trim().strip_prefix("shmccl")?.split_once(" = ")?.0.to_owned());
    lines.lines().filter_map(member).collect()
}

/// Returns a line if the member `name` of an enum has another code than `code`.
fn wrong_code(members: &str, name: &str, code: u32) -> Option<String> {
    let is_there = members.contains(&format!("shmccl{name} = {code},"));
    (!is_there).then(|| format!("{HEADER}: shmccl{name} has not code {code}"))
}

/// Returns the members of an enum of a protocol.
fn proto_enum(file: &str, name: &str) -> BTreeSet<String> {
    let text = read(file);
    let members = between(file, &text, &format!("\nenum {name} {{"), "\n}");
    let member = |line: &str| Some(line.split_once(" = ")?.0.trim().to_owned());
    members.lines().filter(|line| !line.trim().starts_with("//")).filter_map(member).collect()
}
