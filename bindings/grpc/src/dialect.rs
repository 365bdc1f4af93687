//! Dialects: where clients of the course contradict each other, and what a listener takes.
//!
//! Nothing on the wire tells the dialect of a client. So each listener speaks one: a preset, and
//! the single settings that some clients need with any.

use std::fmt;
use std::str::FromStr;

use shmccl::reduce::ReduceOp;
use tonic::Status;

use crate::wire::gpu_sim;

/// What goes together in the clients of the course.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preset {
    /// As the handout has it.
    #[default]
    Handout,
    /// Counts bytes, executes each call at once, recycles devices, and lets them be removed.
    Bytes,
    /// The same, with numbers of enumerations that are one more each: 0 says that nothing was said.
    Shifted,
    /// The handout's, and a group that has lost a device is executed again by those that are left.
    Restart,
}

/// What a listener takes, and how it answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dialect {
    pub preset: Preset,
    /// Whether metadata of a device tell where it listens, and its rank.
    pub addresses: bool,
    /// Whether the first chunk of a stream begins with its number and an address.
    pub prefixed: bool,
}

/// The presets by name, and what each is for.
pub const PRESETS: [(Preset, &str, &str); 4] = [
    (Preset::Handout, "handout", "as the handout has it, and NCCL: the default"),
    (
        Preset::Bytes,
        "bytes",
        "counts bytes, executes each call at once, recycles devices, has CommRemoveDevice",
    ),
    (Preset::Shifted, "shifted", "as bytes, with SUM 1 and SUCCESS 2"),
    (Preset::Restart, "restart", "as handout with addresses=on; a group is executed again after a loss"),
];

/// The single settings, each `on` or `off`, and the clients that need them.
pub const SETTINGS: [(&str, &str); 2] = [
    ("addresses", "for clients that connect to devices where their metadata say that they listen"),
    ("prefixed", "for clients whose streams begin with 16 bytes: a number and an address"),
];

/// What only a preset says, and which one.
const OF_PRESETS: [(&str, &str); 6] = [
    ("enums", "shifted has SUM 1, the others have SUM 0"),
    ("count", "bytes and shifted count bytes, the others count elements"),
    ("pool", "bytes and shifted share devices, the others do not"),
    ("group", "bytes and shifted execute calls at once, the others at GroupEnd"),
    ("removal", "bytes and shifted have CommRemoveDevice, the others do not"),
    ("restart", "restart executes a group again that has lost a device"),
];

impl Preset {
    fn name(self) -> &'static str {
        PRESETS.iter().find(|(preset, ..)| *preset == self).map_or("", |(_, name, _)| name)
    }

    /// Returns the dialect without settings of its own.
    fn dialect(self) -> Dialect {
        Dialect { preset: self, addresses: self == Self::Restart, prefixed: false }
    }
}

impl Dialect {
    /// Reads a preset or a setting, such as `bytes` or `prefixed=on`, on top of `self`.
    ///
    /// # Errors
    /// A text that says what is expected.
    pub fn with(mut self, setting: &str) -> Result<Self, String> {
        if let Some((preset, ..)) = PRESETS.iter().find(|(_, name, _)| *name == setting) {
            return Ok(preset.dialect());
        }
        let Some((name, value)) = setting.split_once('=') else {
            let names = PRESETS.map(|(_, name, _)| name).join(", ");
            return Err(format!(
                "{setting} is no dialect: expected {names}, or a setting such as prefixed=on"
            ));
        };
        if let Some((_, which)) = OF_PRESETS.iter().find(|(of_preset, _)| *of_preset == name) {
            return Err(format!("{name} comes with the preset, so name one: {which}"));
        }
        let place = match name {
            "addresses" => &mut self.addresses,
            "prefixed" => &mut self.prefixed,
            _ => {
                let names = SETTINGS.map(|(name, _)| name).join(" or ");
                return Err(format!("{name} is no setting of a dialect: expected {names}"));
            }
        };
        *place = match value {
            "on" => true,
            "off" => false,
            _ => return Err(format!("{setting}: expected on or off")),
        };
        Ok(self)
    }

    /// Whether it is `bytes`, or the same with other numbers.
    fn is_of_bytes(self) -> bool {
        matches!(self.preset, Preset::Bytes | Preset::Shifted)
    }

