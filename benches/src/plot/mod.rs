//! Plots as SVG, and a page of them: what `iwperf --report` and other measurements are shown with.
//!
//! A [`Chart`] is lines over two [`Axis`]; [`Chart::svg`] draws it. A [`Page`] puts charts, tables and words
//! into one HTML file that needs nothing else. The same input gives the same bytes: no date, no font of the
//! machine.
//!
//! | file | what |
//! |---|---|
//! | `chart` | axes and lines |
//! | `scale` | from a value to its place on an axis, and where the ticks are |
//! | `draw` | a chart as SVG |
//! | `page` | HTML |

mod chart;
mod draw;
mod page;
mod scale;

pub use chart::{Axis, Chart, Series, Stroke};
pub use draw::DrawError;
pub use page::Page;
pub use scale::{Scale, bytes, decimal, percent};
