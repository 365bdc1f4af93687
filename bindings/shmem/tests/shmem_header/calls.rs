//! The table of `docs/calls.md`: each call of OpenSHMEM and NVSHMEM beside what does it here.
//!
//! The names of OpenSHMEM are those of the table of calls. A row names its families there, and
//! what does the same in Rust and Python. Names of NVSHMEM that follow from those of OpenSHMEM are
//! made from them; others have rows at the end.

use std::fmt::Write;
use std::path::Path;

use shmccl_shmem::table::{Family, MISSING};

use super::{families, here};

/// Families that are one row: they differ in types, in strides, or in age.
#[derive(Clone, Copy, Debug)]
struct Row {
    /// Their names in the table of calls.
    families: &'static [&'static str],
    /// The forms that NVSHMEM has of them, by the words of the page; empty where it has none.
    nvshmem: &'static str,
    rust: &'static str,
    python: &'static str,
}

/// Names that only NVSHMEM has.
#[derive(Clone, Copy, Debug)]
struct Beyond {
    nvshmem: &'static str,
    /// What does it in C, or why there is nothing.
    c: &'static str,
    rust: &'static str,
    python: &'static str,
}

const fn row(
    families: &'static [&'static str],
    nvshmem: &'static str,
    rust: &'static str,
    python: &'static str,
) -> Row {
    Row { families, nvshmem, rust, python }
}

const fn beyond(nvshmem: &'static str, c: &'static str, rust: &'static str, python: &'static str) -> Beyond {
    Beyond { nvshmem, c, rust, python }
}

const HOST: &str = "host";
const BOTH: &str = "host, device";
const WAITED: &str = "device, stream";
const GROUP: &str = "host, device, stream, group";
const ALL: &str = "host, device, stream, group, qp";
const DEVICE: &str = "device";

const SETUP: &[Row] = &[
    row(&["init"], HOST, "`launch`, `Communicator::from_env`", "`shmccl.launch`, `shmccl.init`"),
    row(&["=start_pes"], "", "`Communicator::from_env`", "`shmccl.init`"),
    row(&["my_pe", "=_my_pe"], BOTH, "`Communicator::rank`", "`Communicator.rank`"),
    row(&["n_pes", "=_num_pes"], BOTH, "`Communicator::n_ranks`", "`Communicator.size`"),
    row(&["finalize"], HOST, "`Communicator::finalize`", "`Communicator.finalize`"),
    row(&["query_initialized"], "", "there is a `Communicator` or not", "`Communicator.closed`"),
    row(&["global_exit"], BOTH, "return an error from `launch`", "raise an exception"),
    row(&["pe_accessible"], "", "`Communicator::members`", "`Communicator.members`"),
    row(&["addr_accessible"], "", "`Communicator::region_of`", ""),
    row(&["ptr", "team_ptr"], BOTH, "`Communicator::span`", "`Array.peer`"),
    row(&["info_get_version", "info_get_name"], BOTH, "the version of the crate", "`shmccl.__version__`"),
    row(&["init_thread", "query_thread"], HOST, "any thread may use `Symmetric`", "any thread may call"),
];

const MEMORY: &[Row] = &[
    row(
        &["malloc", "malloc_with_hints", "calloc", "=shmalloc"],
        HOST,
        "`Communicator::alloc`",
        "`Communicator.zeros`, `Communicator.empty`",
    ),
    row(&["align", "=shmemalign"], HOST, "`Communicator::alloc_region`", ""),
    row(&["realloc", "=shrealloc"], "", "`alloc`, `copy`, `free`", "a new array"),
    row(&["free", "=shfree"], HOST, "`Communicator::free`", "drop the array"),
];

