//! `create`, `import`, `export`, `destroy`, `get`, `set`, `fail`.
//!
//! **Invariants**: what destroys data asks to be told twice before the daemon is asked.

use std::process::ExitCode;

use ashlar_engine::status::ArrayStatus;
use ashlar_layout::Layout;
use serde_json::{Value, json};

use crate::api::{
    Attached, Call, Create, CreateReply, DestroyReply, Found, FrontendSpec, GetReply, Import,
    ImportReply, ImportableReply,
};
use crate::cli::absent;
use crate::cli::{Attach, CreateArgs, DestroyArgs, FailArgs, GetArgs, ImportArgs, SetArgs};
use crate::command::returning::named;
use crate::command::{domains, incremental, wait};
use crate::failure::Failure;
use crate::print::{Context, absolute};
use crate::units::{as_given, percent, rate, size, size_or_exact};
use crate::view::picture::reserved_text;
use crate::view::{Style, count, safe, table};

/// `create`.
///
/// # Errors
/// What stands against it.
pub(crate) fn create(context: &Context, args: &CreateArgs) -> Result<(), Failure> {
    let attach = match &args.attach {
        None => None,
        Some(Attach::Loop) => Some(FrontendSpec::Loop),
        Some(Attach::Nbd(address)) => Some(FrontendSpec::Nbd(nbd_address(address)?)),
        Some(Attach::Fuse(dir)) => Some(FrontendSpec::Fuse(absolute(dir)?)),
    };
    for device in &args.devices {
        absent::check_device(device)?;
    }
    let devices = args
        .devices
        .iter()
        .map(|path| absolute(path))
        .collect::<Result<Vec<_>, Failure>>()?;
    let given = domains::given(&args.domain)?;
    let domains = match &args.domain_file {
        Some(file) => domains::from_file(file, &args.devices, given)?,
        None => given,
    };
    let call = Call::Create(Create {
        array: args.array.clone(),
        layout: args.layout.clone(),
        spare: args.spare,
        strip_bytes: args.strip,
        slot_bytes: args.slot,
        domains,
        file_bytes: args.file_size,
        volume: args.volume.clone(),
        attach,
        dry_run: args.dry_run,
        force: args.force,
        devices,
    });
    let reply: CreateReply = context.client.call(&call)?;
    context.print("create", &reply, || describe(&reply, args.exact))
}

fn describe(reply: &CreateReply, exact: bool) -> String {
    let array = &reply.array;
    let n = |bytes: u64| size_or_exact(bytes, exact);
    let c = &array.capacity;
    let mut lines = vec![if reply.dry_run {
        format!(
            "{}: dry run, nothing was changed; 'create' would make this",
            array.name
        )
    } else {
        format!("{}: created", array.name)
    }];
    lines.push(format!(
        "  layout    {}{} on {}, strip {}, slot {}",
        array.layout,
        crate::view::picture::code(array),
        count(usize::from(array.devices_total), "device"),
        n(array.strip_bytes),
        n(array.slot_bytes)
    ));
    lines.push(format!(
        "  capacity  {} usable of {} raw ({} %)",
        n(c.usable_bytes),
        n(c.raw_bytes),
        percent(c.usable_bytes, c.raw_bytes),
    ));
    lines.push(format!(
        "  overhead  {} parity, {} spare, {} reserved",
        n(c.parity_bytes),
        n(c.spare_bytes),
        n(c.reserved_bytes)
    ));
    let style = Style {
        exact,
        ..Style::detect(exact)
    };
    if let Some(text) = reserved_text(reply.reserved.as_ref(), style) {
        lines.push(format!("  reserved  {text}"));
    }
    lines.push(format!(
        "  metadata  at most {} of data at 4K blocks",
        metadata_share(array.k, array.m)
    ));
    lines.push(match array.m {
        0 => "  survives  no device failure".to_string(),
        1 => "  survives  any 1 device failure".to_string(),
        m => format!("  survives  any {m} device failures"),
    });
    match array.health.survives_domain {
        None => {}
        Some(true) => lines.push("            or the failure of any one whole domain".to_string()),
        Some(false) => lines.push(lost_with_a_domain(array)),
    }
    for volume in &array.volumes {
        lines.push(format!(
            "  volume    {}, {}",
            safe(&volume.name),
            n(volume.size_bytes)
        ));
    }
    if let Some(attached) = &reply.attached {
        lines.push(format!("  attached  {}", attached_text(attached)));
    }
    lines.extend(taken(reply));
    lines.join("\n") + "\n"
}

