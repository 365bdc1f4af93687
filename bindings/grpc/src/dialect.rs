//! Dialects: where clients of the course contradict each other, and what a listener takes.
//!
//! Nothing on the wire tells the dialect of a client. So each listener speaks one.

use std::fmt;
use std::str::FromStr;

use shmccl::reduce::ReduceOp;
use tonic::Status;

use crate::wire::gpu_sim;

/// Which numbers enumerations have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Enums {
    /// As in the handout.
    #[default]
    Handout,
    /// One more each: 0 says that nothing was said.
    Shifted,
}

/// What the count of an all_reduce counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Count {
    /// Elements of eight bytes.
    #[default]
    Elements,
    Bytes,
}

/// What becomes of devices that nobody gives back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolUse {
    /// A device stays in its communicator until that ends.
    #[default]
    Exclusive,
    /// A communicator that is idle is ended when another one needs its devices: the one that was
    /// used longest ago of the same connection, or of one that has gone.
    Shared,
}

/// When the calls of a group are executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupUse {
    /// When it ends.
    #[default]
    Deferred,
    /// Each at once.
    Eager,
}

/// Whether a client may take a device out of its communicator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Removal {
    #[default]
    Refused,
    /// The device has no part in later operations, and can still be copied to and from.
    Marked,
}

/// What a listener takes, and how it answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dialect {
    pub enums: Enums,
    pub count: Count,
    pub pool: PoolUse,
    pub group: GroupUse,
    pub removal: Removal,
    /// Whether a group that has lost a device is executed again by those that are left.
    pub restart: bool,
    /// Whether metadata of a device tell where it listens, and its rank.
    pub addresses: bool,
    /// Whether the first chunk of a stream begins with its number and an address.
    pub prefixed: bool,
}

/// The names of presets, and what each is for.
pub const PRESETS: [(&str, &str, Dialect); 4] = {
    const HANDOUT: Dialect = Dialect {
        enums: Enums::Handout,
        count: Count::Elements,
        pool: PoolUse::Exclusive,
        group: GroupUse::Deferred,
        removal: Removal::Refused,
        restart: false,
        addresses: false,
        prefixed: false,
    };
    const BYTES: Dialect = Dialect {
        count: Count::Bytes,
        pool: PoolUse::Shared,
        group: GroupUse::Eager,
        removal: Removal::Marked,
        ..HANDOUT
    };
    [
        ("handout", "as the handout has it, and NCCL: the default", HANDOUT),
        ("bytes", "count=bytes,pool=shared,group=eager,removal=marked", BYTES),
        ("shifted", "the same with enums=shifted", Dialect { enums: Enums::Shifted, ..BYTES }),
        (
            "restart",
            "the handout's with restart=on,addresses=on",
            Dialect { restart: true, addresses: true, ..HANDOUT },
        ),
    ]
};

impl Dialect {
    /// Reads a preset or settings, such as `bytes` or `enums=shifted`, on top of `self`.
    ///
    /// # Errors
    /// A text that says what is expected.
    pub fn with(self, setting: &str) -> Result<Self, String> {
        if let Some((.., preset)) = PRESETS.iter().find(|(name, ..)| *name == setting) {
            return Ok(*preset);
        }
        let Some((knob, value)) = setting.split_once('=') else {
            let names = PRESETS.map(|(name, ..)| name).join(", ");
            return Err(format!(
                "{setting} is no dialect: expected {names}, or a setting such as count=bytes"
            ));
        };
        let refused = |expected: &str| Err(format!("{knob}={value}: expected {expected}"));
        let mut dialect = self;
        match (knob, value) {
            ("enums", "handout") => dialect.enums = Enums::Handout,
            ("enums", "shifted") => dialect.enums = Enums::Shifted,
            ("enums", _) => return refused("handout or shifted"),
            ("count", "elements") => dialect.count = Count::Elements,
            ("count", "bytes") => dialect.count = Count::Bytes,
            ("count", _) => return refused("elements or bytes"),
            ("pool", "exclusive") => dialect.pool = PoolUse::Exclusive,
            ("pool", "shared") => dialect.pool = PoolUse::Shared,
            ("pool", _) => return refused("exclusive or shared"),
            ("group", "deferred") => dialect.group = GroupUse::Deferred,
            ("group", "eager") => dialect.group = GroupUse::Eager,
            ("group", _) => return refused("deferred or eager"),
            ("removal", "refused") => dialect.removal = Removal::Refused,
            ("removal", "marked") => dialect.removal = Removal::Marked,
            ("removal", _) => return refused("refused or marked"),
            ("restart" | "addresses" | "prefixed", "on" | "off") => {
                let is_on = value == "on";
                match knob {
                    "restart" => dialect.restart = is_on,
                    "addresses" => dialect.addresses = is_on,
                    _ => dialect.prefixed = is_on,
                }
            }
            ("restart" | "addresses" | "prefixed", _) => return refused("on or off"),
            _ => {
                return Err(format!(
                    "{knob} is no setting of a dialect: expected enums, count, pool, group, removal, restart, \
                     addresses or prefixed"
                ));
            }
        }
        Ok(dialect)
    }

