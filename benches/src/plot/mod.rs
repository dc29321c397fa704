//! Plots as SVG, and a page of plots, for `iwperf --report` and other measurements.
//!
//! A [`Chart`] has lines over two axes ([`Axis`]), and [`Chart::svg`] draws the chart. A [`Page`] puts
//! charts, tables and text into one self-contained HTML file. Equal input gives equal bytes, since the output
//! contains no date and no font of the machine.
//!
//! | file | what |
//! |---|---|
//! | `chart` | axes and lines |
//! | `scale` | the place of a value on an axis, and the ticks |
//! | `draw` | a chart as SVG |
//! | `page` | HTML |

mod chart;
mod draw;
mod page;
mod scale;

pub use chart::{Axis, Chart, Series, Stroke};
pub use draw::DrawError;
pub use page::{Bar, Page};
pub use scale::{Scale, bytes, decimal, percent};