const TEAMS: &[Row] = &[
    row(&["team_my_pe"], BOTH, "`Communicator::rank`", "`Communicator.rank`"),
    row(&["team_n_pes"], BOTH, "`Communicator::n_ranks`", "`Communicator.size`"),
    row(&["team_get_config"], HOST, "communicators have no settings", "the same"),
    row(&["team_translate_pe"], BOTH, "`Communicator::members`", "`Communicator.members`"),
    row(&["team_split_strided", "team_split_2d"], HOST, "`Communicator::split`", "`Communicator.split`"),
    row(&["team_destroy"], HOST, "`Communicator::finalize`", "`Communicator.close`"),
    row(
        &["ctx_create", "team_create_ctx", "ctx_destroy", "ctx_get_team"],
        "",
        "`Communicator::symmetric`",
        "`Array.at`",
    ),
    row(
        &["ctx_session_start", "ctx_session_stop"],
        "",
        "nothing to tell: verbs are done on return",
        "the same",
    ),
];

const VERBS: &[Row] = &[
    row(
        &["{}_put", "put{}", "{}_put_nbi", "put{}_nbi"],
        ALL,
        "`Symmetric::put`, `Symmetric::copy`",
        "`RemoteView.put`",
    ),
    row(&["{}_p"], "host, device, stream, qp", "`Symmetric::write`", "`RemoteView.put`"),
    row(&["{}_iput", "iput{}"], GROUP, "`Symmetric::put_strided`", "`RemoteView.put`"),
    row(&["{}_ibput", "ibput{}"], "", "`Symmetric::put_strided`", "`RemoteView.put`"),
    row(
        &["{}_get", "get{}", "{}_get_nbi", "get{}_nbi"],
        ALL,
        "`Symmetric::get`, `Symmetric::copy`",
        "`RemoteView.get`, `Array.peer`",
    ),
    row(&["{}_g"], "host, device, stream, qp", "`Symmetric::read`", "`RemoteView.get`, `Array.peer`"),
    row(&["{}_iget", "iget{}"], GROUP, "`Symmetric::get_strided`", "`RemoteView.get`, `Array.peer`"),
    row(&["{}_ibget", "ibget{}"], "", "`Symmetric::get_strided`", "`RemoteView.get`, `Array.peer`"),
];

const ATOMICS: &[Row] = &[
    row(
        &["{}_atomic_fetch", "{}_fetch", "{}_atomic_fetch_nbi"],
        DEVICE,
        "`Symmetric::fetch`",
        "`RemoteView.atomic_fetch`",
    ),
    row(
        &["{}_atomic_set", "{}_set"],
        DEVICE,
        "`Symmetric::set`, `PortChannel::atomic_set`",
        "`RemoteView.atomic_set`",
    ),
    row(
        &["{}_atomic_compare_swap", "{}_cswap", "{}_atomic_compare_swap_nbi"],
        DEVICE,
        "`Symmetric::compare_swap`",
        "`RemoteView.atomic_compare_swap`",
    ),
    row(
        &["{}_atomic_swap", "{}_swap", "{}_atomic_swap_nbi"],
        DEVICE,
        "`Symmetric::swap`",
        "`RemoteView.atomic_swap`",
    ),
    row(
        &["{}_atomic_fetch_inc", "{}_finc", "{}_atomic_fetch_inc_nbi"],
        DEVICE,
        "`Symmetric::fetch_add`",
        "`RemoteView.atomic_fetch_inc`",
    ),
    row(
        &["{}_atomic_inc", "{}_inc"],
        DEVICE,
        "`Symmetric::add`, `PortChannel::atomic_add`",
        "`RemoteView.atomic_inc`",
    ),
    row(
        &["{}_atomic_fetch_add", "{}_fadd", "{}_atomic_fetch_add_nbi"],
        DEVICE,
        "`Symmetric::fetch_add`",
        "`RemoteView.atomic_fetch_add`",
    ),
    row(
        &["{}_atomic_add", "{}_add"],
        DEVICE,
        "`Symmetric::add`, `PortChannel::atomic_add`",
        "`RemoteView.atomic_add`",
    ),
    row(
        &["{}_atomic_fetch_and", "{}_atomic_fetch_and_nbi"],
        DEVICE,
        "`Symmetric::fetch_and`",
        "`RemoteView.atomic_fetch_and`",
    ),
    row(&["{}_atomic_and"], DEVICE, "`Symmetric::and`, `PortChannel::atomic_and`", "`RemoteView.atomic_and`"),
    row(
        &["{}_atomic_fetch_or", "{}_atomic_fetch_or_nbi"],
        DEVICE,
        "`Symmetric::fetch_or`",
        "`RemoteView.atomic_fetch_or`",
    ),
    row(&["{}_atomic_or"], DEVICE, "`Symmetric::or`, `PortChannel::atomic_or`", "`RemoteView.atomic_or`"),
    row(
        &["{}_atomic_fetch_xor", "{}_atomic_fetch_xor_nbi"],
        DEVICE,
        "`Symmetric::fetch_xor`",
        "`RemoteView.atomic_fetch_xor`",
    ),
    row(&["{}_atomic_xor"], DEVICE, "`Symmetric::xor`, `PortChannel::atomic_xor`", "`RemoteView.atomic_xor`"),
];

