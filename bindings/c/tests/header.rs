//! Generates `include/shmccl.h` from the crate, and compares it with the one that is checked in.
//! `SHMCCL_WRITE_HEADER=1 cargo test -p shmccl-c --test header` writes it.

use std::path::Path;

const INTRODUCTION: &str = "\
/* shmccl: NCCL-style collectives and one-sided channels for processes on one Linux machine.
 *
 * Generated from bindings/c/src; docs/c.md tells how to begin. The shape is that of nccl.h.
 *
 * - Functions return a result; shmcclGetLastError has the text of the last failure of a thread.
 * - Ranks make the same collective calls of a communicator in the same order. Counts are elements.
 * - One thread at a time makes calls of a communicator; another one waits. Functions that end or
 *   observe it (revoke, abort, get async error) may be called at any time.
 * - Handles are checked, and so is every pointer that may not be NULL. Buffers are the caller's
 *   word. They may lie anywhere, at any alignment; memory of shmcclMemAlloc is moved without a copy.
 * - A failure while data move ends the epoch of the communicator, for all ranks.
 */";

const FORWARD: &str = "
/* The functions of this header: see its end. */
typedef struct shmcclTable shmcclTable;

/* Options that are all left to the library. */
#define SHMCCL_CONFIG_INITIALIZER {sizeof(shmcclConfig_t), 0, 0, 0}";

const STATICS: &str = "
/* At file scope, once in a program: its static objects are symmetric memory from before its other
 * constructors on. See shmcclMapStatics. */
#define SHMCCL_SYMMETRIC_STATICS                                                \\
    __attribute__((constructor(101), used)) static void shmcclConstruct(void) { \\
        (void)shmcclMapStatics();                                               \\
    }                                                                           \\
    struct shmcclTable
";

#[test]
fn the_header_is_the_one_that_the_crate_makes() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = crate_dir.join("include/shmccl.h");
    let made = header(crate_dir);
    if std::env::var_os("SHMCCL_WRITE_HEADER").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = made.lines().zip(kept.lines()).position(|(made, kept)| made != kept);
    assert!(made == kept, "line {differs:?} differs: run this test with SHMCCL_WRITE_HEADER=1");
}

fn header(crate_dir: &Path) -> String {
    let mut config = cbindgen::Config::from_file(crate_dir.join("cbindgen.toml")).unwrap();
    config.header = Some(INTRODUCTION.into());
    config.after_includes = Some(FORWARD.into());
    let mut bytes = Vec::new();
    cbindgen::Builder::new().with_crate(crate_dir).with_config(config).generate().unwrap().write(&mut bytes);
    let text = String::from_utf8(bytes).unwrap();
    // What is a duty to a caller in Rust is one to a caller in C.
    let text = text.replace(" * # Safety\n", " * Duties of the caller:\n");
    let end = text.rfind("#ifdef __cplusplus").unwrap();
    format!("{}{}{STATICS}\n{}", &text[..end], table(&text), &text[end..])
}

/// Returns the table of functions with their types, each as it is declared in `header`.
fn table(header: &str) -> String {
    let member = |name: &&str| {
        let called = format!("{name}(");
        let at = header.find(&called).unwrap_or_else(|| panic!("{name} is declared"));
        let start = header[..at].rfind("\n\n").map_or(0, |start| start + 2);
        let start = header[start..at].rfind("*/\n").map_or(start, |end| start + end + 3);
        let arguments = at + called.len();
        let end = arguments + header[arguments..].find(");").unwrap();
        let words = header[arguments..end].split_whitespace().collect::<Vec<_>>().join(" ");
        let short = name.strip_prefix("shmccl").unwrap();
        format!("    {}(*{short})({words});\n", &header[start..at])
    };
    let members: String = shmccl_c::TABLE_NAMES.iter().map(member).collect();
    format!(
        "/**\n * The functions of this header, for programs that do not link to the library: see\n * shmcclGetTable. \
         Members are only ever added at the end.\n */\nstruct shmcclTable {{\n    \
         /* sizeof(shmcclTable) in the library, which may be newer than this header. */\n    uint32_t size;\n    \
         /* SHMCCL_TABLE_VERSION */\n    uint32_t version;\n{members}}};\n"
    )
}

#[test]
fn every_function_of_the_header_is_in_the_table_but_the_one_that_returns_it() {
    let header = header(Path::new(env!("CARGO_MANIFEST_DIR")));
    let declared = header.split("struct shmcclTable {").next().unwrap();
    let functions =
        declared.lines().filter(|line| !line.starts_with([' ', '/', '#']) && line.contains("shmccl"));
    let names: Vec<_> = functions
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("shmccl"))
        .collect();
    for name in &names {
        let is_known = shmccl_c::TABLE_NAMES.contains(name) || *name == "shmcclGetTable";
        assert!(is_known, "{name} is not in the table");
    }
    assert_eq!(names.len(), shmccl_c::TABLE_NAMES.len() + 1);
}
