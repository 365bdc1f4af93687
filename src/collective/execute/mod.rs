//! How calls are done, once it is decided how.

pub(crate) mod algorithms;
pub(crate) mod cached;
pub(crate) mod chunked;
pub(crate) mod combine;
pub(crate) mod custom;
pub(crate) mod eager;
pub(crate) mod eager_checked;
pub(crate) mod fused;
pub(crate) mod over_pipes;
pub(crate) mod staged;
pub(crate) mod widened;
pub(crate) mod zero_copy;