const SIGNALS: &[Row] = &[
    row(
        &["{}_put_signal", "put{}_signal", "{}_put_signal_nbi", "put{}_signal_nbi"],
        "device, stream, group, qp",
        "`Symmetric::put_signal`, `Symmetric::copy_signal`",
        "`RemoteView.put_signal`",
    ),
    row(&["signal_add", "signal_set"], "", "`Symmetric::signal`", "`RemoteView.signal_op`"),
    row(&["signal_fetch"], BOTH, "`Symmetric::fetch`", "`RemoteView.atomic_fetch`"),
    row(&["signal_wait_until"], WAITED, "`Symmetric::wait_until`", "`Communicator.wait_until`"),
];

const COLLECTIVES: &[Row] = &[
    row(
        &["barrier_all", "barrier", "sync_all", "team_sync", "sync"],
        GROUP,
        "`Communicator::barrier`",
        "`Communicator.barrier`",
    ),
    row(&["{}_alltoall", "alltoall{}"], GROUP, "`Collectives::all_to_all`", "`Communicator.all_to_all`"),
    row(
        &["{}_alltoalls", "alltoalls{}"],
        "",
        "`Collectives::all_to_all` of a copy",
        "`Communicator.all_to_all` of a copy",
    ),
    row(&["{}_broadcast", "broadcast{}"], GROUP, "`Collectives::broadcast`", "`Communicator.broadcast`"),
    row(&["{}_collect", "collect{}"], "", "`Collectives::all_to_all_v`", "`Communicator.all_to_all_v`"),
    row(&["{}_fcollect", "fcollect{}"], GROUP, "`Collectives::all_gather`", "`Communicator.all_gather`"),
    row(
        &[
            "{}_and_reduce",
            "{}_or_reduce",
            "{}_xor_reduce",
            "{}_max_reduce",
            "{}_min_reduce",
            "{}_sum_reduce",
            "{}_prod_reduce",
        ],
        GROUP,
        "`Collectives::all_reduce`",
        "`Communicator.all_reduce`",
    ),
    row(
        &[
            "{}_and_to_all",
            "{}_or_to_all",
            "{}_xor_to_all",
            "{}_max_to_all",
            "{}_min_to_all",
            "{}_sum_to_all",
            "{}_prod_to_all",
        ],
        "",
        "`Collectives::all_reduce`",
        "`Communicator.all_reduce`",
    ),
    row(&["{}_sum_inscan"], "", "`Collectives::scan`", "`Communicator.scan`"),
    row(&["{}_sum_exscan"], "", "`Collectives::exscan`", "`Communicator.exscan`"),
];

