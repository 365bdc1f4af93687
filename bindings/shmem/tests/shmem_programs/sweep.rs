//! A program in C that makes every typed call of the table and looks at what it has done.

use std::fmt::Write;

use shmccl_shmem::table::{FAMILIES, Family, TypeForm};

const HEAD: &str = "\
#include \"check.h\"
#include \"places.h\"

int main(void)
{
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes(), to = (me + 1) % n, from = (me + n - 1) % n;
    static const int LEFT_OUT[5] = {0, 1};
    size_t at[5];
    char *memory = shmem_calloc(1, 1 << 16);
    long *SYNC = shmem_calloc(SHMEM_SYNC_SIZE, sizeof(long));
    uint64_t *W = shmem_calloc(1, sizeof(uint64_t));
";

/// Returns what a call does, as a check in C of the type `T`. `call` is the function with its
/// parenthesis, and with its context if it has one. `S` holds this rank plus the index.
fn check(stem: &str, call: &str) -> Option<String> {
    let done = match stem {
        "T_put" | "putT" | "T_put_nbi" | "putT_nbi" => {
            format!("{call}D, S, N, to); DONE; ALL(D, N, from + i);")
        }
        "T_get" | "getT" | "T_get_nbi" | "getT_nbi" => format!("{call}D, S, N, to); ALL(D, N, to + i);"),
        "T_p" => format!("{call}D, (T)(me + 3), to); DONE; ALL(D, 1, from + 3);"),
        "T_g" => format!("D[0] = {call}S + 4, to); ALL(D, 1, to + 4);"),
        "T_iput" | "iputT" => format!("{call}D, S, 3, 2, 5, to); DONE; STRIDED(D, 3, 5, from + 2 * i);"),
        "T_iget" | "igetT" => format!("{call}D, S, 2, 3, 5, to); STRIDED(D, 2, 5, to + 3 * i);"),
        "T_ibput" | "ibputT" => format!("{call}D, S, 4, 5, 2, 3, to); DONE; BLOCKS(D, 4, 5, from);"),
        "T_ibget" | "ibgetT" => format!("{call}D, S, 4, 5, 2, 3, to); BLOCKS(D, 4, 5, to);"),
        "T_put_signal" | "putT_signal" | "T_put_signal_nbi" | "putT_signal_nbi" => format!(
            "{call}D, S, N, W, 5, SHMEM_SIGNAL_ADD, to); shmem_signal_wait_until(W, SHMEM_CMP_EQ, 5); \
             ALL(D, N, from + i);"
        ),
        _ => return collective(stem, call).or_else(|| atomic(stem, call)).or_else(|| waited(stem, call)),
    };
    Some(done)
}

fn collective(stem: &str, call: &str) -> Option<String> {
    const WORLD: &str = "SHMEM_TEAM_WORLD, D, S";
    let old = "0, 0, n, WORK, SYNC";
    let done = match stem {
        "T_broadcast" => format!("{call}{WORLD}, N, n - 1); ALL(D, N, n - 1 + i);"),
        "T_collect" | "T_fcollect" => format!("{call}{WORLD}, N); ALL(D, N * n, i / N + i % N);"),
        "T_alltoall" => format!("{call}{WORLD}, 2); ALL(D, 2 * n, i / 2 + 2 * me + i % 2);"),
        "T_alltoalls" => format!("{call}{WORLD}, 2, 1, 2); STRIDED(D, 2, 2 * n, i / 2 + 2 * me + i % 2);"),
        "T_sum_inscan" => format!("{call}{WORLD}, N); ALL(D, N, me * (me + 1) / 2 + (me + 1) * i);"),
        "T_sum_exscan" => format!("{call}{WORLD}, N); ALL(D, N, me * (me - 1) / 2 + me * i);"),
        "T_sum_reduce" => format!("{call}{WORLD}, N); SUMS;"),
        "T_prod_reduce" => format!("{call}{WORLD}, 2); PRODUCTS;"),
        "T_max_reduce" => format!("{call}{WORLD}, N); ALL(D, N, n - 1 + i);"),
        "T_min_reduce" => format!("{call}SHMEM_TEAM_WORLD, S, S, N); ALL(S, N, i);"),
        "T_and_reduce" => format!("{call}{WORLD}, N); BITS(&);"),
        "T_or_reduce" => format!("{call}{WORLD}, N); BITS(|);"),
        "T_xor_reduce" => format!("{call}{WORLD}, N); BITS(^);"),
        "T_sum_to_all" => format!("{call}D, S, N, {old}); SUMS;"),
        "T_prod_to_all" => format!("{call}D, S, 2, {old}); PRODUCTS;"),
        "T_max_to_all" => format!("{call}D, S, N, {old}); ALL(D, N, n - 1 + i);"),
        "T_min_to_all" => format!("{call}D, S, N, {old}); ALL(D, N, i);"),
        "T_and_to_all" => format!("{call}D, S, N, {old}); BITS(&);"),
        "T_or_to_all" => format!("{call}D, S, N, {old}); BITS(|);"),
        "T_xor_to_all" => format!("{call}D, S, N, {old}); BITS(^);"),
        _ => return None,
    };
    Some(done)
}

fn atomic(stem: &str, call: &str) -> Option<String> {
    let taken = "shmem_quiet(); check(D[0] == (T)to);";
    let done = match stem {
        "T_atomic_fetch" | "T_fetch" => format!("check({call}S + 2, to) == (T)(to + 2));"),
        "T_atomic_set" | "T_set" => format!("{call}D, (T)(me + 1), to); DONE; ALL(D, 1, from + 1);"),
        "T_atomic_swap" | "T_swap" => {
            format!("check({call}S, (T)(me + 9), to) == (T)to); DONE; ALL(S, 1, from + 9);")
        }
        "T_atomic_compare_swap" | "T_cswap" => format!(
            "check({call}S, (T)(to + 1), (T)50, to) == (T)to); check({call}S, (T)to, (T)60, to) == (T)to); \
             DONE; ALL(S, 1, 60);"
        ),
        "T_atomic_fetch_inc" | "T_finc" => format!("check({call}S, to) == (T)to); DONE; ALL(S, 1, me + 1);"),
        "T_atomic_inc" | "T_inc" => format!("{call}D, 0); DONE; check(D[0] == (T)(me == 0 ? n : 0));"),
        "T_atomic_fetch_add" | "T_fadd" => {
            format!("check({call}S, (T)3, to) == (T)to); DONE; ALL(S, 1, me + 3);")
        }
        "T_atomic_add" | "T_add" => {
            format!("{call}D, (T)2, 0); DONE; check(D[0] == (T)(me == 0 ? 2 * n : 0));")
        }
        "T_atomic_fetch_and" => format!("check({call}S, (T)6, to) == (T)to); DONE; ALL(S, 1, me & 6);"),
        "T_atomic_and" => format!("{call}S, (T)6, to); DONE; ALL(S, 1, me & 6);"),
        "T_atomic_fetch_or" => format!("check({call}S, (T)6, to) == (T)to); DONE; ALL(S, 1, me | 6);"),
        "T_atomic_or" => format!("{call}S, (T)6, to); DONE; ALL(S, 1, me | 6);"),
        "T_atomic_fetch_xor" => format!("check({call}S, (T)6, to) == (T)to); DONE; ALL(S, 1, me ^ 6);"),
        "T_atomic_xor" => format!("{call}S, (T)6, to); DONE; ALL(S, 1, me ^ 6);"),
        "T_atomic_fetch_nbi" => format!("{call}D, S, to); {taken}"),
        "T_atomic_swap_nbi" => format!("{call}D, S, (T)9, to); {taken} DONE; ALL(S, 1, 9);"),
        "T_atomic_compare_swap_nbi" => format!("{call}D, S, (T)to, (T)9, to); {taken} DONE; ALL(S, 1, 9);"),
        "T_atomic_fetch_inc_nbi" => format!("{call}D, S, to); {taken} DONE; ALL(S, 1, me + 1);"),
        "T_atomic_fetch_add_nbi" => format!("{call}D, S, (T)3, to); {taken} DONE; ALL(S, 1, me + 3);"),
        "T_atomic_fetch_and_nbi" => format!("{call}D, S, (T)3, to); {taken} DONE; ALL(S, 1, me & 3);"),
        "T_atomic_fetch_or_nbi" => format!("{call}D, S, (T)3, to); {taken} DONE; ALL(S, 1, me | 3);"),
        "T_atomic_fetch_xor_nbi" => format!("{call}D, S, (T)3, to); {taken} DONE; ALL(S, 1, me ^ 3);"),
        _ => return None,
    };
    Some(done)
}

/// Waits for words that are so. Of sets of them the second one is left out; one value counts from
/// the third word on.
fn waited(stem: &str, call: &str) -> Option<String> {
    let (base, is_vector) = stem.strip_suffix("_vector").map_or((stem, false), |base| (base, true));
    let (values, first, count) =
        if is_vector { ("SHMEM_CMP_EQ, S", 0, 4) } else { ("SHMEM_CMP_GE, (T)(me + 2)", 2, 3) };
    let from_first = if is_vector { "S, 5".to_owned() } else { format!("S + {first}, 3") };
    let done = match base {
        "T_wait_until" => format!("{call}S + 5, SHMEM_CMP_EQ, (T)(me + 5));"),
        "T_wait" => format!("{call}S + 5, (T)me);"),
        "T_test" => format!("check({call}S, SHMEM_CMP_LE, (T)me)); check(!{call}S, SHMEM_CMP_GT, (T)me));"),
        "T_wait_until_all" => format!("{call}{from_first}, NULL, {values});"),
        "T_test_all" => format!("check({call}{from_first}, NULL, {values}) == 1);"),
        "T_wait_until_any" | "T_test_any" => format!(
            "{{ size_t any = {call}S, 5, LEFT_OUT, {values}); check(any + 1 > {first} && any < 5 && any != 1); }} \
             check({call}S, 0, NULL, {values}) == SIZE_MAX);"
        ),
        "T_wait_until_some" | "T_test_some" => format!(
            "check({call}S, 5, at, LEFT_OUT, {values}) == {count} && at[0] == {first}); \
             check({call}S, 0, at, NULL, {values}) == 0);"
        ),
        _ => return None,
    };
    Some(done)
}

fn sized(of: &TypeForm) -> &'static str {
    match of.rust {
        "u16" => "uint16_t",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "u128" => "unsigned __int128",
        _ => "unsigned char",
    }
}

/// Returns the program. A call that it does not know fails the test.
pub(crate) fn program() -> String {
    let mut text = String::from(HEAD);
    for family in FAMILIES.iter().copied().flatten().filter(|family| family.name.contains("{}")) {
        for of in family.types {
            let t = if of.c == "void" { sized(of) } else { of.c };
            let name = family.name.replace("{}", of.name);
            let stem = family.name.replace("{}", "T");
            let mut calls = vec![format!("shmem_{name}(")];
            if family.has_context {
                calls.push(format!("shmem_ctx_{name}(SHMEM_CTX_DEFAULT, "));
            }
            for call in calls {
                match check(&stem, &call) {
                    Some(check) => writeln!(text, "    {{ typedef {t} T; PLACES; {check} DONE; }}").unwrap(),
                    None => assert!(is_elsewhere(family), "{stem} has no check"),
                }
            }
        }
    }
    text.push_str("    shmem_finalize();\n    return 0;\n}\n");
    text
}

/// Returns whether `collectives.c` makes the call: collectives whose elements have only a size.
fn is_elsewhere(family: &Family) -> bool {
    family.section.starts_with("9.10.") && family.types.iter().all(|of| of.c == "void")
}