/// The devices and files that a `create` takes, and what becomes of them.
fn taken(reply: &CreateReply) -> Vec<String> {
    let mut lines = Vec::new();
    let (overwrote, made) = match reply.dry_run {
        true => ("destroys ", "would be made"),
        false => ("overwrote", "made"),
    };
    for overwritten in &reply.overwritten {
        lines.push(format!("  {overwrote} {}", safe(overwritten)));
    }
    let gets = if reply.dry_run { "would get" } else { "got" };
    lines.extend(match reply.partitioned.len() {
        0 => None,
        1 => Some(format!("  disks     1 whole disk {gets} a partition (GPT)")),
        count => Some(format!(
            "  disks     {count} whole disks {gets} a partition each (GPT)"
        )),
    });
    lines.extend(match reply.files_made.len() {
        0 => None,
        1 => Some(format!("  files     1 sparse file {made}")),
        count => Some(format!("  files     {count} sparse files {made}")),
    });
    lines
}

/// What it takes to survive the loss of a domain, where that is not so.
fn lost_with_a_domain(array: &ArrayStatus) -> String {
    let (width, m) = (array.k + array.m, array.m);
    if m == 0 {
        return "            nor a domain".to_string();
    }
    let layout = array.layout.parse::<Layout>().ok();
    let shape = layout.and_then(|l| l.resolve_with_spare(array.devices_total, array.spare).ok());
    let domains = width.div_ceil(m);
    let each = match shape {
        Some(shape) if shape.groups.len() > 1 => {
            "each group (devices are grouped in the order given)"
        }
        _ => "it",
    };
    let devices = count(usize::from(m), "device");
    format!(
        "            not a whole domain: for that {each} takes {domains} domains of {devices} or more,\n            \
         none of them with more than half of the devices"
    )
}

/// The map's 32 bytes for a 4 KiB block with a leaf's header and the metadata's own code, and the
/// summary's 32 bytes for each strip block, parity included; in percent.
fn metadata_share(k: u16, m: u16) -> String {
    let (k, m) = (f64::from(k), f64::from(m));
    let (meta_k, meta_m) = (k.min(8.0), (m + 1.0).max(2.0));
    let map = 32.0 / 4096.0 * 1.01 * (meta_k + meta_m) / meta_k;
    let summary = 1.0 / 126.0 * (k + m) / k;
    format!("{:.1} %", (map + summary) * 100.0)
}

/// What a client does with it.
pub(crate) fn attached_text(attached: &Attached) -> String {
    match attached.kind.as_str() {
        "nbd" => match attached.address.strip_prefix("unix:") {
            Some(path) => format!("nbd+unix:///{}?socket={}", attached.export, safe(path)),
            None => format!("nbd://{}/{}", attached.address, attached.export),
        },
        _ => match &attached.device {
            Some(device) if *device != attached.address => {
                format!("{} -> {}", safe(&attached.address), safe(device))
            }
            _ => safe(&attached.address),
        },
    }
}

/// An NBD address with an absolute path.
///
/// # Errors
/// If the path is not one.
pub(crate) fn nbd_address(text: &str) -> Result<String, Failure> {
    match text.strip_prefix("unix:") {
        Some(path) => Ok(format!("unix:{}", absolute(path.as_ref())?)),
        None => Ok(text.to_string()),
    }
}

