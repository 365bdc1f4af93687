//! Writes the exported functions from the table of calls, and names the shared library.

use std::fmt::Write;
use std::path::Path;

#[allow(
    dead_code,
    unreachable_pub,
    reason = "what the header and the list need of a row, the functions do not"
)]
#[path = "src/table.rs"]
mod table;

use table::{FAMILIES, Family, TypeForm};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/table.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libshmccl_shmem.so.0");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    let mut text = String::new();
    for family in FAMILIES.iter().copied().flatten() {
        for of in family.types {
            function(&mut text, family, of, false);
            if family.has_context {
                function(&mut text, family, of, true);
            }
        }
    }
    let target = Path::new(&std::env::var_os("OUT_DIR").unwrap()).join("functions.rs");
    std::fs::write(target, text).unwrap();
}

/// Writes one function under its name, and once more under its profiling name.
fn function(text: &mut String, family: &Family, of: &TypeForm, with_context: bool) {
    let parameters: Vec<_> =
        family.parameters.split(", ").filter(|one| !matches!(*one, "void" | "...")).map(parameter).collect();
    let by_value = family.returns == "T" || parameters.iter().any(|(kind, _)| *kind == "T");
    if by_value && of.rust == "LongDouble" {
        // These take or return what Rust has no type for: `long_double` has them.
        return;
    }
    let whole = family.name.strip_prefix('=');
    let name = whole.unwrap_or(family.name).replace("{}", of.name);
    let names = match (whole, with_context) {
        (Some(_), _) => vec![name],
        (None, false) => vec![format!("shmem_{name}"), format!("pshmem_{name}")],
        (None, true) => vec![format!("shmem_ctx_{name}"), format!("pshmem_ctx_{name}")],
    };
    let mut declared: Vec<_> =
        parameters.iter().map(|(kind, name)| format!("{name}: {}", rust_type(kind, of))).collect();
    let mut passed: Vec<_> = parameters.iter().map(|(_, name)| (*name).to_owned()).collect();
    // Every atomic operation takes one, but those of old have only the default one.
    if family.has_context || family.call.starts_with("atomics::") {
        passed.insert(0, if with_context { "ctx" } else { "Ctx::DEFAULT" }.to_owned());
    }
    if with_context {
        declared.insert(0, "ctx: Ctx".to_owned());
    }
    let returns = if family.returns == "void" { "()".to_owned() } else { rust_type(family.returns, of) };
    let mut call = family.call.replace(",T>", &format!(", {}>", of.rust));
    if family.name.contains("{}") && !call.contains('<') {
        write!(call, "::<{}>", of.rust).unwrap();
    }
    for name in names {
        writeln!(
            text,
            "#[unsafe(no_mangle)]\nunsafe extern \"C\" fn {name}({}) -> {returns} {{\n    \
             /* SAFETY: the caller's duties are those of the call. */\n    \
             unsafe {{ crate::{call}({}) }}\n}}",
            declared.join(", "),
            passed.join(", "),
        )
        .unwrap();
    }
}

/// Divides a parameter into its type and its name.
fn parameter(text: &str) -> (&str, &str) {
    let at = text.rfind([' ', '*']).expect("a type and a name") + 1;
    (text[..at].trim(), &text[at..])
}

/// Returns the type in Rust of one in C.
fn rust_type(c: &str, of: &TypeForm) -> String {
    let (base, pointer) = c.strip_suffix('*').map_or((c, ""), |base| (base.trim(), "*mut "));
    let base = base.trim_start_matches("volatile ");
    let (base, pointer) = base.strip_prefix("const ").map_or((base, pointer), |base| (base, "*const "));
    let named = match base {
        "T" => of.rust,
        "void" => "c_void",
        "char" => "c_char",
        "int" => "c_int",
        "long" => "c_long",
        "size_t" => "usize",
        "ptrdiff_t" => "isize",
        "uint64_t" => "u64",
        "shmem_team_t" => "Team",
        "shmem_ctx_t" => "Ctx",
        "shmem_team_config_t" => "TeamConfig",
        "shmem_ctx_session_config_t" => "SessionConfig",
        other => panic!("{other} is no known type"),
    };
    format!("{pointer}{named}")
}
