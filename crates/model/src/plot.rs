//! Pictures: probability of loss against failed drives, several layouts in one, as in the paper.
//!
//! Drawn by `plotters` with only its SVG and bitmap backends: light, and one description gives
//! both formats. Text in PNG comes from an embedded subset of DejaVu Sans (`font/`), so no font of
//! the machine is needed; SVG names a generic family.
//!
//! **Invariants.** The same answer gives the same bytes; points of probability 0 and 1 are drawn on
//! the frame exactly; on the logarithmic scale 0 is drawn on the lower edge.

use std::path::Path;
use std::sync::OnceLock;

use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

use crate::answer::{Answer, LayoutAnswer};

const SIZE: (u32, u32) = (960, 600);
const FONT: &[u8] = include_bytes!("../font/DejaVuSans-ascii.ttf");
/// Okabe and Ito's colours, told apart by readers with any colour vision.
const COLOURS: [RGBColor; 7] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
];
const AXIS: RGBColor = RGBColor(70, 70, 70);
const GRID: RGBColor = RGBColor(225, 225, 225);

/// The vertical scale.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Scale {
    /// 0 to 1.
    #[default]
    Linear,
    /// Decades, down to the smallest probability shown (at most 12).
    Logarithmic,
}

/// No picture could be made.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// Neither `.svg` nor `.png`.
    #[error("a plot is written as .svg or .png; give the file one of these endings")]
    Ending,
    /// Nothing to draw.
    #[error("a plot needs at least two numbers of failures, for example --failures 0..30")]
    Empty,
    /// The drawing failed.
    #[error("the plot cannot be drawn")]
    Draw,
    /// The file cannot be written.
    #[error("the plot cannot be written: {0}")]
    Write(#[from] std::io::Error),
}

fn draw_failed<E: std::error::Error + Send + Sync>(_: DrawingAreaErrorKind<E>) -> PlotError {
    PlotError::Draw
}

/// Writes the picture of `answer` to `path`, as SVG or PNG by its ending.
///
/// # Errors
/// [`PlotError`].
pub fn write_plot(answer: &Answer, scale: Scale, path: &Path) -> Result<(), PlotError> {
    let ending = path
        .extension()
        .and_then(|e| e.to_str())
        .map(str::to_ascii_lowercase);
    match ending.as_deref() {
        Some("svg") => std::fs::write(path, svg(answer, scale)?)?,
        Some("png") => {
            // The library writes to a path itself; whether that can be done is found out first, for
            // an error that says why.
            std::fs::write(path, [])?;
            let area = BitMapBackend::new(path, SIZE).into_drawing_area();
            draw(answer, scale, &area)?;
            area.present().map_err(draw_failed)?;
        }
        _ => return Err(PlotError::Ending),
    }
    Ok(())
}

/// The picture as SVG text.
///
/// # Errors
/// [`PlotError`].
pub fn svg(answer: &Answer, scale: Scale) -> Result<String, PlotError> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        draw(answer, scale, &area)?;
        area.present().map_err(draw_failed)?;
    }
    Ok(text)
}

fn font() -> Result<(), PlotError> {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    let good =
        *REGISTERED.get_or_init(|| register_font("sans-serif", FontStyle::Normal, FONT).is_ok());
    if good { Ok(()) } else { Err(PlotError::Draw) }
}

fn draw<B: DrawingBackend>(
    answer: &Answer,
    scale: Scale,
    area: &DrawingArea<B, plotters::coord::Shift>,
) -> Result<(), PlotError> {
    font()?;
    let points = || answer.layouts.iter().flat_map(|layout| &layout.points);
    let first = points().map(|p| p.failures).min().ok_or(PlotError::Empty)?;
    let last = points().map(|p| p.failures).max().ok_or(PlotError::Empty)?;
    if first == last {
        return Err(PlotError::Empty);
    }
    let x = f64::from(first)..f64::from(last);
    area.fill(&WHITE).map_err(draw_failed)?;
    match scale {
        Scale::Linear => draw_on(answer, area, x, 0.0..1.0, 0.0, &|y| format!("{y:.1}")),
        Scale::Logarithmic => {
            let least = points()
                .map(|p| p.probability)
                .filter(|&p| p > 0.0)
                .fold(1.0, f64::min);
            let floor = 10.0_f64.powf(least.log10().floor().clamp(-12.0, -1.0));
            let y = (floor..1.0).log_scale();
            draw_on(answer, area, x, y, floor, &|y| {
                format!("1e{:.0}", y.log10())
            })
        }
    }
}

fn legend(layout: &LayoutAnswer) -> String {
    let copies = if layout.copies > 1 { " in all" } else { "" };
    format!(
        "{}, {} drives{copies}, {:.1} % data",
        layout.layout,
        layout.devices,
        layout.efficiency * 100.0
    )
}

fn draw_on<B: DrawingBackend, Y>(
    answer: &Answer,
    area: &DrawingArea<B, plotters::coord::Shift>,
    x: std::ops::Range<f64>,
    y: Y,
    floor: f64,
    format: &dyn Fn(&f64) -> String,
) -> Result<(), PlotError>
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let text = |size: u32| ("sans-serif", size).into_font().color(&AXIS);
    let mut chart = ChartBuilder::on(area)
        .caption("Probability of data loss", text(22))
        .margin(18)
        .x_label_area_size(52)
        .y_label_area_size(66)
        .build_cartesian_2d(x, y)
        .map_err(draw_failed)?;
    chart
        .configure_mesh()
        .bold_line_style(GRID)
        .light_line_style(WHITE)
        .axis_style(AXIS)
        .x_desc("Drives failed at the same instant, chosen at random")
        .y_desc("Probability of losing any data")
        .x_labels(12)
        .y_labels(11)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(format)
        .label_style(text(14))
        .axis_desc_style(text(15))
        .draw()
        .map_err(draw_failed)?;
    for (layout, colour) in answer.layouts.iter().zip(COLOURS.iter().cycle()) {
        // Of the points below the frame the last is kept, on the frame: the line comes from there.
        let below = layout
            .points
            .iter()
            .take_while(|p| p.probability < floor)
            .count();
        let line: Vec<(f64, f64)> = layout.points[below.saturating_sub(1)..]
            .iter()
            .map(|p| (f64::from(p.failures), p.probability.max(floor)))
            .collect();
        let colour = *colour;
        chart
            .draw_series(LineSeries::new(line.clone(), colour.stroke_width(2)))
            .map_err(draw_failed)?
            .label(legend(layout))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(3)));
        let size = if line.len() > 60 { 2 } else { 3 };
        let dots = line
            .iter()
            .map(|&at| Circle::new(at, size, colour.filled()));
        chart.draw_series(dots).map_err(draw_failed)?;
        let bars = layout
            .points
            .iter()
            .filter(|p| p.stderr > 0.0 && p.probability >= floor);
        let bars = bars.map(|p| {
            let x = f64::from(p.failures);
            let (low, high) = (
                p.probability - 2.0 * p.stderr,
                p.probability + 2.0 * p.stderr,
            );
            PathElement::new(
                [(x, low.max(floor)), (x, high.min(1.0))],
                colour.stroke_width(1),
            )
        });
        chart.draw_series(bars).map_err(draw_failed)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .border_style(GRID)
        .margin(12)
        .label_font(text(14))
        .draw()
        .map_err(draw_failed)
}
