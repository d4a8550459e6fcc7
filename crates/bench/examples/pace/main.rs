//! Clients beside background work, on modelled devices in virtual time: what each has of the other.
//!
//!     cargo run --release -p ashlar-bench --example pace -- hdd
//!     cargo run --release -p ashlar-bench --example pace -- plots docs/plots
//!
//! The first has clients beside a rebuild, by `rebuild.min`; the second draws rates over time.

mod plots;

use std::error::Error;

use ashlar_bench::load::run;
use ashlar_bench::pace::{Bed, Shape};
use ashlar_bench::{Durability, Load, Measured, Op, Pattern};
use ashlar_device::Profile;
use ashlar_engine::Work;
use ashlar_rt::{MILLISECOND, Rt};

type Done<T> = Result<T, Box<dyn Error>>;

const DEVICES: u16 = 12;

/// 128 KiB in order, or 4 KiB at random.
async fn clients(rt: &Rt, bed: &Bed, (op, depth, count): (Op, usize, u64)) -> Done<Measured> {
    let (pattern, bytes) = match op {
        Op::Read => (Pattern::Random, 4 << 10),
        _ => (Pattern::Sequential, 128 << 10),
    };
    let load = Load {
        op,
        pattern,
        bytes,
        depth,
        durability: Durability::Cached,
        warm: 0,
        count,
    };
    Ok(run(rt, &bed.target()?, load, || {}).await?)
}

/// What clients have, and the bytes a second that a rebuild moves of each device meanwhile.
async fn beside(
    rt: Rt,
    profile: Profile,
    load: (Op, usize, u64),
    min: Option<&str>,
) -> Done<(Measured, f64)> {
    let shape = Shape {
        profile,
        layout: "ec8+2",
        devices: DEVICES,
        spare: 0,
        device_bytes: 128 << 30,
        slot_bytes: 8 << 20,
        volume_bytes: 2 << 30,
    };
    let bed = Bed::new(&rt, shape).await?;
    if let Some(min) = min {
        bed.array.set("reconstruct.min", min).await?;
        bed.array.fail(5, false).await?;
    }
    let warm = (load.0, load.1, load.2 / 8);
    clients(&rt, &bed, warm).await?;
    let done = async || {
        let rebuild = bed.task(Work::Rebuild).await;
        rebuild.map_or((0, false), |t| (t.done_bytes, t.state == "running"))
    };
    let (before, _) = done().await;
    let measured = clients(&rt, &bed, load).await?;
    let (after, runs) = done().await;
    if min.is_some() && !runs {
        println!("(the rebuild was over before the clients)");
    }
    // K are read, one is written and read back.
    let moved = (after - before) as f64 * 10.0 / f64::from(DEVICES - 1);
    Ok((measured, moved * 1e9 / measured.elapsed as f64))
}

fn main() -> Done<()> {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or("hdd".to_string());
    if name == "plots" {
        let into = words.next().ok_or("a folder for the plots is missing")?;
        return plots::draw(into.as_ref());
    }
    let profile = Profile::named(&name).ok_or("no such profile")?;
    let loads: [(&str, (Op, usize, u64)); 2] = match profile.rotation {
        Some(_) => [
            ("4K random reads", (Op::Read, 48, 4000)),
            ("128K sequential writes", (Op::Write, 32, 8000)),
        ],
        None => [
            ("4K random reads", (Op::Read, 256, 400_000)),
            ("128K sequential writes", (Op::Write, 64, 16_000)),
        ],
    };
    for (what, load) in loads {
        let mut alone: Option<Measured> = None;
        for min in [None, Some("10M"), Some("50M"), Some("none")] {
            let rt = Rt::simulated(1);
            let run = beside(rt.clone(), profile, load, min);
            let (found, moved) = rt.block_on(run)?;
            rt.shutdown();
            let solo = *alone.get_or_insert(found);
            println!(
                "{name}, {what}, rebuild.min={}: {:.0} a second, {:.0} % of alone; p99 {:.1} ms, {:.1} times; \
                 {:.1} MB/s of rebuild of each device",
                min.unwrap_or("(no rebuild)"),
                found.per_second(),
                100.0 * found.per_second() / solo.per_second(),
                found.p99 as f64 / MILLISECOND as f64,
                found.p99 as f64 / solo.p99 as f64,
                moved / 1e6,
            );
        }
    }
    Ok(())
}
