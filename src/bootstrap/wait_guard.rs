//! What a member keeps an eye on while it waits for the root.

use std::sync::Arc;
use std::time::Duration;

use crate::rank::Rank;
use crate::sync::Latch;

/// Looks after ranks that may be lost without the root's hearing of it: they are in an epoch together that it knows nothing of. And
/// it may be told to wait no longer, or find out that there is no point in it.
#[derive(Clone)]
pub(crate) struct WaitGuard {
    lost: Arc<dyn Fn() -> Option<Rank> + Send + Sync>,
    off: Option<CancelToken>,
    is_vain: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

/// Ends a meeting from another thread than the one that waits there. Whoever has begun with the others by then is with them.
#[derive(Clone, Debug, Default)]
pub(crate) struct CancelToken(Arc<Latch>);

impl CancelToken {
    /// Calls it off, for good.
    #[cfg(feature = "coordinator")]
    pub(crate) fn cancel(&self) {
        self.0.open(&crate::shm::HostKernel::detect());
    }
}

/// How often a guard is kept.
pub(super) const GUARD_INTERVAL: Duration = Duration::from_millis(5);

impl WaitGuard {
    /// A guard by `lost`, which returns one of those that are lost, if there is one.
    pub(crate) fn new(lost: impl Fn() -> Option<Rank> + Send + Sync + 'static) -> Self {
        Self { lost: Arc::new(lost), off: None, is_vain: None }
    }

    /// A guard for nobody, that ends by `off`.
    pub(crate) fn until(off: CancelToken) -> Self {
        Self::new(|| None).or_until(Some(off))
    }

    /// The same, that ends by `off` as well.
    pub(crate) fn or_until(self, off: Option<CancelToken>) -> Self {
        Self { off, ..self }
    }

    /// The same, that ends as well once the wait `is_vain`, by what has nothing to do with those who are waited for.
    pub(crate) fn unless(self, is_vain: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { is_vain: Some(Arc::new(is_vain)), ..self }
    }

    /// Whether the wait is to end.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.off.as_ref().is_some_and(|off| off.0.is_open())
            || self.is_vain.as_ref().is_some_and(|is_vain| is_vain())
    }

    /// One of those that are lost.
    pub(crate) fn lost(&self) -> Option<Rank> {
        (self.lost)()
    }
}

impl std::fmt::Debug for WaitGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("WaitGuard").field(&self.lost()).finish()
    }
}