/// `import`.
///
/// # Errors
/// Why an array cannot be started, or devices cannot be looked at.
pub(crate) fn import(context: &Context, args: &ImportArgs) -> Result<ExitCode, Failure> {
    if let Some(device) = &args.incremental {
        let done = incremental::incremental(context, device, args.export);
        return done.map(|()| ExitCode::SUCCESS);
    }
    let scan = args
        .scan
        .iter()
        .map(|dir| absolute(dir))
        .collect::<Result<Vec<_>, Failure>>()?;
    if args.array.is_none() && !args.all {
        return importable(context, scan, args.script).map(|()| ExitCode::SUCCESS);
    }
    let call = Call::Import(Import {
        array: args.array.clone(),
        scan,
        degraded: args.degraded,
        read_only: args.read_only,
        new_name: args.new_name.clone(),
        take_over: args.force,
        ..Import::default()
    });
    let reply: ImportReply = context.client.call(&call)?;
    if context.json && !reply.failed.is_empty() {
        // One document, whatever came of it.
        let mut value = json!(reply);
        value["error"] = Failure::broken(reply.failed[0].clone()).to_json();
        context.print("import", &value, String::new)?;
        return Ok(ExitCode::FAILURE);
    }
    context.print("import", &reply, || {
        let mut text = String::new();
        for array in &reply.imported {
            let (word, _) = crate::view::picture::state_word(array.state);
            let volumes = array.volumes.len();
            text += &format!(
                "{}: imported, {}{}, {volumes} volume{}\n",
                safe(&array.name),
                word.to_lowercase(),
                match array.service {
                    ashlar_engine::status::Service::ReadOnly => ", read-only",
                    _ => "",
                },
                if volumes == 1 { "" } else { "s" }
            );
        }
        if reply.imported.is_empty() && reply.failed.is_empty() {
            text += "nothing to import; give --scan DIR to look at files\n";
        }
        text
    })?;
    for warning in &reply.warnings {
        eprintln!("ashlar: {}", safe(warning));
    }
    match reply.failed.as_slice() {
        [] => Ok(ExitCode::SUCCESS),
        [one] => Err(Failure::broken(one.clone())),
        [first, rest @ ..] => {
            for line in rest {
                eprintln!("ashlar: {}", safe(line));
            }
            Err(Failure::broken(first.clone()))
        }
    }
}

fn importable(context: &Context, scan: Vec<String>, script: bool) -> Result<(), Failure> {
    let reply: ImportableReply = context.client.call(&Call::Importable { scan })?;
    context.print("import", &reply, || {
        if reply.importable.is_empty() && !script {
            return "no array to import found; give --scan DIR to look at files\n".to_string();
        }
        let rows = reply
            .importable
            .iter()
            .map(|found| {
                vec![
                    safe(&found.name),
                    found.uuid.clone(),
                    safe(&found.layout),
                    devices(found),
                    found.generation.to_string(),
                ]
            })
            .collect();
        table::table(
            &["ARRAY", "UUID", "LAYOUT", "DEVICES", "GENERATION"],
            rows,
            &[],
            script,
        )
    })?;
    for found in reply.importable.iter().filter(|f| !f.missing.is_empty()) {
        let missing = found.missing.join(", ");
        eprintln!(
            "ashlar: array {} lacks {}",
            safe(&found.name),
            safe(&missing)
        );
    }
    let copies = reply.importable.iter().flat_map(|found| &found.copies);
    for line in copies.chain(&reply.unreadable) {
        eprintln!("ashlar: {}", safe(line));
    }
    Ok(())
}

/// How many devices are here, and of how many; an older daemon does not say which its generation counts.
fn devices(found: &Found) -> String {
    match found.devices_counted {
        0 => format!("{} of {}", found.devices.len(), found.devices_total),
        counted => format!("{} of {counted}", found.devices_here),
    }
}

/// `export`.
///
/// # Errors
/// If the array is in use or unknown.
pub(crate) fn export(context: &Context, array: &str) -> Result<(), Failure> {
    let reply = context.client.call_value(&Call::Export {
        array: array.to_string(),
    })?;
    context.print("export", &reply, || format!("{array}: exported\n"))?;
    let warnings = reply["warnings"].as_array().into_iter().flatten();
    for line in warnings.filter_map(Value::as_str) {
        eprintln!("ashlar: {}", safe(line));
    }
    Ok(())
}

