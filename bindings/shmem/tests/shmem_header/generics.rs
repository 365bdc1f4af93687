//! The forms without a type in their names: selections of C11, and overloads of C++.

use std::fmt::Write;

use shmccl_shmem::table::{Family, TypeForm};

use super::{Declared, declared, families};

/// One name, with all families that it stands for.
fn generics() -> Vec<(&'static str, Vec<&'static Family>)> {
    let mut found: Vec<(&str, Vec<&Family>)> = Vec::new();
    for family in families().filter(|family| !family.generic.is_empty()) {
        match found.iter_mut().find(|(name, _)| *name == family.generic) {
            Some((_, families)) => families.push(family),
            None => found.push((family.generic, vec![family])),
        }
    }
    found
}

/// The forms of a family that differ in C: two names of one type are one.
fn distinct(family: &Family) -> Vec<&TypeForm> {
    let mut forms: Vec<&TypeForm> = Vec::new();
    for of in family.types {
        if forms.iter().all(|other| other.basic != of.basic) {
            forms.push(of);
        }
    }
    forms
}

/// The names of parameters.
fn names(parameters: &str) -> String {
    let name = |one: &str| one[one.rfind([' ', '*']).map_or(0, |at| at + 1)..].to_owned();
    parameters.split(", ").map(name).collect::<Vec<_>>().join(", ")
}

pub(crate) fn overloads() -> String {
    let mut text = String::from("\n#ifdef __cplusplus\n");
    let mut overload = |generic: &str, Declared { returns, name, parameters }: Declared| {
        let back = if returns == "void" { "" } else { "return " };
        let space = if returns.ends_with('*') { "" } else { " " };
        let passed = names(&parameters);
        writeln!(
            text,
            "static inline {returns}{space}shmem_{generic}({parameters}) {{ {back}{name}({passed}); }}"
        )
        .unwrap();
    };
    for (generic, families) in generics() {
        for family in families {
            for of in distinct(family) {
                overload(generic, declared(family, of, false));
                if family.has_context {
                    overload(generic, declared(family, of, true));
                }
            }
        }
    }
    overload("sync", plain("shmem_team_sync"));
    for name in ["signal_add", "signal_set"] {
        let with_context = format!("shmem_ctx_{name}");
        if has(&with_context) {
            overload(name, plain(&with_context));
        }
    }
    complex_overloads(&mut text);
    text.push_str("#endif\n");
    text
}

/// Adds the forms for complex numbers of C++, which lie in memory as those of C do.
fn complex_overloads(text: &mut String) {
    const TYPES: [(&str, &str); 2] =
        [("SHMEM_COMPLEXF_", "std::complex<float>"), ("SHMEM_COMPLEXD_", "std::complex<double>")];
    for (family, Declared { returns, name, parameters }) in super::functions() {
        let Some((c, cpp)) = TYPES.into_iter().find(|(c, _)| parameters.contains(c)) else { continue };
        let pass = |one: &str| {
            let qualifier = if one.starts_with("const ") { "const " } else { "" };
            match one.contains(c) {
                true => format!("reinterpret_cast<{qualifier}{c} *>({})", names(one)),
                false => names(one),
            }
        };
        let passed = parameters.split(", ").map(pass).collect::<Vec<_>>().join(", ");
        let parameters = parameters.replace(c, cpp);
        let generic = (!family.generic.is_empty()).then(|| format!("shmem_{}", family.generic));
        for own in [name.clone()].into_iter().chain(generic) {
            writeln!(text, "static inline {returns} {own}({parameters}) {{ return {name}({passed}); }}")
                .unwrap();
        }
    }
}

fn has(name: &str) -> bool {
    super::functions().any(|(_, function)| function.name == name)
}

fn plain(name: &str) -> Declared {
    super::functions().map(|(_, function)| function).find(|function| function.name == name).unwrap()
}

pub(crate) fn selections() -> String {
    let mut text = String::from(
        "\n#if !defined(__cplusplus) && defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L\n\
         #define SHMEM_FIRST_(first, ...) first\n\
         #define SHMEM_SECOND_(first, second, ...) second\n\
         #define SHMEM_ARGUMENT_0_(...) SHMEM_FIRST_(__VA_ARGS__, 0)\n\
         #define SHMEM_ARGUMENT_1_(...) SHMEM_SECOND_(__VA_ARGS__, 0, 0)\n\
         static inline void shmem_no_such_type_(void) {}\n",
    );
    for (generic, families) in generics() {
        let in_second = families[0].parameters.starts_with("shmem_team_t");
        let mut arms = String::new();
        let mut in_context = String::new();
        for family in families {
            for of in distinct(family) {
                let name = declared(family, of, false).name;
                if in_second {
                    second_arms(&mut arms, of, &name);
                } else {
                    write!(arms, ", \\\n    {}: {name}", of.basic).unwrap();
                }
                if family.has_context {
                    second_arms(&mut in_context, of, &declared(family, of, true).name);
                }
            }
        }
        if in_second {
            writeln!(
                text,
                "#define shmem_{generic}(...) _Generic((SHMEM_ARGUMENT_1_(__VA_ARGS__)){arms})(__VA_ARGS__)"
            )
            .unwrap();
            continue;
        }
        if !in_context.is_empty() {
            write!(
                arms,
                ", \\\n    struct shmem_ctx_: _Generic((SHMEM_ARGUMENT_1_(__VA_ARGS__)){in_context}, \\\n    \
                 default: shmem_no_such_type_)"
            )
            .unwrap();
        }
        writeln!(
            text,
            "#define shmem_{generic}(...) _Generic(*(SHMEM_ARGUMENT_0_(__VA_ARGS__)){arms})(__VA_ARGS__)"
        )
        .unwrap();
    }
    text.push_str(
        "#define shmem_sync(...) _Generic((SHMEM_ARGUMENT_0_(__VA_ARGS__)), shmem_team_t: shmem_team_sync, \\\n    \
         default: shmem_sync)(__VA_ARGS__)\n",
    );
    for name in ["signal_add", "signal_set"] {
        if has(&format!("shmem_ctx_{name}")) {
            writeln!(
                text,
                "#define shmem_{name}(...) _Generic((SHMEM_ARGUMENT_0_(__VA_ARGS__)), \\\n    \
                 shmem_ctx_t: shmem_ctx_{name}, default: shmem_{name})(__VA_ARGS__)"
            )
            .unwrap();
        }
    }
    text.push_str("#endif\n");
    text
}

/// Selects a function by an argument that is a pointer.
fn second_arms(arms: &mut String, of: &TypeForm, name: &str) {
    for qualifier in ["", "const "] {
        write!(arms, ", \\\n    {qualifier}{} *: {name}", of.basic).unwrap();
    }
}
