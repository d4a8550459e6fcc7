//! Clients beside a rebuild, on modelled devices in virtual time: what each has of the other, by `rebuild.min`.
//!
//!     cargo run --release -p ashlar-bench --example pace -- hdd

use std::error::Error;
use std::rc::Rc;

use ashlar_bench::load::run;
use ashlar_bench::{Durability, Load, Measured, Op, Pattern, Target};
use ashlar_device::{Content, DeviceRef, ModelDevice, ModelOptions, Profile};
use ashlar_engine::{Array, Create, Settings, VolumeOptions};
use ashlar_rt::{MILLISECOND, Rt, SECOND};

type Done<T> = Result<T, Box<dyn Error>>;

const DEVICES: u16 = 12;
const VOLUME: u64 = 2 << 30;

/// 8+2 on devices with slots and strips as they have them there, and a volume that is written.
async fn array(rt: Rt, profile: Profile) -> Done<Array> {
    let slot_bytes = 8 << 20;
    let options = ModelOptions {
        content: Content::Store,
        slot_bytes,
        ..ModelOptions::new(128 << 30)
    };
    let device = |n| Rc::new(ModelDevice::new(&rt, &format!("d{n}"), profile, options));
    let devices = (0..DEVICES).map(|n| device(n) as DeviceRef).collect();
    let strip = if profile.rotation.is_some() { 128 } else { 16 };
    let create = Create {
        name: "bench".to_string(),
        layout: "ec8+2".parse()?,
        strip_bytes: Some(strip << 10),
        slot_bytes: Some(slot_bytes),
        spare: 0,
        domains: Vec::new(),
        settings: Settings::default(),
    };
    let array = Array::create(&rt, devices, create).await?;
    let volume = VolumeOptions {
        size_bytes: VOLUME,
        thin: true,
        ..VolumeOptions::default()
    };
    array.volume_create("v", volume).await?;
    clients(&rt, &array, (Op::Write, 32, VOLUME >> 17)).await?;
    array.volume("v").ok_or("no volume")?.flush().await?;
    rt.sleep(65 * SECOND).await;
    Ok(array)
}

/// 128 KiB in order, or 4 KiB at random.
async fn clients(rt: &Rt, array: &Array, (op, depth, count): (Op, usize, u64)) -> Done<Measured> {
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
    let target = Target::Volume(array.volume("v").ok_or("no volume")?);
    Ok(run(rt, &target, load, || {}).await?)
}

/// What clients have, and the bytes a second that a rebuild moves of each device meanwhile.
async fn beside(
    rt: Rt,
    profile: Profile,
    load: (Op, usize, u64),
    min: Option<&str>,
) -> Done<(Measured, f64)> {
    let array = array(rt.clone(), profile).await?;
    if let Some(min) = min {
        array.set("reconstruct.min", min).await?;
        array.fail(5, false).await?;
    }
    let warm = (load.0, load.1, load.2 / 8);
    clients(&rt, &array, warm).await?;
    let done = async |array: &Array| {
        let tasks = array.status().await.tasks;
        let rebuild = tasks.into_iter().find(|t| t.kind == "reconstruct");
        rebuild.map_or((0, false), |t| (t.done_bytes, t.state == "running"))
    };
    let (before, _) = done(&array).await;
    let measured = clients(&rt, &array, load).await?;
    let (after, runs) = done(&array).await;
    if min.is_some() && !runs {
        println!("(the rebuild was over before the clients)");
    }
    // K are read, one is written and read back.
    let moved = (after - before) as f64 * 10.0 / f64::from(DEVICES - 1);
    Ok((measured, moved * 1e9 / measured.elapsed as f64))
}

fn main() -> Done<()> {
    let name = std::env::args().nth(1).unwrap_or("hdd".to_string());
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