const WAITS: &[Row] = &[
    row(
        &["{}_wait_until", "wait_until", "{}_wait", "wait"],
        WAITED,
        "`Symmetric::wait_until`",
        "`Communicator.wait_until`",
    ),
    row(
        &["{}_wait_until_all", "{}_wait_until_all_vector"],
        WAITED,
        "`Symmetric::wait_until_all`",
        "`Communicator.wait_until_all`",
    ),
    row(
        &["{}_wait_until_any", "{}_wait_until_any_vector"],
        DEVICE,
        "`Symmetric::wait_until_any`",
        "`Communicator.wait_until_any`",
    ),
    row(
        &["{}_wait_until_some", "{}_wait_until_some_vector"],
        DEVICE,
        "`Symmetric::wait_until_some`",
        "`Communicator.wait_until_some`",
    ),
    row(&["{}_test"], DEVICE, "`Symmetric::test`", "`Communicator.test`"),
    row(&["{}_test_all", "{}_test_all_vector"], DEVICE, "`Symmetric::test_all`", "`Communicator.test_all`"),
    row(&["{}_test_any", "{}_test_any_vector"], DEVICE, "`Symmetric::test_any`", "`Communicator.test_any`"),
    row(
        &["{}_test_some", "{}_test_some_vector"],
        DEVICE,
        "`Symmetric::test_some`",
        "`Communicator.test_some`",
    ),
    row(&["fence"], "host, device, qp", "`Symmetric::fence`", "`Communicator.fence`"),
    row(&["quiet"], "host, device, stream, qp", "`Symmetric::quiet`", "`Communicator.quiet`"),
    row(&["pe_quiet"], "", "`Symmetric::pe_quiet`", "`Communicator.quiet`"),
    row(&["set_lock"], "", "`Symmetric::lock`", "`Lock.acquire`"),
    row(&["test_lock"], "", "`Symmetric::try_lock`", "`Lock.acquire`"),
    row(&["clear_lock"], "", "`Symmetric::unlock`", "`Lock.release`"),
    row(&["pcontrol"], "", "`Communicator::set_tracing`", ""),
];

const ROWS: [&[Row]; 8] = [SETUP, MEMORY, TEAMS, VERBS, ATOMICS, SIGNALS, COLLECTIVES, WAITS];

const NO_KERNELS: &str = "not there: no kernels run here";

const ONLY_NVSHMEM: &[Beyond] = &[
    beyond(
        "`nvshmemx_init_attr`, `nvshmemx_hostlib_init_attr`, `nvshmemx_get_uniqueid`, \
         `nvshmemx_set_attr_uniqueid_args`, `nvshmemx_set_attr_mpi_comm_args`",
        "`shmem_init` under `shmccl run`",
        "`Communicator::init_rank`",
        "`Communicator.init_rank`",
    ),
    beyond(
        "`nvshmemx_init_status`",
        "`shmem_query_initialized`",
        "there is a `Communicator` or not",
        "`Communicator.closed`",
    ),
    beyond(
        "`nvshmemx_hostlib_finalize`",
        "`shmem_finalize`",
        "`Communicator::finalize`",
        "`Communicator.finalize`",
    ),
    beyond(
        "`nvshmemx_vendor_get_version_info`",
        "`shmem_info_get_name`",
        "the version of the crate",
        "`shmccl.__version__`",
    ),
    beyond(
        "`nvshmemx_team_init`, `nvshmemx_team_get_uniqueid`",
        "`shmem_team_split_strided`",
        "`Communicator::split`",
        "`Communicator.split`",
    ),
    beyond(
        "`nvshmemx_buffer_register`, `nvshmemx_buffer_unregister`, `nvshmemx_buffer_unregister_all`",
        "nothing to do: any memory may be the local end of a copy",
        "the same",
        "the same",
    ),
    beyond(
        "`nvshmemx_buffer_register_symmetric`, `nvshmemx_buffer_register_symmetric_at_preferred_address`, \
         `nvshmemx_buffer_unregister_symmetric`",
        "not there: `shmem_malloc`, or a static object",
        "`Communicator::alloc`",
        "`Communicator.empty`",
    ),
    beyond(
        "`nvshmemx_mc_ptr`",
        "not there: memory of processors has no multicast",
        "`Communicator::switch_channel`",
        "",
    ),
    beyond(
        "`nvshmem_barrier`: host, device, stream, group",
        "`shmem_quiet`, then `shmem_team_sync`",
        "`Communicator::barrier`",
        "`Communicator.barrier`",
    ),
    beyond(
        "`nvshmem_TYPE_OP_reducescatter`: host, device, stream, group",
        "not there: OpenSHMEM has no such call",
        "`Collectives::reduce_scatter`",
        "`Communicator.reduce_scatter`",
    ),
    beyond(
        "`nvshmemx_double2_maxloc_reduce_block`",
        NO_KERNELS,
        "`Collectives::all_gather`",
        "`Communicator.all_gather`",
    ),
    beyond(
        "`nvshmemx_signal_op`: host, device, stream, qp",
        "`shmem_signal_set`, `shmem_signal_add`",
        "`Symmetric::signal`",
        "`RemoteView.signal_op`",
    ),
    beyond(
        "`nvshmemx_TYPE_atomic_add`, `nvshmemx_TYPE_atomic_set` and kin that name a scope",
        "`shmem_TYPE_atomic_add` and kin: all ranks are one scope",
        "`Symmetric::add`",
        "`RemoteView.atomic_add`",
    ),
    beyond(
        "`nvshmemx_flush`: host, device, stream, group",
        "`shmem_quiet`",
        "`Symmetric::quiet`",
        "`Communicator.quiet`",
    ),
    beyond(
        "`nvshmemx_qp_create`, `nvshmemx_qp_TYPE_put` and kin",
        "`shmem_ctx_create`, `shmem_ctx_TYPE_put` and kin",
        "`Communicator::symmetric`",
        "`Array.at`",
    ),
    beyond(
        "`nvshmemx_cumodule_init`, `nvshmemx_cumodule_finalize`, `nvshmemx_culibrary_init`, \
         `nvshmemx_culibrary_finalize`",
        NO_KERNELS,
        "the same",
        "the same",
    ),
    beyond(
        "`nvshmemx_collective_launch`, `nvshmemx_collective_launch_query_gridsize`",
        NO_KERNELS,
        "`launch`",
        "`shmccl.launch`",
    ),
    beyond(
        "`nvshmemx_ask_smem`, `nvshmemx_give_smem`, `nvshmemx_release_smem`",
        NO_KERNELS,
        "the same",
        "the same",
    ),
    beyond(
        "`nvshmemx::tile_put`, `tile_get`, `tile_broadcast`, `tile_allgather`, `tile_OP_reduce`, \
         `tile_OP_rooted_reduce`, `tile_collective_wait`",
        NO_KERNELS,
        "`Symmetric::put_strided`",
        "`RemoteView.put`",
    ),
];

