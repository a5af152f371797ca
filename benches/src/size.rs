//! Sizes in bytes, as users write them: `8`, `64KiB`, `1MiB`.

use std::fmt;
use std::str::FromStr;

/// A size in bytes.
///
/// ```
/// use fabric_bench::size::Size;
/// assert_eq!("64KiB".parse(), Ok(Size(65536)));
/// assert_eq!(Size(1 << 20).to_string(), "1MiB");
/// assert!("64KB".parse::<Size>().unwrap_err().contains("KiB"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub usize);

/// Units, largest first.
const UNITS: [(&str, usize); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (digits, unit) = UNITS
            .iter()
            .find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))
            .or_else(|| Some((text.strip_suffix('B')?, 1)))
            .unwrap_or((text, 1));
        let number: Option<usize> = digits.trim_end().parse().ok();
        number
            .and_then(|number| number.checked_mul(unit))
            .map(Self)
            .ok_or_else(|| {
                format!(
                    "{text:?} is not a size; sizes look like 8, 64B, 64KiB, 1MiB, 2GiB, and lists \
                     like 8,64KiB"
                )
            })
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS
            .iter()
            .find(|(_, unit)| self.0 >= *unit && self.0.is_multiple_of(*unit))
        {
            Some((name, unit)) => f.pad(&format!("{}{name}", self.0 / unit)),
            None => f.pad(&format!("{}B", self.0)),
        }
    }
}
