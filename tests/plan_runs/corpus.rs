//! The plans of `tests/plans` that name a collective, as their manifest lists them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use shmccl::plan::collective::CollectiveKind;
use shmccl::plan::{ExecutionPlan, read};

/// A plan, and its smallest size.
pub(crate) struct Listed {
    pub(crate) name: String,
    pub(crate) plan: Arc<ExecutionPlan>,
    pub(crate) smallest: u64,
}

/// Returns the plans of a number of ranks that are calls.
pub(crate) fn of_ranks(n_ranks: u32) -> Vec<Listed> {
    let manifest = std::fs::read_to_string(folder().join("MANIFEST.md")).unwrap();
    let (mut section, mut found) = (String::new(), Vec::new());
    for line in manifest.lines() {
        if let Some(name) = line.strip_prefix("## ") {
            section = name.to_owned();
        }
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let Some(smallest) = cells.get(11).and_then(|cell| cell.parse().ok()) else { continue };
        // One races on any machine, as its verdict says.
        let is_listed = ["generated", "upstream"].contains(&section.as_str()) && cells[14] != "race";
        if !is_listed || cells[5] != n_ranks.to_string() {
            continue;
        }
        let name = format!("{section}/{}", cells[1]);
        let plan = load(&name);
        if CollectiveKind::of(&plan) != CollectiveKind::Other {
            found.push(Listed { name, plan: Arc::new(plan), smallest });
        }
    }
    found
}

/// Reads a plan by its name in the manifest.
pub(crate) fn load(name: &str) -> ExecutionPlan {
    read::read_file(&folder().join(format!("{name}.json"))).unwrap().plan
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans")
}
