//! The table of `docs/shmem.md`.

use std::fmt::Write;

use shmccl_shmem::table::{Family, MISSING};

use super::families;

pub(crate) fn list() -> String {
    let mut text = String::from("\n| section | call | types | since | contexts |\n|---|---|---|---|---|\n");
    for family in families() {
        let name =
            family.name.strip_prefix('=').map_or_else(|| format!("shmem_{}", family.name), str::to_owned);
        let context = if family.has_context { "yes" } else { "" };
        writeln!(
            text,
            "| {} | `{}` | {} | {} | {context} |",
            family.section,
            name.replace("{}", "TYPE"),
            types(family),
            since(family),
        )
        .unwrap();
    }
    for missing in MISSING {
        writeln!(text, "| {} | `{}` | not there: {} | | |", missing.section, missing.name, missing.reason)
            .unwrap();
    }
    text.push('\n');
    text
}

fn types(family: &Family) -> String {
    let names: Vec<_> = family.types.iter().map(|of| of.name).filter(|name| !name.is_empty()).collect();
    names.join(" ")
}

fn since(family: &Family) -> String {
    match family.since.split_once('-') {
        Some((since, until)) => format!("{since}, deprecated in {until}"),
        None => family.since.to_owned(),
    }
}