/// `destroy`.
///
/// # Errors
/// Without `--yes`; or if the array is in use or unknown.
pub(crate) fn destroy(context: &Context, args: &DestroyArgs) -> Result<(), Failure> {
    let array = &args.array;
    if !args.yes {
        return Err(Failure::refused(format!(
            "destroying {array} destroys all its data; if that is meant, give --yes ('ashlar export {array}' keeps them)"
        )));
    }
    let reply: DestroyReply = context.client.call(&Call::Destroy {
        array: array.clone(),
        confirm: Some(array.clone()),
        force: args.force,
    })?;
    context.print("destroy", &reply, || format!("{array}: destroyed\n"))?;
    for line in &reply.not_wiped {
        eprintln!("ashlar: {}", safe(line));
    }
    Ok(())
}

/// `set`.
///
/// # Errors
/// If the property or value is unknown.
pub(crate) fn set(context: &Context, args: SetArgs) -> Result<(), Failure> {
    let (key, value) = args.pair;
    let array = args.array.clone();
    let reply = context.client.call_value(&Call::Set {
        array: args.array,
        key: key.clone(),
        value: value.clone(),
    })?;
    context.print("set", &reply, || {
        let is = &in_units(&key, reply["is"].as_str().unwrap_or(&value));
        let bytes = is.parse().ok().filter(|_| is_rate(&key));
        let note = match (reply["default"] == true, *is == value, bytes) {
            (true, ..) => " (the default)".to_string(),
            (_, _, Some(bytes)) => format!(" ({} of each device)", rate(bytes)),
            (_, true, _) => String::new(),
            (_, false, _) => format!(" (given as {})", safe(&value)),
        };
        format!("{array}: {key}={}{note}\n", safe(is))
    })
}

/// The value of a setting for people: a rate with its unit, where that says it exactly.
fn in_units(key: &str, value: &str) -> String {
    let bytes = value.parse().ok().filter(|_| is_rate(key));
    bytes.map_or_else(|| value.to_string(), as_given)
}

/// Whether a setting is a rate of background work.
fn is_rate(key: &str) -> bool {
    key.ends_with(".min") || key.ends_with(".max")
}

/// `get`.
///
/// # Errors
/// If the property is unknown.
pub(crate) fn get(context: &Context, args: GetArgs) -> Result<(), Failure> {
    let reply: GetReply = context.client.call(&Call::Get {
        array: args.array,
        key: args.key,
    })?;
    context.print("get", &reply, || {
        let rows = reply
            .properties
            .iter()
            .map(|(k, v)| match args.script {
                true => vec![k.clone(), safe(v)],
                false => vec![k.clone(), safe(&in_units(k, v))],
            })
            .collect();
        table::table(&["PROPERTY", "VALUE"], rows, &[], args.script)
    })
}

/// `fail`.
///
/// # Errors
/// If the device is unknown, or too few would be left.
pub(crate) fn fail(context: &Context, args: FailArgs) -> Result<(), Failure> {
    let call = Call::Fail {
        array: args.array.clone(),
        device: named(&args.device),
        force: args.force,
    };
    let reply: Value = context.client.call_value(&call)?;
    let path = reply["path"].as_str().unwrap_or_default();
    let already = reply["already"] == true;
    let unreadable = reply["unreadable_bytes"].as_u64().unwrap_or(0);
    let shown = json!({
        "array": args.array, "device": reply["device"], "path": path, "already": already,
        "unreadable_bytes": unreadable,
    });
    context.print("fail", &shown, || {
        let is = if already {
            "is out of use already"
        } else {
            "is failed"
        };
        let cannot = match unreadable {
            0 => String::new(),
            bytes => format!(
                "; {} of data cannot be read now, and is lost unless a device that holds it is taken in again",
                size(bytes)
            ),
        };
        format!(
            "{0}: device {1} ({2}) {is}{cannot}; 'ashlar status {0}' shows its rebuild and what is at risk, 'ashlar \
             online {0} {1} -f' takes it in again\n",
            args.array,
            reply["device"],
            safe(path)
        )
    })?;
    if args.wait {
        wait::wait(context, &args.array, &["reconstruct".to_string()])?;
    }
    Ok(())
}
