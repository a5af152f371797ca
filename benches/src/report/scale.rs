//! Values as positions on an axis, and as text.

/// A linear or logarithmic scale from values to positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    /// The least and the largest value; log10 of them if logarithmic.
    value_min: f64,
    value_max: f64,
    /// The positions of these two values.
    position_start: f64,
    position_end: f64,
    log: bool,
}

impl Scale {
    /// Creates a scale from the least to the largest of these values, whose positions are
    /// `position_start` and `position_end`.
    pub(super) fn from_values(
        values: impl Iterator<Item = f64>,
        (position_start, position_end): (f64, f64),
        log: bool,
    ) -> Self {
        let values = values.filter(|value| !log || is_plottable(*value));
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        let (low, high) = if low.is_finite() {
            (low, high)
        } else {
            (1.0, 10.0)
        };
        if log {
            Self {
                value_min: low.log10(),
                value_max: high.log10().max(low.log10() + 1e-9),
                position_start,
                position_end,
                log,
            }
        } else {
            Self {
                value_min: low,
                value_max: high.max(low + 1e-9),
                position_start,
                position_end,
                log,
            }
        }
    }

    /// Adds a margin of this fraction of the range at both ends, so that points and labels are not
    /// on the edge.
    pub(super) fn padded(self, fraction: f64) -> Self {
        let pad = (self.value_max - self.value_min).max(0.3) * fraction;
        Self {
            value_min: self.value_min - pad,
            value_max: self.value_max + pad,
            ..self
        }
    }

    /// Returns the position of a value.
    pub(super) fn position(&self, value: f64) -> f64 {
        let value = if self.log { value.log10() } else { value };
        self.position_start
            + (value - self.value_min) / (self.value_max - self.value_min)
                * (self.position_end - self.position_start)
    }

    /// Returns the tick values of a logarithmic scale: powers of ten, and with fewer than 2.2
    /// decades also two and five times them.
    pub(super) fn log_ticks(&self) -> Vec<f64> {
        let multiples: &[f64] = if self.value_max - self.value_min < 2.2 {
            &[1.0, 2.0, 5.0]
        } else {
            &[1.0]
        };
        let powers = self.value_min.floor() as i32..=self.value_max.ceil() as i32;
        let ticks = powers.flat_map(|power| {
            multiples
                .iter()
                .map(move |multiple| multiple * 10f64.powi(power))
        });
        ticks
            .filter(|tick| (self.value_min..=self.value_max).contains(&tick.log10()))
            .collect()
    }
}

/// Whether a value can be drawn on a logarithmic axis, or as a bar.
pub(super) fn is_plottable(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

/// Formats nanoseconds.
pub(super) fn time_text(ns: f64) -> String {
    format_with_unit(ns, &[(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")])
}

/// Formats bytes per second.
pub(super) fn throughput_text(rate: f64) -> String {
    format_with_unit(
        rate,
        &[(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")],
    )
}

/// Formats messages per second.
pub(super) fn rate_text(rate: f64) -> String {
    format_with_unit(rate, &[(1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")])
}

fn format_with_unit(value: f64, units: &[(f64, &str)]) -> String {
    let (factor, unit) = units
        .iter()
        .find(|(factor, _)| value >= *factor)
        .or(units.last())
        .copied()
        .unwrap_or((1.0, ""));
    let value = value / factor;
    let digits = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    let number = format!("{value:.digits$}");
    let number = if number.contains('.') {
        number.trim_end_matches('0').trim_end_matches('.')
    } else {
        &number
    };
    format!("{number} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_with_units() {
        assert_eq!(time_text(465.0), "465 ns");
        assert_eq!(time_text(1400.0), "1.4 µs");
        assert_eq!(time_text(100_000.0), "100 µs");
        assert_eq!(throughput_text(6.99e9), "6.99 GB/s");
        assert_eq!(rate_text(0.5), "0.5 /s");
    }

    #[test]
    fn log_scale_places_values_by_their_logarithm() {
        let scale = Scale::from_values([10.0, 1000.0].into_iter(), (0.0, 100.0), true);
        assert!((scale.position(100.0) - 50.0).abs() < 1e-6);
        assert_eq!(
            Scale::from_values([1.0, 1e6].into_iter(), (0.0, 1.0), true)
                .log_ticks()
                .len(),
            7
        );
        let one = Scale::from_values([5.0].into_iter(), (0.0, 100.0), true).padded(0.1);
        assert!(
            one.position(5.0).is_finite(),
            "a range of one value has a finite position"
        );
    }
}