/// Returns the name of a family as C has it.
fn c_name(family: &Family) -> String {
    let name = family.name.strip_prefix('=').map_or_else(|| format!("shmem_{}", family.name), str::to_owned);
    name.replace("{}", "TYPE")
}

/// Returns the families of one name: those of one name may differ in types and age.
fn named(name: &str) -> Vec<&'static Family> {
    families().filter(|family| family.name == name).collect()
}

/// Whether all families of a name are deprecated.
fn is_old(name: &str) -> bool {
    named(name).iter().all(|family| family.since.contains('-'))
}

fn joined(names: &[&str], to_name: impl Fn(&Family) -> String) -> String {
    let one = |name: &&str| format!("`{}`", to_name(named(name)[0]));
    names.iter().map(one).collect::<Vec<_>>().join(", ")
}

impl Row {
    fn parts(&self) -> (Vec<&'static str>, Vec<&'static str>) {
        self.families.iter().partition(|name| !is_old(name))
    }

    fn openshmem(&self) -> String {
        let (current, old) = self.parts();
        let current = joined(&current, c_name);
        match (current.is_empty(), old.is_empty()) {
            (_, true) => current,
            (true, false) => format!("deprecated: {}", joined(&old, c_name)),
            (false, false) => format!("{current}; deprecated: {}", joined(&old, c_name)),
        }
    }

    fn nvshmem(&self) -> String {
        let (current, _) = self.parts();
        let since = |name: &&str| !matches!(named(name)[0].since, "1.6") && !NOT_OF_NVSHMEM.contains(name);
        let names: Vec<_> = current.into_iter().filter(since).collect();
        match self.nvshmem {
            "" => String::new(),
            forms => format!("{}: {forms}", joined(&names, |family| format!("nv{}", c_name(family)))),
        }
    }
}

/// Of rows that NVSHMEM has, what it does not have.
const NOT_OF_NVSHMEM: &[&str] = &[
    "malloc_with_hints",
    "team_ptr",
    "{}_atomic_fetch_nbi",
    "{}_atomic_compare_swap_nbi",
    "{}_atomic_swap_nbi",
    "{}_atomic_fetch_inc_nbi",
    "{}_atomic_fetch_add_nbi",
    "{}_atomic_fetch_and_nbi",
    "{}_atomic_fetch_or_nbi",
    "{}_atomic_fetch_xor_nbi",
];

