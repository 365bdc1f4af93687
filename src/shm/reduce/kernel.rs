//! Which instructions a combination may run on here.

use std::sync::OnceLock;

/// The instructions that a combination runs on. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceKernel {
    /// The instructions that every processor of the architecture has (SSE2 or NEON).
    Portable,
    /// 32-byte vectors, and conversion of half precision.
    Avx2,
    /// 64-byte vectors.
    Avx512,
}

impl ReduceKernel {
    /// All kernels, supported here or not, the best last.
    pub const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Avx512];

    /// Returns its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// Returns whether this processor can run it.
    #[must_use]
    pub fn is_supported(self) -> bool {
        is_supported(self)
    }
}

/// Instructions that this processor was found to have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Supported(ReduceKernel);

impl Supported {
    /// Returns `kernel`, if this processor can run it.
    pub(crate) fn new(kernel: ReduceKernel) -> Option<Self> {
        kernel.is_supported().then_some(Self(kernel))
    }

    /// Returns the best there is here, looked for once: every reduction begins with it.
    #[inline]
    pub(crate) fn best() -> Self {
        static BEST: OnceLock<Supported> = OnceLock::new();
        let search = || ReduceKernel::ALL.into_iter().rev().find_map(Self::new);
        *BEST.get_or_init(|| search().unwrap_or(Self(ReduceKernel::Portable)))
    }

    #[inline]
    pub(super) fn kernel(self) -> ReduceKernel {
        self.0
    }
}

impl std::fmt::Display for ReduceKernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn is_supported(kernel: ReduceKernel) -> bool {
    kernel == ReduceKernel::Portable
}

#[cfg(target_arch = "x86_64")]
fn is_supported(kernel: ReduceKernel) -> bool {
    match kernel {
        ReduceKernel::Portable => true,
        ReduceKernel::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
        ReduceKernel::Avx512 => {
            is_supported(ReduceKernel::Avx2)
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
        }
    }
}
