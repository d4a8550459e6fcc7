//! Rates over time of two arrays, one with clients that come and go: rebuild, rebalance, scrub.

use std::path::Path;
use std::rc::Rc;

use ashlar_bench::lifecycle::load::Series;
use ashlar_bench::pace::{Bed, Clients, Shape, steps};
use ashlar_bench::report::time::{Line, Panel, Plot};
use ashlar_device::Profile;
use ashlar_engine::status::ArrayState;
use ashlar_engine::{ScrubChange, Work};
use ashlar_rt::{MILLISECOND, Nanos, Rt, SECOND};

use super::Done;

const SHAPE: Shape = Shape {
    profile: Profile::HDD,
    layout: "ec8+2",
    devices: 41,
    spare: 2,
    device_bytes: 16 << 30,
    slot_bytes: 4 << 20,
    volume_bytes: 40 << 30,
};
/// The device that is lost.
const LOST: u16 = 5;
/// A request of clients, and how many of them at once.
const BYTES: usize = 64 << 10;
const DEPTH: usize = 4 * SHAPE.devices as usize;
/// Points of a line at most.
const POINTS: u64 = 200;
/// Points of a line around a step, and how long each is.
const NEAR: usize = 60;
const SHORT: Nanos = 50 * MILLISECOND;
const MB: f64 = 1e6;

/// Array 1 has no clients, array 2 has.
struct Pair {
    rt: Rt,
    beds: [Rc<Bed>; 2],
    /// What clients have where nothing else is under way.
    alone: Series,
}

/// A kind of work on both arrays, from its begin to its end on both.
struct Phase {
    from: Nanos,
    /// When it was over on each array.
    ends: [Nanos; 2],
    /// When clients began and ended, and what they had.
    bursts: Vec<(Nanos, Nanos, Series)>,
}

fn seconds(time: Nanos) -> f64 {
    time as f64 / SECOND as f64
}

/// 99th percentile, in milliseconds.
fn p99(series: &Series) -> f64 {
    series.latency().map_or(0.0, |(_, p99)| p99 / 1e3)
}

