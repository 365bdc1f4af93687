//! What outlives a coordinator that was killed, and how the next one takes it over.
//!
//! Devices go on with what they do when their coordinator dies. Those that were told to outlive it wait
//! for the next one, which learns from their reports which communicators there are. The rest of the
//! coordinator can be read without this folder. It touches these modules in these places only:
//!
//! | module | place | what happens there |
//! |---|---|---|
//! | [`device`](super::device) | a lost connection | [`search`]: looks for the next coordinator, or ends |
//! | [`directory`](super::directory) | `claim`, `listen`, `sweep` | [`directory`]: the lock, the socket and its janitor |
//! | [`service`](super::service) | `await_adoption`, `drop_dead_in_time`, the end | [`coordinator`]: waits for devices, ends orphans |
//! | [`machine`](super::machine) | `place`, the stage `Adopting` | [`machine`]: rebuilds communicators from reports |
//! | [`fleet`](super::fleet) | `DeviceKind::missing`, the crew | [`fleet`]: counts and watches devices that it has not started |
//!
//! A device, a process of its own, is found by its environment ([`assignment`](super::assignment)).
//! Its communicators are known only to the devices in them: each reports its whole state to every
//! coordinator that it connects with.

pub(super) mod coordinator;
pub(super) mod directory;
pub(super) mod fleet;
pub(super) mod machine;
pub(super) mod search;
