//! Why a call is refused: the refusal's own sentence, and the code that it has on the wire.

use shmccl::Error;
use shmccl::coordinator::{CoordinatorError, RequestError};
use tonic::{Code, Status};

/// The refusal of a call, as it goes out.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) Status);

impl From<CoordinatorError> for Refusal {
    fn from(error: CoordinatorError) -> Self {
        let text = format!("{error:?}");
        Self(Status::new(code_of(&error), with_remedy(&error, text)))
    }
}

impl From<RequestError> for Refusal {
    fn from(error: RequestError) -> Self {
        CoordinatorError::from(error).into()
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self(status)
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        refusal.0
    }
}

impl Refusal {
    /// Returns the refusal of a call that was under way when the coordinator ended. `Unavailable`
    /// would have clients call again, and do twice what goes on without a coordinator.
    pub(crate) fn untold() -> Self {
        Status::unknown(
            "the coordinator has ended before it answered: what was asked for may be done, or go on; look \
             first (GetCommStatus, or shmccl.v1.Pool Status and Watch) when there is a coordinator, and call \
             again only if it was not done",
        )
        .into()
    }

    /// Returns the refusal of a request that is not to be made twice, by what came instead of its
    /// answer.
    pub(crate) fn unanswered(error: CoordinatorError) -> Self {
        match error {
            CoordinatorError::Disconnected { peer: "coordinator" } => Self::untold(),
            error => error.into(),
        }
    }
}

/// Adds what a client of these services can do, where the sentence only tells of commands.
fn with_remedy(error: &CoordinatorError, text: String) -> String {
    match error {
        CoordinatorError::Refused(RequestError::Failed { .. }) => {
            format!("{text}; CommDestroy gives its devices back")
        }
        _ => text,
    }
}

fn code_of(error: &CoordinatorError) -> Code {
    match error {
        CoordinatorError::Refused(refusal) => code_of_request(refusal),
        CoordinatorError::Disconnected { peer: "device" } => Code::Aborted,
        CoordinatorError::NotRunning { .. }
        | CoordinatorError::Dead { .. }
        | CoordinatorError::Disconnected { .. } => Code::Unavailable,
        CoordinatorError::OtherUser { .. } => Code::PermissionDenied,
        CoordinatorError::VersionMismatch { .. } => Code::FailedPrecondition,
        CoordinatorError::MessageTooLong { .. } => Code::ResourceExhausted,
        CoordinatorError::Engine(Error::Timeout { .. }) => Code::DeadlineExceeded,
        CoordinatorError::Engine(Error::ResourceLimit { .. }) => Code::ResourceExhausted,
        _ => Code::Unknown,
    }
}

fn code_of_request(refusal: &RequestError) -> Code {
    match refusal {
        RequestError::BadSize { .. }
        | RequestError::WrongCount { .. }
        | RequestError::NoSuchRoot { .. }
        | RequestError::BadOperator { .. }
        | RequestError::BadDirectory { .. } => Code::InvalidArgument,
        RequestError::OutOfRange { .. } => Code::OutOfRange,
        RequestError::NotEnoughDevices { .. }
        | RequestError::GroupFull
        | RequestError::GroupTooLarge { .. }
        | RequestError::Exhausted { .. }
        | RequestError::DeviceFailed { .. } => Code::ResourceExhausted,
        RequestError::NoSuchComm { .. }
        | RequestError::Ended { .. }
        | RequestError::NoSuchDevice { .. }
        | RequestError::NotAllocated { .. } => Code::NotFound,
        RequestError::WrongState { .. }
        | RequestError::GroupOpen { .. }
        | RequestError::NoSuchGroup { .. }
        | RequestError::Failed { .. } => Code::FailedPrecondition,
        RequestError::NotFormed { .. }
        | RequestError::NotGrown { .. }
        | RequestError::CheckpointFailed { .. } => Code::Aborted,
        _ => Code::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use shmccl::coordinator::{CommId, CommState, DeviceId};

    use super::*;

    #[test]
    fn only_what_has_changed_nothing_may_be_called_again() {
        let ended = || CoordinatorError::Disconnected { peer: "coordinator" };
        assert_eq!(Refusal::from(ended()).0.code(), Code::Unavailable);
        let untold = Refusal::unanswered(ended()).0;
        assert_eq!(untold.code(), Code::Unknown);
        assert!(untold.message().contains("GetCommStatus"), "{}", untold.message());
        let not_sent = CoordinatorError::NotRunning { path: "coordinator".into() };
        assert_eq!(Refusal::unanswered(not_sent).0.code(), Code::Unavailable);
    }

    #[test]
    fn each_refusal_has_the_code_that_clients_look_for() {
        let comm = CommId::new(7);
        let why = || "device 9 was lost".to_owned();
        for (refusal, code) in [
            (RequestError::BadSize { asked: 0 }, Code::InvalidArgument),
            (RequestError::NotEnoughDevices { asked: 9, free: 1, devices: 4 }, Code::ResourceExhausted),
            (RequestError::NoSuchComm { comm }, Code::NotFound),
            (RequestError::Ended { comm, why: None }, Code::NotFound),
            (RequestError::NotAllocated { device: DeviceId::new(9) }, Code::NotFound),
            (RequestError::GroupOpen { comm, open: true }, Code::FailedPrecondition),
            (RequestError::Failed { comm, why: why() }, Code::FailedPrecondition),
            (
                RequestError::WrongState { comm, state: CommState::Init, needs: String::new() },
                Code::FailedPrecondition,
            ),
            (RequestError::NotFormed { why: why() }, Code::Aborted),
        ] {
            let sentence = refusal.to_string();
            let Refusal(status) = refusal.into();
            assert_eq!(status.code(), code, "{sentence}");
            assert!(status.message().starts_with(&sentence), "{}", status.message());
        }
        let Refusal(failed) = RequestError::Failed { comm, why: why() }.into();
        assert!(failed.message().contains("device 9") && failed.message().contains("CommDestroy"));
    }
}