pub(crate) fn table() -> String {
    let mut text = String::from(
        "\n| OpenSHMEM 1.6, and here in C | NVSHMEM 3 | here in Rust | here in Python |\n|---|---|---|---|\n",
    );
    for row in ROWS.iter().copied().flatten() {
        writeln!(text, "| {} | {} | {} | {} |", row.openshmem(), row.nvshmem(), row.rust, row.python)
            .unwrap();
    }
    for missing in MISSING {
        writeln!(text, "| `{}`: not there: {} | | | |", missing.name, missing.reason).unwrap();
    }
    for Beyond { nvshmem, c, rust, python } in ONLY_NVSHMEM {
        writeln!(text, "| {c} | {nvshmem} | {rust} | {python} |").unwrap();
    }
    text.push('\n');
    text
}

/// Returns the names of a column, as they stand between marks of code.
fn names_in(column: &str) -> impl Iterator<Item = &str> {
    column.split('`').skip(1).step_by(2)
}

/// Returns the sources of a folder below the workspace that end so, one behind the other.
fn sources(folder: &str, end: &str) -> String {
    fn visit(folder: &Path, end: &str, text: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                visit(&path, end, text);
            } else if path.to_str().is_some_and(|path| path.ends_with(end)) {
                text.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }
    let mut text = String::new();
    visit(&here().join("../..").join(folder), end, &mut text);
    text
}

/// Returns the lines that belong to `head`: those below it that are further in.
fn body<'t>(text: &'t str, head: &str) -> Vec<&'t str> {
    let is_head = |line: &str| {
        line.strip_prefix(head).is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()))
    };
    let mut lines = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        inside = is_head(line) || (inside && (line.is_empty() || line.starts_with([' ', ')', '}', '#'])));
        if inside {
            lines.push(line);
        }
    }
    lines
}

#[test]
fn every_call_of_the_table_stands_in_one_row() {
    for family in families() {
        let rows = ROWS.iter().copied().flatten();
        let count = rows.flat_map(|row| row.families).filter(|name| **name == family.name).count();
        assert_eq!(count, 1, "{} stands in {count} rows of calls.rs", family.name);
    }
    for name in ROWS.iter().copied().flatten().flat_map(|row| row.families) {
        assert!(!named(name).is_empty(), "{name} is no call of the table");
    }
    let made = table();
    for family in families() {
        assert!(made.contains(&format!("`{}`", c_name(family))), "{}", family.name);
    }
}

#[test]
fn what_the_rows_name_in_rust_is_there() {
    let text = sources("src", ".rs");
    let columns = ROWS.iter().copied().flatten().map(|row| row.rust);
    for name in columns.chain(ONLY_NVSHMEM.iter().map(|row| row.rust)).flat_map(names_in) {
        let Some((owner, method)) = name.split_once("::") else { continue };
        let owned = [format!("impl {owner}"), format!("pub trait {owner}")];
        let is_there = |head: &String| {
            let begins = [format!("fn {method}("), format!("fn {method}<")];
            body(&text, head).iter().any(|line| begins.iter().any(|begin| line.contains(begin)))
        };
        assert!(owned.iter().any(is_there), "there is no {name}");
    }
}

#[test]
fn what_the_rows_name_in_python_is_there() {
    let stubs = sources("bindings/python/python/shmccl", "_core.pyi");
    let package = sources("bindings/python/python/shmccl", "__init__.py");
    let columns = ROWS.iter().copied().flatten().map(|row| row.python);
    for name in columns.chain(ONLY_NVSHMEM.iter().map(|row| row.python)).flat_map(names_in) {
        let (owner, method) = name.split_once('.').unwrap();
        let is_there = match owner {
            "shmccl" => package.contains(method),
            class => {
                let begin = format!("    def {method}(");
                body(&stubs, &format!("class {class}")).iter().any(|line| line.starts_with(&begin))
            }
        };
        assert!(is_there, "there is no {name}");
    }
}
