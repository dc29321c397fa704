//! A chart as data: axes and lines.

use super::scale::{Scale, bytes, decimal, percent};

/// One axis: its quantity and its format.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The quantity with its unit, for instance "message, bytes".
    pub title: String,
    /// The scale of the axis.
    pub scale: Scale,
    /// The format of the values at ticks: [`decimal`], [`bytes`] or [`percent`].
    pub label: fn(f64) -> String,
    /// Values that the axis has to include.
    pub covers: Vec<f64>,
}

impl Axis {
    /// A linear axis that begins at zero.
    pub fn linear(title: impl Into<String>) -> Self {
        Self { title: title.into(), scale: Scale::Linear, label: decimal, covers: vec![0.0] }
    }

    /// An axis for the bytes of a message, with ticks at powers of two.
    pub fn bytes(title: impl Into<String>) -> Self {
        Self { title: title.into(), scale: Scale::Log2, label: bytes, covers: Vec::new() }
    }

    /// An axis for a count (queue pairs or cores), with ticks at powers of two.
    pub fn count(title: impl Into<String>) -> Self {
        Self { title: title.into(), scale: Scale::Log2, label: decimal, covers: Vec::new() }
    }

    /// An axis with ticks at powers of ten.
    pub fn log10(title: impl Into<String>) -> Self {
        Self { title: title.into(), scale: Scale::Log10, label: decimal, covers: Vec::new() }
    }

    /// An axis for quantiles from 0 to below 1. Each further nine has the same width on the axis.
    pub fn quantiles() -> Self {
        Self {
            title: "percentile".into(),
            scale: Scale::Nines,
            label: percent,
            // With these values the median is not at the edge, and there is always a tick to the right of the
            // median.
            covers: vec![0.0, 0.99],
        }
    }
}

/// The style of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stroke {
    /// A measurement, drawn as a line. Unless the line has many points, each point has a mark.
    #[default]
    Solid,
    /// A limit or a reference, drawn as dashes without marks.
    Dashed,
}

/// One line.
#[derive(Clone, Debug)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// Points (x, y) by increasing x. Points that have no place on a logarithmic axis (0 and below) are
    /// omitted.
    pub points: Vec<(f64, f64)>,
    /// The style of the line.
    pub stroke: Stroke,
    /// An area behind the line, as (x, least, greatest) by increasing x. The area shows the spread of
    /// repeated measurements.
    pub band: Vec<(f64, f64, f64)>,
}

impl Series {
    /// A line for a measurement.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, stroke: Stroke::Solid, band: Vec::new() }
    }

    /// A line for a limit or a reference.
    pub fn reference(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { stroke: Stroke::Dashed, ..Self::new(name, points) }
    }

    /// Returns this line with an area behind it.
    pub fn with_band(self, band: Vec<(f64, f64, f64)>) -> Self {
        Self { band, ..self }
    }
}

/// Lines over two axes.
#[derive(Clone, Debug)]
pub struct Chart {
    /// The title above the chart.
    pub title: String,
    /// Notes below the title in small letters, for instance about the measurement and the machine. Each note
    /// has one or more lines.
    pub notes: Vec<String>,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The lines, in the order of the legend.
    pub series: Vec<Series>,
}
