//! Whether tests are to take long.

/// Whether the long forms of the trials are asked for: by `SHMCCL_LONG=1`, and by nothing else.
pub fn long() -> bool {
    std::env::var_os("SHMCCL_LONG").is_some_and(|long| long == "1")
}
