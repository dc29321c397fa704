//! Plots as SVG, and a page of them: what `iwperf --report` and other measurements are shown with.
//!
//! A [`Chart`] is lines over two [`Axis`]; [`Chart::svg`] draws it. A [`Page`] puts charts, tables and words
//! into one HTML file that needs nothing else. The same input gives the same bytes: no date, no font of the
//! machine.
//!
//! | file | what |
//! |---|---|
//! | `scale` | from a value to its place on an axis, and where the ticks are |
//! | `draw` | a chart as SVG |
//! | `page` | HTML |

mod draw;
mod page;
mod scale;

pub use draw::DrawError;
pub use page::Page;
pub use scale::{Scale, bytes, decimal, percent};

/// One axis: what it shows and how.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What is shown, with its unit: "message, bytes".
    pub title: String,
    /// How values are spread over it.
    pub scale: Scale,
    /// How a value at a tick is written: [`decimal`], [`bytes`], [`percent`].
    pub label: fn(f64) -> String,
    /// Values that the axis covers at least.
    pub covers: Vec<f64>,
}

impl Axis {
    /// Evenly spread, from zero on.
    pub fn linear(title: impl Into<String>) -> Self {
        Self { title: title.into(), scale: Scale::Linear, label: decimal, covers: vec![0.0] }
    }

    /// Bytes of a message, by powers of two.
    pub fn bytes(title: impl Into<String>) -> Self {
        Self { title: title.into(), scale: Scale::Log2, label: bytes, covers: Vec::new() }
    }

    /// A count, by powers of two: queue pairs, cores.
    pub fn count(title: impl Into<String>) -> Self {
        Self { title: title.into(), scale: Scale::Log2, label: decimal, covers: Vec::new() }
    }

    /// By powers of ten.
    pub fn log10(title: impl Into<String>) -> Self {
        Self { title: title.into(), scale: Scale::Log10, label: decimal, covers: Vec::new() }
    }

    /// Quantiles from 0 to below 1, each nine as wide as the one before.
    pub fn quantiles() -> Self {
        Self {
            title: "percentile".into(),
            scale: Scale::Nines,
            label: percent,
            // The median is not at the edge, and there is always a tick to the right of it.
            covers: vec![0.0, 0.99],
        }
    }
}

/// How a line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stroke {
    /// A measurement: a line with a mark at each point.
    #[default]
    Solid,
    /// A limit or a reference: dashes without marks.
    Dashed,
}

/// One line.
#[derive(Clone, Debug)]
pub struct Series {
    /// In the legend.
    pub name: String,
    /// (x, y), by increasing x. Those that have no place on a logarithmic axis (0 and below) are left out.
    pub points: Vec<(f64, f64)>,
    /// How it looks.
    pub stroke: Stroke,
}

impl Series {
    /// A measurement.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, stroke: Stroke::Solid }
    }

    /// A limit or a reference.
    pub fn reference(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { stroke: Stroke::Dashed, ..Self::new(name, points) }
    }
}

/// Lines over two axes.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Above it.
    pub title: String,
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// The lines, in the order of the legend.
    pub series: Vec<Series>,
}

impl Chart {
    /// As an SVG document.
    ///
    /// # Errors
    /// [`DrawError`]: no point has a place, or the drawing crate refuses.
    pub fn svg(&self) -> Result<String, DrawError> {
        draw::svg(self)
    }
}
