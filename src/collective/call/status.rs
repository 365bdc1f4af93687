//! What a receive from any rank tells of its message.

use std::sync::{Arc, Mutex, PoisonError};

use crate::rank::Rank;
use crate::reduce::DataType;

/// Says which message a receive from any rank has taken, like `MPI_Status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageStatus {
    /// The sender, by its number in the communicator.
    pub source: Rank,
    /// The tag that both ranks have called.
    pub tag: u32,
    /// The number of elements.
    pub count: u64,
    /// The type of the elements.
    pub data_type: DataType,
}

impl MessageStatus {
    /// Returns the length of the message in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.count * self.data_type.size() as u64
    }
}

/// Which messages a receive takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageSelector {
    /// The rank that has sent them; `None` for any other rank.
    pub source: Option<Rank>,
    /// Their tag; `None` for any.
    pub tag: Option<u32>,
}

/// Which messages a receive takes, besides those of its tag, and where it tells of the one taken.
#[derive(Clone, Debug)]
pub(crate) struct Receipt {
    pub(crate) status: StatusHandle,
    /// The member that has sent it; `None` for any other.
    pub(crate) source: Option<usize>,
    /// Whether it may have any tag.
    pub(crate) has_any_tag: bool,
}

/// Where a receive from any rank leaves its [`MessageStatus`]: see
/// [`Collectives::recv_any_into`](crate::Collectives::recv_any_into). Clones share it.
#[derive(Clone, Debug, Default)]
pub struct StatusHandle(Arc<Mutex<Option<MessageStatus>>>);

impl StatusHandle {
    /// Makes one of a receive that is not done.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the status of the receive, once that is done. A handle that serves several receives
    /// has the status of the last one.
    #[must_use]
    pub fn get(&self) -> Option<MessageStatus> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, status: MessageStatus) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
    }
}