    /// Returns a status as it goes out.
    #[must_use]
    pub fn status(self, status: gpu_sim::Status) -> i32 {
        status as i32 + i32::from(self.enums == Enums::Shifted)
    }

    /// Returns the operator of number `op`, as it has come.
    ///
    /// # Errors
    /// A number that stands for none.
    pub fn operator(self, op: i32) -> Result<ReduceOp, Status> {
        let expected = match self.enums {
            Enums::Handout => "SUM 0, PROD 1, MIN 2 or MAX 3",
            Enums::Shifted => "SUM 1, PROD 2, MIN 3 or MAX 4",
        };
        match op.wrapping_sub(i32::from(self.enums == Enums::Shifted)) {
            0 => Ok(ReduceOp::Sum),
            1 => Ok(ReduceOp::Prod),
            2 => Ok(ReduceOp::Min),
            3 => Ok(ReduceOp::Max),
            _ => {
                Err(Status::invalid_argument(format!("operator {op} is not known here: expected {expected}")))
            }
        }
    }

    /// Returns how many elements `count` stands for.
    ///
    /// # Errors
    /// Bytes that are not whole elements.
    pub fn elements(self, count: u64) -> Result<u64, Status> {
        match self.count {
            Count::Elements => Ok(count),
            Count::Bytes if count.is_multiple_of(8) => Ok(count / 8),
            Count::Bytes => Err(Status::invalid_argument(format!(
                "{count} bytes are not whole elements of 8 bytes each; this listener counts bytes"
            ))),
        }
    }
}

impl FromStr for Dialect {
    type Err = String;

    fn from_str(settings: &str) -> Result<Self, String> {
        let mut given = settings.split(',').filter(|setting| !setting.is_empty());
        given.try_fold(Self::default(), Self::with)
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { enums, count, pool, group, removal, restart, addresses, prefixed } = self;
        let names =
            format!("enums={enums:?},count={count:?},pool={pool:?},group={group:?},removal={removal:?}");
        write!(f, "{}", names.to_lowercase())?;
        for (name, is_on) in [("restart", restart), ("addresses", addresses), ("prefixed", prefixed)] {
            if *is_on {
                write!(f, ",{name}=on")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_and_settings_add_up_from_left_to_right() {
        assert_eq!("".parse(), Ok(Dialect::default()));
        let shifted: Dialect = "shifted,pool=exclusive".parse().unwrap();
        assert_eq!((shifted.enums, shifted.pool), (Enums::Shifted, PoolUse::Exclusive));
        assert_eq!(shifted.to_string().parse(), Ok(shifted));
        for wrong in ["nonsense", "count=words", "restart=yes", "speed=high"] {
            assert!(wrong.parse::<Dialect>().unwrap_err().contains("expected"), "{wrong}");
        }
    }

    #[test]
    fn each_preset_is_what_its_help_says() {
        for (name, settings, preset) in PRESETS {
            assert_eq!(name.parse(), Ok(preset));
            if let Ok(said) = settings.parse::<Dialect>() {
                assert_eq!(said, preset, "{name}");
            }
        }
    }

    #[test]
    fn a_shifted_sum_is_no_product() {
        let shifted: Dialect = "shifted".parse().unwrap();
        assert_eq!(shifted.operator(1).unwrap(), ReduceOp::Sum);
        assert_eq!(Dialect::default().operator(1).unwrap(), ReduceOp::Prod);
        assert!(shifted.operator(0).is_err() && Dialect::default().operator(4).is_err());
        assert!(shifted.operator(i32::MIN).is_err());
        assert_eq!(shifted.status(gpu_sim::Status::Success), 2);
    }

    #[test]
    fn bytes_that_are_no_whole_elements_are_refused() {
        let bytes: Dialect = "count=bytes".parse().unwrap();
        assert_eq!(bytes.elements(24).unwrap(), 3);
        assert!(bytes.elements(12).is_err());
    }
}
