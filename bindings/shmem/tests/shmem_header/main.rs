//! Generates `include/shmem.h` and the tables of `docs/shmem.md` and `docs/calls.md` from the table
//! of calls, and compares them with those that are checked in.
//! `SHMCCL_WRITE_HEADER=1 cargo test -p shmccl-shmem --test shmem_header` writes them.

mod calls;
mod generics;
mod list;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use shmccl_shmem::table::{FAMILIES, Family, MISSING, TypeForm};

const BEGIN: &str = "<!-- The table below is generated: tests/shmem_header. -->\n";
const END: &str = "<!-- The table above is generated. -->\n";
const INTRODUCTION: &str = include_str!("introduction.h");

/// A function of C: what it returns, its name, and its parameters.
pub(crate) struct Declared {
    pub(crate) returns: String,
    pub(crate) name: String,
    pub(crate) parameters: String,
}

/// All families, in the order of the specification.
pub(crate) fn families() -> impl Iterator<Item = &'static Family> {
    FAMILIES.iter().copied().flatten()
}

/// Returns a function of a family.
pub(crate) fn declared(family: &Family, of: &TypeForm, with_context: bool) -> Declared {
    let name = family.name.replace("{}", of.name);
    let name = match (name.strip_prefix('='), with_context) {
        (Some(whole), _) => whole.to_owned(),
        (None, false) => format!("shmem_{name}"),
        (None, true) => format!("shmem_ctx_{name}"),
    };
    let mut parameters = typed(family.parameters, of);
    if with_context {
        let rest = if parameters == "void" { String::new() } else { format!(", {parameters}") };
        parameters = format!("shmem_ctx_t ctx{rest}");
    }
    Declared { returns: typed(family.returns, of), name, parameters }
}

/// Puts a type in the place of `T`.
pub(crate) fn typed(text: &str, of: &TypeForm) -> String {
    let one = |parameter: &str| match parameter.split_once("T ") {
        Some(("" | "const " | "volatile ", _)) => parameter.replacen("T ", &format!("{} ", of.c), 1),
        _ if parameter == "T" => of.c.to_owned(),
        _ => parameter.to_owned(),
    };
    text.split(", ").map(one).collect::<Vec<_>>().join(", ")
}

/// Returns every function of the library, under its own name.
pub(crate) fn functions() -> impl Iterator<Item = (&'static Family, Declared)> {
    families().flat_map(|family| {
        family.types.iter().flat_map(move |of| {
            let contexts = if family.has_context { &[false, true][..] } else { &[false] };
            contexts.iter().map(move |with| (family, declared(family, of, *with)))
        })
    })
}

fn header() -> String {
    let mut text = String::from(INTRODUCTION);
    let mut section = "";
    for (family, function) in functions() {
        if family.section != section {
            section = family.section;
            writeln!(text, "\n/* {section} */").unwrap();
        }
        let Declared { returns, name, parameters } = function;
        let space = if returns.ends_with('*') { "" } else { " " };
        // In C++ the generic form of this one has the same parameters.
        let only_in_c = name == "shmem_wait_until";
        if only_in_c {
            text.push_str("#ifndef __cplusplus\n");
        }
        writeln!(text, "{returns}{space}{name}({parameters});").unwrap();
        if !family.name.starts_with('=') {
            writeln!(text, "{returns}{space}p{name}({parameters});").unwrap();
        }
        if only_in_c {
            text.push_str("#endif\n");
        }
    }
    text.push_str("\n/* What is not there. */\n");
    for missing in MISSING {
        let told = format!("shmccl has no {}: {} ({})", missing.name, missing.reason, missing.section);
        writeln!(text, "void {}() SHMEM_MISSING_(\"{told}\");", missing.name).unwrap();
    }
    text.push_str("\n#ifdef __cplusplus\n}\n#endif\n");
    text.push_str(&generics::overloads());
    text.push_str(&generics::selections());
    text.push_str("\n#endif /* SHMEM_H */\n");
    text
}

fn compare(path: &Path, made: &str) {
    if std::env::var_os("SHMCCL_WRITE_HEADER").is_some() {
        std::fs::write(path, made).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    let differs = made.lines().zip(kept.lines()).position(|(made, kept)| made != kept);
    assert!(
        made == kept,
        "{}: line {differs:?} differs: run this test with SHMCCL_WRITE_HEADER=1",
        path.display()
    );
}

/// Compares the generated part of a page.
fn compare_part(page: &str, made: &str) {
    let path = here().join("../../docs").join(page);
    let kept = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = kept.split_once(BEGIN).expect("the table has a beginning");
    let (_, after) = rest.split_once(END).expect("the table has an end");
    compare(&path, &format!("{before}{BEGIN}{made}{END}{after}"));
}

fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_header_is_the_one_that_the_table_makes() {
    compare(&here().join("include/shmem.h"), &header());
}

#[test]
fn the_list_of_calls_is_the_one_that_the_table_makes() {
    compare_part("shmem.md", &list::list());
}

#[test]
fn the_table_of_all_calls_is_the_one_that_the_rows_make() {
    compare_part("calls.md", &calls::table());
}

#[test]
fn no_two_functions_have_one_name() {
    let mut names: Vec<_> = functions().map(|(_, function)| function.name).collect();
    names.extend(MISSING.iter().map(|missing| missing.name.to_owned()));
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}
