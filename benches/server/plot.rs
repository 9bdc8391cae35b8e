//! The two plots of the README: cost against the peers, and cost as buckets grow in number.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::contenders::{GRANTED, REFUSED, SET};
use super::table::{grouped, short};
use super::{Results, Row};

const OURS: RGBColor = RGBColor(0x1f, 0x77, 0xb4);
const PEERS: RGBColor = RGBColor(0x9a, 0x9a, 0x9a);
const LINES: [RGBColor; 4] = [PEERS, RGBColor(0x33, 0x33, 0x33), OURS, RGBColor(0xff, 0x7f, 0x0e)];
const SIZE: (u32, u32) = (760, 420);

pub(crate) fn draw(results: &Results, folder: &Path) {
    std::fs::create_dir_all(folder).expect("a folder for the plots");
    peers(results, &folder.join("cost-against-peers.svg")).expect("a plot");
    growth(results, &folder.join("cost-as-buckets-grow.svg")).expect("a plot");
}

type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

/// A bar a call: instructions on one key.
fn peers<'a>(results: &Results, path: &'a Path) -> Drawn<'a> {
    let single: Vec<(&Row, f64)> = results
        .rows
        .iter()
        .filter(|row| row.contender.commands() == 1 && !row.contender.name.contains('3'))
        .filter_map(|row| Some((row, row.hot?.least)))
        .collect();
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    title(&area, &format!("Instructions per call on {}", results.server))?;
    let (left, right, top, height) = (200, 70, 44, (SIZE.1 as i32 - 54) / single.len() as i32);
    let most = single.iter().map(|(_, count)| *count).fold(0.0, f64::max);
    for (at, (row, count)) in single.iter().enumerate() {
        let y = top + height * at as i32;
        let end = left + ((SIZE.0 as i32 - left - right) as f64 * count / most) as i32;
        let ours = row.contender.name.starts_with("TB.");
        let colour = if ours { OURS } else { PEERS };
        area.draw(&Rectangle::new([(left, y + 3), (end, y + height - 3)], colour.filled()))?;
        let middle = y + height / 2;
        area.draw(&Text::new(row.contender.name, (left - 8, middle), anchored(HPos::Right)))?;
        area.draw(&Text::new(grouped(*count), (end + 6, middle), anchored(HPos::Left)))?;
    }
    area.present()
}

/// A line a call: the server's processor time over the number of buckets.
fn growth<'a>(results: &Results, path: &'a Path) -> Drawn<'a> {
    let rows = ["GET", SET, GRANTED, REFUSED].map(|name| results.row(name));
    let points = || rows.iter().flat_map(|row| row.growth.iter().filter_map(|point| Some((point.buckets, point.cpu?))));
    let (least, most) =
        points().fold((usize::MAX, 1), |(low, high), (buckets, _)| (low.min(buckets), high.max(buckets)));
    let top = points().map(|(_, cpu)| cpu).fold(0.0, f64::max) * 1.1;
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    title(&area, &format!("Microseconds of processor time per call on {}", results.server))?;
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .margin_top(40)
        .margin_right(24)
        .x_label_area_size(40)
        .y_label_area_size(44)
        .build_cartesian_2d((least as f64..most as f64).log_scale(), 0.0..top)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("keys in the database")
        .x_label_formatter(&|keys| short(keys.round() as usize))
        .label_style(("sans-serif", 13))
        .draw()?;
    for (row, colour) in rows.iter().zip(LINES) {
        let line = row.growth.iter().filter_map(|point| Some((point.buckets as f64, point.cpu?)));
        chart
            .draw_series(LineSeries::new(line, colour.stroke_width(2)))?
            .label(row.contender.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .label_font(("sans-serif", 13))
        .draw()?;
    area.present()
}

fn title<'a>(area: &DrawingArea<SVGBackend<'a>, plotters::coord::Shift>, text: &str) -> Drawn<'a> {
    let style = TextStyle::from(("sans-serif", 17)).pos(Pos::new(HPos::Left, VPos::Top));
    area.draw(&Text::new(text.to_owned(), (14, 12), style))
}

fn anchored(side: HPos) -> TextStyle<'static> {
    TextStyle::from(("sans-serif", 13)).pos(Pos::new(side, VPos::Center))
}