    /// Whether a communicator that is idle is ended when another one needs its devices: the one
    /// that was used longest ago of the same connection, or of one that has gone. Otherwise a
    /// device stays in its communicator until that ends.
    #[must_use]
    pub fn shares_devices(self) -> bool {
        self.is_of_bytes()
    }

    /// Whether calls of a group are executed each at once, and not when it ends.
    #[must_use]
    pub fn is_eager(self) -> bool {
        self.is_of_bytes()
    }

    /// Whether a client may take a device out of its communicator. The device has no part in later
    /// operations then, and can still be copied to and from.
    #[must_use]
    pub fn lets_remove(self) -> bool {
        self.is_of_bytes()
    }

    /// Whether a group that has lost a device is executed again by those that are left.
    #[must_use]
    pub fn restarts(self) -> bool {
        self.preset == Preset::Restart
    }

    /// Returns how much more the numbers of its enumerations are than those of the handout.
    fn shift(self) -> i32 {
        i32::from(self.preset == Preset::Shifted)
    }

    /// Returns a status as it goes out.
    #[must_use]
    pub fn status(self, status: gpu_sim::Status) -> i32 {
        status as i32 + self.shift()
    }

    /// Returns the operator of number `op`, as it has come.
    ///
    /// # Errors
    /// A number that stands for none.
    pub fn operator(self, op: i32) -> Result<ReduceOp, Status> {
        match op.wrapping_sub(self.shift()) {
            0 => Ok(ReduceOp::Sum),
            1 => Ok(ReduceOp::Prod),
            2 => Ok(ReduceOp::Min),
            3 => Ok(ReduceOp::Max),
            _ => {
                let [sum, prod, min, max] = [0, 1, 2, 3].map(|number| number + self.shift());
                Err(Status::invalid_argument(format!(
                    "operator {op} is not known here: expected SUM {sum}, PROD {prod}, MIN {min} or MAX {max}"
                )))
            }
        }
    }

    /// Returns how many elements `count` stands for.
    ///
    /// # Errors
    /// Bytes that are not whole elements.
    pub fn elements(self, count: u64) -> Result<u64, Status> {
        match self.is_of_bytes() {
            false => Ok(count),
            true if count.is_multiple_of(8) => Ok(count / 8),
            true => Err(Status::invalid_argument(format!(
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
        write!(f, "{}", self.preset.name())?;
        let usual = self.preset.dialect();
        for (name, is_on, was_on) in
            [("addresses", self.addresses, usual.addresses), ("prefixed", self.prefixed, usual.prefixed)]
        {
            if is_on != was_on {
                write!(f, ",{name}={}", if is_on { "on" } else { "off" })?;
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
        let shifted: Dialect = "shifted,prefixed=on".parse().unwrap();
        assert_eq!(shifted, Dialect { preset: Preset::Shifted, addresses: false, prefixed: true });
        for text in
            ["handout", "shifted,prefixed=on", "restart", "restart,addresses=off", "bytes,addresses=on"]
        {
            let dialect: Dialect = text.parse().unwrap();
            assert_eq!(dialect.to_string(), text);
        }
        for wrong in ["nonsense", "prefixed=yes", "speed=high"] {
            assert!(wrong.parse::<Dialect>().unwrap_err().contains("expected"), "{wrong}");
        }
    }

    #[test]
    fn what_comes_with_a_preset_is_refused_as_a_setting_with_the_preset_that_has_it() {
        for (setting, preset) in [
            ("count=bytes", "bytes"),
            ("pool=shared", "bytes"),
            ("enums=shifted", "shifted"),
            ("restart=on", "restart"),
        ] {
            let refused = setting.parse::<Dialect>().unwrap_err();
            assert!(refused.contains(&format!("name one: {preset}")), "{refused}");
        }
    }

    #[test]
    fn each_preset_has_a_name_and_each_setting_is_taken() {
        for (preset, name, _) in PRESETS {
            assert_eq!(name.parse(), Ok(preset.dialect()));
        }
        for (name, _) in SETTINGS {
            assert!(format!("{name}=on").parse::<Dialect>().is_ok(), "{name}");
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
        let bytes: Dialect = "bytes".parse().unwrap();
        assert_eq!(bytes.elements(24).unwrap(), 3);
        assert!(bytes.elements(12).is_err());
    }
}