/// Bytes a second.
fn rate(series: &Series) -> f64 {
    series.per_second().unwrap_or(0.0) * BYTES as f64
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Waits until all work of a kind is done.
async fn over(rt: Rt, bed: Rc<Bed>, work: Work) -> Nanos {
    loop {
        bed.array.wait_idle(&[work]).await;
        let ended = rt.now();
        rt.sleep(SECOND).await;
        let runs = bed.task(work).await.is_some_and(|t| t.state == "running");
        let whole = work != Work::Rebuild || bed.array.status().await.state == ArrayState::Optimal;
        if whole && !runs {
            return ended;
        }
    }
}

impl Pair {
    async fn new(rt: Rt) -> Done<Pair> {
        let beds = [Bed::new(&rt, SHAPE).await?, Bed::new(&rt, SHAPE).await?].map(Rc::new);
        let clients = beds[1].clients(BYTES, DEPTH)?;
        rt.sleep(10 * SECOND).await;
        let alone = clients.end().await?;
        println!(
            "Clients alone: {:.1} MB/s, p99 {:.0} ms",
            rate(&alone) / MB,
            p99(&alone)
        );
        Ok(Pair { rt, beds, alone })
    }

    /// Watches work that has begun until it is over, with clients on array 2 that begin and end after so many seconds
    /// each.
    async fn phase(&self, work: Work, times: &[u64]) -> Done<Phase> {
        let from = self.rt.now();
        let watch = |bed: &Rc<Bed>| self.rt.spawn(over(self.rt.clone(), bed.clone(), work));
        let [one, two] = self.beds.each_ref().map(watch);
        let mut bursts = Vec::new();
        let mut clients: Option<Clients> = None;
        for time in times {
            self.rt.sleep(time * SECOND).await;
            match clients.take() {
                None => clients = Some(self.beds[1].clients(BYTES, DEPTH)?),
                Some(now) => {
                    let (begun, ended) = (now.begun, self.rt.now());
                    bursts.push((begun, ended, now.end().await?));
                }
            }
        }
        let ends = [one.await, two.await];
        Ok(Phase { from, ends, bursts })
    }

    /// Rates of a device in MB/s: the mean of some devices of array 1 and 2.
    fn rates(&self, of: &[u16], from: Nanos, step: Nanos, count: usize) -> [Vec<f64>; 2] {
        [0, 1].map(|array| {
            let moved = self.beds[array].moved(from, step, count);
            let at = |n| {
                mean(
                    &of.iter()
                        .map(|d| moved[usize::from(*d)][n])
                        .collect::<Vec<_>>(),
                )
            };
            (0..count).map(|n| at(n) / MB).collect()
        })
    }

    /// Draws a phase, and says the least and the mean that the work had beside clients.
    fn plot(&self, phase: &Phase, what: &str, of: &[u16], key: &str, min: f64) -> Plot {
        let rest = phase.bursts.iter().map(|(_, ended, _)| *ended);
        let last = phase.ends.into_iter().chain(rest).max().unwrap_or(0);
        let last = last - phase.from + SECOND;
        let step = last.div_ceil(POINTS).next_multiple_of(SHORT);
        let count = usize::try_from(last / step).unwrap_or(0);
        let rates = self.rates(of, phase.from, step, count);
        let names = ["array 1: no clients", "array 2: clients in the grey spans"];
        let lines = rates.into_iter().zip(names).map(|(points, name)| Line {
            name: name.to_string(),
            points,
        });
        let requests = phase.bursts.iter().flat_map(|(begun, _, series)| {
            series
                .ends
                .iter()
                .map(move |end| (begun + end, BYTES as f64 / MB))
        });
        let had = steps(requests, phase.from, step, count);
        let shaded = |(begun, ended, _): &(Nanos, Nanos, Series)| {
            (seconds(begun - phase.from), seconds(ended - phase.from))
        };
        Plot {
            title: format!("{what} of two arrays, one with clients"),
            from: 0.0,
            step: seconds(step),
            panels: vec![
                Panel {
                    of: format!("{what}, MB/s of a device"),
                    lines: lines.collect(),
                    level: Some((key.to_string(), min / MB)),
                },
                Panel {
                    of: "clients of array 2, MB/s".to_string(),
                    lines: vec![Line {
                        name: "64 KiB random reads".to_string(),
                        points: had,
                    }],
                    level: Some(("with no other work".to_string(), rate(&self.alone) / MB)),
                },
            ],
            shaded: phase.bursts.iter().map(shaded).collect(),
        }
    }

    /// Says what the plot shows in figures.
    fn tell(&self, phase: &Phase, what: &str, of: &[u16], min: f64) {
        let [one, two] = phase.ends.map(|end| seconds(end - phase.from));
        let whole = usize::try_from((phase.ends[0] - phase.from) / SECOND).unwrap_or(0);
        let idle = mean(&self.rates(of, phase.from, SECOND, whole)[0]);
        println!(
            "{what}: {idle:.1} MB/s of a device without clients; over after {one:.1} s and {two:.1} s"
        );
        for (begun, ended, series) in &phase.bursts {
            // The first second is that of the step.
            let count = usize::try_from((ended - begun) / SECOND).unwrap_or(1) - 1;
            let rates = &self.rates(of, begun + SECOND, SECOND, count)[1];
            let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
            println!(
                "  beside clients {:.1} MB/s, in no second below {least:.1} (minimum {:.1}); clients {:.1} MB/s, {:.0} % \
                 of alone, p99 {:.0} ms, {:.2} times",
                mean(rates),
                min / MB,
                rate(series) / MB,
                100.0 * rate(series) / rate(&self.alone),
                p99(series),
                p99(series) / p99(&self.alone)
            );
        }
    }

    /// The steps at the begin and the end of clients.
    fn zoom(&self, phase: &Phase, of: &[u16]) -> Plot {
        let before = 20 * SHORT;
        let (begun, ended, _) = &phase.bursts[0];
        let idle = self.rates(of, begun - SECOND, SECOND, 1)[1][0];
        let panel = |at: Nanos, what: &str| {
            let points = self.rates(of, at - before, SHORT, NEAR)[1].clone();
            Panel {
                of: format!("rebuild, MB/s of a device; clients {what} at 0"),
                lines: vec![Line {
                    name: "array 2".to_string(),
                    points,
                }],
                level: None,
            }
        };
        let up = self.rates(of, *ended, SHORT, NEAR)[1].clone();
        let up = up.iter().position(|rate| *rate >= 0.9 * idle);
        println!(
            "Step: the last piece from before clients is answered {:.3} s after they begin; nine tenths of {idle:.1} MB/s \
             are reached {:.2} s after they end",
            seconds(self.beds[1].answered_after(*begun)),
            up.map_or(f64::NAN, |n| seconds(SHORT) * (n + 1) as f64)
        );
        Plot {
            title: "Rebuild when clients begin and when they end".to_string(),
            from: -seconds(before),
            step: seconds(SHORT),
            panels: vec![panel(*begun, "begin"), panel(*ended, "end")],
            shaded: Vec::new(),
        }
    }

    /// Scrubs of both arrays go on from where they were interrupted.
    async fn scrubs(&self) -> Done<()> {
        let start = ScrubChange::Start {
            check: false,
            since: None,
        };
        for bed in &self.beds {
            bed.array.scrub(start).await?;
        }
        // As in the paper.
        for (bed, percent) in self.beds.iter().zip([26, 46]) {
            let share = async || {
                bed.task(Work::Scrub)
                    .await
                    .map(|t| t.done_bytes * 100 / t.total_bytes.max(1))
            };
            while share().await.unwrap_or(100) < percent {
                self.rt.sleep(100 * MILLISECOND).await;
            }
            bed.array.scrub(ScrubChange::Pause).await?;
        }
        self.rt.sleep(SECOND).await;
        for bed in &self.beds {
            bed.forget();
            bed.array.scrub(ScrubChange::Resume).await?;
        }
        Ok(())
    }
}

async fn all(rt: Rt) -> Done<Vec<(&'static str, Plot)>> {
    let pair = Pair::new(rt).await?;
    let mib = f64::from(1 << 20);
    let left: Vec<u16> = (0..SHAPE.devices).filter(|d| *d != LOST).collect();
    let mut plots = Vec::new();

    for bed in &pair.beds {
        bed.forget();
        bed.array.fail(LOST, false).await?;
    }
    let phase = pair.phase(Work::Rebuild, &[3, 6]).await?;
    for (kind, runs) in ["reads", "writes"].iter().zip(pair.beds[0].runs()) {
        println!(
            "Runs of {kind}: {:.0} KiB, {} of them",
            runs.mean() / 1024.0,
            runs.count
        );
    }
    pair.tell(&phase, "Rebuild", &left, 20.0 * mib);
    plots.push((
        "rebuild",
        pair.plot(&phase, "Rebuild", &left, "rebuild.min 20M", 20.0 * mib),
    ));
    plots.push(("rebuild-step", pair.zoom(&phase, &left)));

    for bed in &pair.beds {
        bed.forget();
        bed.replace(LOST).await?;
    }
    let phase = pair.phase(Work::Rebalance, &[3, 6, 3, 6]).await?;
    pair.tell(&phase, "Rebalance", &[LOST], 10.0 * mib);
    plots.push((
        "rebalance",
        pair.plot(
            &phase,
            "Rebalance",
            &[LOST],
            "rebalance.min 10M",
            10.0 * mib,
        ),
    ));

    pair.scrubs().await?;
    let phase = pair.phase(Work::Scrub, &[5, 10, 5, 10]).await?;
    let whole: Vec<u16> = (0..SHAPE.devices).collect();
    pair.tell(&phase, "Scrub", &whole, 10.0 * mib);
    plots.push((
        "scrub",
        pair.plot(&phase, "Scrub", &whole, "scrub.min 10M", 10.0 * mib),
    ));
    Ok(plots)
}

/// Draws all plots into a folder.
pub(crate) fn draw(into: &Path) -> Done<()> {
    let rt = Rt::simulated(1);
    let run = all(rt.clone());
    let plots = rt.block_on(run)?;
    rt.shutdown();
    for (name, plot) in plots {
        std::fs::write(into.join(format!("{name}.svg")), plot.svg())?;
    }
    Ok(())
}
