//! Floats of 8 and 16 bits: their way to `f32` and back, by integer arithmetic that a compiler can vectorise.

/// A binary float format with a sign, at most 8 bits of exponent and fewer than 23 of mantissa.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MiniFloat {
    exponent: u32,
    mantissa: u32,
    /// The magnitude (the bits without sign) from which on codes are infinite or NaN.
    special: u32,
    /// The magnitude that too large a value becomes: infinity, or the largest finite value.
    overflow: u32,
    /// The code that every NaN becomes.
    nan: u32,
}

impl MiniFloat {
    /// IEEE 754 binary16.
    pub(crate) const F16: Self =
        Self { exponent: 5, mantissa: 10, special: 0x7C00, overflow: 0x7C00, nan: 0x7E00 };
    /// OCP 8-bit E4M3 ("FN"): no infinities, one NaN of either sign, saturates at 448.
    pub(crate) const E4M3: Self = Self { exponent: 4, mantissa: 3, special: 0x7F, overflow: 0x7E, nan: 0x7F };
    /// OCP 8-bit E5M2: the upper half of a binary16.
    pub(crate) const E5M2: Self = Self { exponent: 5, mantissa: 2, special: 0x7C, overflow: 0x7C, nan: 0x7E };

    const fn bias(&self) -> u32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// The value of a code, exactly.
    ///
    /// With the exponent in place but not its bias, an `f32` is too small by a power of two, for subnormal codes too; one
    /// multiplication makes up for that.
    #[inline(always)]
    pub(crate) const fn widen(&self, code: u32) -> f32 {
        let magnitude = code & ((1 << (self.exponent + self.mantissa)) - 1);
        let sign = (code >> (self.exponent + self.mantissa)) << 31;
        let scale = f32::from_bits((127 + 127 - self.bias()) << 23);
        let value = (f32::from_bits(magnitude << (23 - self.mantissa)) * scale).to_bits();
        let value = if magnitude >= self.special { value | 0x7F80_0000 } else { value };
        f32::from_bits(value | sign)
    }

    /// The code nearest to `value`; of two equally near the one with an even mantissa.
    #[inline(always)]
    pub(crate) const fn narrow(&self, value: f32) -> u32 {
        let bits = value.to_bits();
        let magnitude = bits & 0x7FFF_FFFF;
        let finite = if magnitude < (128 - self.bias()) << 23 {
            self.narrow_subnormal(magnitude)
        } else {
            self.narrow_normal(magnitude)
        };
        let bounded = if finite < self.overflow { finite } else { self.overflow };
        let sign = (bits >> 31) << (self.exponent + self.mantissa);
        if magnitude > 0x7F80_0000 { self.nan } else { bounded | sign }
    }

    /// Shifts the bits that are too many out, rounding; a carry into the exponent is as it should be.
    #[inline(always)]
    const fn narrow_normal(&self, magnitude: u32) -> u32 {
        let excess = 23 - self.mantissa;
        let is_odd = (magnitude >> excess) & 1;
        let rounding = (1 << (excess - 1)) - 1 + is_odd;
        magnitude.wrapping_sub((127 - self.bias()) << 23).wrapping_add(rounding) >> excess
    }

    /// Adds a number whose last place is that of the smallest subnormal code: the processor rounds.
    #[inline(always)]
    const fn narrow_subnormal(&self, magnitude: u32) -> u32 {
        let magic = f32::from_bits((127 + 24 - self.bias() - self.mantissa) << 23);
        (f32::from_bits(magnitude) + magic).to_bits().wrapping_sub(magic.to_bits())
    }
}
